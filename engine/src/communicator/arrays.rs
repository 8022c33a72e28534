//! Arrays that ranks exchange and add: in the memory of the host, or of GPUs that a link connects.

use super::{
    Communicator,
    nccl::{Link, Message},
};
use crate::{device::Gpu, dtype::DType, error::Result, trace};
use kernels::{Cpu, elementwise::add_assign};
use kernels_cuda::arguments::Address;
use std::ops::Range;

/// A range of an array.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) array: usize,
    pub(super) range: Range<usize>,
}

/// Arrays of f32 by number, on the host or on a GPU.
pub(super) trait Arrays {
    /// Sends `send` to a rank, and replaces `receive` by what a rank sends.
    ///
    /// # Errors
    /// A rank is gone or late.
    fn exchange(&mut self, send: (usize, Part), receive: (usize, Part)) -> Result<()>;

    /// sum += x; they do not overlap.
    ///
    /// # Errors
    /// The GPU failed.
    fn add(&mut self, x: Part, sum: Part) -> Result<()>;

    /// to = from; they do not overlap.
    ///
    /// # Errors
    /// The GPU failed.
    fn copy(&mut self, from: Part, to: Part) -> Result<()>;
}

/// Arrays in the memory of the host.
pub(super) struct OnHost<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) cpu: &'a Cpu,
    /// Name of the exchange.
    pub(super) what: &'a str,
    pub(super) arrays: Vec<&'a mut [f32]>,
}

impl OnHost<'_> {
    /// Both ranges, which do not overlap.
    fn both(&mut self, read: Part, written: Part) -> (&[f32], &mut [f32]) {
        if read.array == written.array {
            let both = self.arrays[read.array].get_disjoint_mut([read.range, written.range]);
            let [read, written] = both.expect("parts do not overlap");
            return (read, written);
        }
        let both = self.arrays.get_disjoint_mut([read.array, written.array]);
        let [from, to] = both.expect("two arrays");
        (&from[read.range], &mut to[written.range])
    }
}

impl Arrays for OnHost<'_> {
    fn exchange(&mut self, (to, send): (usize, Part), (from, receive): (usize, Part)) -> Result<()> {
        let (communicator, what) = (self.communicator, self.what);
        let (send, receive) = self.both(send, receive);
        communicator.exchange(what, (to, bytemuck::cast_slice(send)), (from, bytemuck::cast_slice_mut(receive)))
    }

    fn add(&mut self, x: Part, sum: Part) -> Result<()> {
        let cpu = self.cpu;
        let (x, sum) = self.both(x, sum);
        add_assign(cpu, x, sum);
        Ok(())
    }

    fn copy(&mut self, from: Part, to: Part) -> Result<()> {
        let (from, to) = self.both(from, to);
        to.copy_from_slice(from);
        Ok(())
    }
}

/// Arrays in the memory of a GPU. Everything is in order on its stream.
pub(super) struct OnDevice<'a> {
    pub(super) communicator: &'a Communicator,
    pub(super) link: &'a Link,
    pub(super) gpu: &'a Gpu,
    /// Name of the exchange.
    pub(super) what: &'a str,
    /// First element of each array.
    pub(super) arrays: Vec<Address>,
}

impl OnDevice<'_> {
    fn at(&self, part: &Part) -> (Address, usize) {
        (Address(self.arrays[part.array].0 + 4 * part.range.start as u64), part.range.len())
    }
}

impl Arrays for OnDevice<'_> {
    fn exchange(&mut self, (to, send): (usize, Part), (from, receive): (usize, Part)) -> Result<()> {
        let [send, receive] = [(to, send), (from, receive)].map(|(rank, part)| {
            let (address, count) = self.at(&part);
            Message { rank, address, bytes: 4 * count }
        });
        let exchanged = trace::exchange(self.what, [send.bytes, receive.bytes], || {
            self.link.exchange(send, receive, self.communicator.timeout())
        });
        exchanged.map_err(|failure| self.communicator.failed(self.what, &failure))
    }

    fn add(&mut self, x: Part, sum: Part) -> Result<()> {
        let [(x, count), (sum, _)] = [self.at(&x), self.at(&sum)];
        if count == 0 { Ok(()) } else { self.gpu.add_assign(x, sum, DType::F32, count) }
    }

    fn copy(&mut self, from: Part, to: Part) -> Result<()> {
        let [(from, count), (to, _)] = [self.at(&from), self.at(&to)];
        if count == 0 { Ok(()) } else { self.gpu.copy_elements(from, to, count) }
    }
}
