//! `wgmma`: products of 64 × N × 32 bytes by the four warps of a warpgroup, executed by the asynchronous proxy.
//!
//! Warp i of the group makes rows 16i … 16i + 15 of D from the same rows of A and all of B, so each warp's part is
//! executed for itself, 8 columns at a time. With g = lane / 4 and t = lane mod 4, register 4j + v of f32 accumulators is row g + 8·(v / 2),
//! column 8j + 2t + v mod 2; A in registers is laid out as in `mma.m16n8k16`.
//!
//! A matrix in shared memory is described by start, two offsets and a swizzle, all in units of 16 bytes. With T values
//! in 16 bytes, r along M or N and k along K, the byte of (r, k) before swizzling is
//!
//! ```text
//! K-major   none:      start + (r mod 8)·16 + (r / 8)·stride + (k / T)·leading
//!           S bytes:   start + (r mod 8)·S  + (r / 8)·stride + (k / T)·16
//! MN-major  none:      start + (k mod 8)·16 + (k / 8)·leading + (r / 8)·stride
//!           S bytes:   start + (k mod 8)·S  + (k / 8)·stride + (r mod (S / 2))·2 + (r / (S / 2))·leading
//! ```
//!
//! and the swizzle then permutes 16-byte pieces of the address itself, as `tensor_map` says.
//!
//! Rules that are checked: all lanes and all four warps issue the same products; `wgmma.fence` separates any other
//! access to a register and a product that uses it; registers of a product are left alone until a wait covers it;
//! shared memory that it reads was ordered before, and fenced where it was written through the generic proxy.

use super::matrix::registers;
use crate::sim::{
    FindingKind,
    isa::{CONSTANT, Columns, Product, Rows, Rule, SHARED_BASE, Space, Tile, Type, element, multiply, word},
    schedule::Completion,
    state::{A, ALL, ASYNC, Block, Epoch, Flow, Issue, Machine, Matrix, Pending, SHARED, Spot, Thread, remember},
};
use std::{cell::Cell, ops::Range};

