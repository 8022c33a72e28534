//! Shadow memory: for every word (or byte, where bytes are written) who wrote it last and who has read it since.
//!
//! The last write is one stamp. Reads are one stamp as long as each reader knows of the one before, and a list of one
//! stamp a warp where several read without knowing of each other, as in FastTrack (Flanagan and Freund, 2009).

use super::clocks::{ALL, MANY, SET, STRONG, Stamp};

/// What is known of a word.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    /// The last ordinary write.
    write: Stamp,
    /// The last strong write since. It hides nothing: who knows of it need not know of the ordinary one.
    strong: Stamp,
    read: Stamp,
    was_read: bool,
}

/// The shadow of a stretch of memory.
#[derive(Clone, Debug, Default)]
pub(super) struct Shadow {
    cells: Vec<Cell>,
    bytes: usize,
    /// A cell stands for 2^shift bytes.
    shift: u32,
    sets: Vec<Vec<Stamp>>,
    free: Vec<u32>,
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
        Shadow { cells: vec![Cell::default(); bytes.div_ceil(4)], bytes, shift: 2, sets: Vec::new(), free: Vec::new() }
    }

    /// The cells of an access; they become smaller where it is not made of whole ones.
    fn range(&mut self, at: usize, bytes: usize) -> std::ops::Range<usize> {
        while self.shift > 0 && (at | bytes) & ((1 << self.shift) - 1) != 0 {
            self.refine();
        }
        at >> self.shift..(at + bytes).div_ceil(1 << self.shift)
    }

    fn refine(&mut self) {
        self.shift -= 1;
        let mut cells = Vec::with_capacity(self.bytes.div_ceil(1 << self.shift));
        for cell in std::mem::take(&mut self.cells) {
            let mut second = cell;
            if cell.read.lane == SET {
                second.read.clock = self.sets.len() as u32;
                self.sets.push(self.sets[cell.read.clock as usize].clone());
            }
            cells.push(cell);
            cells.push(second);
        }
        cells.truncate(self.bytes.div_ceil(1 << self.shift));
        self.cells = cells;
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
        let (mut found, range) = (None, self.range(at, bytes));
        let shift = self.shift;
        for index in range {
            let cell = &mut self.cells[index];
            cell.was_read = true;
            if found.is_none() {
                let writes = [cell.write, cell.strong];
                let racing =
                    writes.iter().find(|other| other.clock != 0 && !both_strong(other, &stamp) && !knows(other));
                let byte = (index << shift).max(at);
                found = racing.map(|other| Conflict { byte, other: *other, other_writes: true });
            }
            if cell.read.lane == SET {
                merge_into(&mut self.sets[cell.read.clock as usize], stamp, &knows);
            } else if !merge(&mut cell.read, stamp, &knows) {
                let set = vec![cell.read, stamp];
                let slot = self.free.pop().unwrap_or(self.sets.len() as u32);
                match self.sets.get_mut(slot as usize) {
                    Some(empty) => *empty = set,
                    None => self.sets.push(set),
                }
                cell.read = Stamp { lane: SET, clock: slot, ..stamp };
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
        let (mut found, range) = (None, self.range(at, bytes));
        let shift = self.shift;
        let races = |other: &Stamp| other.clock != 0 && !both_strong(other, &stamp) && !knows(other);
        for index in range {
            let cell = &mut self.cells[index];
            if found.is_none() {
                let byte = (index << shift).max(at);
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
                continue;
            }
            if cell.read.lane == SET {
                self.free.push(cell.read.clock);
            }
            (cell.write, cell.strong, cell.read) = (stamp, Stamp::default(), Stamp::default());
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
        let range = self.range(at, bytes);
        let shift = self.shift;
        let cells = self.cells[range.clone()].iter().zip(range);
        let mut writes = cells.flat_map(|(cell, index)| [cell.write, cell.strong].map(|write| (index, write)));
        writes
            .find(|(_, write)| write.clock != 0 && wanted(write))
            .map(|(index, write)| ((index << shift).max(at), write))
    }

    /// How many bytes were read and how many written.
    pub(super) fn touched(&self) -> (u64, u64) {
        let size = 1_u64 << self.shift;
        let (mut read, mut written) = (0, 0);
        for (index, cell) in self.cells.iter().enumerate() {
            // The last cell may be cut.
            let size = size.min(self.bytes as u64 - ((index as u64) << self.shift));
            read += if cell.was_read { size } else { 0 };
            written += if cell.write.clock != 0 || cell.strong.clock != 0 { size } else { 0 };
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

fn merge_into(set: &mut Vec<Stamp>, stamp: Stamp, knows: &impl Fn(&Stamp) -> bool) {
    match set.iter_mut().find(|reader| reader.agent == stamp.agent) {
        Some(reader) => {
            merge(reader, stamp, knows);
        }
        None => set.push(stamp),
    }
}
