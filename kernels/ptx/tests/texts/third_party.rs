//! The simulator runs PTX that this project did not write: what Triton and nvcc make of plain kernels
//! (`tests/texts/third_party`) gives what f64 gives, without a finding, under every schedule and completion; and the
//! same text with a barrier, a wait or a fence taken out is found out.

use half::bf16;
use ptx::num::philox::Stream;
use ptx::{
    Launch,
    sim::{Argument, Completion, Error, Memory, Module, Options, Report, Schedule, Swizzle, TensorMap, TensorType},
};

fn text(name: &str) -> String {
    let path = format!("{}/tests/texts/third_party/{name}.ptx", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn draw(seed: u64, count: usize) -> Vec<f32> {
    let mut stream = Stream::new(seed, [7, 7, 7]);
    (0..count).map(|_| 2.0 * stream.next_f32() - 1.0).collect()
}

fn short(values: &[f32]) -> Vec<bf16> {
    values.iter().map(|value| bf16::from_f32(*value)).collect()
}

fn wide(values: &[bf16]) -> Vec<f64> {
    values.iter().map(|value| value.to_f64()).collect()
}

/// Every schedule with latest completion, and every completion with one schedule.
fn options() -> Vec<Options> {
    // Triton leaves out two fences: between the initialization of an mbarrier and its first use by a copy, and between
    // cp.async and wgmma.
    let base = Options { init_fence: false, copy_fence: false, ..Options::default() };
    let schedules = Schedule::FIVE.map(|schedule| Options { schedule, ..base });
    let completions = [Completion::Earliest, Completion::Random(1), Completion::Random(2)];
    let random = completions.map(|completion| Options { schedule: Schedule::Random(3), completion, ..base });
    schedules.into_iter().chain(random).collect()
}

/// A kernel with its launch and its data; makes fresh memory for every run.
struct Kernel<'a> {
    text: String,
    entry: &'a str,
    launch: Launch,
    /// Allocates; returns arguments and the address of the output.
    set_up: &'a dyn Fn(&mut Memory) -> (Vec<Argument>, u64),
}

impl Kernel<'_> {
    fn run(&self, options: &Options) -> Result<(Report, Memory, u64), Error> {
        let mut memory = Memory::new();
        let (arguments, out) = (self.set_up)(&mut memory);
        let module = Module::parse(&self.text)?;
        let report = module.launch(self.entry, self.launch, &arguments, &mut memory, options)?;
        Ok((report, memory, out))
    }

    /// Runs under all options; every output element must be within `bound` of `wanted`.
    #[track_caller]
    fn agrees<T: bytemuck::Pod>(&self, wanted: &[f64], bound: f64, number: fn(T) -> f64) {
        for options in options() {
            let at = format!("{} {:?} {:?}", self.entry, options.schedule, options.completion);
            let (report, memory, out) = self.run(&options).unwrap_or_else(|error| panic!("{at}: {error}"));
            report.clean().unwrap_or_else(|findings| panic!("{at}: {findings}"));
            let values = memory.read::<T>(out).unwrap_or_else(|error| panic!("{at}: {error}"));
            assert_eq!(values.len(), wanted.len(), "{at}");
            for (i, (value, wanted)) in values.into_iter().map(number).zip(wanted).enumerate() {
                assert!((value - wanted).abs() <= bound, "{at}: element {i} is {value}, wanted {wanted} ± {bound}");
            }
        }
    }

    /// The text with every line that contains `pattern` taken out one at a time: each must be found out under some
    /// options, but for as many as `harmless`.
    #[track_caller]
    fn misses(&self, pattern: &str, harmless: usize) {
        let lines: Vec<&str> = self.text.lines().collect();
        let places: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].contains(pattern)).collect();
        assert!(!places.is_empty(), "{} has no `{pattern}`", self.entry);
        let mut survivors = Vec::new();
        for place in &places {
            let mut lines = lines.clone();
            lines[*place] = "";
            let broken = Kernel { text: lines.join("\n"), ..*self };
            let found = options().iter().any(|options| match broken.run(options) {
                Ok((report, ..)) => !report.findings.is_empty(),
                Err(_) => true,
            });
            if !found {
                survivors.push(format!("line {}: {}", place + 1, self.text.lines().nth(*place).unwrap_or_default()));
            }
        }
        assert!(survivors.len() <= harmless, "{}: nobody misses {survivors:#?}", self.entry);
    }
}

