//! Sums of gradients along a tree that does not depend on who computes what.
//!
//! A step's micro-batches are cut into L lanes (`batch.lanes`, a power of two): micro-batch i of M is in lane ⌊i·L/M⌋. Within a
//! lane gradients are added in order; lanes are added along a perfect binary tree:
//!
//! ```text
//! lanes     0   1   2   3   4   5   6   7
//!           └─+─┘   └─+─┘   └─+─┘   └─+─┘
//!             └───+───┘       └───+───┘
//!                 └───────+───────┘
//! 3 ranks   └─ 0 ─┘ └── 1 ────┘ └── 2 ──┘
//! ```
//!
//! Rank r of R has the lanes ⌊r·L/R⌋ .. ⌊(r+1)·L/R⌋ and adds up the largest subtrees that lie in them, its *parts*; the rest of
//! the tree is added while ranks exchange ([`all_reduce`](super::all_reduce)). L = 1 is the order of a process that knows
//! nothing of lanes.
//!
//! A rank with l lanes keeps at most ⌊log₂ l⌋ sums beside the buffer that backward adds to, as a binary counter keeps digits;
//! a few more where its lanes are no subtree.

use super::Communicator;
use crate::{
    device::Device,
    error::{EngineError, Result},
    param::Gradients,
    tensor::Tensor,
};
use std::ops::Range;

/// Lanes of rank `rank` of `size`.
pub(super) fn of_rank(rank: usize, size: usize, lanes: usize) -> Range<usize> {
    rank * lanes / size..(rank + 1) * lanes / size
}

/// The largest subtrees of the tree over all lanes that lie in `lanes`, from the left.
pub(super) fn subtrees(lanes: Range<usize>) -> Vec<Range<usize>> {
    let (mut start, mut all) = (lanes.start, Vec::new());
    while start < lanes.end {
        let mut width = 1;
        while start.is_multiple_of(2 * width) && start + 2 * width <= lanes.end {
            width *= 2;
        }
        all.push(start..start + width);
        start += width;
    }
    all
}

/// True if the subtrees are the halves of another.
pub(super) fn are_halves(left: &Range<usize>, right: &Range<usize>) -> bool {
    left.len() == right.len() && left.end == right.start && left.start.is_multiple_of(2 * left.len())
}

/// Sums over the lanes of one rank, of a step.
#[derive(Debug)]
pub struct LaneSums {
    communicator: Communicator,
    /// L
    lanes: usize,
    /// Lanes of this rank.
    own: Range<usize>,
    /// Lanes that are finished.
    done: usize,
    /// Sums of subtrees, from the left; the last sum is in the gradients.
    sums: Vec<(Range<usize>, Tensor)>,
    /// Buffers for sums.
    spare: Vec<Tensor>,
    /// Bytes of others, and of this rank in an order in which they can be sent.
    pub(super) room: [Vec<f32>; 2],
}

impl LaneSums {
    /// Sums of the lanes that this rank has of `lanes`, of gradients like `gradients`. No other function allocates buffers,
    /// but for the first exchange.
    ///
    /// # Errors
    /// `lanes` is no power of two, there are more ranks than lanes, or there is not enough memory.
    pub fn new(communicator: Communicator, lanes: usize, gradients: &Gradients) -> Result<Self> {
        let setting =
            |problem: String| EngineError::Setting { setting: "batch.lanes", value: lanes.to_string(), problem };
        let size = communicator.size();
        if !lanes.is_power_of_two() {
            return Err(setting("expected a power of two".into()));
        }
        if size > lanes {
            let enough = size.next_power_of_two();
            return Err(setting(format!(
                "{size} ranks need at least as many lanes; set `batch.lanes = {enough}`, which changes the order of sums"
            )));
        }
        let own = of_rank(communicator.rank(), size, lanes);
        // The sums that are kept while the last lane is computed, or earlier.
        let kept = own.clone().map(|lane| subtrees(own.start..lane).len()).max().unwrap_or(0);
        let spare = (0..kept).map(|_| gradients.buffer()).collect::<Result<_>>()?;
        Ok(Self { communicator, lanes, done: own.start, own, sums: Vec::new(), spare, room: Default::default() })
    }

    /// Lanes of this rank.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Lane of micro-batch `micro` of `count`.
    pub fn lane(&self, micro: usize, count: usize) -> usize {
        micro * self.lanes / count
    }

    /// Bytes of the buffers.
    pub fn bytes(&self) -> usize {
        let tensors = self.sums.iter().map(|(_, sum)| sum).chain(&self.spare);
        tensors.map(Tensor::storage_bytes).sum::<usize>()
            + self.room.iter().map(|room| 4 * room.capacity()).sum::<usize>()
    }

    /// Forgets a step that was not finished.
    pub fn clear(&mut self) {
        self.done = self.own.start;
        self.spare.extend(self.sums.drain(..).map(|(_, sum)| sum));
    }

    /// Ends the current lane of this rank, whose sum is in `gradients`. They are zero again for the next lane, if there is
    /// one.
    ///
    /// # Errors
    /// The GPU failed.
    ///
    /// # Panics
    /// If all lanes were ended before.
    pub fn end_lane(&mut self, gradients: &mut Gradients) -> Result<()> {
        assert!(self.done < self.own.end, "lanes {:?} are finished", self.own);
        let mut range = self.done..self.done + 1;
        self.done += 1;
        while let Some((left, sum)) = self.sums.pop_if(|(left, _)| are_halves(left, &range)) {
            add(&gradients.device().clone(), &sum, &mut gradients.flat)?;
            range.start = left.start;
            self.spare.push(sum);
        }
        if self.done < self.own.end {
            let mut next = self.spare.pop().expect("as many buffers as sums");
            next.zero()?;
            self.sums.push((range, std::mem::replace(&mut gradients.flat, next)));
        }
        Ok(())
    }

    /// Replaces the gradients by the sum over the lanes of all ranks. `what` names them in errors. All lanes are finished.
    ///
    /// # Errors
    /// A rank is gone or late, or the GPU failed.
    pub fn all_reduce(&mut self, what: &str, gradients: &mut Gradients) -> Result<()> {
        assert!(self.done == self.own.end, "lanes {:?} are not finished", self.done..self.own.end);
        self.done = self.own.start;
        let size = self.communicator.size();
        if size == 1 {
            return Ok(());
        }
        let cpu = gradients.device().processor().clone();
        let communicator = self.communicator.clone();
        if size.is_power_of_two() {
            // One subtree a rank.
            return gradients
                .on_host(|sum| super::all_reduce::halving(&communicator, &cpu, what, sum, &mut self.room[0]));
        }
        let mut parts = Vec::new();
        for (_, sum) in &self.sums {
            parts.push(sum.elements::<f32>()?);
        }
        let room = &mut self.room;
        gradients
            .on_host(|last| super::all_reduce::by_slices(&communicator, &cpu, what, self.lanes, &parts, last, room))?;
        drop(parts);
        self.spare.extend(self.sums.drain(..).map(|(_, sum)| sum));
        Ok(())
    }
}

/// sum += x
fn add(device: &Device, x: &Tensor, sum: &mut Tensor) -> Result<()> {
    match device {
        Device::Cpu(cpu) => kernels::elementwise::add_assign(cpu, x.slice::<f32>(), sum.slice_mut::<f32>()),
        Device::Cuda(gpu) => {
            let count = sum.len();
            gpu.add_assign(x.address(), sum.address_mut(), x.dtype(), count)?;
        }
    }
    Ok(())
}
