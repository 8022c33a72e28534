//! Matrix fragments: the rows of a tile that the lanes of an `ldmatrix` address, and the elements that lanes hold.
//! The simulator uses the same functions.
//!
//! The layouts are those of the PTX manual (sections "Matrix Fragments for mma.m16n8k16", "ldmatrix").
//!
//! ```text
//! C, 16 x 8 in f32: four registers a lane            A, 16 x 16 of 16 bits: four pairs a lane
//!   columns  0 1   2 3   4 5   6 7                      columns  0..8      8..16
//! row 0     l0 c0 c1  l1  l2  l3                      rows 0..8   a0        a2      each 8 x 8 block laid out as C's
//! row 1     l4        l5  l6  l7                      rows 8..16  a1        a3      upper half, lane 4·row + pair
//!  …
//! row 8     l0 c2 c3  l1 …                            B, 16 (k) x 8 (n): b0 = k 0..8, b1 = k 8..16, lane 4·n + pair of k
//! ```

/// Lanes of a warp.
pub const LANES: u32 = 32;

/// Rows that the lanes of an `ldmatrix.x4` address, so that its four registers are one operand of
/// [`Entry::mma`](super::Entry::mma).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// A `[16, 16]` from a tile stored as `[m, k]`: `ldmatrix`.
    A,
    /// A `[16, 16]` from a tile stored as `[k, m]`: `ldmatrix.trans`.
    ATransposed,
    /// Two Bs, `[16, 16]` of n 0..8 and n 8..16, from a tile stored as `[k, n]`: `ldmatrix.trans`. Registers 0, 1 are
    /// the first B.
    B,
    /// Two Bs from a tile stored as `[n, k]`: `ldmatrix`. Registers 0, 1 are the first B.
    BTransposed,
}

impl Load {
    /// Whether the instruction is `ldmatrix.trans`.
    pub const fn transposes(self) -> bool {
        matches!(self, Load::ATransposed | Load::B)
    }

    /// (row, column) in the stored tile of the eight elements that `lane` addresses.
    pub const fn start(self, lane: u32) -> (u32, u32) {
        // Matrix i of the four is register i. The lower bit of i advances by stored rows or by columns.
        let (matrix, row) = (lane / 8, lane % 8);
        let down_first = matches!(self, Load::A | Load::B);
        let (down, along) = if down_first { (matrix % 2, matrix / 2) } else { (matrix / 2, matrix % 2) };
        (row + 8 * down, 8 * along)
    }
}

/// Place along k of an element of A or B of an `mma`: `value` of `register` of `lane`, with `values` elements in a register.
#[inline(always)]
pub const fn place_along_k(lane: usize, register: usize, value: usize, values: usize) -> usize {
    4 * values * register + lane % 4 * values + value
}

/// (row, k) in A [16, 16] of `mma.m16n8k16` of 16-bit element `value` (0 or 1) of `register` (0 to 3) of `lane`.
pub const fn element_of_a(lane: usize, register: usize, value: usize) -> (usize, usize) {
    (lane / 4 + 8 * (register % 2), place_along_k(lane, register / 2, value, 2))
}

/// (k, column) in B [16, 8] of `mma.m16n8k16` of 16-bit element `value` (0 or 1) of `register` (0 or 1) of `lane`.
pub const fn element_of_b(lane: usize, register: usize, value: usize) -> (usize, usize) {
    (place_along_k(lane, register, value, 2), lane / 4)
}

/// (row, column) in C [16, 8] of accumulator `register` (0 to 3) of `lane`, in f32.
#[inline(always)]
pub const fn element_of_c(lane: usize, register: usize) -> (usize, usize) {
    (lane / 4 + 8 * (register / 2), 2 * (lane % 4) + register % 2)
}

/// (row, column) in D [64, N] of `wgmma` of accumulator `register` of `thread` (0 to 127) of the warpgroup, in f32.
pub const fn element_of_d(thread: usize, register: usize) -> (usize, usize) {
    let (row, column) = element_of_c(thread % 32, register % 4);
    (16 * (thread / 32) + row, 8 * (register / 4) + column)
}

/// (row, column) of 16-bit element `value` (0 or 1) of `lane` in an 8 x 8 matrix of `ldmatrix`.
#[inline(always)]
pub const fn element_of_matrix(lane: usize, value: usize) -> (usize, usize) {
    (lane / 4, 2 * (lane % 4) + value)
}
