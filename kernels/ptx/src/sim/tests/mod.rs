//! Tests of the simulator, by subject.

use super::*;
use crate::Launch;

mod assembler;
mod clusters;
mod copies;
mod dependencies;
mod faults;
mod fidelity;
mod hopper;
mod instructions;
mod limits;
mod matrices;
mod order;
mod products;
mod races;
mod scopes;
mod tensor_cores;
mod warps;

const ONE: Launch = Launch { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0 };

/// The measurements of a run without findings.
#[track_caller]
fn clean(report: Result<Report, Error>) -> Metrics {
    report.expect("the launch fits").clean().unwrap_or_else(|findings| panic!("{findings}"))
}

/// Findings of PTX written by hand, on a block of four threads, with 16 bytes in `x` and 16 unwritten ones in `y`; or why
/// it did not run.
fn hand(body: &str) -> Vec<String> {
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.file 1 \"by/hand.rs\"\n.visible .entry kernel(.param .u64 x, .param .u64 y)\n\
         {{\n.reg .u64 %rd<4>; .reg .u32 %u<4>; .reg .f32 %f<4>; .reg .pred p, q;\n\
         ld.param.u64 %rd0, [x];\nld.param.u64 %rd1, [y];\nmov.u32 %u0, %tid.x;\n.loc 1 42 7\n{body}\nret;\n}}\n"
    );
    let mut memory = Memory::new();
    let arguments = [memory.allocate_from("x", &[1.0f32, 2.0, 3.0, 4.0]), memory.allocate("y", 16)].map(Argument::U64);
    let launch = Launch { grid: [1, 1, 1], block: [4, 1, 1], shared_bytes: 0 };
    let run = |module: Module| module.launch("kernel", launch, &arguments, &mut memory, &Options::default());
    match Module::parse(&text).and_then(run) {
        Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// The first message of [`hand`] contains `expected`.
#[track_caller]
fn finds(body: &str, expected: &str) {
    let messages = hand(body);
    assert!(messages.first().is_some_and(|message| message.contains(expected)), "{body}: {messages:?}");
}

/// Every schedule with every completion.
fn settings() -> impl Iterator<Item = Options> {
    let with = |schedule| Completion::ALL.map(|completion| Options { schedule, completion, ..Options::default() });
    Schedule::FIVE.into_iter().flat_map(with)
}

/// Every completion with the first schedule.
fn completions() -> impl Iterator<Item = Options> {
    settings().take(Completion::ALL.len())
}

/// Results of `run`, which are the same under each of these settings, without a finding.
#[track_caller]
fn agree<T: PartialEq + std::fmt::Debug>(
    settings: impl Iterator<Item = Options>,
    what: &str,
    run: impl Fn(&Options) -> (Report, T),
) -> T {
    let mut first = None;
    for options in settings {
        let at = format!("{:?} {:?}", options.schedule, options.completion);
        let (report, results) = run(&options);
        report.clean().unwrap_or_else(|findings| panic!("{at}: {findings}\n{what}"));
        match &first {
            None => first = Some(results),
            Some(first) => assert_eq!(first, &results, "{at}: {what}"),
        }
    }
    first.expect("a setting")
}

/// The first finding of this kind, which `run` must find under each of these settings.
#[track_caller]
fn found<T>(
    settings: impl Iterator<Item = Options>,
    what: &str,
    kind: FindingKind,
    run: impl Fn(&Options) -> (Report, T),
) -> String {
    let mut message = String::new();
    for options in settings {
        let findings = run(&options).0.findings;
        let found = findings.iter().find(|finding| finding.kind == kind);
        let at = format!("{:?} {:?}", options.schedule, options.completion);
        let found = found.unwrap_or_else(|| panic!("{at}: no {} in {findings:?}\n{what}", kind.name()));
        message = found.to_string();
    }
    message
}

/// The words of a buffer; ones where never written.
fn words_of(memory: &Memory, address: u64) -> Vec<u32> {
    let (bytes, _) = memory.bytes(address).expect("the buffer is there");
    bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
}

/// Launches `kernel` of the text on these blocks.
fn launch(text: &str, blocks: Launch, arguments: &[Argument], memory: &mut Memory, options: &Options) -> Report {
    let module = Module::parse(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    module.launch("kernel", blocks, arguments, memory, options).expect("the launch fits")
}

/// Why the body of `kernel` is refused.
#[track_caller]
fn refused(text: &str) -> String {
    let error = Module::parse(text).and_then(|module| module.decode("kernel"));
    error.expect_err(&format!("{text:.300} is refused")).to_string()
}

/// A kernel on one block: `%x` points to 1024 words 3i + 1, `%y` to as many unwritten ones, `%own` to the thread's own
/// word of y, `%t` is the thread.
struct Trial {
    threads: u32,
    blocks: u32,
    /// Blocks of a cluster.
    ranks: u32,
    /// Text before the entry.
    module: String,
    body: String,
}

/// A trial on a block of so many threads.
fn block<const THREADS: u32>(body: &str) -> Trial {
    Trial { threads: THREADS, blocks: 1, ranks: 1, module: String::new(), body: body.to_string() }
}

impl Trial {
    /// The same on so many blocks, behind the module's variables.
    fn on(self, blocks: u32, module: &str) -> Self {
        Trial { blocks, module: module.to_string(), ..self }
    }

    fn text(&self) -> String {
        let Trial { threads, ranks, module, body, .. } = self;
        format!(
            ".version 8.7\n.target sm_90a\n.address_size 64\n{module}\n.visible .entry kernel(.param .u64 x, .param .u64 y)\n\
             .reqntid {threads}\n.reqnctapercluster {ranks}\n{{\n.reg .b64 %x, %y, %own, %d<16>;\n.reg .b32 %t, %lane, %warp, %r<64>;\n\
             .reg .b16 %h<8>;\n.reg .f32 %f<64>;\n.reg .pred %p<8>;\nld.param.u64 %x, [x];\nld.param.u64 %y, [y];\n\
             mov.u32 %t, %tid.x;\nmov.u32 %lane, %laneid;\nshr.u32 %warp, %t, 5;\nmad.wide.u32 %own, %t, 4, %y;\n\
             {body}\nret;\n}}\n"
        )
    }

    fn run(&self, options: &Options) -> (Report, Vec<u32>) {
        let mut memory = Memory::new();
        let x = memory.allocate_from("x", &std::array::from_fn::<u32, 1024, _>(|i| 3 * i as u32 + 1));
        let y = memory.allocate("y", 4096);
        let grid = Launch { grid: [self.blocks, 1, 1], block: [self.threads, 1, 1], shared_bytes: 0 };
        let report = launch(&self.text(), grid, &[x, y].map(Argument::U64), &mut memory, options);
        (report, words_of(&memory, y))
    }

    /// The words of y, which are the same under every schedule and completion, without a finding.
    #[track_caller]
    fn agree(&self) -> Vec<u32> {
        agree(settings(), &self.body, |options| self.run(options))
    }

    /// The first words of y are those that `wanted` gives for their places.
    #[track_caller]
    fn gives(&self, count: u32, wanted: impl Fn(u32) -> u32) {
        assert_eq!(self.agree()[..count as usize], (0..count).map(wanted).collect::<Vec<u32>>(), "{}", self.body);
    }

    /// The first finding of this kind, which every schedule and completion must find.
    #[track_caller]
    fn found(&self, kind: FindingKind) -> String {
        found(settings(), &self.body, kind, |options| self.run(options))
    }

    /// There is a race under every schedule and completion.
    #[track_caller]
    fn races(&self) -> String {
        self.found(FindingKind::Race)
    }

    /// There is a finding of one of these kinds.
    #[track_caller]
    fn finds(&self, kinds: &[FindingKind], options: &Options) {
        let (report, _) = self.run(options);
        assert!(kinds.iter().any(|kind| report.has(*kind)), "{options:?}: {:?}\n{}", report.findings, self.body);
    }

    /// Nothing is found where lanes that execute an instruction together are ordered by it.
    #[track_caller]
    fn converges(&self) {
        let (report, _) = self.run(&Options { assume_convergence: true, ..Options::default() });
        report.clean().unwrap_or_else(|findings| panic!("{findings}\n{}", self.body));
    }
}
