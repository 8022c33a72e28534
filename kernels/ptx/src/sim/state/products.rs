//! The `wgmma` products of a warp, and the matrices in shared memory that they read.

use crate::sim::{
    isa::{Instruction, Product},
    tensor_map::Swizzle,
};
use std::collections::VecDeque;

/// The products of a warp.
#[derive(Debug, Default)]
pub(crate) struct Products {
    pub(crate) pending: VecDeque<Pending>,
    /// Counts `wgmma.fence`.
    pub(crate) fences: u32,
    /// For each register, the number of fences at its last use outside of products, plus 1.
    pub(crate) used: Vec<u32>,
    /// For each register, the product that uses it, or 0.
    pub(crate) busy: Vec<u32>,
    /// Products that were started.
    pub(crate) sequence: u32,
    pub(crate) committed: u32,
}

/// A product that no wait has covered.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) pc: usize,
    pub(crate) product: Product,
    pub(crate) a: A,
    pub(crate) b: Matrix,
    pub(crate) accumulates: bool,
    pub(crate) negated: bool,
    pub(crate) group: Option<u32>,
    pub(crate) sequence: u32,
    pub(crate) executed: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum A {
    /// The first of its sources.
    Registers,
    Shared(Matrix),
}

/// A matrix in shared memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix {
    pub(crate) start: u64,
    pub(crate) leading: u64,
    pub(crate) stride: u64,
    pub(crate) swizzle: Swizzle,
    pub(crate) transposed: bool,
}

impl Matrix {
    /// The matrix of a descriptor, unless it has a base offset.
    pub(crate) fn decode(descriptor: u64, transposed: bool) -> Option<Self> {
        let field = |at: u32| (descriptor >> at & 0x3FFF) << 4;
        let swizzle = [Swizzle::None, Swizzle::B128, Swizzle::B64, Swizzle::B32][(descriptor >> 62) as usize];
        (descriptor >> 49 & 7 == 0).then_some(Matrix {
            start: field(0),
            leading: field(16),
            stride: field(32),
            swizzle,
            transposed,
        })
    }

    /// The address of the value (r, k) of `bytes` bytes.
    pub(crate) fn address(&self, r: u64, k: u64, bytes: u64) -> u64 {
        let Matrix { start, leading, stride, swizzle, transposed } = *self;
        let t = 16 / bytes;
        let linear = match (transposed, swizzle.span()) {
            (false, None) => (r % 8) * 16 + (r / 8) * stride + (k / t) * leading,
            (false, Some(span)) => (r % 8) * span as u64 + (r / 8) * stride + (k / t) * 16,
            (true, None) => (k % 8) * 16 + (k / 8) * leading + (r / t) * stride,
            (true, Some(span)) => {
                let wide = span as u64 / bytes;
                (k % 8) * span as u64 + (k / 8) * stride + (r % wide / t) * 16 + (r / wide) * leading
            }
        };
        let within = if transposed { r % t } else { k % t };
        swizzle.apply(start + linear) + within * bytes
    }
}

impl Products {
    pub(crate) fn new(registers: usize) -> Self {
        Products { used: vec![0; registers], busy: vec![0; registers], ..Products::default() }
    }

    /// A register of an instruction that a pending product uses.
    #[inline]
    pub(crate) fn find_busy(&self, i: &Instruction) -> Option<u32> {
        if self.pending.is_empty() {
            return None;
        }
        let slots = i.sources.iter().chain(&i.destinations).chain(i.guard.as_ref().map(|(slot, _)| slot));
        slots.copied().find(|slot| self.busy.get(*slot as usize).is_some_and(|by| *by != 0))
    }

    /// Notes that an instruction other than a product uses registers.
    #[inline]
    pub(crate) fn note(&mut self, i: &Instruction) {
        for slot in i.sources.iter().chain(&i.destinations) {
            if let Some(used) = self.used.get_mut(*slot as usize) {
                *used = self.fences + 1;
            }
        }
    }

    /// Products that were started.
    pub(crate) fn count(&self) -> usize {
        self.sequence as usize
    }

    /// The instruction of a product that was never waited for.
    pub(crate) fn unfinished(&self) -> Option<usize> {
        self.pending.front().map(|pending| pending.pc)
    }
}
