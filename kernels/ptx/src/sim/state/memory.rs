//! Device memory: allocations with gaps between them, and a shadow of their accesses.

use super::Shadow;
use crate::sim::{Error, isa::Space, text::Module};
use bytemuck::Pod;
use std::collections::HashMap;

/// The name of a block's shared memory in messages.
pub(crate) const SHARED: &str = "shared memory";

/// Location of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spot {
    Shared(usize),
    /// Byte of the shared memory of the cluster's block with this rank, which is another one.
    Peer(usize, usize),
    /// Number of the region, byte within it.
    Global(usize, usize),
    Local(usize),
    Param(usize),
}

/// Bytes between two allocations, at least; an access past the end of an allocation falls into them.
const GAP: u64 = 4096;
/// Alignment of an allocation, that of the driver.
const ALIGNMENT: u64 = 256;
/// The first address; far from zero, so that an index used as an address is caught.
const BASE: u64 = 0x7F00_0000_0000;

/// Device memory.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// In the order of their addresses.
    allocations: Vec<Allocation>,
    next: u64,
    /// Number of the launch that runs or ran last.
    launch: u64,
    /// Timelines of a block of that launch.
    timelines: u32,
    /// Variables of modules, by the module's identity and the variable's position.
    symbols: HashMap<(u64, usize), u64>,
}

/// A stretch of memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Region {
    pub(crate) name: String,
    pub(crate) bytes: Vec<u8>,
    /// 1 where a byte was ever written.
    pub(crate) written: Vec<u8>,
    pub(crate) shadow: Shadow,
    /// Bytes that the kernel has read as constant: of each word.
    constant: Vec<bool>,
    read_only: bool,
}

impl Region {
    /// Memory of a block with so many timelines.
    pub(crate) fn new(name: &str, bytes: usize, timelines: u32) -> Self {
        Region {
            name: name.to_string(),
            bytes: vec![0xFF; bytes],
            written: vec![0; bytes],
            shadow: Shadow::new(bytes, timelines),
            ..Region::default()
        }
    }

    /// The first of the bytes that was never written.
    pub(crate) fn unwritten(&self, at: usize, bytes: usize) -> Option<usize> {
        self.written[at..at + bytes].iter().position(|written| *written == 0).map(|byte| at + byte)
    }

    /// Notes that the kernel reads these bytes as constant.
    pub(crate) fn note_constant(&mut self, at: usize, bytes: usize) {
        if self.constant.is_empty() {
            self.constant = vec![false; self.bytes.len().div_ceil(4)];
        }
        self.constant[at / 4..(at + bytes).div_ceil(4)].fill(true);
    }

    /// Whether the kernel may not write these bytes, and why.
    pub(crate) fn is_constant(&self, at: usize, bytes: usize) -> Option<&'static str> {
        if self.read_only {
            return Some("which is constant memory");
        }
        let read = !self.constant.is_empty() && self.constant[at / 4..(at + bytes).div_ceil(4)].contains(&true);
        read.then_some("which the kernel has read as constant")
    }
}

#[derive(Clone, Debug)]
struct Allocation {
    address: u64,
    region: Region,
    /// The launch that the shadow belongs to.
    launch: u64,
}

