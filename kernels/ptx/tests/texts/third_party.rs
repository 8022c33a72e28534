//! The simulator runs PTX that this project did not write: what Triton and nvcc make of plain kernels
//! (`tests/texts/third_party`) gives what f64 gives, without a finding, under every schedule and completion; and the
//! same text with a barrier, a wait or a fence taken out is found out.

use albert_num::philox::Stream;
use half::bf16;
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

/// An argument before there is memory; the last buffer that is not an input is the output.
#[derive(Clone)]
enum Given {
    Value(Argument),
    Input(Vec<u8>),
    /// Bytes that nothing has written.
    Unwritten(usize),
    Zeros(usize),
    /// A tensor map of a buffer of bf16, with its shape and tile.
    Map(Box<Given>, [usize; 2], [u32; 2]),
}

fn input<T: bytemuck::NoUninit>(values: &[T]) -> Given {
    Given::Input(bytemuck::cast_slice(values).to_vec())
}

fn number(value: usize) -> Given {
    Given::Value(Argument::U32(value as u32))
}

/// Triton's kernels take two more pointers, which these do not use.
fn triton(mut arguments: Vec<Given>) -> Vec<Given> {
    arguments.extend([Given::Value(Argument::U64(0)), Given::Value(Argument::U64(0))]);
    arguments
}

/// A kernel with its launch and its data; makes fresh memory for every run.
#[derive(Clone)]
struct Kernel {
    text: String,
    entry: &'static str,
    launch: Launch,
    arguments: Vec<Given>,
}

fn kernel(name: &str, entry: &'static str, launch: Launch, arguments: Vec<Given>) -> Kernel {
    Kernel { text: text(name), entry, launch, arguments }
}

