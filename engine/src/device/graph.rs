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

    /// Blocks of what was launched last; zero blocks are refused.
    #[derive(Default)]
    struct Log(Mutex<Vec<u32>>);

    struct Graph(Vec<Node>);

    fn grid(node: &Node) -> u32 {
        match node {
            Node::Launch { launch, .. } => launch.grid[0],
            _ => 1,
        }
    }

    impl Executable for Graph {
        type Driver = Log;

        fn build(_: &Log, nodes: &[Node]) -> Result<Self, DriverError> {
            Ok(Self(nodes.to_vec()))
        }

        fn set(&mut self, _: &Log, at: usize, node: &Node) -> Result<(), DriverError> {
            self.0[at] = node.clone();
            if grid(node) == 0 {
                return Err(DriverError::Kernel { entry: format!("number {at}"), reason: "no blocks".to_owned() });
            }
            Ok(())
        }

        fn launch(&self, driver: &Log) -> Result<(), DriverError> {
            *driver.0.lock().unwrap() = self.0.iter().map(grid).collect();
            Ok(())
        }
    }

    /// Runs the nodes; returns the use of the graph and the launched blocks.
    fn run(kept: &mut GraphCache<Graph>, nodes: &[Node]) -> (GraphUse, Vec<u32>) {
        let log = Log::default();
        (kept.run(&log, nodes).unwrap(), log.0.into_inner().unwrap())
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
        let mut kept = GraphCache::default();
        let fill = Node::Fill { target: DeviceAddress(0), bytes: 1, value: 0 };
        let list = [launch(1, 2), fill.clone(), launch(2, 3)];
        assert_eq!(run(&mut kept, &list), (GraphUse::Built, vec![2, 1, 3]));
        assert_eq!(run(&mut kept, &list), (GraphUse::Changed(0), vec![2, 1, 3]));
        let changed = [launch(1, 2), fill.clone(), launch(2, 9)];
        assert_eq!(run(&mut kept, &changed), (GraphUse::Changed(1), vec![2, 1, 9]));
        for other in [
            vec![launch(2, 2), fill, launch(1, 3)],
            vec![launch(1, 2), launch(2, 3)],
            vec![launch(1, 2), launch(1, 2), launch(2, 3)],
        ] {
            assert_eq!(run(&mut kept, &other).0, GraphUse::Built, "{other:?}");
        }
        // What was set before is known, so it is set back.
        assert_eq!(run(&mut kept, &list), (GraphUse::Changed(1), vec![2, 1, 3]));
    }

    #[test]
    fn a_graph_that_could_not_be_changed_is_built_again() {
        let mut kept = GraphCache::default();
        run(&mut kept, &[launch(1, 2), launch(2, 3)]);
        let error = kept.run(&Log::default(), &[launch(1, 5), launch(2, 0)]).unwrap_err();
        assert_eq!(error.to_string(), "kernel number 1: no blocks");
        // Half of it was set.
        assert_eq!(run(&mut kept, &[launch(1, 2), launch(2, 3)]), (GraphUse::Built, vec![2, 3]));
    }

    #[test]
    fn the_graph_that_was_not_used_longest_makes_room() {
        let mut kept = GraphCache::default();
        let mut run = |function| run(&mut kept, &[launch(function, 1)]).0;
        (0..KEPT).for_each(|function| assert_eq!(run(function), GraphUse::Built));
        assert_eq!(run(0), GraphUse::Changed(0));
        assert_eq!(run(KEPT), GraphUse::Built, "in the place of function 1");
        assert_eq!(run(0), GraphUse::Changed(0));
        assert_eq!(run(1), GraphUse::Built);
    }
}
