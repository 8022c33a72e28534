//! Where lanes that part at a branch meet again: the branch's immediate post-dominator, the first instruction that
//! every way from it to the end passes.
//!
//! Blocks are cut at labels and branches; post-dominators come from the iteration of Cooper, Harvey and Kennedy ("A
//! Simple, Fast Dominance Algorithm", 2001) on the reversed graph, with one node behind all ends.

use super::{decode::Instruction, operation::Operation};

/// Sets [`Instruction::meeting`] of every branch.
pub(super) fn find_meetings(code: &mut [Instruction]) {
    let end = code.len();
    let mut leader = vec![false; end + 1];
    leader[0] = true;
    leader[end] = true;
    for (at, instruction) in code.iter().enumerate() {
        if instruction.operation.ends_block() {
            leader[at + 1] = true;
            instruction.targets.iter().for_each(|target| leader[*target] = true);
        }
    }
    let starts: Vec<usize> = (0..=end).filter(|at| leader[*at]).collect();
    let mut block_of = vec![0; end + 1];
    for (block, start) in starts.iter().enumerate() {
        let stop = starts.get(block + 1).copied().unwrap_or(end + 1);
        block_of[*start..stop].fill(block);
    }
    // The last block is the node behind all ends.
    let exit = starts.len() - 1;
    let successors: Vec<Vec<usize>> = (0..exit)
        .map(|block| {
            let last = starts[block + 1] - 1;
            let instruction = &code[last];
            let mut next: Vec<usize> = instruction.targets.iter().map(|target| block_of[*target]).collect();
            match instruction.operation {
                Operation::Return | Operation::Trap => next.push(exit),
                _ => {}
            }
            if !instruction.operation.ends_block() || instruction.guard.is_some() {
                next.push(block_of[last + 1]);
            }
            next
        })
        .collect();
    let meeting = post_dominators(&successors, exit);
    for (at, instruction) in code.iter_mut().enumerate() {
        if instruction.operation.ends_block() {
            instruction.meeting = starts[meeting[block_of[at]]];
        }
    }
}

/// The immediate post-dominator of each block; `exit` for those that never end.
fn post_dominators(successors: &[Vec<usize>], exit: usize) -> Vec<usize> {
    let mut predecessors = vec![Vec::new(); exit + 1];
    for (block, next) in successors.iter().enumerate() {
        next.iter().for_each(|next| predecessors[*next].push(block));
    }
    // Post-order of the reversed graph from the exit.
    let (mut order, mut seen, mut stack) = (Vec::new(), vec![false; exit + 1], vec![(exit, 0)]);
    seen[exit] = true;
    while let Some((block, at)) = stack.pop() {
        match predecessors[block].get(at) {
            Some(&next) => {
                stack.push((block, at + 1));
                if !std::mem::replace(&mut seen[next], true) {
                    stack.push((next, 0));
                }
            }
            None => order.push(block),
        }
    }
    let mut rank = vec![0; exit + 1];
    order.iter().enumerate().for_each(|(at, block)| rank[*block] = at);
    let mut immediate = vec![None; exit + 1];
    immediate[exit] = Some(exit);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in order.iter().rev().filter(|block| **block != exit) {
            let known = successors[block].iter().copied().filter(|next| immediate[*next].is_some());
            let found = known.reduce(|mut a, mut b| {
                while a != b {
                    while rank[a] < rank[b] {
                        a = immediate[a].unwrap_or(exit);
                    }
                    while rank[b] < rank[a] {
                        b = immediate[b].unwrap_or(exit);
                    }
                }
                a
            });
            if found.is_some() && immediate[block] != found {
                immediate[block] = found;
                changed = true;
            }
        }
    }
    immediate.into_iter().map(|block| block.unwrap_or(exit)).collect()
}
