//! LAMB and AdamW on the GPU over flat buffers of many tensors: f32 masters, and their bf16 copy in the same pass.
//!
//! ```text
//! g = scale·gradient      m = β1·m + (1-β1)·g      v = β2·v + (1-β2)·g²      u = m·c_m / (√(v·c_v) + ε) [+ λ·w]
//! AdamW   w = w - lr·u                              one launch
//! LAMB    w = w - lr·(‖w‖/‖u‖)·u                    two: moments, norms of blocks and ratios of tensors; weights
//! ```
//!
//! The host cuts the tensors into blocks of at most [`BLOCK`] elements, never across tensors ([`Blocks`]); a thread block
//! processes one of them:
//!
//! ```text
//! params, m, v   ├─ word table ─┼─ W_map ─┼b┼─ W_q ...          blocks [blocks, 4]: start, length, tensor, decays
//! blocks         ├──┼──┼──┼──┼──┼──┼──┼──┼─┼──┼──┼──┼─┤          tensors [tensors, 4]: first block, blocks, adapts, counter
//!
//! __global__ adamw(blocks, scale, grads, params, m, v, [half], lr, .. λ)
//! __global__ moments(blocks, scale, grads, params, m, v, tensors, norms, ratios, lr, .. λ)
//!                                                                                   norms [blocks, 2] f64: Σw², Σu²
//!     the last block of a tensor to end adds its norms in the order of the blocks: ratios [tensors]
//! __global__ apply(blocks, scale, params, m, v, ratios, [half], lr, .. λ)
//! ```
//!
//! The gradient's `scale` is in device memory, where clipping computes it ([`ClipBlock`](crate::reduce::ClipBlock)): no
//! kernel does anything if it is NaN. `apply` recomputes u instead of loading it.
//!
//! Bound by memory: AdamW 7 elements of 4 bytes and one of 2 a parameter, LAMB 10 and one. Sums of squares: 16 elements in
//! f32 a thread, f64 beyond, in a fixed order. Limits: fewer than 2³² parameters.

use crate::{
    arguments::{Address as DeviceAddress, Load, all, arguments},
    program::{Name, Program},
    reduce::{add_block, last_block},
};
use kernels::optimizer::{AdamConfig, Segment, Step, corrections};
use ptx::{Address, Compare, Entry, F32, F64, Global, Launch, Param, Ptr, Read, Reg, Sm, Special, Storage, U32};

/// Threads in a block.
const THREADS: u32 = 256;
/// Maximum parameters of a block.
pub const BLOCK: usize = 4096;

/// Tables of blocks and tensors, as `u32` words to copy to the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// [blocks, 4]: first parameter, number of parameters, tensor, 1 if it decays.
    pub blocks: Vec<[u32; 4]>,
    /// [tensors, 4]: first block, number of blocks, 1 if it adapts, counter of blocks that is 0 between launches.
    pub tensors: Vec<[u32; 4]>,
}

impl Blocks {
    /// Cuts `segments` into blocks.
    ///
    /// # Panics
    /// If a segment ends beyond 2³².
    pub fn new(segments: &[Segment]) -> Self {
        let word = |n: usize| u32::try_from(n).expect("fewer than 2^32 parameters");
        let (mut blocks, mut tensors) = (Vec::new(), Vec::new());
        for (tensor, segment) in segments.iter().enumerate() {
            let first = blocks.len();
            for start in segment.range.clone().step_by(BLOCK) {
                let length = BLOCK.min(segment.range.end - start);
                blocks.push([word(start), word(length), word(tensor), u32::from(segment.decay)]);
            }
            tensors.push([word(first), word(blocks.len() - first), u32::from(segment.adapt), 0]);
        }
        Self { blocks, tensors }
    }

    /// Launch of an update; `None` if there is nothing to update.
    pub fn launch(&self) -> Option<Launch> {
        let count = self.blocks.len();
        (count > 0).then_some(Launch { grid: [count as u32, 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 })
    }
}

/// Specialization of the optimizers' kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Update {
    /// AdamW.
    AdamW {
        /// True if the bf16 copy of the parameters is written.
        half: bool,
    },
    /// LAMB: m, v, the norms of blocks and ‖w‖ / ‖u‖ of tensors.
    Moments,
    /// LAMB: the parameters.
    Apply {
        /// True if their bf16 copy is written.
        half: bool,
    },
}

impl Update {
    /// All specializations.
    pub const ALL: [Update; 5] = [
        Update::AdamW { half: true },
        Update::AdamW { half: false },
        Update::Moments,
        Update::Apply { half: true },
        Update::Apply { half: false },
    ];

