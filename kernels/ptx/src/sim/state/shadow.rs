//! Shadow memory: the last write of every word (or byte, where bytes are written), and the reads since.
//!
//! The last write is one epoch. Reads are one epoch as long as each is ordered after the one before, and a list of one
//! epoch a warp where they are concurrent, as in FastTrack (Flanagan and Freund, 2009). Bulk copies of a warp do not
//! end in order, so each that is concurrent with the next reader has an epoch of its own.

use super::{ALL, Epoch, FLIGHT, MANY, NARROW, SET, STRONG};
use std::cell::Cell;

/// Shadow of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    /// The last ordinary write.
    write: Epoch,
    /// The last strong write since. It does not replace the ordinary one, which may be concurrent where this one is
    /// not.
    strong: Epoch,
    read: Epoch,
    was_read: bool,
}

/// Bytes of memory for one page of a shadow.
const PAGE: usize = 4096;

/// The shadow of a range of memory. Pages are allocated at the first access.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shadow {
    pages: Vec<Option<Page>>,
    bytes: usize,
    /// Timelines of a block, which separate its accesses from those of other blocks. Accesses are not recorded if it is 0.
    timelines: u32,
    /// Sets of readers: a reader and the position of the rest, or [`END`]. They never change, so that cells share them.
    sets: Vec<(Epoch, u32)>,
    /// The last step from one state of readers by a reader to the next: neighboring cells take the same.
    step: Option<(Epoch, Epoch, Epoch)>,
    /// Recent steps from sets: cells with the same readers share a set, however they are spread, unless another step took the
    /// place. An earlier step stays valid: a reader learns more in time, so the set has one reader too many at most, which is
    /// known to all that know the later one.
    steps: Vec<(Epoch, Epoch, Epoch)>,
}

/// Number of steps that are remembered; more cost time where few are needed, fewer cost memory where cells share readers.
const STEPS: usize = 1 << 13;

impl Epoch {
    /// Hash of a step, as a position among the remembered ones.
    #[inline]
    fn place(self, by: Epoch) -> usize {
        let words = |epoch: Epoch| {
            let lane = u32::from(epoch.lane) << 8 | u32::from(epoch.flags);
            [epoch.timeline, epoch.clock, epoch.pc, lane]
        };
        let mix = |hash: u64, n: u32| (hash.rotate_left(26) ^ u64::from(n)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let hash = words(self).into_iter().chain(words(by)).fold(0, mix);
        (hash >> 32) as usize % STEPS
    }
}

/// The end of a set of readers.
const END: u32 = u32::MAX;

/// Cells of 2^shift bytes each.
#[derive(Clone, Debug)]
struct Page {
    shift: u32,
    cells: Vec<Word>,
}

impl Page {
    fn new() -> Self {
        Page { shift: 2, cells: vec![Word::default(); PAGE / 4] }
    }

    /// The cells of bytes of the page; they become smaller where it is not made of whole ones.
    fn range(&mut self, at: usize, bytes: usize) -> std::ops::Range<usize> {
        while self.shift > 0 && (at | bytes) & ((1 << self.shift) - 1) != 0 {
            self.shift -= 1;
            self.cells = self.cells.iter().flat_map(|cell| [*cell, *cell]).collect();
        }
        at >> self.shift..(at + bytes) >> self.shift
    }
}

/// The pages of an access: number, first byte within it, bytes.
fn pieces(at: usize, bytes: usize) -> impl Iterator<Item = (usize, usize, usize)> {
    (at / PAGE..(at + bytes).div_ceil(PAGE)).map(move |page| {
        let (start, end) = (at.max(page * PAGE), (at + bytes).min((page + 1) * PAGE));
        (page, start - page * PAGE, end - start)
    })
}

/// `knows` with a cache of its last result: neighboring cells were mostly accessed by the same instruction.
pub(crate) fn remembering(knows: impl Fn(&Epoch) -> bool) -> impl Fn(&Epoch) -> bool {
    let last = Cell::new((Epoch::default(), false));
    move |epoch| remember(&last, epoch, &knows)
}

/// The result of `knows`, or the last one for the same epoch.
pub(crate) fn remember(last: &Cell<(Epoch, bool)>, epoch: &Epoch, knows: impl Fn(&Epoch) -> bool) -> bool {
    let (known, answer) = last.get();
    if known == *epoch {
        return answer;
    }
    let answer = knows(epoch);
    last.set((*epoch, answer));
    answer
}

/// A race: the other access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Conflict {
    /// Byte within the stretch.
    pub(crate) byte: usize,
    pub(crate) other: Epoch,
    pub(crate) other_writes: bool,
    /// Both are strong: the race is due to a narrow scope, or they are not alike.
    pub(crate) both_strong: bool,
    /// Both are of one proxy and one size.
    pub(crate) alike: bool,
}

