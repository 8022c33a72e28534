//! Options of `albert bench` and the cases that they select.

use crate::cases::{Attention, Dtype, Form, Kernel, Mode, Product, RUNGS, Rows, Rung, Step, Vocabulary, Work};
use albert::{AlbertConfig, cost::Recompute};
use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use engine::{Cpu, Isa, IsaKind, Precision};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum What {
    /// Matrix products
    Gemm,
    /// Attention, forward and backward
    Attention,
    /// LayerNorm, forward and backward
    #[value(name = "layernorm")]
    LayerNorm,
    /// GELU, forward and backward
    Gelu,
    /// Softmax, forward and backward
    Softmax,
    /// Projection to the vocabulary with its cross-entropy, forward and backward
    Vocabulary,
    /// Forward pass or training step of a model
    Step,
    /// A few of each
    All,
}

/// Named list of shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shapes {
    /// Products of ALBERT-base and the wide ones of xxlarge; for steps, base and large
    Albert,
}

/// Storage of the weights that dense layers multiply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Weights {
    /// As the precision has them
    #[default]
    F32,
    /// Rounded to bf16, multiplied in f32
    Bf16,
}

impl Weights {
    /// Returns `precision` with weights stored this way.
    ///
    /// # Errors
    /// Weights are rounded but `precision` is not f32.
    pub fn of(self, precision: Precision) -> Result<Precision> {
        ensure!(
            self == Self::F32 || precision == Precision::F32,
            "--weights bf16 multiplies in f32; remove --precision {precision} or --weights"
        );
        Ok(if self == Self::Bf16 { Precision::Bf16Weights } else { precision })
    }
}

/// Parses a whole number; [`Selection::check`] checks its range.
fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "expected a whole number from 1".to_owned())
}

/// Options that select cases. Sizes may be lists; all combinations run.
#[derive(Clone, Debug, Default, Args)]
pub struct Selection {
    /// Rows of A and C, of the matrix of a row kernel, or labeled rows of the vocabulary projection
    #[arg(long, value_parser = whole, value_delimiter = ',')]
    pub m: Vec<usize>,
    /// Columns of B and C, of the matrix of a row kernel, or words of the vocabulary
    #[arg(long, value_parser = whole, value_delimiter = ',')]
    pub n: Vec<usize>,
    /// Columns of A and rows of B, or width of the rows of the vocabulary projection
    #[arg(long, value_parser = whole, value_delimiter = ',')]
    pub k: Vec<usize>,
    /// Layout of A and B, n as multiplied, t transposed [default: nt]
    #[arg(long, value_enum, value_delimiter = ',')]
    pub form: Vec<Form>,
    /// Named list of shapes instead of sizes
    #[arg(long, value_enum)]
    pub shapes: Option<Shapes>,
    /// Steps of the ladder from three loops (1) to the kernel (6), on one thread [default size: 512 x 768 x 768]
    #[arg(long, value_parser = whole, value_delimiter = ',', conflicts_with_all = ["form", "shapes", "peers"])]
    pub rung: Vec<usize>,
    /// Attention heads [default: 12]
    #[arg(long, value_parser = whole)]
    pub heads: Option<usize>,
    /// Head size [default: 64]
    #[arg(long, value_parser = whole)]
    pub head_size: Option<usize>,
    /// Number of sequences of attention or a step [default: 8]
    #[arg(long, value_parser = whole, value_delimiter = ',')]
    pub batch: Vec<usize>,
    /// Tokens per sequence [default: 128 and 512 for attention, 128 for a step]
    #[arg(long, value_parser = whole, value_delimiter = ',')]
    pub seq: Vec<usize>,
    /// Tokens of each sequence of a step, instead of --batch and --seq
    #[arg(long, value_parser = whole, value_delimiter = ',', conflicts_with_all = ["batch", "seq", "shapes"])]
    pub lengths: Vec<usize>,
    /// File with the tokens of one sequence per line (# starts a comment), instead of --seq; --batch N selects N of them,
    /// spread evenly from the shortest to the longest [default: all]
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lengths", "seq", "shapes"])]
    pub lengths_from: Option<PathBuf>,
    /// Model of a step: preset (base, large, tiny, quickstart, ...), model folder or config.json; the weights are random
    /// [default: base]
    #[arg(long)]
    pub config: Option<String>,
    /// Forward pass or training step [default: forward]
    #[arg(long, value_enum)]
    pub mode: Option<Mode>,
    /// Dropout rate of a training step, realized in 256ths [default: the model's]
    #[arg(long)]
    pub dropout: Option<f64>,
    /// Activations that a training step recomputes in backward [default: cheap]
    #[arg(long, value_name = "none|cheap|layer")]
    pub checkpointing: Option<Recompute>,
    /// Also time third-party libraries; requires a build with the feature `peers`
    #[arg(long)]
    pub peers: bool,
    /// f32, bf16, bf16x3, bf16x6 (both for products and steps) or int8 (for forward steps)
    #[arg(long, alias = "dtype", default_value_t)]
    pub precision: Precision,
    /// Storage of the weights of dense layers: bf16 rounds them and multiplies in f32, in forward steps
    #[arg(long, value_enum, default_value_t)]
    pub weights: Weights,
}