/// Numbers of distinct bytes that a launch has accessed.
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
        Self { next: BASE, ..Self::default() }
    }

    /// Allocates `bytes` uninitialized bytes, under a name for messages. Returns the address.
    pub fn allocate(&mut self, name: &str, bytes: usize) -> u64 {
        self.insert(name, vec![0xFF; bytes], false, ALIGNMENT)
    }

    /// Allocates a copy of `values`.
    pub fn allocate_from<T: Pod>(&mut self, name: &str, values: &[T]) -> u64 {
        self.insert(name, bytemuck::cast_slice(values).to_vec(), true, ALIGNMENT)
    }

    fn insert(&mut self, name: &str, bytes: Vec<u8>, written: bool, alignment: u64) -> u64 {
        let address = self.next.max(BASE).next_multiple_of(alignment);
        self.next = (address + bytes.len() as u64 + GAP).next_multiple_of(ALIGNMENT);
        let written = vec![u8::from(written); bytes.len()];
        let region = Region { name: name.to_string(), bytes, written, ..Region::default() };
        self.allocations.push(Allocation { address, region, launch: 0 });
        address
    }

    /// The address of variable `index` of `module`, which lives as long as this memory.
    pub(crate) fn symbol(&mut self, module: &Module, index: usize) -> u64 {
        let key = (module.identity, index);
        if let Some(address) = self.symbols.get(&key) {
            return *address;
        }
        let variable = &module.globals[index];
        // Variables without an initializer are zero.
        let mut bytes = variable.initial.clone();
        bytes.resize(variable.bytes as usize, 0);
        let address = self.insert(&variable.name, bytes, true, variable.align);
        if let Some(last) = self.allocations.last_mut() {
            last.region.read_only = variable.space == Space::Const;
        }
        self.symbols.insert(key, address);
        address
    }

    fn allocation(&self, address: u64) -> Result<&Allocation, Error> {
        let found = self.allocations.binary_search_by_key(&address, |allocation| allocation.address);
        found
            .map(|index| &self.allocations[index])
            .map_err(|_| Error::Host(format!("no allocation begins at {address:#x}")))
    }

    /// The values of the allocation that begins at `address`.
    ///
    /// # Errors
    /// If no allocation begins there, or if a byte of it was never written.
    pub fn read<T: Pod>(&self, address: u64) -> Result<Vec<T>, Error> {
        let region = &self.allocation(address)?.region;
        if let Some(byte) = region.unwritten(0, region.bytes.len()) {
            return Err(Error::Host(format!("byte {byte} of `{}` was never written", region.name)));
        }
        Ok(bytemuck::pod_collect_to_vec(&region.bytes))
    }

    /// The bytes of the allocation that begins at `address`, and which of them were ever written (1) or not (0).
    ///
    /// # Errors
    /// If no allocation begins there.
    pub fn bytes(&self, address: u64) -> Result<(&[u8], &[u8]), Error> {
        let region = &self.allocation(address)?.region;
        Ok((&region.bytes, &region.written))
    }

    /// The address of each allocation, in ascending order.
    pub fn buffers(&self) -> impl Iterator<Item = u64> {
        self.allocations.iter().map(|allocation| allocation.address)
    }

    /// Frees the allocation at `address`. Its addresses are never reused, so that later accesses to them are findings.
    ///
    /// # Errors
    /// If no allocation begins there.
    pub fn free(&mut self, address: u64) -> Result<(), Error> {
        self.allocation(address)?;
        self.allocations.retain(|allocation| allocation.address != address);
        Ok(())
    }

    /// Copies bytes from the host to `target`, an address within an allocation.
    ///
    /// # Errors
    /// If not all of it does.
    pub fn copy_in(&mut self, target: u64, source: &[u8]) -> Result<(), Error> {
        let (index, at) = self.find(target, source.len() as u64, usize::MAX).map_err(host)?;
        let region = &mut self.allocations[index].region;
        region.bytes[at..at + source.len()].copy_from_slice(source);
        region.written[at..at + source.len()].fill(1);
        Ok(())
    }

    /// Copies bytes from `source`, an address within an allocation, to the host.
    ///
    /// # Errors
    /// If not all of it does, or if a byte of it was never written.
    pub fn copy_out(&mut self, target: &mut [u8], source: u64) -> Result<(), Error> {
        let (index, at) = self.find(source, target.len() as u64, usize::MAX).map_err(host)?;
        let region = &self.allocations[index].region;
        if let Some(byte) = region.unwritten(at, target.len()) {
            return Err(Error::Host(format!("byte {byte} of `{}` was never written", region.name)));
        }
        target.copy_from_slice(&region.bytes[at..at + target.len()]);
        Ok(())
    }

    /// Pointer to `bytes` bytes at `address`, an address within an allocation, for code outside of the simulator; valid until
    /// the allocation is freed. `is_written`: the code writes them all, so they count as written.
    ///
    /// # Errors
    /// If not all of it does, or if a byte that the code reads was never written.
    pub fn host_pointer(&mut self, address: u64, bytes: usize, is_written: bool) -> Result<*mut u8, Error> {
        let (index, at) = self.find(address, bytes as u64, usize::MAX).map_err(host)?;
        let region = &mut self.allocations[index].region;
        if is_written {
            region.written[at..at + bytes].fill(1);
        } else if let Some(byte) = region.unwritten(at, bytes) {
            return Err(Error::Host(format!("byte {byte} of `{}` was never written", region.name)));
        }
        Ok(region.bytes.as_mut_ptr().wrapping_add(at))
    }

    /// A copy without the record of accesses: a launch on it behaves as on this one.
    pub fn snapshot(&self) -> Memory {
        let of = |region: &Region| Region {
            name: region.name.clone(),
            bytes: region.bytes.clone(),
            written: region.written.clone(),
            read_only: region.read_only,
            ..Region::default()
        };
        let allocation = |a: &Allocation| Allocation { address: a.address, region: of(&a.region), launch: 0 };
        Memory {
            allocations: self.allocations.iter().map(allocation).collect(),
            next: self.next,
            launch: self.launch,
            timelines: self.timelines,
            symbols: self.symbols.clone(),
        }
    }

    /// Whether both have the same allocations, bytes and written marks.
    pub fn holds_the_same_as(&self, other: &Memory) -> bool {
        let same = |(a, b): (&Allocation, &Allocation)| {
            a.address == b.address && a.region.written == b.region.written && a.region.bytes == b.region.bytes
        };
        self.allocations.len() == other.allocations.len() && self.allocations.iter().zip(&other.allocations).all(same)
    }

    /// Numbers of distinct bytes that the last launch accessed.
    pub fn touched(&self) -> Touched {
        let mut touched = Touched::default();
        for allocation in self.allocations.iter().filter(|allocation| allocation.launch == self.launch) {
            let (read, written) = allocation.region.shadow.touched();
            touched.read += read;
            touched.written += written;
        }
        touched
    }

    /// Starts a launch, which is ordered after all earlier ones; its blocks have so many timelines each.
    pub(crate) fn begin_launch(&mut self, timelines: u32) {
        self.launch += 1;
        self.timelines = timelines;
    }

    /// The region with number `index`, its shadow that of this launch.
    #[inline]
    pub(crate) fn region(&mut self, index: usize) -> &mut Region {
        let allocation = &mut self.allocations[index];
        if allocation.launch != self.launch {
            allocation.launch = self.launch;
            allocation.region.shadow = Shadow::new(allocation.region.bytes.len(), self.timelines);
            allocation.region.constant = Vec::new();
        }
        &mut allocation.region
    }

    /// The region that holds `bytes` bytes at `address`, and their offset in it. The region `guess` is tried first.
    #[inline]
    pub(crate) fn find(&self, address: u64, bytes: u64, guess: usize) -> Result<(usize, usize), String> {
        if let Some(allocation) = self.allocations.get(guess)
            && let Some(at) = address.checked_sub(allocation.address)
            && at.saturating_add(bytes) <= allocation.region.bytes.len() as u64
        {
            return Ok((guess, at as usize));
        }
        let behind = self.allocations.partition_point(|allocation| allocation.address <= address);
        let Some(index) = behind.checked_sub(1) else {
            return Err(format!("accesses {address:#x}, which is below all allocations"));
        };
        let allocation = &self.allocations[index];
        let (at, length) = (address - allocation.address, allocation.region.bytes.len() as u64);
        if at > length + GAP {
            return Err(format!("accesses {address:#x}, which is in no allocation"));
        }
        if at + bytes > length {
            let name = &allocation.region.name;
            return Err(format!("accesses bytes {at}..{} of `{name}`, which has {length} bytes", at + bytes));
        }
        Ok((index, at as usize))
    }
}

/// An error of the host.
fn host(message: String) -> Error {
    Error::Host(format!("a copy {message}"))
}
