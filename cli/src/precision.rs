//! The flag `--precision`.

use crate::output::tell;
use engine::Device;
use std::str::FromStr;

/// Precision on the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Precision {
    /// An explicit precision.
    Is(engine::Precision),
    /// bf16 if the device multiplies it faster than f32, otherwise f32.
    Auto,
}

impl FromStr for Precision {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            Ok(Self::Auto)
        } else {
            text.parse().map(Self::Is).map_err(|error| format!("{error}, or auto"))
        }
    }
}

impl Precision {
    /// Precision on `device`; prints the choice of `auto`.
    pub(crate) fn on(self, device: &Device) -> engine::Precision {
        match self {
            Self::Is(precision) => precision,
            Self::Auto => {
                let is_faster = device.multiplies_bf16_faster();
                let precision = if is_faster { engine::Precision::Bf16 } else { engine::Precision::F32 };
                tell!("precision: {precision}; this device multiplies {precision} faster");
                precision
            }
        }
    }
}
