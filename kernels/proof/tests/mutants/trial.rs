//! Trial of a mutant: runs the cases that launch its program until one catches it.

use crate::generate::{Mutant, mutants};
use kernels_cuda::program::Program;
use kernels_proof::{
    OPERATIONS,
    case::{Case, Outcome},
    operation::Operation,
    runner::{Launched, Replayed, Setting},
    simulated,
};
use ptx::{
    Sm,
    sim::{Completion, Options, Schedule},
};
use rayon::prelude::*;
use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

/// Maximum number of cases per mutant.
const MAX_CASES: usize = 16;
/// Maximum FLOPs of a case; a program without smaller cases uses larger ones.
const MAX_FLOPS: u64 = 110_000_000;

/// A program of the table of operations, with the cases that launch it.
pub(crate) struct Subject {
    pub(crate) operation: &'static Operation,
    pub(crate) sm: Sm,
    pub(crate) program: Program,
    /// The text that is mutated.
    listing: String,
    cases: Vec<Case>,
}

/// Verdict on a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The simulator reports a finding, or the check rejects the result.
    Caught(String),
    /// Equivalent by construction, by this rule.
    Equivalent(&'static str),
    /// No case catches it.
    Survived,
}

/// A launch of the program, and the instruction limit of a warp.
struct Stage {
    /// `None` if the grid differs from the host's; memory must then equal that of the host's grid.
    case: Option<Case>,
    launched: Launched,
    /// The other launches of the case.
    others: Vec<Rc<Launched>>,
    /// For each line of the listing: true if a thread reaches it.
    reached: Vec<bool>,
    most_instructions: u64,
}

/// A program with the launches on which its mutants run.
pub(crate) struct Prepared<'a> {
    subject: &'a Subject,
    stages: Vec<Stage>,
}

/// Programs of the table whose name contains `only`. Programs of different structure come before those that differ only in
/// type or epilogue.
pub(crate) fn subjects(only: &str) -> Vec<Subject> {
    let rows: Vec<_> = OPERATIONS.iter().flat_map(|operation| Sm::ALL.map(|sm| (operation, sm))).collect();
    let of = |&(operation, sm): &(&'static Operation, Sm)| {
        let mut programs = (operation.ptx)(sm);
        programs.retain(|program| program.name.as_str().contains(only));
        let mut cases = if programs.is_empty() { BTreeMap::new() } else { simulated::cases_of(operation, sm) };
        let mut subject = |program: Program| {
            let cases = some_of(operation, cases.remove(&program.name).unwrap_or_default());
            Subject { operation, sm, listing: program.listing(), program, cases }
        };
        programs.into_iter().map(&mut subject).collect::<Vec<_>>()
    };
    let mut all: Vec<Subject> = rows.par_iter().with_max_len(1).flat_map_iter(of).collect();
    // Number of preceding programs with the same operation, form and tile.
    let mut seen = BTreeMap::new();
    all.sort_by_cached_key(|subject| {
        let parts: Vec<&str> = subject.program.name.as_str().split('-').collect();
        let count =
            seen.entry((parts[0].to_string(), subject.sm, parts.get(3).map(|tile| (*tile).to_string()))).or_insert(0);
        *count += 1;
        *count
    });
    all
}

/// At most [`MAX_CASES`] cases of at most [`MAX_FLOPS`], in order of cost.
fn some_of(operation: &Operation, mut cases: Vec<Case>) -> Vec<Case> {
    let small = |case: &Case| (operation.cost)(case).flops <= MAX_FLOPS;
    if cases.iter().any(small) {
        cases.retain(small);
    }
    let count = cases.len();
    if count > MAX_CASES {
        cases = (0..MAX_CASES).map(|i| cases[i * (count - 1) / (MAX_CASES - 1)].clone()).collect();
    }
    cases
}

impl Subject {
    /// The lines of the text.
    pub(crate) fn lines(&self) -> Vec<&str> {
        self.listing.lines().collect()
    }

    /// Every mutant of the text.
    pub(crate) fn mutants(&self) -> Vec<Mutant> {
        mutants(&self.lines())
    }

    /// Stage of a launch; `case` is `None` for a grid that the host does not use.
    fn stage(&self, case: Option<Case>, launched: Launched, others: Vec<Rc<Launched>>, with_lines: bool) -> Stage {
        let most_instructions = 4 * launched.metrics.longest + 2000;
        let text = if with_lines { &self.program.text } else { &self.listing };
        let reached = reached(&self.listing, text, &launched.metrics.unreached);
        Stage { case, launched, others, reached, most_instructions }
    }

    /// The launch with a third of the blocks along the dimensions of a grid-stride loop.
    fn folded(&self, launched: &Launched) -> Option<Stage> {
        let mut grid = launched.launch.grid;
        for (blocks, name) in grid.iter_mut().zip(["%nctaid.x", "%nctaid.y", "%nctaid.z"]) {
            if self.listing.contains(name) {
                *blocks = blocks.div_ceil(3);
            }
        }
        if grid == launched.launch.grid {
            return None;
        }
        Some(self.stage(None, launched.on_grid(&self.listing, grid)?, Vec::new(), false))
    }

