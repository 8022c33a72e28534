//! All tensors of a forward pass on an example, under names for comparison with other implementations.
//!
//! ```text
//! hidden.{k}            [S, H]       k = 0: the encoder's input; k = n: the output of layer n (its last inner block)
//! attention.{k}         [A, S, S]    probabilities of block k (from 0), rows are queries
//! pooled                [H]
//! prediction_logits     [S, V]       sop_logits [2]
//! logits                [n] of a sequence, [S, n] of tokens, [C] of choices
//! start_logits, end_logits [S]       answer_logit [] (SQuAD 2.0 graph: high where there is no answer)
//! loss                  []           where the example has labels
//! ```
//!
//! With C choices, hidden, attention and pooled have C as first dimension. Dropout is off. As in Hugging Face's
//! classes, tokens hidden by an attention mask are not keys but still have rows, whose outputs are meaningless.
//!
//! The loss is that of the example alone: means over its labeled tokens, the unweighted sum of several losses, and
//! (start + end) / 2 for spans. [`Forward::gradients`] are those of the sum of the losses of all examples so far.

mod deviation;
mod example;
#[cfg(test)]
mod gpu_tests;

use std::path::{Path, PathBuf};

use engine::ops::Sequences;
use engine::{Device, EngineError, Gradients, Precision, Tape, Var, Workspace, ops, profile::Profile};

use crate::checkpoint::{LoadReport, ModelFolder};
use crate::config::{Heads, ProblemType};
use crate::finite::check_finite;
use crate::heads::{SquadV2Head, Task};
use crate::loaded::{InferenceError, LoadedModel};
use crate::model::{ForwardOptions, Inputs, Model, Tokens};
pub use deviation::{Deviation, deviations};
pub use example::Example;
use example::{IGNORED, Labels, Token};

/// Tensors to return in addition to the outputs of the heads and the last hidden state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutputSelection {
    /// All hidden states.
    pub layers: bool,
    /// Attention probabilities.
    pub attention: bool,
    /// The loss; an example without labels is an error.
    pub loss: bool,
    /// Gradients of the loss.
    pub gradients: bool,
}

/// A tensor by name.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedTensor {
    /// Name, as listed in the module.
    pub name: String,
    /// Shape, as listed in the module.
    pub shape: Vec<usize>,
    /// Elements, row by row.
    pub values: Vec<f32>,
}

/// A loaded model that runs examples one by one.
#[derive(Debug)]
pub struct Forward {
    loaded: LoadedModel,
    gradients: Gradients,
    /// Names of the parameters in the file, in the order of the store.
    names: Vec<String>,
    report: LoadReport,
    folder: PathBuf,
    problem_type: Option<ProblemType>,
}