    /// Name of the program for `sm`.
    pub fn name(self, sm: Sm) -> Name {
        let (operation, half) = match self {
            Update::AdamW { half } => ("optimizer.adamw", half),
            Update::Moments => ("optimizer.moments", false),
            Update::Apply { half } => ("optimizer.apply", half),
        };
        let parts = [if half { "f32bf16" } else { "f32" }, sm.name(), &BLOCK.to_string()];
        Name::new(operation, &parts)
    }

    /// Emits the program for `sm`.
    pub fn program(self, sm: Sm) -> Program {
        const REGISTERS: u32 = 64;
        Program::emit(self.name(sm), sm, THREADS, REGISTERS, |k| {
            k.maxnreg(REGISTERS);
            match self {
                Update::AdamW { half } => write_adamw(k, half),
                Update::Moments => write_moments(k),
                Update::Apply { half } => write_apply(k, half),
            }
        })
    }
}

/// Parameters of a thread block.
struct Part {
    start: Reg<U32>,
    length: Reg<U32>,
    tensor: Reg<U32>,
    decays: Reg<U32>,
}

impl Part {
    fn load(k: &Entry, blocks: Ptr<Global>) -> Self {
        let row = k.index(blocks, k.special(Special::CtaidX), 16u32);
        let [start, length, tensor, decays] = k.ld::<U32, 4>(row.at(0));
        Self { start, length, tensor, decays }
    }

    /// Loops over this thread's parameters; neighboring threads process neighboring parameters (coalesced).
    fn each(&self, k: &Entry, body: impl FnOnce(Reg<U32>)) {
        let end = k.add(self.start, self.length);
        k.for_(k.add(self.start, k.special(Special::TidX)), end, THREADS, body);
    }
}

/// Coefficients of u, in registers.
struct Direction {
    beta1: [Reg<F32>; 2],
    beta2: [Reg<F32>; 2],
    eps: Reg<F32>,
    decay: Reg<F32>,
    rate: Reg<F32>,
    scale: Reg<F32>,
    correct: [Reg<F32>; 2],
}

impl Direction {
    fn load(k: &Entry, hyper: &HyperParams, part: &Part, scale: Reg<F32>) -> Self {
        let HyperParams {
            rate,
            correct_m,
            correct_v,
            beta1,
            one_minus_beta1,
            beta2,
            one_minus_beta2,
            eps,
            weight_decay,
        } = hyper;
        let zero = k.mov(0.0f32);
        let pair = |params: [&Option<Param<F32>>; 2]| params.map(|param| param.load(k).unwrap_or(zero));
        let (beta1, beta2) = (pair([beta1, one_minus_beta1]), pair([beta2, one_minus_beta2]));
        let (eps, decay) = (eps.load(k), weight_decay.load(k));
        let decay = k.selp(decay, 0.0f32, k.setp(Compare::Ne, part.decays, 0u32));
        let [rate, correct_m, correct_v] = [rate, correct_m, correct_v].map(|param| param.load(k));
        Self { beta1, beta2, eps, decay, rate, scale, correct: [correct_m, correct_v] }
    }

    fn moments(&self, k: &Entry, gradient: Reg<F32>, m: Reg<F32>, v: Reg<F32>) -> [Reg<F32>; 2] {
        let g = k.mul(gradient, self.scale);
        let m = k.fma(m, self.beta1[0], k.mul(g, self.beta1[1]));
        let v = k.fma(v, self.beta2[0], k.mul(k.mul(g, g), self.beta2[1]));
        [m, v]
    }

    fn update(&self, k: &Entry, w: Reg<F32>, [m, v]: [Reg<F32>; 2]) -> Reg<F32> {
        let root = k.sqrt(k.mul(v, self.correct[1]));
        let adam = k.div(k.mul(m, self.correct[0]), k.add(root, self.eps));
        k.fma(w, self.decay, adam)
    }
}

/// Loads the gradient's scale; threads end where it is NaN.
fn load_scale(k: &Entry, scale: Ptr<Global>) -> Reg<F32> {
    let [scale] = k.ld::<F32, 1>(scale.at(0));
    k.unless(k.setp(Compare::Eq, scale, scale), || k.exit());
    scale
}

fn number(k: &Entry, matrix: Ptr<Global>, i: Reg<U32>) -> Address<Global> {
    k.index(matrix, i, 4u32).at(0)
}

fn load(k: &Entry, matrix: Ptr<Global>, i: Reg<U32>) -> Reg<F32> {
    k.load_elements(Storage::F32, number(k, matrix, i), 1, Read::Mutable)[0]
}

