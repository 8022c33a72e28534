//! Products in every precision: bits of every kind of tiles, errors, the forms of operands, and what bits do not depend on.

use super::super::problem::{FORMS, epilogues};
use super::super::reference;
use crate::check::{Guarded, testable_cpus, uniform, widen};
use half::bf16;
use kernels::Cpu;
use kernels::dropout::Dropout;
use kernels::gemm::{
    Batch, Beta, Epilogue, EpilogueKind, Gemm, PackMismatch, PackedB, Precision, batched, gemm, gemm_packed,
};
use kernels::num::philox::Stream;
use kernels::pool::Caches;
use kernels::tiles::Tiles;
use kernels::{
    Element,
    simd::{Isa, IsaKind},
};

/// The precisions that run on tiles.
const ON_TILES: [Precision; 3] = [Precision::Bf16, Precision::Bf16x3, Precision::Bf16x6];

/// A CPU for each pair of a kind of tiles and an instruction set, with one thread and two.
fn cpus_with_tiles() -> Vec<Cpu> {
    let of = |cpu: &Cpu| {
        let kinds = Tiles::testable(cpu.isa()).into_iter().map(Tiles::kind);
        kinds.map(|kind| cpu.clone().with_tiles(kind).expect("testable tiles")).collect::<Vec<_>>()
    };
    let two = Cpu::new(*Isa::real().last().unwrap(), 2).expect("two threads");
    testable_cpus().iter().chain([&two]).flat_map(of).collect()
}

/// Operands of a product, and what its epilogue reads.
struct Problem {
    spec: Gemm,
    kind: EpilogueKind,
    a: Vec<f32>,
    b: Vec<f32>,
    bias: Vec<f32>,
    matrix: Vec<f32>,
}

impl Problem {
    fn new(spec: Gemm, kind: EpilogueKind) -> Self {
        let Gemm { m, n, k, .. } = spec;
        let matrix = uniform(4, spec.spans()[2], 1.0);
        Self { spec, kind, a: uniform(1, m * k, 1.0), b: uniform(2, n * k, 1.0), bias: uniform(3, n, 1.0), matrix }
    }

    /// C and what an epilogue saves, with operands stored as X and C as Y; B packed before if `packed`.
    fn compute<X: Element, Y: Element>(&self, cpu: &Cpu, packed: bool) -> Vec<u32> {
        let Gemm { precision, k, n, .. } = self.spec;
        self.compute_with::<X, Y>(cpu, packed.then(|| PackedB::with_precision(cpu.isa(), precision, k, n)))
    }

    /// The same, with B packed into `panels`.
    fn compute_with<X: Element, Y: Element>(&self, cpu: &Cpu, panels: Option<PackedB>) -> Vec<u32> {
        let Self { spec, kind, bias, .. } = self;
        let stored = |x: &[f32]| x.iter().map(|&x| X::from_f32(x)).collect::<Vec<X>>();
        let (a, b) = (stored(&self.a), stored(&self.b));
        let matrix: Vec<Y> = self.matrix.iter().map(|&x| Y::from_f32(x)).collect();
        let mut pre = Guarded::<Y>::poisoned(matrix.len());
        let mut c = if spec.beta == Beta::One { Guarded::new(&matrix) } else { Guarded::poisoned(matrix.len()) };
        let dropout = Dropout { seed: 3, site: 7, rate: 0.2 };
        let epilogue = Epilogue::of_kind(*kind, &bias[..], &matrix[..], &mut pre[..], dropout);
        if let Some(mut panels) = panels {
            panels.pack(cpu, spec.b, spec.ldb, &b);
            gemm_packed(cpu, spec, &a, &panels, &mut c, epilogue);
        } else {
            gemm(cpu, spec, &a, &b, &mut c, epilogue);
        }
        c.assert_intact(&"c");
        pre.assert_intact(&"pre");
        let saved = if kind.saves_pre() { &pre[..] } else { &[] };
        c.iter().chain(saved).map(|x| x.to_f32().to_bits()).collect()
    }
}

