//! Exact bits of a case's outputs on a CPU, for chosen data.
//!
//! Every instruction set and every number of threads computes the same bits, also from subnormal, huge and non-finite data:
//! [`outputs`] runs a case of the table without its reference, which takes far longer than a kernel. No function of the
//! system's C library computes an input.

use crate::operation::{Case, Operation, Outcome};
use crate::pool::Cpu;
use crate::runner::{CpuRunner, Runner};

pub use crate::recorded::{Data, Output};

/// Runs a case on `cpu` with inputs of `data`, including cases that are too large for the check. Inputs that are outputs
/// of an earlier kernel, such as the statistics for a backward pass, are computed on `cpu` too.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;
    use crate::int8::DotKind;
    use crate::simd::{Isa, Scalar};
    use crate::{OPERATIONS, int8};
    use std::fmt::Write;

    /// Maximum operations of a case, for the time of the test.
    const MOST_FLOPS: u64 = 300_000_000;

    /// Maximum operations of a case that runs on all data; larger cases run on uniform data.
    const MOST_FLOPS_OF_ALL_DATA: u64 = 2_000_000;

    /// Maximum operations of a case that runs without the instruction for multiply-adds, where each is a call.
    const MOST_FLOPS_WITHOUT_FMA: u64 = 30_000;

    /// First difference between outputs of a case.
    fn difference(first: &[Output], other: &[Output]) -> Option<String> {
        let names = |outputs: &[Output]| outputs.iter().map(|o| (o.name.clone(), o.bits.len())).collect::<Vec<_>>();
        if names(first) != names(other) {
            return Some(format!("outputs {:?} and {:?}", names(first), names(other)));
        }
        first.iter().zip(other).find_map(|(a, b)| {
            let differing = a.bits.iter().zip(&b.bits).filter(|(a, b)| a != b).count();
            let i = (0..a.bits.len()).find(|&i| a.bits[i] != b.bits[i])?;
            let [x, y] = [a, b].map(|output| output.bits[i]);
            let [fx, fy] = [x, y].map(f32::from_bits);
            let (name, len) = (&a.name, a.bits.len());
            Some(format!("{name}[{i}]: {fx:e} ({x:08x}) and {fy:e} ({y:08x}); {differing} of {len} words differ"))
        })
    }

    /// Comparison of the cases of an operation.
    #[derive(Default)]
    struct Compared {
        cases: usize,
        outputs: usize,
        /// Outputs that have a NaN.
        with_nan: usize,
        /// Cases that cannot run on a CPU.
        skipped: usize,
        differences: Vec<String>,
        /// Hash of the outputs of all cases, of each data.
        hashes: [u64; Data::ALL.len()],
    }

    /// Hash of hashes, which depends on their order.
    fn join(hash: u64, next: u64) -> u64 {
        (hash.rotate_left(5) ^ next).wrapping_mul(0x0100_0000_01b3)
    }

    /// Compares the outputs of an operation on all data between the CPUs, and on `slow` for the smallest cases.
    fn compare(operation: &Operation, cpus: &[Cpu], slow: &Cpu) -> Compared {
        let mut compared = Compared::default();
        // The 8-bit layer quantizes to as many levels as the dot product's instructions allow.
        let levels = |cpu: &Cpu| match operation.name == int8::OPERATION.name {
            true => DotKind::of(cpu.isa().kind()).levels(),
            false => 0.0,
        };
        for case in (operation.cases)() {
            let flops = (operation.cost)(&case).flops;
            if flops > MOST_FLOPS {
                continue;
            }
            let fastest = cpus.last().expect("every machine has Scalar");
            if outputs(operation, &case, fastest, Data::Uniform).is_err() {
                compared.skipped += 1;
                continue;
            }
            compared.cases += 1;
            let data_of_case = if flops > MOST_FLOPS_OF_ALL_DATA { 1 } else { Data::ALL.len() };
            for (data, hash) in Data::ALL.into_iter().zip(&mut compared.hashes).take(data_of_case) {
                let mut firsts: Vec<(&Cpu, Vec<Output>)> = Vec::new();
                for cpu in cpus.iter().chain((flops <= MOST_FLOPS_WITHOUT_FMA).then_some(slow)) {
                    let outputs = outputs(operation, &case, cpu, data).expect("the case runs on every CPU");
                    assert!(!outputs.is_empty(), "{} {case} records nothing", operation.name);
                    let Some((before, first)) = firsts.iter().find(|(other, _)| levels(other) == levels(cpu)) else {
                        if firsts.is_empty() {
                            *hash = outputs.iter().fold(*hash, |hash, output| join(hash, output.hash()));
                        }
                        let has_nan = |output: &&Output| output.bits.contains(&f32::NAN.to_bits());
                        compared.outputs += outputs.len();
                        compared.with_nan += outputs.iter().filter(has_nan).count();
                        firsts.push((cpu, outputs));
                        continue;
                    };
                    if let Some(difference) = difference(first, &outputs) {
                        let place = |cpu: &Cpu| format!("{:?} with {} threads", cpu.isa(), cpu.threads());
                        let (name, before, cpu) = (operation.name, place(before), place(cpu));
                        compared.differences.push(format!("{name} {case}, {data}, {before}, {cpu}: {difference}"));
                    }
                }
            }
        }
        compared
    }

    /// All instruction sets could change together: the bits themselves are in `kernels/bits.txt`. A change of them is a
    /// decision (`docs/decisions.md`), and makes states of runs another version.
    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let new = |isa, threads| Cpu::new(isa, threads).expect("threads for a test");
        let cpus: Vec<Cpu> =
            Isa::testable().into_iter().flat_map(|isa| [1, 2].map(|threads| new(isa, threads))).collect();
        let without_fma = new(Isa::Scalar(Scalar::new()), 1);
        let (mut differences, mut hashes) = (Vec::new(), String::new());
        for operation in OPERATIONS {
            let start = std::time::Instant::now();
            let found = compare(operation, &cpus, &without_fma);
            let Compared { cases, outputs, with_nan, skipped, .. } = found;
            println!(
                "{}: {cases} cases with {outputs} outputs compared ({with_nan} with NaN), {skipped} cases cannot run, {:.1} s",
                operation.name,
                start.elapsed().as_secs_f64()
            );
            assert!(cases > 0 && with_nan > 0, "{}: nothing compared, or no data reaches an output", operation.name);
            differences.extend(found.differences);
            for (data, hash) in Data::ALL.iter().zip(found.hashes) {
                writeln!(hashes, "{} {data} {hash:016x}", operation.name).expect("memory is writable");
            }
        }
        assert!(differences.is_empty(), "{} differences:\n{}", differences.len(), differences.join("\n"));
        let expected = include_str!("../bits.txt");
        let changed: Vec<&str> = hashes.lines().filter(|line| !expected.lines().any(|other| other == *line)).collect();
        assert!(
            changed.is_empty(),
            "all instruction sets agree, but differ from kernels/bits.txt:\n{}",
            changed.join("\n")
        );
    }

    #[test]
    fn a_difference_names_its_element() {
        let y = |x: f32| [Output::new("y", &[1.0, x, -f32::NAN])];
        assert_eq!(difference(&y(2.0), &y(2.0)), None);
        let message = "y[1]: 2e0 (40000000) and 3e0 (40400000); 1 of 3 words differ";
        assert_eq!(difference(&y(2.0), &y(3.0)).as_deref(), Some(message));
        assert_eq!(difference(&y(f32::NAN), &y(-f32::NAN)), None, "NaN has one representation");
        assert!(difference(&y(0.0), &y(-0.0)).is_some(), "zeros have signs");
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
