//! Matrix fragments: maps between elements and the lanes and registers that hold them.
//!
//! The maps are those of the PTX manual (sections "Matrix Fragments for mma.m16n8k16", "ldmatrix", "wgmma"), as
//! functions with inverses. Kernels compute their addresses from them; tests hold every element of each map against the
//! manual's formulae.
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

/// A fragment of a matrix instruction in the registers of a warp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fragment {
    /// A of `mma.m16n8k16`: `[16, 16]`, two 16-bit elements a register.
    A,
    /// B of `mma.m16n8k16`: `[16 (k), 8 (n)]`, two 16-bit elements a register, adjacent in k.
    B,
    /// C and D of `mma.m16n8k16`: `[16, 8]`, one f32 a register.
    C,
    /// One matrix that `ldmatrix` loads: `[8, 8]`, two 16-bit elements in a register.
    Matrix,
    /// One matrix that `ldmatrix.trans` loads: `[8, 8]` as stored in memory, two elements of a column in a register.
    Transposed,
}

/// Holder of an element: lane, register of the fragment, and half of the register (0 is the lower).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// Lane of the warp.
    pub lane: u32,
    /// Register of the fragment.
    pub register: u32,
    /// Half of the register; 0 where an element fills it.
    pub half: u32,
}

impl Fragment {
    /// All kinds.
    pub const ALL: [Fragment; 5] = [Fragment::A, Fragment::B, Fragment::C, Fragment::Matrix, Fragment::Transposed];

    /// Rows and columns.
    pub const fn shape(self) -> (u32, u32) {
        match self {
            Fragment::A => (16, 16),
            Fragment::B | Fragment::C => (16, 8),
            Fragment::Matrix | Fragment::Transposed => (8, 8),
        }
    }

    /// Registers a lane, and elements in each.
    pub const fn registers(self) -> (u32, u32) {
        match self {
            Fragment::A => (4, 2),
            Fragment::B => (2, 2),
            Fragment::C => (4, 1),
            Fragment::Matrix | Fragment::Transposed => (1, 2),
        }
    }

    /// (row, column) of the element that `holder` holds.
    pub const fn position(self, holder: Holder) -> (u32, u32) {
        let Holder { lane, register, half } = holder;
        let (group, pair) = (lane / 4, 2 * (lane % 4));
        match self {
            Fragment::A => (group + 8 * (register % 2), pair + half + 8 * (register / 2)),
            Fragment::B => (pair + half + 8 * register, group),
            Fragment::C => (group + 8 * (register / 2), pair + register % 2),
            Fragment::Matrix => (group, pair + half),
            Fragment::Transposed => (pair + half, group),
        }
    }

    /// Holder of (row, column): the inverse of [`position`](Self::position).
    pub const fn holder(self, row: u32, column: u32) -> Holder {
        match self {
            Fragment::A => {
                Holder { lane: 4 * (row % 8) + column % 8 / 2, register: row / 8 + 2 * (column / 8), half: column % 2 }
            }
            Fragment::B => Holder { lane: 4 * column + row % 8 / 2, register: row / 8, half: row % 2 },
            Fragment::C => Holder { lane: 4 * (row % 8) + column / 2, register: 2 * (row / 8) + column % 2, half: 0 },
            Fragment::Matrix => Holder { lane: 4 * row + column / 2, register: 0, half: column % 2 },
            Fragment::Transposed => Holder { lane: 4 * column + row / 2, register: 0, half: row % 2 },
        }
    }

    /// Every holder.
    pub fn holders(self) -> impl Iterator<Item = Holder> {
        let (registers, halves) = self.registers();
        (0..LANES).flat_map(move |lane| {
            (0..registers).flat_map(move |register| (0..halves).map(move |half| Holder { lane, register, half }))
        })
    }
}

/// (row, column) of register `register` of thread `thread` of a warpgroup in the 64 x N accumulators of `wgmma`.
pub const fn wgmma_position(thread: u32, register: u32) -> (u32, u32) {
    let (warp, lane) = (thread / LANES, thread % LANES);
    (16 * warp + lane / 4 + 8 * (register / 2 % 2), 8 * (register / 4) + 2 * (lane % 4) + register % 2)
}

/// Thread and register of (row, column) of the accumulators of `wgmma`: the inverse of [`wgmma_position`].
pub const fn wgmma_holder(row: u32, column: u32) -> (u32, u32) {
    let thread = LANES * (row / 16) + 4 * (row % 8) + column % 8 / 2;
    (thread, 4 * (column / 8) + 2 * (row / 8 % 2) + column % 2)
}

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
