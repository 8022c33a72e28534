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

/// Recipe of a released model.
macro_rules! released {
    ($preset:literal) => {
        concat!("model.preset = \"", $preset, "\"\ndata.batch = { sequences_per_step = 4096, lanes = 64 }\n")
    };
}

/// The built-in recipes. Those of released models have the settings of the released scripts: LAMB, 125,000 steps of 4,096
/// sequences of 512 tokens.
///
/// A step has 16 lanes, or 64 for steps of at least 4,096 sequences, so up to as many ranks may train them (`data.batch.lanes`).
pub const RECIPES: &[NamedRecipe] = &[
    named("tiny", "1.4 M parameters, sequences of 128; minutes on two cores", TINY),
    named("mini", "3 M parameters, sequences of 256; hours on a laptop", MINI),
    named("small", "5.6 M parameters, sequences of 512; a day on a workstation", SMALL),
    named("base", "12 M parameters, as released", released!("base")),
    named("large", "18 M parameters, as released", released!("large")),
    named("xlarge", "60 M parameters, as released", released!("xlarge")),
    named("xxlarge", "223 M parameters, as released", released!("xxlarge")),
    named("base-32k", "base in 15,625 steps of 32,768 sequences, for many machines", BASE_32K),
];

const TINY: &str = r#"
model.preset = "tiny"
data.batch = { max_tokens = 4096, max_sequences = 32, sequences_per_step = 32, lanes = 16 }
optimizer = { kind = "adamw", learning_rate = 0.002, bias_correction = true }
schedule = { kind = "smooth", steps = 2000, warmup_share = 0.05 }
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
schedule = { kind = "smooth", steps = 20000, warmup_share = 0.025 }
data.evaluation = { max_sequences = 2000 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;

const SMALL: &str = r#"
model.preset = "small"
data.masking = { max_predictions = 77 }
data.batch = { max_tokens = 8192, max_sequences = 64, sequences_per_step = 256, lanes = 16 }
optimizer = { kind = "lamb", learning_rate = 0.002 }
schedule = { kind = "smooth", steps = 50000, warmup_share = 0.03 }
data.evaluation = { max_sequences = 4000 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;

/// Processes as many sequences as the released schedule. The learning rate grows with the square root of the batch, and the share of
/// warm-up steps with the batch: 1/5 at 32,768 (You et al., "Large Batch Optimization for Deep Learning", 2020, table 4).
const BASE_32K: &str = r#"
model.preset = "base"
data.batch = { sequences_per_step = 32768, lanes = 256 }
optimizer = { kind = "lamb", learning_rate = 0.005 }
schedule = { steps = 15625, warmup_share = 0.2 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;
