//! Bulk copies: `cp.async.bulk` of bytes and of tiles, in both directions, and `cp.reduce.async.bulk`.
//!
//! A copy in flight is started by one thread, executed by the asynchronous proxy, and ends when `Completion` says. It
//! is checked when it starts, against the clock of its thread: earlier accesses to both ends must happen before it
//! (otherwise a race), and ordinary writes among them must be fenced for the asynchronous proxy (otherwise a proxy
//! finding). Data moves when the copy ends, so a buffer that is reused too early corrupts it visibly.
//!
//! Loads count their bytes at an mbarrier; stores belong to groups of their thread, which waits until their sources are
//! read or their destinations written.

use crate::sim::{
    FindingKind,
    isa::{Bulk, Fetch, SHARED_BASE, Space, Type, fetched, word},
    schedule::Completion,
    state::{
        ASYNC, Block, Epoch, FLIGHT, Flight, Flow, Goal, Issue, Machine, Piece, READS, SHARED, STRONG, Spot, Thread,
        View, WRITES, first, lanes, remembering,
    },
    tensor_map::Row,
    tensor_map::TensorMap,
};

impl Machine<'_> {
    /// The epochs of the reads and the writes of the next copy of warp `w`.
    fn flight_epochs(&self, block: &mut Block, w: usize, pc: usize) -> (Epoch, Epoch) {
        let warp = &mut block.warps[w];
        let timeline = warp.clock.timeline + 2 * self.warps as u32;
        // Copies end in any order, so that one has ended implies nothing about earlier ones.
        warp.flights += 1;
        let epoch = Epoch { timeline, clock: warp.flights, pc: pc as u32, lane: READS, flags: ASYNC | FLIGHT };
        (epoch, Epoch { lane: WRITES, ..epoch })
    }

    /// The tensor map at a generic address.
    fn tensor_map(&mut self, block: &mut Block, thread: Thread, address: u64) -> Option<TensorMap> {
        let spot = self.locate(block, thread, None, address, 128, 64)?;
        let mut bytes = [0; 128];
        for (i, part) in bytes.chunks_exact_mut(16).enumerate() {
            let spot = match spot {
                Spot::Param(at) => Spot::Param(at + 16 * i),
                Spot::Global(region, at) => Spot::Global(region, at + 16 * i),
                Spot::Shared(_) | Spot::Peer(..) | Spot::Local(_) => {
                    let message = || {
                        "reads its tensor map from shared or local memory; expected a parameter or global memory"
                            .to_string()
                    };
                    self.report(FindingKind::Operand, block, thread, Some(address), message);
                    return None;
                }
            };
            let epoch = self.epoch(block, thread, 0);
            part.copy_from_slice(&self.read(block, thread, spot, 16, epoch, false));
        }
        let map = TensorMap::from_bytes(&bytes);
        if map.is_none() {
            let message = || "reads a tensor map from bytes that hold none".to_string();
            self.report(FindingKind::Operand, block, thread, Some(address), message);
        }
        map
    }

    /// Starts a copy in each lane of `mask`.
    pub(crate) fn bulk(&mut self, block: &mut Block, issue: Issue<'_>, bulk: Bulk) -> Flow {
        let Issue { i, w, pc, .. } = issue;
        self.check_sources(block, issue, &i.sources);
        for thread in issue.threads() {
            let lane = thread.lane;
            let operand = |at: usize| self.source(block, issue, at)[lane];
            let address = |at: usize, offset: usize| operand(at).wrapping_add_signed(i.offsets[offset]);
            // Sources: addresses in the order of the text, that of a map followed by its coordinates.
            let d = bulk.dimensions;
            let (shared, other, size, mbarrier) = match (bulk.loads, d) {
                (true, 0) => (address(0, 0), address(1, 1), operand(2), address(3, 2)),
                (true, d) => (address(0, 0), address(1, 1), 0, address(2 + d, 2)),
                (false, 0) => (address(1, 1), address(0, 0), operand(2), 0),
                (false, d) => (address(1 + d, 1), address(0, 0), 0, 0),
            };
            let multicast = bulk.multicast.then(|| operand(if d > 0 { 3 + d } else { 4 }) as u32 & 0xFFFF);
            let mask = multicast.unwrap_or(1 << block.rank);
            let start = if bulk.loads { 2 } else { 1 };
            let coordinate = |k: usize| i64::from(operand(start + k) as u32 as i32);
            let corner = std::array::from_fn(|k| if k < d { coordinate(k) } else { 0 });
            let Some((map, rows, bytes)) = self.other_end(block, thread, bulk, other, corner, size) else {
                continue;
            };
            let align = if d > 0 { 128 } else { 16 };
            let Some(Spot::Shared(at)) = self.locate(block, thread, Some(Space::Shared), shared, bytes, align) else {
                continue;
            };
            let (read, write) = self.flight_epochs(block, w, pc);
            let ty = map.map_or(bulk.ty, |map| map.dtype.ty());
            let goal = Goal::Store { group: None, reduction: bulk.reduction.map(|fetch| (fetch, ty)) };
            let flight = Flight { thread, shared: at, bytes, rows, map, read, write, goal };
            if bulk.loads {
                self.load_into(block, flight, mask, mbarrier);
            } else {
                self.take_off(block, flight, true);
            }
        }
        Flow::Next
    }

    /// Starts a load into the blocks of the cluster that `mask` names, at one place of each.
    fn load_into(&mut self, block: &mut Block, mut flight: Flight, mask: u32, mbarrier: u64) {
        let (thread, own, ranks) = (flight.thread, block.rank, self.cluster.blocks.len());
        if mask == 0 || mask >> ranks != 0 {
            let message = || format!("copies to the blocks {mask:#b} of the cluster, which has {ranks}");
            self.report(FindingKind::Operand, block, thread, None, message);
            return;
        }
        let address = SHARED_BASE + flight.shared as u64;
        for rank in lanes(mask) {
            if rank != own && !self.is_there(block, thread, rank, address) {
                continue;
            }
            // Global memory is read once; each block has a write of its own.
            let is_first = rank == first(mask);
            if !is_first {
                flight.write = self.flight_epochs(block, thread.w, thread.pc).1;
            }
            self.at_rank(block, rank, |machine, block| {
                if let Some(mbarrier) = machine.mbarrier_of_copy(block, thread, mbarrier) {
                    let goal = Goal::Load { mbarrier };
                    machine.take_off(block, Flight { goal, ..flight.clone() }, is_first);
                }
            });
        }
    }

    /// The map, the rows in global memory and the bytes of a copy.
    fn other_end(
        &mut self,
        block: &mut Block,
        thread: Thread,
        bulk: Bulk,
        address: u64,
        corner: [i64; 5],
        size: u64,
    ) -> Option<(Option<TensorMap>, Vec<Row>, usize)> {
        if bulk.dimensions == 0 {
            let bytes = size as u32 as usize;
            if bytes == 0 || !bytes.is_multiple_of(16) || !address.is_multiple_of(16) {
                let message = || format!("copies {bytes} bytes from or to {address:#x}; expected multiples of 16");
                self.report(FindingKind::Misaligned, block, thread, Some(address), message);
                return None;
            }
            let row = Row { offset: 0, address, elements: 0..bytes, step: 1 };
            return Some((None, vec![row], bytes));
        }
        let map = self.tensor_map(block, thread, address)?;
        if map.rank != bulk.dimensions {
            let (given, wanted) = (bulk.dimensions, map.rank);
            let message = || format!("gives {given} coordinates; expected {wanted}, the dimensions of the tensor map");
            self.report(FindingKind::Operand, block, thread, Some(address), message);
            return None;
        }
        Some((Some(map), map.rows(corner), map.tile_bytes()))
    }

    /// Checks the end of a copy in shared memory, and the other one unless a copy to another block has read it, and starts
    /// the copy.
    fn take_off(&mut self, block: &mut Block, flight: Flight, is_first: bool) {
        let Flight { thread, shared, bytes, .. } = flight;
        let Thread { w, lane, pc } = thread;
        let loads = matches!(flight.goal, Goal::Load { .. });
        let (near, far) = if loads { (flight.write, flight.read) } else { (flight.read, flight.write) };
        let clock = &block.warps[w].clock;
        let knows = remembering(|epoch: &Epoch| clock.knows(epoch, lane));
        let copies = self.options.copy_fence;
        let fenced = remembering(|epoch: &Epoch| clock.all_fenced(epoch, 1 << lane, false));
        let shadow = &mut block.shared.shadow;
        // Searched first: the write below replaces the writes that are searched for.
        let unfenced = shadow.find_write(shared, bytes, |by| by.needs_fence(copies) && knows(by) && !fenced(by));
        let conflict =
            if loads { shadow.write(shared, bytes, near, &knows) } else { shadow.read(shared, bytes, near, &knows) };
        drop((knows, fenced));
        let verb = if loads { "writes" } else { "reads" };
        if let Some(conflict) = conflict {
            self.report_race(block, thread, SHARED, conflict, verb);
        }
        if let Some((byte, by)) = unfenced {
            self.report_proxy(block, thread, byte, by, verb);
        }
        if let Some(by) = block.pending[shared / 4..(shared + bytes) / 4].iter().find(|by| **by != 0) {
            self.report_pending(block, thread, shared, *by, verb);
        }
        if block.mbarriers.overlaps(shared, bytes) {
            let message = || format!("{verb} shared memory that holds an mbarrier");
            self.report(FindingKind::Barrier, block, thread, Some(SHARED_BASE + shared as u64), message);
        }
        if loads {
            block.shared.bytes[shared..shared + bytes].fill(0xFF);
            block.shared.written[shared..shared + bytes].fill(1);
            block.pending[shared / 4..(shared + bytes) / 4].fill(pc as u32 + 1);
        } else if let Some(byte) = block.shared.unwritten(shared, bytes) {
            self.report_unwritten(block, thread, byte, SHARED, Some(SHARED_BASE + byte as u64));
        }
        if is_first {
            self.check_far_end(block, &flight, far, loads);
        }
        block.engine.flights.push(flight);
        if self.options.completion == Completion::Earliest {
            while self.land_one(block) {}
        }
    }

    /// Checks the end of a copy in global memory.
    fn check_far_end(&mut self, block: &mut Block, flight: &Flight, epoch: Epoch, loads: bool) {
        let thread = flight.thread;
        let Thread { w, lane, pc } = thread;
        let reduces = matches!(flight.goal, Goal::Store { reduction: Some(_), .. });
        let epoch = if reduces { Epoch { flags: epoch.flags | STRONG, ..epoch } } else { epoch };
        let (mut sectors, mut moved, copies) = (0, 0, self.options.copy_fence);
        for Piece { address, bytes, .. } in flight.pieces() {
            let Some(Spot::Global(index, at)) = self.locate(block, thread, Some(Space::Global), address, bytes, 1)
            else {
                return;
            };
            sectors += (address + bytes as u64 - 1) / 32 - address / 32 + 1;
            moved += bytes;
            let clock = &block.warps[w].clock;
            let knows = remembering(|epoch: &Epoch| clock.knows(epoch, lane));
            let fenced = remembering(|epoch: &Epoch| clock.all_fenced(epoch, 1 << lane, true));
            let region = self.memory.region(index);
            let unfenced = region.shadow.find_write(at, bytes, |by| by.needs_fence(copies) && knows(by) && !fenced(by));
            let conflict = if loads {
                region.shadow.read(at, bytes, epoch, &knows)
            } else {
                region.shadow.write(at, bytes, epoch, &knows)
            };
            drop((knows, fenced));
            let (unwritten, name) = (region.unwritten(at, bytes), region.name.clone());
            let verb = if loads { "reads" } else { "writes" };
            if let Some(conflict) = conflict {
                self.report_race(block, thread, &name, conflict, verb);
            }
            if let Some((byte, by)) = unfenced.filter(|_| loads) {
                self.report_proxy(block, thread, byte, by, verb);
            }
            if let Some(byte) = unwritten.filter(|_| loads || reduces) {
                self.report_unwritten(block, thread, byte, &name, Some(address));
            }
        }
        self.traffic[pc].global.add(sectors, (moved as u64).div_ceil(32));
        let wavefronts = (flight.bytes as u64).div_ceil(128);
        self.traffic[pc].shared.add(wavefronts, wavefronts);
        if loads {
            self.metrics.global_read += moved as u64;
        } else {
            self.metrics.global_written += moved as u64;
        }
    }

    #[cold]
    pub(crate) fn report_proxy(&mut self, block: &Block, thread: Thread, byte: usize, by: Epoch, verb: &str) {
        let other = self.other(&by, block);
        let message = format!(
            "{verb} byte {byte} through the asynchronous proxy, which {other} writes through the generic one, without fence.proxy.async"
        );
        self.report_pair(FindingKind::Proxy, block, thread, Some(SHARED_BASE + byte as u64), (other, message));
    }

    /// Ends one copy into shared memory: the oldest, or one at random.
    pub(crate) fn land_one(&mut self, block: &mut Block) -> bool {
        let flights = &block.engine.flights;
        let everything = self.options.completion == Completion::Earliest;
        let loads: Vec<usize> =
            (0..flights.len()).filter(|at| everything || matches!(flights[*at].goal, Goal::Load { .. })).collect();
        if loads.is_empty() {
            return false;
        }
        let at = match self.options.completion {
            Completion::Random(_) => loads[self.completions.below(loads.len())],
            _ => loads[0],
        };
        self.land(block, at);
        true
    }

    /// Ends copy `at`: its data moves.
    fn land(&mut self, block: &mut Block, at: usize) {
        let flight = block.engine.flights.remove(at);
        let tile = flight.tile();
        match flight.goal {
            Goal::Load { mbarrier } => {
                let data = self.gather_tile(&flight);
                for (piece, values) in data.chunks(16).enumerate() {
                    let at = tile(16 * piece);
                    block.shared.bytes[at..at + values.len()].copy_from_slice(values);
                }
                block.pending[flight.shared / 4..(flight.shared + flight.bytes) / 4].fill(0);
                let mut known = block.warps[flight.thread.w].clock.nothing();
                known.learn(flight.write);
                known.learn(flight.read);
                known.learn(Epoch { lane: READS, ..flight.write });
                self.complete_bytes(block, mbarrier, flight.bytes as i64, &known);
            }
            Goal::Store { group, reduction } => {
                let mut data = vec![0; flight.bytes];
                for (piece, values) in data.chunks_mut(16).enumerate() {
                    let at = tile(16 * piece);
                    values.copy_from_slice(&block.shared.bytes[at..at + values.len()]);
                }
                self.scatter_tile(&flight, &data, reduction);
                // A copy that ends before it is committed belongs to the open group.
                let Thread { w, lane, .. } = flight.thread;
                let group = group.unwrap_or(*block.engine.groups.committed(w, lane));
                block.engine.groups.ended.push((w, lane, group, flight.read, flight.write));
            }
        }
    }

    /// The bytes of a tile from global memory; elements outside of the tensor are filled.
    fn gather_tile(&mut self, flight: &Flight) -> Vec<u8> {
        let mut data = vec![0; flight.bytes];
        if let Some(map) = flight.map.filter(|map| map.fill_nan) {
            let nan: &[u8] = match map.dtype.ty() {
                Type::F16 | Type::Bf16 => &[0xFF, 0x7F],
                Type::F32 => &[0xFF, 0xFF, 0xFF, 0x7F],
                _ => &[0],
            };
            data.iter_mut().enumerate().for_each(|(at, byte)| *byte = nan[at % nan.len()]);
        }
        for Piece { offset, address, bytes } in flight.pieces() {
            if let Ok((index, at)) = self.memory.find(address, bytes as u64, self.guess) {
                data[offset..offset + bytes].copy_from_slice(&self.memory.region(index).bytes[at..at + bytes]);
            }
        }
        data
    }

    fn scatter_tile(&mut self, flight: &Flight, data: &[u8], reduction: Option<(Fetch, Type)>) {
        let element = reduction.map_or(flight.element_bytes(), |(_, ty)| ty.bits() as usize / 8);
        for Piece { offset, address, bytes } in flight.pieces() {
            for from in (0..bytes).step_by(element) {
                let address = address.wrapping_add(from as u64);
                let Ok((index, at)) = self.memory.find(address, element as u64, self.guess) else { continue };
                let region = self.memory.region(index);
                let new = &data[offset + from..][..element];
                let value = match reduction {
                    Some((fetch, ty)) => fetched(fetch, ty, word(&region.bytes[at..at + element]), word(new), 0),
                    None => word(new),
                };
                region.bytes[at..at + element].copy_from_slice(&value.to_le_bytes()[..element]);
                region.written[at..at + element].fill(1);
            }
        }
    }

    pub(crate) fn bulk_commit(&mut self, block: &mut Block, issue: Issue<'_>) -> Flow {
        let Issue { w, mask, .. } = issue;
        for lane in lanes(mask) {
            let group = *block.engine.groups.committed(w, lane);
            *block.engine.groups.committed(w, lane) += 1;
            for flight in
                block.engine.flights.iter_mut().filter(|flight| (flight.thread.w, flight.thread.lane) == (w, lane))
            {
                if let Goal::Store { group: own @ None, .. } = &mut flight.goal {
                    *own = Some(group);
                }
            }
        }
        Flow::Next
    }

    /// Waits until at most so many groups of a thread are pending: not yet read, or not yet written.
    pub(crate) fn bulk_wait(&mut self, block: &mut Block, issue: Issue<'_>, reads: bool) -> Flow {
        let Issue { w, mask, .. } = issue;
        let left = self.source(block, issue, 0)[first(mask)] as u32;
        for lane in lanes(mask) {
            let over = block.engine.groups.committed(w, lane).saturating_sub(left);
            while let Some(at) = block.engine.flights.iter().position(|flight| {
                (flight.thread.w, flight.thread.lane) == (w, lane)
                    && matches!(flight.goal, Goal::Store { group: Some(group), .. } if group < over)
            }) {
                self.land(block, at);
            }
            let Block { warps, engine, .. } = block;
            let mut known: Option<View> = None;
            for (.., read, write) in
                engine.groups.ended.iter().filter(|(ew, el, group, ..)| (*ew, *el) == (w, lane) && *group < over)
            {
                let known = known.get_or_insert_with(|| warps[w].clock.nothing());
                known.learn(*read);
                if !reads {
                    known.learn(*write);
                }
            }
            if let Some(known) = known {
                let warp = &mut warps[w];
                warp.clock.acquire(1 << lane, warp.live, &known);
                if !reads {
                    engine.groups.ended.retain(|(ew, el, group, ..)| (*ew, *el) != (w, lane) || *group >= over);
                }
            }
        }
        Flow::Next
    }

    /// Reports stores that are pending when their block ends: its shared memory is reused.
    pub(crate) fn finish_flights(&mut self, block: &mut Block) {
        let flights = std::mem::take(&mut block.engine.flights);
        for flight in &flights {
            let message = || "is not complete when its block ends; wait for its group".to_string();
            self.report(FindingKind::Unfinished, block, flight.thread, None, message);
        }
    }
}
