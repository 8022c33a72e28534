//! Ranks on simulated GPUs over a fake NCCL (`tests/fake/nccl.rs`): bit-identical results to one process, and errors.

use albert_tests::{
    fake::compile,
    program::{Finished, albert, finish},
    run_folder::{World, assert_same_run},
};
use engine::{
    Communicator, Cpu, Device, GpuRanks, GradientPath, Gradients, Init, Isa, LaneSums, Lanes, ParamBuilder,
    philox::Stream,
};
use std::{ffi::OsStr, fs, path::PathBuf, time::Duration};
use tempfile::TempDir;

/// The fake library and its folder.
pub(crate) struct Fake {
    folder: TempDir,
}

impl Fake {
    /// Compiles the library; `None` without a compiler.
    pub(crate) fn new() -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let fake = Self { folder };
        let environment = [("FAKE_NCCL_FOLDER", fake.folder.path())];
        compile("nccl.rs", &fake.path("libnccl.so.2"), &[], &environment).then_some(fake)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn file(&self) -> String {
        self.path("libnccl.so.2").to_str().expect("temporary folders have UTF-8 names").to_owned()
    }

    fn set_fault(&self, fault: &str) {
        fs::write(self.path("fault"), fault).expect("the folder is writable");
    }

    /// Returns the lines of the library's log, sorted, and empties it.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        let _ = fs::remove_file(self.path("calls"));
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }
}

fn device(name: &str) -> Device {
    Device::named(name, Cpu::new(Isa::choose().expect("an instruction set"), 1).expect("a CPU")).expect("the device")
}

fn gradients(device: &Device, len: usize) -> Gradients {
    let mut builder = ParamBuilder::new();
    builder.add("w", [len], Init::Zeros).expect("a name");
    builder.build(device.processor(), 0).expect("parameters").gradients(device).expect("gradients")
}

/// Sums of `len` gradients over 8 lanes on this rank, for two steps; each order of additions has different bits.
fn sums(communicator: &Communicator, device: &Device, len: usize) -> engine::Result<Vec<u32>> {
    let mut gradients = gradients(device, len);
    let lanes = Lanes::new(communicator, "lanes", 8)?;
    let mut sums = LaneSums::new(communicator.clone(), lanes.clone(), &gradients)?;
    for step in 1..=2 {
        gradients.clear()?;
        sums.begin_step();
        for lane in lanes.own() {
            sums.begin_lane(lane, &mut gradients)?;
            let mut stream = Stream::new(step, [lane as u32, 0, 0]);
            gradients.on_host(|sum| {
                sum.iter_mut()
                    .enumerate()
                    .for_each(|(i, x)| *x += (stream.next_f32() - 0.5) * 2f32.powi(i as i32 % 20));
                Ok(())
            })?;
        }
        sums.all_reduce(&format!("gradients of step {step}"), &mut gradients)?;
    }
    Ok(gradients.elements()?.iter().map(|x| x.to_bits()).collect())
}

/// Runs `work` for each item on a separate thread and returns the results.
fn at_once<I: Send, T: Send>(items: Vec<I>, work: impl Fn(I) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || work(item))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

/// Runs `work` on ranks, each on a thread with its own GPU, connected over `fake`.
fn on_gpus<T: Send>(
    fake: &Fake,
    size: usize,
    timeout: Duration,
    work: impl Fn(engine::Result<Communicator>, &Device) -> T + Sync,
) -> Vec<T> {
    at_once(Communicator::threads(size), |mut rank| {
        let device = device("cuda-sim");
        rank.set_timeout(timeout);
        let path = rank.connect_gpus(&device, Some(&fake.file()));
        let connected = path.map(|path| {
            assert_eq!(path, GradientPath::Nccl("2.27.3".to_owned()));
            rank
        });
        work(connected, &device)
    })
}

const PATIENCE: Duration = Duration::from_secs(60);
const IMPATIENCE: Duration = Duration::from_secs(2);

