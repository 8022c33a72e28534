//! Multi-head attention over ragged sequences.
//!
//! ```text
//! S_h = softmax(scale · q_h·k_hᵀ)      ctx_h = dropout(S_h)·v_h      per sequence, per head h
//! ```
//!
//! q, k and v are contiguous in one buffer [T, 3H], the output of one GEMM. The scores are never stored: forward
//! keeps the logarithm of each row's sum of exponentials, backward computes the scores again (see
//! [`kernels::attention`]). Cost: 4·S·H FLOPs a token forward, 10·S·H backward.
use super::check;
use crate::{
    device::{Device, Gpu},
    dtype::{DType, floats},
    error::{EngineError, Result},
    launch::{aligned, storage},
    tape::{BackwardContext, List, Op, Tape, Var},
    tensor::Tensor,
};
use kernels::{
    Cost,
    attention::{self, Gradients, Ragged, backward_scratch_len},
};
use kernels_cuda::program::storage_of;
use kernels_cuda::{
    arguments::Address,
    attention::{
        arguments::{AttentionArgs, DeltaArgs, Shape},
        sm80::{Flash, Step},
        sm90::HopperFlash,
        sm90_backward::{HopperBackward, Side},
        sm90_short::HopperShort,
    },
};
use ptx::{Sm, TensorMap};

pub use kernels::attention::Attention;

/// Rows of the sequences of a ragged batch: sequence b is `offsets[b]..offsets[b + 1]`.
#[derive(Clone, Debug)]
pub struct Sequences {
    offsets: Var,
    /// `[B]` tokens of each sequence that are keys: where not all are, and on a GPU, whose kernels always read them.
    keys: Option<Tensor>,
    tokens: usize,
    longest: usize,
    /// Σ S², what attention costs.
    pairs: u64,
}

impl Sequences {
    /// From cu_seqlens [B + 1], which begins with 0, never falls and ends with T.
    ///
    /// # Errors
    /// It does not, or there is not enough memory.
    pub fn new(tape: &Tape<'_>, offsets: &[u32]) -> Result<Self> {
        let lengths: Vec<u32> = offsets.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
        let inputs = tape.inputs([List::Plain(offsets), List::Plain(&lengths)])?;
        Self::of(tape, offsets, inputs)
    }

    /// The sequences between `offsets`, from inputs with the offsets and with the lengths.
    ///
    /// # Errors
    /// Offsets do not begin with 0, or fall.
    pub fn of(tape: &Tape<'_>, offsets: &[u32], [on_device, lengths]: [Var; 2]) -> Result<Self> {
        if offsets.first() != Some(&0) || !offsets.is_sorted() {
            let shown = &offsets[..offsets.len().min(8)];
            let problem =
                format!("offsets begin with 0 and never fall, these are {shown:?} ({} in all)", offsets.len());
            return Err(EngineError::shape("sequences", problem));
        }
        let of_each = || offsets.windows(2).map(|pair| pair[1] - pair[0]);
        Ok(Self {
            tokens: offsets[offsets.len() - 1] as usize,
            longest: of_each().max().unwrap_or(0) as usize,
            pairs: of_each().map(|length| u64::from(length) * u64::from(length)).sum(),
            offsets: on_device,
            // On a CPU all tokens are keys unless it is said otherwise.
            keys: tape.device().gpu().map(|_| lengths.value().clone()),
        })
    }

    /// Sequences of which only the first `keys[b]` tokens are keys: the rest is hidden by an attention mask,
    /// and attends without being attended to.
    ///
    /// # Errors
    /// `keys` is not `[B]`, or one of them is 0 or more than its sequence has tokens.
    pub fn with_keys(tape: &Tape<'_>, offsets: &[u32], keys: &[u32]) -> Result<Self> {
        let all = Self::new(tape, offsets)?;
        let fits = |(keys, pair): (&u32, &[u32])| (1..=pair[1] - pair[0]).contains(keys);
        if keys.len() != all.count() || !keys.iter().zip(offsets.windows(2)).all(fits) {
            let problem = format!("keys are 1 to the length of each of {} sequences, these are {keys:?}", all.count());
            return Err(EngineError::shape("sequences", problem));
        }
        Ok(Self { keys: Some(tape.input([keys.len()], keys)?.value().clone()), ..all })
    }