impl Forward {
    /// Loads the model in `folder` with all its heads.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub fn load(folder: &Path, device: Device) -> Result<Self, InferenceError> {
        let files = ModelFolder::open(folder)?;
        let (loaded, report) = LoadedModel::new(&files, files.heads(), Workspace::new(device))?;
        let name = |id| {
            let name = loaded.params.name(id);
            files.name_in_file(name).unwrap_or(name).to_owned()
        };
        Ok(Self {
            names: loaded.params.ids().map(name).collect(),
            folder: files.path().to_path_buf(),
            problem_type: files.config().problem_type,
            report,
            gradients: loaded.params.gradients(loaded.workspace.device())?,
            loaded,
        })
    }

    /// Model that runs the examples.
    pub fn model(&self) -> &Model {
        &self.loaded.model
    }

    /// The heads that were loaded.
    pub fn heads(&self) -> Heads {
        self.loaded.model.heads()
    }

    /// Folder of the model and its tokenizer.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Loaded tensors, and tensors of the file that the model does not use.
    pub fn report(&self) -> &LoadReport {
        &self.report
    }

    /// Kernel timings; empty until profiling is switched on.
    pub fn profile(&self) -> &Profile {
        self.loaded.workspace.profile()
    }

    /// Sets the precision of later calls; the gradients of int8 are computed in f32.
    ///
    /// # Errors
    /// A weight exceeds the range of bf16, or the device does not have the precision.
    pub fn set_precision(&mut self, precision: Precision) -> Result<(), InferenceError> {
        Ok(self.loaded.set_precision(precision)?)
    }

    /// Runs `example`; its gradients are added to those of earlier examples.
    ///
    /// # Errors
    /// Labels are required but missing, or do not fit the model's heads, an output is not finite, or the engine failed.
    pub fn run(&mut self, example: &Example, selection: OutputSelection) -> Result<Vec<NamedTensor>, InferenceError> {
        let problem_type = self.problem_type;
        let Self { loaded: LoadedModel { model, params, workspace }, gradients, .. } = self;
        let cpu = workspace.device().processor().clone();
        cpu.enter(|| {
            let tape = if selection.gradients { workspace.train(params, None) } else { workspace.infer(params, None) };
            let mut pass = Pass::new(&tape, model, example)?;
            pass.encoder(selection)?;
            let mut losses = pass.pretraining()?;
            losses.extend(pass.task(problem_type)?);
            let loss = losses.into_iter().map(Ok).reduce(|a, b| ops::add(&tape, &a?, &b?)).transpose()?;
            match &loss {
                Some(loss) => pass.keep("loss", vec![], loss)?,
                None if selection.loss || selection.gradients => {
                    return Err(InferenceError::Input(
                        "no labels for any head of the model, and its loss is wanted".into(),
                    ));
                }
                None => {}
            }
            let out = std::mem::take(&mut pass.out);
            if let Some(loss) = loss.filter(|_| selection.gradients) {
                tape.backward(&loss, gradients)?;
            }
            drop(pass);
            drop(tape);
            for named in &out {
                check_finite(&named.values, 1, params, |_| format!("tensor {}", named.name))?;
            }
            if selection.gradients {
                let flat = gradients.elements()?;
                for id in params.ids() {
                    let values = &flat[gradients.range(id)];
                    check_finite(values, 1, params, |_| format!("the gradient of {}", params.name(id)))?;
                }
            }
            Ok(out)
        })
    }

    /// Gradients of the sum of all losses so far, as `grad.` and the parameter's name in the file.
    ///
    /// # Errors
    /// The GPU that computed them failed.
    pub fn gradients(&self) -> Result<Vec<NamedTensor>, InferenceError> {
        let flat = self.gradients.elements()?;
        let of = |(id, name): (engine::ParamId, &String)| NamedTensor {
            name: format!("grad.{name}"),
            shape: self.loaded.params.shape(id).to_vec(),
            values: flat[self.gradients.range(id)].to_vec(),
        };
        Ok(self.loaded.params.ids().zip(&self.names).map(of).collect())
    }
}

/// Tokens that have a label.
struct Labeled {
    /// Their rows among the T tokens, in ascending order.
    rows: Vec<u32>,
    labels: Vec<u32>,
}

/// State of one example while it runs.
struct Pass<'a, 'w> {
    tape: &'a Tape<'w>,
    model: &'a Model,
    example: &'a Example,
    inputs: Inputs,
    cu_seqlens: Vec<u32>,
    /// Row of each token of the example: masked tokens come after the rest of their row.
    row_of: Vec<u32>,
    /// The encoder's output.
    x: Option<Var>,
    out: Vec<NamedTensor>,
}

impl<'a, 'w> Pass<'a, 'w> {
    fn new(tape: &'a Tape<'w>, model: &'a Model, example: &'a Example) -> Result<Self, InferenceError> {
        let length = example.length();
        let cu_seqlens: Vec<u32> = (0..=example.rows.len()).map(|row| (row * length) as u32).collect();
        let (mut tokens, mut keys) = (Vec::new(), Vec::new());
        let mut row_of = vec![0; example.rows.len() * length];
        for (r, row) in example.rows.iter().enumerate() {
            let (seen, hidden): (Vec<Token>, Vec<Token>) = row.iter().copied().partition(|token| token.is_seen);
            keys.push(seen.len() as u32);
            for token in seen.into_iter().chain(hidden) {
                row_of[r * length + token.position as usize] = tokens.len() as u32;
                tokens.push(token);
            }
        }
        let ids: Vec<u32> = tokens.iter().map(|token| token.id).collect();
        let segments: Vec<u32> = tokens.iter().map(|token| token.segment).collect();
        let positions: Vec<u32> = tokens.iter().map(|token| token.position).collect();
        let mut inputs = Inputs::new(
            tape,
            Tokens { ids: &ids, segments: &segments, positions: &positions, cu_seqlens: &cu_seqlens },
        )?;
        if keys.iter().any(|&keys| (keys as usize) < length) {
            inputs = inputs.with_keys(tape, &cu_seqlens, &keys)?;
        }
        let first: Vec<u32> = (0..example.rows.len()).map(|row| row_of[row * length]).collect();
        inputs.first_tokens = tape.input([first.len()], &first)?;
        Ok(Self { tape, model, example, inputs, cu_seqlens, row_of, x: None, out: Vec::new() })
    }

