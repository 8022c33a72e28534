//! Derives the coefficients of the special function unit from recordings of a device, and compares the simulator's
//! functions with all of them.
//!
//! ```console
//! $ export PTX_RECORDINGS=/path/to/recordings
//! $ cargo run --release -p ptx --example sfu derive > kernels/ptx/src/sim/isa/sfu/tables.rs
//! $ cargo run --release -p ptx --example sfu sample kernels/ptx/tests/sfu
//! $ cargo run --release -p ptx --example sfu check
//! ```
//!
//! The folder has for each function `NAME.dense.i8.xz`, the error of consecutive inputs in ulp against the correctly
//! rounded value, `NAME.sample.u32x2.xz`, pairs of the bits of input and result, and in `sums.txt` a checksum over all
//! 2^32 inputs. `xz` must be installed. `check` takes minutes; without PTX_RECORDINGS it prints SKIPPED.

use ptx::sim::sfu::{self, Table};
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::thread;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Bits of an input and of its result.
type Pair = (u32, u32);

/// A recorded instruction.
struct Function {
    /// Name of its recordings.
    name: &'static str,
    model: fn(u32) -> u32,
    exact: fn(f64) -> f64,
    /// First input of the dense recording: consecutive floats from here, or -1 for multiples of 2^-23 from there.
    first: f32,
}

const FUNCTIONS: [Function; 7] = [
    Function { name: "ex2_approx_ftz", model: |x| sfu::ex2(x, true), exact: f64::exp2, first: -1.0 },
    Function { name: "rcp_approx_ftz", model: |x| sfu::rcp(x, true), exact: f64::recip, first: 1.0 },
    Function { name: "rsqrt_approx_ftz", model: |x| sfu::rsqrt(x, true), exact: |x| 1.0 / x.sqrt(), first: 1.0 },
    Function { name: "lg2_approx_ftz", model: |x| sfu::lg2(x, true), exact: f64::log2, first: 1.0 },
    Function { name: "tanh_approx", model: sfu::tanh, exact: f64::tanh, first: -1.0 },
    Function { name: "ex2_approx", model: |x| sfu::ex2(x, false), exact: f64::exp2, first: -1.0 },
    Function { name: "rcp_approx", model: |x| sfu::rcp(x, false), exact: f64::recip, first: 1.0 },
];

impl Function {
    fn input(&self, i: usize) -> f32 {
        if self.first < 0.0 {
            self.first + i as f32 / 8_388_608.0
        } else {
            f32::from_bits(self.first.to_bits() + i as u32)
        }
    }

    /// The correctly rounded result.
    fn rounded(&self, x: f32) -> u32 {
        ((self.exact)(f64::from(x)) as f32).to_bits()
    }

    /// Recorded errors in ulp; -128 and 127 stand for all beyond. Not every instruction has them.
    fn dense(&self, folder: &Path) -> Result<Option<Vec<i8>>> {
        let name = format!("{}.dense.i8.xz", self.name);
        let known = folder.join(&name).exists();
        known.then(|| Ok(unpack(folder, &name)?.into_iter().map(u8::cast_signed).collect())).transpose()
    }

    fn sample(&self, folder: &Path) -> Result<Vec<Pair>> {
        let bytes = unpack(folder, &format!("{}.sample.u32x2.xz", self.name))?;
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().expect("four bytes"));
        Ok(bytes.chunks_exact(8).map(|pair| (word(&pair[..4]), word(&pair[4..]))).collect())
    }

    /// Dense inputs with their results, except where the error is out of range.
    fn pairs(&self, folder: &Path) -> Result<Vec<Pair>> {
        let errors = self.dense(folder)?.unwrap_or_default();
        let known = |(i, error): (usize, i8)| {
            let x = self.input(i);
            (error.unsigned_abs() < 127).then(|| (x.to_bits(), self.rounded(x).wrapping_add_signed(error.into())))
        };
        Ok(errors.into_iter().enumerate().filter_map(known).collect())
    }
}

