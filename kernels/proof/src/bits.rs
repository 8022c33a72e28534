//! Exact bits of a case's outputs on a CPU, for chosen data.
//!
//! Every instruction set and every number of threads computes the same bits, also from subnormal, huge and non-finite data:
//! [`outputs`] runs a case of the table without its reference, which takes far longer than a kernel. No function of the
//! system's C library computes an input. [`compare`] runs all cases and compares CPUs with each other and with the bits that
//! are recorded in `kernels/proof/bits.txt`.

use crate::runner::{CpuRunner, Runner};
use crate::{
    case::{Case, Outcome},
    operation::Operation,
};
use kernels::pool::Cpu;
use kernels::simd::Isa;

pub use crate::recorded::{Data, Output};

/// Runs a case on `cpu` with inputs of `data`, including cases that are too large for the check. Inputs that are outputs
/// of an earlier kernel, such as the statistics for a backward pass, are also computed on `cpu`.
///
/// # Errors
/// Why the case cannot run on a CPU.
///
/// # Panics
/// If a kernel writes outside its outputs.
pub fn outputs(operation: &Operation, case: &Case, cpu: &Cpu, data: Data) -> Result<Vec<Output>, String> {
    let runner = CpuRunner::recording(cpu, data);
    let outcome = (operation.check)(case, &Runner::Recording(&runner));
    match outcome {
        Outcome::Passed { .. } => Ok(runner.into_outputs()),
        Outcome::Skipped { reason } => Err(reason),
        Outcome::Failed { message } => panic!("{} {message}", operation.name),
    }
}

/// A line for each operation and each of [`Data`]: their names, and [`check_word`] of each case up to [`MOST_FLOPS`].
static RECORDED: &str = include_str!("../bits.txt");

/// In the place of a case without bits: it cannot run on a CPU.
const NO_BITS: &str = "none";

/// Maximum operations of a case whose bits are recorded.
pub const MOST_FLOPS: u64 = 300_000_000;

/// Maximum operations of a case that runs on all data; larger cases run on uniform data.
const MOST_FLOPS_OF_ALL_DATA: u64 = 2_000_000;

/// Maximum operations of a case on a CPU without the instruction for multiply-adds, where each is a call.
const MOST_FLOPS_WITHOUT_FMA: u64 = 30_000;

/// Result of [`compare`].
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Cases that ran.
    pub cases: usize,
    /// Outputs of the first CPU, for all cases and data.
    pub outputs: usize,
    /// Outputs that have a NaN.
    pub with_nan: usize,
    /// Cases that cannot run on a CPU.
    pub skipped: usize,
    /// Each difference: operation, case, data, and the first differing element or the recorded bits.
    pub differences: Vec<String>,
    /// Lines of the operation for `kernels/proof/bits.txt`, from the first CPU.
    pub lines: String,
}

/// Runs the cases of an operation on all data, and compares their bits between the CPUs and with the recorded ones. Cases
/// of more than `most_flops` operations are omitted.
///
/// CPUs without the instruction for multiply-adds run the smallest cases only.
///
/// # Panics
/// If `cpus` is empty, or a kernel writes outside its outputs.
pub fn compare(operation: &Operation, cpus: &[Cpu], most_flops: u64) -> Comparison {
    let mut comparison = Comparison::default();
    let flops = |case: &Case| (operation.cost)(case).flops;
    let cases: Vec<Case> = (operation.cases)().into_iter().filter(|case| flops(case) <= MOST_FLOPS).collect();
    for data in Data::ALL {
        let mut recorded = recorded(operation.name, data);
        let mut line = format!("{} {data}", operation.name);
        for case in &cases {
            if data == Data::Uniform || flops(case) <= MOST_FLOPS_OF_ALL_DATA {
                let recorded = recorded.next().unwrap_or(NO_BITS);
                let found = (flops(case) <= most_flops)
                    .then(|| compare_case(operation, case, cpus, data, recorded, &mut comparison));
                line.push(' ');
                line.push_str(found.as_deref().unwrap_or(recorded));
            }
        }
        if recorded.next().is_some() {
            comparison.differences.push(format!("{} {data}: kernels/proof/bits.txt has more cases", operation.name));
        }
        comparison.lines.push_str(&line);
        comparison.lines.push('\n');
    }
    comparison
}

/// The recorded words of an operation's cases on `data`.
fn recorded(operation: &str, data: Data) -> impl Iterator<Item = &'static str> {
    let mut lines = RECORDED.lines().map(str::split_whitespace);
    let line = lines.find(|line| {
        let mut words = line.clone();
        words.next() == Some(operation) && words.next() == Some(data.name())
    });
    line.into_iter().flatten().skip(2)
}

