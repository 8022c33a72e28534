//! Sums of gradients along a tree that does not depend on who computes what.
//!
//! A step is cut into L equal lanes (a setting, a power of two). Within a lane gradients are added in order, micro-batch by
//! micro-batch; lanes are added along a perfect binary tree:
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
//! A rank with l lanes keeps at most ⌊log₂ l⌋ sums in addition to the buffer that backward adds to, as a binary counter keeps digits;
//! a few more where its lanes are not a subtree.

use super::{
    Communicator, all_reduce,
    arrays::{Arrays, OnDevice, OnHost},
    tree::{are_halves, of_rank, subtrees, subtrees_of_rank},
};
use crate::{
    device::{Device, Gpu},
    dtype::DType,
    error::{EngineError, Result},
    memory::Arena,
    param::Gradients,
    tensor::Tensor,
};
use kernels::Cpu;
use std::ops::Range;

/// Lanes of a step, and those of this rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lanes {
    count: usize,
    own: Range<usize>,
}

impl Lanes {
    /// Maximum number of lanes.
    pub const MOST: usize = 1 << 10;

    /// Cuts a step into `count` lanes, which is the value of `setting` in errors.
    ///
    /// # Errors
    /// `count` is not a power of two or is above [`Lanes::MOST`], or there are more ranks than lanes.
    pub fn new(communicator: &Communicator, setting: &'static str, count: usize) -> Result<Self> {
        let refused = |problem: String| EngineError::Setting { setting, value: count.to_string(), problem };
        let (rank, size) = (communicator.rank(), communicator.size());
        if !count.is_power_of_two() || count > Self::MOST {
            return Err(refused(format!("expected a power of two, at most {}", Self::MOST)));
        }
        if size > count {
            let enough = size.next_power_of_two();
            return Err(refused(format!(
                "{size} ranks need at least as many lanes; set {setting} = {enough}, which changes the order of sums"
            )));
        }
        Ok(Self { count, own: of_rank(rank, size, count) })
    }

    /// Number of subtrees that the lanes of rank `rank` of `size` make up: the sums that it sends each other rank, unless `size`
    /// is a power of two.
    pub fn subtrees_of(rank: usize, size: usize, lanes: usize) -> usize {
        subtrees_of_rank(rank, size, lanes).len()
    }

    /// Lanes of this rank.
    pub fn own(&self) -> Range<usize> {
        self.own.clone()
    }
}

/// Sums over the lanes of one rank, of a step.
#[derive(Debug)]
pub struct LaneSums {
    communicator: Communicator,
    lanes: Lanes,
    /// The lane whose gradients are computed.
    lane: usize,
    /// Sums of subtrees, from the left; the last sum is in the gradients.
    sums: Vec<(Range<usize>, Tensor)>,
    /// Buffers for sums.
    spare: Vec<Tensor>,
    room: Room,
}

/// Buffers of messages.
#[derive(Debug)]
enum Room {
    Host([Vec<f32>; 2]),
    /// For GPUs that exchange by themselves.
    Device([Tensor; 2]),
}

impl Room {
    fn bytes(&self) -> usize {
        match self {
            Self::Host(buffers) => buffers.iter().map(|buffer| 4 * buffer.len()).sum(),
            Self::Device(buffers) => buffers.iter().map(Tensor::storage_bytes).sum(),
        }
    }
}

impl LaneSums {
    /// Sums over `lanes` of gradients like `gradients`, with all buffers.
    ///
    /// # Errors
    /// There is not enough memory.
    pub fn new(communicator: Communicator, lanes: Lanes, gradients: &Gradients) -> Result<Self> {
        let own = lanes.own();
        // The sums that are kept while a lane is computed.
        let kept = own.clone().map(|lane| subtrees(own.start..lane).len()).max().unwrap_or(0);
        let spare = (0..kept).map(|_| gradients.buffer()).collect::<Result<_>>()?;
        let lens = all_reduce::room(communicator.rank(), communicator.size(), lanes.count, gradients.flat.len());
        let room = match gradients.device() {
            Device::Cuda(gpu) if communicator.link(gpu).is_some() => {
                let [room, outgoing] = lens.map(|len| Tensor::new(&Arena::on_gpu(gpu), [len], DType::F32));
                Room::Device([room?, outgoing?])
            }
            _ => Room::Host(lens.map(|len| vec![0.0; len])),
        };
        Ok(Self { communicator, lane: own.start, lanes, sums: Vec::new(), spare, room })
    }

    /// Bytes of the buffers.
    pub fn bytes(&self) -> usize {
        let tensors = self.sums.iter().map(|(_, sum)| sum).chain(&self.spare);
        tensors.map(Tensor::storage_bytes).sum::<usize>() + self.room.bytes()
    }