    /// Runs the cases. The first stage is the cheapest of those that reach most lines.
    pub(crate) fn prepare(&self) -> Prepared<'_> {
        let mut stages = Vec::new();
        for case in &self.cases {
            let launches = simulated::launches(self.operation, case, self.sm, false);
            let mut launches = launches.unwrap_or_else(|error| panic!("{} {case}: {error}", self.operation.name));
            if let Some(at) = launches.iter().position(|launched| launched.name == self.program.name) {
                let launched = launches.remove(at);
                launches.retain(|launched| launched.name != self.program.name);
                let others = launches.into_iter().map(Rc::new).collect();
                stages.push(self.stage(Some(case.clone()), launched, others, true));
            }
        }
        assert!(!stages.is_empty(), "no case launches {}", self.program.name);
        stages.sort_by_key(|stage| (stage.launched.metrics.unreached.len(), stage.launched.metrics.issued));
        let folded = stages.iter().rev().filter_map(|stage| self.folded(&stage.launched)).take(2).collect::<Vec<_>>();
        stages.extend(folded);
        Prepared { subject: self, stages }
    }
}

/// Lines of a program's listing that a thread reaches. `unreached` are the lines of `text` that no thread executed, with line
/// directives or without. A guarded instruction counts as reached if an instruction of the same
/// basic block was executed. Labels count as reached.
fn reached(listing: &str, text: &str, unreached: &[u32]) -> Vec<bool> {
    let is_line = |line: &str| [".loc", ".file"].iter().any(|word| line.trim_start().starts_with(word));
    let numbers: Vec<u32> =
        (1..).zip(text.lines()).filter(|(_, line)| !is_line(line)).map(|(number, _)| number).collect();
    let lines: Vec<&str> = listing.lines().collect();
    assert_eq!(numbers.len(), lines.len(), "a listing is the text without line directives");
    let idle: BTreeSet<u32> = unreached.iter().copied().collect();
    let mut reached = vec![true; lines.len()];
    let mut block = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let line = line.trim();
        if line.ends_with(';') {
            block.push(at);
        }
        if line.ends_with(':') || line.contains("bra ") || at + 1 == lines.len() {
            let ran = |at: &&usize| !idle.contains(&numbers[**at]);
            let plain = block.iter().any(|at: &usize| !lines[*at].trim_start().starts_with(['@', '.']));
            if plain && !block.iter().filter(|at| !lines[**at].trim_start().starts_with('.')).any(|at| ran(&at)) {
                block.iter().for_each(|at| reached[*at] = false);
            }
            block.clear();
        }
    }
    reached
}

impl Prepared<'_> {
    /// Runs a mutant on its cases in order of cost, then, unless it is `proved` to be equivalent, under every schedule and
    /// completion. Launches that do not reach the edited lines are skipped.
    pub(crate) fn judge(&self, mutant: &Mutant, proved: bool) -> Verdict {
        if let Some(rule) = mutant.equivalent {
            return Verdict::Equivalent(rule);
        }
        let text = mutant.text(&self.subject.lines());
        let orders =
            Schedule::FIVE.into_iter().flat_map(|schedule| Completion::ALL.map(|completion| (schedule, completion)));
        let first = (Schedule::RoundRobin, Completion::Latest);
        let concerned = |stage: &&Stage| stage.reached[mutant.lines()].contains(&true);
        let stages: Vec<&Stage> = self.stages.iter().filter(concerned).collect();
        let mut cheapest = stages.clone();
        cheapest.sort_by_key(|stage| stage.launched.metrics.issued);
        let plain = cheapest.into_iter().map(|stage| (stage, first));
        let ordered = orders.filter(|order| *order != first);
        // All schedules and completions on the first case, two of them on the next two.
        let on_first = stages.iter().take(1).flat_map(|stage| ordered.clone().map(|order| (*stage, order)));
        let odd = [(Schedule::Random(2), Completion::Random(1)), (Schedule::Adversarial(1), Completion::Earliest)];
        let on_others = stages.iter().skip(1).take(2).flat_map(|stage| odd.map(|order| (*stage, order)));
        let ordered = on_first.chain(on_others).filter(|_| !proved);
        let caught = plain.chain(ordered).find_map(|(stage, order)| self.try_on(stage, order, &text));
        caught.map_or(Verdict::Survived, Verdict::Caught)
    }

    fn try_on(&self, stage: &Stage, (schedule, completion): (Schedule, Completion), text: &str) -> Option<String> {
        let options = Options {
            schedule,
            completion,
            first_finding_ends: true,
            max_instructions: stage.most_instructions,
            ..Options::default()
        };
        match stage.launched.replay(text, &options) {
            Replayed::Same => None,
            Replayed::Refused(error) => Some(format!("refused: {error}")),
            Replayed::Found(report) => Some(report.findings[0].kind.name().to_string()),
            Replayed::Different(memory) => {
                let Some(case) = &stage.case else { return Some("wrong result".to_string()) };
                let replaced = Some((self.subject.program.name.clone(), text.to_string()));
                // Other launches of the case may execute more instructions.
                let options = Options { max_instructions: 1_000_000, ..options };
                let mut recorded = stage.others.clone();
                recorded.push(Rc::new(stage.launched.leaving(&memory)));
                let setting = Setting { options, replaced, recorded };
                let (outcome, _) = simulated::run(self.subject.operation, case, self.subject.sm, setting);
                matches!(outcome, Outcome::Failed { .. }).then(|| "wrong result".to_string())
            }
        }
    }
}
