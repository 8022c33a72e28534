//! Device memory: allocations with gaps, and a shadow of who touched which byte.

use super::Error;
use bytemuck::Pod;
use std::collections::BTreeMap;

/// Between two allocations lies at least so much that belongs to nobody; an access that leaves its allocation meets it.
const GAP: u64 = 4096;
/// Where an allocation begins, like the driver's.
const ALIGNMENT: u64 = 256;
/// The first address; far from zero, so that an index used as an address is caught.
const BASE: u64 = 0x7F00_0000_0000;

/// Device memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    allocations: BTreeMap<u64, Allocation>,
    next: u64,
}

#[derive(Clone, Debug)]
struct Allocation {
    name: String,
    bytes: Vec<u8>,
    shadow: Vec<Shadow>,
}

/// What is known of a byte. Threads are numbered from 1 within a launch.
#[derive(Clone, Copy, Debug, Default)]
struct Shadow {
    written_ever: bool,
    /// Read by `ld.global.nc` in this launch.
    constant: bool,
    /// The last thread that wrote it in this launch, or 0.
    writer: u32,
    /// The thread that read it in this launch, 0 for none, [`MANY`] for several.
    reader: u32,
}

/// Stands for more than one reader.
const MANY: u32 = u32::MAX;

/// How many different bytes a launch has touched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Bytes read at least once.
    pub read: u64,
    /// Bytes written at least once.
    pub written: u64,
}

impl Memory {
    /// Memory without allocations.
    pub fn new() -> Self {
        Self { allocations: BTreeMap::new(), next: BASE }
    }

    /// Allocates `bytes` that nobody has written, under a name for messages. Returns the address.
    pub fn allocate(&mut self, name: &str, bytes: usize) -> u64 {
        self.insert(name, vec![0xFF; bytes], false)
    }

    /// Allocates a copy of `values`.
    pub fn allocate_from<T: Pod>(&mut self, name: &str, values: &[T]) -> u64 {
        self.insert(name, bytemuck::cast_slice(values).to_vec(), true)
    }

    fn insert(&mut self, name: &str, bytes: Vec<u8>, written_ever: bool) -> u64 {
        let address = self.next;
        self.next = (address + bytes.len() as u64 + GAP).next_multiple_of(ALIGNMENT);
        let shadow = vec![Shadow { written_ever, ..Shadow::default() }; bytes.len()];
        self.allocations.insert(address, Allocation { name: name.to_string(), bytes, shadow });
        address
    }

    /// The values of the allocation that begins at `address`.
    ///
    /// # Errors
    /// If no allocation begins there, or if a byte of it was never written.
    pub fn read<T: Pod>(&self, address: u64) -> Result<Vec<T>, Error> {
        let allocation = self.allocations.get(&address);
        let allocation = allocation.ok_or_else(|| Error::Host(format!("no allocation begins at {address:#x}")))?;
        if let Some(byte) = allocation.shadow.iter().position(|shadow| !shadow.written_ever) {
            return Err(Error::Host(format!("byte {byte} of `{}` was never written", allocation.name)));
        }
        Ok(bytemuck::pod_collect_to_vec(&allocation.bytes))
    }

    /// Gives back the allocation that begins at `address`. Its addresses are never used again, so that a kernel that
    /// still reaches for them is found.
    ///
    /// # Errors
    /// If no allocation begins there.
    pub fn free(&mut self, address: u64) -> Result<(), Error> {
        let freed = self.allocations.remove(&address);
        freed.map(|_| ()).ok_or_else(|| Error::Host(format!("no allocation begins at {address:#x}")))
    }

    /// Copies bytes from the host to `target`, which may lie within an allocation.
    ///
    /// # Errors
    /// If not all of it does.
    pub fn copy_in(&mut self, target: u64, source: &[u8]) -> Result<(), Error> {
        let (allocation, at) = self.find(target, source.len() as u64).map_err(host)?;
        allocation.bytes[at..at + source.len()].copy_from_slice(source);
        allocation.shadow[at..at + source.len()].iter_mut().for_each(|shadow| shadow.written_ever = true);
        Ok(())
    }

