//! `albert doctor`: the hardware of this machine, and the settings that will be used with their reasons.

use super::verify::verify;
use crate::output::results;
use anyhow::Result;
use clap::Args;
use engine::{Cpu, IsaKind, TileKind, Tiles};
use measure::busy;
use std::{fs, io::Write, path::Path, process::ExitCode};

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  albert doctor
  albert doctor --verify")]
pub(crate) struct Arguments {
    /// Seconds for measuring peaks; 0 skips the measurement
    #[arg(long, default_value_t = 0.3)]
    seconds: f64,
    /// Compare the bits of all kernels and of short runs with recorded ones, on every instruction set; takes a minute
    #[arg(long)]
    verify: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let mut out = results();
    let cpu = Cpu::detect()?;
    writeln!(out, "processor         {}", processor_name())?;
    let (chosen, why) = (
        cpu.isa().kind(),
        if std::env::var_os("ALBERT_ISA").is_some() { "set by ALBERT_ISA" } else { "the widest of this machine" },
    );
    writeln!(out, "instruction set   {chosen}: {why}")?;
    for &kind in IsaKind::REAL {
        let state = if engine::Isa::new(kind).is_some() { "available" } else { "missing on this machine" };
        writeln!(out, "                  {:<8} {state}", kind.name())?;
    }
    writeln!(out, "bf16 products     {} tiles", cpu.tiles().kind())?;
    for kind in TileKind::ALL {
        let state = Tiles::new(kind, cpu.isa()).map_or_else(|reason| reason, |_| "available".to_owned());
        writeln!(out, "                  {:<8} {state}", kind.name())?;
    }
    let why = if std::env::var_os("ALBERT_THREADS").is_some() {
        "set by ALBERT_THREADS"
    } else {
        "all cores that this process may use"
    };
    writeln!(out, "threads           {}: {why}", cpu.threads())?;
    for line in caches(Path::new("/sys/devices/system/cpu/cpu0/cache")) {
        writeln!(out, "cache             {line}")?;
    }
    let why =
        if std::env::var_os("ALBERT_CACHES").is_some() { "set by ALBERT_CACHES" } else { "those of this machine" };
    writeln!(out, "GEMM blocks       for {}: {why}", cpu.caches())?;
    if let Some(memory) = memory() {
        writeln!(out, "memory            {memory}")?;
    }
    if arguments.seconds > 0.0 {
        speeds(&mut out, &cpu, arguments.seconds)?;
    }
    match engine::device::gpus() {
        Ok(gpus) => {
            for gpu in gpus {
                writeln!(out, "GPU               {gpu}")?;
            }
        }
        Err(reason) => writeln!(out, "GPU               none: {reason}")?,
    }
    if arguments.verify {
        verify(&cpu)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints the f32 peak and the bandwidths of memory and caches, measured for about `seconds`.
fn speeds(out: &mut impl Write, cpu: &Cpu, seconds: f64) -> Result<()> {
    let one = Cpu::new(cpu.isa(), 1)?;
    let (single, all) =
        (engine::roofline::fma_peak(&one, seconds / 3.0), engine::roofline::fma_peak(cpu, seconds / 3.0));
    let copy = engine::roofline::copy_bandwidth(cpu, 64 << 20, 3) / 1e9;
    let caches = engine::roofline::caches(cpu, seconds / 6.0);
    let doubts =
        busy::of_limits(busy::share_of_cores(cpu, seconds / 3.0), caches[1].map(|cache| cache.bandwidth / 1e9), copy);
    let mark = busy::mark(!doubts.is_empty());
    writeln!(out, "f32 peak          {:.0} GFLOP/s on one thread, {:.0}{mark}on all", single / 1e9, all / 1e9)?;
    writeln!(out, "copy bandwidth    {copy:.1}{mark}GB/s on all threads (read + written)")?;
    for cache in caches.into_iter().flatten() {
        writeln!(out, "{} bandwidth      {:.0}{mark}GB/s on all threads (read)", cache.name, cache.bandwidth / 1e9)?;
    }
    for doubt in doubts {
        writeln!(out, "                  * {doubt}")?;
    }
    Ok(())
}

fn processor_name() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

fn caches(folder: &Path) -> Vec<String> {
    let read = |index: usize, name: &str| {
        Some(fs::read_to_string(folder.join(format!("index{index}")).join(name)).ok()?.trim().to_owned())
    };
    (0..8)
        .filter_map(|i| Some((read(i, "level")?, read(i, "type")?, read(i, "size")?)))
        .filter(|(_, kind, _)| kind != "Instruction")
        .map(|(level, kind, size)| format!("L{level} {} {size}", kind.to_lowercase()))
        .collect()
}

fn memory() -> Option<String> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let gib = |key: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? / 1_048_576.0)
    };
    Some(format!("{:.1} GiB, {:.1} GiB free", gib("MemTotal:")?, gib("MemAvailable:")?))
}