fn launch(grid: [u32; 3], threads: u32, shared_bytes: u32) -> Launch {
    Launch { grid, block: [threads, 1, 1], shared_bytes }
}

/// A · B of row-major matrices in f64.
fn product(a: &[f64], b: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let mut c = vec![0.0; m * n];
    for i in 0..m {
        for l in 0..k {
            (0..n).for_each(|j| c[i * n + j] += a[i * k + l] * b[l * n + j]);
        }
    }
    c
}

/// Half a unit in the last place of bf16 at the greatest value, and a little for f32 sums.
fn bf16_bound(wanted: &[f64]) -> f64 {
    wanted.iter().fold(0.0_f64, |most, value| most.max(value.abs())) * f64::exp2(-8.0)
}

const SIZES: [usize; 3] = [96, 128, 80];

fn triton_gemm(name: &str, shared: u32, check: impl Fn(&Kernel<'_>, &[f64])) {
    let [m, n, k] = SIZES;
    let (a, b) = (short(&draw(1, m * k)), short(&draw(2, k * n)));
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate("c", 2 * m * n);
        let mut arguments: Vec<Argument> =
            [memory.allocate_from("a", &a), memory.allocate_from("b", &b), out].map(Argument::U64).to_vec();
        arguments.extend(SIZES.map(|size| Argument::U32(size as u32)));
        arguments.extend([Argument::U64(0), Argument::U64(0)]);
        (arguments, out)
    };
    let kernel = Kernel { text: text(name), entry: "gemm", launch: launch([2, 2, 1], 128, shared), set_up: &set_up };
    check(&kernel, &product(&wide(&a), &wide(&b), SIZES));
}

#[test]
fn gemm_of_triton_for_sm_80() {
    triton_gemm("gemm_sm80", 16384, |kernel, wanted| {
        kernel.agrees::<bf16>(wanted, bf16_bound(wanted), bf16::to_f64);
        kernel.misses("cp.async.wait_group", 0);
        // One of them separates two stages of the prologue, which touch different memory.
        kernel.misses("bar.sync", 1);
    });
}

#[test]
fn gemm_of_triton_for_sm_90a_with_wgmma() {
    triton_gemm("gemm_sm90a", 24576, |kernel, wanted| {
        kernel.agrees::<bf16>(wanted, bf16_bound(wanted), bf16::to_f64);
        kernel.misses("wgmma.wait_group", 0);
        kernel.misses("wgmma.fence", 0);
        kernel.misses("cp.async.wait_group", 0);
        // The manual requires a fence between cp.async and wgmma, which Triton omits.
        let (report, ..) = kernel.run(&Options::default()).expect("it runs");
        assert!(report.clean().expect_err("the fence is missing").contains("without fence.proxy.async"));
    });
}

#[test]
fn gemm_of_triton_for_sm_90a_with_tensor_maps() {
    let sizes @ [m, n, k] = [256, 128, 320];
    let (a, b) = (short(&draw(1, m * k)), short(&draw(2, k * n)));
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate("c", 2 * m * n);
        let (a, b) = (memory.allocate_from("a", &a), memory.allocate_from("b", &b));
        let mut arguments = Vec::new();
        for (address, rows, columns, tile) in [(a, m, k, [128, 64]), (b, k, n, [64, 64]), (out, m, n, [128, 64])] {
            let shape = [rows as u64, columns as u64];
            let map = TensorMap::matrix(address, TensorType::Bf16, shape, tile, Swizzle::B128).expect("the map fits");
            arguments.push(Argument::TensorMap(map));
            arguments.extend(shape.map(|size| Argument::U32(size as u32)));
            arguments.extend([Argument::U64(columns as u64), Argument::U64(1)]);
        }
        arguments.extend(sizes.map(|size| Argument::U32(size as u32)));
        arguments.extend([Argument::U64(0), Argument::U64(0)]);
        (arguments, out)
    };
    let launch = launch([2, 1, 1], 128, 98328);
    let kernel = Kernel { text: text("gemm_tma_sm90a"), entry: "gemm_tma", launch, set_up: &set_up };
    let wanted = product(&wide(&a), &wide(&b), sizes);
    kernel.agrees::<bf16>(&wanted, bf16_bound(&wanted), bf16::to_f64);
    // The manual requires a fence after the initialization of the barriers, which Triton omits.
    let (report, ..) = kernel.run(&Options::default()).expect("it runs");
    assert!(report.clean().expect_err("the fence is missing").contains("no fence has made visible"));
    kernel.misses("mbarrier.arrive.expect_tx", 0);
    kernel.misses("fence.proxy.async", 0);
    kernel.misses("cp.async.bulk.wait_group", 0);
}