impl Epoch {
    /// The race of this access with `other`.
    fn conflict(self, byte: usize, other: Epoch, other_writes: bool) -> Conflict {
        let both_strong = other.is_strong() && self.is_strong();
        Conflict { byte, other, other_writes, both_strong, alike: self.is_like(&other) }
    }
}

impl Shadow {
    /// The empty shadow of `bytes` bytes, in a launch whose blocks have so many timelines.
    pub(crate) fn new(bytes: usize, timelines: u32) -> Self {
        Shadow { pages: vec![None; bytes.div_ceil(PAGE)], bytes, timelines, ..Shadow::default() }
    }

    /// Records a read and returns the first write that races with it.
    #[inline]
    pub(crate) fn read(
        &mut self,
        at: usize,
        bytes: usize,
        epoch: Epoch,
        knows: impl Fn(&Epoch) -> bool,
    ) -> Option<Conflict> {
        let (mut found, timelines) = (None, self.timelines);
        if timelines == 0 {
            return None;
        }
        let races = |other: &Epoch| other.clock != 0 && !reach_each_other(other, &epoch, timelines) && !knows(other);
        for (number, start, bytes) in pieces(at, bytes) {
            let page = self.pages[number].get_or_insert_with(Page::new);
            for index in page.range(start, bytes) {
                let cell = &mut page.cells[index];
                cell.was_read = true;
                if found.is_none() {
                    let byte = (number * PAGE + (index << page.shift)).max(at);
                    let racing = [cell.write, cell.strong].into_iter().find(races);
                    found = racing.map(|other| epoch.conflict(byte, other, true));
                }
                if let Some((before, by, after)) = self.step
                    && before == cell.read
                    && by == epoch
                {
                    cell.read = after;
                    continue;
                }
                let before = cell.read;
                if before.lane == SET || !merge(&mut cell.read, epoch, &knows) {
                    if self.steps.is_empty() {
                        self.steps.resize(STEPS, <_>::default());
                    }
                    let step = &mut self.steps[before.place(epoch)];
                    if (step.0, step.1) != (before, epoch) {
                        *step = (before, epoch, grow(&mut self.sets, before, epoch, &knows));
                    }
                    cell.read = step.2;
                }
                self.step = Some((before, epoch, cell.read));
            }
        }
        found
    }

    /// Records a write and returns the first access that races with it.
    #[inline]
    pub(crate) fn write(
        &mut self,
        at: usize,
        bytes: usize,
        epoch: Epoch,
        knows: impl Fn(&Epoch) -> bool,
    ) -> Option<Conflict> {
        let (mut found, timelines) = (None, self.timelines);
        if timelines == 0 {
            return None;
        }
        let races = |other: &Epoch| other.clock != 0 && !reach_each_other(other, &epoch, timelines) && !knows(other);
        for (number, start, bytes) in pieces(at, bytes) {
            let page = self.pages[number].get_or_insert_with(Page::new);
            for index in page.range(start, bytes) {
                let cell = &mut page.cells[index];
                if found.is_none() {
                    let byte = (number * PAGE + (index << page.shift)).max(at);
                    if let Some(other) = [cell.write, cell.strong].into_iter().find(races) {
                        found = Some(epoch.conflict(byte, other, true));
                    } else if cell.read.lane == SET {
                        let reader = members(&self.sets, cell.read).find(races);
                        found = reader.map(|reader| epoch.conflict(byte, reader, false));
                    } else if races(&cell.read) {
                        found = Some(epoch.conflict(byte, cell.read, false));
                    }
                }
                if epoch.is_strong() {
                    cell.strong = epoch;
                } else {
                    (cell.write, cell.strong, cell.read) = (epoch, Epoch::default(), Epoch::default());
                }
            }
        }
        found
    }

    /// The first of the last writes of these bytes that `wanted` selects, with its byte.
    pub(crate) fn find_write(
        &mut self,
        at: usize,
        bytes: usize,
        mut wanted: impl FnMut(&Epoch) -> bool,
    ) -> Option<(usize, Epoch)> {
        for (number, start, bytes) in pieces(at, bytes) {
            let Some(page) = &mut self.pages[number] else { continue };
            for index in page.range(start, bytes) {
                let cell = &page.cells[index];
                let found = [cell.write, cell.strong].into_iter().find(|write| write.clock != 0 && wanted(write));
                if let Some(write) = found {
                    return Some(((number * PAGE + (index << page.shift)).max(at), write));
                }
            }
        }
        None
    }

