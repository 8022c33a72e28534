//! Execution of a grid: launch, blocks in turns, warps, branches.
//!
//! Clusters run one after the other, a block of its own as a cluster of one. A kernel that can wait for another block (it has
//! strong loads or atomic operations on global memory) gives every cluster a limited turn, and unfinished clusters take turns
//! with those that follow, so that a spinning block proceeds if any order of turns lets it. Within its cluster's turn each
//! block has shorter ones, so that blocks of a cluster run concurrently.

use crate::Launch;
use crate::sim::{
    Argument, Error, FindingKind, Module, Options, Report,
    isa::{Async, Operation, SPECIALS, TensorCore},
    limits::{Limits, ensure},
    metrics::{Metrics, Site, SiteMemory, Traffic},
    report::Findings,
    schedule::{Chooser, Completion, Draw},
    state::{
        Block, Cluster, Engine, Flow, Issue, Machine, Mbarriers, Memory, Region, SHARED, State, Thread, Warp, Withheld,
        first, lanes, position, timelines,
    },
    text::{Constant, Entry, Outline},
};
use std::collections::{HashMap, VecDeque};

/// Instructions of warps in a cluster's turn, where blocks may wait for each other.
const TURN: u64 = 45_000;

/// The most blocks of a cluster, as many as every GPU of a generation with clusters can run.
const MOST_RANKS: u64 = 8;

/// Block version that marks a polling warp as woken without a change.
const WOKEN: u64 = u64::MAX;

/// End of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Done,
    Paused,
    /// No warp can run.
    Blocked,
}

impl Module {
    /// Runs the kernel `entry` over a grid. What the kernel does wrong is in the report.
    ///
    /// # Errors
    /// [`Error::Launch`] if grid, block or arguments do not fit the kernel.
    pub fn launch(
        &self,
        entry: &str,
        launch: Launch,
        arguments: &[Argument],
        memory: &mut Memory,
        options: &Options,
    ) -> Result<Report, Error> {
        let (outline, entry) = self.decoded(entry)?;
        check_sizes(outline, entry, launch, &self.limits)?;
        let params = parameters(outline, arguments)?;
        let warps = launch.block.iter().map(|n| *n as usize).product::<usize>().div_ceil(32);
        memory.begin_launch(observed(options, warps));
        let constants = entry.constants.iter().map(|constant| match *constant {
            Constant::Bits(bits) => [bits; 32],
            Constant::Global(index, offset) => [memory.symbol(self, index).wrapping_add_signed(offset); 32],
        });
        let constants = constants.collect();
        let seed = if let Completion::Random(seed) = options.completion { seed } else { 0 };
        let mut machine = Machine {
            entry,
            launch,
            tensor_core: TensorCore::of_target(options.gpu.map_or(self.target.as_str(), |gpu| gpu.target())),
            options,
            constants,
            params,
            specials: Vec::new(),
            memory,
            findings: Findings::default(),
            counts: vec![0; entry.code.len()],
            traffic: vec![Traffic::default(); entry.code.len()],
            metrics: Metrics::default(),
            published: HashMap::new(),
            chooser: Chooser::new(options.schedule, warps),
            completions: Draw::new(seed, 1),
            fatal: false,
            has_products: entry.code.iter().any(|i| i.operation.is_product()),
            has_scopes: entry.code.iter().any(|i| i.operation.is_narrow()),
            has_grid_wait: entry.code.iter().any(|i| matches!(i.operation, Operation::Async(Async::GridWait))),
            warps,
            cluster_size: outline.cluster.unwrap_or([1; 3]),
            cluster: Cluster::default(),
            guess: 0,
            resident: (self.limits.resident_bytes / block_bytes(entry, launch)).max(1) as usize,
            most_instructions: self.limits.instructions,
        };
        let shared_bytes = machine.shared_bytes() as u32;
        machine.specials = special_values(launch, warps, shared_bytes, outline.cluster);
        machine.run();
        let mut report = machine.into_report();
        report.sort_and_quote(&self.text);
        Ok(report)
    }
}

