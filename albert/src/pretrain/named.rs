//! Recipes that come with the program.

use super::{PretrainError, Recipe};

/// The names that [`Recipe::named`] knows, each with what it is and its text. The released ones give what the released
/// scripts used: LAMB, 125,000 steps of 4,096 sequences of 512 tokens.
pub const RECIPES: &[(&str, &str, &str)] = &[
    ("tiny", "1.4 M parameters, sequences of 128; minutes on two cores", TINY),
    ("mini", "3 M parameters, sequences of 256; hours on a laptop", MINI),
    ("small", "5.6 M parameters, sequences of 512; a day on a workstation", SMALL),
    ("base", "12 M parameters, as released", "model.preset = \"base\""),
    ("large", "18 M parameters, as released", "model.preset = \"large\""),
    ("xlarge", "60 M parameters, as released", "model.preset = \"xlarge\""),
    ("xxlarge", "223 M parameters, as released", "model.preset = \"xxlarge\""),
];

const TINY: &str = r#"
model.preset = "tiny"
data.batch = { max_tokens = 4096, max_sequences = 32, sequences_per_step = 32 }
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
data.batch = { max_tokens = 8192, max_sequences = 64, sequences_per_step = 64 }
optimizer = { kind = "adamw", learning_rate = 0.001, bias_correction = true }
schedule = { kind = "smooth", steps = 20000, warmup_steps = 500 }
data.evaluation = { max_sequences = 2000 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;

const SMALL: &str = r#"
model.preset = "small"
data.masking = { max_predictions = 77 }
data.batch = { max_tokens = 8192, max_sequences = 64, sequences_per_step = 256 }
optimizer = { kind = "lamb", learning_rate = 0.002 }
schedule = { kind = "smooth", steps = 50000, warmup_steps = 1500 }
data.evaluation = { max_sequences = 4000 }
evaluation = { interval = 1000 }
run = { checkpoint_interval = 500 }
"#;

impl Recipe {
    /// The recipe called `name` in [`RECIPES`], with `overrides` (`section.key=value`) applied.
    ///
    /// # Errors
    /// No recipe has this name, or an override is impossible.
    pub fn named(name: &str, overrides: &[String]) -> Result<Self, PretrainError> {
        match RECIPES.iter().find(|(known, _, _)| *known == name) {
            Some((_, _, text)) => Self::from_toml(text, overrides),
            None => {
                let known: Vec<_> = RECIPES.iter().map(|(name, _, _)| *name).collect();
                Err(PretrainError::Recipe(format!("no recipe is called `{name}`; known are {}", known.join(", "))))
            }
        }
    }
}
