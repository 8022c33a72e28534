//! Matrix instructions: fragments from shared memory to registers, and products on the tensor cores.
//!
//! [`super::fragment`] has the layouts of fragments.

use super::{
    Address, B32, Entry, F32, Feature, Pair, Pred, Reg, Shared, Type, U64, Version, memory::braced, module::statements,
};

/// Layout of a `wgmma` operand in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Major {
    /// k is contiguous: A is `[m, k]`, B is `[n, k]`.
    K,
    /// m or n is contiguous: A is `[k, m]`, B is `[k, n]`.
    Mn,
}

/// Permutation of the rows of a `wgmma` operand in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DescriptorSwizzle {
    /// Identity.
    None = 0,
    /// 16-byte chunks of 128 bytes are permuted by the row modulo 8.
    Bytes128 = 1,
    /// 16-byte chunks of 64 bytes are permuted by row / 2 modulo 4.
    Bytes64 = 2,
    /// 16-byte chunks of 32 bytes are permuted by row / 4 modulo 2.
    Bytes32 = 3,
}

/// The constant part of a `wgmma` matrix descriptor: everything but the address.
///
/// ```text
/// bit   0..13 address / 16     16..29 leading byte offset / 16     32..45 stride byte offset / 16     62..63 swizzle
/// ```
pub const fn descriptor(leading_bytes: u32, stride_bytes: u32, swizzle: DescriptorSwizzle) -> u64 {
    assert!(leading_bytes.is_multiple_of(16) && stride_bytes.is_multiple_of(16));
    assert!(leading_bytes < 1 << 18 && stride_bytes < 1 << 18);
    ((leading_bytes / 16) as u64) << 16 | ((stride_bytes / 16) as u64) << 32 | (swizzle as u64) << 62
}

statements! {
    /// Lets the tensor cores use registers and shared memory that the warpgroup wrote before.
    wgmma_fence() = "wgmma.fence.sync.aligned" needs "wgmma" 8 0 Wgmma;

    /// Commits the group of products started since the last commit.
    wgmma_commit() = "wgmma.commit_group.sync.aligned" needs "wgmma" 8 0 Wgmma;

    /// Waits until at most `groups` groups of products are pending.
    wgmma_wait(groups: u32) = "wgmma.wait_group.sync.aligned {groups}" needs "wgmma" 8 0 Wgmma;
}

impl Entry {
    /// Loads `N` (1, 2 or 4) matrices of 8 x 8 elements of 16 bits: lane l gives the address of row l % 8 of matrix l /
    /// 8, 16 bytes, and receives two adjacent elements of each.
    #[track_caller]
    pub fn ldmatrix<T: Type, const N: usize>(&self, row: Address<Shared>) -> [Reg<T>; N] {
        self.ldmatrix_form("", row)
    }

    /// [`Entry::ldmatrix`] of the transposed matrices.
    #[track_caller]
    pub fn ldmatrix_trans<T: Type, const N: usize>(&self, row: Address<Shared>) -> [Reg<T>; N] {
        self.ldmatrix_form(".trans", row)
    }

    #[track_caller]
    fn ldmatrix_form<T: Type, const N: usize>(&self, form: &str, row: Address<Shared>) -> [Reg<T>; N] {
        const { assert!(T::BYTES == 4 && (N == 1 || N == 2 || N == 4), "ldmatrix loads 1, 2 or 4 matrices") };
        let values: [Reg<T>; N] = std::array::from_fn(|_| self.fresh());
        self.write(format!("ldmatrix.sync.aligned.m8n8.x{N}{form}.shared.b16 {}, {row}", braced(&values)));
        values
    }

    /// Stores `N` matrices of 8 x 8 elements of 16 bits: the inverse of [`Entry::ldmatrix`].
    #[track_caller]
    pub fn stmatrix<T: Type, const N: usize>(&self, row: Address<Shared>, values: [Reg<T>; N]) {
        self.stmatrix_form("", row, values);
    }

    /// Stores the transposed matrices.
    #[track_caller]
    pub fn stmatrix_trans<T: Type, const N: usize>(&self, row: Address<Shared>, values: [Reg<T>; N]) {
        self.stmatrix_form(".trans", row, values);
    }

