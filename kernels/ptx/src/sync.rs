//! Synchronization: barriers of a block, mbarriers in shared memory, fences, flags and counters in device memory.

use super::{Address, Entry, Feature, Global, Operand, Pred, Ptr, Reg, Shared, U32, U64, Version, module::statements};

/// A barrier of the block. The hardware has sixteen; barrier 0 is that of all threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Barrier(u8);

impl Barrier {
    /// The barrier of all threads of the block.
    pub const BLOCK: Barrier = Barrier(0);
}

/// Scope of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// This thread's reads and writes, as the block sees them.
    Block,
    /// This thread's reads and writes, as the whole device sees them.
    Device,
    /// Writes of threads to shared memory before reads of it by TMA or the tensor cores.
    AsyncShared,
    /// The initialization of mbarriers before their use by TMA and other blocks of the cluster.
    MbarrierInit,
}

statements! {
    /// Waits until the kernels that were launched before are complete and what they have written is visible. A launch of a kernel
    /// with this instruction may start earlier, so each thread executes it before its first access to device memory.
    wait_for_earlier_kernels() = "griddepcontrol.wait" needs "griddepcontrol" 7 8 DependentLaunch;

    /// Lets the next kernel start once every block has executed this or ended, if that kernel waits for this one
    /// ([`Entry::wait_for_earlier_kernels`]).
    launch_dependents() = "griddepcontrol.launch_dependents" needs "griddepcontrol" 7 8 DependentLaunch;
}

impl Entry {
    /// Waits for all threads of the block, whose writes to memory are then visible to all of them.
    #[track_caller]
    pub fn bar_sync(&self) {
        self.write("bar.sync 0".to_string());
    }

    /// A barrier for some warps of the block, with a comment that gives its `name`.
    ///
    /// # Panics
    /// If the entry has fifteen.
    #[track_caller]
    pub fn named_barrier(&self, name: &str) -> Barrier {
        self.named_barriers(name, 1)
    }

    /// `count` consecutive barriers; returns the first.
    ///
    /// # Panics
    /// If the entry would have more than fifteen.
    #[track_caller]
    pub fn named_barriers(&self, name: &str, count: u32) -> Barrier {
        let number = self.barriers.get();
        assert!(u32::from(number) + count <= 16, "more than sixteen barriers in a block");
        self.barriers.set(number + count as u8);
        self.comment(&format!("barrier {number}: {name}"));
        Barrier(number)
    }

    /// Waits until `threads` threads (whole warps) are at `barrier`.
    #[track_caller]
    pub fn bar_sync_some(&self, barrier: Barrier, threads: u32) {
        self.write(format!("bar.sync {}, {threads}", barrier.0));
    }

    /// [`Entry::bar_sync_some`] at the `index`-th of the barriers that were named from `first` on. Two instructions.
    #[track_caller]
    pub fn bar_sync_of(&self, first: Barrier, index: Reg<U32>, threads: u32) {
        let number = self.add(index, u32::from(first.0));
        self.write(format!("bar.sync {number}, {threads}"));
    }

    /// Arrives at `barrier` as one of `threads` threads, without waiting.
    #[track_caller]
    pub fn bar_arrive(&self, barrier: Barrier, threads: u32) {
        self.write(format!("bar.arrive {}, {threads}", barrier.0));
    }

    /// Orders this thread's accesses to memory.
    #[track_caller]
    pub fn fence(&self, fence: Fence) {
        let text = match fence {
            Fence::Block => "fence.acq_rel.cta",
            Fence::Device => "fence.acq_rel.gpu",
            Fence::AsyncShared => {
                self.needs("fence.proxy.async", Version(8, 0), Feature::BulkCopies);
                "fence.proxy.async.shared::cta"
            }
            Fence::MbarrierInit => {
                self.needs("fence.mbarrier_init", Version(8, 0), Feature::BulkCopies);
                "fence.mbarrier_init.release.cluster"
            }
        };
        self.write(text.to_string());
    }

    /// Increments a counter in device memory, which wraps to 0 after `last`; returns the value before. For semaphores:
    /// sums of floats do not use atomics, whose order is that of arrival.
    #[track_caller]
    pub fn atom_inc(&self, counter: Address<Global>, last: impl Operand<U32>) -> Reg<U32> {
        self.define(format_args!("atom.global.inc.u32"), &[counter.to_string(), last.text()])
    }

    /// Loads a flag that another block sets with [`Entry::st_release`]; earlier writes of that block are then visible.
    #[track_caller]
    pub fn ld_acquire(&self, flag: Address<Global>) -> Reg<U32> {
        self.define(format_args!("ld.acquire.gpu.global.u32"), &[flag.to_string()])
    }

    /// Sets a flag for other blocks.
    #[track_caller]
    pub fn st_release(&self, flag: Address<Global>, value: Reg<U32>) {
        self.write(format!("st.release.gpu.global.u32 {flag}, {value}"));
    }