/// Bytes of the host that a block takes: registers, local memory with its marks, shared memory with its shadow.
fn block_bytes(entry: &Entry, launch: Launch) -> u64 {
    /// Of a register of a warp, and of a byte of shared memory.
    const REGISTER: u64 = 272;
    const SHARED: u64 = 24;
    let warps = launch.block.iter().map(|n| u64::from(*n)).product::<u64>().div_ceil(32);
    let shared = entry.dynamic_shared + u64::from(launch.shared_bytes);
    1024 + warps * (4096 + REGISTER * entry.registers.len() as u64 + 64 * entry.local_bytes) + SHARED * shared
}

/// The bytes of the parameters, if they fit `outline`.
fn parameters(outline: &Outline, arguments: &[Argument]) -> Result<Vec<u8>, Error> {
    let (name, expected, found) = (&outline.name, outline.params.len(), arguments.len());
    ensure(expected == found, || {
        format!("wrong number of arguments for `{name}`; expected {expected}, found {found}")
    })?;
    let mut bytes = vec![0; outline.param_bytes as usize];
    for (param, argument) in outline.params.iter().zip(arguments) {
        let (value, expected) = (argument.bytes(), param.bytes);
        ensure(value.len() as u64 == expected, || {
            let (name, found) = (&param.name, value.len());
            format!("wrong size of the argument for parameter `{name}`; expected {expected} bytes, found {found}")
        })?;
        bytes[param.offset as usize..][..value.len()].copy_from_slice(&value);
    }
    Ok(bytes)
}

/// Checks grid, block and memory against what the entry, the device and the limits allow.
fn check_sizes(outline: &Outline, entry: &Entry, launch: Launch, limits: &Limits) -> Result<(), Error> {
    let Launch { grid, block, .. } = launch;
    let (name, most) = (&entry.name, outline.most_threads.unwrap_or(u64::MAX));
    let product = |sizes: [u32; 3]| sizes.iter().fold(1, |all, n| u64::saturating_mul(all, u64::from(*n)));
    let (threads, blocks, cluster) = (product(block), product(grid), outline.cluster.map_or(1, product));
    ensure(outline.block.is_none_or(|required| required == block), || {
        format!("wrong block for `{name}`; expected {:?} threads, found {block:?}", outline.block.unwrap_or_default())
    })?;
    ensure(threads <= most, || {
        format!("block too large for `{name}`; expected at most {most} threads, found {threads}")
    })?;
    let fits = !grid.contains(&0) && !block.contains(&0) && grid[1] <= 65_535 && grid[2] <= 65_535;
    ensure(fits, || format!("the device takes no grid of {grid:?} blocks of {block:?} threads"))?;
    let fits = threads <= 1024 && block[2] <= 64;
    ensure(fits, || format!("the device takes no block of {block:?} threads; expected at most 1024, and 64 in z"))?;
    let most = limits.blocks;
    ensure(blocks <= most, || format!("grid of {grid:?} too large; expected at most {most} blocks, found {blocks}"))?;
    ensure((1..=MOST_RANKS).contains(&cluster), || {
        format!("`{name}` needs clusters of {cluster} blocks; expected 1 to {MOST_RANKS}")
    })?;
    let size = outline.cluster.unwrap_or([1; 3]);
    ensure((0..3).all(|axis| grid[axis].is_multiple_of(size[axis])), || {
        format!("wrong grid for `{name}`; expected whole clusters of {size:?} blocks, found {grid:?}")
    })?;
    let (shared, most) = (entry.dynamic_shared + u64::from(launch.shared_bytes), limits.shared_bytes);
    ensure(shared <= most, || {
        format!("too much shared memory for `{name}`; expected at most {most} bytes a block, found {shared}")
    })?;
    let (bytes, most) = (block_bytes(entry, launch), limits.block_bytes);
    ensure(bytes <= most, || {
        let registers = entry.registers.len();
        format!(
            "a block of `{name}` with {threads} threads of {registers} registers takes too much memory of the host; \
             expected at most {most} bytes, found {bytes}"
        )
    })
}