fn triton_attention(name: &str, shared: u32) {
    let (heads, s, d) = (2, 100, 64);
    let count = heads * s * d;
    let [q, k, v] = [1, 2, 3].map(|seed| short(&draw(seed, count)));
    let scale = 0.125_f32;
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate("o", 2 * count);
        let mut arguments: Vec<Argument> =
            [memory.allocate_from("q", &q), memory.allocate_from("k", &k), memory.allocate_from("v", &v), out]
                .map(Argument::U64)
                .to_vec();
        arguments.extend([Argument::U32(s as u32), Argument::F32(scale), Argument::U64(0), Argument::U64(0)]);
        (arguments, out)
    };
    let mut wanted = vec![0.0; count];
    for head in 0..heads {
        let at = |row: usize| (head * s + row) * d..(head * s + row + 1) * d;
        for i in 0..s {
            let query = wide(&q[at(i)]);
            let scores: Vec<f64> = (0..s)
                .map(|j| query.iter().zip(wide(&k[at(j)])).map(|(x, y)| x * y).sum::<f64>() * f64::from(scale))
                .collect();
            let most = scores.iter().fold(f64::MIN, |most, score| most.max(*score));
            let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
            for (j, score) in scores.iter().enumerate() {
                let weight = (score - most).exp() / total;
                wanted[at(i)].iter_mut().zip(wide(&v[at(j)])).for_each(|(out, value)| *out += weight * value);
            }
        }
    }
    let launch = launch([2, heads as u32, 1], 128, shared);
    let kernel = Kernel { text: text(name), entry: "attention", launch, set_up: &set_up };
    // Probabilities are rounded to bf16 before the second product, like the output.
    kernel.agrees::<bf16>(&wanted, 2.0 * bf16_bound(&wanted), bf16::to_f64);
}

#[test]
fn attention_of_triton_for_sm_80() {
    triton_attention("attention_sm80", 16384);
}

#[test]
fn attention_of_triton_for_sm_90a() {
    triton_attention("attention_sm90a", 40960);
}

/// Softmax of the rows of x.
fn softmax(x: &[f32], columns: usize) -> Vec<f64> {
    x.chunks(columns)
        .flat_map(|row| {
            let most = row.iter().fold(f64::MIN, |most, value| most.max(f64::from(*value)));
            let e: Vec<f64> = row.iter().map(|value| (f64::from(*value) - most).exp()).collect();
            let total: f64 = e.iter().sum();
            e.into_iter().map(move |e| e / total)
        })
        .collect()
}

#[test]
fn softmax_of_triton_and_of_nvcc() {
    let (rows, columns) = (3, 777);
    let x: Vec<f32> = draw(5, rows * columns).iter().map(|value| 6.0 * value).collect();
    let wanted = softmax(&x, columns);
    let bound = wanted.iter().fold(0.0_f64, |most, value| most.max(*value)) * 16.0 * f64::from(f32::EPSILON);
    let set_up = |extra: usize| {
        let x = &x;
        move |memory: &mut Memory| {
            let out = memory.allocate("y", 4 * x.len());
            let mut arguments = vec![Argument::U64(memory.allocate_from("x", x)), Argument::U64(out)];
            arguments.push(Argument::U32(columns as u32));
            arguments.extend(std::iter::repeat_n(Argument::U64(0), extra));
            (arguments, out)
        }
    };
    let grid = [rows as u32, 1, 1];
    let (triton, nvcc) = (set_up(2), set_up(0));
    let kernel =
        Kernel { text: text("softmax_sm80"), entry: "softmax", launch: launch(grid, 128, 16), set_up: &triton };
    kernel.agrees::<f32>(&wanted, bound, f64::from);
    kernel.misses("bar.sync", 0);
    for target in ["nvcc_sm80", "nvcc_sm90a"] {
        let kernel = Kernel { text: text(target), entry: "softmax", launch: launch(grid, 96, 0), set_up: &nvcc };
        kernel.agrees::<f32>(&wanted, bound, f64::from);
    }
}

