//! Row blocks: several outputs are cut into the same blocks of rows, each written by one task.
//!
//! ```text
//!          y [rows, H]      stats [rows, 2]
//!        ┌────────────┐       ┌──┐
//!        │  task 0    │       │ 0│         block rows
//!        ├────────────┤       ├──┤
//!        │  task 1    │       │ 1│
//!        ├────────────┤       ├──┤
//!        │  task 2    │       │ 2│         the last block may be shorter
//!        └────────────┘       └──┘
//! ```
//!
//! The block size depends on the shape alone, so the result does not depend on the threads.
#![allow(unsafe_code)]

use crate::extent::area;
use crate::pool::{Cpu, Disjoint};
use std::ops::Range;

/// Elements per task of a row kernel: enough to amortize the start of a task, few enough to balance the load.
pub(crate) const TASK: usize = 16 * 1024;

/// Rows of `width` elements per task.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (TASK / width.max(1)).max(1)
}

/// Output with `width` items a row; the last row may be shorter. Not `Clone`, so that its owner hands out each row once.
#[derive(Debug)]
pub(crate) struct Rows<'a, T> {
    items: Disjoint<'a, T>,
    width: usize,
}

impl<'a, T> Rows<'a, T> {
    /// Splits `items` into rows of `width`.
    pub(crate) fn new(items: &'a mut [T], width: usize) -> Self {
        Self { items: Disjoint::new(items), width }
    }
    /// Optional output.
    pub(crate) fn optional(items: Option<&'a mut [T]>, width: usize) -> Option<Self> {
        items.map(|items| Self::new(items, width))
    }
}

/// One or more outputs that are cut along the same rows.
pub(crate) trait RowOutputs: Send + Sync {
    /// A task's part of the outputs.
    type Part;
    /// The given rows of each output.
    ///
    /// # Safety
    /// No row is requested twice.
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part;
}

impl<'a, T: Send> RowOutputs for Rows<'a, T> {
    type Part = &'a mut [T];
    unsafe fn part(&self, rows: Range<usize>) -> &'a mut [T] {
        // SAFETY: different rows are different items, because `area` does not wrap; the caller requests each row once.
        unsafe { self.items.slice(area(rows.start, self.width)..area(rows.end, self.width).min(self.items.len())) }
    }
}

impl<O: RowOutputs> RowOutputs for Option<O> {
    type Part = Option<O::Part>;
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: the caller's promise is the same.
        self.as_ref().map(|output| unsafe { output.part(rows) })
    }
}

impl<A: RowOutputs, B: RowOutputs> RowOutputs for (A, B) {
    type Part = (A::Part, B::Part);
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: the caller's promise is the same.
        unsafe { (self.0.part(rows.clone()), self.1.part(rows)) }
    }
}

impl<A: RowOutputs, B: RowOutputs, C: RowOutputs> RowOutputs for (A, B, C) {
    type Part = (A::Part, B::Part, C::Part);
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: the caller's promise is the same.
        unsafe { (self.0.part(rows.clone()), self.1.part(rows.clone()), self.2.part(rows)) }
    }
}

impl<A: RowOutputs, B: RowOutputs, C: RowOutputs, D: RowOutputs> RowOutputs for (A, B, C, D) {
    type Part = (A::Part, B::Part, C::Part, D::Part);
    unsafe fn part(&self, rows: Range<usize>) -> Self::Part {
        // SAFETY: the caller's promise is the same.
        unsafe { (self.0.part(rows.clone()), self.1.part(rows.clone()), self.2.part(rows.clone()), self.3.part(rows)) }
    }
}

/// Cuts `rows` rows into blocks of `block` rows and runs `task(row range, part of the outputs)` for each.
pub(crate) fn for_each_block<O: RowOutputs>(
    cpu: &Cpu,
    rows: usize,
    block: usize,
    outputs: O,
    task: impl Fn(Range<usize>, O::Part) + Send + Sync,
) {
    cpu.for_each(rows.div_ceil(block), |i| {
        let range = i * block..(i * block).saturating_add(block).min(rows);
        // SAFETY: blocks do not overlap, every task runs once, and `outputs` is owned by this function.
        let part = unsafe { outputs.part(range.clone()) };
        task(range, part);
    });
}
