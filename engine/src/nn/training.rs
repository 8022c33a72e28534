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

    /// Sets the limit of the gradient's global norm; `None` is no limit.
    pub fn set_clip(&mut self, limit: Option<f64>) {
        self.clip = limit;
    }

    /// Clears the gradients, runs `loss`, propagates back, clips and updates the parameters; gives the loss before the
    /// update.
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
            clip_global_norm(gradients, 1.0, *clip, optimizer.steps() + 1)?;
            optimizer.step(params, gradients, learning_rate)?;
            Ok(value)
        })
    }

    /// Runs `compute` without gradients.
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
