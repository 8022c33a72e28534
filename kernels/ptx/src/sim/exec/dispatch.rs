//! Dispatch of an instruction by its operation, and data movement between registers.

use crate::sim::{
    isa::{Async, CONSTANT, Fence, Operation, Run, RunTwo, SINK, Space, space_of, window},
    state::{Block, Flow, Issue, Machine, lanes},
};

impl Machine<'_> {
    /// Executes an instruction other than a branch.
    pub(crate) fn execute(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        match issue.i.operation {
            Operation::One(run) => self.one(block, issue, run),
            Operation::Two(run) => self.two(block, issue, run),
            Operation::Move => self.copy_register(block, issue),
            Operation::Pack(bits) => self.pack(block, issue, bits),
            Operation::Unpack(bits) => self.unpack(block, issue, bits),
            Operation::Clock => self.all_lanes(block, issue, self.metrics.issued),
            Operation::Policy => self.all_lanes(block, issue, 0),
            Operation::ActiveMask => self.all_lanes(block, issue, u64::from(issue.mask)),
            Operation::Convert { space, to_space } => self.convert(block, issue, space, to_space),
            Operation::IsSpace(space) => self.is_space(block, issue, space),
            Operation::Load(access) => self.load(block, issue, access),
            Operation::Store(access) => self.store(block, issue, access),
            Operation::Atomic(atomic) => self.atomic(block, issue, atomic),
            Operation::Shuffle(mode) => self.shuffle(block, issue, mode),
            Operation::Vote(vote) => self.vote(block, issue, vote),
            Operation::Match { all } => self.matching(block, issue, all),
            Operation::Reduce(fetch, ty) => self.reduce(block, issue, fetch, ty),
            Operation::Elect => self.elect(block, issue),
            Operation::WarpBarrier => self.warp_barrier(block, issue),
            Operation::Barrier(barrier) => self.barrier(block, issue, barrier),
            Operation::Fence(fence) => self.fence(block, issue, fence),
            Operation::CopyAsync => self.copy_async(block, issue),
            Operation::CopyCommit => self.copy_commit(block, issue),
            Operation::CopyWait => self.copy_wait(block, issue),
            Operation::CopyArrive { expected } => self.copy_arrive(block, issue, expected),
            Operation::LoadMatrix { count, transposed } => self.load_matrix(block, issue, count, transposed),
            Operation::StoreMatrix { count, transposed } => self.store_matrix(block, issue, count, transposed),
            Operation::Multiply(multiply) => self.multiply(block, issue, multiply),
            Operation::Async(what) => self.asynchronous(block, issue, what),
            Operation::Nothing => Flow::Next,
            Operation::Branch | Operation::BranchIndexed | Operation::Return | Operation::Trap => Flow::Next,
        }
    }

    fn asynchronous(&mut self, block: &mut Block, issue: Issue<'_>, what: Async) -> Flow {
        match what {
            Async::Init => self.mbarrier_init(block, issue),
            Async::Invalidate => self.mbarrier_invalidate(block, issue),
            Async::Arrive(arrive) => self.mbarrier_arrive(block, issue, arrive),
            Async::ExpectBytes => self.mbarrier_bytes(block, issue, true),
            Async::CompleteBytes => self.mbarrier_bytes(block, issue, false),
            Async::Wait(wait) => self.mbarrier_wait(block, issue, wait),
            Async::PendingCount => self.mbarrier_pending(block, issue),
            Async::Bulk(bulk) => self.bulk(block, issue, bulk),
            Async::BulkCommit => self.bulk_commit(block, issue),
            Async::BulkWait { reads } => self.bulk_wait(block, issue, reads),
            Async::Product(product) => self.product(block, issue, product),
            Async::ProductFence => self.product_fence(block, issue),
            Async::ProductCommit => self.product_commit(block, issue),
            Async::ProductWait => self.product_wait(block, issue),
            Async::SetRegisters { increases } => self.set_registers(block, issue, increases),
            Async::ClusterArrive { releases } => self.cluster_arrive(block, issue, releases),
            Async::ClusterWait => self.cluster_wait(block, issue),
            Async::MapShared => self.map_shared(block, issue),
            Async::GridWait => {
                block.warps[issue.w].grid_waited |= issue.mask;
                Flow::Next
            }
            Async::Nothing => Flow::Next,
        }
    }

    /// The sources of a form of arithmetic.
    #[inline]
    fn operands<'v>(&'v self, block: &'v Block, issue: Issue<'_>) -> [&'v [u64; 32]; 4] {
        const NOTHING: &[u64; 32] = &[0; 32];
        std::array::from_fn(|k| issue.i.sources.get(k).map_or(NOTHING, |slot| self.value(block, issue.w, *slot)))
    }

    fn one(&mut self, block: &mut Block, issue: Issue<'_>, run: Run) -> Flow {
        let Issue { i, mask, .. } = issue;
        let unknown = self.unknown(block, issue);
        let (approximation, mut out) = (self.approximation(), [0; 32]);
        let [a, b, c, d] = self.operands(block, issue);
        if mask == u32::MAX {
            for (lane, out) in out.iter_mut().enumerate() {
                *out = run(&[a[lane], b[lane], c[lane], d[lane]], &i.modifiers, approximation);
            }
        } else {
            for lane in lanes(mask) {
                out[lane] = run(&[a[lane], b[lane], c[lane], d[lane]], &i.modifiers, approximation);
            }
        }
        self.metrics.scalar_flops += u64::from(i.flops * mask.count_ones());
        self.set_known(block, issue, i.destinations[0], &out, unknown);
        Flow::Next
    }

    fn two(&mut self, block: &mut Block, issue: Issue<'_>, run: RunTwo) -> Flow {
        let Issue { i, mask, .. } = issue;
        let unknown = self.unknown(block, issue);
        let (approximation, mut first, mut second) = (self.approximation(), [0; 32], [0; 32]);
        let [a, b, c, d] = self.operands(block, issue);
        for lane in lanes(mask) {
            (first[lane], second[lane]) = run(&[a[lane], b[lane], c[lane], d[lane]], &i.modifiers, approximation);
        }
        self.set_known(block, issue, i.destinations[0], &first, unknown);
        if let Some(slot) = i.destinations.get(1) {
            self.set_known(block, issue, *slot, &second, unknown);
        }
        Flow::Next
    }

    /// Lanes whose result depends on an uninitialized value. That is allowed until the result is stored, branched on or
    /// used as an address: compilers compute in lanes whose results they drop.
    fn unknown(&self, block: &Block, issue: Issue<'_>) -> u32 {
        let Issue { i, w, mask, .. } = issue;
        let known = |slot: u32| if slot & CONSTANT == 0 { block.warps[w].defined[slot as usize] } else { u32::MAX };
        let unknown = i.sources.iter().fold(0, |unknown, slot| unknown | mask & !known(*slot));
        if unknown == 0 || !i.modifiers.selects {
            return unknown;
        }
        // A selection is initialized if the selector and the selected value are.
        let (a, b, choice) = (known(i.sources[0]), known(i.sources[1]), self.source(block, issue, 2));
        lanes(unknown & known(i.sources[2])).fold(unknown, |unknown, lane| {
            let chosen = if choice[lane] != 0 { a } else { b };
            if chosen >> lane & 1 == 1 { unknown & !(1 << lane) } else { unknown }
        })
    }

    /// Writes a register whose values in the lanes of `unknown` are uninitialized.
    pub(crate) fn set_known(&self, block: &mut Block, issue: Issue<'_>, slot: u32, values: &[u64; 32], unknown: u32) {
        self.set(block, issue.w, slot, issue.mask, values);
        if unknown != 0 && slot != SINK {
            block.warps[issue.w].defined[slot as usize] &= !unknown;
        }
    }

    fn copy_register(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { i, .. } = issue;
        let unknown = self.unknown(block, issue);
        let values = *self.source(block, issue, 0);
        self.set_known(block, issue, i.destinations[0], &values, unknown);
        Flow::Next
    }

    fn pack(&mut self, block: &mut Block, issue: Issue<'_>, bits: u32) -> Flow {
        let Issue { i, w, .. } = issue;
        let unknown = self.unknown(block, issue);
        let mut out = [0; 32];
        for (part, slot) in i.sources.iter().enumerate() {
            let values = self.value(block, w, *slot);
            for (out, value) in out.iter_mut().zip(values) {
                *out |= (value & (u64::MAX >> (64 - bits))) << (bits * part as u32);
            }
        }
        self.set_known(block, issue, i.destinations[0], &out, unknown);
        Flow::Next
    }

    fn unpack(&mut self, block: &mut Block, issue: Issue<'_>, bits: u32) -> Flow {
        let Issue { i, .. } = issue;
        let unknown = self.unknown(block, issue);
        let values = *self.source(block, issue, 0);
        for (part, slot) in i.destinations.iter().enumerate() {
            let out = values.map(|value| value >> (bits * part as u32) & (u64::MAX >> (64 - bits)));
            self.set_known(block, issue, *slot, &out, unknown);
        }
        Flow::Next
    }

    fn all_lanes(&mut self, block: &mut Block, issue: Issue<'_>, value: u64) -> Flow {
        self.define(block, issue, &[value; 32]);
        Flow::Next
    }

    fn convert(&mut self, block: &mut Block, issue: Issue<'_>, space: Space, to_space: bool) -> Flow {
        let Issue { i, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let start = window(space);
        let values = self.source(block, issue, 0);
        let out = values.map(|value| if to_space { value.wrapping_sub(start) } else { value.wrapping_add(start) });
        self.define(block, issue, &out);
        Flow::Next
    }

    fn is_space(&mut self, block: &mut Block, issue: Issue<'_>, space: Space) -> Flow {
        let Issue { i, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        let out = self.source(block, issue, 0).map(|value| u64::from(is_within(space_of(value).0, space)));
        self.define(block, issue, &out);
        Flow::Next
    }

    fn fence(&mut self, block: &mut Block, issue: Issue<'_>, fence: Fence) -> Flow {
        let Issue { w, mask, pc, .. } = issue;
        let Block { warps, mbarriers, withheld, .. } = block;
        let warp = &mut warps[w];
        match fence {
            Fence::Memory(fence) => {
                if let Some(view) = warp.clock.fence(mask, warp.live, fence, pc as u32) {
                    withheld.note(pc as u32, &view);
                }
            }
            Fence::Proxy(fence) => warp.clock.fence_proxy(mask, warp.live, fence),
            Fence::BarrierInit => mbarriers.release(warp.clock.timeline, mask),
        }
        if !matches!(fence, Fence::Memory(_)) {
            let clock = &warp.clock;
            mbarriers.show(|init| lanes(mask).any(|lane| clock.knows(init, lane)));
        }
        Flow::Next
    }
}

/// Whether addresses of `space` are addresses of `wanted`.
fn is_within(space: Space, wanted: Space) -> bool {
    space == wanted || (space, wanted) == (Space::Shared, Space::Cluster)
}