#[test]
fn every_kind_of_tiles_gives_the_same_bits_with_every_epilogue_however_operands_are_stored() {
    let (cpus, epilogues) = (cpus_with_tiles(), epilogues());
    let mut compared = 0;
    assert!(epilogues.len() <= 24, "more sizes for more epilogues");
    // Around tiles of 32 x 32, 14 x 32 and 6 x 16, blocks of 32, sections of 128, and blocks of 256, 384 and 1,024 terms.
    let sizes = [
        (1, 1, 1),
        (14, 16, 0),
        (33, 31, 32),
        (5, 66, 33),
        (64, 32, 128),
        (70, 40, 129),
        (31, 96, 257),
        (40, 33, 1025),
    ];
    for (i, (m, n, k)) in sizes.into_iter().enumerate() {
        for (j, (form, a, b)) in FORMS.into_iter().enumerate() {
            for precision in ON_TILES {
                // Every epilogue with sizes above 1; C with gaps between its rows, and without.
                let (beta, kind) = epilogues[(FORMS.len() * i + j) % epilogues.len()];
                let spec = Gemm { beta, ldc: n + 3 * (i % 2), ..Gemm::new(m, n, k, a, b).with_precision(precision) };
                let problem = Problem::new(spec, kind);
                // Operands that are bf16 are the same numbers in f32.
                let rounded = Problem {
                    a: problem.a.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
                    b: problem.b.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
                    ..Problem::new(spec, kind)
                };
                let [mut of_f32, mut of_rounded, mut narrow] = [None, None, None];
                for cpu in &cpus {
                    for packed in [false, true] {
                        let case = format!(
                            "{cpu}, {} tiles, {form} {m} x {n} x {k} {precision}, {packed}",
                            cpu.tiles().kind()
                        );
                        let mut same = |first: &mut Option<Vec<u32>>, found: Vec<u32>, what: &str| {
                            let wanted = first.get_or_insert_with(|| found.clone());
                            let differ: Vec<usize> = (0..found.len()).filter(|&i| wanted[i] != found[i]).collect();
                            assert!(differ.is_empty(), "{case}, {what}: elements {differ:?}");
                            compared += 1;
                        };
                        same(&mut of_f32, problem.compute::<f32, f32>(cpu, packed), "f32");
                        same(&mut of_rounded, rounded.compute::<f32, f32>(cpu, packed), "rounded");
                        same(&mut of_rounded, rounded.compute::<bf16, f32>(cpu, packed), "bf16 operands");
                        same(&mut narrow, problem.compute::<f32, bf16>(cpu, packed), "bf16 result");
                    }
                }
            }
        }
    }
    println!("{compared} products on {} CPUs compared", cpus.len());
}

#[test]
fn rounded_panels_give_the_bits_of_f32_products_with_a_rounded_matrix() {
    let (widest, epilogues) = (*Isa::real().last().unwrap(), epilogues());
    let cpu = |threads: usize| Cpu::new(widest, threads).expect("threads");
    let mut cpus = testable_cpus();
    cpus.push(cpu(2));
    // Panels of A in groups, in parts of a chain and without.
    for (l1, l2, l3) in [(48, 65536, 65536), (64, 512, 32768)] {
        cpus.push(cpu(1).with_caches(Caches { l1: l1 << 10, l2: l2 << 10, l3: l3 << 10 }));
    }
    // Around tiles, chains, blocks, and panels of A that are packed.
    let sizes =
        [(3, 4, 0), (1, 1, 1), (14, 16, 7), (33, 31, 32), (16, 66, 385), (5, 70, 1024), (31, 75, 1025), (65, 40, 2000)];
    for (i, (m, n, k)) in sizes.into_iter().enumerate() {
        for (j, (form, a, b)) in FORMS.into_iter().enumerate() {
            let (beta, kind) = epilogues[(FORMS.len() * i + j) % epilogues.len()];
            let problem = Problem::new(Gemm { beta, ..Gemm::new(m, n, k, a, b) }, kind);
            let rounded = problem.b.iter().map(|&x| bf16::from_f32(x).to_f32()).collect();
            let rounded = Problem { b: rounded, ..Problem::new(problem.spec, kind) };
            let wanted = [rounded.compute::<f32, f32>(&cpu(1), false), rounded.compute::<bf16, bf16>(&cpu(1), false)];
            for cpu in &cpus {
                let panels = PackedB::rounded(cpu.isa(), k, n);
                assert!(panels.bytes() <= PackedB::new(cpu.isa(), k, n).bytes() / 2 + 64, "{panels:?}");
                let found = problem.compute_with::<f32, f32>(cpu, Some(panels.clone()));
                assert!(found == wanted[0], "{cpu:?}, {form} {m} x {n} x {k} {kind:?}");
                let found = problem.compute_with::<bf16, bf16>(cpu, Some(panels));
                assert!(found == wanted[1], "{cpu:?}, {form} {m} x {n} x {k} {kind:?} in bf16");
            }
        }
    }
}

