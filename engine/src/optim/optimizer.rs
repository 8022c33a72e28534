//! LAMB and AdamW over the flat buffers of a [`ParamStore`].
//!
//! ```text
//! m ← β₁·m + (1 - β₁)·g        v ← β₂·v + (1 - β₂)·g²
//! u = m̂ / (√v̂ + ε) + λ·w      λ·w for decayed parameters only; m̂, v̂ = m, v unless bias correction is on
//! w ← w - rate·r·u             r = ‖w‖ / ‖u‖ for adapted parameters if both are positive, else 1; AdamW: r = 1
//! ```
//!
//! As released with ALBERT: ε outside the root, no bias correction, norms over a whole parameter (a layer that is applied
//! N times is one parameter), no bound on r. LAMB is You et al., "Large Batch Optimization for Deep Learning" (2020),
//! AdamW is Loshchilov and Hutter (2019). The caller chooses which parameters are decayed and adapted.
//!
//! Cost: bandwidth, 7 floats read or written a parameter (LAMB twice that).
use crate::{
    device::{Device, Gpu},
    dtype::DType,
    error::{EngineError, Result},
    memory::Arena,
    param::{Gradients, ParamInfo, ParamStore},
    tensor::Tensor,
};
use kernels::{
    optimizer as kernel,
    optimizer::{Segment, Step},
};
use kernels_cuda::optimizer::{AdamWArgs, ApplyArgs, Blocks, Hyper, MomentsArgs, Update};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, ops::Range};

/// The optimizers. In recipes: `lamb`, `adamw`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// Adam's direction, scaled for every tensor by ‖w‖/‖u‖ (You et al. 2019): released pre-training.
    Lamb,
    /// Adam with decoupled weight decay (Loshchilov and Hutter 2019).
    AdamW,
}

/// Hyperparameters that both optimizers share, with the released values as default.
pub use kernels::optimizer::AdamConfig;

/// Options of one parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamOptions {
    /// Weight decay applies.
    pub weight_decay: bool,
    /// The trust ratio applies (LAMB).
    pub trust_ratio: bool,
}

/// An optimizer and its state.
#[derive(Debug)]
pub struct Optimizer {
    kind: OptimizerKind,
    adam: AdamConfig,
    /// Values that it updates, and how many parameters have in all.
    own: Range<usize>,
    len: usize,
    /// Ranges from the start of `own`, as the moments.
    segments: Vec<Segment>,
    m: Tensor,
    v: Tensor,
    /// Norms of blocks, for LAMB's trust ratios.
    scratch: Vec<f64>,
    step: u64,
    on_gpu: Option<OnGpu>,
}

/// Buffers of a GPU other than the moments.
#[derive(Debug)]
struct OnGpu {
    cut: Blocks,
    /// [blocks, 4] and [tensors, 4] of it.
    blocks: Tensor,
    tensors: Tensor,
    /// [blocks, 2] f64, as words.
    norms: Tensor,
    /// `[tensors]`
    ratios: Tensor,
}

impl OnGpu {
    fn new(gpu: &Gpu, segments: &[Segment]) -> Result<Self> {
        let (arena, cut) = (Arena::on_gpu(gpu), Blocks::new(segments));
        let words = |rows: &[[u32; 4]]| {
            let mut tensor = Tensor::new(&arena, [rows.len(), 4], DType::U32)?;
            tensor.copy_from(rows.as_flattened())?;
            Ok::<_, EngineError>(tensor)
        };
        Ok(Self {
            blocks: words(&cut.blocks)?,
            tensors: words(&cut.tensors)?,
            norms: Tensor::new(&arena, [cut.blocks.len(), 4], DType::U32)?,
            ratios: Tensor::new(&arena, [cut.tensors.len()], DType::F32)?,
            cut,
        })
    }
}

impl Optimizer {
    /// An optimizer for the parameters of `params`, its moments zero. `options` are those of each.
    ///
    /// # Errors
    /// A number is out of range, or there is not enough memory.
    pub fn new(
        params: &ParamStore,
        kind: OptimizerKind,
        adam: AdamConfig,
        options: impl Fn(&ParamInfo) -> ParamOptions,
    ) -> Result<Self> {
        Self::of_part(params, 0..params.len(), kind, adam, options)
    }