    /// Arguments of the kernels.
    fn ragged(&self) -> Ragged<'_> {
        Ragged { cu_seqlens: self.offsets.value().slice(), keys: self.keys.as_ref().map_or(&[], |keys| keys.slice()) }
    }

    /// cu_seqlens [B + 1].
    pub(super) fn offsets(&self) -> &Var {
        &self.offsets
    }

    /// T
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// B
    pub fn count(&self) -> usize {
        self.offsets.value().len() - 1
    }

    /// The longest sequence.
    pub fn longest(&self) -> usize {
        self.longest
    }

    fn cost(&self, spec: &Attention, products: u64, bytes: usize) -> Cost {
        Cost { flops: 2 * products * self.pairs * spec.hidden() as u64, bytes: bytes as u64 }
    }
}

/// Refuses what the kernel would panic at.
pub(super) fn check_spec(operation: &str, spec: &Attention) -> Result<()> {
    super::dropout::check_rate(operation, spec.dropout)?;
    let fine = spec.heads > 0 && (1..=attention::MAX_HEAD_SIZE).contains(&spec.head_size);
    if fine && spec.scale > 0.0 && spec.scale.is_finite() {
        return Ok(());
    }
    let Attention { heads, head_size, scale, .. } = spec;
    let most = attention::MAX_HEAD_SIZE;
    let problem =
        format!("{heads} heads of size {head_size}, scale {scale}: heads of 1 to {most} and a positive scale");
    Err(EngineError::shape(operation, problem))
}

/// qkv [T, 3H] to ctx [T, H]. Every token attends to all keys of its sequence.
///
/// Limits: no causal mask. A decoder composes attention of smaller operations: [`matmul`](super::matmul), [`add`](super::add)
/// of a mask [S, S] with -1e9 above the diagonal, [`softmax`](super::softmax), [`matmul`](super::matmul).
///
/// # Errors
/// Shapes do not fit the sequences and heads.
pub fn attention(tape: &Tape<'_>, qkv: &Var, sequences: &Sequences, spec: &Attention) -> Result<Var> {
    let dtype = check::float("attention", qkv)?;
    check_spec("attention", spec)?;
    check::shape("attention", "qkv", qkv, &[sequences.tokens, 3 * spec.hidden()])?;
    let mut out = tape.alloc([sequences.tokens, spec.hidden()], dtype)?;
    let mut lse = tape.alloc([sequences.tokens, spec.heads], DType::F32)?;
    forward(tape, spec, sequences, qkv.value(), &mut out, &mut lse)?;
    let saved = out.clone();
    tape.record(&[qkv], out, || AttentionOp {
        spec: *spec,
        sequences: sequences.clone(),
        qkv: qkv.value().clone(),
        out: saved,
        lse,
    })
}

pub(super) fn forward(
    tape: &Tape<'_>,
    spec: &Attention,
    sequences: &Sequences,
    qkv: &Tensor,
    out: &mut Tensor,
    lse: &mut Tensor,
) -> Result<()> {
    tape.expect_attention(spec.head_size);
    let h = spec.hidden();
    let cost = sequences.cost(spec, 2, 4 * out.len() * out.dtype().bytes());
    tape.launch_on("attention", cost, |device| match device {
        Device::Cpu(cpu) => {
            floats!(qkv.dtype(), X => {
                let [q, k, v] = split(qkv.slice::<X>(), h);
                let (out, lse) = (out.slice_mut::<X>(), lse.slice_mut());
                attention::forward(cpu, spec, attention::Operands { sequences: sequences.ragged(), q, k, v, ld: 3 * h }, out, lse);
            });
            Ok(())
        }
        Device::Cuda(gpu) => {
            let flash = OnGpu { gpu, spec, sequences, qkv };
            let arguments = AttentionArgs::forward(&flash.shape(), out.address_mut(), lse.address_mut());
            match flash.hopper(out.address_mut()) {
                Some((kernel, maps)) => {
                    let (count, longest) = (sequences.count(), sequences.longest);
                    let launch = kernel.launch(count, longest, spec.heads, gpu.info().multiprocessors as usize);
                    gpu.run(&kernel, launch, &arguments.with_maps(maps, count, longest))
                }
                None => flash.run(Step::Forward, &arguments),
            }
        }
    })
}

/// Attention on a GPU: what all its kernels take.
struct OnGpu<'a> {
    gpu: &'a Gpu,
    spec: &'a Attention,
    sequences: &'a Sequences,
    qkv: &'a Tensor,
}

