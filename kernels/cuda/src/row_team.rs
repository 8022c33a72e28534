//! Reductions over a row by the warps of a block that share it, on the GPU.

use ptx::{Compare, Entry, F32, Fold, Lane, Ptr, Reg, Shared, Special, U32};

/// Threads in a block.
pub(crate) const THREADS: u32 = 256;

/// Warps of a block of [`THREADS`] threads that share a row.
pub(crate) struct Team {
    warps: u32,
    /// Index of the row in the block.
    pub(crate) within: Reg<U32>,
    /// Index of the thread among those of the row.
    pub(crate) position: Reg<U32>,
    /// Shared memory for a float and an integer of each warp.
    exchange: Option<Ptr<Shared>>,
}

impl Team {
    pub(crate) fn find(k: &Entry, warps: u32) -> Self {
        let thread = k.special(Special::TidX);
        let exchange = (warps > 1).then(|| k.shared_array("exchange", THREADS / 32 * 8, 8));
        let threads = 32 * warps;
        Self { warps, within: k.shr(thread, threads.ilog2()), position: k.and(thread, threads - 1), exchange }
    }

    /// Maximum of two values with its position; the lower position if they are equal.
    fn greater(k: &Entry, a: (Reg<F32>, Reg<U32>), b: (Reg<F32>, Reg<U32>)) -> (Reg<F32>, Reg<U32>) {
        let more = k.setp(Compare::Gt, b.0, a.0);
        let equal = k.and(k.setp(Compare::Eq, b.0, a.0), k.lt(b.1, a.1));
        (k.max_nan(a.0, b.0), k.selp(b.1, a.1, k.or(more, equal)))
    }

    /// Maximum over all threads and its first position, in every thread.
    pub(crate) fn argmax(&self, k: &Entry, value: Reg<F32>, place: Reg<U32>) -> (Reg<F32>, Reg<U32>) {
        let mut best = (value, place);
        for distance in [16, 8, 4, 2, 1] {
            let other = (k.shfl(best.0, Lane::Xor(distance)), k.shfl(best.1, Lane::Xor(distance)));
            best = Self::greater(k, best, other);
        }
        let Some(exchange) = self.exchange else { return best };
        self.leave(k, exchange, || (best.0, Some(best.1)));
        let of = |warp: u32| {
            let at = exchange.at(8 * warp as i32);
            (k.ld::<F32, 1>(at)[0], k.ld::<U32, 1>(at.plus(4))[0])
        };
        (1..self.warps).fold(of(0), |best, warp| Self::greater(k, best, of(warp)))
    }

    /// Sum or maximum over all threads, in every thread.
    pub(crate) fn fold(&self, k: &Entry, value: Reg<F32>, fold: Fold) -> Reg<F32> {
        let value = k.fold_lanes(value, 32, fold);
        let Some(exchange) = self.exchange else { return value };
        self.leave(k, exchange, || (value, None));
        let of = |warp: u32| k.ld::<F32, 1>(exchange.at(8 * warp as i32))[0];
        (1..self.warps).fold(of(0), |value, warp| match fold {
            Fold::Sum => k.add(value, of(warp)),
            Fold::Max => k.max(value, of(warp)),
        })
    }

    /// Stores the values of each warp's first lane; a barrier before (the last exchange has been read) and one after.
    fn leave(&self, k: &Entry, exchange: Ptr<Shared>, values: impl FnOnce() -> (Reg<F32>, Option<Reg<U32>>)) {
        k.bar_sync();
        let lane = k.and(self.position, 31u32);
        k.if_(k.setp(Compare::Eq, lane, 0u32), || {
            let at = k.index(exchange, k.shr(self.position, 5), 8u32).at(0);
            let (value, place) = values();
            k.st(at, [value]);
            if let Some(place) = place {
                k.st(at.plus(4), [place]);
            }
        });
        k.bar_sync();
    }
}