    /// [`Optimizer::new`] for the values `own` of `params`, with their moments alone; see [`parts`].
    ///
    /// # Errors
    /// As [`Optimizer::new`].
    ///
    /// # Panics
    /// If `own` cuts a parameter.
    pub fn of_part(
        params: &ParamStore,
        own: Range<usize>,
        kind: OptimizerKind,
        adam: AdamConfig,
        options: impl Fn(&ParamInfo) -> ParamOptions,
    ) -> Result<Self> {
        let bounds = [
            ("beta1", adam.beta1, 1.0),
            ("beta2", adam.beta2, 1.0),
            ("epsilon", adam.eps, f64::INFINITY),
            ("weight decay", adam.weight_decay, f64::INFINITY),
        ];
        for (setting, value, end) in bounds {
            if !(0.0..end).contains(&value) {
                let problem = format!("a number from 0 to below {end} was expected");
                return Err(EngineError::Setting { setting, value: value.to_string(), problem });
            }
        }
        let segments: Vec<Segment> = params
            .ids()
            .map(|id| params.info(id))
            .filter(|info| info.range.start < own.end && own.start < info.range.end)
            .map(|info| {
                let ParamOptions { weight_decay: decay, trust_ratio: adapt } = options(info);
                let Range { start, end } = info.range;
                assert!(own.start <= start && end <= own.end, "optimizer: {own:?} cuts {}, {start}..{end}", info.name);
                Segment { range: start - own.start..end - own.start, decay, adapt }
            })
            .collect();
        let moments = || Tensor::new(&Arena::default(), [own.len()], DType::F32);
        let scratch = vec![0.0; if kind == OptimizerKind::Lamb { kernel::lamb_scratch_len(&segments) } else { 0 }];
        let (m, v, len) = (moments()?, moments()?, params.len());
        Ok(Self { kind, adam, own, len, segments, m, v, scratch, step: 0, on_gpu: None })
    }

    /// Moves the moments to `device`, where the gradients are.
    ///
    /// # Errors
    /// There is not enough memory, or the device failed.
    pub fn on(mut self, device: &Device) -> Result<Self> {
        for moments in [&mut self.m, &mut self.v] {
            let mut moved = Tensor::new(&Arena::on(device), *moments.shape(), DType::F32)?;
            moved.copy_from::<f32>(&moments.elements()?)?;
            *moments = moved;
        }
        Ok(self)
    }

    /// Updates the parameters by one step. The caller has averaged the gradients; the step multiplies them by the scale of
    /// [`Gradients::clip`]. A step whose norm is not finite is counted and changes nothing.
    ///
    /// # Errors
    /// The parameters are in use (see [`ParamStore::all_values_mut`]) or are not those that the optimizer was made for.
    pub fn step(&mut self, params: &mut ParamStore, gradients: &Gradients, rate: f64) -> Result<()> {
        if [params.len(), gradients.len()] != [self.len; 2] {
            let (len, given, gradient) = (self.len, params.len(), gradients.len());
            let problem = format!("made for {len} values, given {given} and {gradient} gradients");
            return Err(EngineError::shape("optimizer", problem));
        }
        let cpu = match gradients.device() {
            Device::Cpu(cpu) => cpu,
            Device::Cuda(gpu) => return self.step_on(gpu, params, gradients, rate),
        };
        let gradient_scale = gradients.scale();
        if gradient_scale.is_nan() {
            self.step += 1;
            return Ok(());
        }
        let (values, gradients) = (&mut params.all_values_mut()?[self.own.clone()], &gradients.all()[self.own.clone()]);
        self.step += 1;
        let step = Step { number: self.step, learning_rate: rate as f32, gradient_scale };
        let (m, v, segments) = (self.m.slice_mut(), self.v.slice_mut(), &self.segments);
        match self.kind {
            OptimizerKind::Lamb => kernel::lamb(
                cpu,
                &self.adam,
                &step,
                segments,
                kernel::Buffers { params: values, grads: gradients, m, v },
                &mut self.scratch,
            ),
            OptimizerKind::AdamW => kernel::adamw(
                cpu,
                &self.adam,
                &step,
                segments,
                kernel::Buffers { params: values, grads: gradients, m, v },
            ),
        }
        Ok(())
    }

