//! Asynchronous copies between device memory and shared memory: `cp.async` by threads, and bulk tensor copies by the
//! TMA of Hopper.

use super::{
    Address, Entry, Feature, Generic, Global, Operand, Ptr, Reg, S32, Shared, U32, Version,
    module::{BytesParam, statements},
};

/// Bytes of a tensor map, the descriptor that the driver encodes for bulk tensor copies.
pub const TENSOR_MAP_BYTES: u32 = 128;

statements! {
    /// Copies 16 bytes, bypassing registers and L1; both addresses are multiples of 16.
    cp_async(to: Address<Shared>, from: Address<Global>) = "cp.async.cg.shared.global {to}, {from}, 16";

    /// [`Entry::cp_async`] of the first `bytes` of the 16 bytes (0 to 16), the rest filled with zeros and not read.
    cp_async_zero_fill(to: Address<Shared>, from: Address<Global>, bytes: Reg<U32>) =
        "cp.async.cg.shared.global {to}, {from}, 16, {bytes}";

    /// Commits the group of all copies that this thread has started since the last commit.
    cp_async_commit() = "cp.async.commit_group";

    /// Waits until at most `groups` of this thread's groups are pending. Other threads see the bytes after a barrier.
    cp_async_wait(groups: u32) = "cp.async.wait_group {groups}";

    /// Commits the group of all bulk stores that this thread has started since the last commit.
    bulk_commit() = "cp.async.bulk.commit_group" needs "cp.async.bulk.commit_group" 8 0 BulkCopies;

    /// Waits until at most `groups` of this thread's bulk groups still read their source.
    bulk_wait_read(groups: u32) =
        "cp.async.bulk.wait_group.read {groups}" needs "cp.async.bulk.wait_group" 8 0 BulkCopies;

    /// Waits until at most `groups` of this thread's bulk groups are not complete.
    bulk_wait(groups: u32) = "cp.async.bulk.wait_group {groups}" needs "cp.async.bulk.wait_group" 8 0 BulkCopies;
}

impl Entry {
    /// Copies 4 or 8 bytes through L1: the first `bytes` of them, the rest filled with zeros.
    #[track_caller]
    pub fn cp_async_small(&self, to: Address<Shared>, from: Address<Global>, size: u32, bytes: Reg<U32>) {
        assert!([4, 8].contains(&size), "cp.async.ca of {size} bytes; expected 4 or 8");
        self.write(format!("cp.async.ca.shared.global {to}, {from}, {size}, {bytes}"));
    }

    /// Declares a tensor map parameter.
    #[track_caller]
    pub fn tensor_map_param(&self, name: &str) -> BytesParam {
        self.bytes_param(name, TENSOR_MAP_BYTES, 64)
    }

    /// The generic address of a parameter that is used in place: two instructions.
    #[track_caller]
    pub fn address_of_param(&self, param: &BytesParam) -> Ptr<Generic> {
        self.needs("cvta.param", Version(7, 7), Feature::GenericParameters);
        let place: Reg<super::U64> = self.define(format_args!("mov.b64"), std::slice::from_ref(&param.name));
        Ptr::new(self.define(format_args!("cvta.param.u64"), &[place.text()]))
    }

    /// Prefetches a tensor map.
    #[track_caller]
    pub fn prefetch_tensor_map(&self, map: Ptr<Generic>) {
        self.needs("prefetch.tensormap", Version(8, 0), Feature::BulkCopies);
        self.write(format!("prefetch.tensormap [{}]", map.register));
    }

    /// Starts the copy of a box of the tensor to shared memory, whose bytes complete at `barrier`. `at` is the box's
    /// first element, the contiguous dimension first. Executed by one thread.
    #[track_caller]
    pub fn tensor_load<const D: usize>(
        &self,
        to: Address<Shared>,
        map: Ptr<Generic>,
        at: [Reg<S32>; D],
        barrier: Address<Shared>,
    ) {
        self.needs("cp.async.bulk.tensor", Version(8, 0), Feature::BulkCopies);
        let box_at = super::memory::braced(&at);
        let barrier = barrier.to_string();
        self.write(format!(
            "cp.async.bulk.tensor.{D}d.shared::cluster.global.mbarrier::complete_tx::bytes {to}, [{}, {box_at}], {barrier}",
            map.register
        ));
    }

    /// [`Entry::tensor_load`] into the blocks of the cluster whose ranks are bits of `ranks`: to this place of the shared
    /// memory of each, where the mbarrier at this place counts the bytes.
    #[track_caller]
    pub fn tensor_multicast<const D: usize>(
        &self,
        to: Address<Shared>,
        map: Ptr<Generic>,
        at: [Reg<S32>; D],
        barrier: Address<Shared>,
        ranks: u16,
    ) {
        self.needs("cp.async.bulk.tensor", Version(8, 0), Feature::BulkCopies);
        let box_at = super::memory::braced(&at);
        let barrier = barrier.to_string();
        self.write(format!(
            "cp.async.bulk.tensor.{D}d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster {to}, [{}, {box_at}], {barrier}, {ranks}",
            map.register
        ));
    }

    /// Starts the copy of a box from shared memory to the tensor. Elements outside of the tensor are not written.
    #[track_caller]
    pub fn tensor_store<const D: usize>(&self, map: Ptr<Generic>, at: [Reg<S32>; D], from: Address<Shared>) {
        self.needs("cp.async.bulk.tensor", Version(8, 0), Feature::BulkCopies);
        let box_at = super::memory::braced(&at);
        self.write(format!(
            "cp.async.bulk.tensor.{D}d.global.shared::cta.bulk_group [{}, {box_at}], {from}",
            map.register
        ));
    }

    /// Starts a copy of `bytes` bytes, a multiple of 16, to shared memory; they complete at `barrier`.
    #[track_caller]
    pub fn bulk_load(
        &self,
        to: Address<Shared>,
        from: Address<Global>,
        bytes: impl Operand<U32>,
        barrier: Address<Shared>,
    ) {
        self.needs("cp.async.bulk", Version(8, 0), Feature::BulkCopies);
        self.write(format!(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes {to}, {from}, {}, {barrier}",
            bytes.text()
        ));
    }
}
