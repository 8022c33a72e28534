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
//! Products are exact and summed in f64, then rounded once: the device's own order and width of summation are not
//! documented, so results agree with it to a few units in the last place of f32, not bit by bit.

use crate::sim::{
    FindingKind,
    isa::{Lane, Multiply, Space, Type, element},
    state::{Block, Epoch, Flow, Issue, MANY, Machine, lanes},
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
                let (r, t) = (lane / 4, lane % 4);
                let at = |k: usize| u64::from(if transposed { values[2 * t + k][r] } else { values[r][2 * t + k] });
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

    pub(crate) fn multiply(&mut self, block: &mut Block, issue: Issue<'_>, multiply: Multiply) -> Flow {
        let Issue { i, w, mask, .. } = issue;
        if !self.check_whole(block, issue) {
            return Flow::Yield;
        }
        self.check_sources(block, issue, &i.sources);
        let Multiply { n, k, a: a_type, b: b_type, c: c_type } = multiply;
        let [a_count, b_count, c_count] = multiply.registers();
        let (mut a, mut b) = ([[0.0_f64; 32]; 16], [[0.0_f64; 32]; 8]);
        let e = if a_type == Type::Tf32 { 1 } else { (32 / a_type.bits()) as usize };
        for (r, slot) in i.sources[..a_count].iter().enumerate() {
            for (lane, bits) in self.value(block, w, *slot).iter().enumerate() {
                let (g, t) = (lane / 4, lane % 4);
                for v in 0..e {
                    a[g + 8 * (r % 2)][t * e + v + 4 * e * (r / 2)] = element(*bits, v, a_type);
                }
            }
        }
        for (r, slot) in i.sources[a_count..][..b_count].iter().enumerate() {
            for (lane, bits) in self.value(block, w, *slot).iter().enumerate() {
                let (g, t) = (lane / 4, lane % 4);
                for v in 0..e {
                    b[g][t * e + v + 4 * e * r] = element(*bits, v, b_type);
                }
            }
        }
        let c: Vec<[u64; 32]> =
            i.sources[a_count + b_count..].iter().map(|slot| *self.value(block, w, *slot)).collect();
        let mut d = vec![[0_u64; 32]; c_count];
        for lane in lanes(mask) {
            let (g, t) = (lane / 4, lane % 4);
            for v in 0..4 {
                let (row, column) = (&a[g + 8 * (v / 2)], &b[2 * t + v % 2]);
                let sum: f64 = row[..k].iter().zip(&column[..k]).map(|(x, y)| x * y).sum();
                match c_type {
                    Type::F32 => d[v][lane] = ((sum + f64::from(f32::of(c[v][lane]))) as f32).bits(),
                    Type::F16 => {
                        let before = f16::of(c[v / 2][lane] >> (16 * (v % 2)) & 0xFFFF).to_f64();
                        d[v / 2][lane] |= f16::from_f64(sum + before).bits() << (16 * (v % 2));
                    }
                    _ => d[v][lane] = (i32::of(c[v][lane])).wrapping_add(sum as i32).bits(),
                }
            }
        }
        for (slot, values) in i.destinations.iter().zip(&d) {
            self.set(block, w, *slot, mask, values);
        }
        self.metrics.tensor_flops += 2 * 16 * (n * k) as u64;
        Flow::Next
    }
}