impl OnGpu<'_> {
    fn kernel(&self, step: Step) -> Result<Flash> {
        let (h, head_size) = (self.spec.hidden(), self.spec.head_size);
        let dropout = self.dropout().is_some();
        let kernel =
            Flash::new(step, storage_of(storage(self.qkv.dtype())), head_size, 3 * h, dropout).ok_or_else(|| {
                let most = kernels_cuda::attention::sm80::MAX_HEAD_SIZE;
                EngineError::shape(
                    "attention",
                    format!("heads of size {head_size}; kernels of the GPU take up to {most}"),
                )
            })?;
        Ok(Flash { aligned: kernel.aligned && aligned(&[self.qkv.address()]), ..kernel })
    }

    fn dropout(&self) -> Option<kernels::dropout::Dropout> {
        self.spec.dropout.filter(|dropout| dropout.rate > 0.0)
    }

    /// Addresses of q, k and v.
    fn parts(&self) -> [Address; 3] {
        let h = self.spec.hidden();
        [0, h, 2 * h].map(|start| self.qkv.address().element(start, self.qkv.dtype().bytes()))
    }

    /// Hopper's forward pass, where there is one for these heads.
    fn hopper(&self, out: Address) -> Option<(HopperFlash, [TensorMap; 4])> {
        let (h, ld) = (self.spec.hidden(), 3 * self.spec.hidden());
        let (storage, longest) = (storage_of(storage(self.qkv.dtype())), self.sequences.longest);
        let kernel = (self.gpu.sm() == Sm::Sm90a)
            .then(|| HopperFlash::new(storage, self.spec.head_size, longest, ld, self.dropout().is_some()))??;
        let maps = kernel.maps(self.parts_and(out), self.sequences.tokens, h, ld);
        Some((kernel, maps.ok()?))
    }

    /// Hopper's kernel for the gradients of one side, where there is one for these heads.
    fn hopper_backward(&self, side: Side, dout: Address) -> Option<(HopperBackward, [TensorMap; 4])> {
        let (h, ld) = (self.spec.hidden(), 3 * self.spec.hidden());
        let storage = storage_of(storage(self.qkv.dtype()));
        let kernel = (self.gpu.sm() == Sm::Sm90a)
            .then(|| HopperBackward::new(side, storage, self.spec.head_size, ld, self.dropout().is_some()))??;
        let maps = kernel.maps(self.parts_and(dout), self.sequences.tokens, h, ld);
        Some((kernel, maps.ok()?))
    }

    /// Hopper's kernel for the gradients of all sides, where there is one for these heads and sequences.
    fn hopper_short(&self, dout: Address) -> Option<(HopperShort, [TensorMap; 4])> {
        let (h, ld) = (self.spec.hidden(), 3 * self.spec.hidden());
        let (storage, longest) = (storage_of(storage(self.qkv.dtype())), self.sequences.longest);
        let kernel = (self.gpu.sm() == Sm::Sm90a)
            .then(|| HopperShort::new(storage, self.spec.head_size, longest, ld, self.dropout().is_some()))??;
        let maps = kernel.maps(self.parts_and(dout), self.sequences.tokens, h, ld);
        Some((kernel, maps.ok()?))
    }

    /// Addresses of q, k, v and `other`: out or dout.
    fn parts_and(&self, other: Address) -> [u64; 4] {
        let [q, k, v] = self.parts();
        [q, k, v, other].map(|matrix| matrix.0)
    }

    /// Sequences and head as arguments.
    fn shape(&self) -> Shape {
        let Self { spec, sequences, .. } = self;
        let keys = sequences.keys.as_ref().expect("uploaded with the offsets");
        Shape {
            cu_seqlens: sequences.offsets.value().address(),
            keys: keys.address(),
            dropout: self.dropout(),
            ld: 3 * spec.hidden(),
            head_size: spec.head_size,
            score_scale: spec.scale,
        }
    }

    /// The gradients of one side, by the kernel that serves.
    fn gradients(&self, side: Side, [out, dout]: [Address; 2], arguments: AttentionArgs) -> Result<()> {
        let Self { gpu, spec, sequences, .. } = self;
        match self.hopper_backward(side, dout) {
            Some((kernel, maps)) => {
                // The kernel of the queries computes δ from them.
                let rows = |matrix| (side == Side::Queries).then_some(matrix);
                let arguments = AttentionArgs { out: rows(out), dout: rows(dout), ..arguments };
                let launch = kernel.launch(sequences.count(), sequences.longest, spec.heads);
                gpu.run(&kernel, launch, &arguments.with_maps_and_dout(maps))
            }
            None => {
                let step = if side == Side::Queries { Step::Queries } else { Step::Keys };
                self.run(step, &AttentionArgs { dout: Some(dout), ..arguments })
            }
        }
    }

    /// One of the kernels but δ's, of q, k and v at their addresses.
    fn run(&self, step: Step, arguments: &AttentionArgs) -> Result<()> {
        let Self { gpu, spec, sequences, .. } = self;
        let kernel = self.kernel(step)?;
        let launch = kernel.launch(sequences.count(), sequences.longest, spec.heads);
        gpu.run(&kernel, launch, &arguments.with_matrices(self.parts()))
    }

    fn backward(&self, out: &Tensor, lse: &Tensor, dout: &Tensor, dqkv: &mut Tensor, delta: &mut Tensor) -> Result<()> {
        let (h, heads, head_size) = (self.spec.hidden(), self.spec.heads, self.spec.head_size);
        let [out, dout, lse] = [out, dout, lse].map(Tensor::address);
        let (tokens, delta, short) = (self.sequences.tokens, delta.address_mut(), self.hopper_short(dout));
        if short.is_some() || self.hopper_backward(Side::Queries, dout).is_none() {
            let (kernel, rows) = (self.kernel(Step::Delta)?, tokens * heads);
            let arguments = DeltaArgs { out, dout, delta, rows, head_size };
            self.gpu.run(&kernel, Flash::delta_launch(tokens, heads), &arguments)?;
        }
        let [dq, dk, dv] = [0, h, 2 * h].map(|start| Some(dqkv.address_mut().element(start, dqkv.dtype().bytes())));
        let arguments = AttentionArgs::backward(&self.shape(), lse, delta, 3 * h);
        if let Some((kernel, maps)) = short {
            let (count, multiprocessors) = (self.sequences.count(), self.gpu.info().multiprocessors as usize);
            let arguments = AttentionArgs { dq, dk, dv, sequences: Some(count), ..arguments.with_maps_and_dout(maps) };
            return self.gpu.run(&kernel, kernel.launch(count, heads, multiprocessors), &arguments);
        }
        self.gradients(Side::Queries, [out, dout], AttentionArgs { dq, ..arguments })?;
        self.gradients(Side::Keys, [out, dout], AttentionArgs { dk, dv, ..arguments })
    }
}

