//! Tests of the simulator, by subject.

use super::*;
use crate::Launch;

mod assembler;
mod copies;
mod faults;
mod hopper;
mod instructions;
mod limits;
mod matrices;
mod order;
mod products;
mod races;
mod scopes;
mod warps;

const ONE: Launch = Launch { grid: [1, 1, 1], block: [1, 1, 1], shared_bytes: 0 };

/// The measurements of a run without findings.
#[track_caller]
fn clean(report: Result<Report, Error>) -> Metrics {
    report.expect("the launch fits").clean().unwrap_or_else(|findings| panic!("{findings}"))
}

/// Runs PTX written by hand, on a block of four threads, with 16 bytes in `x` and 16 unwritten ones in `y`.
fn hand_report(body: &str) -> Result<Report, Error> {
    let text = format!(
        ".version 7.0\n.target sm_80\n.address_size 64\n.file 1 \"by/hand.rs\"\n.visible .entry kernel(.param .u64 x, .param .u64 y)\n\
         {{\n.reg .u64 %rd<4>; .reg .u32 %u<4>; .reg .f32 %f<4>; .reg .pred p, q;\n\
         ld.param.u64 %rd0, [x];\nld.param.u64 %rd1, [y];\nmov.u32 %u0, %tid.x;\n.loc 1 42 7\n{body}\nret;\n}}\n"
    );
    let mut memory = Memory::new();
    let x = memory.allocate_from("x", &[1.0f32, 2.0, 3.0, 4.0]);
    let y = memory.allocate("y", 16);
    let launch = Launch { grid: [1, 1, 1], block: [4, 1, 1], shared_bytes: 0 };
    let arguments = [Argument::U64(x), Argument::U64(y)];
    Module::parse(&text)?.launch("kernel", launch, &arguments, &mut memory, &Options::default())
}

/// The findings of [`hand_report`], or why it did not run.
fn hand(body: &str) -> Vec<String> {
    match hand_report(body) {
        Ok(report) => report.findings.iter().map(ToString::to_string).collect(),
        Err(error) => vec![error.to_string()],
    }
}

/// The first message of a run that must not be clean.
#[track_caller]
fn fault(body: &str) -> String {
    hand(body).into_iter().next().unwrap_or_else(|| panic!("nothing was found in {body}"))
}

/// A kernel on one block: `%x` points to 1024 words 3i + 1, `%y` to as many unwritten ones, `%own` to the thread's own
/// word of y, `%t` is the thread.
struct Trial {
    threads: u32,
    blocks: u32,
    /// Text before the entry.
    module: String,
    body: String,
}

impl Trial {
    fn new(threads: u32, body: &str) -> Self {
        Trial { threads, blocks: 1, module: String::new(), body: body.to_string() }
    }

    fn text(&self) -> String {
        let Trial { threads, module, body, .. } = self;
        format!(
            ".version 8.7\n.target sm_90a\n.address_size 64\n{module}\n.visible .entry kernel(.param .u64 x, .param .u64 y)\n\
             .reqntid {threads}\n{{\n.reg .b64 %x, %y, %own, %d<16>;\n.reg .b32 %t, %lane, %warp, %r<64>;\n\
             .reg .b16 %h<8>;\n.reg .f32 %f<64>;\n.reg .pred %p<8>;\nld.param.u64 %x, [x];\nld.param.u64 %y, [y];\n\
             mov.u32 %t, %tid.x;\nmov.u32 %lane, %laneid;\nshr.u32 %warp, %t, 5;\nmad.wide.u32 %own, %t, 4, %y;\n\
             {body}\nret;\n}}\n"
        )
    }

    fn run(&self, options: &Options) -> (Report, Vec<u32>) {
        let mut memory = Memory::new();
        let x = memory.allocate_from("x", &std::array::from_fn::<u32, 1024, _>(|i| 3 * i as u32 + 1));
        let y = memory.allocate("y", 4096);
        let launch = Launch { grid: [self.blocks, 1, 1], block: [self.threads, 1, 1], shared_bytes: 0 };
        let module = Module::parse(&self.text()).unwrap_or_else(|error| panic!("{error}\n{}", self.text()));
        let arguments = [Argument::U64(x), Argument::U64(y)];
        let report = module.launch("kernel", launch, &arguments, &mut memory, options).expect("the launch fits");
        let (bytes, _) = memory.bytes(y).expect("y is there");
        (report, bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("four bytes"))).collect())
    }

    /// The words of y, which are the same under every schedule and completion, without a finding.
    #[track_caller]
    fn agree(&self) -> Vec<u32> {
        let mut first = None;
        for schedule in Schedule::FIVE {
            for completion in Completion::ALL {
                let (report, words) = self.run(&Options { schedule, completion, ..Options::default() });
                report
                    .clean()
                    .unwrap_or_else(|findings| panic!("{schedule:?} {completion:?}: {findings}\n{}", self.body));
                assert_eq!(first.get_or_insert_with(|| words.clone()), &words, "{schedule:?} {completion:?}");
            }
        }
        first.unwrap_or_default()
    }

    /// The first finding of this kind, which every schedule and completion must find.
    #[track_caller]
    fn found(&self, kind: FindingKind) -> String {
        let mut message = String::new();
        for schedule in Schedule::FIVE {
            for completion in Completion::ALL {
                let (report, _) = self.run(&Options { schedule, completion, ..Options::default() });
                let found = report.findings.iter().find(|finding| finding.kind == kind);
                let all: Vec<String> = report.findings.iter().map(ToString::to_string).collect();
                let found = found.unwrap_or_else(|| {
                    panic!("{schedule:?} {completion:?}: no {} in {all:?}\n{}", kind.name(), self.body)
                });
                message = found.to_string();
            }
        }
        message
    }
}