#[test]
fn gradients_over_nccl_have_the_sum_of_one_process() {
    let Some(fake) = Fake::new() else { return };
    for len in [1, 7, 50] {
        let expected = sums(&Communicator::default(), &device("cpu"), len).expect("a sum");
        for size in [2, 3, 4, 5] {
            let work = |rank: engine::Result<Communicator>, device: &Device| {
                let rank = rank.expect("ranks connect");
                let sums = sums(&rank, device, len).expect("a sum");
                rank.finish();
                sums
            };
            assert!(on_gpus(&fake, size, PATIENCE, work).iter().all(|sum| *sum == expected), "{size} ranks of {len}");
            let mut calls: Vec<String> = (0..size).map(|rank| format!("destroy {rank}")).collect();
            calls.extend((0..size).map(|rank| format!("init {rank} of {size}")));
            assert_eq!(fake.calls(), calls);
        }
    }
}

/// Checks that the test above depends on the data that the library transfers.
#[test]
fn a_wrong_byte_changes_the_sum() {
    let Some(fake) = Fake::new() else { return };
    fake.set_fault("corrupt 1 0");
    let expected = sums(&Communicator::default(), &device("cpu"), 50).expect("a sum");
    let work = |rank: engine::Result<Communicator>, device: &Device| {
        sums(&rank.expect("ranks connect"), device, 50).expect("a sum") == expected
    };
    // The first step is wrong; the second one, which is compared, starts at zero.
    assert_eq!(on_gpus(&fake, 2, PATIENCE, work), [true, true]);
    // Two groups a step.
    fake.set_fault("corrupt 1 2");
    assert!(on_gpus(&fake, 2, PATIENCE, work).contains(&false));
}

/// Error of a rank that fails and aborts; `None` if it succeeds.
fn error(rank: engine::Result<Communicator>, device: &Device) -> Option<String> {
    let rank = match rank {
        Ok(rank) => rank,
        Err(error) => return Some(error.to_string()),
    };
    let error = sums(&rank, device, 50).err()?.to_string();
    rank.abort();
    let next = sums(&rank, device, 50).expect_err("nothing is exchanged after a failure").to_string();
    assert!(next.ends_with(": an earlier exchange failed"), "{next}");
    Some(error)
}

#[test]
fn faults_of_a_library_and_of_its_ranks_are_told_and_the_work_is_aborted() {
    let Some(fake) = Fake::new() else { return };
    let silent =
        "rank 0, gradients of step 2: rank 1 did not answer within 2 s; it may be stopped, or its network may be gone";
    let remote =
        "rank 1, gradients of step 2: NCCL failed in an exchange: fake remote error; set NCCL_DEBUG=WARN to see more";
    let file = fake.file();
    let old = format!("ALBERT_NCCL = {file}: {file} is NCCL 2.6.4; 2.7.0 or later is needed");
    let start = "rank 1, the start of NCCL: NCCL failed in ncclCommInitRank: fake system error";
    let all = &["abort 0", "abort 1", "init 0 of 2", "init 1 of 2"][..];
    // Fault, number of ranks, failing rank, its error, and calls of the library.
    for (fault, size, rank, said, calls) in [
        // After the two groups of the first step; or the end of a group does not return, as when NCCL connects.
        ("silent 1 2", 2, 0, silent, all),
        ("stuck 1 2", 2, 0, silent, all),
        ("silent 1 0", 3, 0, ": rank 1 or 2 did not answer within", &[]),
        ("error 1 2", 2, 1, remote, &["abort 1"]),
        ("refuse 1 ncclSend", 2, 1, "in ncclSend: fake invalid argument", &[]),
        ("refuse 1 ncclRecv", 2, 1, "in ncclRecv: fake invalid argument", &[]),
        ("refuse 1 ncclCommInitRank", 2, 1, start, &[]),
        ("refuse 1 ncclCommInitRank", 2, 0, "rank 1 did not answer within 2 s", &[]),
        ("version 2604", 2, 0, &old, &[]),
        ("version 2604", 2, 1, &old, &[]),
    ] {
        fake.set_fault(fault);
        let errors = on_gpus(&fake, size, IMPATIENCE, error);
        assert!(errors[rank].as_deref().is_some_and(|error| error.contains(said)), "{fault}: {errors:?}");
        let found = fake.calls();
        let is_called = calls.iter().all(|call| found.iter().any(|found| found == call));
        assert!(is_called && (calls.len() < 4 || found.len() == 4), "{fault}: {found:?}");
    }
}