impl<'a> Machine<'a> {
    fn run(&mut self) {
        let ranks: usize = self.cluster_size.iter().map(|n| *n as usize).product();
        let count = self.launch.grid.iter().map(|n| *n as usize).product::<usize>() / ranks;
        let most = (self.resident / ranks).max(1);
        let mut next = self.chooser.blocks(count);
        let turn = if self.entry.code.iter().any(|i| i.operation.may_spin()) { TURN } else { u64::MAX };
        let mut resident: VecDeque<Cluster> = VecDeque::new();
        loop {
            // Every resident cluster gets a turn before another one starts.
            for _ in 0..resident.len() {
                self.cluster = resident.pop_front().unwrap_or_default();
                if self.turn(turn) == Turn::Paused {
                    resident.push_back(std::mem::take(&mut self.cluster));
                }
                if self.fatal {
                    return;
                }
            }
            if resident.len() < most
                && let Some(index) = next.next()
            {
                let blocks = (0..ranks).map(|rank| Some(Box::new(new_block(self, index, rank)))).collect();
                resident.push_back(Cluster { blocks, ..Cluster::default() });
            }
            if resident.is_empty() {
                return;
            }
        }
    }

    /// Runs a cluster for about so many instructions of its warps.
    fn turn(&mut self, instructions: u64) -> Turn {
        let (ranks, mut ran) = (self.cluster.blocks.len(), 0);
        loop {
            let before = ran;
            let mut waits = false;
            for k in 0..ranks {
                let rank = if self.chooser.lanes_descend() { ranks - 1 - k } else { k };
                let Some(mut block) = self.cluster.blocks[rank].take_if(|block| !block.ended) else { continue };
                // A block alone has the whole turn.
                let limit = if ranks == 1 { instructions } else { ran + self.chooser.share() };
                waits |= self.run_block(&mut block, limit, &mut ran) != Turn::Done;
                self.cluster.blocks[rank] = Some(block);
                if self.fatal {
                    return Turn::Done;
                }
            }
            if !waits {
                return Turn::Done;
            }
            if ran > instructions {
                return Turn::Paused;
            }
            // In a cluster a block can wait for one that has run since.
            if (ranks == 1 || ran == before) && !self.unblock() {
                return Turn::Done;
            }
        }
    }

    /// Runs a block until its cluster has run more than `limit` instructions, counted in `ran`.
    fn run_block(&mut self, block: &mut Block, limit: u64, ran: &mut u64) -> Turn {
        loop {
            let wakes = self.chooser.wakes_early();
            let chosen = self.chooser.next(|warp| block.can_run(warp, wakes));
            let Some((warp, slice)) = chosen else {
                if block.warps.iter().all(|warp| warp.state == State::Done) {
                    self.finish(block);
                    self.end_block(block);
                    return Turn::Done;
                }
                return Turn::Blocked;
            };
            let mut tired = true;
            for _ in 0..slice {
                *ran += 1;
                if self.step(block, warp) == Flow::Yield {
                    tired = false;
                    break;
                }
            }
            if tired {
                self.chooser.tire(warp);
            } else {
                self.chooser.give_up(warp);
            }
            if let Completion::Random(_) = self.options.completion {
                self.complete_some(block);
            }
            if self.fatal {
                return Turn::Done;
            }
            if *ran > limit {
                return Turn::Paused;
            }
        }
    }

