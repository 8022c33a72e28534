//! Row kernels: GELU, LayerNorm and softmax, compared with a copy of as many bytes.
//!
//! ```text
//! gelu       forward    y = gelu(x)                  backward   dx = dy · gelu'(x)
//!            fused      p = x + b, y = gelu(p), both stored
//! layernorm  forward    y = γ·x̂ + β                  backward   dx, dγ, dβ
//!            fused      s = x + r, y of s, both stored
//! softmax    forward    y                            backward   dx
//! ```

use super::{Case, Dtype, Random, sizes};
use crate::{
    interleaved::Contender,
    report::{About, Bound},
};
use half::bf16;
use kernels::{
    Cpu,
    activation::{self, Activation},
    layernorm::{self, Backward, Forward},
    softmax,
};

/// Row kernel and pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// GELU in its tanh form, as in ALBERT.
    GeluForward,
    /// GELU of x + bias, which is stored for backward.
    GeluFused,
    /// Gradient of GELU, from the stored x + bias.
    GeluBackward,
    /// LayerNorm.
    LayerNormForward,
    /// LayerNorm of x + residual, which is stored.
    LayerNormFused,
    /// Gradients of LayerNorm: input, gain and bias.
    LayerNormBackward,
    /// Softmax of each row.
    SoftmaxForward,
    /// Gradient of softmax, from its output.
    SoftmaxBackward,
}

impl Kernel {
    /// All GELU kernels.
    pub const GELU: [Self; 3] = [Self::GeluForward, Self::GeluFused, Self::GeluBackward];
    /// All LayerNorm kernels.
    pub const LAYERNORM: [Self; 3] = [Self::LayerNormForward, Self::LayerNormFused, Self::LayerNormBackward];
    /// All softmax kernels.
    pub const SOFTMAX: [Self; 2] = [Self::SoftmaxForward, Self::SoftmaxBackward];

    /// Names of operation and pass.
    const fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::GeluForward => ("gelu", "forward"),
            Self::GeluFused => ("gelu", "fused"),
            Self::GeluBackward => ("gelu", "backward"),
            Self::LayerNormForward => ("layernorm", "forward"),
            Self::LayerNormFused => ("layernorm", "fused"),
            Self::LayerNormBackward => ("layernorm", "backward"),
            Self::SoftmaxForward => ("softmax", "forward"),
            Self::SoftmaxBackward => ("softmax", "backward"),
        }
    }

    /// Operations per element as in the table of operations; a transcendental function counts as one.
    const fn flops(self) -> u64 {
        match self {
            Self::GeluForward | Self::GeluFused => 10,
            Self::GeluBackward => 17,
            Self::LayerNormForward | Self::LayerNormFused => 9,
            Self::LayerNormBackward => 16,
            Self::SoftmaxForward => 7,
            Self::SoftmaxBackward => 4,
        }
    }

    /// Number of matrices read or written, each once.
    const fn matrices(self) -> usize {
        match self {
            Self::GeluForward | Self::LayerNormForward | Self::SoftmaxForward => 2,
            Self::GeluFused | Self::GeluBackward | Self::LayerNormBackward | Self::SoftmaxBackward => 3,
            Self::LayerNormFused => 4,
        }
    }
}

/// Row kernel over a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows {
    /// Kernel and pass.
    pub kernel: Kernel,
    /// Number of rows T.
    pub rows: usize,
    /// Row width, such as H.
    pub columns: usize,
    /// Storage type of all matrices.
    pub dtype: Dtype,
}

impl Rows {
    pub(super) fn prepare(&self, cpu: &Cpu) -> Case {
        let call = match self.dtype {
            Dtype::F32 => self.contender::<f32>(cpu.clone()),
            Dtype::Bf16 => self.contender::<bf16>(cpu.clone()),
        };
        Case { about: self.about(), contenders: vec![call.within_pass(cpu)] }
    }