/// Compares a case, and returns the word of the first CPU.
fn compare_case(
    operation: &Operation,
    case: &Case,
    cpus: &[Cpu],
    data: Data,
    recorded: &str,
    comparison: &mut Comparison,
) -> String {
    let name = operation.name;
    let small = (operation.cost)(case).flops <= MOST_FLOPS_WITHOUT_FMA;
    let cpus: Vec<&Cpu> = cpus.iter().filter(|cpu| small || !matches!(cpu.isa(), Isa::Scalar(_))).collect();
    if cpus.is_empty() {
        return recorded.to_owned();
    }
    let mut first: Option<(&Cpu, Vec<Output>)> = None;
    for cpu in cpus {
        let Ok(outputs) = outputs(operation, case, cpu, data) else {
            assert!(first.is_none(), "{name} {case} runs on some CPUs only");
            break;
        };
        assert!(!outputs.is_empty(), "{name} {case} records nothing");
        let Some((before, first)) = &first else {
            first = Some((cpu, outputs));
            continue;
        };
        if let Some(difference) = difference(first, &outputs) {
            comparison.differences.push(format!("{name} {case}, {data}, {before}, {cpu}: {difference}"));
        }
    }
    let is_first = usize::from(data == Data::Uniform);
    let Some((_, outputs)) = first else {
        comparison.skipped += is_first;
        if recorded != NO_BITS {
            comparison.differences.push(format!("{name} {case}, {data}: cannot run; recorded {recorded}"));
        }
        return NO_BITS.to_owned();
    };
    comparison.cases += is_first;
    comparison.outputs += outputs.len();
    let has_nan = |output: &&Output| output.bits.contains(&f32::NAN.to_bits());
    comparison.with_nan += outputs.iter().filter(has_nan).count();
    let word = check_word(&outputs);
    if recorded != word {
        comparison.differences.push(format!("{name} {case}, {data}: bits {word}, recorded {recorded}"));
    }
    word
}

/// 16 bits of a hash of a case's outputs in hexadecimal digits.
fn check_word(outputs: &[Output]) -> String {
    let join = |hash: u64, output: &Output| (hash.rotate_left(5) ^ output.hash()).wrapping_mul(0x0100_0000_01b3);
    format!("{:04x}", outputs.iter().fold(0, join) >> 48)
}

/// First differing element of outputs of the same case or run; `None` if all bits are equal.
pub fn difference(first: &[Output], other: &[Output]) -> Option<String> {
    let names = |outputs: &[Output]| outputs.iter().map(|o| (o.name.clone(), o.bits.len())).collect::<Vec<_>>();
    if names(first) != names(other) {
        return Some(format!("outputs {:?} and {:?}", names(first), names(other)));
    }
    first.iter().zip(other).find_map(|(a, b)| {
        let elements = || a.bits.chunks(a.words).zip(b.bits.chunks(a.words)).enumerate().filter(|(_, (x, y))| x != y);
        let (i, (x, y)) = elements().next()?;
        let (name, differing, len) = (&a.name, elements().count(), a.bits.len() / a.words);
        Some(format!("{name}[{i}]: {} and {}; {differing} of {len} elements differ", shown(x), shown(y)))
    })
}