/// Copies the rows of `x` to a leading dimension of `leading`, NaN in the gaps.
fn spread(x: &[f32], columns: usize, leading: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / columns * leading];
    x.chunks(columns).zip(out.chunks_mut(leading)).for_each(|(x, out)| out[..columns].copy_from_slice(x));
    out
}

#[test]
fn bits_do_not_depend_on_instruction_sets_threads_caches_or_strides() {
    for precision in Precision::ALL {
        // Blocks of f32 depend on the instruction set, those of tiles do not.
        let (in_f32, widest) = (precision == Precision::F32, *Isa::real().last().unwrap());
        let isas = if in_f32 { Isa::testable() } else { vec![widest] };
        let sizes = [(65, 1700, 40), (520, 70, 1025), (31, 75, 2000), (150, 70, 800)];
        for (isa, (m, n, k)) in isas.into_iter().flat_map(|isa| sizes.map(|size| (isa, size))) {
            for (form, a, b) in FORMS {
                let spec = Gemm::new(m, n, k, a, b).with_precision(precision);
                let problem = Problem::new(spec, EpilogueKind::BiasDropoutResidual { dropout: true, residual: true });
                let cpu = |threads: usize| Cpu::new(isa, threads).expect("threads");
                let compute = |problem: &Problem, cpu: &Cpu, packed| {
                    [problem.compute::<f32, f32>(cpu, packed), problem.compute::<bf16, bf16>(cpu, packed)]
                };
                let wanted = compute(&problem, &Cpu::new(widest, 1).expect("a thread"), false);
                let case = format!("{form} {m} x {n} x {k} {precision}");
                for cpu in [cpu(1), cpu(2), cpu(5)] {
                    assert!(compute(&problem, &cpu, !in_f32) == wanted, "{case} {cpu:?}");
                }
                // Without dropout, A is multiplied in groups of panels. Panels of A or B fit L1 or do not, blocks of B fit L2, or
                // do not and come from L3.
                let plain = Problem::new(spec, EpilogueKind::None);
                let wanted_plain = compute(&plain, &Cpu::new(widest, 1).expect("a thread"), false);
                for (l1, l2, l3) in [(4, 16, 16), (25, 100, 100), (48, 65536, 65536), (32, 512, 32768), (16, 64, 8192)]
                {
                    let cpu = cpu(1).with_caches(Caches { l1: l1 << 10, l2: l2 << 10, l3: l3 << 10 });
                    for packed in [false, true] {
                        assert!(compute(&plain, &cpu, packed) == wanted_plain, "{case} {cpu:?}, packed: {packed}");
                    }
                }
                // Rows a multiple of 4 KiB apart are packed, f32 rows slightly further apart are read in place.
                for (lda, ldb) in [(2048, 2052), (2052, 2048)] {
                    let far = Problem {
                        a: spread(&problem.a, spec.lda, lda),
                        b: spread(&problem.b, spec.ldb, ldb),
                        spec: spec.with_leading_dimensions(lda, ldb, n),
                        ..Problem::new(spec, problem.kind)
                    };
                    assert!(compute(&far, &cpu(2), false) == wanted, "{case} {isa}, {lda}, {ldb}");
                }
            }
        }
    }
}