/// Control messages of ranks without MPI: empty, short, and larger than a buffer.
#[test]
fn control_messages_of_any_length_arrive_whole() {
    let Some(fake) = Fake::new() else { return };
    fs::write(fake.path("same_id"), "").expect("the folder is writable");
    let lens = [3, 0, (2 << 20) + 5];
    let content = |rank: usize| -> Vec<u8> { (0..lens[rank]).map(|i| (i * 7 + rank) as u8).collect() };
    let start = |rank: usize| {
        let size = lens.len().to_string();
        let variables = [("WORLD_SIZE", &size[..]), ("MASTER_ADDR", "localhost"), ("MASTER_PORT", "29500")];
        let variable = |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            _ => variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()),
        };
        let ranks = GpuRanks::find(&variable).expect("valid variables").expect("several ranks");
        let (communicator, path) = ranks.connect(&device("cuda-sim"), Some(&fake.file())).expect("ranks connect");
        assert_eq!(path, GradientPath::Nccl("2.27.3".to_owned()));
        communicator.set_timeout(PATIENCE);
        let all = communicator.gather("messages", &content(rank)).expect("all ranks are there");
        communicator.finish();
        all
    };
    let all: Vec<Vec<Vec<u8>>> = at_once((0..lens.len()).collect(), start);
    for all in all {
        assert!((0..lens.len()).all(|rank| all[rank] == content(rank)));
    }
    assert!(fake.calls().iter().all(|call| !call.starts_with("misuse")));
}

/// Settings for a few steps that take seconds on the simulator.
pub(crate) fn short() -> Vec<&'static str> {
    "model.embedding_size=8 model.hidden_size=16 model.num_hidden_layers=1 model.num_attention_heads=1 \
     data.evaluation.max_sequences=2 data.batch.max_tokens=64 data.batch.max_sequences=1 data.batch.lanes=4 \
     data.batch.sequences_per_step=4 schedule.steps=2 schedule.warmup_steps=1 evaluation.interval=0 --device=cuda-sim"
        .split(' ')
        .collect()
}

/// Runs `size` processes like torchrun, without MPI.
fn torchrun<A: AsRef<OsStr> + Sync>(size: usize, file: &str, port: usize, arguments: &[A]) -> Vec<Finished> {
    let start = |rank: usize| {
        let number = |number: usize| number.to_string();
        let mut command = albert(arguments);
        command.env("RANK", number(rank)).env("LOCAL_RANK", number(rank)).env("WORLD_SIZE", number(size));
        command.env("LOCAL_WORLD_SIZE", number(size)).env("MASTER_ADDR", "localhost").env("MASTER_PORT", number(port));
        finish(command.env("ALBERT_NCCL", file).env("ALBERT_THREADS", "1"))
    };
    at_once((0..size).collect(), start)
}

#[test]
fn ranks_of_torchrun_write_the_files_of_one_process() {
    let Some(fake) = Fake::new() else { return };
    let world = World::new();
    world.run_pretrain("one", &short()).succeeds();
    for size in [2, 3, 4] {
        let run = format!("{size}");
        let all = torchrun(size, &fake.file(), 20_000 + size, &world.pretrain(&run, &short()));
        let told = format!("{size} ranks on 1 host(s), 1 thread(s) in rank 0; gradients over NCCL 2.27.3");
        all[0].clone().says(&[&told]);
        all.into_iter().for_each(|finished| drop(finished.succeeds()));
        assert_same_run(&world.path("one"), &world.path(&run), &format!("{size} ranks"));
    }
    assert!(fake.calls().iter().all(|call| call.starts_with("init") || call.starts_with("destroy")));
}

#[test]
fn ranks_of_torchrun_that_fail_say_why_and_end() {
    let Some(fake) = Fake::new() else { return };
    let world = World::new();
    let arguments = world.pretrain("run", &[&short()[..], &["run.communication_timeout=1"]].concat());
    // After the exchanges of the start.
    fake.set_fault("silent 1 20");
    let all = torchrun(2, &fake.file(), 20_010, &arguments);
    all[0].clone().fails_with(&["error: rank 0, ", "rank 1 did not answer within 1 s"]);
    assert!(fake.calls().contains(&"abort 0".to_owned()));
    for file in ["off", "libnone.so"] {
        for finished in torchrun(2, file, 20_020, &arguments) {
            finished.fails_with(&["torchrun started 2 processes", "set ALBERT_NCCL to the file", "`mpirun -n 2`"]);
        }
    }
}
