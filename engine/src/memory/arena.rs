//! Hands out the memory of tensors: from the heap, from a planned block, or, in a dry run, from nowhere. The heap and the
//! block are the processor's or a GPU's.
#![allow(unsafe_code)]
use super::{
    block::{ALIGN, Block},
    plan::{Event, Plan},
};
use crate::{
    device::{
        Device, Gpu,
        gpu::{DeviceBlock, DeviceRead},
    },
    error::{EngineError, Result},
};
use kernels_cuda::arguments::Address;
use std::{
    ops::{Deref, Range},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Allocator of tensors. Cheap to clone; all clones are one arena.
#[derive(Clone, Debug, Default)]
pub struct Arena(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// GPU that the memory is on; `None` for host memory.
    gpu: Option<Gpu>,
    mode: Mode,
    poison: bool,
    plans: Vec<(&'static str, Plan)>,
    block: Option<Arc<Memory>>,
    /// Ranges of the block that are handed out.
    taken: Vec<Range<usize>>,
    next: usize,
    events: Vec<Event>,
    /// Allocations of dropped storages, for later ones.
    emptied: Vec<Arc<Option<Storage>>>,
    /// Number of dry runs so far.
    runs: u64,
    heap: usize,
    heap_peak: usize,
    misses: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Mode {
    #[default]
    Heap,
    Dry,
    Planned(usize),
}

/// Memory of an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArenaReport {
    /// Bytes of the block that all plans share.
    pub block: usize,
    /// Bytes that tensors outside the block hold now.
    pub heap: usize,
    /// The most bytes that they held at once.
    pub heap_peak: usize,
    /// Requests of planned steps that did not fit their slot and went to the heap.
    pub misses: u64,
}

/// The bytes of a tensor.
#[derive(Debug)]
pub(crate) struct Storage {
    bytes: usize,
    backing: Backing,
    arena: Arena,
}

/// A storage that tensors share. A later one of the arena reuses the heap memory of its counter, so that a steady step allocates
/// none.
#[derive(Clone, Debug)]
pub(crate) struct SharedStorage(Arc<Option<Storage>>);

impl SharedStorage {
    /// The storage, if no other tensor shares it.
    pub(crate) fn get_mut(&mut self) -> Option<&mut Storage> {
        Arc::get_mut(&mut self.0)?.as_mut()
    }

    /// True if no other tensor shares it.
    pub(crate) fn is_unique(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

impl Deref for SharedStorage {
    type Target = Storage;
    fn deref(&self) -> &Storage {
        (*self.0).as_ref().expect("emptied when the last one is dropped")
    }
}

impl Drop for SharedStorage {
    fn drop(&mut self) {
        // Two threads that drop the last two references at the same time may each see the other: the counter is then freed.
        if let Some(storage) = Arc::get_mut(&mut self.0).and_then(Option::take) {
            let arena = storage.arena.clone();
            drop(storage);
            arena.state().emptied.push(self.0.clone());
        }
    }
}

/// The memory behind a tensor.
#[derive(Debug)]
enum Backing {
    /// A request of a dry run.
    DryRun {
        run: u64,
        request: usize,
    },
    Heap(Memory),
    Slot(Arc<Memory>, usize),
    /// Bytes of another storage from an offset on; see [`Parts`].
    Part(SharedStorage, usize),
}

/// A storage in equal parts that are written one by one and read as a whole once none of them is left.
#[derive(Debug)]
pub(crate) struct Parts {
    whole: SharedStorage,
    /// Bytes of a part.
    bytes: usize,
    taken: Vec<bool>,
}

impl Parts {
    /// Memory for `count` parts of `bytes` bytes, one directly behind another.
    pub(crate) fn new(arena: &Arena, count: usize, bytes: usize) -> Result<Self> {
        let total = count.checked_mul(bytes).ok_or(EngineError::Memory { bytes: usize::MAX })?;
        Ok(Self { whole: arena.request(total)?, bytes, taken: vec![false; count] })
    }

    /// Part number `at`. Panics if it was taken before.
    pub(crate) fn take(&mut self, at: usize) -> SharedStorage {
        assert!(!std::mem::replace(&mut self.taken[at], true), "part {at} was already taken");
        let (backing, arena) = (Backing::Part(self.whole.clone(), at * self.bytes), self.whole.arena.clone());
        let emptied = arena.state().emptied.pop();
        Storage { bytes: self.bytes, backing, arena }.shared(emptied)
    }

    /// All parts as one; `None` if one of them is still in use.
    pub(crate) fn into_whole(mut self) -> Option<SharedStorage> {
        self.whole.get_mut().is_some().then_some(self.whole)
    }
}

/// A piece of memory.
#[derive(Debug)]
enum Memory {
    Host(Block),
    Device(DeviceBlock),
}

impl Memory {
    /// `bytes` bytes, zero on the processor, unspecified on a GPU.
    fn new(gpu: Option<&Gpu>, bytes: usize) -> Result<Self> {
        Ok(match gpu {
            None => Self::Host(Block::zeroed(bytes)?),
            Some(gpu) => Self::Device(gpu.allocate(bytes)?),
        })
    }

    fn len(&self) -> usize {
        match self {
            Self::Host(block) => block.len(),
            Self::Device(block) => block.len(),
        }
    }

    #[track_caller]
    fn host(&self) -> &Block {
        match self {
            Self::Host(block) => block,
            Self::Device(_) => panic!("a tensor on a GPU has no slice; `Tensor::to_vec` copies its elements"),
        }
    }
}

impl Arena {
    /// An arena whose memory is that of `device`.
    pub(crate) fn on(device: &Device) -> Self {
        device.gpu().map_or_else(Self::default, Self::on_gpu)
    }

    /// An arena whose memory is that of `gpu`.
    pub(crate) fn on_gpu(gpu: &Gpu) -> Self {
        Self(Arc::new(Mutex::new(State { gpu: Some(gpu.clone()), ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves the bookkeeping whole: every change below is one assignment or push at a time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `bytes` bytes.
    pub(crate) fn request(&self, bytes: usize) -> Result<SharedStorage> {
        let mut state = self.state();
        let backing = match state.mode {
            Mode::Dry => {
                state.events.push(Event::Request(bytes));
                state.next += 1;
                Backing::DryRun { run: state.runs, request: state.next - 1 }
            }
            Mode::Planned(plan) => match state.slot(plan, bytes) {
                Some((block, offset)) => Backing::Slot(block, offset),
                None => {
                    state.misses += 1;
                    Backing::Heap(Memory::new(state.gpu.as_ref(), bytes)?)
                }
            },
            Mode::Heap => Backing::Heap(Memory::new(state.gpu.as_ref(), bytes)?),
        };
        if matches!(backing, Backing::Heap(_)) {
            state.heap += bytes;
            state.heap_peak = state.heap_peak.max(state.heap);
        }
        let poison = state.poison && !matches!(backing, Backing::DryRun { .. });
        let emptied = state.emptied.pop();
        drop(state);
        let mut storage = Storage { bytes, backing, arena: self.clone() };
        if poison {
            // All ones is NaN in both float types, and an index beyond every table.
            storage.fill(0..bytes, 0xFF)?;
        }
        Ok(storage.shared(emptied))
    }

    /// Fills every new tensor with NaN, so that an operation that leaves a part of its output unwritten shows.
    pub fn set_poison(&self, on: bool) {
        self.state().poison = on;
    }

    /// True between [`Arena::start_dry`] and the end of the dry run.
    pub(crate) fn is_dry(&self) -> bool {
        self.state().mode == Mode::Dry
    }

    /// Begins a dry run: requests are noted, no memory is given.
    pub(crate) fn start_dry(&self) {
        let mut state = self.state();
        state.mode = Mode::Dry;
        state.runs += 1;
        state.next = 0;
        state.events.clear();
    }

    /// Ends a dry run: what memory it needs.
    pub(crate) fn finish_dry(&self) -> Plan {
        let mut state = self.state();
        state.mode = Mode::Heap;
        Plan::new(&std::mem::take(&mut state.events))
    }

    /// `plan` serves the steps called `name` from now on; the block grows if it has to.
    pub(crate) fn adopt(&self, name: &'static str, plan: Plan) -> Result<Plan> {
        let mut state = self.state();
        if state.block.as_ref().is_none_or(|block| block.len() < plan.bytes()) {
            // Tensors that still live in the old block keep it alive, and have nothing to do with the new one.
            state.block = Some(Arc::new(Memory::new(state.gpu.as_ref(), plan.bytes())?));
            state.taken.clear();
        }
        // Room for the worst case now, so that no step has to grow it.
        let most = plan.requests().max(state.taken.capacity());
        state.taken.reserve(most);
        state.plans.retain(|(other, _)| *other != name);
        state.plans.push((name, plan.clone()));
        Ok(plan)
    }

    /// Abandons a dry run that failed.
    pub(crate) fn abandon_dry(&self) {
        let mut state = self.state();
        state.mode = Mode::Heap;
        state.events.clear();
    }

    /// Begins a step: with the plan called `name` if there is one, else on the heap.
    pub(crate) fn start_step(&self, name: Option<&str>) {
        let mut state = self.state();
        state.next = 0;
        let found = name.and_then(|name| state.plans.iter().position(|(other, _)| *other == name));
        state.mode = found.map_or(Mode::Heap, Mode::Planned);
    }

    /// Ends a step: requests outside steps go to the heap.
    pub(crate) fn finish_step(&self) {
        let mut state = self.state();
        if state.mode != Mode::Dry {
            state.mode = Mode::Heap;
        }
    }

    /// Bytes of the tensors that exist now.
    pub(crate) fn bytes_in_use(&self) -> usize {
        let state = self.state();
        state.heap + state.taken.iter().map(Range::len).sum::<usize>()
    }

    /// Memory of the arena now.
    pub fn report(&self) -> ArenaReport {
        let state = self.state();
        ArenaReport {
            block: state.block.as_ref().map_or(0, |block| block.len()),
            heap: state.heap,
            heap_peak: state.heap_peak,
            misses: state.misses,
        }
    }
}

impl State {
    /// The next slot of the plan, if the request fits it and nothing lives there.
    fn slot(&mut self, plan: usize, bytes: usize) -> Option<(Arc<Memory>, usize)> {
        let slot = self.plans[plan].1.slots.get(self.next).copied();
        self.next += 1;
        let (slot, block) = (slot?, self.block.as_ref()?);
        let range = slot.offset..slot.offset + bytes.next_multiple_of(ALIGN);
        let free = || self.taken.iter().all(|other| other.end <= range.start || range.end <= other.start);
        if bytes > slot.bytes || range.end > block.len() || !free() {
            return None;
        }
        if !range.is_empty() {
            self.taken.push(range);
        }
        Some((block.clone(), slot.offset))
    }
}

impl Storage {
    /// The storage, in the counter that a dropped one left.
    fn shared(self, emptied: Option<Arc<Option<Self>>>) -> SharedStorage {
        let mut shared = emptied.unwrap_or_default();
        match Arc::get_mut(&mut shared) {
            Some(place) => *place = Some(self),
            // The thread that dropped that one still has its own reference.
            None => shared = Arc::new(Some(self)),
        }
        SharedStorage(shared)
    }

    /// Number of bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// The GPU that the bytes are on, if they are.
    pub(crate) fn gpu(&self) -> Option<&Gpu> {
        self.on_device().map(|(block, _)| block.gpu())
    }

    /// The address of byte `offset` on the GPU. Panics if the bytes are not there.
    #[track_caller]
    pub(crate) fn address(&self, offset: usize) -> Address {
        let (block, start) = self.on_device().expect("only a tensor on a GPU has an address there");
        block.at(start + offset)
    }

    /// The block on a GPU and the first byte in it.
    fn on_device(&self) -> Option<(&DeviceBlock, usize)> {
        match &self.backing {
            Backing::Heap(Memory::Device(block)) => Some((block, 0)),
            Backing::Slot(memory, offset) => match &**memory {
                Memory::Device(block) => Some((block, *offset)),
                Memory::Host(_) => None,
            },
            Backing::Part(whole, offset) => whole.on_device().map(|(block, start)| (block, start + offset)),
            Backing::Heap(Memory::Host(_)) | Backing::DryRun { .. } => None,
        }
    }

    /// The block on the processor and the first byte in it; `None` in a dry run. Panics if the bytes are on a GPU.
    #[track_caller]
    fn on_host(&self) -> Option<(&Block, usize)> {
        match &self.backing {
            Backing::DryRun { .. } => None,
            Backing::Heap(memory) => Some((memory.host(), 0)),
            Backing::Slot(memory, offset) => Some((memory.host(), *offset)),
            Backing::Part(whole, offset) => whole.on_host().map(|(block, start)| (block, start + offset)),
        }
    }

    /// Copies the bytes from `offset` on from the GPU to `target`. Panics if they are not there.
    pub(crate) fn read(&self, offset: usize, target: &mut [u8]) -> Result<()> {
        let (block, start) = self.on_device().expect("only a tensor on a GPU is copied from there");
        block.read(start + offset, target)
    }

    /// Begins to copy the bytes in `range` from the GPU. Panics if they are not there.
    pub(crate) fn begin_read(&self, range: Range<usize>) -> Result<DeviceRead> {
        let (block, start) = self.on_device().expect("only a tensor on a GPU is copied from there");
        block.begin_read(start + range.start, range.len())
    }

    /// Copies `source` to the bytes from `offset` on, wherever they are.
    pub(crate) fn write(&mut self, offset: usize, source: &[u8]) -> Result<()> {
        match self.on_device() {
            Some((block, start)) => block.write(start + offset, source),
            None => {
                self.bytes_mut()[offset..offset + source.len()].copy_from_slice(source);
                Ok(())
            }
        }
    }

    /// Sets the bytes in `range`, wherever they are.
    pub(crate) fn fill(&mut self, range: Range<usize>, value: u8) -> Result<()> {
        match self.on_device() {
            Some((block, start)) => block.fill(start + range.start, range.len(), value),
            None => {
                self.bytes_mut()[range].fill(value);
                Ok(())
            }
        }
    }

    /// The bytes. Panics in a dry run: kernels are not launched there.
    #[track_caller]
    pub(crate) fn bytes(&self) -> &[u8] {
        let Some((block, start)) = self.on_host() else {
            panic!("a dry run has no memory to read; read values inside `Tape::launch`");
        };
        // SAFETY: this Storage owns a block on the heap, or the arena gave this range to it alone until it is dropped, or
        // the range is a part that was taken once, of a whole that is in nobody's hands while a part lives. Writing
        // needs `&mut self`.
        unsafe { block.slice(start..start + self.bytes) }
    }

    /// The bytes, to be written. Panics in a dry run.
    #[track_caller]
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        let bytes = self.bytes;
        let Some((block, start)) = self.on_host() else {
            panic!("a dry run has no memory to write; write values inside `Tape::launch`");
        };
        // SAFETY: the range is this Storage's alone, as above, and it is borrowed exclusively.
        unsafe { block.slice_mut(start..start + bytes) }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        let mut state = self.arena.state();
        match &self.backing {
            Backing::DryRun { run, request } => {
                // One that outlives its dry run counts as alive to the end of it.
                if state.mode == Mode::Dry && state.runs == *run {
                    state.events.push(Event::Release(*request));
                }
            }
            Backing::Heap(_) => state.heap -= self.bytes,
            // The whole goes when nobody has a part of it.
            Backing::Part(..) => {}
            Backing::Slot(block, offset) => {
                // Slots of a block that was replaced by a larger one are no longer tracked.
                if state.block.as_ref().is_some_and(|now| Arc::ptr_eq(now, block)) && self.bytes > 0 {
                    let at = state.taken.iter().position(|range| range.start == *offset).expect("a slot in use");
                    state.taken.swap_remove(at);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(arena: &Arena, sizes: [usize; 4]) -> Result<Vec<SharedStorage>> {
        let a = arena.request(sizes[0])?;
        let b = arena.request(sizes[1])?;
        drop(a);
        let c = arena.request(sizes[2])?;
        let d = arena.request(sizes[3])?;
        Ok(vec![b, c, d])
    }

    fn write(storage: &mut SharedStorage, value: u8) {
        storage.get_mut().expect("not shared").bytes_mut().fill(value);
    }

    fn planned() -> (Arena, Plan) {
        let arena = Arena::default();
        arena.start_dry();
        program(&arena, [1000, 500, 900, 0]).unwrap();
        let plan = arena.adopt("step", arena.finish_dry()).unwrap();
        (arena, plan)
    }

    #[test]
    fn a_planned_step_takes_nothing_from_the_heap_and_reuses_bytes() {
        let (arena, plan) = planned();
        assert_eq!((plan.bytes(), plan.requests()), (1536, 4)); // 1024 (then 960 in the same place) + 512
        for sizes in [[1000, 500, 900, 0], [10, 20, 30, 0], [0, 0, 0, 0]] {
            arena.start_step(Some("step"));
            let mut held = program(&arena, sizes).unwrap();
            for (i, storage) in held.iter_mut().enumerate() {
                write(storage, i as u8 + 1);
            }
            for (i, storage) in held.iter().enumerate() {
                assert!(storage.bytes().iter().all(|&b| b == i as u8 + 1), "{sizes:?}: tensor {i} was overwritten");
            }
            assert_eq!(arena.report(), ArenaReport { block: 1536, ..Default::default() }, "{sizes:?}");
        }
    }

    #[test]
    fn a_step_that_breaks_the_plan_falls_back_to_the_heap_and_stays_sound() {
        let (arena, _) = planned();
        arena.start_step(Some("step"));
        let mut kept = program(&arena, [1025, 500, 900, 0]).unwrap(); // larger than its slot
        assert_eq!(arena.report().misses, 1);
        write(&mut kept[1], 7);
        arena.start_step(Some("step"));
        let mut held = program(&arena, [1000, 500, 900, 64]).unwrap(); // what `kept` holds is not given twice
        held.iter_mut().for_each(|storage| write(storage, 9));
        assert!(kept[1].bytes().iter().all(|&b| b == 7), "a living tensor was overwritten");
        assert!(arena.report().misses >= 3, "{:?}", arena.report());
        let extra = arena.request(100).unwrap(); // more requests than planned
        assert_eq!(extra.bytes().len(), 100);
        drop((kept, held, extra));
        assert_eq!(arena.report().heap, 0);
    }

    #[test]
    fn parts_are_written_apart_and_read_as_one() {
        let (planned, _) = planned();
        planned.start_step(Some("step"));
        for arena in [Arena::default(), planned] {
            let mut parts = Parts::new(&arena, 3, 40).unwrap();
            let [mut first, mut third] = [0, 2].map(|at| parts.take(at));
            write(&mut first, 1);
            write(&mut third, 3);
            let mut second = parts.take(1);
            write(&mut second, 2);
            let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| parts.take(1)));
            assert!(again.is_err(), "one part given twice");
            drop((first, third));
            assert_eq!(second.bytes(), [2; 40]);
            drop(second);
            let whole = parts.into_whole().expect("no part is left");
            assert_eq!(whole.bytes(), [[1; 40], [2; 40], [3; 40]].concat());
            let mut parts = Parts::new(&arena, 2, 8).unwrap();
            let held = parts.take(0);
            assert!(parts.into_whole().is_none(), "read while a part is somebody's");
            drop((held, whole));
            assert_eq!(arena.report().heap, 0);
        }
    }

    #[test]
    fn storages_that_are_dropped_by_several_threads_leave_no_bytes_and_no_contents() {
        let arena = Arena::default();
        for round in 0..200 {
            let mut storage = arena.request(64).unwrap();
            assert_eq!(storage.bytes(), [0; 64], "{round}");
            write(&mut storage, 1);
            std::thread::scope(|scope| {
                for storage in [storage.clone(), storage] {
                    scope.spawn(|| drop(storage));
                }
            });
            assert_eq!(arena.report().heap, 0, "{round}");
        }
    }

    #[test]
    fn an_absurd_request_is_an_error() {
        for bytes in [usize::MAX, isize::MAX as usize - 64] {
            let error = Arena::default().request(bytes).unwrap_err().to_string();
            assert!(error.contains("cannot allocate"), "{error}");
        }
    }
}