/// ‖C - exact‖ / ‖exact‖ of 64 x 64 sums of `k` products, whose operands `number` draws.
fn error(precision: Precision, k: usize, number: impl Fn(&mut Stream) -> f64) -> f64 {
    let mut stream = Stream::new(11, [0x6572_726f, 0, 0]);
    let mut numbers = |len: usize| (0..len).map(|_| number(&mut stream) as f32).collect::<Vec<f32>>();
    let (a, b) = (numbers(64 * k), numbers(64 * k));
    let spec = Gemm::nt(64, 64, k).with_precision(precision);
    let exact = reference::product::<f64>(&spec, &widen(&a), &widen(&b));
    let mut c = vec![f32::NAN; 64 * 64];
    gemm(&Cpu::new(*Isa::real().last().unwrap(), 1).unwrap(), &spec, &a, &b, &mut c, Epilogue::NONE);
    let squares = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>();
    (squares(&mut c.iter().zip(&exact).map(|(&c, e)| f64::from(c) - e)) / squares(&mut exact.iter().copied())).sqrt()
}

#[test]
fn errors_are_those_of_the_table() {
    for k in [768, 3072] {
        let normal = |stream: &mut Stream| stream.normal();
        let wide = |stream: &mut Stream| stream.normal() * 2f64.powi((stream.next_u32() % 17) as i32 - 8);
        for number in [&normal as &dyn Fn(&mut Stream) -> f64, &wide] {
            let found = Precision::ALL.map(|precision| error(precision, k, number));
            println!("k = {k}: f32 {:.1e}, bf16 {:.1e}, x3 {:.1e}, x6 {:.1e}", found[0], found[1], found[2], found[3]);
            let [f32, bf16, three, six] = found;
            assert!((1.5e-3..3.5e-3).contains(&bf16) && (3e-6..6e-6).contains(&three) && six < 5e-7, "{found:?}");
            assert!(six < 1.4 * f32, "{found:?}");
        }
    }
}

#[test]
fn numbers_at_the_ends_of_the_range() {
    for cpu in cpus_with_tiles() {
        let product = |precision: Precision, a: f32, b: f32| {
            let mut c = [f32::NAN];
            gemm(&cpu, &Gemm::nt(1, 1, 1).with_precision(precision), &[a], &[b], &mut c, Epilogue::NONE);
            c[0]
        };
        let case = format!("{cpu}, {} tiles", cpu.tiles().kind());
        // f32::MAX is nearer to 2^128 than to the greatest bf16.
        assert_eq!(product(Precision::Bf16, f32::MAX, 0.5), f32::INFINITY, "{case}");
        for split in [Precision::Bf16x3, Precision::Bf16x6] {
            let relative = f64::from(product(split, f32::MAX, -0.5)) / (f64::from(f32::MAX) * -0.5);
            assert!((relative - 1.0).abs() < 1e-5, "{case}, {split}: {relative}");
            assert!(product(split, f32::INFINITY, 1.0).is_nan(), "{case}, {split}");
        }
        for precision in ON_TILES {
            assert_eq!(
                product(precision, f32::MIN_POSITIVE / 2.0, 1.0),
                0.0,
                "{case}, {precision}: denormals are zero"
            );
            assert!(product(precision, f32::NAN, 1.0).is_nan(), "{case}, {precision}");
        }
    }
}