/// Returns the CPU contexts to measure: one per number of `threads` (all cores if empty), on instruction set `isa` (the
/// widest if `None`).
///
/// # Errors
/// The machine lacks the instruction set, or a number of threads is not between 1 and 1024.
pub fn processors(threads: &[usize], isa: Option<&str>) -> Result<Vec<Cpu>> {
    let detected = Cpu::detect()?;
    let isa = match isa {
        None => detected.isa(),
        Some(name) => {
            let found = name.parse().ok().filter(|kind| IsaKind::REAL.contains(kind)).and_then(Isa::new);
            let names = || Isa::real().iter().map(|isa| isa.kind().name()).collect::<Vec<_>>().join(", ");
            let Some(isa) = found else { bail!("--isa {name}: this machine has {}", names()) };
            isa
        }
    };
    let all = [detected.threads()];
    let threads = if threads.is_empty() { &all } else { threads };
    let cpu = |&threads: &usize| {
        ensure!((1..=1024).contains(&threads), "--threads {threads}: expected 1 to 1024");
        Ok(Cpu::new(isa, threads)?)
    };
    threads.iter().map(cpu).collect()
}

/// Reads the configuration of a preset, model folder or config.json, with remarks on the file.
///
/// # Errors
/// There is no preset with this name, or the file cannot be read or used.
pub fn config(model: &str) -> Result<(AlbertConfig, Vec<String>)> {
    let path = Path::new(model);
    if !path.exists() {
        return Ok((AlbertConfig::preset(model)?, Vec::new()));
    }
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    let name = file.display();
    let text = fs::read_to_string(&file).with_context(|| format!("{name} cannot be read"))?;
    let reading = AlbertConfig::from_hf_json(&text).with_context(|| name.to_string())?;
    Ok((reading.config, reading.notes.iter().map(|note| format!("{name}: {note}")).collect()))
}

impl Selection {
    /// Selected cases, in order.
    ///
    /// # Errors
    /// A size is out of range or does not apply to `what`, or the model is unknown.
    pub fn works(&self, what: What) -> Result<Vec<Work>> {
        self.check(what)?;
        let rows = |kernels: &[Kernel]| kernels.iter().flat_map(|&kernel| self.rows(kernel)).collect();
        Ok(match what {
            What::Gemm if !self.rung.is_empty() => self.rungs(),
            What::Gemm => self.products(),
            What::Attention => self.attention(),
            What::LayerNorm => rows(&Kernel::LAYERNORM),
            What::Gelu => rows(&Kernel::GELU),
            What::Softmax => rows(&Kernel::SOFTMAX),
            What::Vocabulary => self.vocabulary(),
            What::Step => self.steps()?,
            What::All => {
                let mut all: Vec<Work> =
                    Product::forward(512, Form::Nt, self.product_precision()).map(Work::Product).collect();
                for what in [What::Attention, What::LayerNorm, What::Gelu, What::Softmax, What::Vocabulary, What::Step]
                {
                    all.extend(self.works(what)?);
                }
                let train = Self { mode: Some(Mode::Train), ..self.clone() };
                all.extend(train.works(What::Step)?);
                all
            }
        })
    }

