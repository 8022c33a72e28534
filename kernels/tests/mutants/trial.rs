//! Runs a mutant on the cases that launch its program, until one of them catches it.

use crate::generate::{Mutant, mutants};
use kernels::{
    OPERATIONS,
    operation::{Case, Operation, Outcome, Program},
    ptx::{
        Sm,
        sim::{Completion, Options, Schedule},
    },
    simulated::{self, Launched, Replayed, Setting},
};

/// Cases that a mutant meets at most.
const MAX_CASES: usize = 8;
/// Cases with more FLOPs than this are left to other tests.
const MAX_FLOPS: u64 = 6_000_000;

/// A program of the table with the cases that launch it.
pub(crate) struct Subject {
    pub(crate) operation: &'static Operation,
    pub(crate) sm: Sm,
    pub(crate) program: Program,
    cases: Vec<Case>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A finding, or a result that the check refuses.
    Caught(String),
    /// Right by construction, by this rule.
    Equivalent(&'static str),
    /// Nobody minds.
    Survived,
}

/// A launch of the program, and how long a warp of it may run.
struct Stage {
    /// `None` where the grid is not the host's: then memory must be as it is on the host's.
    case: Option<Case>,
    launched: Launched,
    most_instructions: u64,
}

/// A program with everything that its mutants need.
pub(crate) struct Prepared<'a> {
    subject: &'a Subject,
    stages: Vec<Stage>,
}

/// Every program of the table, those that differ in structure before those that differ in type or epilogue.
pub(crate) fn subjects() -> Vec<Subject> {
    let mut all = Vec::new();
    for (operation, sm) in OPERATIONS.iter().flat_map(|operation| Sm::ALL.map(|sm| (operation, sm))) {
        let mut cases = simulated::cases_of(operation, sm);
        for program in (operation.ptx)(sm) {
            let cases = some_of(operation, cases.remove(&program.name).unwrap_or_default());
            all.push(Subject { operation, sm, program, cases });
        }
    }
    // How many of the programs with the same operation, form and tile come before this one.
    let mut seen = std::collections::BTreeMap::new();
    all.sort_by_cached_key(|subject| {
        let parts: Vec<&str> = subject.program.name.as_str().split('-').collect();
        let count =
            seen.entry((parts[0].to_string(), subject.sm, parts.get(3).map(|tile| (*tile).to_string()))).or_insert(0);
        *count += 1;
        *count
    });
    all
}

/// Not too large, not too many, from the cheapest to the dearest.
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
        self.program.listing.lines().collect()
    }

    /// Every mutant of the text.
    pub(crate) fn mutants(&self) -> Vec<Mutant> {
        mutants(&self.lines())
    }

    /// The launch with fewer blocks along the sides that the program loops over.
    fn folded(&self, launched: &Launched) -> Option<Stage> {
        let mut grid = launched.launch.grid;
        for (blocks, name) in grid.iter_mut().zip(["%nctaid.x", "%nctaid.y", "%nctaid.z"]) {
            if self.program.listing.contains(name) {
                *blocks = blocks.div_ceil(3);
            }
        }
        if grid == launched.launch.grid {
            return None;
        }
        let launched = launched.on_grid(&self.program.listing, grid)?;
        let most_instructions = 4 * launched.metrics.longest + 2000;
        Some(Stage { case: None, launched, most_instructions })
    }

    /// Runs the cases. The first stage is the cheapest of those that reach most of the text.
    pub(crate) fn prepare(&self) -> Prepared<'_> {
        let mut stages = Vec::new();
        for case in &self.cases {
            let launches = simulated::launches(self.operation, case, self.sm);
            let launches = launches.unwrap_or_else(|error| panic!("{} {case}: {error}", self.operation.name));
            if let Some(launched) = launches.into_iter().find(|launched| launched.name == self.program.name) {
                let most_instructions = 4 * launched.metrics.longest + 2000;
                stages.push(Stage { case: Some(case.clone()), launched, most_instructions });
            }
        }
        assert!(!stages.is_empty(), "no case launches {}", self.program.name);
        stages.sort_by_key(|stage| (stage.launched.metrics.unreached.len(), stage.launched.metrics.issued));
        let folded = stages.iter().rev().filter_map(|stage| self.folded(&stage.launched)).take(2).collect::<Vec<_>>();
        stages.extend(folded);
        Prepared { subject: self, stages }
    }
}

impl Prepared<'_> {
    /// Tries a mutant: on its first case, on the others, then under every schedule and completion.
    pub(crate) fn judge(&self, mutant: &Mutant) -> Verdict {
        if let Some(rule) = mutant.equivalent {
            return Verdict::Equivalent(rule);
        }
        let text = mutant.text(&self.subject.lines());
        let orders =
            Schedule::FIVE.into_iter().flat_map(|schedule| Completion::ALL.map(|completion| (schedule, completion)));
        let first = (Schedule::RoundRobin, Completion::Latest);
        let plain = self.stages.iter().map(|stage| (stage, first));
        let ordered = orders.filter(|order| *order != first);
        // Every order on the first case, the odd ones on the next two.
        let on_first = ordered.clone().map(|order| (&self.stages[0], order));
        let odd = [(Schedule::Random(2), Completion::Random(1)), (Schedule::Adversarial(1), Completion::Earliest)];
        let on_others = self.stages.iter().skip(1).take(2).flat_map(|stage| odd.map(|order| (stage, order)));
        let caught = plain.chain(on_first).chain(on_others).find_map(|(stage, order)| self.try_on(stage, order, &text));
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
            Replayed::Different => {
                let Some(case) = &stage.case else { return Some("wrong result".to_string()) };
                let replaced = Some((self.subject.program.name.clone(), text.to_string()));
                // Other launches of the case may be longer.
                let options = Options { max_instructions: 1_000_000, ..options };
                let setting = Setting { options, replaced };
                let (outcome, _) = simulated::run(self.subject.operation, case, self.subject.sm, &setting);
                matches!(outcome, Outcome::Failed { .. }).then(|| "wrong result".to_string())
            }
        }
    }
}