    /// Numbers of bytes read and written.
    pub(crate) fn touched(&self) -> (u64, u64) {
        let (mut read, mut written) = (0, 0);
        for (number, page) in self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.as_ref()?))) {
            for (index, cell) in page.cells.iter().enumerate() {
                // The last cell may be partial.
                let left = self.bytes.saturating_sub(number * PAGE + (index << page.shift));
                let size = left.min(1 << page.shift) as u64;
                read += if cell.was_read { size } else { 0 };
                written += if cell.write.clock != 0 || cell.strong.clock != 0 { size } else { 0 };
            }
        }
        (read, written)
    }
}

/// Whether both accesses are strong, of one proxy and one size, each with a scope that the other's thread is in: then
/// they do not race.
fn reach_each_other(a: &Epoch, b: &Epoch, timelines: u32) -> bool {
    let narrow = (a.flags | b.flags) & NARROW != 0;
    a.is_strong() && b.is_strong() && a.is_like(b) && (!narrow || a.timeline / timelines == b.timeline / timelines)
}

/// The flags of an epoch for two reads: strong if both are, narrow if one is.
fn common_flags(a: Epoch, b: Epoch) -> u8 {
    a.flags & (b.flags | !STRONG) | b.flags & NARROW
}

/// The epochs of a set.
fn members(sets: &[(Epoch, u32)], set: Epoch) -> impl Iterator<Item = Epoch> {
    let first = (set.lane == SET).then_some(set.clock);
    std::iter::successors(first, |at| Some(sets[*at as usize].1).filter(|next| *next != END))
        .map(|at| sets[at as usize].0)
}

/// Merges `epoch` into `read` if one epoch can represent both.
fn merge(read: &mut Epoch, epoch: Epoch, knows: &impl Fn(&Epoch) -> bool) -> bool {
    if read.clock == 0 {
        *read = epoch;
        return true;
    }
    if epoch.flags & FLIGHT != 0 {
        let known = knows(read);
        if known {
            *read = epoch;
        }
        return known;
    }
    if read.timeline == epoch.timeline && (read.lane == epoch.lane || epoch.lane == ALL) {
        *read = epoch;
        return true;
    }
    if read.timeline == epoch.timeline && read.lane == MANY && read.clock == epoch.clock {
        read.flags = common_flags(*read, epoch);
        return true;
    }
    if knows(read) {
        *read = epoch;
        return true;
    }
    if read.timeline == epoch.timeline {
        read.lane = MANY;
        read.clock = read.clock.max(epoch.clock);
        read.flags = common_flags(*read, epoch);
        return true;
    }
    false
}

/// The set of the readers in `before` and `epoch`.
fn grow(sets: &mut Vec<(Epoch, u32)>, before: Epoch, epoch: Epoch, knows: &impl Fn(&Epoch) -> bool) -> Epoch {
    let add = |sets: &mut Vec<(Epoch, u32)>, epoch: Epoch, rest: u32| {
        sets.push((epoch, rest));
        sets.len() as u32 - 1
    };
    let head = if before.lane == SET { before.clock } else { add(sets, before, END) };
    let set = Epoch { lane: SET, clock: head, ..Epoch::default() };
    let flies = epoch.flags & FLIGHT != 0;
    let replaced =
        members(sets, set).any(|reader| if flies { knows(&reader) } else { reader.timeline == epoch.timeline });
    if !replaced {
        return Epoch { clock: add(sets, epoch, head), ..set };
    }
    if flies {
        // A clock that includes this copy includes the clock of its thread at its start.
        let mut readers: Vec<Epoch> = members(sets, set).filter(|reader| !knows(reader)).collect();
        readers.push(epoch);
        return Epoch { clock: readers.into_iter().fold(END, |rest, reader| add(sets, reader, rest)), ..set };
    }
    // The readers after the one that is replaced stay as they are: blocks run one after the other, so there are few before it.
    let mut before_it = Vec::new();
    let mut at = head;
    while sets[at as usize].0.timeline != epoch.timeline {
        before_it.push(sets[at as usize].0);
        at = sets[at as usize].1;
    }
    let (old, rest) = sets[at as usize];
    let mut reader = old;
    merge(&mut reader, epoch, knows);
    if reader == old {
        return set;
    }
    let replaced = add(sets, reader, rest);
    Epoch { clock: before_it.into_iter().rev().fold(replaced, |rest, reader| add(sets, reader, rest)), ..set }
}