    fn check(&self, what: What) -> Result<()> {
        let sizes = [
            ("--m", &self.m),
            ("--n", &self.n),
            ("--k", &self.k),
            ("--batch", &self.batch),
            ("--seq", &self.seq),
            ("--lengths", &self.lengths),
        ];
        for (name, values) in sizes {
            if let Some(wrong) = values.iter().find(|value| !(1..=1 << 24).contains(*value)) {
                bail!("{name} {wrong}: expected 1 to 16777216");
            }
        }
        if let Some(wrong) = self.rung.iter().find(|rung| !(1..=RUNGS).contains(*rung)) {
            bail!("--rung {wrong}: expected 1 to {RUNGS}");
        }
        let (heads, size) = (self.heads.unwrap_or(12), self.head_size.unwrap_or(64));
        ensure!((1..=1024).contains(&heads), "--heads {heads}: expected 1 to 1024");
        let most = kernels::attention::MAX_HEAD_SIZE;
        ensure!((1..=most).contains(&size), "--head-size {size}: expected 1 to {most}");
        let rate = self.dropout.unwrap_or(0.0);
        ensure!((0.0..1.0).contains(&rate), "--dropout {rate}: expected 0 or more, below 1");
        let trains = self.mode == Some(Mode::Train);
        for (option, given) in
            [("--dropout", self.dropout.is_some()), ("--checkpointing", self.checkpointing.is_some())]
        {
            ensure!(!given || trains, "{option} applies to training steps; add --mode train");
        }
        let transposes_b = self.form.iter().all(|&form| form == Form::Nt);
        ensure!(
            self.precision != Precision::Int8
                || (what == What::Step && !trains)
                || (what == What::Gemm && transposes_b && self.rung.is_empty()),
            "--precision int8 has no backward pass: use bench step without --mode train, or bench gemm with --form nt"
        );
        ensure!(
            self.weights == Weights::F32 || (what == What::Step && !trains),
            "--weights bf16 has no backward pass and applies to forward steps: use bench step --weights bf16"
        );
        ensure!(
            !self.peers || (what == What::Gemm && self.precision == Precision::F32),
            "--peers applies to products in f32: use bench gemm --precision f32"
        );
        ensure!(!self.peers || cfg!(feature = "peers"), "--peers: not in this build; rebuild with --features peers");
        ensure!(
            !matches!(self.precision, Precision::Bf16x3 | Precision::Bf16x6) || matches!(what, What::Gemm | What::Step),
            "--precision bf16x3 and bf16x6 apply to products and steps: use bench gemm or bench step"
        );
        let given = [!self.m.is_empty(), !self.n.is_empty(), !self.k.is_empty()];
        let is_product = what == What::Gemm;
        let is_sized = self.shapes.is_some() || given == [true; 3] || given == [false; 3];
        ensure!(
            !is_product || is_sized,
            "a product needs all of --m, --n and --k, or none of them for the shapes of ALBERT"
        );
        Ok(())
    }

    fn product_precision(&self) -> kernels::gemm::Precision {
        self.precision.of_product(self.precision.activations())
    }

    fn dtype(&self) -> Dtype {
        if self.precision == Precision::Bf16 { Dtype::Bf16 } else { Dtype::F32 }
    }

    fn products(&self) -> Vec<Work> {
        let precision = self.product_precision();
        let forms = if self.form.is_empty() { &[Form::Nt][..] } else { &self.form };
        let mut products = Vec::new();
        if self.m.is_empty() || self.shapes.is_some() {
            let tokens = |all: &[usize]| if self.m.is_empty() { all.to_vec() } else { self.m.clone() };
            let full = self.shapes.is_some();
            for &form in forms {
                for tokens in tokens(if full { &[128, 512, 2048, 4096] } else { &[512] }) {
                    products.extend(Product::forward(tokens, form, precision));
                }
                for tokens in tokens(if full { &[128, 512] } else { &[] }) {
                    products.extend(Product::wide(tokens, form, precision));
                }
            }
            for tokens in tokens(if full { &[512, 2048, 4096] } else { &[512] }) {
                products.extend(Product::backward(tokens, precision));
            }
        } else {
            for &form in forms {
                products.extend(self.sizes([&[]; 3]).map(|size| Product::new(size, form, precision)));
            }
        }
        let (peers, int8) = (self.peers, self.precision == Precision::Int8);
        let kept = products.into_iter().filter(|product| !int8 || product.form == Form::Nt);
        kept.map(|product| Work::Product(Product { peers, int8, ..product })).collect()
    }

    fn rungs(&self) -> Vec<Work> {
        let each = |[m, n, k]: [usize; 3]| self.rung.iter().map(move |&number| Work::Rung(Rung { number, m, n, k }));
        self.sizes([&[512], &[768], &[768]]).flat_map(each).collect()
    }