    /// [`Optimizer::step`] on a GPU.
    fn step_on(&mut self, gpu: &Gpu, params: &mut ParamStore, gradients: &Gradients, rate: f64) -> Result<()> {
        let number = self.step + 1;
        // The kernels read the gradients' scale themselves.
        let step = Step { number, learning_rate: rate as f32, gradient_scale: 1.0 };
        if self.segments.is_empty() {
            self.step = number;
            return Ok(());
        }
        let Self { kind, adam, own, segments, m, v, on_gpu, .. } = self;
        let skipped = own.start * DType::F32.bytes();
        let on_gpu = match on_gpu {
            Some(on_gpu) => on_gpu,
            None => on_gpu.insert(OnGpu::new(gpu, segments)?),
        };
        let hyper = Hyper::new(adam, &step);
        let scale = gradients.scale_address();
        let [grads, m, v] = [gradients.tensor().address(), m.address_mut(), v.address_mut()];
        let grads = grads.plus(skipped);
        params.change_on_gpu(gpu, |values, half| {
            let half = half.map(|half| half.address_mut().element(own.start, DType::Bf16.bytes()));
            let writes_half = half.is_some();
            let OnGpu { cut, blocks, tensors, norms, ratios } = on_gpu;
            let params = values.address_mut().plus(skipped);
            let (blocks, ratios) = (blocks.address(), ratios.address_mut());
            match kind {
                OptimizerKind::AdamW => {
                    let update = Update::AdamW { half: writes_half };
                    let arguments = AdamWArgs { blocks, scale, grads, params, m, v, half, hyper };
                    gpu.run(&update, cut.launch(), &arguments)
                }
                OptimizerKind::Lamb => {
                    let (norms, tensors) = (norms.address_mut(), tensors.address_mut());
                    let arguments = MomentsArgs { blocks, scale, grads, params, m, v, tensors, norms, ratios, hyper };
                    gpu.run(&Update::Moments, cut.launch(), &arguments)?;
                    let update = Update::Apply { half: writes_half };
                    let hyper = hyper.without_moments();
                    let arguments = ApplyArgs { blocks, scale, params, m, v, ratios, half, hyper };
                    gpu.run(&update, cut.launch(), &arguments)
                }
            }
        })?;
        // Counted once nothing can fail any more: a step that was refused was not taken.
        self.step = number;
        Ok(())
    }

    /// Sets the count back to `steps`; the steps after it must have changed nothing.
    pub fn forget_steps_after(&mut self, steps: u64) {
        self.step = self.step.min(steps);
    }

    /// Number of steps taken.
    pub fn steps(&self) -> u64 {
        self.step
    }

    /// First and second moments of the optimizer's values: what a resumed run has to restore.
    ///
    /// # Errors
    /// The GPU that they are on failed.
    pub fn moments(&self) -> Result<[Cow<'_, [f32]>; 2]> {
        Ok([self.m.elements()?, self.v.elements()?])
    }

    /// Restores the moments after `steps` steps.
    ///
    /// # Errors
    /// Their lengths are not those of the optimizer's values, or the GPU failed.
    pub fn restore(&mut self, steps: u64, moments: [&[f32]; 2]) -> Result<()> {
        for (own, given) in [&mut self.m, &mut self.v].into_iter().zip(moments) {
            if own.len() != given.len() {
                let problem = format!("moments of {} values for an optimizer of {}", given.len(), own.len());
                return Err(EngineError::shape("optimizer", problem));
            }
            own.copy_from(given)?;
        }
        self.step = steps;
        Ok(())
    }

    /// Bytes of state.
    pub fn bytes(&self) -> usize {
        4 * (self.m.len() + self.v.len()) + 8 * self.scratch.len()
    }
}

/// The values of `params` in `count` ranges of whole parameters, about equally long, for as many ranks.
pub fn parts(params: &ParamStore, count: usize) -> Vec<Range<usize>> {
    let len = params.len();
    let mut ends = vec![0; count];
    for info in params.ids().map(|id| params.info(id)) {
        // By its middle.
        let part = (info.range.start + info.range.end) / 2 * count / len.max(1);
        ends[part.min(count - 1)] = info.range.end;
    }
    let mut start = 0;
    let next = |end: usize| {
        let range = start..end.max(start);
        start = range.end;
        range
    };
    ends.into_iter().map(next).collect()
}

