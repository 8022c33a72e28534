//! The processes that train one model together: where gradients meet.
//!
//! ```text
//! rank 0   backward ──> gradients ─┐
//! rank 1   backward ──> gradients ─┼─ all_reduce: the sum, the same bits in every rank ──> clip, update
//! ...                              ┘
//! ```
//!
//! The gradients of all parameters are one buffer ([`Gradients`]), so they are summed in one call. Today a run is one
//! rank; pre-training and fine-tuning call it all the same, in the one function that updates parameters.

use crate::{error::Result, param::Gradients};

/// This process among those that train together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Communicator {
    /// It trains alone.
    #[default]
    Alone,
}

impl Communicator {
    /// The number of this process, from 0.
    pub fn rank(self) -> usize {
        match self {
            Self::Alone => 0,
        }
    }

    /// The number of processes.
    pub fn size(self) -> usize {
        match self {
            Self::Alone => 1,
        }
    }

    /// Replaces the gradients of every rank by their sum, added in the order of ranks.
    ///
    /// # Errors
    /// A rank is gone, or a device failed; never with one rank.
    pub fn all_reduce(self, gradients: &mut Gradients) -> Result<()> {
        match self {
            // The sum of one is itself.
            Self::Alone => {
                let _ = gradients;
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cpu, Device, Init, Isa, ParamBuilder};

    #[test]
    fn one_rank_keeps_its_gradients_to_the_bit() {
        let mut builder = ParamBuilder::new();
        builder.add("w", [3, 5], Init::Zeros).unwrap();
        let cpu = Cpu::new(Isa::choose().unwrap(), 1).unwrap();
        let mut gradients = builder.build(&cpu, 0).unwrap().gradients(&Device::Cpu(cpu)).unwrap();
        gradients.all_mut().iter_mut().zip(0..).for_each(|(x, i)| *x = i as f32 - 0.1);
        let before: Vec<u32> = gradients.all().iter().map(|x| x.to_bits()).collect();
        let alone = Communicator::default();
        alone.all_reduce(&mut gradients).unwrap();
        assert!(gradients.all().iter().map(|x| x.to_bits()).eq(before));
        assert_eq!((alone.rank(), alone.size()), (0, 1));
    }
}