    /// Unblocks a cluster of which no warp can run: ends an asynchronous operation, or wakes polling warps. Otherwise it
    /// is a deadlock.
    fn unblock(&mut self) -> bool {
        let (mut completed, mut woken, mut stuck) = (false, false, None);
        for rank in 0..self.cluster.blocks.len() {
            let Some(mut block) = self.cluster.blocks[rank].take_if(|block| !block.ended) else { continue };
            completed = completed || self.complete_one(&mut block);
            self.cluster.blocks[rank] = Some(block);
            stuck = stuck.or(Some(rank));
        }
        if completed {
            return true;
        }
        for warp in self.cluster.blocks.iter_mut().flatten().flat_map(|block| &mut block.warps) {
            if let State::Polling { version: seen, times } = &mut warp.state
                && *times < 3
            {
                // It polls once more and finds the phase incomplete.
                *seen = WOKEN;
                *times += 1;
                woken = true;
            }
        }
        if !woken && let Some(mut block) = stuck.and_then(|rank| self.cluster.blocks[rank].take()) {
            self.deadlock(&mut block);
        }
        woken
    }

    /// Runs one instruction of a warp.
    fn step(&mut self, block: &mut Block, w: usize) -> Flow {
        let entry = self.entry;
        let warp = &mut block.warps[w];
        if let State::Polling { version, times } = warp.state {
            warp.state = State::Ready;
            warp.polls = if version == WOKEN { times } else { 0 };
        }
        let Some(path) = warp.top() else {
            warp.state = State::Done;
            return Flow::Yield;
        };
        let (pc, mut mask) = (path.pc, path.mask);
        let Some(i) = entry.code.get(pc) else {
            return self.leave(block, w, mask);
        };
        path.pc += 1;
        warp.executed += 1;
        warp.last = pc;
        if warp.executed > self.options.max_instructions || self.metrics.issued >= self.most_instructions {
            let (count, all) = (warp.executed, self.metrics.issued);
            let message = format!("is instruction {count} of its warp and {all} of the launch; a loop does not end");
            self.report(FindingKind::Endless, block, Thread { w, lane: first(mask), pc }, None, || message);
            self.fatal = true;
            return Flow::Yield;
        }
        if self.options.assume_convergence && !mask.is_power_of_two() {
            warp.clock.sync(mask, warp.live);
        }
        self.counts[pc] += u64::from(mask.count_ones());
        self.metrics.issued += 1;
        if let Some(guard) = i.guard {
            mask = self.guarded(block, w, pc, mask, guard);
        }
        let issue = Issue { i, w, pc, mask };
        if self.has_products {
            self.watch_registers(block, issue);
        }
        match i.operation {
            Operation::Branch => {
                self.branch(block, issue);
                Flow::Next
            }
            _ if mask == 0 => Flow::Next,
            Operation::BranchIndexed => {
                self.branch_indexed(block, issue);
                Flow::Next
            }
            Operation::Return => self.leave(block, w, mask),
            Operation::Trap => {
                self.report(FindingKind::Trap, block, issue.first(), None, || "was executed".to_string());
                self.fatal = true;
                Flow::Yield
            }
            _ => self.execute(block, issue),
        }
    }

    /// The lanes of `mask` in which the guard of an instruction holds.
    #[inline]
    fn guarded(&mut self, block: &mut Block, w: usize, pc: usize, mask: u32, (guard, negated): (u32, bool)) -> u32 {
        let warp = &block.warps[w];
        let (flags, missing) = (&warp.registers[guard as usize], mask & !warp.defined[guard as usize]);
        let mut holds = 0;
        for lane in lanes(mask) {
            holds |= u32::from((flags[lane] != 0) != negated) << lane;
        }
        if missing != 0 {
            self.undefined(block, Thread { w, lane: first(missing), pc }, guard);
        }
        holds
    }

    /// Checks that no pending product uses the registers of an instruction, and notes that the instruction does.
    fn watch_registers(&mut self, block: &mut Block, issue: Issue<'_>) {
        let Issue { i, w, .. } = issue;
        if i.operation.is_product() {
            return;
        }
        let products = &mut block.warps[w].products;
        products.note(i);
        if let Some(slot) = products.find_busy(i) {
            let name = self.entry.registers.name(slot);
            let message = || format!("accesses the register {name}, which a wgmma still uses");
            self.report(FindingKind::Pending, block, issue.first(), None, message);
        }
    }