    /// Combinations of --m, --n and --k, each with its default.
    fn sizes<'a>(&'a self, [m, n, k]: [&'a [usize]; 3]) -> impl Iterator<Item = [usize; 3]> + 'a {
        let [m, n, k] = [unless_given(&self.m, m), unless_given(&self.n, n), unless_given(&self.k, k)];
        m.iter().flat_map(move |&m| n.iter().flat_map(move |&n| k.iter().map(move |&k| [m, n, k])))
    }

    fn attention(&self) -> Vec<Work> {
        let (heads, head_size) = (self.heads.unwrap_or(12), self.head_size.unwrap_or(64));
        let mut all = Vec::new();
        for &sequences in unless_given(&self.batch, &[8]) {
            for &length in unless_given(&self.seq, &[128, 512]) {
                for backward in [false, true] {
                    let dtype = self.dtype();
                    all.push(Work::Attention(Attention { sequences, length, heads, head_size, backward, dtype }));
                }
            }
        }
        all
    }

    fn rows(&self, kernel: Kernel) -> Vec<Work> {
        let mut all = Vec::new();
        for &rows in unless_given(&self.m, &[512, 4096]) {
            for &columns in unless_given(&self.n, &[768, 3072]) {
                all.push(Work::Rows(Rows { kernel, rows, columns, dtype: self.dtype() }));
            }
        }
        all
    }

    /// MLM head of base: the masked tokens, 15 %, of 32 sequences of 128.
    fn vocabulary(&self) -> Vec<Work> {
        let dtype = self.dtype();
        let both = |[rows, classes, width]: [usize; 3]| {
            [false, true].map(|backward| Work::Vocabulary(Vocabulary { rows, classes, width, backward, dtype }))
        };
        self.sizes([&[614], &[30_000], &[128]]).flat_map(both).collect()
    }

    fn steps(&self) -> Result<Vec<Work>> {
        let mode = self.mode.unwrap_or_default();
        let checkpointing = self.checkpointing.unwrap_or(Recompute::ON_CPU);
        let step = |name: &str, lengths: Vec<usize>| {
            let (config, _) = config(name)?;
            let (most, longest) = (config.max_position_embeddings, lengths.iter().copied().max().unwrap_or(0));
            ensure!(config.vocab_size > 6, "`{name}` has a vocabulary of {}, expected more than 6", config.vocab_size);
            ensure!(longest <= most, "sequence of {longest} tokens: `{name}` has {most} positions");
            let precision = self.weights.of(self.precision)?;
            let (name, dropout) = (name.to_owned(), self.dropout);
            Ok(Work::Step(Step { name, config, lengths, mode, precision, dropout, checkpointing }))
        };
        let name = self.config.as_deref().unwrap_or("base");
        if !self.lengths.is_empty() {
            return Ok(vec![step(name, self.lengths.clone())?]);
        }
        if let Some(path) = &self.lengths_from {
            let known = lengths_in(path)?;
            return unless_given(&self.batch, &[known.len()])
                .iter()
                .map(|&count| step(name, spread(&known, count)))
                .collect();
        }
        if self.shapes.is_some() {
            let cells: &[(&str, usize, usize)] = match mode {
                Mode::Forward => &[
                    ("base", 1, 128),
                    ("base", 8, 128),
                    ("base", 32, 128),
                    ("base", 1, 512),
                    ("base", 8, 512),
                    ("large", 8, 128),
                ],
                Mode::Train => {
                    &[("base", 8, 128), ("base", 16, 128), ("base", 32, 128), ("base", 4, 512), ("large", 8, 128)]
                }
            };
            return cells.iter().map(|&(name, batch, seq)| step(name, vec![seq; batch])).collect();
        }
        let mut all = Vec::new();
        for &batch in unless_given(&self.batch, &[8]) {
            for &seq in unless_given(&self.seq, &[128]) {
                all.push(step(name, vec![seq; batch])?);
            }
        }
        Ok(all)
    }
}

/// Lengths in a file, ascending.
fn lengths_in(path: &Path) -> Result<Vec<usize>> {
    let name = path.display();
    let text = fs::read_to_string(path).with_context(|| format!("{name} cannot be read"))?;
    let lines = text.lines().enumerate().map(|(i, line)| (i + 1, line.trim()));
    let length = |(number, line): (usize, &str)| match line.parse() {
        Ok(length) if (1..=1 << 24).contains(&length) => Ok(length),
        _ => bail!("{name}:{number}: `{line}`: expected one number per line, 1 to 16777216"),
    };
    let numbers = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    let mut lengths: Vec<usize> = numbers.map(length).collect::<Result<_>>()?;
    ensure!(!lengths.is_empty(), "{name}: no lengths; expected one number per line");
    lengths.sort_unstable();
    Ok(lengths)
}

/// Selects `count` of them: the middle of each of `count` equal parts.
fn spread(sorted: &[usize], count: usize) -> Vec<usize> {
    (0..count).map(|i| sorted[(2 * i + 1) * sorted.len() / (2 * count)]).collect()
}

/// `given`, or `default` if it is empty.
fn unless_given<'a>(given: &'a [usize], default: &'a [usize]) -> &'a [usize] {
    if given.is_empty() { default } else { given }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_combined_and_shapes_have_names() {
        let selection = Selection { m: vec![1, 2], n: vec![3], k: vec![4, 5], ..Selection::default() };
        let cases = selection.works(What::Gemm).unwrap();
        assert_eq!(cases.len(), 4);
        let product = |m, k| Work::Product(Product::new([m, 3, k], Form::Nt, kernels::gemm::Precision::F32));
        assert_eq!(cases, [product(1, 4), product(1, 5), product(2, 4), product(2, 5)]);
        let albert = Selection { shapes: Some(Shapes::Albert), ..Selection::default() };
        // 4 x 7 forward, 2 x 2 wide, 3 x 6 weight gradients.
        assert_eq!(albert.works(What::Gemm).unwrap().len(), 50);
        assert_eq!(albert.works(What::Step).unwrap().len(), 6);
        assert_eq!(Selection::default().works(What::Softmax).unwrap().len(), 8);
        let kernels: Vec<_> = Selection::default().works(What::All).unwrap();
        assert!(kernels.iter().any(|work| matches!(work, Work::Step(step) if step.mode == Mode::Train)));
    }

    #[test]
    fn lengths_of_a_file_are_spread_from_the_shortest_to_the_longest() {
        let sorted = [3, 5, 8, 13, 21, 34];
        assert_eq!(spread(&sorted, 6), sorted);
        assert_eq!(spread(&sorted, 3), [5, 13, 34]);
        assert_eq!(spread(&sorted, 1), [13]);
        assert_eq!(spread(&sorted, 12), [3, 3, 5, 5, 8, 8, 13, 13, 21, 21, 34, 34]);
    }

    #[test]
    fn an_impossible_selection_is_an_error_of_one_line() {
        let none = Selection::default;
        for (what, selection, said) in [
            (What::Gemm, Selection { m: vec![3], ..none() }, "all of --m, --n and --k"),
            (What::Gemm, Selection { m: vec![0], n: vec![1], k: vec![1], ..none() }, "--m 0: expected 1 to"),
            (What::Attention, Selection { head_size: Some(300), ..none() }, "--head-size 300"),
            (What::Step, Selection { config: Some("bse".into()), ..none() }, "bse"),
            (What::Step, Selection { seq: vec![513], ..none() }, "`base` has 512 positions"),
            (What::Gemm, Selection { rung: vec![7], ..none() }, "--rung 7: expected 1 to 6"),
            (What::Step, Selection { peers: true, ..none() }, "--peers applies to products"),
            (What::Step, Selection { dropout: Some(0.1), ..none() }, "--mode train"),
            (What::Step, Selection { checkpointing: Some(Recompute::Layer), ..none() }, "--mode train"),
            (What::Gelu, Selection { precision: Precision::Int8, ..none() }, "no backward pass"),
            (What::All, Selection { precision: Precision::Int8, ..none() }, "no backward pass"),
            (What::Gemm, Selection { weights: Weights::Bf16, ..none() }, "forward steps"),
            (
                What::Step,
                Selection { weights: Weights::Bf16, precision: Precision::Int8, ..none() },
                "remove --precision int8",
            ),
        ] {
            let error = selection.works(what).expect_err(said).to_string();
            assert!(error.contains(said) && !error.contains('\n'), "{error}");
        }
        assert!(processors(&[0], None).unwrap_err().to_string().contains("--threads 0"));
        assert!(processors(&[1], Some("neon2")).unwrap_err().to_string().contains("--isa neon2: this machine has"));
        assert_eq!(processors(&[1, 2], Some("scalar")).unwrap()[1].threads(), 2);
    }
}
