//! A warp: 32 lanes with registers, and the stack of paths that diverging lanes take.
//!
//! A [`Path`] is a set of lanes with one instruction pointer and the instruction at which it reconverges with the other
//! side of its branch. The topmost path runs; at its reconvergence it is popped, and the one below continues with the
//! lanes of both. Diverged lanes execute one side after the other, in an order that the schedule chooses; a side that
//! waits for the other never ends (the device would let both proceed) and is reported as a deadlock or an endless loop.

use super::{Copies, Products, WarpClock};
use crate::sim::{
    isa::{BarrierKind, SPECIALS},
    text::Entry,
};

/// Lanes that run together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) pc: usize,
    pub(crate) mask: u32,
    pub(crate) reconvergence: usize,
}

/// Whether a warp can run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum State {
    #[default]
    Ready,
    /// At a barrier of the block, with the destination of its reduction.
    Barrier {
        id: usize,
        result: Option<u32>,
    },
    /// Polling an incomplete phase of an mbarrier: the block's version at that time, and the number of polls since.
    Polling {
        version: u64,
        times: u32,
    },
    Done,
}

/// A warp.
#[derive(Debug, Default)]
pub(crate) struct Warp {
    pub(crate) registers: Vec<[u64; 32]>,
    /// The lanes in which a register was written.
    pub(crate) defined: Vec<u32>,
    pub(crate) paths: Vec<Path>,
    /// Lanes that have not ended.
    pub(crate) live: u32,
    pub(crate) state: State,
    pub(crate) clock: WarpClock,
    /// Bytes lane by lane, and whether each was written.
    pub(crate) local: Vec<(u8, bool)>,
    pub(crate) copies: Copies,
    pub(crate) products: Products,
    /// Bulk copies that it has started.
    pub(crate) flights: u32,
    /// Registers of each thread, once `setmaxnreg` has set them.
    pub(crate) registers_held: Option<u32>,
    pub(crate) executed: u64,
    /// The instruction that ran last.
    pub(crate) last: usize,
    /// Polls of an mbarrier since the last change.
    pub(crate) polls: u32,
    /// Lanes that have executed `griddepcontrol.wait`.
    pub(crate) grid_waited: u32,
    /// Reduction of the barrier at which it waits.
    pub(crate) reduction: BarrierKind,
}

impl Warp {
    /// The warp `index` of a block of `threads` threads and `warps` warps, whose first timeline is `base`.
    pub(crate) fn new(entry: &Entry, base: u32, index: usize, warps: usize, threads: usize, products: bool) -> Self {
        let lanes = (threads - 32 * index).min(32) as u32;
        let live = u32::MAX >> (32 - lanes);
        let count = entry.registers.len();
        let mut defined = vec![0; count];
        defined[..SPECIALS.len()].fill(u32::MAX);
        Warp {
            registers: vec![[0; 32]; count],
            defined,
            paths: vec![Path { pc: 0, mask: live, reconvergence: entry.code.len() }],
            live,
            clock: WarpClock::new(base, index, warps),
            local: vec![(0xFF, false); 32 * entry.local_bytes as usize],
            products: if products { Products::new(count) } else { Products::default() },
            ..Warp::default()
        }
    }

    /// The path that runs; paths that have reconverged, or whose lanes have all ended, are popped.
    pub(crate) fn top(&mut self) -> Option<&mut Path> {
        while let Some(path) = self.paths.last() {
            let met = path.pc == path.reconvergence && self.paths.len() > 1;
            if path.mask != 0 && !met {
                break;
            }
            self.paths.pop();
        }
        self.paths.last_mut()
    }

    /// Ends the lanes of `mask`.
    pub(crate) fn exit(&mut self, mask: u32) {
        self.live &= !mask;
        self.paths.iter_mut().for_each(|path| path.mask &= !mask);
        if self.top().is_none() {
            self.state = State::Done;
        }
    }

    /// Splits the running path into `ways`, each a target and its lanes, which reconverge at `reconvergence`; the first
    /// way runs first.
    pub(crate) fn diverge(&mut self, ways: &[(usize, u32)], reconvergence: usize) {
        if let ([(target, _)], Some(path)) = (ways, self.paths.last_mut()) {
            path.pc = *target;
            return;
        }
        if let Some(path) = self.paths.last_mut() {
            path.pc = reconvergence;
        }
        for &(pc, mask) in ways.iter().rev() {
            if pc != reconvergence {
                self.paths.push(Path { pc, mask, reconvergence });
            }
        }
    }
}