fn batches_equal_products_of<X: Element>(cpu: &Cpu, precision: Precision) {
    let (m, n, k, count) = (19, 33, 41, 3);
    for (form, a, b) in FORMS {
        let spec = Gemm::new(m, n, k, a, b).with_precision(precision);
        let (a, b) = (uniform::<X>(1, count * m * k, 1.0), uniform::<X>(2, count * n * k, 1.0));
        let behind = Batch::contiguous(count, &spec);
        // Column blocks of wider rows, like the heads of attention; one B for all products.
        let beside = Batch { stride_c: n + 1, stride_b: 0, ..behind };
        for (spec, batch) in [(spec, behind), (Gemm { ldc: count * (n + 1), ..spec }, beside)] {
            let mut c = Guarded::<f32>::poisoned((count - 1) * batch.stride_c + spec.spans()[2]);
            let mut wanted = c.to_vec();
            batched(cpu, &spec, &batch, &a, &b, &mut c);
            let case = format!("{cpu}, {} tiles, {form} {precision} {batch:?}", cpu.tiles().kind());
            c.assert_intact(&case);
            for i in 0..count {
                let (a, b) = (&a[i * batch.stride_a..], &b[i * batch.stride_b..]);
                gemm(cpu, &spec, a, b, &mut wanted[i * batch.stride_c..], Epilogue::NONE);
            }
            super::assert_same_bits(&case, &c, &wanted);
        }
    }
}

#[test]
fn batches_equal_their_products() {
    for (cpu, precision) in cpus_with_tiles().iter().flat_map(|cpu| Precision::ALL.map(|precision| (cpu, precision))) {
        batches_equal_products_of::<f32>(cpu, precision);
        batches_equal_products_of::<bf16>(cpu, precision);
    }
}

#[test]
fn panels_of_another_size_precision_or_instruction_set_are_refused() {
    let (scalar, f32) = (IsaKind::Scalar, Precision::F32);
    let cpu = Cpu::new(Isa::new(scalar).unwrap(), 1).unwrap();
    let (packed, narrow) = (PackedB::new(cpu.isa(), 8, 6), PackedB::with_precision(cpu.isa(), Precision::Bf16, 8, 6));
    assert_eq!(packed.check(scalar, f32, 8, 6), Ok(()));
    let size = PackMismatch::Size { packed: (8, 6), wanted: (6, 8) };
    assert_eq!(packed.check(scalar, f32, 6, 8), Err(size));
    let isa = PackMismatch::Isa { packed: scalar, wanted: IsaKind::Avx2 };
    assert_eq!(packed.check(IsaKind::Avx2, f32, 8, 6), Err(isa));
    let precision = PackMismatch::Precision { packed: Precision::Bf16, wanted: f32 };
    assert_eq!(narrow.check(scalar, f32, 8, 6), Err(precision));
    let refused = |cpu: &Cpu, (k, n): (usize, usize), panels: &PackedB, says: [&str; 2]| {
        let product =
            || gemm_packed(cpu, &Gemm::nn(1, n, k), &[1f32; 8][..k], panels, &mut [0f32; 8][..n], Epilogue::NONE);
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(product)).expect_err("a refusal");
        let message = refused.downcast_ref::<String>().expect("a message");
        assert!(says.iter().all(|part| message.contains(part)), "{message}");
    };
    refused(&cpu, (6, 8), &packed, ["packed as 8 x 6", "6 x 8"]);
    refused(&cpu, (8, 6), &narrow, ["packed for bf16", "but the product is in f32"]);
    for isa in Isa::testable().into_iter().skip(1) {
        refused(&Cpu::new(isa, 1).unwrap(), (8, 6), &packed, ["packed for scalar", isa.kind().name()]);
    }
    // Half the bytes of f32, and panels of 32 columns of all k.
    assert_eq!((narrow.bytes(), narrow.size()), (32 * 32 * 2, (8, 6)));
    assert_eq!("bf16x3".parse(), Ok(Precision::Bf16x3));
    let error = "fp8".parse::<Precision>().unwrap_err();
    assert_eq!(error.to_string(), "unknown precision \"fp8\"; expected f32, bf16, bf16x3 or bf16x6");
}