fn store_weight(k: &Entry, params: Ptr<Global>, half: Option<Ptr<Global>>, i: Reg<U32>, w: Reg<F32>) {
    k.st(number(k, params, i), [w]);
    if let Some(half) = half {
        k.store_elements(Storage::Bf16, k.index(half, i, 2u32).at(0), &[w]);
    }
}

fn write_adamw(k: &Entry, half: bool) {
    let declared = AdamWArgs::declare(k, &|name| name != "half" || half);
    let AdamWParams { blocks, scale, grads, params, m, v, half, hyper } = &declared;
    let [blocks, scale, grads, params, m, v] = [blocks, scale, grads, params, m, v].map(|param| param.load(k));
    let half = half.load(k);
    let scale = load_scale(k, scale);
    let part = Part::load(k, blocks);
    let direction = Direction::load(k, hyper, &part, scale);
    part.each(k, |i| {
        let w = load(k, params, i);
        let moments = direction.moments(k, load(k, grads, i), load(k, m, i), load(k, v, i));
        let u = direction.update(k, w, moments);
        k.st(number(k, m, i), [moments[0]]);
        k.st(number(k, v, i), [moments[1]]);
        store_weight(k, params, half, i, k.fma(u, k.neg(direction.rate), w));
    });
}

fn write_moments(k: &Entry) {
    let declared = MomentsArgs::declare(k, &all);
    let MomentsParams { blocks, scale, grads, params, m, v, tensors, norms, ratios, hyper } = &declared;
    let [blocks, scale, grads, params, m, v, tensors, norms, ratios] =
        [blocks, scale, grads, params, m, v, tensors, norms, ratios].map(|param| param.load(k));
    let scale = load_scale(k, scale);
    let part = Part::load(k, blocks);
    let direction = Direction::load(k, hyper, &part, scale);
    let sums = ["sum_w", "sum_u"].map(|name| k.variable(name, 0.0f32));
    part.each(k, |i| {
        let w = load(k, params, i);
        let moments = direction.moments(k, load(k, grads, i), load(k, m, i), load(k, v, i));
        let u = direction.update(k, w, moments);
        k.st(number(k, m, i), [moments[0]]);
        k.st(number(k, v, i), [moments[1]]);
        sums.into_iter().zip([w, u]).for_each(|(sum, x)| k.fma_into(sum, x, x, sum));
    });
    let (thread, block) = (k.special(Special::TidX), k.special(Special::CtaidX));
    let to = k.index(norms, block, 16u32);
    for (i, (name, sum)) in (0..).zip(["tree_w", "tree_u"].into_iter().zip(sums)) {
        add_block(k, name, thread, k.cvt_f64(sum), |total| k.st(to.at(8 * i), [total]));
    }
    let tensor = k.index(tensors, part.tensor, 16u32);
    let ([first, count], [adapts]) = (k.ld::<U32, 2>(tensor.at(0)), k.ld::<U32, 1>(tensor.at(8)));
    last_block(k, thread, tensor.at(12), k.sub(count, 1u32), || {
        write_ratio(k, thread, norms, [first, count, adapts], number(k, ratios, part.tensor));
    });
}

/// Adds the norms of a tensor's blocks and stores its ratio at `to`.
fn write_ratio(
    k: &Entry,
    thread: Reg<U32>,
    norms: Ptr<Global>,
    [first, count, adapts]: [Reg<U32>; 3],
    to: Address<Global>,
) {
    let sums = ["total_w", "total_u"].map(|name| k.variable::<F64>(name, 0.0f64));
    k.for_(k.add(first, thread), k.add(first, count), THREADS, |block| {
        let [w, u] = k.ld::<F64, 2>(k.index(norms, block, 16u32).at(0));
        sums.into_iter().zip([w, u]).for_each(|(sum, x)| k.add_into(sum, sum, x));
    });
    let mut totals = Vec::new();
    for (name, sum) in ["last_tree_w", "last_tree_u"].into_iter().zip(sums) {
        let total = k.variable::<F64>("total", 0.0f64);
        add_block(k, name, thread, sum, |sum| k.assign(total, sum));
        totals.push(k.sqrt(total));
    }
    k.if_(k.setp(Compare::Eq, thread, 0u32), || {
        // A NaN norm compares unequal to 0, so the ratio and the weights become NaN.
        let zero = |x| k.setp(Compare::Eq, x, 0.0f64);
        let plain = k.or(k.setp(Compare::Eq, adapts, 0u32), k.or(zero(totals[0]), zero(totals[1])));
        k.st(to, [k.selp(1.0f32, k.cvt_f32_f64(k.div(totals[0], totals[1])), plain)]);
    });
}