    /// Stores `value` unchanged, under `shape`.
    fn keep(&mut self, name: &str, shape: Vec<usize>, value: &Var) -> Result<(), EngineError> {
        self.out.push(NamedTensor { name: name.to_owned(), shape, values: value.value().to_vec()? });
        Ok(())
    }

    /// Stores rows `[T, width]` in the order of the example; `None` omits the second dimension.
    fn keep_tokens(&mut self, name: &str, width: Option<usize>, value: &Var) -> Result<(), EngineError> {
        let (rows, step) = (value.value().to_vec()?, width.unwrap_or(1));
        let values = self.row_of.iter().flat_map(|&row| rows[row as usize * step..][..step].iter().copied()).collect();
        let mut shape = self.rows();
        shape.push(self.example.length());
        shape.extend(width);
        self.out.push(NamedTensor { name: name.to_owned(), shape, values });
        Ok(())
    }

    /// First dimension for an example of several choices.
    fn rows(&self) -> Vec<usize> {
        Some(self.example.rows.len()).filter(|&rows| rows > 1).into_iter().collect()
    }

    fn encoder(&mut self, selection: OutputSelection) -> Result<(), InferenceError> {
        let (tape, model) = (self.tape, self.model);
        let (hidden, inner) = (model.config().hidden_size, model.config().inner_group_num);
        let last = model.config().blocks().len();
        let mut states = Vec::new();
        let x = model.encode_with(tape, &self.inputs, &ForwardOptions::evaluation(tape), |_, x| {
            states.push(x.clone());
            Ok(())
        })?;
        for (k, state) in states.iter().enumerate() {
            if k.is_multiple_of(inner) && (selection.layers || k == last) {
                self.keep_tokens(&format!("hidden.{}", k / inner), Some(hidden), state)?;
            }
            if selection.attention && k < last {
                self.keep_attention(k, &tape.detach(state))?;
            }
        }
        self.x = Some(x);
        Ok(())
    }

    fn keep_attention(&mut self, block: usize, x: &Var) -> Result<(), InferenceError> {
        let (length, heads) = (self.example.length(), self.model.config().num_attention_heads);
        let mut values = Vec::new();
        let all = self.model.attention_probabilities(self.tape, x, &self.inputs, block)?;
        for (row, probabilities) in all.iter().enumerate() {
            let p = probabilities.value().to_vec()?;
            let of = |token: usize| self.row_of[row * length + token] as usize - row * length;
            for head in 0..heads {
                let at = |query: usize, key: usize| p[(head * length + of(query)) * length + of(key)];
                values.extend((0..length * length).map(|i| at(i / length, i % length)));
            }
        }
        let mut shape = self.rows();
        shape.extend([heads, length, length]);
        self.out.push(NamedTensor { name: format!("attention.{block}"), shape, values });
        Ok(())
    }

    fn x(&self) -> Var {
        self.x.clone().expect("the encoder ran first")
    }

    /// Pooler output p `[B, H]`, stored at its first use.
    fn pooled(&mut self) -> Result<Option<Var>, InferenceError> {
        let Some(pooler) = self.model.pooler() else { return Ok(None) };
        let pooled = pooler.forward(self.tape, &self.x(), &self.inputs.first_tokens)?;
        if !self.out.iter().any(|named| named.name == "pooled") {
            let mut shape = self.rows();
            shape.push(self.model.config().hidden_size);
            self.keep("pooled", shape, &pooled)?;
        }
        Ok(Some(pooled))
    }

    /// Runs the pre-training heads and returns their losses.
    fn pretraining(&mut self) -> Result<Vec<Var>, InferenceError> {
        let (tape, model, x) = (self.tape, self.model, self.x());
        let mut losses = Vec::new();
        let pooled = self.pooled()?;
        if let Some(head) = model.mlm() {
            let all: Vec<u32> = (0..self.row_of.len() as u32).collect();
            let logits = head.logits(tape, &tape.detach(&x), &tape.input([all.len()], &all)?)?;
            self.keep_tokens("prediction_logits", Some(model.config().vocab_size), &logits)?;
            if let Some(Labeled { rows, labels }) = self.token_labels(model.config().vocab_size)? {
                let positions = tape.input([rows.len()], &rows)?;
                let targets = tape.input([labels.len()], &labels)?;
                losses.push(head.loss(tape, &x, &positions, &targets, rows.len() as f32)?.loss);
            }
        }
        if let (Some(head), Some(pooled)) = (model.sentence(), pooled) {
            let logits = head.logits(tape, &pooled)?;
            let mut shape = self.rows();
            shape.push(2);
            self.keep("sop_logits", shape, &logits)?;
            if let Some(label) = self.example.sentence_label {
                losses.push(head.loss(tape, &pooled, &tape.input([1], &[label])?, 1.0)?.loss);
            }
        }
        Ok(losses)
    }

