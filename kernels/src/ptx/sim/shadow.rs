//! Shadow memory: for every word (or byte, where bytes are written) who wrote it last and who has read it since.
//!
//! The last write is one stamp. Reads are one stamp as long as each reader knows of the one before, and a list of one
//! stamp a warp where several read without knowing of each other, as in FastTrack (Flanagan and Freund, 2009).

use super::clocks::{ALL, MANY, SET, STRONG, Stamp};
use std::cell::Cell;

/// What is known of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Word {
    /// The last ordinary write.
    write: Stamp,
    /// The last strong write since. It hides nothing: who knows of it need not know of the ordinary one.
    strong: Stamp,
    read: Stamp,
    was_read: bool,
}

/// Bytes that one page of a shadow stands for.
const PAGE: usize = 4096;

/// The shadow of a stretch of memory. Only pages that somebody touches take any memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    pages: Vec<Option<Page>>,
    bytes: usize,
    /// Sets of readers; they never change, so that cells share them.
    sets: Vec<Vec<Stamp>>,
    /// The last step from one state of readers by a reader to the next: neighbouring cells take the same.
    step: Option<(Stamp, Stamp, Stamp)>,
}

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

/// `knows`, which remembers its last answer: neighbouring cells were mostly touched by the same instruction.
pub(super) fn remembering(knows: impl Fn(&Stamp) -> bool) -> impl Fn(&Stamp) -> bool {
    let last = Cell::new((Stamp::default(), false));
    move |stamp| remember(&last, stamp, &knows)
}

/// The answer of `knows`, or the last one where it is asked the same again.
pub(super) fn remember(last: &Cell<(Stamp, bool)>, stamp: &Stamp, knows: impl Fn(&Stamp) -> bool) -> bool {
    let (known, answer) = last.get();
    if known == *stamp {
        return answer;
    }
    let answer = knows(stamp);
    last.set((*stamp, answer));
    answer
}

/// A race: the other access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Conflict {
    /// Byte within the stretch.
    pub(super) byte: usize,
    pub(super) other: Stamp,
    pub(super) other_writes: bool,
}

impl Shadow {
    /// The shadow of `bytes` bytes that nobody has touched.
    pub(super) fn new(bytes: usize) -> Self {
        Shadow { pages: vec![None; bytes.div_ceil(PAGE)], bytes, ..Shadow::default() }
    }

    /// Notes a read and gives back the first write that races with it.
    #[inline]
    pub(super) fn read(
        &mut self,
        at: usize,
        bytes: usize,
        stamp: Stamp,
        knows: impl Fn(&Stamp) -> bool,
    ) -> Option<Conflict> {
        let mut found = None;
        let races = |other: &Stamp| other.clock != 0 && !both_strong(other, &stamp) && !knows(other);
        for (number, start, bytes) in pieces(at, bytes) {
            let page = self.pages[number].get_or_insert_with(Page::new);
            for index in page.range(start, bytes) {
                let cell = &mut page.cells[index];
                cell.was_read = true;
                if found.is_none() {
                    let byte = (number * PAGE + (index << page.shift)).max(at);
                    let racing = [cell.write, cell.strong].into_iter().find(races);
                    found = racing.map(|other| Conflict { byte, other, other_writes: true });
                }
                if let Some((before, by, after)) = self.step
                    && before == cell.read
                    && by == stamp
                {
                    cell.read = after;
                    continue;
                }
                let before = cell.read;
                if before.lane == SET || !merge(&mut cell.read, stamp, &knows) {
                    cell.read = grow(&mut self.sets, before, stamp, &knows);
                }
                self.step = Some((before, stamp, cell.read));
            }
        }
        found
    }

    /// Notes a write and gives back the first access that races with it.
    #[inline]
    pub(super) fn write(
        &mut self,
        at: usize,
        bytes: usize,
        stamp: Stamp,
        knows: impl Fn(&Stamp) -> bool,
    ) -> Option<Conflict> {
        let mut found = None;
        let races = |other: &Stamp| other.clock != 0 && !both_strong(other, &stamp) && !knows(other);
        for (number, start, bytes) in pieces(at, bytes) {
            let page = self.pages[number].get_or_insert_with(Page::new);
            for index in page.range(start, bytes) {
                let cell = &mut page.cells[index];
                if found.is_none() {
                    let byte = (number * PAGE + (index << page.shift)).max(at);
                    if let Some(other) = [cell.write, cell.strong].into_iter().find(races) {
                        found = Some(Conflict { byte, other, other_writes: true });
                    } else if cell.read.lane == SET {
                        let reader = self.sets[cell.read.clock as usize].iter().find(|reader| races(reader));
                        found = reader.map(|reader| Conflict { byte, other: *reader, other_writes: false });
                    } else if races(&cell.read) {
                        found = Some(Conflict { byte, other: cell.read, other_writes: false });
                    }
                }
                if stamp.is_strong() {
                    cell.strong = stamp;
                } else {
                    (cell.write, cell.strong, cell.read) = (stamp, Stamp::default(), Stamp::default());
                }
            }
        }
        found
    }

    /// The last writes of the bytes that `wanted` asks about: the first that it takes, with its byte.
    pub(super) fn find_write(
        &mut self,
        at: usize,
        bytes: usize,
        mut wanted: impl FnMut(&Stamp) -> bool,
    ) -> Option<(usize, Stamp)> {
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

    /// How many bytes were read and how many written.
    pub(super) fn touched(&self) -> (u64, u64) {
        let (mut read, mut written) = (0, 0);
        for (number, page) in self.pages.iter().enumerate().filter_map(|(at, page)| Some((at, page.as_ref()?))) {
            for (index, cell) in page.cells.iter().enumerate() {
                // The last cell may be cut.
                let left = self.bytes.saturating_sub(number * PAGE + (index << page.shift));
                let size = left.min(1 << page.shift) as u64;
                read += if cell.was_read { size } else { 0 };
                written += if cell.write.clock != 0 || cell.strong.clock != 0 { size } else { 0 };
            }
        }
        (read, written)
    }
}

fn both_strong(a: &Stamp, b: &Stamp) -> bool {
    a.is_strong() && b.is_strong()
}

/// Takes `stamp` into `read` if one stamp can stand for both.
fn merge(read: &mut Stamp, stamp: Stamp, knows: &impl Fn(&Stamp) -> bool) -> bool {
    if read.clock == 0 || (read.agent == stamp.agent && (read.lane == stamp.lane || stamp.lane == ALL)) {
        *read = stamp;
        return true;
    }
    if read.agent == stamp.agent && read.lane == MANY && read.clock == stamp.clock {
        read.flags &= stamp.flags | !STRONG;
        return true;
    }
    if knows(read) {
        *read = stamp;
        return true;
    }
    if read.agent == stamp.agent {
        read.lane = MANY;
        read.clock = read.clock.max(stamp.clock);
        read.flags &= stamp.flags | !STRONG;
        return true;
    }
    false
}

/// The set of the readers in `before` and `stamp`.
fn grow(sets: &mut Vec<Vec<Stamp>>, before: Stamp, stamp: Stamp, knows: &impl Fn(&Stamp) -> bool) -> Stamp {
    let mut set = if before.lane == SET { sets[before.clock as usize].clone() } else { vec![before] };
    match set.iter_mut().find(|reader| reader.agent == stamp.agent) {
        Some(reader) => {
            let old = *reader;
            merge(reader, stamp, knows);
            if *reader == old {
                return before;
            }
        }
        None => set.push(stamp),
    }
    sets.push(set);
    Stamp { lane: SET, clock: sets.len() as u32 - 1, ..Stamp::default() }
}