fn write_apply(k: &Entry, half: bool) {
    let declared = ApplyArgs::declare(k, &|name| name == "half" && half);
    let ApplyParams { blocks, scale, params, m, v, ratios, half, hyper } = &declared;
    let [blocks, scale, params, m, v, ratios] = [blocks, scale, params, m, v, ratios].map(|param| param.load(k));
    let half = half.load(k);
    let scale = load_scale(k, scale);
    let part = Part::load(k, blocks);
    let direction = Direction::load(k, hyper, &part, scale);
    let size = k.neg(k.mul(direction.rate, load(k, ratios, part.tensor)));
    part.each(k, |i| {
        let w = load(k, params, i);
        let u = direction.update(k, w, [load(k, m, i), load(k, v, i)]);
        store_weight(k, params, half, i, k.fma(u, size, w));
    });
}

arguments! {
    /// Numbers of the update.
    Hyper, declared as HyperParams {
        /// Learning rate
        rate: f32,
        /// c_m
        correct_m: f32,
        /// c_v
        correct_v: f32,
        /// β₁, to update moments
        beta1: Option<f32>,
        /// 1 - β₁, to update moments
        one_minus_beta1: Option<f32>,
        /// β₂, to update moments
        beta2: Option<f32>,
        /// 1 - β₂, to update moments
        one_minus_beta2: Option<f32>,
        /// ε
        eps: f32,
        /// λ
        weight_decay: f32,
    }
}

impl Hyper {
    /// All numbers of step `step`.
    pub fn new(config: &AdamConfig, step: &Step) -> Self {
        let AdamConfig { beta1, beta2, eps, weight_decay, .. } = *config;
        let [correct_m, correct_v] = corrections(config, step);
        Self {
            rate: step.learning_rate,
            correct_m,
            correct_v,
            beta1: Some(beta1 as f32),
            one_minus_beta1: Some((1.0 - beta1) as f32),
            beta2: Some(beta2 as f32),
            one_minus_beta2: Some((1.0 - beta2) as f32),
            eps: eps as f32,
            weight_decay: weight_decay as f32,
        }
    }

    /// Numbers of a kernel that does not update moments.
    pub fn without_moments(self) -> Self {
        Self { beta1: None, one_minus_beta1: None, beta2: None, one_minus_beta2: None, ..self }
    }
}

arguments! {
    /// Arguments of [`Update::AdamW`].
    AdamWArgs, declared as AdamWParams {
        /// [`Blocks::blocks`]
        blocks: DeviceAddress,
        /// One f32
        scale: DeviceAddress,
        /// `[P]` f32
        grads: DeviceAddress,
        /// `[P]` f32
        params: DeviceAddress,
        /// `[P]` f32
        m: DeviceAddress,
        /// `[P]` f32
        v: DeviceAddress,
        /// `[P]` bf16 receives the parameters, if there is a copy.
        half: Option<DeviceAddress>,
        /// Numbers.
        hyper: Hyper,
    }
}

arguments! {
    /// Arguments of [`Update::Moments`].
    MomentsArgs, declared as MomentsParams {
        /// [`Blocks::blocks`]
        blocks: DeviceAddress,
        /// One f32
        scale: DeviceAddress,
        /// `[P]` f32
        grads: DeviceAddress,
        /// `[P]` f32
        params: DeviceAddress,
        /// `[P]` f32
        m: DeviceAddress,
        /// `[P]` f32
        v: DeviceAddress,
        /// [`Blocks::tensors`]
        tensors: DeviceAddress,
        /// [blocks, 2] f64: Σ w², Σ u²
        norms: DeviceAddress,
        /// `[tensors]` f32, written for tensors with blocks.
        ratios: DeviceAddress,
        /// Numbers.
        hyper: Hyper,
    }
}

arguments! {
    /// Arguments of [`Update::Apply`].
    ApplyArgs, declared as ApplyParams {
        /// [`Blocks::blocks`]
        blocks: DeviceAddress,
        /// One f32
        scale: DeviceAddress,
        /// `[P]` f32
        params: DeviceAddress,
        /// `[P]` f32
        m: DeviceAddress,
        /// `[P]` f32
        v: DeviceAddress,
        /// `[tensors]` f32
        ratios: DeviceAddress,
        /// `[P]` bf16 receives the parameters, if there is a copy.
        half: Option<DeviceAddress>,
        /// Numbers, without those of the moments.
        hyper: Hyper,
    }
}