fn triton_layer_norm(name: &str, threads: u32) {
    let (rows, columns) = (3, 600);
    let (x, gain, bias) = (short(&draw(6, rows * columns)), draw(7, columns), draw(8, columns));
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate("y", 2 * rows * columns);
        let mut arguments: Vec<Argument> = [
            memory.allocate_from("x", &x),
            memory.allocate_from("gain", &gain),
            memory.allocate_from("bias", &bias),
            out,
        ]
        .map(Argument::U64)
        .to_vec();
        arguments.extend([Argument::U32(columns as u32), Argument::F32(1e-5), Argument::U64(0), Argument::U64(0)]);
        (arguments, out)
    };
    let wanted: Vec<f64> = x
        .chunks(columns)
        .flat_map(|row| {
            let row = wide(row);
            let mean = row.iter().sum::<f64>() / columns as f64;
            let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / columns as f64;
            let rstd = 1.0 / (variance + 1e-5).sqrt();
            let normal: Vec<f64> = row.iter().map(|value| (value - mean) * rstd).collect();
            normal
                .into_iter()
                .zip(gain.iter().zip(&bias))
                .map(|(n, (g, b))| n * f64::from(*g) + f64::from(*b))
                .collect::<Vec<_>>()
        })
        .collect();
    let launch = launch([rows as u32, 1, 1], threads, 2048);
    let kernel = Kernel { text: text(name), entry: "layer_norm", launch, set_up: &set_up };
    kernel.agrees::<bf16>(&wanted, bf16_bound(&wanted), bf16::to_f64);
}

#[test]
fn layer_norm_of_triton() {
    triton_layer_norm("layer_norm_sm80", 128);
    triton_layer_norm("layer_norm_sm90a", 256);
}

#[test]
fn reductions_of_triton_and_of_nvcc() {
    let n = 5000;
    let x = draw(9, n);
    let wanted = [x.iter().map(|value| f64::from(*value)).sum::<f64>()];
    let bound = n as f64 * f64::from(f32::EPSILON);
    let set_up = |extra: usize, partial: bool| {
        let x = &x;
        move |memory: &mut Memory| {
            let out = memory.allocate_from("out", &[0.0_f32]);
            let mut arguments = vec![Argument::U64(memory.allocate_from("x", x))];
            if partial {
                arguments.push(Argument::U64(memory.allocate("partial", 4 * 5)));
            }
            arguments.extend([Argument::U64(out), Argument::U32(n as u32)]);
            arguments.extend(std::iter::repeat_n(Argument::U64(0), extra));
            (arguments, out)
        }
    };
    let (triton, nvcc, last) = (set_up(2, false), set_up(0, false), set_up(0, true));
    let kernel =
        Kernel { text: text("total_sm80"), entry: "total", launch: launch([5, 1, 1], 128, 16), set_up: &triton };
    kernel.agrees::<f32>(&wanted, bound, f64::from);
    for target in ["nvcc_sm80", "nvcc_sm90a"] {
        let (text, grid) = (text(target), [5, 1, 1]);
        let kernel = Kernel { text: text.clone(), entry: "reduce", launch: launch(grid, 192, 0), set_up: &nvcc };
        kernel.agrees::<f32>(&wanted, bound, f64::from);
        let kernel = Kernel { text, entry: "reduce_last", launch: launch(grid, 256, 0), set_up: &last };
        kernel.agrees::<f32>(&wanted, bound, f64::from);
    }
}

#[test]
fn histogram_of_nvcc() {
    let x: Vec<u8> = draw(10, 3001).iter().map(|value| (value * 120.0 + 120.0) as u8).collect();
    let mut wanted = vec![0.0; 64];
    x.iter().for_each(|value| wanted[usize::from(value & 63)] += 1.0);
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate_from("counts", &[0_u32; 64]);
        let x = memory.allocate_from("x", &x);
        (vec![Argument::U64(x), Argument::U64(out), Argument::U32(3001)], out)
    };
    for target in ["nvcc_sm80", "nvcc_sm90a"] {
        let launch = launch([3, 1, 1], 96, 0);
        let kernel = Kernel { text: text(target), entry: "histogram", launch, set_up: &set_up };
        kernel.agrees::<u32>(&wanted, 0.0, f64::from);
    }
}

