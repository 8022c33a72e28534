//! Graphs that are kept for the next list of the same kind.
//!
//! ```text
//! nodes of a step ── same functions in the same order as a kept graph? ── no ──> build, keep ──────────┐
//!                                         │ yes                                                        ├─> launch
//!                                         └──> set the nodes that differ from what the graph has ──────┘
//! ```
//!
//! Batches are ragged, so grids and sizes differ from step to step, while the order of kernels depends on the model and
//! hardly ever on the batch. Building a graph costs some microseconds a node, setting a node less than one.

use super::driver::{DriverError, FunctionHandle, GraphUse, Node};

/// Graphs that are kept: training and evaluation, with and without the casts of a changed parameter, and a few kinds of
/// ragged ends.
const KEPT: usize = 12;

/// Properties of the nodes that an update cannot change: another value needs another graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Launch(FunctionHandle),
    Copy,
    Fill,
}

impl Node {
    fn kind(&self) -> Kind {
        match self {
            Self::Launch { function, .. } => Kind::Launch(*function),
            Self::Copy { .. } => Kind::Copy,
            Self::Fill { .. } => Kind::Fill,
        }
    }

    /// True if a graph with one may be changed to have the other.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.kind() == other.kind()
    }
}

/// A graph as its driver has it.
pub(super) trait Executable: Sized {
    /// Driver of the graph.
    type Driver: ?Sized;

    /// A graph of `nodes`, one after another.
    fn build(driver: &Self::Driver, nodes: &[Node]) -> Result<Self, DriverError>;

    /// Makes node number `at` what `node` says, which is like it.
    fn set(&mut self, driver: &Self::Driver, at: usize, node: &Node) -> Result<(), DriverError>;

    /// Starts it.
    fn launch(&self, driver: &Self::Driver) -> Result<(), DriverError>;
}

/// The graphs of a driver, the one used last at the end.
#[derive(Debug)]
pub(super) struct GraphCache<E>(Vec<(Vec<Node>, E)>);

impl<E> Default for GraphCache<E> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<E: Executable> GraphCache<E> {
    /// Runs `nodes` by a graph that is here or will be.
    pub(super) fn run(&mut self, driver: &E::Driver, nodes: &[Node]) -> Result<GraphUse, DriverError> {
        let alike = |kept: &[Node]| kept.len() == nodes.len() && kept.iter().zip(nodes).all(|(a, b)| a.is_like(b));
        // Whatever fails below is not put back: a graph whose nodes are not known is of no use.
        let (graph, usage) = match self.0.iter().rposition(|(kept, _)| alike(kept)) {
            Some(at) => {
                let (mut kept, mut graph) = self.0.remove(at);
                let mut changed = 0;
                for (at, (kept, node)) in kept.iter_mut().zip(nodes).enumerate() {
                    if kept != node {
                        graph.set(driver, at, node)?;
                        kept.clone_from(node);
                        changed += 1;
                    }
                }
                ((kept, graph), GraphUse::Changed(changed))
            }
            None => {
                if self.0.len() == KEPT {
                    self.0.remove(0);
                }
                ((nodes.to_vec(), E::build(driver, nodes)?), GraphUse::Built)
            }
        };
        graph.1.launch(driver)?;
        self.0.push(graph);
        Ok(usage)
    }

    /// Drops all.
    #[cfg(feature = "cuda")]
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::driver::{Argument, DeviceAddress};
    use super::*;
    use ptx::Launch;
    use std::sync::Mutex;

    /// Notes what it was asked to do; refuses a launch of zero blocks.
    #[derive(Default)]
    struct Log(Mutex<Vec<String>>);

    struct Graph(Vec<Node>);

    impl Log {
        fn say(&self, text: String) {
            self.0.lock().unwrap().push(text);
        }

