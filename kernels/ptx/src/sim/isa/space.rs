//! State spaces and their addresses.

use super::Opcode;

/// State space of a variable or an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    Global,
    Const,
    /// Of the block.
    Shared,
    /// Shared memory of all blocks of the cluster.
    Cluster,
    Local,
    Param,
}

/// The space that the opcode names, taken from it.
pub(crate) fn space(opcode: &mut Opcode<'_>) -> Option<Space> {
    const SPACES: [(&str, Space); 7] = [
        ("global", Space::Global),
        ("shared", Space::Shared),
        ("shared::cta", Space::Shared),
        ("shared::cluster", Space::Cluster),
        ("local", Space::Local),
        ("param", Space::Param),
        ("const", Space::Const),
    ];
    opcode.choose(&SPACES)
}

/// First address of the shared memory of a block: the first KiB belongs to the system on sm_90, and so an address that
/// was never computed is out of bounds.
pub(crate) const SHARED_BASE: u64 = 0x400;

/// First address of a thread's local memory.
pub(crate) const LOCAL_BASE: u64 = 0x10;

/// First address of a space.
pub(crate) fn base(space: Space) -> u64 {
    match space {
        Space::Shared | Space::Cluster => SHARED_BASE,
        Space::Local => LOCAL_BASE,
        Space::Param | Space::Global | Space::Const => 0,
    }
}

/// First generic addresses of these spaces; in global memory generic addresses are the addresses themselves.
const SHARED_WINDOW: u64 = 0x7D00_0000_0000;

const LOCAL_WINDOW: u64 = 0x7C00_0000_0000;

const PARAM_WINDOW: u64 = 0x7B00_0000_0000;

/// Bytes of a window.
const WINDOW: u64 = 1 << 32;

/// The start of a space's window.
pub(crate) fn window(space: Space) -> u64 {
    match space {
        Space::Shared | Space::Cluster => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Param => PARAM_WINDOW,
        Space::Global | Space::Const => 0,
    }
}

/// The space of a generic address, and the address within it.
pub(crate) fn space_of(address: u64) -> (Space, u64) {
    for space in [Space::Shared, Space::Local, Space::Param] {
        let start = window(space);
        if (start..start + WINDOW).contains(&address) {
            let named = space == Space::Shared && split_rank(address - start).0.is_some();
            return (if named { Space::Cluster } else { space }, address - start);
        }
    }
    (Space::Global, address)
}

/// The first bit of the rank in an address of shared memory; below it is the address within a block.
const RANK_BIT: u32 = 24;
/// Bits of the rank.
const RANK_BITS: u64 = 0xFF << RANK_BIT;

/// The address that `mapa` computes: that of shared memory, generic or not, in the cluster's block `rank`.
pub(crate) fn with_rank(address: u64, rank: u32) -> u64 {
    address & !RANK_BITS | u64::from(rank.wrapping_add(1)) << RANK_BIT & RANK_BITS
}

/// The block of the cluster that an address of shared memory names, and the address within it; `None` for the own block.
pub(crate) fn split_rank(within: u64) -> (Option<usize>, u64) {
    (((within & RANK_BITS) >> RANK_BIT).checked_sub(1).map(|rank| rank as usize), within & !RANK_BITS)
}