    /// True if the gradients are on a GPU, and their sum over the lanes of all ranks as well: nothing waits for it.
    pub fn is_on_gpu(&self, gradients: &Gradients) -> bool {
        let is_alone = self.communicator.size() == 1;
        gradients.device().gpu().is_some() && (is_alone || matches!(self.room, Room::Device(_)))
    }

    /// Begins a step.
    pub fn begin_step(&mut self) {
        self.lane = self.lanes.own.start;
        self.spare.extend(self.sums.drain(..).map(|(_, sum)| sum));
    }

    /// Goes on to lane `lane` of this rank, not below the current one: the lanes before it are ended, and `gradients` are
    /// those of this lane, zero at first.
    ///
    /// # Errors
    /// The GPU failed.
    pub fn begin_lane(&mut self, lane: usize, gradients: &mut Gradients) -> Result<()> {
        while self.lane < lane {
            self.end_lane(gradients)?;
        }
        Ok(())
    }

    /// Ends the current lane.
    fn end_lane(&mut self, gradients: &mut Gradients) -> Result<()> {
        let mut range = self.lane..self.lane + 1;
        self.lane += 1;
        while let Some((left, sum)) = self.sums.pop_if(|(left, _)| are_halves(left, &range)) {
            add(&gradients.device().clone(), &sum, &mut gradients.flat)?;
            range.start = left.start;
            self.spare.push(sum);
        }
        if self.lane < self.lanes.own.end {
            let mut next = self.spare.pop().expect("as many buffers as sums");
            next.zero()?;
            self.sums.push((range, std::mem::replace(&mut gradients.flat, next)));
        }
        Ok(())
    }

    /// Ends the lanes of this rank and replaces the gradients by the sum over the lanes of all ranks. `what` names them in
    /// errors.
    ///
    /// # Errors
    /// A rank is gone or late, or the GPU failed.
    pub fn all_reduce(&mut self, what: &str, gradients: &mut Gradients) -> Result<()> {
        self.begin_lane(self.lanes.own.end, gradients)?;
        if self.communicator.size() == 1 {
            return Ok(());
        }
        match gradients.device().clone() {
            Device::Cuda(gpu) if matches!(self.room, Room::Device(_)) => {
                self.reduce_on_device(what, &gpu, gradients)?
            }
            device => self.reduce_on_host(what, device.processor(), gradients)?,
        }
        self.spare.extend(self.sums.drain(..).map(|(_, sum)| sum));
        Ok(())
    }

    fn reduce(&self, arrays: &mut impl Arrays, len: usize) -> Result<()> {
        let (rank, size) = (self.communicator.rank(), self.communicator.size());
        // The lanes of one of 2^n ranks are one subtree.
        match size.is_power_of_two() {
            true => all_reduce::halving(arrays, rank, size, len),
            false => all_reduce::by_slices(arrays, rank, size, self.lanes.count, len),
        }
    }

    fn reduce_on_host(&mut self, what: &str, cpu: &Cpu, gradients: &mut Gradients) -> Result<()> {
        let mut sums = std::mem::take(&mut self.sums);
        let mut copies = Vec::new();
        if gradients.device().gpu().is_some() {
            copies = sums.iter().map(|(_, sum)| Ok(sum.elements::<f32>()?.into_owned())).collect::<Result<_>>()?;
        }
        let Room::Host(mut room) = std::mem::replace(&mut self.room, Room::Host(Default::default())) else {
            unreachable!("on the host")
        };
        let done = gradients.on_host(|sum| {
            let [incoming, outgoing] = &mut room;
            let len = sum.len();
            let mut arrays = vec![sum, &mut incoming[..], &mut outgoing[..]];
            if copies.is_empty() {
                arrays.extend(sums.iter_mut().map(|(_, sum)| sum.slice_mut::<f32>()));
            } else {
                arrays.extend(copies.iter_mut().map(|part| &mut part[..]));
            }
            self.reduce(&mut OnHost { communicator: &self.communicator, cpu, what, arrays }, len)
        });
        (self.room, self.sums) = (Room::Host(room), sums);
        done
    }

    fn reduce_on_device(&mut self, what: &str, gpu: &Gpu, gradients: &mut Gradients) -> Result<()> {
        let Room::Device(room) = &mut self.room else { unreachable!("on the GPU") };
        let mut arrays = vec![gradients.flat.address_mut()];
        arrays.extend(room.iter_mut().map(Tensor::address_mut));
        arrays.extend(self.sums.iter_mut().map(|(_, sum)| sum.address_mut()));
        let link = self.communicator.link(gpu).expect("there was one when the room was made");
        let mut arrays = OnDevice { communicator: &self.communicator, link: &link, gpu, what, arrays };
        self.reduce(&mut arrays, gradients.len())
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
