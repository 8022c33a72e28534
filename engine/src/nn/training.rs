//! Parameters, gradients, optimizer and workspace of a training, one optimizer step a call.
use super::{Graph, Value};
use crate::{
    device::Device,
    error::Result,
    optim::{AdamConfig, Optimizer, OptimizerKind, ParamOptions, clip_global_norm},
    param::{Gradients, ParamStore},
    tape::Workspace,
};

/// Parameters, gradients, optimizer and workspace of a training.
#[derive(Debug)]
pub struct Training {
    workspace: Workspace,
    params: ParamStore,
    gradients: Gradients,
    optimizer: Optimizer,
    clip: Option<f64>,
}

impl Training {
    /// A training of `params` on `device`. Decay and trust ratio apply to weights and tables, not to biases and gains; the
    /// gradient is clipped to a global norm of 1 ([`Training::set_clip`]).
    ///
    /// # Errors
    /// A number of `config` is out of range, there is not enough memory, or the device failed.
    pub fn new(device: Device, params: ParamStore, kind: OptimizerKind, config: AdamConfig) -> Result<Self> {
        let options = |info: &crate::param::ParamInfo| ParamOptions {
            weight_decay: info.is_weight(),
            trust_ratio: info.is_weight(),
        };
        Ok(Self {
            gradients: params.gradients(&device)?,
            optimizer: Optimizer::new(&params, kind, config, options)?.on(&device)?,
            workspace: Workspace::new(device),
            params,
            clip: Some(1.0),
        })
    }

    /// Sets the limit of the gradient's global norm; with `None` there is no limit.
    pub fn set_clip(&mut self, limit: Option<f64>) {
        self.clip = limit;
    }

    /// Clears the gradients, runs `loss`, propagates back, clips and updates the parameters; gives the loss before the
    /// update.
    ///
    /// A net that [`Training::infer`] uses too is a function that names the lifetime of the step, or a closure in
    /// [`module`](super::module):
    ///
    /// ```
    /// use engine::{Device, ParamBuilder, Result};
    /// use engine::nn::{self, Graph, Linear, Training, Value};
    /// use engine::optim::{AdamConfig, OptimizerKind};
    ///
    /// fn net<'t>(t: Graph<'t>, layers: &[Linear; 2], x: &[f32]) -> Result<Value<'t>> {
    ///     t.input([x.len() / 2, 2], x)?.apply(&layers[0])?.gelu()?.apply(&layers[1])
    /// }
    ///
    /// # fn main() -> Result<()> {
    /// let (points, labels) = ([0., 0., 0., 1., 1., 0., 1., 1.], [0u32, 1, 1, 0]);
    /// let mut params = ParamBuilder::new();
    /// let l1 = Linear::new(&mut params.scope("l1"), 2, 8)?;
    /// let l2 = Linear::new(&mut params.scope("l2"), 8, 2)?;
    /// let device = Device::cpu()?;
    /// let params = params.build(device.processor(), 0)?;
    /// let mut training = Training::new(device, params, OptimizerKind::AdamW, AdamConfig::default())?;
    ///
    /// let loss = training.step(0.05, |t| net(t, &[l1, l2], &points)?.cross_entropy(&t.input([4], &labels)?))?;
    /// let logits = training.infer(|t| net(t, &[l1, l2], &points)?.value().to_vec())?; // 4 rows of 2
    ///
    /// let same = nn::module(|x| x.apply(&l1)?.gelu()?.apply(&l2));
    /// assert_eq!(logits, training.infer(|t| t.input([4, 2], &points)?.apply(&same)?.value().to_vec())?);
    /// # assert!(loss.is_finite() && logits.len() == 8);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As `loss`; the gradient is not finite, and the parameters are unchanged; or the device failed.
    pub fn step(
        &mut self,
        learning_rate: f64,
        loss: impl for<'t> FnOnce(Graph<'t>) -> Result<Value<'t>>,
    ) -> Result<f32> {
        let Self { workspace, params, gradients, optimizer, clip } = self;
        let cpu = workspace.device().processor().clone();
        cpu.enter(|| {
            gradients.clear()?;
            let value = {
                let tape = workspace.train(params, None);
                let loss = loss(Graph::new(&tape))?;
                tape.backward(&loss, gradients)?;
                loss.item()?
            };
            clip_global_norm(gradients, *clip, optimizer.steps() + 1)?;
            optimizer.step(params, gradients, learning_rate)?;
            Ok(value)
        })
    }

    /// Runs `compute` without gradients. Its result cannot hold [`Value`]s, which end with the step:
    /// `value().to_vec()` copies the elements.
    ///
    /// # Errors
    /// As `compute`.
    pub fn infer<R>(&mut self, compute: impl for<'t> FnOnce(Graph<'t>) -> Result<R>) -> Result<R> {
        let Self { workspace, params, .. } = self;
        let cpu = workspace.device().processor().clone();
        cpu.enter(|| {
            let tape = workspace.infer(params, None);
            compute(Graph::new(&tape))
        })
    }

    /// The parameters. On a GPU their values there may be newer: see [`ParamStore::download`].
    pub fn params(&self) -> &ParamStore {
        &self.params
    }

    /// The parameters, to be changed or downloaded.
    pub fn params_mut(&mut self) -> &mut ParamStore {
        &mut self.params
    }

    /// The optimizer.
    pub fn optimizer(&self) -> &Optimizer {
        &self.optimizer
    }

    /// The workspace: profiler, memory.
    pub fn workspace(&self) -> &Workspace {
        &self.workspace
    }
}
