//! One instruction of a warp, by its operation.

use crate::sim::{
    isa::{
        asynchronous::Async,
        form::{Run, RunTwo},
        instruction::{CONSTANT, Instruction, SINK},
        operation::{Fence, Operation},
        space::{Space, space_of, window},
    },
    state::{
        block::Block,
        clocks::lanes,
        machine::{Flow, Machine},
    },
};

impl Machine<'_> {
    /// Runs anything but a branch in the lanes of `mask`.
    pub(crate) fn execute(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32, pc: usize) -> Flow {
        match i.operation {
            Operation::One(run) => self.one(block, w, i, run, mask),
            Operation::Two(run) => self.two(block, w, i, run, mask),
            Operation::Move => self.copy_register(block, w, i, mask),
            Operation::Pack(bits) => self.pack(block, w, i, bits, mask),
            Operation::Unpack(bits) => self.unpack(block, w, i, bits, mask),
            Operation::Clock => self.all_lanes(block, w, i, mask, self.metrics.issued),
            Operation::Policy => self.all_lanes(block, w, i, mask, 0),
            Operation::ActiveMask => self.all_lanes(block, w, i, mask, u64::from(mask)),
            Operation::Convert { space, to_space } => self.convert(block, w, i, space, to_space, mask, pc),
            Operation::IsSpace(space) => self.is_space(block, w, i, space, mask, pc),
            Operation::Load(access) => self.load(block, w, i, access, mask, pc),
            Operation::Store(access) => self.store(block, w, i, access, mask, pc),
            Operation::Atomic(atomic) => self.atomic(block, w, i, atomic, mask, pc),
            Operation::Shuffle(mode) => self.shuffle(block, w, i, mode, mask, pc),
            Operation::Vote(vote) => self.vote(block, w, i, vote, mask, pc),
            Operation::Match { all } => self.matching(block, w, i, all, mask, pc),
            Operation::Reduce(fetch, ty) => self.reduce(block, w, i, fetch, ty, mask, pc),
            Operation::Elect => self.elect(block, w, i, mask, pc),
            Operation::WarpBarrier => self.warp_barrier(block, w, i, mask, pc),
            Operation::Barrier(barrier) => self.barrier(block, w, i, barrier, mask, pc),
            Operation::Fence(fence) => self.fence(block, w, fence, mask, pc),
            Operation::CopyAsync => self.copy_async(block, w, i, mask, pc),
            Operation::CopyCommit => self.copy_commit(block, w, mask),
            Operation::CopyWait => self.copy_wait(block, w, i, mask),
            Operation::CopyArrive { expected } => self.copy_arrive(block, w, i, expected, mask, pc),
            Operation::LoadMatrix { count, transposed } => self.load_matrix(block, w, i, count, transposed, mask, pc),
            Operation::StoreMatrix { count, transposed } => self.store_matrix(block, w, i, count, transposed, mask, pc),
            Operation::Multiply(multiply) => self.multiply(block, w, i, multiply, mask, pc),
            Operation::Async(what) => self.asynchronous(block, w, i, what, mask, pc),
            Operation::Nothing => Flow::Next,
            Operation::Branch | Operation::BranchIndexed | Operation::Return | Operation::Trap => Flow::Next,
        }
    }

    fn asynchronous(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        what: Async,
        mask: u32,
        pc: usize,
    ) -> Flow {
        match what {
            Async::Init => self.mbarrier_init(block, w, i, mask, pc),
            Async::Invalidate => self.mbarrier_invalidate(block, w, i, mask, pc),
            Async::Arrive(arrive) => self.mbarrier_arrive(block, w, i, arrive, mask, pc),
            Async::ExpectBytes => self.mbarrier_bytes(block, w, i, true, mask, pc),
            Async::CompleteBytes => self.mbarrier_bytes(block, w, i, false, mask, pc),
            Async::Wait(wait) => self.mbarrier_wait(block, w, i, wait, mask, pc),
            Async::PendingCount => self.mbarrier_pending(block, w, i, mask, pc),
            Async::Bulk(bulk) => self.bulk(block, w, i, bulk, mask, pc),
            Async::BulkCommit => self.bulk_commit(block, w, mask),
            Async::BulkWait { reads } => self.bulk_wait(block, w, i, reads, mask),
            Async::Product(product) => self.product(block, w, i, product, mask, pc),
            Async::ProductFence => self.product_fence(block, w, mask, pc),
            Async::ProductCommit => self.product_commit(block, w, mask, pc),
            Async::ProductWait => self.product_wait(block, w, i, mask, pc),
            Async::SetRegisters { increases } => self.set_registers(block, w, i, increases, mask, pc),
            Async::ClusterArrive => self.cluster_arrive(block, w, mask, pc),
            Async::ClusterWait => self.cluster_wait(block, w, mask, pc),
            Async::MapShared => self.map_shared(block, w, i, mask, pc),
            Async::Nothing => Flow::Next,
        }
    }

    /// The sources of a form of arithmetic.
    #[inline]
    fn operands<'v>(&'v self, block: &'v Block, w: usize, i: &Instruction) -> [&'v [u64; 32]; 4] {
        const NOTHING: &[u64; 32] = &[0; 32];
        std::array::from_fn(|k| i.sources.get(k).map_or(NOTHING, |slot| self.value(block, w, *slot)))
    }

    fn one(&mut self, block: &mut Block, w: usize, i: &Instruction, run: Run, mask: u32) -> Flow {
        let unknown = self.unknown(block, w, i, mask);
        let (approximation, mut out) = (self.approximation(), [0; 32]);
        let [a, b, c, d] = self.operands(block, w, i);
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
        self.set_known(block, w, i.destinations[0], mask, &out, unknown);
        Flow::Next
    }

    fn two(&mut self, block: &mut Block, w: usize, i: &Instruction, run: RunTwo, mask: u32) -> Flow {
        let unknown = self.unknown(block, w, i, mask);
        let (approximation, mut first, mut second) = (self.approximation(), [0; 32], [0; 32]);
        let [a, b, c, d] = self.operands(block, w, i);
        for lane in lanes(mask) {
            (first[lane], second[lane]) = run(&[a[lane], b[lane], c[lane], d[lane]], &i.modifiers, approximation);
        }
        self.set_known(block, w, i.destinations[0], mask, &first, unknown);
        if let Some(slot) = i.destinations.get(1) {
            self.set_known(block, w, *slot, mask, &second, unknown);
        }
        Flow::Next
    }

    /// Lanes whose result is made of something that nobody has written. That is no harm until somebody stores it,
    /// branches on it or goes to an address made of it: compilers compute in lanes whose results they drop.
    fn unknown(&self, block: &Block, w: usize, i: &Instruction, mask: u32) -> u32 {
        let known = |slot: u32| if slot & CONSTANT == 0 { block.warps[w].defined[slot as usize] } else { u32::MAX };
        let unknown = i.sources.iter().fold(0, |unknown, slot| unknown | mask & !known(*slot));
        if unknown == 0 || !i.modifiers.selects {
            return unknown;
        }
        // A choice is known if what chooses and what is chosen are.
        let (a, b, choice) = (known(i.sources[0]), known(i.sources[1]), self.value(block, w, i.sources[2]));
        lanes(unknown & known(i.sources[2])).fold(unknown, |unknown, lane| {
            let chosen = if choice[lane] != 0 { a } else { b };
            if chosen >> lane & 1 == 1 { unknown & !(1 << lane) } else { unknown }
        })
    }

    /// Writes a register whose values in the lanes of `unknown` are made of nothing.
    pub(crate) fn set_known(
        &self,
        block: &mut Block,
        w: usize,
        slot: u32,
        mask: u32,
        values: &[u64; 32],
        unknown: u32,
    ) {
        self.set(block, w, slot, mask, values);
        if unknown != 0 && slot != SINK {
            block.warps[w].defined[slot as usize] &= !unknown;
        }
    }

    fn copy_register(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32) -> Flow {
        let unknown = self.unknown(block, w, i, mask);
        let values = *self.value(block, w, i.sources[0]);
        self.set_known(block, w, i.destinations[0], mask, &values, unknown);
        Flow::Next
    }

    fn pack(&mut self, block: &mut Block, w: usize, i: &Instruction, bits: u32, mask: u32) -> Flow {
        let unknown = self.unknown(block, w, i, mask);
        let mut out = [0; 32];
        for (part, slot) in i.sources.iter().enumerate() {
            let values = self.value(block, w, *slot);
            for (out, value) in out.iter_mut().zip(values) {
                *out |= (value & (u64::MAX >> (64 - bits))) << (bits * part as u32);
            }
        }
        self.set_known(block, w, i.destinations[0], mask, &out, unknown);
        Flow::Next
    }

    fn unpack(&mut self, block: &mut Block, w: usize, i: &Instruction, bits: u32, mask: u32) -> Flow {
        let unknown = self.unknown(block, w, i, mask);
        let values = *self.value(block, w, i.sources[0]);
        for (part, slot) in i.destinations.iter().enumerate() {
            let out = values.map(|value| value >> (bits * part as u32) & (u64::MAX >> (64 - bits)));
            self.set_known(block, w, *slot, mask, &out, unknown);
        }
        Flow::Next
    }

    fn all_lanes(&mut self, block: &mut Block, w: usize, i: &Instruction, mask: u32, value: u64) -> Flow {
        self.set(block, w, i.destinations[0], mask, &[value; 32]);
        Flow::Next
    }

    fn convert(
        &mut self,
        block: &mut Block,
        w: usize,
        i: &Instruction,
        space: Space,
        to_space: bool,
        mask: u32,
        pc: usize,
    ) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let start = window(space);
        let values = self.value(block, w, i.sources[0]);
        let out = values.map(|value| if to_space { value.wrapping_sub(start) } else { value.wrapping_add(start) });
        self.set(block, w, i.destinations[0], mask, &out);
        Flow::Next
    }

    fn is_space(&mut self, block: &mut Block, w: usize, i: &Instruction, space: Space, mask: u32, pc: usize) -> Flow {
        self.check_sources(block, w, &i.sources, mask, pc);
        let out = self.value(block, w, i.sources[0]).map(|value| u64::from(space_of(value).0 == space));
        self.set(block, w, i.destinations[0], mask, &out);
        Flow::Next
    }

    fn fence(&mut self, block: &mut Block, w: usize, fence: Fence, mask: u32, pc: usize) -> Flow {
        let Block { warps, mbarriers, withheld, .. } = block;
        let warp = &mut warps[w];
        match fence {
            Fence::Memory(fence) => {
                if let Some(view) = warp.clock.fence(mask, warp.live, fence, pc as u32) {
                    withheld.note(pc as u32, &view);
                }
            }
            Fence::Proxy => warp.clock.fence_proxy(mask, warp.live),
            Fence::BarrierInit => {}
        }
        if !matches!(fence, Fence::Memory(_)) {
            let clock = &warp.clock;
            mbarriers.show(|init| lanes(mask).any(|lane| clock.knows(init, lane)));
        }
        Flow::Next
    }
}
