//! Loads, stores and atomic operations, and their checks.

use crate::sim::{
    FindingKind, Other,
    isa::{Access, Atomic, Fetch, LOCAL_BASE, SHARED_BASE, Scope, Space, fetched, space_of, split_rank, word},
    metrics::{sectors, wavefronts},
    state::{Block, Conflict, Epoch, Flow, Issue, Machine, NARROW, SIZE, STRONG, Spot, Thread, lanes},
};

impl Machine<'_> {
    /// Location of `bytes` bytes at `address`, which must be allocated and a multiple of `align`.
    pub(crate) fn locate(
        &mut self,
        block: &Block,
        thread: Thread,
        space: Option<Space>,
        address: u64,
        bytes: usize,
        align: usize,
    ) -> Option<Spot> {
        if !address.is_multiple_of(align as u64) {
            let message = || format!("accesses {address:#x}; expected a multiple of {align}");
            self.report(FindingKind::Misaligned, block, thread, Some(address), message);
            return None;
        }
        let (space, within) = match space {
            None => space_of(address),
            // Addresses of shared memory have 32 bits.
            Some(space @ (Space::Shared | Space::Cluster)) => (space, address & 0xFFFF_FFFF),
            Some(space) => (space, address),
        };
        let (rank, within) = if space == Space::Cluster { split_rank(within) } else { (None, within) };
        let inside = |base: u64, length: usize| {
            let at = within.checked_sub(base)?;
            (at.saturating_add(bytes as u64) <= length as u64).then_some(at as usize)
        };
        let (found, name, length, base) = match space {
            Space::Global | Space::Const => {
                if space == Space::Global {
                    self.check_grid_wait(block, thread, address);
                }
                return self.locate_global(block, thread, [address, within], bytes);
            }
            Space::Shared | Space::Cluster => {
                let peer = rank.filter(|rank| *rank != block.rank);
                if peer.is_some_and(|rank| !self.visit(block, thread, rank, address)) {
                    return None;
                }
                let length = block.shared.bytes.len();
                let spot = |at| peer.map_or(Spot::Shared(at), |rank| Spot::Peer(rank, at));
                (inside(SHARED_BASE, length).map(spot), "shared memory", length, SHARED_BASE)
            }
            Space::Local => {
                let length = self.entry.local_bytes as usize;
                let spot = |at| Spot::Local(thread.lane * length + at);
                (inside(LOCAL_BASE, length).map(spot), "local memory", length, LOCAL_BASE)
            }
            Space::Param => (inside(0, self.params.len()).map(Spot::Param), "the parameters", self.params.len(), 0),
        };
        if found.is_none() {
            let message = || {
                let at = within.wrapping_sub(base).cast_signed();
                format!("accesses bytes {at}..{} of {name}, which has {length} bytes", at.wrapping_add(bytes as i64))
            };
            self.report(FindingKind::OutOfBounds, block, thread, Some(address), message);
        }
        found
    }

    /// [`Machine::locate`] in global memory; the second address is within the space.
    fn locate_global(
        &mut self,
        block: &Block,
        thread: Thread,
        [given, within]: [u64; 2],
        bytes: usize,
    ) -> Option<Spot> {
        match self.memory.find(within, bytes as u64, self.guess) {
            Ok((region, at)) => {
                self.guess = region;
                Some(Spot::Global(region, at))
            }
            Err(message) => {
                self.report(FindingKind::OutOfBounds, block, thread, Some(given), || message);
                None
            }
        }
    }

    /// Checks that an access to global memory follows the thread's `griddepcontrol.wait`, if the kernel has one.
    fn check_grid_wait(&mut self, block: &Block, thread: Thread, address: u64) {
        if self.has_grid_wait && block.warps[thread.w].grid_waited >> thread.lane & 1 == 0 {
            let message = || "accesses global memory before its thread executes griddepcontrol.wait".to_string();
            self.report(FindingKind::Dependency, block, thread, Some(address), message);
        }
    }

    /// The epoch of an access that a thread makes now.
    pub(crate) fn epoch(&self, block: &Block, thread: Thread, flags: u8) -> Epoch {
        let clock = &block.warps[thread.w].clock;
        Epoch { timeline: clock.timeline, clock: clock.clock, pc: thread.pc as u32, lane: thread.lane as u8, flags }
    }

    /// Reads up to 16 bytes for a thread, with all checks.
    pub(crate) fn read(
        &mut self,
        block: &mut Block,
        thread: Thread,
        spot: Spot,
        bytes: usize,
        epoch: Epoch,
        constant: bool,
    ) -> [u8; 16] {
        let Thread { w, lane, .. } = thread;
        let mut value = [0xFF; 16];
        let knows = |before: &Epoch| block.warps[w].clock.orders(before, &epoch, lane);
        let (unwritten, conflict, name) = match spot {
            Spot::Shared(at) => {
                let conflict = block.shared.shadow.read(at, bytes, epoch, knows);
                value[..bytes].copy_from_slice(&block.shared.bytes[at..at + bytes]);
                if !self.check_shared(block, thread, at, bytes, "reads") {
                    return value;
                }
                (block.shared.unwritten(at, bytes), conflict, &block.shared.name)
            }
            Spot::Global(region, at) => {
                let region = self.memory.region(region);
                let conflict = region.shadow.read(at, bytes, epoch, knows);
                value[..bytes].copy_from_slice(&region.bytes[at..at + bytes]);
                if constant {
                    region.note_constant(at, bytes);
                    if region.shadow.find_write(at, bytes, |_| true).is_some() {
                        let message =
                            format!("reads byte {at} of `{}` as constant, and the kernel has written it", region.name);
                        self.report(FindingKind::Constant, block, thread, None, || message);
                        return value;
                    }
                }
                (region.unwritten(at, bytes), conflict, &region.name)
            }
            Spot::Local(at) => return self.read_local(block, thread, at, bytes),
            Spot::Peer(rank, at) => {
                return self.at_rank(block, rank, |machine, block| {
                    machine.read(block, thread, Spot::Shared(at), bytes, epoch, constant)
                });
            }
            Spot::Param(at) => {
                value[..bytes].copy_from_slice(&self.params[at..at + bytes]);
                return value;
            }
        };
        if let Some(conflict) = conflict {
            let name = name.clone();
            self.report_race(block, thread, &name, conflict, "reads");
        } else if let Some(byte) = unwritten {
            let name = name.clone();
            self.report_unwritten(block, thread, byte, &name, address_of(spot));
        }
        value
    }

    fn read_local(&mut self, block: &Block, thread: Thread, at: usize, bytes: usize) -> [u8; 16] {
        let (cells, mut value) = (&block.warps[thread.w].local[at..at + bytes], [0xFF; 16]);
        value.iter_mut().zip(cells).for_each(|(value, cell)| *value = cell.0);
        if cells.iter().any(|cell| !cell.1) {
            let message = || "reads local memory that was never written".to_string();
            self.report(FindingKind::Uninitialized, block, thread, None, message);
        }
        value
    }

    /// Writes up to 16 bytes for a thread, with all checks.
    pub(crate) fn write(&mut self, block: &mut Block, thread: Thread, spot: Spot, bytes: &[u8], epoch: Epoch) {
        let Thread { w, lane, .. } = thread;
        let knows = |before: &Epoch| block.warps[w].clock.orders(before, &epoch, lane);
        let length = bytes.len();
        let (conflict, name) = match spot {
            Spot::Shared(at) => {
                let conflict = block.shared.shadow.write(at, length, epoch, knows);
                block.shared.bytes[at..at + length].copy_from_slice(bytes);
                block.shared.written[at..at + length].fill(1);
                if !self.check_shared(block, thread, at, length, "writes") {
                    return;
                }
                (conflict, &block.shared.name)
            }
            Spot::Global(index, at) => {
                let region = self.memory.region(index);
                if let Some(why) = region.is_constant(at, length) {
                    let message = format!("writes byte {at} of `{}`, {why}", region.name);
                    self.report(FindingKind::Constant, block, thread, None, || message);
                    return;
                }
                let conflict = region.shadow.write(at, length, epoch, knows);
                region.bytes[at..at + length].copy_from_slice(bytes);
                region.written[at..at + length].fill(1);
                (conflict, &region.name)
            }
            Spot::Local(at) => {
                let cells = &mut block.warps[w].local[at..at + length];
                cells.iter_mut().zip(bytes).for_each(|(cell, byte)| *cell = (*byte, true));
                return;
            }
            Spot::Peer(rank, at) => {
                return self.at_rank(block, rank, |machine, block| {
                    machine.write(block, thread, Spot::Shared(at), bytes, epoch);
                });
            }
            Spot::Param(_) => {
                self.report(FindingKind::Constant, block, thread, None, || "writes a parameter".to_string());
                return;
            }
        };
        if let Some(conflict) = conflict {
            let name = name.clone();
            self.report_race(block, thread, &name, conflict, "writes");
        }
    }

    /// Checks that no asynchronous operation still writes bytes of shared memory, nor that they hold an mbarrier; gives
    /// whether the first holds.
    #[inline]
    fn check_shared(&mut self, block: &Block, thread: Thread, at: usize, bytes: usize, verb: &str) -> bool {
        if let Some(by) = block.pending[at / 4..(at + bytes).div_ceil(4)].iter().find(|by| **by != 0) {
            self.report_pending(block, thread, at, *by, verb);
            return false;
        }
        if block.mbarriers.overlaps(at, bytes) {
            let message = || format!("{verb} byte {at} of shared memory, which holds an mbarrier");
            self.report(FindingKind::Barrier, block, thread, Some(SHARED_BASE + at as u64), message);
        }
        true
    }

    #[cold]
    pub(crate) fn report_unwritten(
        &mut self,
        block: &Block,
        thread: Thread,
        byte: usize,
        name: &str,
        address: Option<u64>,
    ) {
        let message = || format!("reads byte {byte} of `{name}`, which was never written");
        self.report(FindingKind::Uninitialized, block, thread, address, message);
    }

    #[cold]
    pub(crate) fn report_race(&mut self, block: &Block, thread: Thread, name: &str, conflict: Conflict, verb: &str) {
        if self.findings.again(FindingKind::Race, thread.pc) {
            return;
        }
        let other = self.other(&conflict.other, block);
        let does = if conflict.other_writes { "writes" } else { "reads" };
        let scope = self.scope_note(block, thread.pc, &conflict);
        let message = format!(
            "{verb} byte {} of `{name}`, which {other} {does}, and nothing orders the two{scope}",
            conflict.byte
        );
        self.report_pair(FindingKind::Race, block, thread, None, (other, message));
    }

    #[cold]
    pub(crate) fn report_pending(&mut self, block: &Block, thread: Thread, at: usize, by: u32, verb: &str) {
        let (issuer, place) = (&self.entry.code[by as usize - 1], self.entry.place(by as usize - 1));
        let message = format!(
            "{verb} byte {at} of shared memory, which `{}` ({place}) has not finished writing; wait for it first",
            issuer.opcode,
        );
        let other = Other { who: String::new(), instruction: issuer.opcode.to_string(), place, text: String::new() };
        let address = Some(SHARED_BASE + at as u64);
        self.report_pair(FindingKind::Pending, block, thread, address, (other, message));
    }

    /// Counts the transactions of the accesses of a warp.
    pub(crate) fn measure(
        &mut self,
        pc: usize,
        spots: &[(usize, Spot)],
        addresses: &[u64; 32],
        bytes: usize,
        writes: bool,
    ) {
        let (mut shared, mut global) = ([0; 32], [0; 32]);
        let (mut s, mut g) = (0, 0);
        for (lane, spot) in spots {
            match spot {
                Spot::Shared(at) | Spot::Peer(_, at) => {
                    shared[s] = *at as u64 + SHARED_BASE;
                    s += 1;
                }
                Spot::Global(..) => {
                    global[g] = addresses[*lane];
                    g += 1;
                }
                _ => {}
            }
        }
        if s > 0 {
            let (transactions, least) = wavefronts(&shared[..s], bytes as u64);
            self.traffic[pc].shared.add(transactions, least);
        }
        if g > 0 {
            let (transactions, least) = sectors(&global[..g], bytes as u64);
            self.traffic[pc].global.add(transactions, least);
            let moved = (g * bytes) as u64;
            if writes {
                self.metrics.global_written += moved;
            } else {
                self.metrics.global_read += moved;
            }
        }
    }

    /// The addresses of the lanes.
    pub(crate) fn addresses(&self, block: &Block, issue: Issue<'_>, operand: usize, offset: usize) -> [u64; 32] {
        let offset = issue.i.offsets[offset];
        self.source(block, issue, operand).map(|base| base.wrapping_add_signed(offset))
    }

    pub(crate) fn load(&mut self, block: &mut Block, issue: Issue<'_>, access: Access) -> Flow {
        let Issue { i, w, mask, pc } = issue;
        self.check_sources(block, issue, &i.sources[..1]);
        let size = access.ty.bits() as usize / 8;
        let whole = size * access.vector;
        let addresses = self.addresses(block, issue, 0, 0);
        let mut values = [[0_u64; 32]; 8];
        let mut spots = Vec::with_capacity(32);
        for thread in issue.threads() {
            let lane = thread.lane;
            let found = self.locate(block, thread, access.space, addresses[lane], whole, whole);
            let Some(spot) = found else {
                values.iter_mut().for_each(|value| value[lane] = u64::MAX);
                continue;
            };
            spots.push((lane, spot));
            let access = self.in_cluster(access, spot);
            let epoch = self.epoch(block, thread, strong_flags(access));
            let bytes = self.read(block, thread, spot, whole, epoch, access.constant);
            for (value, part) in values.iter_mut().zip(bytes[..whole].chunks_exact(size)) {
                let raw = word(part);
                let shift = 64 - access.ty.bits();
                value[lane] =
                    if access.ty.is_signed() { ((raw << shift).cast_signed() >> shift).cast_unsigned() } else { raw };
            }
            if access.order.is_strong() {
                self.observe(block, thread, spot, addresses[lane], access);
            }
        }
        self.measure(pc, &spots, &addresses, whole, false);
        for (slot, values) in i.destinations.iter().zip(&values) {
            self.set(block, w, *slot, mask, values);
        }
        if access.order.is_strong() { Flow::Yield } else { Flow::Next }
    }

    pub(crate) fn store(&mut self, block: &mut Block, issue: Issue<'_>, access: Access) -> Flow {
        let Issue { i, w, pc, .. } = issue;
        self.check_sources(block, issue, &i.sources[..=access.vector]);
        let size = access.ty.bits() as usize / 8;
        let whole = size * access.vector;
        let addresses = self.addresses(block, issue, 0, 0);
        let mut spots = Vec::with_capacity(32);
        for thread in issue.threads() {
            let lane = thread.lane;
            let found = self.locate(block, thread, access.space, addresses[lane], whole, whole);
            let Some(spot) = found else { continue };
            spots.push((lane, spot));
            let mut bytes = [0; 16];
            for (part, slot) in bytes[..whole].chunks_exact_mut(size).zip(&i.sources[1..]) {
                part.copy_from_slice(&self.lane_value(block, w, *slot, lane).to_le_bytes()[..size]);
            }
            let access = self.in_cluster(access, spot);
            let epoch = self.epoch(block, thread, strong_flags(access));
            if access.order.is_strong() {
                self.publish(block, thread, spot, addresses[lane], access, false);
            }
            self.write(block, thread, spot, &bytes[..whole], epoch);
        }
        self.measure(pc, &spots, &addresses, whole, true);
        Flow::Next
    }

    pub(crate) fn atomic(&mut self, block: &mut Block, issue: Issue<'_>, atomic: Atomic) -> Flow {
        let Issue { i, w, mask, pc } = issue;
        let Atomic { access, fetch, returns } = atomic;
        let operands = if fetch == Fetch::CompareExchange { 2 } else { access.vector };
        self.check_sources(block, issue, &i.sources[..=operands]);
        let size = access.ty.bits() as usize / 8;
        let whole = size * access.vector;
        let addresses = self.addresses(block, issue, 0, 0);
        let mut old = [[0_u64; 32]; 8];
        let mut spots = Vec::with_capacity(32);
        let descends = self.chooser.lanes_descend();
        for lane in lanes(if descends { mask.reverse_bits() } else { mask }) {
            let lane = if descends { 31 - lane } else { lane };
            let thread = issue.thread(lane);
            let Some(spot) = self.locate(block, thread, access.space, addresses[lane], whole, whole) else {
                continue;
            };
            spots.push((lane, spot));
            let access = self.in_cluster(access, spot);
            // The read of a reduction is not part of an acquire pattern.
            if returns {
                self.observe(block, thread, spot, addresses[lane], access);
            }
            let epoch = self.epoch(block, thread, strong_flags(access));
            self.publish(block, thread, spot, addresses[lane], access, true);
            // The write below is checked for races, so the value is read without a check of its own.
            let before = self.peek(block, thread, spot, whole);
            let mut after = [0; 16];
            for (element, old) in old[..access.vector].iter_mut().enumerate() {
                let part = element * size..(element + 1) * size;
                let value = word(&before[part.clone()]);
                old[lane] = value;
                let operand = self.source(block, issue, 1 + element)[lane];
                let second = if fetch == Fetch::CompareExchange { self.source(block, issue, 2)[lane] } else { 0 };
                let new = fetched(fetch, access.ty, value, operand, second);
                after[part].copy_from_slice(&new.to_le_bytes()[..size]);
            }
            self.write(block, thread, spot, &after[..whole], epoch);
        }
        self.measure(pc, &spots, &addresses, whole, true);
        if returns {
            for (slot, old) in i.destinations.iter().zip(&old) {
                self.set(block, w, *slot, mask, old);
            }
        }
        if returns { Flow::Yield } else { Flow::Next }
    }

    /// The bytes at a location, which must have been written.
    fn peek(&mut self, block: &mut Block, thread: Thread, spot: Spot, bytes: usize) -> [u8; 16] {
        let mut value = [0; 16];
        let (region, at) = match spot {
            Spot::Shared(at) => (&block.shared, at),
            Spot::Global(region, at) => (&*self.memory.region(region), at),
            Spot::Peer(rank, at) => {
                return self
                    .at_rank(block, rank, |machine, block| machine.peek(block, thread, Spot::Shared(at), bytes));
            }
            Spot::Local(_) | Spot::Param(_) => return value,
        };
        value[..bytes].copy_from_slice(&region.bytes[at..at + bytes]);
        if let Some(byte) = region.unwritten(at, bytes) {
            let name = region.name.clone();
            self.report_unwritten(block, thread, byte, &name, address_of(spot));
        }
        value
    }
}

impl Machine<'_> {
    /// The access with the scope that it has in practice: only the cluster can access the shared memory of its blocks.
    fn in_cluster(&self, access: Access, spot: Spot) -> Access {
        let is_shared = matches!(spot, Spot::Shared(_) | Spot::Peer(..));
        let wider = access.scope == Scope::Cluster && is_shared && self.cluster.blocks.len() > 1;
        if wider { Access { scope: Scope::Gpu, ..access } } else { access }
    }
}

/// Flags of the epoch of an access.
fn strong_flags(access: Access) -> u8 {
    if !access.order.is_strong() {
        return 0;
    }
    // Each element of a vector or of a packed pair is an access of its own.
    let bits = if access.ty.is_pair() { 16 } else { access.ty.bits() };
    let narrow = if access.scope.reaches_other_blocks() { 0 } else { NARROW };
    STRONG | narrow | ((bits / 8).trailing_zeros() as u8 * SIZE)
}

fn address_of(spot: Spot) -> Option<u64> {
    if let Spot::Shared(at) = spot { Some(SHARED_BASE + at as u64) } else { None }
}
