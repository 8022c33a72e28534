//! Matrix fragments: which rows of a tile the lanes of an `ldmatrix` address, so that `mma` finds its operands.
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