    #[track_caller]
    fn stmatrix_form<T: Type, const N: usize>(&self, form: &str, row: Address<Shared>, values: [Reg<T>; N]) {
        const { assert!(T::BYTES == 4 && (N == 1 || N == 2 || N == 4), "stmatrix stores 1, 2 or 4 matrices") };
        self.needs("stmatrix", Version(8, 0), Feature::Stmatrix);
        self.write(format!("stmatrix.sync.aligned.m8n8.x{N}{form}.shared.b16 {row}, {}", braced(&values)));
    }

    /// D += A · B for a 16 x 8 tile in f32 and k = 16, by one warp: A is `[16, 16]` in four registers, B is `[16, 8]`
    /// in two.
    #[track_caller]
    pub fn mma<P: Pair>(&self, d: [Reg<F32>; 4], a: [Reg<P>; 4], b: [Reg<P>; 2]) {
        let (half, sum) = (P::HALF, braced(&d));
        self.write(format!(
            "mma.sync.aligned.m16n8k16.row.col.f32.{half}.{half}.f32 {sum}, {}, {}, {sum}",
            braced(&a),
            braced(&b)
        ));
    }

    /// D += A · B for a 16 x 8 tile in f32 and k = 8, A and B in tf32.
    #[track_caller]
    pub fn mma_tf32(&self, d: [Reg<F32>; 4], a: [Reg<B32>; 4], b: [Reg<B32>; 2]) {
        let sum = braced(&d);
        self.write(format!(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {sum}, {}, {}, {sum}",
            braced(&a),
            braced(&b)
        ));
    }

    /// Starts D (+)= A · B for 64 rows, `d.len()` · 2 columns and k = 16, by the four warps of a warpgroup. Both
    /// operands are in shared memory; the old D is added where `keep` holds.
    ///
    /// # Panics
    /// If the columns are not a multiple of 8 from 8 to 256.
    #[track_caller]
    pub fn wgmma<P: Pair>(&self, d: &[Reg<F32>], a: (Reg<U64>, Major), b: (Reg<U64>, Major), keep: Reg<Pred>) {
        let (half, n) = (P::HALF, self.wgmma_columns(d));
        let transposed = |major: Major| u32::from(major == Major::Mn);
        self.write(format!(
            "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{half}.{half} {}, {}, {}, {keep}, 1, 1, {}, {}",
            braced(d),
            a.0,
            b.0,
            transposed(a.1),
            transposed(b.1)
        ));
    }

    /// [`Entry::wgmma`] with A in registers: the fragment of 16 rows a warp that [`Entry::mma`] takes.
    ///
    /// # Panics
    /// As [`Entry::wgmma`].
    #[track_caller]
    pub fn wgmma_registers<P: Pair>(&self, d: &[Reg<F32>], a: [Reg<P>; 4], b: (Reg<U64>, Major), keep: Reg<Pred>) {
        let (half, n) = (P::HALF, self.wgmma_columns(d));
        self.write(format!(
            "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{half}.{half} {}, {}, {}, {keep}, 1, 1, {}",
            braced(d),
            braced(&a),
            b.0,
            u32::from(b.1 == Major::Mn)
        ));
    }

    #[track_caller]
    fn wgmma_columns(&self, d: &[Reg<F32>]) -> usize {
        self.needs("wgmma", Version(8, 0), Feature::Wgmma);
        let n = 2 * d.len();
        assert!(
            n.is_multiple_of(8) && (8..=256).contains(&n),
            "wgmma with {n} columns; expected a multiple of 8 in 8..=256"
        );
        n
    }

    /// The descriptor of a matrix at `address` in shared memory: two instructions and the constant part.
    #[track_caller]
    pub fn matrix_descriptor(&self, address: super::Ptr<Shared>, constant: u64) -> Reg<U64> {
        let place = self.shr(self.and(address.register, 0x3FFFFu32), 4);
        self.or(self.cvt_u64(place), self.mov::<U64>(constant))
    }

    /// A constant condition: two instructions.
    #[track_caller]
    pub fn condition(&self, value: bool) -> Reg<Pred> {
        self.setp(super::Compare::Eq, self.mov::<super::U32>(u32::from(!value)), 0u32)
    }
}
