//! `ldmatrix`, `stmatrix` and `mma.sync`.
//!
//! An 8 × 8 matrix of 16-bit values is stored in 8 rows of 16 bytes, whose addresses 8 lanes give. Lane 4·r + t holds
//! the values (r, 2t) and (r, 2t + 1); transposed, (2t, r) and (2t + 1, r).
//!
//! In `mma` with g = lane / 4 and t = lane mod 4, a register holds e = 32 / bits values:
//!
//! ```text
//! A register r, value i: row g + 8·(r mod 2), column t·e + i + 4e·(r / 2)
//! B register r, value i: row t·e + i + 4e·r, column g
//! C value i:             row g + 8·(i / 2), column 2t + i mod 2
//! ```
//!
//! `isa::tensor_core` has the sums of floats.

use crate::fragment::{element_of_c, element_of_matrix, place_along_k};
use crate::sim::{
    FindingKind,
    isa::{Columns, Lane, Multiply, Rows, Rule, Space, Tile, Type, element, join, multiply, to_f16},
    state::{Block, Epoch, Flow, Issue, MANY, Machine},
};
use half::f16;

impl Machine<'_> {
    /// Checks that all lanes of the warp execute the instruction.
    pub(crate) fn check_whole(&mut self, block: &Block, issue: Issue<'_>) -> bool {
        if issue.mask == u32::MAX {
            return true;
        }
        let message = || format!("needs all lanes of the warp; lanes {:#010x} do not execute it", !issue.mask);
        self.report(FindingKind::Divergence, block, issue.first(), None, message);
        self.fatal = true;
        false
    }

    pub(crate) fn load_matrix(&mut self, block: &mut Block, issue: Issue<'_>, count: usize, transposed: bool) -> Flow {
        let Issue { i, w, mask, pc } = issue;
        if !self.check_whole(block, issue) {
            return Flow::Yield;
        }
        let rows = u32::MAX >> (32 - 8 * count);
        self.check_sources(block, Issue { mask: rows, ..issue }, &i.sources);
        let addresses = self.addresses(block, issue, 0, 0);
        let mut spots = Vec::with_capacity(32);
        for (matrix, slot) in i.destinations.iter().enumerate() {
            let mut values = [[0xFFFF_u16; 8]; 8];
            for (row, values) in values.iter_mut().enumerate() {
                let lane = 8 * matrix + row;
                let thread = issue.thread(lane);
                let found = self.locate(block, thread, Some(Space::Shared), addresses[lane], 16, 16);
                let Some(spot) = found else { continue };
                spots.push((lane, spot));
                let epoch = Epoch { lane: MANY, ..self.epoch(block, thread, 0) };
                let bytes = self.read(block, thread, spot, 16, epoch, false);
                *values = std::array::from_fn(|k| u16::from_le_bytes([bytes[2 * k], bytes[2 * k + 1]]));
            }
            let held: [u64; 32] = std::array::from_fn(|lane| {
                let at = |k: usize| {
                    let (row, column) = element_of_matrix(lane, k);
                    u64::from(if transposed { values[column][row] } else { values[row][column] })
                };
                at(0) | at(1) << 16
            });
            self.set(block, w, *slot, mask, &held);
        }
        self.measure(pc, &spots, &addresses, 16, false);
        Flow::Next
    }

    pub(crate) fn store_matrix(&mut self, block: &mut Block, issue: Issue<'_>, count: usize, transposed: bool) -> Flow {
        let Issue { i, w, pc, .. } = issue;
        if !self.check_whole(block, issue) {
            return Flow::Yield;
        }
        let rows = u32::MAX >> (32 - 8 * count);
        self.check_sources(block, Issue { mask: rows, ..issue }, &i.sources[..1]);
        self.check_sources(block, issue, &i.sources[1..]);
        let addresses = self.addresses(block, issue, 0, 0);
        let mut spots = Vec::with_capacity(32);
        for (matrix, slot) in i.sources[1..].iter().enumerate() {
            let held = *self.value(block, w, *slot);
            for row in 0..8 {
                let lane = 8 * matrix + row;
                let thread = issue.thread(lane);
                let found = self.locate(block, thread, Some(Space::Shared), addresses[lane], 16, 16);
                let Some(spot) = found else { continue };
                spots.push((lane, spot));
                let mut bytes = [0; 16];
                for column in 0..8 {
                    let (r, c) = if transposed { (column, row) } else { (row, column) };
                    let value = (held[4 * r + c / 2] >> (16 * (c % 2))) as u16;
                    bytes[2 * column..2 * column + 2].copy_from_slice(&value.to_le_bytes());
                }
                // A row holds values of several lanes, which are not ordered among each other.
                let epoch = Epoch { lane: MANY, ..self.epoch(block, thread, 0) };
                self.write(block, thread, spot, &bytes, epoch);
            }
        }
        self.measure(pc, &spots, &addresses, 16, true);
        Flow::Next
    }

    pub(crate) fn multiply(&mut self, block: &mut Block, issue: Issue<'_>, shape: Multiply) -> Flow {
        let Issue { i, w, mask, .. } = issue;
        if !self.check_whole(block, issue) {
            return Flow::Yield;
        }
        self.check_sources(block, issue, &i.sources);
        let [a_count, b_count, _] = shape.registers();
        let (a, rest) = i.sources.split_at(a_count);
        let (b, c) = rest.split_at(b_count);
        let values = match shape.c {
            Type::S32 => self.sum_integers(block, w, shape, [a, b, c]),
            _ if shape.a.is_float8() => self.sum_floats8(block, w, shape, [a, b, c]),
            _ => self.sum_floats(block, w, shape, [a, b, c]),
        };
        for (slot, values) in i.destinations.iter().zip(&values) {
            self.set(block, w, *slot, mask, values);
        }
        self.metrics.tensor_flops += 2 * 16 * (shape.n * shape.k) as u64;
        Flow::Next
    }

    fn sum_floats(&self, block: &Block, w: usize, shape: Multiply, [a, b, c]: [&[u32]; 3]) -> [[u64; 32]; 4] {
        let (mut rows, mut columns) = ([[0; 16]; 16], [[0; 8]; 16]);
        self.each_of_a(block, w, a, shape.a, |row, k, bits| rows[row][k] = bits);
        self.each_of_b(block, w, b, shape.b, |k, column, bits| columns[k][column] = bits);
        let (rows, columns) = (Rows::of(&rows, shape.a), Columns::of(&columns, shape.b));
        let mut tile = self.accumulators(block, w, c, shape.c);
        multiply(Rule::mma(self.tensor_core, shape.a), shape.k, &rows, &columns, &mut tile);
        registers(&tile, shape.c)
    }

    /// Elements of 8 bits, which `mma` multiplies as f16: first the even pairs, then the odd ones. C is added to their sum.
    fn sum_floats8(&self, block: &Block, w: usize, shape: Multiply, [a, b, c]: [&[u32]; 3]) -> [[u64; 32]; 4] {
        let (mut rows, mut columns) = ([[0; 32]; 16], [[0; 8]; 32]);
        let at = |k: usize| k / 2 % 2 * 16 + k / 4 * 2 + k % 2;
        self.each_of_a(block, w, a, shape.a, |row, k, bits| rows[row][at(k)] = to_f16(bits, shape.a));
        self.each_of_b(block, w, b, shape.b, |k, column, bits| columns[at(k)][column] = to_f16(bits, shape.b));
        let (rows, columns) = (Rows::of(&rows, Type::F16), Columns::of(&columns, Type::F16));
        let mut sums = Tile::default();
        multiply(Rule::mma(self.tensor_core, Type::F16), shape.k, &rows, &columns, &mut sums);
        let mut tile = self.accumulators(block, w, c, shape.c);
        tile.iter_mut().flatten().zip(sums.iter().flatten()).for_each(|(c, sum)| *c += sum);
        registers(&tile, shape.c)
    }

    fn sum_integers(&self, block: &Block, w: usize, shape: Multiply, [a, b, c]: [&[u32]; 3]) -> [[u64; 32]; 4] {
        let integer = |bits: u32, ty| if ty == Type::S8 { i32::from(bits as i8) } else { bits as i32 };
        let (mut rows, mut columns) = ([[0; 32]; 16], [[0; 32]; 8]);
        self.each_of_a(block, w, a, shape.a, |row, k, bits| rows[row][k] = integer(bits, shape.a));
        self.each_of_b(block, w, b, shape.b, |k, column, bits| columns[column][k] = integer(bits, shape.b));
        std::array::from_fn(|v| {
            let before = self.value(block, w, c[v]);
            std::array::from_fn(|lane| {
                let (row, column) = element_of_c(lane, v);
                let sum: i32 = rows[row].iter().zip(&columns[column]).map(|(x, y)| x * y).sum();
                i32::of(before[lane]).wrapping_add(sum).bits()
            })
        })
    }

    /// Row, place along K and bits of the elements of A in registers.
    #[inline]
    pub(crate) fn each_of_a(
        &self,
        block: &Block,
        w: usize,
        slots: &[u32],
        ty: Type,
        mut to: impl FnMut(usize, usize, u32),
    ) {
        for (r, slot) in slots.iter().enumerate() {
            each(self.value(block, w, *slot), ty, r / 2, |g, k, bits| to(g + 8 * (r % 2), k, bits));
        }
    }

    /// Place along K, column and bits of the elements of B in registers.
    #[inline]
    fn each_of_b(&self, block: &Block, w: usize, slots: &[u32], ty: Type, mut to: impl FnMut(usize, usize, u32)) {
        for (r, slot) in slots.iter().enumerate() {
            each(self.value(block, w, *slot), ty, r, |g, k, bits| to(k, g, bits));
        }
    }

    /// The elements of C in registers, f32 or f16.
    pub(crate) fn accumulators(&self, block: &Block, w: usize, slots: &[u32], ty: Type) -> Tile {
        let mut tile = [[0.0; 8]; 16];
        for v in 0..4 {
            let per = 4 / slots.len();
            for (lane, held) in self.value(block, w, slots[v / per]).iter().enumerate() {
                let (row, column) = element_of_c(lane, v);
                let bits = element(*held, v % per, ty.bits());
                tile[row][column] =
                    if ty == Type::F16 { f16::from_bits(bits as u16).to_f32() } else { f32::from_bits(bits) };
            }
        }
        tile
    }
}

