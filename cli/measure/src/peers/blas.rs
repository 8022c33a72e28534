//! BLAS libraries, opened at run time; not required for the build.
//!
//! A library is opened at the path in its variable, then under its usual names. A library that cannot be opened or
//! has no `cblas_sgemm` is skipped.
#![allow(unsafe_code)]

use super::Operands;
use crate::interleaved::Contender;
use libloading::Library;
use std::{
    ffi::{OsString, c_int},
    sync::Arc,
};

const ROW_MAJOR: c_int = 101;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;

/// `cblas_sgemm` of a library with 32-bit integers.
type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

/// Known library: name, variable with its path, usual file names, function that sets the number of threads.
struct Known {
    name: &'static str,
    variable: &'static str,
    files: &'static [&'static str],
    set_threads: &'static [u8],
}

const KNOWN: [Known; 3] = [
    Known {
        name: "openblas",
        variable: "ALBERT_OPENBLAS",
        files: &["libopenblas.so.0", "libopenblas.so"],
        set_threads: b"openblas_set_num_threads\0",
    },
    Known {
        name: "blis",
        variable: "ALBERT_BLIS",
        files: &["libblis.so.4", "libblis.so.3", "libblis.so"],
        set_threads: b"bli_thread_set_num_threads\0",
    },
    Known {
        name: "mkl",
        variable: "ALBERT_MKL",
        files: &["libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so"],
        set_threads: b"MKL_Set_Num_Threads\0",
    },
];

/// An open library.
#[derive(Debug)]
struct Blas {
    name: &'static str,
    sgemm: Sgemm,
    /// Owns the code of `sgemm`, so that it remains mapped.
    _library: Library,
}

impl Blas {
    fn open(known: &Known, threads: usize) -> Option<Self> {
        let named = std::env::var_os(known.variable);
        let files = named.into_iter().chain(known.files.iter().map(OsString::from));
        // SAFETY: these are BLAS libraries by name or as the user stated; their initializers set up their own state.
        let library = files.into_iter().find_map(|file| unsafe { Library::new(file) }.ok())?;
        // SAFETY: the C interface to BLAS fixes the type of `cblas_sgemm`; the builds under these names use 32-bit integers.
        let sgemm = *unsafe { library.get::<Sgemm>(b"cblas_sgemm\0") }.ok()?;
        // SAFETY: the three functions have one integer argument and no result. BLIS has 64 bits: a register fits both.
        let set_threads = unsafe { library.get::<unsafe extern "C" fn(i64)>(known.set_threads) }.ok()?;
        // SAFETY: as above.
        unsafe { set_threads(threads as i64) };
        Some(Self { name: known.name, sgemm, _library: library })
    }

    fn multiply(&self, operands: &Operands, c: &mut [f32]) {
        let &Operands { m, n, k, a_transposed, b_transposed, .. } = operands;
        assert_eq!(c.len(), m * n, "C is [m, n]");
        let transposed = |is| if is { TRANSPOSED } else { PLAIN };
        let (lda, ldb) = (if a_transposed { m } else { k }, if b_transposed { k } else { n });
        let [m, n, k, lda, ldb] = [m, n, k, lda, ldb].map(|size| c_int::try_from(size).expect("sizes are below 2^31"));
        let (a, b) = (operands.a.as_ptr(), operands.b.as_ptr());
        let (ta, tb) = (transposed(a_transposed), transposed(b_transposed));
        // SAFETY: `operands` checked that A and B have m·k and k·n elements, which the leading dimensions span exactly; C,
        // checked above, is borrowed for the call.
        unsafe { (self.sgemm)(ROW_MAJOR, ta, tb, m, n, k, 1.0, a, lda, b, ldb, 0.0, c.as_mut_ptr(), n) };
    }
}

fn open(threads: usize) -> impl Iterator<Item = Blas> {
    KNOWN.iter().filter_map(move |known| Blas::open(known, threads))
}

pub(super) fn contenders(threads: usize, operands: &Operands) -> Vec<Contender> {
    let of = |blas: Blas| {
        let (blas, operands, mut c) = (Arc::new(blas), operands.clone(), operands.room());
        Contender::new(blas.name, move || blas.multiply(&operands, &mut c))
    };
    open(threads).map(of).collect()
}

/// Product of each library.
#[cfg(test)]
pub(super) fn products(threads: usize, operands: &Operands) -> Vec<(String, Vec<f32>)> {
    let of = |blas: Blas| {
        let mut c = operands.room();
        blas.multiply(operands, &mut c);
        (blas.name.to_owned(), c)
    };
    open(threads).map(of).collect()
}
