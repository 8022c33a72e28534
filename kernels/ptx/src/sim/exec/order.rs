//! Strong accesses, and how far they synchronize.
//!
//! A release that thread A makes with a strong store to some address synchronizes with an acquire that thread B makes
//! with a strong load of the value. Both are patterns: the release is the store itself or a fence before it, the
//! acquire is the load itself or a fence after it, and atomic operations in between pass on what they overwrite. Every
//! one of these operations has a scope, and of two that synchronize each must reach the other's thread:
//!
//! | operations | threads of one block | threads of two blocks |
//! |---|---|---|
//! | the store (or atomic operation) and the one that reads its value | any scopes | both `gpu` or `sys` |
//! | the first of the release and the last of the acquire | any scopes | both `gpu` or `sys` |
//!
//! `cluster` reaches as far as `cta`, and in shared memory, which only the cluster can access, as far as `gpu`. What a thread has acquired it passes on by any
//! synchronization, whatever its scope: order is transitive. What a narrow scope withholds is kept for messages alone.

use crate::sim::{
    isa::Access,
    state::{Block, Conflict, Machine, Published, Released, Spot, Thread},
};

impl Machine<'_> {
    /// Acquires, for a strong load, what strong stores to its address have published.
    pub(crate) fn observe(&mut self, block: &mut Block, thread: Thread, spot: Spot, address: u64, access: Access) {
        let Thread { w, lane, pc } = thread;
        let Some(published) = self.published.get(&self.key(block, spot, address)) else { return };
        let (own, wide) = (block.linear, access.scope.reaches_other_blocks());
        let Block { warps, withheld, .. } = block;
        let foreign = published.writer != own;
        let hidden = published.near(published.writer);
        if foreign && !(wide && published.scope.reaches_other_blocks()) {
            let narrow = if wide { published.pc } else { pc as u32 };
            hidden.into_iter().for_each(|hidden| withheld.note(narrow, hidden));
            return;
        }
        let near = published.near(own);
        let far = published.far.as_ref().filter(|_| wide);
        if foreign && let (Some(narrow), Some(hidden)) = (published.narrow, hidden) {
            withheld.note(narrow, hidden);
        }
        if let (false, Some(hidden)) = (wide, &published.far) {
            withheld.note(pc as u32, hidden);
        }
        let warp = &mut warps[w];
        if access.order.acquires() {
            near.into_iter().chain(far).for_each(|view| warp.clock.acquire(1 << lane, warp.live, view));
        } else {
            warp.clock.observe_relaxed(lane, near, far);
        }
    }

    /// A strong store publishes what its thread released. An atomic operation keeps what was published before, and a
    /// store what its own thread has published there: a release followed by a strong store is also a release.
    pub(crate) fn publish(
        &mut self,
        block: &mut Block,
        thread: Thread,
        spot: Spot,
        address: u64,
        access: Access,
        keeps: bool,
    ) {
        let Thread { w, lane, pc } = thread;
        let (own, wide) = (block.linear, access.scope.reaches_other_blocks());
        // Only threads of the block reach its shared memory, unless a cluster has more.
        let shared = matches!(spot, Spot::Shared(_)) && self.cluster.blocks.len() == 1;
        let key = self.key(block, spot, address);
        let warp = &mut block.warps[w];
        let releases = access.order.releases();
        let mut released = match releases && wide {
            true => Released::default(),
            false => warp.clock.publish_fenced(lane, shared || self.has_scopes),
        };
        if releases {
            let all = warp.clock.publish(1 << lane, warp.live);
            if wide {
                released.far = Some(all.clone());
            }
            released.narrow = (!wide).then_some(pc as u32);
            released.near = (shared || self.has_scopes).then_some(all);
        }
        if shared {
            released.far = None;
        }
        let nothing = released.near.is_none() && released.far.is_none();
        let thread = Some((warp.clock.timeline, lane));
        let before = self.published.remove(&key).filter(|before| {
            // An atomic operation passes on what it overwrites if the two reach each other.
            keeps && (before.writer == own || wide && before.scope.reaches_other_blocks()) || before.only == thread
        });
        let only = thread.filter(|_| before.as_ref().is_none_or(|before| before.only == thread));
        if nothing && before.is_none() {
            return;
        }
        let (scope, pc) = (access.scope, pc as u32);
        let fresh = Published { writer: own, scope, pc, only, near: Vec::new(), far: None, narrow: None };
        let mut published = before.unwrap_or(fresh);
        (published.writer, published.scope, published.pc, published.only) = (own, scope, pc, only);
        published.add(own, released);
        self.published.insert(key, published);
    }

    /// The key of an address among the published views.
    fn key(&self, block: &Block, spot: Spot, address: u64) -> (u32, u64) {
        match spot {
            Spot::Shared(at) => (block.linear + 1, at as u64),
            Spot::Peer(rank, at) => {
                let peer = self.cluster.blocks[rank].as_deref().unwrap_or(block);
                (peer.linear + 1, at as u64)
            }
            _ => (0, address),
        }
    }

    /// The part of a race's message that names the instruction that would order the two if its scope were wider.
    pub(crate) fn scope_note(&self, block: &Block, pc: usize, conflict: &Conflict) -> String {
        let narrow = |pc: usize| {
            let scope = self.entry.code.get(pc)?.operation.scope();
            scope.filter(|scope| !scope.reaches_other_blocks())
        };
        if conflict.both_strong && !conflict.alike {
            return ": strong accesses of different sizes or proxies race like others".to_string();
        }
        let both = [pc, conflict.other.pc as usize];
        if let (true, Some((at, scope))) =
            (conflict.both_strong, both.into_iter().find_map(|pc| Some((pc, narrow(pc)?))))
        {
            let name = &self.entry.code[at].opcode;
            return format!(": the scope of `{name}`, {}, does not reach other blocks; use gpu", scope.name());
        }
        let found = block.withheld.0.iter().find(|(_, view)| view.seen.knows(&conflict.other));
        let found = found.and_then(|(pc, _)| Some((*pc as usize, narrow(*pc as usize)?)));
        found.map_or_else(String::new, |(pc, scope)| {
            let (name, place) = (&self.entry.code[pc].opcode, self.entry.place(pc));
            format!(": `{name}` ({place}) would, but its scope, {}, does not reach other blocks; use gpu", scope.name())
        })
    }
}