#[test]
fn transpositions_of_triton_and_of_nvcc() {
    let (rows, columns) = (50, 71);
    let x = draw(11, rows * columns);
    let wanted: Vec<f64> = (0..rows * columns).map(|i| f64::from(x[i % rows * columns + i / rows])).collect();
    let set_up = |extra: usize| {
        let x = &x;
        move |memory: &mut Memory| {
            let out = memory.allocate("y", 4 * x.len());
            let mut arguments = vec![Argument::U64(memory.allocate_from("x", x)), Argument::U64(out)];
            arguments.extend([rows, columns].map(|size| Argument::U32(size as u32)));
            arguments.extend(std::iter::repeat_n(Argument::U64(0), extra));
            (arguments, out)
        }
    };
    let (triton, nvcc) = (set_up(2), set_up(0));
    let kernel = Kernel {
        text: text("transpose_sm80"),
        entry: "transpose",
        launch: launch([2, 3, 1], 128, 4096),
        set_up: &triton,
    };
    kernel.agrees::<f32>(&wanted, 0.0, f64::from);
    kernel.misses("bar.sync", 0);
    for target in ["nvcc_sm80", "nvcc_sm90a"] {
        let launch = Launch { grid: [3, 2, 1], block: [32, 8, 1], shared_bytes: 0 };
        let kernel = Kernel { text: text(target), entry: "transpose", launch, set_up: &nvcc };
        kernel.agrees::<f32>(&wanted, 0.0, f64::from);
        // The padded tile is free of conflicts.
        let (report, ..) = kernel.run(&Options::default()).expect("it runs");
        let shared = ptx::sim::SiteMemory::Shared;
        assert!(report.metrics.sites.iter().filter(|site| site.memory == shared).all(|site| site.worst == 1));
    }
}

#[test]
fn pairs_and_switches_of_nvcc() {
    let n = 300;
    let x = short(&draw(12, 2 * n));
    let round = |value: f64| bf16::from_f64(value).to_f64();
    let period = 7;
    let wanted: Vec<f64> = (0..2 * n)
        .map(|k| {
            let i = k / 2;
            // Adjacent threads of a block swap elements; blocks have 64 threads and the last one is partial.
            let from = i ^ 1;
            let value = if from < n { x[2 * from + k % 2].to_f64() } else { 0.0 };
            match i / period % 5 {
                0 => round(2.0 * value + 1.0),
                1 => round(value + 1.0),
                2 => round(value * value),
                3 => -value,
                _ => value.max(1.0),
            }
        })
        .collect();
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate("y", 4 * n);
        let x = memory.allocate_from("x", &x);
        (vec![Argument::U64(x), Argument::U64(out), Argument::U32(n as u32), Argument::U32(period as u32)], out)
    };
    for target in ["nvcc_sm80", "nvcc_sm90a"] {
        let launch = launch([5, 1, 1], 64, 256);
        let kernel = Kernel { text: text(target), entry: "mixed", launch, set_up: &set_up };
        kernel.agrees::<bf16>(&wanted, 0.0, bf16::to_f64);
    }
}

#[test]
fn a_ring_of_tiles_in_cuda_with_inline_ptx() {
    let sizes @ [m, n, k] = [128, 64, 704];
    let (a, b) = (short(&draw(21, m * k)), short(&draw(22, n * k)));
    let set_up = |memory: &mut Memory| {
        let out = memory.allocate("c", 4 * m * n);
        let map = |address, rows: usize, tile| {
            let map = TensorMap::matrix(address, TensorType::Bf16, [rows as u64, k as u64], [tile, 64], Swizzle::B128);
            Argument::TensorMap(map.expect("the map fits"))
        };
        let (a, b) = (memory.allocate_from("a", &a), memory.allocate_from("b", &b));
        let sizes = [n, k].map(|size| Argument::U32(size as u32));
        (vec![map(a, m, 128), map(b, n, 64), Argument::U64(out), sizes[0], sizes[1]], out)
    };
    let mut transposed = vec![0.0; n * k];
    wide(&b).iter().enumerate().for_each(|(i, value)| transposed[i % k * n + i / k] = *value);
    let wanted = product(&wide(&a), &transposed, sizes);
    let launch = launch([1, 1, 1], 384, 3 * 24576);
    let kernel = Kernel { text: text("ring_sm90a"), entry: "ring", launch, set_up: &set_up };
    kernel.agrees::<f32>(&wanted, 1e-4, f64::from);
    // This one has all its fences.
    let (report, ..) = kernel.run(&Options::default()).expect("it runs");
    report.clean().unwrap_or_else(|findings| panic!("{findings}"));
    // No thread waits for the last arrivals at the barriers of empty stages.
    kernel.misses("mbarrier.arrive", 1);
    // The loop is unrolled, and only the first product of a warp finds its registers touched by something else.
    kernel.misses("wgmma.fence", 4);
    for instruction in ["wgmma.commit", "wgmma.wait", "setmaxnreg.dec", "bar.sync", "bra AGAIN"] {
        kernel.misses(instruction, 0);
    }
}
