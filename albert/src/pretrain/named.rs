//! Built-in recipes.

/// A built-in recipe.
#[derive(Clone, Copy, Debug)]
pub struct NamedRecipe {
    /// Name on the command line.
    pub name: &'static str,
    /// Size and duration, as a phrase.
    pub about: &'static str,
    /// The recipe in TOML.
    pub text: &'static str,
}

const fn named(name: &'static str, about: &'static str, text: &'static str) -> NamedRecipe {
    NamedRecipe { name, about, text }
}

/// The built-in recipes. Those of released models have the settings of the released scripts: LAMB, 125,000 steps of 4,096
/// sequences of 512 tokens. Their lanes are for as many ranks, and cost one rank nothing that can be measured.
pub const RECIPES: &[NamedRecipe] = &[
    named("tiny", "1.4 M parameters, sequences of 128; minutes on two cores", TINY),
    named("mini", "3 M parameters, sequences of 256; hours on a laptop", MINI),
    named("small", "5.6 M parameters, sequences of 512; a day on a workstation", SMALL),
    named("base", "12 M parameters, as released", BASE),
    named("base-32k", "base in batches of 32,768 sequences, for many machines", BASE_32K),
    named("large", "18 M parameters, as released", LARGE),
    named("xlarge", "60 M parameters, as released", XLARGE),
    named("xxlarge", "223 M parameters, as released", XXLARGE),
];

const BASE: &str = "model.preset = \"base\"\ndata.batch.lanes = 64";
const LARGE: &str = "model.preset = \"large\"\ndata.batch.lanes = 64";
const XLARGE: &str = "model.preset = \"xlarge\"\ndata.batch.lanes = 64";
const XXLARGE: &str = "model.preset = \"xxlarge\"\ndata.batch.lanes = 64";

/// As many sequences as `base` in an eighth of the steps. The rate grows with the square root of the batch and the warm-up with
/// the batch (You and others, 2020, table 4); that of `base`, 0.00176 and a 40th, is on the same line.
const BASE_32K: &str = r#"
model.preset = "base"
data.batch = { sequences_per_step = 32768, lanes = 256 }
optimizer = { learning_rate = 0.005 }
schedule = { steps = 15625, warmup_steps = 3125 }
evaluation = { interval = 625 }
run = { checkpoint_interval = 625 }
"#;

const TINY: &str = r#"
model.preset = "tiny"
data.batch = { max_tokens = 4096, max_sequences = 32, sequences_per_step = 32, lanes = 16 }
optimizer = { kind = "adamw", learning_rate = 0.002, bias_correction = true }
schedule = { kind = "smooth", steps = 2000, warmup_steps = 100 }
data.evaluation = { max_sequences = 512 }
evaluation = { interval = 200 }
run = { checkpoint_interval = 200 }
"#;

const MINI: &str = r#"
model.preset = "mini"
data.instances = { max_sequence_length = 256 }
data.masking = { max_predictions = 39 }
data.batch = { max_tokens = 8192, max_sequences = 64, sequences_per_step = 64, lanes = 16 }
optimizer = { kind = "adamw", learning_rate = 0.001, bias_correction = true }
schedule = { kind = "smooth", steps = 20000, warmup_steps = 500 }
data.evaluation = { max_sequences = 2000 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;

const SMALL: &str = r#"
model.preset = "small"
data.masking = { max_predictions = 77 }
data.batch = { max_tokens = 8192, max_sequences = 64, sequences_per_step = 256, lanes = 16 }
optimizer = { kind = "lamb", learning_rate = 0.002 }
schedule = { kind = "smooth", steps = 50000, warmup_steps = 1500 }
data.evaluation = { max_sequences = 4000 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;