impl Kernel {
    fn run(&self, options: &Options) -> Result<(Report, Memory, u64), Error> {
        let (mut memory, mut out) = (Memory::new(), 0);
        let mut place = |given: &Given| {
            if let Given::Input(bytes) = given {
                return memory.allocate_from("an input", bytes);
            }
            out = match given {
                Given::Unwritten(bytes) => memory.allocate("the output", *bytes),
                Given::Zeros(bytes) => memory.allocate_from("the output", &vec![0_u8; *bytes]),
                _ => unreachable!("no buffer"),
            };
            out
        };
        let argument = |given: &Given| match given {
            Given::Value(value) => *value,
            Given::Map(buffer, shape, tile) => {
                let shape = shape.map(|size| size as u64);
                let map = TensorMap::matrix(place(buffer), TensorType::Bf16, shape, *tile, Swizzle::B128);
                Argument::TensorMap(map.expect("the map fits"))
            }
            buffer => Argument::U64(place(buffer)),
        };
        let arguments: Vec<Argument> = self.arguments.iter().map(argument).collect();
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
            let broken = Kernel { text: lines.join("\n"), ..self.clone() };
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

    /// Text of the findings where every fence of the manual is required.
    #[track_caller]
    fn lacks(&self, finding: &str) {
        let (report, ..) = self.run(&Options::default()).expect("it runs");
        let findings = report.clean().expect_err("a fence is missing");
        assert!(findings.contains(finding), "{findings}");
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

const NVCC: [&str; 2] = ["nvcc_sm80", "nvcc_sm90a"];

const SIZES: [usize; 3] = [96, 128, 80];

/// Triton's product for a target, which agrees with f64.
fn triton_gemm(name: &str, shared: u32) -> Kernel {
    let [m, n, k] = SIZES;
    let (a, b) = (short(&draw(1, m * k)), short(&draw(2, k * n)));
    let mut arguments = vec![input(&a), input(&b), Given::Unwritten(2 * m * n)];
    arguments.extend(SIZES.map(number));
    let kernel = kernel(name, "gemm", launch([2, 2, 1], 128, shared), triton(arguments));
    let wanted = product(&wide(&a), &wide(&b), SIZES);
    kernel.agrees::<bf16>(&wanted, bf16_bound(&wanted), bf16::to_f64);
    kernel
}

#[test]
fn gemm_of_triton_for_sm_80() {
    let kernel = triton_gemm("gemm_sm80", 16384);
    kernel.misses("cp.async.wait_group", 0);
    // One of them separates two stages of the prologue, which touch different memory.
    kernel.misses("bar.sync", 1);
}

#[test]
fn gemm_of_triton_for_sm_90a_with_wgmma() {
    let kernel = triton_gemm("gemm_sm90a", 24576);
    for instruction in ["wgmma.wait_group", "wgmma.fence", "cp.async.wait_group"] {
        kernel.misses(instruction, 0);
    }
    // The manual requires a fence between cp.async and wgmma, which Triton omits.
    kernel.lacks("without fence.proxy.async");
}

#[test]
fn gemm_of_triton_for_sm_90a_with_tensor_maps() {
    let sizes @ [m, n, k] = [256, 128, 320];
    let (a, b) = (short(&draw(1, m * k)), short(&draw(2, k * n)));
    let mut arguments = Vec::new();
    let out = Given::Unwritten(2 * m * n);
    for (buffer, shape, tile) in
        [(input(&a), [m, k], [128, 64]), (input(&b), [k, n], [64, 64]), (out, [m, n], [128, 64])]
    {
        let stride = Given::Value(Argument::U64(shape[1] as u64));
        arguments.push(Given::Map(Box::new(buffer), shape, tile));
        arguments.extend(shape.map(number));
        arguments.extend([stride, Given::Value(Argument::U64(1))]);
    }
    arguments.extend(sizes.map(number));
    let kernel = kernel("gemm_tma_sm90a", "gemm_tma", launch([2, 1, 1], 128, 98328), triton(arguments));
    let wanted = product(&wide(&a), &wide(&b), sizes);
    kernel.agrees::<bf16>(&wanted, bf16_bound(&wanted), bf16::to_f64);
    // The manual requires a fence after the initialization of the barriers, which Triton omits.
    kernel.lacks("no fence has made visible");
    for instruction in ["mbarrier.arrive.expect_tx", "fence.proxy.async", "cp.async.bulk.wait_group"] {
        kernel.misses(instruction, 0);
    }
}

fn triton_attention(name: &str, shared: u32) {
    let (heads, s, d) = (2, 100, 64);
    let count = heads * s * d;
    let [q, k, v] = [1, 2, 3].map(|seed| short(&draw(seed, count)));
    let scale = 0.125_f32;
    let [out, scaled] = [Given::Unwritten(2 * count), Given::Value(Argument::F32(scale))];
    let arguments = triton(vec![input(&q), input(&k), input(&v), out, number(s), scaled]);
    let mut wanted = vec![0.0; count];
    for head in 0..heads {
        let at = |row: usize| (head * s + row) * d..(head * s + row + 1) * d;
        for i in 0..s {
            let query = wide(&q[at(i)]);
            let scores: Vec<f64> = (0..s)
                .map(|j| query.iter().zip(wide(&k[at(j)])).map(|(x, y)| x * y).sum::<f64>() * f64::from(scale))
                .collect();
            for (j, weight) in softmax(&scores).into_iter().enumerate() {
                wanted[at(i)].iter_mut().zip(wide(&v[at(j)])).for_each(|(out, value)| *out += weight * value);
            }
        }
    }
    let kernel = kernel(name, "attention", launch([2, heads as u32, 1], 128, shared), arguments);
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

fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().fold(f64::MIN, |most, value| most.max(*value));
    let total: f64 = row.iter().map(|value| (value - most).exp()).sum();
    row.iter().map(|value| (value - most).exp() / total).collect()
}

#[test]
fn softmax_of_triton_and_of_nvcc() {
    let (rows, columns) = (3, 777);
    let x: Vec<f32> = draw(5, rows * columns).iter().map(|value| 6.0 * value).collect();
    let doubles: Vec<f64> = x.iter().copied().map(f64::from).collect();
    let wanted: Vec<f64> = doubles.chunks(columns).flat_map(softmax).collect();
    let bound = wanted.iter().fold(0.0_f64, |most, value| most.max(*value)) * 16.0 * f64::from(f32::EPSILON);
    let arguments = vec![input(&x), Given::Unwritten(4 * x.len()), number(columns)];
    let grid = [rows as u32, 1, 1];
    let tritons = kernel("softmax_sm80", "softmax", launch(grid, 128, 16), triton(arguments.clone()));
    tritons.agrees::<f32>(&wanted, bound, f64::from);
    tritons.misses("bar.sync", 0);
    for target in NVCC {
        kernel(target, "softmax", launch(grid, 96, 0), arguments.clone()).agrees::<f32>(&wanted, bound, f64::from);
    }
}

fn triton_layer_norm(name: &str, threads: u32) {
    let (rows, columns) = (3, 600);
    let (x, gain, bias) = (short(&draw(6, rows * columns)), draw(7, columns), draw(8, columns));
    let [out, epsilon] = [Given::Unwritten(2 * rows * columns), Given::Value(Argument::F32(1e-5))];
    let arguments = triton(vec![input(&x), input(&gain), input(&bias), out, number(columns), epsilon]);
    let mut wanted = Vec::new();
    for row in x.chunks(columns).map(wide) {
        let mean = row.iter().sum::<f64>() / columns as f64;
        let variance = row.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / columns as f64;
        let normal = row.iter().map(|value| (value - mean) / (variance + 1e-5).sqrt());
        wanted.extend(normal.zip(gain.iter().zip(&bias)).map(|(n, (g, b))| n * f64::from(*g) + f64::from(*b)));
    }
    let kernel = kernel(name, "layer_norm", launch([rows as u32, 1, 1], threads, 2048), arguments);
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
    let arguments = vec![input(&x), Given::Zeros(4), number(n)];
    let partial = vec![input(&x), Given::Unwritten(4 * 5), Given::Zeros(4), number(n)];
    let grid = [5, 1, 1];
    let mut kernels = vec![kernel("total_sm80", "total", launch(grid, 128, 16), triton(arguments.clone()))];
    for target in NVCC {
        kernels.push(kernel(target, "reduce", launch(grid, 192, 0), arguments.clone()));
        kernels.push(kernel(target, "reduce_last", launch(grid, 256, 0), partial.clone()));
    }
    kernels.iter().for_each(|kernel| kernel.agrees::<f32>(&wanted, bound, f64::from));
}

#[test]
fn histogram_of_nvcc() {
    let x: Vec<u8> = draw(10, 3001).iter().map(|value| (value * 120.0 + 120.0) as u8).collect();
    let mut wanted = vec![0.0; 64];
    x.iter().for_each(|value| wanted[usize::from(value & 63)] += 1.0);
    for target in NVCC {
        let arguments = vec![input(&x), Given::Zeros(4 * 64), number(3001)];
        kernel(target, "histogram", launch([3, 1, 1], 96, 0), arguments).agrees::<u32>(&wanted, 0.0, f64::from);
    }
}

#[test]
fn transpositions_of_triton_and_of_nvcc() {
    let (rows, columns) = (50, 71);
    let x = draw(11, rows * columns);
    let wanted: Vec<f64> = (0..rows * columns).map(|i| f64::from(x[i % rows * columns + i / rows])).collect();
    let arguments = vec![input(&x), Given::Unwritten(4 * x.len()), number(rows), number(columns)];
    let tritons = kernel("transpose_sm80", "transpose", launch([2, 3, 1], 128, 4096), triton(arguments.clone()));
    tritons.agrees::<f32>(&wanted, 0.0, f64::from);
    tritons.misses("bar.sync", 0);
    for target in NVCC {
        let launch = Launch { grid: [3, 2, 1], block: [32, 8, 1], shared_bytes: 0 };
        let kernel = kernel(target, "transpose", launch, arguments.clone());
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
    for target in NVCC {
        let arguments = vec![input(&x), Given::Unwritten(4 * n), number(n), number(period)];
        kernel(target, "mixed", launch([5, 1, 1], 64, 256), arguments).agrees::<bf16>(&wanted, 0.0, bf16::to_f64);
    }
}

#[test]
fn a_ring_of_tiles_in_cuda_with_inline_ptx() {
    let sizes @ [m, n, k] = [128, 64, 704];
    let (a, b) = (short(&draw(21, m * k)), short(&draw(22, n * k)));
    let maps = [(&a, m, 128), (&b, n, 64)].map(|(x, rows, tile)| Given::Map(Box::new(input(x)), [rows, k], [tile, 64]));
    let arguments = maps.into_iter().chain([Given::Unwritten(4 * m * n), number(n), number(k)]).collect();
    let mut transposed = vec![0.0; n * k];
    wide(&b).iter().enumerate().for_each(|(i, value)| transposed[i % k * n + i / k] = *value);
    let wanted = product(&wide(&a), &transposed, sizes);
    let kernel = kernel("ring_sm90a", "ring", launch([1, 1, 1], 384, 3 * 24576), arguments);
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