    pub(super) fn about(&self) -> About {
        let &Self { kernel, rows, columns, dtype } = self;
        let (operation, pass) = kernel.names();
        About {
            kernel: operation,
            case: format!("{pass} {rows}x{columns}"),
            sizes: sizes([("rows", rows), ("columns", columns)]),
            dtype: dtype.name(),
            bound: Bound::Traffic,
            flops: kernel.flops() * (rows * columns) as u64,
            bytes: (kernel.matrices() * rows * columns * dtype.bytes()) as u64,
            tokens: None,
        }
    }

    fn contender<X: Random>(&self, cpu: Cpu) -> Contender {
        let columns = self.columns;
        let matrix = |name| X::random(self.rows * columns, name);
        let (x, other, mut y) = (matrix(1), matrix(2), matrix(3));
        match self.kernel {
            Kernel::GeluForward => Contender::new("ours", move || {
                activation::bias_activation_forward(&cpu, Activation::GeluTanh, &x, None, None, &mut y);
            }),
            Kernel::GeluFused => {
                let (mut pre, bias) = (other, crate::random(columns, 4));
                Contender::new("ours", move || {
                    let pre = Some(&mut pre[..]);
                    activation::bias_activation_forward(&cpu, Activation::GeluTanh, &x, Some(&bias), pre, &mut y);
                })
            }
            Kernel::GeluBackward => {
                Contender::new("ours", move || activation::backward(&cpu, Activation::GeluTanh, &x, &other, &mut y))
            }
            Kernel::SoftmaxForward => Contender::new("ours", move || softmax::forward(&cpu, columns, &x, &mut y)),
            Kernel::SoftmaxBackward => {
                let mut probabilities = other;
                softmax::forward(&cpu, columns, &x, &mut probabilities);
                Contender::new("ours", move || softmax::backward(&cpu, columns, &probabilities, &x, &mut y))
            }
            Kernel::LayerNormForward | Kernel::LayerNormFused | Kernel::LayerNormBackward => {
                self.layernorm(cpu, x, other, y)
            }
        }
    }

    fn layernorm<X: Random>(&self, cpu: Cpu, x: Vec<X>, mut other: Vec<X>, mut y: Vec<X>) -> Contender {
        let spec = layernorm::Spec { rows: self.rows, columns: self.columns, eps: 1e-12 };
        let (gain, bias) = (crate::random(self.columns, 4), crate::random(self.columns, 5));
        let mut stats = vec![0f32; 2 * self.rows];
        match self.kernel {
            Kernel::LayerNormFused => {
                let mut sum = y.clone();
                Contender::new("ours", move || {
                    let (residual, s, y, stats) = (Some(&other[..]), Some(&mut sum[..]), &mut y[..], &mut stats[..]);
                    let operands = Forward { x: &x, residual, gain: &gain, bias: &bias, s, y, stats };
                    layernorm::forward(&cpu, &spec, operands);
                })
            }
            Kernel::LayerNormBackward => {
                let (out, of_rows) = (&mut y[..], &mut stats[..]);
                let (residual, s) = (None, None);
                let operands = Forward { x: &x, residual, gain: &gain, bias: &bias, s, y: out, stats: of_rows };
                layernorm::forward(&cpu, &spec, operands);
                let (mut dgain, mut dbias) = (gain.clone(), bias);
                let mut scratch = vec![0f32; layernorm::backward_scratch_len(&spec)];
                Contender::new("ours", move || {
                    let (ds, dgain, dbias) = (&mut other[..], &mut dgain[..], &mut dbias[..]);
                    let operands = Backward { s: &x, stats: &stats, gain: &gain, dy: &y, ds, dgain, dbias };
                    layernorm::backward(&cpu, &spec, operands, &mut scratch);
                })
            }
            _ => Contender::new("ours", move || {
                let (y, stats) = (&mut y[..], &mut stats[..]);
                let operands = Forward { x: &x, residual: None, gain: &gain, bias: &bias, s: None, y, stats };
                layernorm::forward(&cpu, &spec, operands);
            }),
        }
    }
}