fn unpack(folder: &Path, name: &str) -> Result<Vec<u8>> {
    let path = folder.join(name);
    let output = Command::new("xz")
        .arg("-dc")
        .arg(&path)
        .output()
        .map_err(|error| format!("cannot run xz: {error}; install xz-utils"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", path.display(), String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(output.stdout)
}

/// A function of the unit, as far as its coefficients need it.
struct Fit {
    constant: &'static str,
    table: &'static Table,
    function: &'static Function,
    /// Segment and xl of an input inside the interpolated range.
    split: fn(u32) -> Option<(u32, u32)>,
    /// Step of C1 and C2 in a segment.
    steps: fn(u32) -> [i64; 2],
}

/// The fraction of floats from `first`, `segment_bits` of it for the segment.
fn fraction(x: u32, first: f32, segment_bits: u32) -> Option<(u32, u32)> {
    let offset = x.checked_sub(first.to_bits())?;
    (offset < 1 << 23).then_some((offset >> (23 - segment_bits), (offset << (segment_bits - 6)) & 0x1_FFFF))
}

const FITS: [Fit; 5] = [
    Fit {
        constant: "EX2",
        table: &sfu::EX2,
        function: &FUNCTIONS[0],
        split: |x| {
            let fixed = (f32::from_bits(x) * 8_388_608.0) as u32;
            (x < 0x3F80_0000).then_some((fixed >> 17, fixed & 0x1_FFFF))
        },
        steps: |_| [1, 1],
    },
    Fit {
        constant: "RCP",
        table: &sfu::RCP,
        function: &FUNCTIONS[1],
        split: |x| fraction(x, 1.0, 7),
        steps: |_| [1, 1],
    },
    Fit {
        constant: "RSQRT",
        table: &sfu::RSQRT,
        function: &FUNCTIONS[2],
        // The result of 1.0 is exact, not interpolated.
        split: |x| match fraction(x, 1.0, 6) {
            Some((0, 0)) => None,
            Some(found) => Some(found),
            None => fraction(x, 2.0, 6).map(|(segment, xl)| (64 + segment, xl)),
        },
        steps: |_| [1, 1],
    },
    Fit {
        constant: "LG2",
        table: &sfu::LG2,
        function: &FUNCTIONS[3],
        split: |x| fraction(x, 1.0, 6).filter(|found| *found != (0, 0)),
        steps: |_| [1, 1],
    },
    Fit {
        constant: "TANH",
        table: &sfu::TANH,
        function: &FUNCTIONS[4],
        split: |x| if x >> 31 == 0 { sfu::tanh_segment(x) } else { None },
        // Above 1 there are 37 to 119 pairs of a segment. In all others these differences hold.
        steps: |segment| match segment {
            0..19 => [4, 2],
            27..43 => [4, 2],
            _ => [16, 8],
        },
    },
];

/// Products of an input with C1 = 1 and C2 = 1, and bounds of the sum: `low` is possible, `high` is not.
struct Bound {
    pair: Pair,
    products: [i64; 2],
    low: i64,
    high: i64,
}

impl Bound {
    fn rest(&self, c: [i64; 2]) -> i64 {
        c[0] * self.products[0] + c[1] * self.products[1]
    }
}

impl Fit {
    /// Bounds of each segment from all recorded results.
    fn bounds(&self, folder: &Path) -> Result<Vec<Vec<Bound>>> {
        let [_, linear, quadratic] = self.table.shifts;
        let scale = f64::from(-self.table.unit).exp2();
        let at = |bits| (f64::from(f32::from_bits(bits)) * scale) as i64;
        let mut segments: Vec<Vec<Bound>> = vec![];
        // Below 1 the dense recording has every input once. Many random inputs there have the same xl, which would
        // distort the fit.
        let sample = self.function.sample(folder)?.into_iter().filter(|(x, _)| f32::from_bits(*x) >= 1.0);
        for pair in self.function.pairs(folder)?.into_iter().chain(sample) {
            let Some((segment, xl)) = (self.split)(pair.0) else { continue };
            let products = [i64::from(xl) << linear, i64::from(sfu::squared(xl)) << quadratic];
            let bound = Bound { pair, products, low: at(pair.1), high: at(pair.1 + 1) };
            segments.resize_with(segments.len().max(segment as usize + 1), Vec::new);
            segments[segment as usize].push(bound);
        }
        Ok(segments)
    }

    /// The coefficients of a segment: all integers near the least-squares fit that reproduce every result. There must be
    /// exactly one solution.
    fn row(&self, segment: u32, bounds: &[Bound]) -> Result<[i64; 3]> {
        let steps = (self.steps)(segment);
        let near = least_squares(bounds);
        let grid = |i: usize, k: i64| ((near[i] / steps[i] as f64).round() as i64 + k) * steps[i];
        let mut solutions = vec![];
        for c in (-2..=2).flat_map(|k| (-2..=2).map(move |l| [grid(0, k), grid(1, l)])) {
            let (mut low, mut high) = (i64::MIN, i64::MAX);
            for bound in bounds {
                low = low.max(bound.low - bound.rest(c));
                high = high.min(bound.high - bound.rest(c));
                if low >= high {
                    break;
                }
            }
            let shift = self.table.shifts[0];
            let first = (low - self.table.bias + (1 << shift) - 1) >> shift;
            solutions
                .extend((first..).take_while(|c0| (c0 << shift) + self.table.bias < high).map(|c0| [c0, c[0], c[1]]));
        }
        match solutions[..] {
            [only] => Ok(only),
            _ => Err(format!("{} segment {segment}: expected one solution, found {solutions:?}", self.constant).into()),
        }
    }

    fn rows(&self, folder: &Path) -> Result<Vec<[i64; 3]>> {
        let segments = self.bounds(folder)?;
        segments.iter().zip(0..).map(|(bounds, segment)| self.row(segment, bounds)).collect()
    }

    /// The results of a segment that bound C0 most closely from below and from above, and those of its first and last
    /// input: a change of a coefficient by one changes one of them.
    fn tight(&self, segment: usize, bounds: &[Bound]) -> [Pair; 4] {
        let [_, c1, c2] = self.table.rows[segment].map(i64::from);
        let by = |key: fn(&Bound, i64) -> i64| bounds.iter().min_by_key(|bound| key(bound, bound.rest([c1, c2])));
        [
            by(|bound, rest| rest - bound.low),
            by(|bound, rest| bound.high - rest),
            bounds.iter().min_by_key(|bound| bound.products[0]),
            bounds.iter().max_by_key(|bound| bound.products[0]),
        ]
        .map(|bound| bound.expect("each segment has results").pair)
    }
}

/// C1 and C2 of the parabola with the least squared distance from the middle of all bounds.
fn least_squares(bounds: &[Bound]) -> [f64; 2] {
    let scale = |i: usize| bounds.iter().map(|bound| bound.products[i]).max().unwrap_or(1).max(1) as f64;
    let scales = [1.0, scale(0), scale(1)];
    let mut a = [[0.0f64; 4]; 3];
    for bound in bounds {
        let [l, q] = bound.products.map(|product| product as f64);
        let row = [1.0, l / scales[1], q / scales[2], (bound.low + bound.high) as f64 / 2.0];
        for (i, line) in a.iter_mut().enumerate() {
            for (cell, value) in line.iter_mut().zip(row) {
                *cell += row[i] * value;
            }
        }
    }
    for i in 0..3 {
        let pivot = a[i];
        for (_, line) in a.iter_mut().enumerate().filter(|(r, _)| *r != i) {
            let factor = line[i] / pivot[i];
            for (cell, value) in line.iter_mut().zip(pivot) {
                *cell -= factor * value;
            }
        }
    }
    [1, 2].map(|i| a[i][3] / a[i][i] / scales[i])
}

/// Prints `tables.rs`.
fn derive(folder: &Path) -> Result<()> {
    println!("//! Coefficients, one row for each segment. Written by `examples/sfu.rs`.\n");
    for fit in &FITS {
        let rows = fit.rows(folder)?;
        println!("#[rustfmt::skip]\npub(super) static {}_ROWS: [[i32; 3]; {}] = [", fit.constant, rows.len());
        for rows in rows.chunks(4) {
            println!("    {}", rows.iter().map(|[a, b, c]| format!("[{a}, {b}, {c}],")).collect::<Vec<_>>().join(" "));
        }
        println!("];");
    }
    Ok(())
}

/// Random pairs in a sample of a function.
const RANDOM: usize = 400;

/// Writes a compact sample of each function, pairs of little-endian words, into a folder.
fn sample(folder: &Path, out: &str) -> Result<()> {
    for function in &FUNCTIONS {
        let all = function.sample(folder)?;
        let subnormal = |pair: &&Pair| f32::from_bits(pair.0).is_subnormal() || f32::from_bits(pair.1).is_subnormal();
        let ordinary =
            |pair: &&Pair| !matches!(pair.1 & 0x7FFF_FFFF, 0 | 0x3F80_0000 | 0x7F80_0000..) && !subnormal(pair);
        let mut pairs: Vec<Pair> = all.iter().filter(ordinary).take(RANDOM).copied().collect();
        pairs.extend(all.iter().filter(|pair| !ordinary(pair)).take(RANDOM / 8));
        pairs.extend(all.iter().filter(subnormal).take(RANDOM / 8));
        for fit in FITS.iter().filter(|fit| fit.function.name == function.name) {
            pairs.extend(
                fit.bounds(folder)?.iter().enumerate().flat_map(|(segment, bounds)| fit.tight(segment, bounds)),
            );
        }
        pairs.sort_unstable();
        pairs.dedup();
        let mut file = std::fs::File::create(Path::new(out).join(format!("{}.bin", function.name)))?;
        for (x, y) in pairs {
            file.write_all(&[x.to_le_bytes(), y.to_le_bytes()].concat())?;
        }
    }
    Ok(())
}

/// Checksum over the results of all inputs, as recorded.
fn checksum(model: fn(u32) -> u32) -> u64 {
    let hash = |x: u32| {
        let mixed = (u64::from(x) << 32 | u64::from(model(x))).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ mixed >> 29).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed ^ mixed >> 32
    };
    const PARTS: u32 = 64;
    let threads = thread::available_parallelism().map_or(1, |threads| threads.get() as u32);
    let part = |part: u32| (0..1 << 26).fold(0u64, |sum, x| sum.wrapping_add(hash(part << 26 | x)));
    thread::scope(|scope| {
        let run =
            |first| scope.spawn(move || (first..PARTS).step_by(threads as usize).map(part).fold(0, u64::wrapping_add));
        let running: Vec<_> = (0..threads).map(run).collect();
        running.into_iter().map(|thread| thread.join().expect("the thread ends")).fold(0, u64::wrapping_add)
    })
}

/// Compares all recordings with the simulator's functions.
fn check(folder: &Path) -> Result<bool> {
    let sums = std::fs::read_to_string(folder.join("sums.txt"))?;
    let mut equal = true;
    for function in &FUNCTIONS {
        let different = |(i, error): &(usize, i8)| {
            let x = function.input(*i);
            let found = i64::from((function.model)(x.to_bits())) - i64::from(function.rounded(x));
            found.clamp(-128, 127) != i64::from(*error)
        };
        let dense = function.dense(folder)?.unwrap_or_default();
        let sample = function.sample(folder)?;
        let dense_bad = dense.iter().copied().enumerate().filter(different).count();
        let sample_bad = sample.iter().filter(|(x, y)| (function.model)(*x) != *y).count();
        let recorded = sums.lines().find(|line| line.split_whitespace().next() == Some(function.name));
        let recorded = recorded.and_then(|line| line.split_whitespace().last()).unwrap_or("missing");
        let same = format!("{:016x}", checksum(function.model)) == recorded;
        println!(
            "{:16} dense {dense_bad} of {} differ, sample {sample_bad} of {}, checksum over 2^32 inputs {}",
            function.name,
            dense.len(),
            sample.len(),
            if same { "equal" } else { "differs" }
        );
        equal &= dense_bad == 0 && sample_bad == 0 && same;
    }
    Ok(equal)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(folder) = std::env::var_os("PTX_RECORDINGS") else {
        println!("SKIPPED: PTX_RECORDINGS does not name a folder of recordings");
        return Ok(());
    };
    let folder = Path::new(&folder);
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["derive"] => derive(folder),
        ["sample", out] => sample(folder, out),
        ["check"] if check(folder)? => Ok(()),
        ["check"] => Err("the simulator's results differ from the recordings".into()),
        _ => Err("expected `derive`, `sample FOLDER` or `check`".into()),
    }
}
