//! Attention's PTX programs: the list of specializations, and runs in the simulator.

use crate::runner::{Device, GpuRunner};
use bytemuck::Pod;
use kernels::attention::Attention;
use kernels_cuda::attention::{
    arguments::{AttentionArgs, DeltaArgs, Shape},
    sm80::{Flash, Step},
    sm90::HopperFlash,
    sm90_backward::{HopperBackward, Side},
    sm90_short::HopperShort,
};
use kernels_cuda::{arguments::Address, program::Program};
use ptx::{Sm, Storage, sim::Approximation};

/// Programs for `sm`.
pub(crate) fn programs(sm: Sm) -> Vec<Program> {
    match sm {
        Sm::Sm80 => Flash::all().iter().map(|kernel| kernel.program(sm)).collect(),
        Sm::Sm90a => {
            let forward = HopperFlash::all().into_iter().map(|kernel| kernel.program());
            let backward = HopperBackward::all().into_iter().map(|kernel| kernel.program());
            let short = HopperShort::all().into_iter().map(|kernel| kernel.program());
            forward.chain(backward).chain(short).collect()
        }
    }
}

/// Simulation of a batch in one buffer [q | k | v], rows `ld` apart.
pub(crate) struct Simulation<'a, X> {
    pub spec: &'a Attention,
    /// Storage type of `X` on the device.
    pub storage: Storage,
    pub cu_seqlens: &'a [u32],
    /// Keys of each sequence; empty if all tokens are keys.
    pub keys: &'a [u32],
    pub qkv: &'a [X],
    pub ld: usize,
}

