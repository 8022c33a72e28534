//! Reading, decoding and running of untrusted text, for fuzzers and for tests with mutated texts.

use super::{
    Argument, Completion, Error, Limits, Memory, Module, Options, Schedule, Swizzle, TensorMap, TensorType,
    text::{Entry, Outline},
};
use crate::Launch;

/// Progress of a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exercised {
    /// Entries that the text declares; 0 for a text that is refused.
    pub entries: usize,
    /// Entries whose bodies can be decoded.
    pub decoded: usize,
    /// Launches that were run, with or without a finding.
    pub launched: usize,
}

/// Reads `text` within `limits`, decodes every entry, and launches each that takes arguments which can be made up: for
/// 8 bytes a pointer to a buffer of 4 KiB, for 4 bytes the number 64, for 128 bytes a tensor map. `seed` chooses the
/// schedule, the completion and the size of the grid.
///
/// # Errors
/// [`Error::Syntax`] for a text that is refused as a whole.
pub fn exercise(text: &str, limits: Limits, seed: u64) -> Result<Exercised, Error> {
    let module = Module::parse_within(text, limits)?;
    let mut exercised = Exercised { entries: module.outlines.len(), ..Exercised::default() };
    for outline in &module.outlines {
        if outline.decoded.get_or_init(|| Entry::read(&module, outline)).is_err() {
            continue;
        }
        exercised.decoded += 1;
        let (mut memory, buffer) = (Memory::new(), vec![1.0_f32; 1024]);
        let address = memory.allocate_from("buffer", &buffer);
        let map = TensorMap::matrix(address, TensorType::F32, [32, 32], [8, 32], Swizzle::B128)?;
        let arguments = outline.params.iter().map(|param| match param.bytes {
            4 => Argument::U32(64),
            128 => Argument::TensorMap(map),
            _ => Argument::U64(address),
        });
        let arguments: Vec<Argument> = arguments.collect();
        let report = module.launch(&outline.name, launch(outline, seed), &arguments, &mut memory, &options(seed));
        exercised.launched += usize::from(report.is_ok());
    }
    Ok(exercised)
}

/// The block that the entry requires, or a warp and a half.
fn launch(outline: &Outline, seed: u64) -> Launch {
    let most = outline.most_threads.unwrap_or(48).clamp(1, 48) as u32;
    let block = outline.block.unwrap_or([most, 1, 1]);
    Launch { grid: [1 + (seed % 3) as u32, 1, 1], block, shared_bytes: [0, 64 << 10][(seed / 3 % 2) as usize] }
}

fn options(seed: u64) -> Options {
    Options {
        schedule: Schedule::FIVE[(seed / 7 % 5) as usize],
        completion: Completion::ALL[(seed / 11 % 3) as usize],
        max_instructions: 400,
        ..Options::default()
    }
}