impl Machine<'_> {
    pub(crate) fn product_fence(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        if self.check_whole(block, issue) {
            block.warps[issue.w].products.fences += 1;
        }
        Flow::Next
    }

    pub(crate) fn product_commit(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        if self.check_whole(block, issue) {
            let products = &mut block.warps[issue.w].products;
            let group = products.committed;
            products.pending.iter_mut().filter(|pending| pending.group.is_none()).for_each(|p| p.group = Some(group));
            products.committed += 1;
        }
        Flow::Next
    }

    pub(crate) fn product_wait(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { w, .. } = issue;
        if !self.check_whole(block, issue) {
            return Flow::Yield;
        }
        let left = self.source(block, issue, 0)[0] as u32;
        let timeline = block.warps[w].clock.timeline + 3 * self.warps as u32;
        loop {
            let products = &block.warps[w].products;
            let over = products.committed.saturating_sub(left);
            let Some(pending) = products.pending.front().filter(|p| p.group.is_some_and(|group| group < over)) else {
                break;
            };
            let (sequence, at) = (pending.sequence, pending.pc);
            if !pending.executed {
                self.execute_product(block, w, 0);
            }
            let warp = &mut block.warps[w];
            warp.products.pending.pop_front();
            for slot in self.entry.code[at].destinations.iter().chain(&self.entry.code[at].sources) {
                if slot & CONSTANT == 0 && warp.products.busy[*slot as usize] <= sequence {
                    warp.products.busy[*slot as usize] = 0;
                }
            }
            let live = warp.live;
            warp.clock.learn(live, live, Epoch { timeline, clock: sequence, pc: at as u32, lane: ALL, flags: ASYNC });
        }
        Flow::Next
    }

    pub(crate) fn product(&mut self, block: &mut Block, issue: Issue<'_>, product: Product) -> Flow {
        let Issue { i, w, pc, .. } = issue;
        if !self.check_whole(block, issue) || !self.check_warpgroup(block, issue) {
            return Flow::Yield;
        }
        let from_registers = product.takes_registers(i.sources.len());
        let inputs = if from_registers { 4 } else { 1 };
        self.check_sources(block, issue, &i.sources);
        let flag = |k: usize| i.sources.get(inputs + k).map_or(0, |slot| self.value(block, w, *slot)[0]);
        let (accumulates, scale_a, scale_b) = (flag(1) != 0, flag(2) as i64, flag(3) as i64);
        let (trans_a, trans_b) = match (product.input.bits(), from_registers) {
            (16, false) => (flag(4) != 0, flag(5) != 0),
            (16, true) => (false, flag(4) != 0),
            _ => (false, false),
        };
        if accumulates {
            self.check_sources(block, issue, &i.destinations);
        }
        self.check_fences(block, issue, if from_registers { inputs } else { 0 });
        let a = match from_registers {
            true => Some(A::Registers),
            false => self.matrix(block, issue, 0, trans_a).map(A::Shared),
        };
        let (Some(a), Some(b)) = (a, self.matrix(block, issue, inputs, trans_b)) else { return Flow::Next };
        let products = &mut block.warps[w].products;
        products.sequence += 1;
        let sequence = products.sequence;
        let registers = i.destinations.iter().chain(if from_registers { &i.sources[..4] } else { &[] });
        registers.for_each(|slot| products.busy[*slot as usize] = sequence);
        // Defined from here on for later products; other instructions may not read it before a wait.
        i.destinations.iter().for_each(|slot| block.warps[w].defined[*slot as usize] = u32::MAX);
        let timeline = block.warps[w].clock.timeline + 3 * self.warps as u32;
        let epoch = Epoch { timeline, clock: sequence, pc: pc as u32, lane: ALL, flags: ASYNC };
        if let A::Shared(a) = a {
            let first = 16 * (w as u64 % 4);
            self.check_matrix(block, issue.thread(0), epoch, a, product, first..first + 16);
        }
        self.check_matrix(block, issue.thread(0), epoch, b, product, 0..product.n as u64);
        let negated = (scale_a < 0) != (scale_b < 0);
        let pending = Pending { pc, product, a, b, accumulates, negated, group: None, sequence, executed: false };
        block.warps[w].products.pending.push_back(pending);
        self.metrics.tensor_flops += 2 * 16 * product.n as u64 * product.k() as u64;
        // A warp's 16 rows of A; B comes once for the four warps. Rows of 32 bytes either way, 128 bytes a wavefront.
        let rows = if from_registers { 0 } else { 16 } + if w.is_multiple_of(4) { product.n as u64 } else { 0 };
        if rows > 0 {
            self.traffic[pc].shared.add(rows.div_ceil(4), rows.div_ceil(4));
        }
        if self.options.completion == Completion::Earliest {
            self.execute_oldest_product(block, w);
        }
        Flow::Next
    }

    /// The matrix that the descriptor in source `at` describes.
    fn matrix(&mut self, block: &Block, issue: Issue<'_>, at: usize, transposed: bool) -> Option<Matrix> {
        let descriptors = *self.source(block, issue, at);
        let same = descriptors.iter().all(|other| *other == descriptors[0]);
        let decoded = Matrix::decode(descriptors[0], transposed).filter(|_| same);
        if decoded.is_none() {
            let bad = descriptors[0];
            let message = || format!("has the descriptor {bad:#x}; expected no base offset, and the same in all lanes");
            self.report(FindingKind::Operand, block, issue.thread(0), None, message);
        }
        decoded
    }

    /// Checks that all four warps of a group issue the same products in the same order.
    fn check_warpgroup(&mut self, block: &mut Block, issue: Issue<'_>) -> bool {
        let Issue { w, pc, .. } = issue;
        let group = w / 4;
        if block.engine.issued.len() <= group {
            block.engine.issued.resize(group + 1, Vec::new());
        }
        let (log, at) = (&mut block.engine.issued[group], block.warps[w].products.sequence as usize);
        match log.get(at) {
            None => log.push(pc as u32),
            Some(other) if *other as usize == pc => {}
            Some(other) => {
                let other = self.entry.place(*other as usize);
                let message = || {
                    format!(
                        "is product {at} of its warp; expected the one at {other}, as in another warp of the warpgroup"
                    )
                };
                self.report(FindingKind::Divergence, block, issue.thread(0), None, message);
                self.fatal = true;
                return false;
            }
        }
        true
    }

    /// Checks that a fence separates other accesses to a register from the product that uses it.
    fn check_fences(&mut self, block: &Block, issue: Issue<'_>, inputs: usize) {
        let products = &block.warps[issue.w].products;
        let late = |slot: &&u32| **slot & CONSTANT == 0 && products.used[**slot as usize] == products.fences + 1;
        let found = issue.i.sources[..inputs].iter().chain(&issue.i.destinations).find(late);
        if products.fences == 0 {
            let message = || "is issued before the first wgmma.fence of its warp".to_string();
            self.report(FindingKind::Fence, block, issue.thread(0), None, message);
        } else if let Some(slot) = found {
            let name = self.entry.registers.name(*slot);
            let message = || format!("uses the register {name}, which was accessed since the last wgmma.fence");
            self.report(FindingKind::Fence, block, issue.thread(0), None, message);
        }
    }

    /// Checks the shared memory of some rows of a matrix.
    fn check_matrix(
        &mut self,
        block: &mut Block,
        thread: Thread,
        epoch: Epoch,
        matrix: Matrix,
        product: Product,
        rows: Range<u64>,
    ) {
        let (first, rows) = (rows.start, rows.end - rows.start);
        let bytes = u64::from(product.input.bits() / 8);
        let t = 16 / bytes;
        let (outer, inner) =
            if matrix.transposed { (product.k() as u64, rows / t) } else { (rows, product.k() as u64 / t) };
        // Answers are cached over all pieces: the clock does not move in between.
        let copies = self.options.copy_fence;
        let (known, shown) = (Cell::new((Epoch::default(), false)), Cell::new((Epoch::default(), false)));
        for o in 0..outer {
            for p in 0..inner {
                let (r, k) = if matrix.transposed { (first + p * t, o) } else { (first + o, p * t) };
                let address = matrix.address(r, k, bytes);
                let found = self.locate(block, thread, Some(Space::Shared), address, 16, 16);
                let Some(Spot::Shared(at)) = found else { return };
                let clock = &block.warps[thread.w].clock;
                let knows = |epoch: &Epoch| remember(&known, epoch, |epoch| clock.all_know(epoch, u32::MAX));
                let fenced = |epoch: &Epoch| remember(&shown, epoch, |epoch| clock.all_fenced(epoch, u32::MAX, false));
                let shadow = &mut block.shared.shadow;
                let unfenced = shadow.find_write(at, 16, |by| by.needs_fence(copies) && knows(by) && !fenced(by));
                let conflict = shadow.read(at, 16, epoch, knows);
                let pending = block.pending[at / 4..at / 4 + 4].iter().find(|by| **by != 0).copied();
                if let Some(by) = pending {
                    self.report_pending(block, thread, at, by, "reads");
                } else if let Some(conflict) = conflict {
                    self.report_race(block, thread, SHARED, conflict, "reads");
                }
                if let Some((byte, by)) = unfenced {
                    self.report_proxy(block, thread, byte, by, "reads");
                }
                if let Some(byte) = block.shared.unwritten(at, 16) {
                    self.report_unwritten(block, thread, byte, SHARED, Some(SHARED_BASE + byte as u64));
                }
            }
        }
    }

    /// Executes the oldest pending product of a warp.
    pub(crate) fn execute_oldest_product(&mut self, block: &mut Block, w: usize) -> bool {
        let found = block.warps[w].products.pending.iter().position(|pending| !pending.executed);
        found.map(|at| self.execute_product(block, w, at)).is_some()
    }

    fn execute_product(&mut self, block: &mut Block, w: usize, at: usize) {
        if block.warps[w].products.pending[at].product.k() > 16 {
            self.execute_product_of::<32>(block, w, at);
        } else {
            self.execute_product_of::<16>(block, w, at);
        }
    }

    /// A product of at most D elements along K.
    fn execute_product_of<const D: usize>(&mut self, block: &mut Block, w: usize, at: usize) {
        let Pending { pc, product, a, b, accumulates, negated, .. } = block.warps[w].products.pending[at];
        let i = &self.entry.code[pc];
        let ty = product.input;
        let mut bits = [[0; D]; 16];
        match a {
            A::Shared(matrix) => {
                let first = 16 * (w % 4);
                each_of_matrix(block, matrix, product, first..first + 16, |r, k, held| bits[r - first][k] = held);
            }
            A::Registers => self.each_of_a(block, w, &i.sources[..4], ty, |row, k, held| bits[row][k] = held),
        }
        let mut rows = Rows::of(&bits, ty);
        if negated {
            rows.negate();
        }
        let per = if product.output == Type::F16 { 2 } else { 4 };
        for (j, slots) in i.destinations.chunks_exact(per).enumerate() {
            let mut bits = [[0; 8]; D];
            each_of_matrix(block, b, product, 8 * j..8 * j + 8, |r, k, held| bits[k][r - 8 * j] = held);
            let mut tile = Tile::default();
            if accumulates {
                tile = self.accumulators(block, w, slots, product.output);
            }
            multiply(Rule::wgmma(ty), product.k(), &rows, &Columns::of(&bits, ty), &mut tile);
            for (slot, values) in slots.iter().zip(&registers(&tile, product.output)) {
                self.set(block, w, *slot, u32::MAX, values);
            }
        }
        block.warps[w].products.pending[at].executed = true;
    }
}

