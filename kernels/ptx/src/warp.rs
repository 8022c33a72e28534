//! Communication between the lanes of a warp: shuffles, votes, election.

use super::{Entry, F32, Feature, Operand, Pred, Reg, Type, U32, Version};

/// All lanes of a warp.
const ALL: &str = "0xFFFFFFFF";

/// Source lane of a shuffle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// The lane whose index is this one's with these bits flipped: pairs exchange.
    Xor(u32),
    /// The lane so many below; the lowest keep their own.
    Below(u32),
    /// The lane so many above; the highest keep their own.
    Above(u32),
    /// The same lane for all.
    Number(u32),
}

/// A commutative function of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fold {
    /// a + b
    Sum,
    /// The larger.
    Max,
}

impl Entry {
    /// The register of another lane: `shfl.sync`. Every lane of the warp takes part.
    #[track_caller]
    pub fn shfl<T: Type>(&self, value: Reg<T>, from: Lane) -> Reg<T> {
        const { assert!(T::BYTES == 4, "a shuffle moves 32 bits") };
        let (mode, by, clamp) = match from {
            Lane::Xor(bits) => ("bfly", bits, 31),
            Lane::Below(lanes) => ("up", lanes, 0),
            Lane::Above(lanes) => ("down", lanes, 31),
            Lane::Number(lane) => ("idx", lane, 31),
        };
        self.define(
            format_args!("shfl.sync.{mode}.b32"),
            &[value.text(), by.to_string(), clamp.to_string(), ALL.to_string()],
        )
    }

    /// The register of lane `lane`, which may differ between lanes.
    #[track_caller]
    pub fn shfl_from<T: Type>(&self, value: Reg<T>, lane: Reg<U32>) -> Reg<T> {
        const { assert!(T::BYTES == 4, "a shuffle moves 32 bits") };
        self.define(format_args!("shfl.sync.idx.b32"), &[value.text(), lane.text(), "31".to_string(), ALL.to_string()])
    }

    /// The fold of `value` over groups of `lanes` adjacent lanes (a power of two), in each of them: two instructions
    /// for each doubling. A butterfly, so that all lanes compute the same sum in the same order.
    #[track_caller]
    pub fn fold_lanes(&self, value: Reg<F32>, lanes: u32, fold: Fold) -> Reg<F32> {
        assert!(lanes.is_power_of_two() && lanes <= 32, "fold over {lanes} lanes; expected a power of two up to 32");
        let mut result = value;
        let mut distance = lanes / 2;
        while distance > 0 {
            let other = self.shfl(result, Lane::Xor(distance));
            result = match fold {
                Fold::Sum => self.add(result, other),
                Fold::Max => self.max(result, other),
            };
            distance /= 2;
        }
        result
    }

    /// Whether the condition holds in any lane of the warp.
    #[track_caller]
    pub fn any(&self, condition: Reg<Pred>) -> Reg<Pred> {
        self.define(format_args!("vote.sync.any.pred"), &[condition.text(), ALL.to_string()])
    }

    /// Whether the condition holds in all lanes of the warp.
    #[track_caller]
    pub fn all(&self, condition: Reg<Pred>) -> Reg<Pred> {
        self.define(format_args!("vote.sync.all.pred"), &[condition.text(), ALL.to_string()])
    }

    /// The lanes in which the condition holds, one bit each.
    #[track_caller]
    pub fn ballot(&self, condition: Reg<Pred>) -> Reg<U32> {
        self.define(format_args!("vote.sync.ballot.b32"), &[condition.text(), ALL.to_string()])
    }

    /// True in exactly one lane of the warp, which lets the driver's assembler assume a uniform branch.
    #[track_caller]
    pub fn elect(&self) -> Reg<Pred> {
        self.needs("elect.sync", Version(8, 0), Feature::Elect);
        let elected = self.fresh::<Pred>();
        let lane = self.fresh::<U32>();
        self.write(format!("elect.sync {lane}|{elected}, {ALL}"));
        elected
    }

    /// Waits for all lanes of the warp, whose writes to memory are then visible to all of them.
    #[track_caller]
    pub fn warp_sync(&self) {
        self.write(format!("bar.warp.sync {ALL}"));
    }
}