        fn heard(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    fn grid(node: &Node) -> u32 {
        match node {
            Node::Launch { launch, .. } => launch.grid[0],
            _ => 1,
        }
    }

    impl Executable for Graph {
        type Driver = Log;

        fn build(driver: &Log, nodes: &[Node]) -> Result<Self, DriverError> {
            driver.say(format!("build {}", nodes.len()));
            Ok(Self(nodes.to_vec()))
        }

        fn set(&mut self, driver: &Log, at: usize, node: &Node) -> Result<(), DriverError> {
            if grid(node) == 0 {
                return Err(DriverError::Kernel { entry: format!("number {at}"), reason: "no blocks".to_owned() });
            }
            driver.say(format!("set {at}"));
            self.0[at] = node.clone();
            Ok(())
        }

        fn launch(&self, driver: &Log) -> Result<(), DriverError> {
            driver.say(format!("launch {:?}", self.0.iter().map(grid).collect::<Vec<_>>()));
            Ok(())
        }
    }

    fn launch(function: usize, blocks: u32) -> Node {
        Node::Launch {
            function: FunctionHandle(function),
            launch: Launch { grid: [blocks, 1, 1], block: [32, 1, 1], shared_bytes: 0 },
            arguments: vec![Argument::Address(DeviceAddress(256)), Argument::U32(7)],
        }
    }

    #[test]
    fn a_list_of_the_same_functions_changes_a_graph_and_another_builds_one() {
        let (log, mut kept) = (Log::default(), GraphCache::<Graph>::default());
        let fill = Node::Fill { target: DeviceAddress(0), bytes: 1, value: 0 };
        assert_eq!(kept.run(&log, &[launch(1, 2), fill.clone(), launch(2, 3)]), Ok(GraphUse::Built));
        assert_eq!(log.heard(), ["build 3", "launch [2, 1, 3]"]);
        assert_eq!(kept.run(&log, &[launch(1, 2), fill.clone(), launch(2, 3)]), Ok(GraphUse::Changed(0)));
        assert_eq!(log.heard(), ["launch [2, 1, 3]"]);
        assert_eq!(kept.run(&log, &[launch(1, 2), fill.clone(), launch(2, 9)]), Ok(GraphUse::Changed(1)));
        assert_eq!(log.heard(), ["set 2", "launch [2, 1, 9]"]);
        for other in [
            vec![launch(2, 2), fill.clone(), launch(1, 3)],
            vec![launch(1, 2), launch(2, 3)],
            vec![launch(1, 2), launch(1, 2), launch(2, 3)],
        ] {
            assert_eq!(kept.run(&log, &other), Ok(GraphUse::Built), "{other:?}");
        }
        log.heard();
        // What was set before is known, so it is set back.
        assert_eq!(kept.run(&log, &[launch(1, 2), fill, launch(2, 3)]), Ok(GraphUse::Changed(1)));
        assert_eq!(log.heard(), ["set 2", "launch [2, 1, 3]"]);
    }

    #[test]
    fn a_graph_that_could_not_be_changed_is_built_again() {
        let (log, mut kept) = (Log::default(), GraphCache::<Graph>::default());
        kept.run(&log, &[launch(1, 2), launch(2, 3)]).unwrap();
        let error = kept.run(&log, &[launch(1, 5), launch(2, 0)]).unwrap_err();
        assert_eq!(error.to_string(), "kernel number 1: no blocks");
        log.heard();
        assert_eq!(kept.run(&log, &[launch(1, 2), launch(2, 3)]), Ok(GraphUse::Built), "half of it was set");
        assert_eq!(log.heard(), ["build 2", "launch [2, 3]"]);
    }

    #[test]
    fn the_graph_that_was_not_used_longest_makes_room() {
        let (log, mut kept) = (Log::default(), GraphCache::<Graph>::default());
        for function in 0..KEPT {
            kept.run(&log, &[launch(function, 1)]).unwrap();
        }
        assert_eq!(kept.run(&log, &[launch(0, 1)]), Ok(GraphUse::Changed(0)));
        assert_eq!(kept.run(&log, &[launch(KEPT, 1)]), Ok(GraphUse::Built), "in the place of function 1");
        assert_eq!(kept.run(&log, &[launch(0, 1)]), Ok(GraphUse::Changed(0)));
        assert_eq!(kept.run(&log, &[launch(1, 1)]), Ok(GraphUse::Built));
    }
}