    /// Ends the lanes of `mask`.
    fn leave(&mut self, block: &mut Block, w: usize, mask: u32) -> Flow {
        self.end_copies(block, w, mask);
        let warp = &mut block.warps[w];
        if mask != warp.live {
            warp.clock.end(mask);
        }
        warp.exit(mask);
        if block.warps[w].state == State::Done {
            self.check_barriers(block);
            self.check_cluster(block);
            return Flow::Yield;
        }
        Flow::Next
    }

    fn branch(&mut self, block: &mut Block, issue: Issue<'_>) {
        let (taken, end, warp) = (issue.mask, issue.i.reconvergence, &mut block.warps[issue.w]);
        let Some(path) = warp.paths.last() else { return };
        let (next, rest, target) = (path.pc, path.mask & !taken, issue.i.targets[0] as usize);
        match (taken, rest) {
            (0, _) => {}
            (_, 0) => warp.diverge(&[(target, taken)], end),
            _ if self.chooser.taken_first() => warp.diverge(&[(target, taken), (next, rest)], end),
            _ => warp.diverge(&[(next, rest), (target, taken)], end),
        }
    }

    fn branch_indexed(&mut self, block: &mut Block, issue: Issue<'_>) {
        let Issue { i, w, mask, .. } = issue;
        let index = *self.source(block, issue, 0);
        let Some(path) = block.warps[w].paths.last() else { return };
        let (next, rest) = (path.pc, path.mask & !mask);
        let mut ways: Vec<(usize, u32)> = Vec::new();
        let mut send = |target: usize, lane: u32| match ways.iter_mut().find(|(pc, _)| *pc == target) {
            Some((_, mask)) => *mask |= lane,
            None => ways.push((target, lane)),
        };
        if rest != 0 {
            send(next, rest);
        }
        for lane in lanes(mask) {
            let Some(target) = i.targets.get(index[lane] as usize) else {
                let message = format!("jumps to entry {} of a table of {}", index[lane], i.targets.len());
                self.report(FindingKind::Operand, block, issue.thread(lane), None, || message);
                self.fatal = true;
                return;
            };
            send(*target as usize, 1 << lane);
        }
        block.warps[w].diverge(&ways, i.reconvergence);
    }

    fn report_sites(&self) -> Vec<Site> {
        let mut sites = Vec::new();
        for (instruction, traffic) in self.entry.code.iter().zip(&self.traffic) {
            for (memory, tally) in [(SiteMemory::Global, traffic.global), (SiteMemory::Shared, traffic.shared)] {
                if tally.requests > 0 {
                    sites.push(Site {
                        place: instruction.place(&self.entry.files),
                        instruction: instruction.opcode.to_string(),
                        memory,
                        requests: tally.requests,
                        transactions: tally.transactions,
                        least: tally.least,
                        worst: tally.worst,
                    });
                }
            }
        }
        sites
    }

    fn into_report(mut self) -> Report {
        for (instruction, times) in self.entry.code.iter().zip(&self.counts) {
            match self.metrics.instructions.get_mut(&*instruction.opcode) {
                Some(all) => *all += times,
                None => drop(self.metrics.instructions.insert(instruction.opcode.to_string(), *times)),
            }
            self.metrics.lanes += times;
            if *times == 0 {
                self.metrics.unreached.push(instruction.line);
            }
        }
        self.metrics.sites = self.report_sites();
        Report { findings: self.findings.all, dropped: self.findings.dropped, metrics: self.metrics }
    }
}

/// Timelines of a block whose accesses shadow memory records; none if races do not matter.
fn observed(options: &Options, warps: usize) -> u32 {
    if options.races { timelines(warps) } else { 0 }
}