/// q, k and v in rows of [T, 3H]; empty where there are no tokens.
fn split<X>(qkv: &[X], h: usize) -> [&[X]; 3] {
    [0, h, 2 * h].map(|start| qkv.get(start..).unwrap_or(&[]))
}

/// dqkv from dctx.
#[expect(clippy::too_many_arguments, reason = "all that forward saw and gave")]
pub(super) fn backward(
    tape: &Tape<'_>,
    spec: &Attention,
    sequences: &Sequences,
    qkv: &Tensor,
    out: &Tensor,
    lse: &Tensor,
    dout: &Tensor,
    dqkv: &mut Tensor,
) -> Result<()> {
    let h = spec.hidden();
    // On a GPU δ of every row and head.
    let scratch = match tape.device() {
        Device::Cpu(_) => backward_scratch_len(spec, sequences.tokens, sequences.longest),
        Device::Cuda(_) => sequences.tokens * spec.heads,
    };
    let mut scratch = tape.alloc([scratch], DType::F32)?;
    let cost = sequences.cost(spec, 5, 8 * out.len() * out.dtype().bytes());
    tape.launch_on("attention.backward", cost, |device| match device {
        Device::Cpu(cpu) => {
            floats!(qkv.dtype(), X => {
                let [q, k, v] = split(qkv.slice::<X>(), h);
                let gradients = Gradients::fused(dqkv.slice_mut::<X>(), h, 3 * h);
                let (out, lse, dout) = (out.slice::<X>(), lse.slice(), dout.slice::<X>());
                let batch = sequences.ragged();
                attention::backward(cpu, spec, attention::Operands { sequences: batch, q, k, v, ld: 3 * h }, attention::Upstream { out, lse, dout }, gradients, scratch.slice_mut());
            });
            Ok(())
        }
        Device::Cuda(gpu) => OnGpu { gpu, spec, sequences, qkv }.backward(out, lse, dout, dqkv, &mut scratch),
    })
}

struct AttentionOp {
    spec: Attention,
    sequences: Sequences,
    qkv: Tensor,
    out: Tensor,
    lse: Tensor,
}

impl Op for AttentionOp {
    fn name(&self) -> &'static str {
        "attention"
    }
    fn backward(self: Box<Self>, dy: Tensor, ctx: &mut BackwardContext<'_, '_>) -> Result<()> {
        let mut dqkv = ctx.tape.alloc(*self.qkv.shape(), self.qkv.dtype())?;
        backward(ctx.tape, &self.spec, &self.sequences, &self.qkv, &self.out, &self.lse, &dy, &mut dqkv)?;
        ctx.accumulate_grad(0, dqkv)
    }
}
