//! `albert exchange`: time of summing gradients over ranks, compared with the MPI library's own sum.

use crate::{
    numbers::whole,
    output::{results, tell},
    ranks,
};
use albert::train::Worker;
use anyhow::Result;
use clap::Args;
use engine::{Communicator, Init, LaneSums, Lanes, ParamBuilder, philox::Stream};
use std::{io::Write, process::ExitCode, time::Instant};

#[derive(Debug, Args)]
#[command(after_help = "Example:
  mpirun -n 4 albert exchange --megabytes 47")]
pub(crate) struct Arguments {
    /// Megabytes of gradients; base has 47
    #[arg(long, default_value_t = 47, value_parser = whole::<1, usize>)]
    megabytes: usize,
    /// Number of rounds; their median is printed
    #[arg(long, default_value_t = 15, value_parser = whole::<1, usize>)]
    rounds: usize,
    /// Device: cpu, cuda (the first GPU), cuda:N, or cuda-sim (a simulated GPU, for tests)
    #[arg(long, default_value = "cpu")]
    device: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    ranks::run(&arguments.device, |Worker { device, communicator }| {
        if communicator.size() == 1 {
            tell!("one process has nothing to exchange; start several: mpirun -n 2 albert exchange");
            return Ok(ExitCode::FAILURE);
        }
        let len = arguments.megabytes * 250_000;
        let mut parameters = ParamBuilder::new();
        parameters.add("gradients", [len], Init::Zeros)?;
        let mut gradients = parameters.build(device.processor(), 0)?.gradients(&device)?;
        let lanes = Lanes::new(&communicator, "lanes", communicator.size().next_power_of_two())?;
        let mut sums = LaneSums::new(communicator.clone(), lanes.clone(), &gradients)?;
        let mut stream = Stream::new(1, [communicator.rank() as u32, 0, 0]);
        let values: Vec<f32> = (0..len).map(|_| stream.next_f32() - 0.5).collect();
        let mut sum = vec![0.0; len];
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // The first round is not counted.
        for _ in 0..=arguments.rounds {
            sums.begin_step();
            for lane in lanes.own() {
                sums.begin_lane(lane, &mut gradients)?;
                gradients.on_host(|sum| {
                    sum.copy_from_slice(&values);
                    Ok(())
                })?;
            }
            ours.push(timed(&communicator, || Ok(sums.all_reduce("gradients", &mut gradients)?))?);
            let mut is_there = false;
            let seconds = timed(&communicator, || {
                is_there = communicator.library_sum(&values, &mut sum)?;
                Ok(())
            })?;
            theirs.extend(is_there.then_some(seconds));
        }
        let ours = median(&mut ours[1..]);
        writeln!(
            results(),
            "{} MB over {} ranks: {:.1} ms, {:.2} GB/s a rank",
            arguments.megabytes,
            communicator.size(),
            1e3 * ours,
            4e-9 * len as f64 / ours,
        )?;
        if theirs.len() > 1 {
            let theirs = median(&mut theirs[1..]);
            writeln!(results(), "the library's own sum: {:.1} ms; {:.2} times its time", 1e3 * theirs, ours / theirs)?;
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Seconds of `work` on the slowest rank; all ranks begin together.
fn timed(communicator: &Communicator, work: impl FnOnce() -> Result<()>) -> Result<f64> {
    communicator.barrier("the start of a round")?;
    let start = Instant::now();
    work()?;
    let seconds = start.elapsed().as_secs_f64();
    let all = communicator.gather("the seconds of a round", &seconds.to_le_bytes())?;
    let seconds = all.iter().map(|bytes| f64::from_le_bytes(bytes[..].try_into().expect("eight bytes")));
    Ok(seconds.fold(0.0, f64::max))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