/// Has optimizers scale the gradients down to a global norm of at most `limit`, if there is one. Gives the norm before; on a GPU
/// it waits for that, and [`Gradients::clip`] does not.
///
/// # Errors
/// The norm is NaN or infinite at optimizer step `step`.
pub fn clip_global_norm(gradients: &mut Gradients, limit: Option<f64>, step: u64) -> Result<f64> {
    let norm = gradients.clip(limit)?;
    gradients.norm(norm, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_tests::*;

    const TARGET: [f32; 3] = [0.4, 0.2, -0.5];

    fn toy() -> (ParamStore, ParamId, Gradients) {
        let (mut params, [id]) = parameters(0, [("w", &[3], Init::Zeros)]);
        params.values_mut(id).unwrap().copy_from_slice(&[0.1, -0.2, -0.1]);
        let gradients = params.gradients(&Device::Cpu(cpu(2))).unwrap();
        (params, id, gradients)
    }

    /// The gradient of mean((x - w)²).
    fn gradient(params: &ParamStore, id: ParamId, gradients: &mut Gradients) {
        for ((g, w), x) in gradients.all_mut().iter_mut().zip(params.values(id)).zip(TARGET) {
            *g = 2.0 * (w - x) / 3.0;
        }
    }

    const ALL: fn(&ParamInfo) -> ParamOptions = |_| ParamOptions { weight_decay: true, trust_ratio: true };

    #[test]
    fn steps_lead_where_the_released_code_does() {
        let adam = AdamConfig::default();
        let plain = AdamConfig { weight_decay: 0.0, ..adam };
        let corrected = AdamConfig { bias_correction: true, ..plain };
        for (kind, adam, rate, steps, expected, error) in [
            (OptimizerKind::Lamb, adam, 0.1, 1, [0.114_137_29f32, -0.185_848_73, -0.114_137_85], 2e-8),
            (OptimizerKind::Lamb, adam, 0.1, 2, [0.128_341_44, -0.171_627_75, -0.128_348_8], 2e-8),
            // The released code's own unit test reaches the target within 1e-2.
            (OptimizerKind::AdamW, plain, 0.2, 100, [0.401_65, 0.197_82, -0.497_82], 1e-4),
            // Bias correction makes the first step as long as the rate.
            (OptimizerKind::AdamW, corrected, 0.01, 1, [0.11, -0.19, -0.11], 1e-6),
        ] {
            let (mut params, id, mut gradients) = toy();
            let mut optimizer = Optimizer::new(&params, kind, adam, ALL).unwrap();
            for _ in 0..steps {
                gradient(&params, id, &mut gradients);
                optimizer.step(&mut params, &gradients, rate).unwrap();
            }
            for (got, expected) in params.values(id).iter().zip(expected) {
                assert!((got - expected).abs() <= error, "{kind:?} after {steps}: {got}, expected {expected}");
            }
        }
    }

    #[test]
    fn treatment_is_by_parameter() {
        let all = [("weight", &[2, 2][..], Init::Ones), ("bias", &[2], Init::Ones)];
        let (mut params, [weight, bias]) = parameters(0, all);
        let mut gradients = params.gradients(&Device::Cpu(cpu(2))).unwrap();
        gradients.all_mut().fill(0.5);
        let mut lamb = Optimizer::new(&params, OptimizerKind::Lamb, AdamConfig::default(), |info| {
            let plain = info.name.contains("bias");
            ParamOptions { weight_decay: !plain, trust_ratio: !plain }
        })
        .unwrap();
        lamb.step(&mut params, &gradients, 0.1).unwrap();
        // One step of Adam without correction is 0.1·g / √(0.001·g²) = √10 long; adapted, it is as long as the weight.
        assert!((params.values(bias)[0] - (1.0 - 0.1 * 10f32.sqrt())).abs() < 1e-4, "{:?}", params.values(bias));
        assert!((params.values(weight)[0] - 0.9).abs() < 1e-6, "{:?}", params.values(weight));
    }

    #[test]
    fn parts_follow_one_another_and_are_the_whole() {
        let all = [("a", &[5][..]), ("b", &[9000]), ("c", &[3]), ("d", &[4500]), ("e", &[1])];
        let (params, _) = parameters(1, all.map(|(name, shape)| (name, shape, Init::Ones)));
        for count in 1..8 {
            let ranges = parts(&params, count);
            assert_eq!(ranges.len(), count);
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start), "{ranges:?}");
            assert_eq!((ranges[0].start, ranges[count - 1].end), (0, 13_509), "{ranges:?}");
        }
    }

    #[test]
    fn clipping_scales_the_update_and_reports_the_norm_before() {
        let (_, _, mut gradients) = toy();
        for (limit, expected) in [(None, 1.0), (Some(6.0), 1.0), (Some(1.0), 0.2)] {
            gradients.all_mut().copy_from_slice(&[3.0, 4.0, 0.0]);
            let norm = clip_global_norm(&mut gradients, limit, 1).unwrap();
            assert!((norm - 5.0).abs() < 1e-12, "{norm}");
            assert_eq!((gradients.scale(), gradients.all()), (expected, &[3.0, 4.0, 0.0][..]), "{limit:?}");
        }
        gradients.clear().unwrap();
        assert_eq!(gradients.scale(), 1.0);
    }

    /// A step that is not finite, and those that were started before its norm was read, change nothing on any device.
    #[test]
    fn not_a_number_stops_the_updates_and_is_an_error_that_names_the_step() {
        for device in [Device::Cpu(cpu(2)), Device::Cuda(gpu((8, 0)))] {
            for kind in [OptimizerKind::Lamb, OptimizerKind::AdamW] {
                let (mut params, ..) = toy();
                let mut gradients = params.gradients(&device).unwrap();
                let mut optimizer =
                    Optimizer::new(&params, kind, AdamConfig::default(), ALL).unwrap().on(&device).unwrap();
                let mut step = |gradients: &mut Gradients, values: [f32; 3]| {
                    gradients.clear().unwrap();
                    gradients.flat.copy_from(&values).unwrap();
                    let norm = gradients.clip(Some(1.0)).unwrap();
                    optimizer.step(&mut params, gradients, 0.1).unwrap();
                    params.download().unwrap();
                    let [m, v] = optimizer.moments().unwrap().map(|moments| moments.into_owned());
                    (norm, [params.all_values().to_vec(), m, v])
                };
                let (_, start) = step(&mut gradients, [0.5, 0.25, -1.0]);
                for bad in [f32::NAN, f32::INFINITY] {
                    let (norm, unchanged) = step(&mut gradients, [0.5, bad, -1.0]);
                    let (later, still_unchanged) = step(&mut gradients, [0.5, 0.25, -1.0]);
                    assert_eq!([&unchanged, &still_unchanged], [&start; 2], "{kind:?}");
                    drop(later);
                    let error = gradients.norm(norm, 17).unwrap_err().to_string();
                    assert!(error.contains("the norm of the gradient is") && error.contains("at step 17"), "{error}");
                }
                let (norm, changed) = step(&mut gradients, [0.5, 0.25, -1.0]);
                assert_ne!(changed, start, "{kind:?} after the error was read");
                assert!(gradients.norm(norm, 18).unwrap() > 1.0);
                optimizer.forget_steps_after(4);
                assert_eq!(optimizer.steps(), 4);
            }
        }
    }

    #[test]
    fn refuses_numbers_out_of_range_and_other_parameters() {
        let (mut params, _, gradients) = toy();
        let adam = AdamConfig { beta2: 1.0, ..AdamConfig::default() };
        let expected = "beta2 = 1: a number from 0 to below 1 was expected";
        refused(Optimizer::new(&params, OptimizerKind::Lamb, adam, ALL), expected);
        let (other, _) = parameters(0, [("w", &[4], Init::Zeros)]);
        let mut lamb = Optimizer::new(&other, OptimizerKind::Lamb, AdamConfig::default(), ALL).unwrap();
        refused(lamb.step(&mut params, &gradients, 0.1), "made for 4 values, given 3 and 3 gradients");
    }
}
