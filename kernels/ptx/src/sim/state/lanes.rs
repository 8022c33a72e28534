//! Lanes of a warp, and instructions that they execute together.

use crate::sim::isa::Instruction;

/// The lanes of a mask.
pub(crate) fn lanes(mask: u32) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let lane = rest.trailing_zeros();
        (rest != 0).then(|| {
            rest &= rest - 1;
            lane as usize
        })
    })
}

/// The first lane of a mask.
pub(crate) fn first(mask: u32) -> usize {
    mask.trailing_zeros().min(31) as usize
}

/// An instruction that lanes of a warp execute together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Issue<'i> {
    pub(crate) i: &'i Instruction,
    /// Index of the warp in its block.
    pub(crate) w: usize,
    /// Index of the instruction in its entry.
    pub(crate) pc: usize,
    /// The lanes.
    pub(crate) mask: u32,
}

/// One lane at an instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Thread {
    pub(crate) w: usize,
    pub(crate) lane: usize,
    pub(crate) pc: usize,
}

impl Issue<'_> {
    /// The thread of a lane.
    pub(crate) fn thread(self, lane: usize) -> Thread {
        Thread { w: self.w, lane, pc: self.pc }
    }

    /// The threads of the lanes.
    pub(crate) fn threads(self) -> impl Iterator<Item = Thread> {
        lanes(self.mask).map(move |lane| Thread { w: self.w, lane, pc: self.pc })
    }

    /// The thread of the first lane.
    pub(crate) fn first(self) -> Thread {
        self.thread(first(self.mask))
    }
}
