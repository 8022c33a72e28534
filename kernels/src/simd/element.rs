//! Storage types: f32 or bf16. Arithmetic is always f32.

use super::{MAX_LANES, Simd};
use half::bf16;

/// A storage type, as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE binary32.
    F32,
    /// The upper half of a binary32: 8 bits of exponent, 7 of fraction.
    Bf16,
}

impl DType {
    /// All storage types.
    pub const ALL: [Self; 2] = [Self::F32, Self::Bf16];

    /// Bytes of an element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
    /// Name in kernel names: `f32` or `bf16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

mod sealed {
    use half::bf16;

    /// Type of a function pointer, but for the storage type.
    pub trait Signature {
        /// The pointer for `X`.
        type Of<X: super::Element>: Copy;
    }

    /// Pointers to the instances of a generic function.
    pub struct Instances<F: Signature> {
        pub f32: F::Of<f32>,
        pub bf16: F::Of<bf16>,
    }

    pub trait Sealed: Sized {
        /// The instance for this type.
        fn instance<F: Signature>(instances: &Instances<F>) -> F::Of<Self>
        where
            Self: super::Element;
    }

    impl Sealed for f32 {
        #[inline(always)]
        fn instance<F: Signature>(instances: &Instances<F>) -> F::Of<Self> {
            instances.f32
        }
    }

    impl Sealed for bf16 {
        #[inline(always)]
        fn instance<F: Signature>(instances: &Instances<F>) -> F::Of<Self> {
            instances.bf16
        }
    }
}
pub(crate) use sealed::{Instances, Signature};

/// Storage type of kernels. Sealed: f32 and bf16.
pub trait Element: bytemuck::Pod + Send + Sync + std::fmt::Debug + sealed::Sealed + 'static {
    /// The type as a value.
    const DTYPE: DType;
    /// Rounds to nearest even.
    fn from_f32(x: f32) -> Self;
    /// Exact.
    fn to_f32(self) -> f32;
    /// Loads LANES elements at `p`.
    /// # Safety
    /// `p` is valid for reading LANES elements.
    unsafe fn load_ptr<S: Simd>(simd: S, p: *const Self) -> S::F32;
    /// Stores LANES elements at `p`.
    /// # Safety
    /// `p` is valid for writing LANES elements.
    unsafe fn store_ptr<S: Simd>(simd: S, p: *mut Self, x: S::F32);
    /// [`Simd::load_transposed`] of elements.
    /// # Safety
    /// `rows <= LANES`, and `p` is valid for reading `rows` times LANES elements, `leading` apart.
    unsafe fn load_transposed<S: Simd>(simd: S, p: *const Self, leading: usize, rows: usize) -> [S::F32; 16];
    /// Loads all of `x`, at most LANES elements, with zeros in the other lanes.
    fn load_partial<S: Simd>(simd: S, x: &[Self]) -> S::F32;
    /// Stores the first lanes to all of `x`, at most LANES elements.
    fn store_partial<S: Simd>(simd: S, x: &mut [Self], value: S::F32);

    /// Loads the first LANES elements of `x`. Panics if there are fewer.
    #[inline(always)]
    fn load<S: Simd>(simd: S, x: &[Self]) -> S::F32 {
        assert!(x.len() >= S::LANES);
        // SAFETY: the slice has at least LANES elements.
        unsafe { Self::load_ptr(simd, x.as_ptr()) }
    }
    /// Stores the first LANES elements of `x`. Panics if there are fewer.
    #[inline(always)]
    fn store<S: Simd>(simd: S, x: &mut [Self], value: S::F32) {
        assert!(x.len() >= S::LANES);
        // SAFETY: the slice has at least LANES elements.
        unsafe { Self::store_ptr(simd, x.as_mut_ptr(), value) }
    }
}

impl Element for f32 {
    const DTYPE: DType = DType::F32;
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load_ptr<S: Simd>(simd: S, p: *const Self) -> S::F32 {
        // SAFETY: the caller's promise is the same.
        unsafe { simd.load_ptr(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr<S: Simd>(simd: S, p: *mut Self, x: S::F32) {
        // SAFETY: the caller's promise is the same.
        unsafe { simd.store_ptr(p, x) }
    }
    #[inline(always)]
    unsafe fn load_transposed<S: Simd>(simd: S, p: *const Self, leading: usize, rows: usize) -> [S::F32; 16] {
        // SAFETY: the caller's promise is the same.
        unsafe { simd.load_transposed(p, leading, rows) }
    }
    #[inline(always)]
    fn load_partial<S: Simd>(simd: S, x: &[Self]) -> S::F32 {
        simd.load_partial(x)
    }
    #[inline(always)]
    fn store_partial<S: Simd>(simd: S, x: &mut [Self], value: S::F32) {
        simd.store_partial(x, value);
    }
}

impl Element for bf16 {
    const DTYPE: DType = DType::Bf16;
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        bf16::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        bf16::to_f32(self)
    }
    #[inline(always)]
    unsafe fn load_ptr<S: Simd>(simd: S, p: *const Self) -> S::F32 {
        // SAFETY: the caller's promise is the same.
        unsafe { simd.load_bf16_ptr(p) }
    }
    #[inline(always)]
    unsafe fn store_ptr<S: Simd>(simd: S, p: *mut Self, x: S::F32) {
        // SAFETY: the caller's promise is the same.
        unsafe { simd.store_bf16_ptr(p, x) }
    }
    #[inline(always)]
    unsafe fn load_transposed<S: Simd>(simd: S, p: *const Self, leading: usize, rows: usize) -> [S::F32; 16] {
        let mut square = [simd.zero(); 16];
        for (i, row) in square.iter_mut().enumerate().take(S::LANES) {
            if i < rows {
                // SAFETY: the caller's promise.
                *row = unsafe { simd.load_bf16_ptr(p.add(i * leading)) };
            }
        }
        simd.transpose(&mut square);
        square
    }
    #[inline(always)]
    fn load_partial<S: Simd>(simd: S, x: &[Self]) -> S::F32 {
        const { assert!(S::LANES <= MAX_LANES, "partial vectors of `Wide` do not exist") };
        assert!(x.len() <= S::LANES);
        // Through a full vector on the stack: a tail occurs at most once per row.
        let mut full = [bf16::ZERO; MAX_LANES];
        full[..x.len()].copy_from_slice(x);
        // SAFETY: `full` has MAX_LANES >= LANES elements (asserted at compile time).
        unsafe { simd.load_bf16_ptr(full.as_ptr()) }
    }
    #[inline(always)]
    fn store_partial<S: Simd>(simd: S, x: &mut [Self], value: S::F32) {
        const { assert!(S::LANES <= MAX_LANES, "partial vectors of `Wide` do not exist") };
        assert!(x.len() <= S::LANES);
        let mut full = [bf16::ZERO; MAX_LANES];
        // SAFETY: as above.
        unsafe { simd.store_bf16_ptr(full.as_mut_ptr(), value) };
        x.copy_from_slice(&full[..x.len()]);
    }
}