/// Row (of A, or column of B), place along K and bits of the elements of a matrix in shared memory, for eight or sixteen
/// rows. Bytes outside of it are ones.
fn each_of_matrix(
    block: &Block,
    matrix: Matrix,
    product: Product,
    rows: Range<usize>,
    mut to: impl FnMut(usize, usize, u32),
) {
    let bits = product.input.bits();
    // Elements of 16 bytes, which are contiguous along K or along the rows.
    let t = 128 / bits as usize;
    let (outer, inner) = if matrix.transposed { (0..product.k(), rows) } else { (rows, 0..product.k()) };
    for o in outer {
        for p in inner.clone().step_by(t) {
            let (r, k) = if matrix.transposed { (p, o) } else { (o, p) };
            let at = matrix.address(r as u64, k as u64, u64::from(bits / 8)).wrapping_sub(SHARED_BASE) as usize;
            let bytes = block.shared.bytes.get(at..at.saturating_add(16)).unwrap_or(&[0xFF; 16]);
            for (half, bytes) in bytes.chunks_exact(8).enumerate() {
                let held = word(bytes);
                for v in 0..t / 2 {
                    let at = half * t / 2 + v;
                    let (r, k) = if matrix.transposed { (r + at, k) } else { (r, k + at) };
                    to(r, k, element(held, v, bits));
                }
            }
        }
    }
}
