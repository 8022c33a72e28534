//! Reconvergence of branches: the immediate post-dominator, the first instruction on every path from the branch to the
//! end.
//!
//! Blocks are cut at labels and branches; post-dominators are the dominators of the reversed graph, with one node
//! behind all ends. They come from the algorithm of Lengauer and Tarjan ("A Fast Algorithm for Finding Dominators in a
//! Flowgraph", 1979) with path compression: O(edges · log blocks) for every graph, which matters for texts that no
//! compiler has produced.

use crate::sim::isa::{Instruction, Operation};

/// No block.
const NONE: u32 = u32::MAX;

/// Sets [`Instruction::reconvergence`] of every branch.
pub(crate) fn find_reconvergence(code: &mut [Instruction]) {
    let end = code.len();
    let mut leader = vec![false; end + 1];
    leader[0] = true;
    leader[end] = true;
    for (at, instruction) in code.iter().enumerate() {
        if instruction.operation.ends_block() {
            leader[at + 1] = true;
            instruction.targets.iter().for_each(|target| leader[*target as usize] = true);
        }
    }
    let starts: Vec<u32> = (0..=end as u32).filter(|at| leader[*at as usize]).collect();
    drop(leader);
    let mut block_of = vec![0; end + 1];
    for (block, start) in starts.iter().enumerate() {
        let stop = starts.get(block + 1).map_or(end + 1, |stop| *stop as usize);
        block_of[*start as usize..stop].fill(block as u32);
    }
    // The last block is the node behind all ends.
    let exit = starts.len() - 1;
    let reconvergence = {
        let code = &*code;
        let successors = |block: u32| {
            let last = starts[block as usize + 1] as usize - 1;
            let instruction = &code[last];
            let leaves = matches!(instruction.operation, Operation::Return | Operation::Trap);
            let continues = !instruction.operation.ends_block() || instruction.guard.is_some();
            let targets = instruction.targets.iter().map(|target| block_of[*target as usize]);
            targets.chain(leaves.then_some(exit as u32)).chain(continues.then(|| block_of[last + 1]))
        };
        PostDominators::new(exit, &successors).immediate
    };
    for (at, instruction) in code.iter_mut().enumerate() {
        if instruction.operation.ends_block() {
            let block = reconvergence[block_of[at] as usize];
            instruction.reconvergence = starts[if block == NONE { exit } else { block as usize }] as usize;
        }
    }
}

/// The forest and the numbers of the algorithm, by block. "Parent" and "ancestor" are of the depth-first tree of the
/// reversed graph, whose root is the exit.
struct PostDominators {
    /// Position in the depth-first order; [`NONE`] for blocks from which the exit cannot be reached.
    number: Vec<u32>,
    parent: Vec<u32>,
    /// The number of the semidominator.
    semi: Vec<u32>,
    ancestor: Vec<u32>,
    /// The block with the least semidominator between a block and the root of its tree in the forest.
    label: Vec<u32>,
    immediate: Vec<u32>,
}

impl PostDominators {
    fn new<I: Iterator<Item = u32>>(exit: usize, successors: &impl Fn(u32) -> I) -> Self {
        let blocks = exit + 1;
        let mut graph = PostDominators {
            number: vec![NONE; blocks],
            parent: vec![NONE; blocks],
            semi: vec![0; blocks],
            ancestor: vec![NONE; blocks],
            label: (0..blocks as u32).collect(),
            immediate: vec![NONE; blocks],
        };
        let order = graph.number_blocks(exit, successors);
        // Blocks by semidominator, as linked lists.
        let (mut bucket, mut next, mut path) = (vec![NONE; blocks], vec![NONE; blocks], Vec::new());
        for &block in order.iter().skip(1).rev() {
            let at = block as usize;
            for successor in successors(block) {
                if graph.number[successor as usize] == NONE {
                    continue;
                }
                let least = graph.evaluate(successor, &mut path);
                graph.semi[at] = graph.semi[at].min(graph.semi[least as usize]);
            }
            let semi = order[graph.semi[at] as usize] as usize;
            next[at] = std::mem::replace(&mut bucket[semi], block);
            let parent = graph.parent[at];
            graph.ancestor[at] = parent;
            let mut member = std::mem::replace(&mut bucket[parent as usize], NONE);
            while member != NONE {
                let least = graph.evaluate(member, &mut path);
                let above = graph.semi[least as usize] < graph.semi[member as usize];
                graph.immediate[member as usize] = if above { least } else { parent };
                member = next[member as usize];
            }
        }
        for &block in order.iter().skip(1) {
            let immediate = graph.immediate[block as usize];
            if immediate != order[graph.semi[block as usize] as usize] {
                graph.immediate[block as usize] = graph.immediate[immediate as usize];
            }
        }
        graph
    }

    /// Numbers the blocks from which the exit can be reached, the exit first; gives them in this order.
    fn number_blocks<I: Iterator<Item = u32>>(&mut self, exit: usize, successors: &impl Fn(u32) -> I) -> Vec<u32> {
        // Predecessors, contiguous by block.
        let mut starts = vec![0_u32; exit + 2];
        for block in 0..exit as u32 {
            successors(block).for_each(|to| starts[to as usize + 1] += 1);
        }
        (0..=exit).for_each(|at| starts[at + 1] += starts[at]);
        let (mut filled, mut predecessors) = (starts.clone(), vec![0; starts[exit + 1] as usize]);
        for block in 0..exit as u32 {
            for to in successors(block) {
                predecessors[filled[to as usize] as usize] = block;
                filled[to as usize] += 1;
            }
        }
        let mut order = Vec::with_capacity(exit + 1);
        // Position within the predecessors of each block of the way down.
        let mut stack = vec![(exit as u32, starts[exit])];
        self.number[exit] = 0;
        order.push(exit as u32);
        while let Some((block, at)) = stack.last_mut() {
            if *at == starts[*block as usize + 1] {
                stack.pop();
                continue;
            }
            let (from, to) = (*block, predecessors[*at as usize]);
            *at += 1;
            if self.number[to as usize] == NONE {
                self.number[to as usize] = order.len() as u32;
                self.semi[to as usize] = order.len() as u32;
                self.parent[to as usize] = from;
                order.push(to);
                stack.push((to, starts[to as usize]));
            }
        }
        order
    }

    /// The block with the least semidominator on the way from `block` up, without the root; shortens that way.
    fn evaluate(&mut self, block: u32, path: &mut Vec<u32>) -> u32 {
        let mut at = block as usize;
        if self.ancestor[at] == NONE {
            return block;
        }
        while self.ancestor[self.ancestor[at] as usize] != NONE {
            path.push(at as u32);
            at = self.ancestor[at] as usize;
        }
        while let Some(below) = path.pop() {
            let (below, above) = (below as usize, self.ancestor[below as usize] as usize);
            if self.semi[self.label[above] as usize] < self.semi[self.label[below] as usize] {
                self.label[below] = self.label[above];
            }
            self.ancestor[below] = self.ancestor[above];
        }
        self.label[block as usize]
    }
}