    /// Labeled tokens, in the order of their rows.
    fn token_labels(&self, classes: usize) -> Result<Option<Labeled>, InferenceError> {
        let Some(Labels::Tokens(labels)) = &self.example.labels else { return Ok(None) };
        if labels.len() != self.row_of.len() {
            return Err(InferenceError::Input(format!(
                "`labels` has {} numbers and `input_ids` {}; both must be alike",
                labels.len(),
                self.row_of.len()
            )));
        }
        let mut labeled: Vec<(u32, u32)> = Vec::new();
        for (&row, &label) in self.row_of.iter().zip(labels).filter(|(_, label)| **label != IGNORED) {
            labeled.push((row, class(label, classes)?));
        }
        labeled.sort_unstable();
        let (rows, labels) = labeled.iter().copied().unzip();
        Ok((!labeled.is_empty()).then_some(Labeled { rows, labels }))
    }

    /// Runs the task head and returns its loss.
    fn task(&mut self, problem_type: Option<ProblemType>) -> Result<Option<Var>, InferenceError> {
        let (tape, x) = (self.tape, self.x());
        let Some(task) = self.model.task() else { return Ok(None) };
        match task {
            Task::Sequence(head) => {
                let pooled = self.pooled()?.expect("the head's class has a pooler");
                let logits = head.logits(tape, &pooled, None)?;
                let labels = logits.shape()[1];
                let mut shape = self.rows();
                shape.push(labels);
                self.keep("logits", shape, &logits)?;
                self.sequence_loss(&logits, problem_type)
            }
            Task::Token(head) => {
                let logits = head.logits(tape, &x, None)?;
                let classes = logits.shape()[1];
                self.keep_tokens("logits", Some(classes), &logits)?;
                let Some(Labeled { rows, labels }) = self.token_labels(classes)? else { return Ok(None) };
                let rows = tape.input([rows.len()], &rows)?;
                let count = labels.len();
                let labels = tape.input([count], &labels)?;
                let chosen = ops::gather_rows(tape, &logits, &rows)?;
                Ok(Some(ops::cross_entropy(tape, &chosen, &labels, count as f32)?.loss))
            }
            Task::Choice(head) => {
                let pooled = self.pooled()?.expect("the head's class has a pooler");
                let scores = head.scores(tape, &pooled, None)?;
                let choices = scores.shape()[0];
                self.keep("logits", vec![choices], &scores)?;
                let Some(Labels::Class(label)) = self.example.labels else { return Ok(None) };
                let question = Sequences::new(tape, &[0, choices as u32])?;
                let label = tape.input([1], &[class(label, choices)?])?;
                Ok(Some(ops::sequence_cross_entropy(tape, &scores, &question, &label, 1.0)?.loss))
            }
            Task::Span(head) => {
                let logits = head.logits(tape, &x)?;
                self.keep_tokens("start_logits", None, &logits[0])?;
                self.keep_tokens("end_logits", None, &logits[1])?;
                let Some([start, end]) = self.span()? else { return Ok(None) };
                let sequences = Sequences::new(tape, &self.cu_seqlens)?;
                Ok(Some(head.loss(tape, &logits, &sequences, [&start, &end], 1.0)?))
            }
            Task::SquadV2(head) => self.squad_v2(head),
        }
    }