/// Block `rank` of cluster `index` of the grid before its first instruction.
fn new_block(machine: &Machine<'_>, index: usize, rank: usize) -> Block {
    let (entry, launch, warps, size) = (machine.entry, machine.launch, machine.warps, machine.cluster_size);
    let threads = launch.block.iter().map(|n| *n as usize).product::<usize>();
    let shared_bytes = machine.shared_bytes();
    let cluster = position(index, std::array::from_fn(|axis| launch.grid[axis] / size[axis]));
    let within = position(rank, size);
    let position: [u32; 3] = std::array::from_fn(|axis| cluster[axis] * size[axis] + within[axis]);
    let linear = position[0] + launch.grid[0] * (position[1] + launch.grid[1] * position[2]);
    let base = linear * timelines(warps);
    let mut block = Block {
        linear,
        position,
        rank,
        shared: Region::new(SHARED, shared_bytes as usize, observed(machine.options, warps)),
        pending: vec![0; shared_bytes.div_ceil(4) as usize],
        warps: (0..warps).map(|w| Warp::new(entry, base, w, warps, threads, machine.has_products)).collect(),
        barriers: Default::default(),
        mbarriers: Mbarriers::default(),
        engine: Engine::default(),
        visitors: Vec::new(),
        ended: false,
        withheld: Withheld::default(),
        version: 1,
    };
    for (warp, specials) in block.warps.iter_mut().zip(&machine.specials) {
        warp.registers[..specials.len()].copy_from_slice(specials);
        for (first, values) in [(CTAID, position), (CLUSTERID, cluster), (CLUSTER_CTAID, within)] {
            warp.registers[first..first + 3].copy_from_slice(&values.map(|at| [u64::from(at); 32]));
        }
        warp.registers[CLUSTER_CTARANK] = [rank as u64; 32];
    }
    block
}

/// Values of the special registers of every warp, except those of the block's position.
fn special_values(launch: Launch, warps: usize, shared_bytes: u32, cluster: Option<[u32; 3]>) -> Vec<Vec<[u64; 32]>> {
    let size = cluster.unwrap_or([1; 3]);
    let value = |name: &str, w: usize, lane: usize| -> u64 {
        let (base, axis) = name.split_once('.').unwrap_or((name, "x"));
        let axis = usize::from(axis.as_bytes()[0] - b'x').min(2);
        let lane = lane as u64;
        match base {
            "%tid" => u64::from(position(32 * w + lane as usize, launch.block)[axis]),
            "%ntid" => u64::from(launch.block[axis]),
            "%nctaid" => u64::from(launch.grid[axis]),
            "%nclusterid" => u64::from(launch.grid[axis] / size[axis]),
            "%cluster_nctaid" => u64::from(size[axis]),
            "%cluster_nctarank" => size.iter().map(|n| u64::from(*n)).product(),
            "%laneid" => lane,
            "%warpid" => w as u64,
            "%nwarpid" => warps as u64,
            "%nsmid" => 1,
            "%lanemask_eq" => 1 << lane,
            "%lanemask_le" => (2 << lane) - 1,
            "%lanemask_lt" => (1 << lane) - 1,
            "%lanemask_ge" => 0xFFFF_FFFF & !((1 << lane) - 1),
            "%lanemask_gt" => 0xFFFF_FFFF & !((2 << lane) - 1),
            "%dynamic_smem_size" => u64::from(launch.shared_bytes),
            "%total_smem_size" => u64::from(shared_bytes),
            "%is_explicit_cluster" => u64::from(cluster.is_some()),
            _ => 0,
        }
    };
    let of_warp = |w| SPECIALS.iter().map(|name| std::array::from_fn(|lane| value(name, w, lane))).collect();
    (0..warps).map(of_warp).collect()
}

/// First special registers of the block's position.
const CTAID: usize = 6;
const CLUSTERID: usize = 26;
const CLUSTER_CTAID: usize = 32;
const CLUSTER_CTARANK: usize = 38;