    /// Copies bytes from `source`, which may lie within an allocation, to the host.
    ///
    /// # Errors
    /// If not all of it does, or if a byte of it was never written.
    pub fn copy_out(&mut self, target: &mut [u8], source: u64) -> Result<(), Error> {
        let (allocation, at) = self.find(source, target.len() as u64).map_err(host)?;
        if let Some(byte) = allocation.shadow[at..at + target.len()].iter().position(|shadow| !shadow.written_ever) {
            return Err(Error::Host(format!("byte {} of `{}` was never written", at + byte, allocation.name)));
        }
        target.copy_from_slice(&allocation.bytes[at..at + target.len()]);
        Ok(())
    }

    /// How many different bytes the last launch touched.
    pub fn touched(&self) -> Touched {
        let mut touched = Touched::default();
        for shadow in self.allocations.values().flat_map(|allocation| &allocation.shadow) {
            touched.read += u64::from(shadow.reader != 0);
            touched.written += u64::from(shadow.writer != 0);
        }
        touched
    }

    /// Forgets who touched what: a launch begins after everything before it.
    pub(super) fn begin_launch(&mut self) {
        for shadow in self.allocations.values_mut().flat_map(|allocation| &mut allocation.shadow) {
            *shadow = Shadow { written_ever: shadow.written_ever, ..Shadow::default() };
        }
    }

    /// Reads `bytes` (at most 8) for `thread`, as part of an access of `whole` bytes that begins at `start`.
    pub(super) fn load(&mut self, address: u64, bytes: u32, thread: u32, constant: bool) -> Result<u64, String> {
        let (allocation, at) = self.find(address, u64::from(bytes))?;
        let mut value = 0;
        for i in 0..bytes as usize {
            let name = &allocation.name;
            let shadow = &mut allocation.shadow[at + i];
            if !shadow.written_ever {
                return Err(format!("reads byte {} of `{name}`, which nobody has written", at + i));
            }
            if constant && shadow.writer != 0 {
                return Err(format!("reads byte {} of `{name}` as constant, and the kernel has written it", at + i));
            }
            if shadow.writer != 0 && shadow.writer != thread {
                let other = shadow.writer - 1;
                return Err(format!(
                    "race: reads byte {} of `{name}`, which thread {other} of the grid writes",
                    at + i
                ));
            }
            shadow.constant |= constant;
            shadow.reader = if shadow.reader == 0 || shadow.reader == thread { thread } else { MANY };
            value |= u64::from(allocation.bytes[at + i]) << (8 * i);
        }
        Ok(value)
    }

    /// Writes the lower `bytes` of `value` for `thread`.
    pub(super) fn store(&mut self, address: u64, bytes: u32, value: u64, thread: u32) -> Result<(), String> {
        let (allocation, at) = self.find(address, u64::from(bytes))?;
        for i in 0..bytes as usize {
            let name = &allocation.name;
            let shadow = &mut allocation.shadow[at + i];
            if shadow.constant {
                return Err(format!("writes byte {} of `{name}`, which the kernel has read as constant", at + i));
            }
            if shadow.writer != 0 && shadow.writer != thread {
                let other = shadow.writer - 1;
                return Err(format!(
                    "race: writes byte {} of `{name}`, which thread {other} of the grid writes",
                    at + i
                ));
            }
            if shadow.reader != 0 && shadow.reader != thread {
                return Err(format!("race: writes byte {} of `{name}`, which another thread reads", at + i));
            }
            (shadow.writer, shadow.written_ever) = (thread, true);
            allocation.bytes[at + i] = (value >> (8 * i)) as u8;
        }
        Ok(())
    }

    /// The allocation that holds `bytes` from `address`, and where they begin in it.
    fn find(&mut self, address: u64, bytes: u64) -> Result<(&mut Allocation, usize), String> {
        let Some((start, allocation)) = self.allocations.range_mut(..=address).next_back() else {
            return Err(format!("reaches for {address:#x}, which lies below all memory"));
        };
        let (at, length) = (address - start, allocation.bytes.len() as u64);
        if at > length + GAP {
            return Err(format!("reaches for {address:#x}, which lies in no allocation"));
        }
        if at + bytes > length {
            let name = &allocation.name;
            return Err(format!("touches bytes {at}..{} of `{name}`, which has {length}", at + bytes));
        }
        Ok((allocation, at as usize))
    }
}

/// A fault of the host's.
fn host(message: String) -> Error {
    Error::Host(format!("a copy {message}"))
}