    /// Loss of the scores z `[1, n]` of a sequence, according to the model's `problem_type`.
    fn sequence_loss(&self, z: &Var, problem_type: Option<ProblemType>) -> Result<Option<Var>, InferenceError> {
        let (tape, n) = (self.tape, z.shape()[1]);
        let Some(labels) = &self.example.labels else { return Ok(None) };
        let usual = if n == 1 { ProblemType::Regression } else { ProblemType::SingleLabelClassification };
        match (problem_type.unwrap_or(usual), labels) {
            (ProblemType::MultiLabelClassification, Labels::Tokens(flags)) if flags.len() == n => {
                let flags = flags.iter().map(|&flag| class(flag, 2)).collect::<Result<Vec<_>, _>>()?;
                self.label_loss(z, &flags)
            }
            (ProblemType::MultiLabelClassification, Labels::Flags(flags))
                if flags.len() == n && flags.iter().all(|&flag| flag == 0.0 || flag == 1.0) =>
            {
                self.label_loss(z, &flags.iter().map(|&flag| flag as u32).collect::<Vec<_>>())
            }
            (ProblemType::MultiLabelClassification, _) => Err(InferenceError::Input(format!(
                "`labels` must be a list of {n} numbers, 0 or 1 for each label: the model predicts several at once \
                 (`problem_type` = \"multi_label_classification\")"
            ))),
            (ProblemType::Regression, _) if n > 1 => Err(InferenceError::Input(format!(
                "the model is a regression of {n} numbers, whose loss is not supported"
            ))),
            (ProblemType::Regression, Labels::Class(label)) => self.regression(z, *label as f32),
            (ProblemType::Regression, Labels::Number(target)) => self.regression(z, *target as f32),
            (ProblemType::Regression, _) => Err(InferenceError::Input("`labels` must be a number".into())),
            (ProblemType::SingleLabelClassification, Labels::Class(label)) => {
                let label = tape.input([1], &[class(*label, n)?])?;
                Ok(Some(ops::cross_entropy(tape, z, &label, 1.0)?.loss))
            }
            _ => Err(InferenceError::Input(format!("`labels` must be a class below {n}"))),
        }
    }

    /// mean (log(1 + exp(z)) - y·z) over the labels: the cross-entropy of the two scores (0, z).
    fn label_loss(&self, z: &Var, flags: &[u32]) -> Result<Option<Var>, InferenceError> {
        let (tape, n) = (self.tape, flags.len());
        let z = ops::reshape(tape, z, [n, 1])?;
        let zero = ops::scale(tape, &tape.detach(&z), 0.0)?;
        let pairs = ops::concat(tape, &[&zero, &z], 1)?;
        Ok(Some(ops::cross_entropy(tape, &pairs, &tape.input([n], flags)?, n as f32)?.loss))
    }

    /// mean (z - target)².
    fn regression(&self, logits: &Var, target: f32) -> Result<Option<Var>, InferenceError> {
        let target = self.tape.input([1, 1], &[target])?;
        Ok(Some(ops::mean_squared_error(self.tape, logits, &target)?))
    }

    /// Rows of the first and last token of the answer.
    fn span(&self) -> Result<Option<[Var; 2]>, InferenceError> {
        let Some(span) = self.example.span else { return Ok(None) };
        let [start, end] = span.map(|token| self.tape.input([1], &[self.row_of[token as usize]]));
        Ok(Some([start?, end?]))
    }

    fn squad_v2(&mut self, head: &SquadV2Head) -> Result<Option<Var>, InferenceError> {
        let (tape, x, length) = (self.tape, self.x(), self.row_of.len());
        let mut hidden = vec![false; length];
        if let Some(mask) = &self.example.is_no_answer {
            self.row_of.iter().zip(mask).for_each(|(&row, &is_hidden)| hidden[row as usize] = is_hidden);
        }
        let mask = SquadV2Head::mask(tape, &hidden)?;
        let start = head.start_logits(tape, &x, &mask)?;
        let span = self.span()?;
        // Without a label, the end is conditioned on the most probable start.
        let from = match (&span, self.example.span) {
            (Some(_), Some([token, _])) => self.row_of[token as usize],
            _ => greatest(&start.value().to_vec()?),
        };
        let rows = tape.input([length], &vec![from; length])?;
        let end = head.end_logits(tape, &x, &rows, &mask)?;
        let answer = head.answer_logits(tape, [&x, &start, &self.inputs.first_tokens], &self.cu_seqlens, None)?;
        self.keep_tokens("start_logits", None, &start)?;
        self.keep_tokens("end_logits", None, &end)?;
        self.keep("answer_logit", vec![], &answer)?;
        let (Some([first, last]), Some(flag)) = (span, self.example.is_impossible) else { return Ok(None) };
        let flag = tape.input([1], &[flag])?;
        let sequences = Sequences::new(tape, &self.cu_seqlens)?;
        Ok(Some(head.loss(tape, (&[start, end], &answer), &sequences, [&first, &last, &flag], 1.0)?))
    }
}

fn greatest(values: &[f32]) -> u32 {
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best }) as u32
}

fn class(label: i64, classes: usize) -> Result<u32, InferenceError> {
    let fits = u32::try_from(label).ok().filter(|&label| (label as usize) < classes);
    fits.ok_or_else(|| InferenceError::Input(format!("`labels` contains {label}, but there are {classes} classes")))
}