impl<X: Pod> Simulation<'_, X> {
    fn kernel(&self, step: Step) -> Result<Flash, String> {
        let found = Flash::new(step, self.storage, self.spec.head_size, self.ld, self.spec.dropout.is_some());
        found.ok_or_else(|| format!("no kernel for heads of {} in {}", self.spec.head_size, self.storage.name()))
    }

    fn tokens(&self) -> usize {
        self.cu_seqlens.last().map_or(0, |&tokens| tokens as usize)
    }

    /// Sequences and head, with the sequences in new buffers.
    fn shape(&self, device: &mut Device<'_>) -> Shape {
        let lengths: Vec<u32> = self.cu_seqlens.windows(2).map(|bounds| bounds[1] - bounds[0]).collect();
        let keys = if self.keys.is_empty() { &lengths } else { self.keys };
        Shape {
            cu_seqlens: device.buffer("cu_seqlens", self.cu_seqlens),
            keys: device.buffer("keys", keys),
            dropout: self.spec.dropout,
            ld: self.ld,
            head_size: self.spec.head_size,
            score_scale: self.spec.scale,
        }
    }

    /// Hopper's forward kernel, if the shape is supported.
    pub(crate) fn hopper(&self) -> Option<HopperFlash> {
        let Attention { head_size, dropout, .. } = *self.spec;
        HopperFlash::new(self.storage, head_size, self.longest(), self.ld, dropout.is_some())
    }

    /// Hopper's backward kernel for the resident rows `side`, if `sm` and the shape are supported.
    fn hopper_backward(&self, sm: Sm, side: Side) -> Option<HopperBackward> {
        let Attention { head_size, dropout, .. } = *self.spec;
        let kernel = HopperBackward::new(side, self.storage, head_size, self.ld, dropout.is_some());
        kernel.filter(|_| sm == Sm::Sm90a && self.tokens() > 0)
    }

    /// Hopper's backward kernel for short sequences, if `sm` and the shape are supported.
    fn short(&self, sm: Sm) -> Option<HopperShort> {
        let Attention { head_size, dropout, .. } = *self.spec;
        let kernel = HopperShort::new(self.storage, head_size, self.longest(), self.ld, dropout.is_some());
        kernel.filter(|_| sm == Sm::Sm90a && self.tokens() > 0)
    }

    /// Addresses of q, k and v in a new buffer.
    fn parts(&self, device: &mut Device<'_>) -> [Address; 3] {
        let qkv = device.buffer("qkv", self.qkv);
        [0, 1, 2].map(|part| qkv.plus(part * self.spec.hidden() * size_of::<X>()))
    }

    fn longest(&self) -> usize {
        self.cu_seqlens.windows(2).map(|bounds| (bounds[1] - bounds[0]) as usize).max().unwrap_or(0)
    }

    /// Runs [`kernels::attention::forward`] on `gpu`.
    pub(crate) fn forward(&self, gpu: &GpuRunner<'_>, out: &mut [X], lse: &mut [f32]) -> Result<(), String> {
        let mut device = gpu.device();
        let (parts, shape) = (self.parts(&mut device), self.shape(&mut device));
        let (o, l) = (device.unwritten::<X>("out", out.len()), device.unwritten::<f32>("lse", lse.len()));
        let (arguments, sequences) = (AttentionArgs::forward(&shape, o, l), self.cu_seqlens.len() - 1);
        match self.hopper().filter(|_| gpu.sm() == Sm::Sm90a && self.tokens() > 0) {
            Some(kernel) => {
                let [q, k, v] = parts.map(|part| part.0);
                let maps = kernel.maps([q, k, v, o.0], self.tokens(), self.spec.hidden(), self.ld);
                let maps = maps.map_err(|error| error.to_string())?;
                let arguments = arguments.with_maps(maps, sequences, self.longest());
                // Three tiles a block, if there are enough, so that both pipelines wrap.
                let heads = self.spec.heads;
                let tiles = kernel.launch(sequences, self.longest(), heads, usize::MAX).map_or(0, |all| all.grid[0]);
                let blocks = tiles.div_ceil(3).max(tiles.min(2)) as usize;
                let launch = kernel.launch(sequences, self.longest(), heads, blocks * heads);
                device.start(&kernel.program(), launch, &arguments, Approximation::Device)?;
            }
            None => {
                let kernel = self.kernel(Step::Forward)?;
                let launch = kernel.launch(sequences, self.longest(), self.spec.heads);
                let arguments = arguments.with_matrices(parts);
                device.start(&kernel.program(gpu.sm()), launch, &arguments, Approximation::Device)?;
            }
        }
        out.copy_from_slice(&device.read(o)?);
        lse.copy_from_slice(&device.read(l)?);
        Ok(())
    }

    /// Runs [`kernels::attention::backward`] on `gpu`, with gradients [T, H] each.
    pub(crate) fn backward(
        &self,
        gpu: &GpuRunner<'_>,
        (out, lse): (&[X], &[f32]),
        dout: &[X],
        gradients: [&mut [X]; 3],
    ) -> Result<(), String> {
        let (heads, head_size, hidden) = (self.spec.heads, self.spec.head_size, self.spec.hidden());
        let (rows, sequences) = (self.tokens() * heads, self.cu_seqlens.len() - 1);
        let mut device = gpu.device();
        let [out, dout] = [("out", out), ("dout", dout)].map(|(name, matrix)| device.buffer(name, matrix));
        let (lse, delta) = (device.buffer("lse", lse), device.unwritten::<f32>("delta", rows));
        // Hopper's kernel of the queries computes δ itself.
        if self.short(gpu.sm()).is_some() || self.hopper_backward(gpu.sm(), Side::Queries).is_none() {
            let arguments = DeltaArgs { out, dout, delta, rows, head_size };
            let (step, launch) = (self.kernel(Step::Delta)?, Flash::delta_launch(self.tokens(), heads));
            device.start(&step.program(gpu.sm()), launch, &arguments, Approximation::Device)?;
        }
        let outputs = ["dq", "dk", "dv"].map(|name| device.unwritten::<X>(name, gradients[0].len()));
        let (parts, shape) = (self.parts(&mut device), self.shape(&mut device));
        let [q, k, v] = parts.map(|part| part.0);
        let matrices = [q, k, v, dout.0];
        let common = AttentionArgs::backward(&shape, lse, delta, hidden);
        let [dq, dk, dv] = outputs.map(Some);
        if let Some(kernel) = self.short(gpu.sm()) {
            let maps = kernel.maps(matrices, self.tokens(), hidden, self.ld).map_err(|error| error.to_string())?;
            let arguments = AttentionArgs { dq, dk, dv, sequences: Some(sequences), ..common.with_maps_and_dout(maps) };
            // Three sequences a block, if there are enough, so that the pipeline wraps.
            let blocks = sequences.div_ceil(3).max(sequences.min(2));
            let launch = kernel.launch(sequences, heads, blocks * heads);
            device.start(&kernel.program(), launch, &arguments, Approximation::Device)?;
        } else {
            for (side, step, arguments) in [
                (Side::Queries, Step::Queries, AttentionArgs { dq, ..common }),
                (Side::Keys, Step::Keys, AttentionArgs { dk, dv, ..common }),
            ] {
                if let Some(kernel) = self.hopper_backward(gpu.sm(), side) {
                    let maps = kernel.maps(matrices, self.tokens(), hidden, self.ld);
                    let arguments = arguments.with_maps_and_dout(maps.map_err(|error| error.to_string())?);
                    let rows = |matrix| (side == Side::Queries).then_some(matrix);
                    let arguments = AttentionArgs { out: rows(out), dout: rows(dout), ..arguments };
                    let launch = kernel.launch(sequences, self.longest(), heads);
                    device.start(&kernel.program(), launch, &arguments, Approximation::Device)?;
                } else {
                    let kernel = self.kernel(step)?;
                    let arguments = AttentionArgs { dout: Some(dout), ..arguments.with_matrices(parts) };
                    let launch = kernel.launch(sequences, self.longest(), heads);
                    device.start(&kernel.program(gpu.sm()), launch, &arguments, Approximation::Device)?;
                }
            }
        }
        for (buffer, gradient) in outputs.into_iter().zip(gradients) {
            gradient.copy_from_slice(&device.read(buffer)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{reference, tests::Case, tests::case};
    use crate::check::{store, widen, within};
    use half::{bf16, f16};
    use kernels::attention::Ragged;

    /// Sequences of very different lengths, some empty, tokens that are queries only, rows with gaps.
    #[test]
    fn ragged_batches_agree_with_their_definition() {
        let lengths = [3usize, 0, 70, 1, 129, 64];
        // Rates of a few bytes, of most, of one and of all but one.
        for (head_size, gap, keys, rate) in [
            (64, 0, &[][..], 0.2),
            (64, 8, &[2, 0, 64, 1, 65, 64], 0.6),
            (24, 5, &[1, 0, 70, 1, 128, 1], 0.001),
            (128, 0, &[3, 0, 1, 1, 129, 63], 0.999),
        ] {
            let case = Case { gap, keys: keys.to_vec(), ..case(&lengths, 2, head_size).dropout(rate) };
            let (spec, cu_seqlens, tokens) = (case.spec, case.cu_seqlens(), case.tokens());
            let (qkv, dout) = (case.qkv::<bf16>(), case.dout::<bf16>());
            let (h, ld) = (spec.hidden(), case.ld());
            let batch = || Ragged { cu_seqlens: &cu_seqlens, keys };
            let simulation =
                Simulation { spec: &spec, storage: Storage::Bf16, cu_seqlens: &cu_seqlens, keys, qkv: &qkv, ld };

            let (mut out, mut lse) = (vec![bf16::NAN; tokens * h], vec![f32::NAN; tokens * 2]);
            let (plain, wide) = (widen::<f32, bf16>(&qkv), widen::<f64, bf16>(&qkv));
            let naive = reference::forward::<f32>(&spec, batch(), &plain, &plain[h..], &plain[2 * h..], ld);
            let exact = reference::forward::<f64>(&spec, batch(), &wide, &wide[h..], &wide[2 * h..], ld);
            let naive_out: Vec<bf16> = store(&naive.0);
            for sm in [Sm::Sm90a, Sm::Sm80] {
                let case = format!("{case}, {sm:?}");
                out.fill(bf16::NAN);
                lse.fill(f32::NAN);
                let gpu = GpuRunner::simulator(sm);
                simulation.forward(&gpu, &mut out, &mut lse).unwrap_or_else(|message| panic!("{case}: {message}"));
                within("out", &out, &naive_out, &exact.0).unwrap_or_else(|message| panic!("{case}: {message}"));
                within("lse", &lse, &naive.1, &exact.1).unwrap_or_else(|message| panic!("{case}: {message}"));
            }

            let saved = Some((&widen::<f32, bf16>(&naive_out)[..], &naive.1[..]));
            let (p, w) = (widen::<f32, bf16>(&dout), widen::<f64, bf16>(&dout));
            let naive =
                reference::backward(&spec, batch(), ([&plain, &plain[h..], &plain[2 * h..]], ld), saved, &p, |x| x);
            let exact = reference::backward(&spec, batch(), ([&wide, &wide[h..], &wide[2 * h..]], ld), None, &w, |x| x);
            for sm in [Sm::Sm90a, Sm::Sm80] {
                let case = format!("{case}, {sm:?}");
                let mut gradients = [(); 3].map(|()| vec![bf16::NAN; tokens * h]);
                let [dq, dk, dv] = &mut gradients;
                let ran = simulation.backward(&GpuRunner::simulator(sm), (&out, &lse), &dout, [dq, dk, dv]);
                ran.unwrap_or_else(|message| panic!("{case}: {message}"));
                for (i, name) in ["dq", "dk", "dv"].into_iter().enumerate() {
                    let held = within(name, &gradients[i], &store(&naive[i]), &exact[i]);
                    held.unwrap_or_else(|message| panic!("{case}: {message}"));
                }
            }
        }
    }

    /// Lengths around the tiles of Hopper's forward kernel: 192 queries x 128 keys for three consumers, 128 x 128 for two;
    /// more tiles than blocks, so that a block's tiles overlap, and fewer keys than tokens.
    #[test]
    fn hopper_forward_agrees_with_its_definition_around_its_tiles() {
        let with_keys = |case: Case, keys: &[u32]| Case { keys: keys.to_vec(), ..case };
        let cases = [
            (case(&[1, 0, 64, 127, 128], 1, 64), Storage::Bf16),
            (case(&[129, 191, 192, 193], 1, 64), Storage::Bf16),
            (case(&[385, 1], 1, 64), Storage::F16),
            (with_keys(case(&[193, 1, 140], 2, 64).dropout(0.3), &[128, 1, 129]), Storage::Bf16),
            (with_keys(case(&[512], 1, 64), &[257]), Storage::Bf16),
            (with_keys(case(&[129, 64, 100, 1], 2, 128).dropout(0.2), &[129, 1, 99, 1]), Storage::Bf16),
        ];
        for (case, storage) in cases {
            match storage {
                Storage::F16 => forward_agrees::<f16>(&case, storage, f16::from_f32, f16::to_f32),
                _ => forward_agrees::<bf16>(&case, storage, bf16::from_f32, bf16::to_f32),
            }
        }
    }

    fn forward_agrees<X: Pod>(case: &Case, storage: Storage, narrow: fn(f32) -> X, widen: fn(X) -> f32) {
        let (spec, cu_seqlens, tokens, ld) = (case.spec, case.cu_seqlens(), case.tokens(), case.ld());
        let qkv: Vec<X> = case.qkv::<f32>().into_iter().map(narrow).collect();
        let plain: Vec<f32> = qkv.iter().map(|&x| widen(x)).collect();
        let wide: Vec<f64> = plain.iter().map(|&x| f64::from(x)).collect();
        let (h, batch) = (spec.hidden(), || Ragged { cu_seqlens: &cu_seqlens, keys: &case.keys });
        let naive = reference::forward::<f32>(&spec, batch(), &plain, &plain[h..], &plain[2 * h..], ld);
        let exact = reference::forward::<f64>(&spec, batch(), &wide, &wide[h..], &wide[2 * h..], ld);
        let rounded: Vec<f32> = naive.0.iter().map(|&x| widen(narrow(x))).collect();
        let (mut out, mut lse) = (vec![narrow(f32::NAN); tokens * h], vec![f32::NAN; tokens * spec.heads]);
        let simulation = Simulation { spec: &spec, storage, cu_seqlens: &cu_seqlens, keys: &case.keys, qkv: &qkv, ld };
        let ran = simulation.forward(&GpuRunner::simulator(Sm::Sm90a), &mut out, &mut lse);
        ran.unwrap_or_else(|message| panic!("{case}: {message}"));
        let out: Vec<f32> = out.into_iter().map(widen).collect();
        within("out", &out, &rounded, &exact.0).unwrap_or_else(|message| panic!("{case}: {message}"));
        within("lse", &lse, &naive.1, &exact.1).unwrap_or_else(|message| panic!("{case}: {message}"));
    }
}