    /// Initializes the 8 bytes at `barrier` as an mbarrier whose phases complete after `arrivals` arrivals.
    #[track_caller]
    pub fn mbarrier_init(&self, barrier: Address<Shared>, arrivals: u32) {
        self.write(format!("mbarrier.init.shared::cta.b64 {barrier}, {arrivals}"));
        self.needs("mbarrier.init.shared::cta", Version(7, 8), Feature::Mbarriers);
    }

    /// Arrives at an mbarrier.
    #[track_caller]
    pub fn mbarrier_arrive(&self, barrier: Address<Shared>) {
        self.needs("mbarrier.arrive", Version(8, 0), Feature::MbarrierBytes);
        let state = self.fresh::<U64>();
        self.write(format!("mbarrier.arrive.shared::cta.b64 {state}, {barrier}"));
    }

    /// Arrives at the mbarrier that is at this place of the shared memory of the cluster's block `rank`. Two instructions.
    ///
    /// Its scope is the own block, since a release to the cluster is assembled to a `MEMBAR` of the device: for another
    /// block it orders finished asynchronous operations, and no accesses of threads.
    #[track_caller]
    pub fn mbarrier_arrive_at(&self, barrier: Address<Shared>, rank: impl Operand<U32>) {
        self.needs("mbarrier.arrive.shared::cluster", Version(8, 0), Feature::BulkCopies);
        let Address { pointer, bytes } = barrier;
        let parts = [pointer.register.text(), rank.text()];
        let remote = Ptr::<Shared>::new(self.define(format_args!("mapa.shared::cluster.u32"), &parts)).at(bytes);
        self.write(format!("mbarrier.arrive.shared::cluster.b64 _, {remote}"));
    }

    /// Waits for all threads of the cluster, whose writes to memory are then visible to all of them. Two instructions.
    #[track_caller]
    pub fn cluster_sync(&self) {
        self.needs("barrier.cluster", Version(7, 8), Feature::BulkCopies);
        self.write("barrier.cluster.arrive.release.aligned".to_string());
        self.write("barrier.cluster.wait.acquire.aligned".to_string());
    }

    /// Arrives at an mbarrier and adds `bytes` bytes of bulk copies to those that its phase expects.
    #[track_caller]
    pub fn mbarrier_arrive_expect(&self, barrier: Address<Shared>, bytes: impl Operand<U32>) {
        self.needs("mbarrier.arrive.expect_tx", Version(8, 0), Feature::MbarrierBytes);
        let state = self.fresh::<U64>();
        self.write(format!("mbarrier.arrive.expect_tx.shared::cta.b64 {state}, {barrier}, {}", bytes.text()));
    }

    /// Whether the phase of the given parity is complete; suspends the thread for a limited time.
    #[track_caller]
    pub fn mbarrier_try_wait(&self, barrier: Address<Shared>, parity: impl Operand<U32>) -> Reg<Pred> {
        self.needs("mbarrier.try_wait", Version(8, 0), Feature::MbarrierBytes);
        self.define(format_args!("mbarrier.try_wait.parity.shared::cta.b64"), &[barrier.to_string(), parity.text()])
    }

    /// Waits for the phase of the given parity: a loop of three instructions.
    #[track_caller]
    pub fn mbarrier_wait(&self, barrier: Address<Shared>, parity: impl Operand<U32>) {
        self.repeat_while(|| self.not(self.mbarrier_try_wait(barrier, parity)));
    }

    /// Raises the registers of the warpgroup's threads to `registers` each (a multiple of 8, 24 to 256); waits until
    /// they are free.
    #[track_caller]
    pub fn setmaxnreg_inc(&self, registers: u32) {
        self.setmaxnreg("inc", registers);
    }

    /// Lowers the registers of the warpgroup's threads to `registers` each (a multiple of 8, 24 to 256).
    #[track_caller]
    pub fn setmaxnreg_dec(&self, registers: u32) {
        self.setmaxnreg("dec", registers);
    }

    #[track_caller]
    fn setmaxnreg(&self, way: &str, registers: u32) {
        self.needs("setmaxnreg", Version(8, 0), Feature::RegisterTransfer);
        assert!(
            (24..=256).contains(&registers) && registers.is_multiple_of(8),
            "setmaxnreg {registers}; expected a multiple of 8 in 24..=256"
        );
        self.write(format!("setmaxnreg.{way}.sync.aligned.u32 {registers}"));
    }

    /// The address `slot` elements of `bytes` bytes after `first`, of mbarriers for example.
    #[track_caller]
    pub fn slot(&self, first: Ptr<Shared>, slot: Reg<U32>, bytes: u32) -> Ptr<Shared> {
        self.index(first, slot, bytes)
    }
}