/// g, place along K and bits of the elements of the register `r` of those along K.
#[inline]
fn each(held: &[u64; 32], ty: Type, r: usize, to: impl FnMut(usize, usize, u32)) {
    match ty.bits() {
        8 => each_of::<4>(held, r, to),
        16 => each_of::<2>(held, r, to),
        _ => each_of::<1>(held, r, to),
    }
}

/// [`each`] for E elements in a register.
#[inline]
fn each_of<const E: usize>(held: &[u64; 32], r: usize, mut to: impl FnMut(usize, usize, u32)) {
    for (lane, held) in held.iter().enumerate() {
        for v in 0..E {
            to(lane / 4, place_along_k(lane, r, v, E), element(*held, v, 32 / E as u32));
        }
    }
}

/// The registers of accumulators, four of f32 or two of f16.
pub(crate) fn registers(tile: &Tile, ty: Type) -> [[u64; 32]; 4] {
    let mut values = [[0; 32]; 4];
    for (v, values) in values.iter_mut().enumerate() {
        for (lane, held) in values.iter_mut().enumerate() {
            let (row, column) = element_of_c(lane, v);
            *held = tile[row][column].bits();
        }
    }
    if ty == Type::F16 {
        let [a, b, c, d] = values.map(|held| held.map(|bits| f16::from_f32(f32::of(bits))));
        let pairs = |low: [f16; 32], high: [f16; 32]| std::array::from_fn(|lane| join([low[lane], high[lane]]));
        values = [pairs(a, b), pairs(c, d), [0; 32], [0; 32]];
    }
    values
}