/// Value and bits of an element.
fn shown(words: &[u32]) -> String {
    match *words {
        [low, high] => {
            let bits = u64::from(high) << 32 | u64::from(low);
            format!("{:e} ({bits:016x})", f64::from_bits(bits))
        }
        _ => format!("{:e} ({:08x})", f32::from_bits(words[0]), words[0]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OPERATIONS;
    use crate::check;
    use kernels::simd::Scalar;

    /// Comparison of all operations on all instruction sets, with one thread and two, and with five on the widest.
    fn compare_all() -> Vec<(&'static Operation, Comparison)> {
        let new = |isa, threads| Cpu::new(isa, threads).expect("threads for a test");
        let mut cpus: Vec<Cpu> =
            Isa::testable().into_iter().flat_map(|isa| [1, 2].map(|threads| new(isa, threads))).collect();
        cpus.insert(2, new(Isa::Scalar(Scalar::new()), 1));
        cpus.push(new(*Isa::real().last().unwrap(), 5));
        // .ci/aarch64.sh sets it, because an emulator takes a hundred times as long.
        let most_flops = std::env::var("ALBERT_BITS_FLOPS").map_or(MOST_FLOPS, |most| most.parse().expect("a number"));
        OPERATIONS.iter().map(|operation| (operation, compare(operation, &cpus, most_flops))).collect()
    }

    /// All instruction sets could change together: the bits themselves are in `kernels/proof/bits.txt`. A change of them is a
    /// decision (`docs/decisions/bits-across-cpus.md`), and makes states of runs another version.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let mut differences = Vec::new();
        for (operation, found) in compare_all() {
            let Comparison { cases, outputs, with_nan, skipped, .. } = found;
            println!(
                "{}: {cases} cases with {outputs} outputs compared ({with_nan} with NaN), {skipped} cases cannot run",
                operation.name
            );
            assert!(cases > 0 && with_nan > 0, "{}: nothing compared, or no data reaches an output", operation.name);
            differences.extend(found.differences);
        }
        assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
    }

    /// On such a machine the larger cases are left out, which does not count as a difference from the recorded bits.
    #[test]
    fn a_cpu_without_fma_compares_the_smallest_cases() {
        let cpu = Cpu::new(Isa::Scalar(Scalar::new()), 1).unwrap();
        let operation = OPERATIONS.iter().find(|operation| operation.name == "layernorm").unwrap();
        let [all, small] =
            [Isa::real()[0], cpu.isa()].map(|isa| compare(operation, &[Cpu::new(isa, 1).unwrap()], MOST_FLOPS));
        assert_eq!(small.differences, Vec::<String>::new());
        assert!(small.cases > 0 && small.cases < all.cases, "{} of {} cases", small.cases, all.cases);
        assert_eq!(small.lines, all.lines);
    }

    /// Writes `kernels/proof/bits.txt`, for new cases and for changes of bits that are decisions.
    #[test]
    #[ignore = "writes a file of the repository"]
    fn record() {
        let header = "# Operation, data, 16 bits of a hash of each case's outputs: kernels/proof/src/bits.rs\n";
        let lines: String = compare_all().into_iter().map(|(_, found)| found.lines).collect();
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/bits.txt"), header.to_owned() + &lines).unwrap();
    }

    #[test]
    fn a_difference_names_its_element() {
        let y = |x: f32| [Output::new("y", &[1.0, x, -f32::NAN])];
        assert_eq!(difference(&y(2.0), &y(2.0)), None);
        let message = "y[1]: 2e0 (40000000) and 3e0 (40400000); 1 of 3 elements differ";
        assert_eq!(difference(&y(2.0), &y(3.0)).as_deref(), Some(message));
        assert_eq!(difference(&y(f32::NAN), &y(-f32::NAN)), None, "NaN has one representation");
        assert!(difference(&y(0.0), &y(-0.0)).is_some(), "zeros have signs");
        let loss = |x: f64| [Output::of_f64("loss", &[0.0, x])];
        let message = "loss[1]: 1e0 (3ff0000000000000) and -2.5e0 (c004000000000000); 1 of 2 elements differ";
        assert_eq!(difference(&loss(1.0), &loss(-2.5)).as_deref(), Some(message));
    }

    #[test]
    fn data_have_the_values_of_their_names() {
        let of = |data: Data| data.uniform::<f32>(1, 200, 1.0);
        assert_eq!(of(Data::Uniform), check::uniform::<f32>(1, 200, 1.0));
        assert!(of(Data::Subnormal).iter().all(|x| x.is_subnormal() || *x == 0.0));
        assert!(of(Data::Huge).iter().all(|x| x.is_finite()) && of(Data::Huge).iter().any(|x| x.abs() > 1e29));
        let at = |data: Data, chosen: fn(f32) -> bool| {
            of(data).into_iter().enumerate().filter(|(_, x)| chosen(*x)).map(|(i, _)| i).collect::<Vec<_>>()
        };
        assert_eq!(at(Data::NotANumber, f32::is_nan), [1, 98, 195]);
        assert_eq!(at(Data::Infinite, |x| x == f32::INFINITY), [98]);
        assert_eq!(at(Data::Infinite, |x| x == f32::NEG_INFINITY), [1, 195]);
    }

    #[test]
    fn the_hash_is_fnv_1a() {
        let hash = |words: &[&[u8; 4]]| {
            Output::of_u32("y", words.iter().map(|word| u32::from_le_bytes(**word)).collect()).hash()
        };
        assert_eq!(hash(&[]), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash(&[b"test"]), 0xf9e6_e6ef_197c_2b25);
        assert_eq!(hash(&[&[1, 0, 0, 0], &[2, 0, 0, 0]]), 0xc9c2_8939_c996_68c6);
    }
}
