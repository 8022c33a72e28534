//! Views that strong stores have published, and views that a narrow scope withheld.

use super::{Released, View};
use crate::sim::isa::Scope;

/// Maximum number of blocks whose own views are kept for an address. Only kernels with narrow scopes on global memory need any.
const NEAR: usize = 16;

/// Views that strong stores to an address have published.
#[derive(Debug)]
pub(crate) struct Published {
    /// Block, scope and instruction of the last store.
    pub(crate) writer: u32,
    pub(crate) scope: Scope,
    pub(crate) pc: u32,
    /// Timeline and lane of the only thread whose stores have published; `None` if there are several.
    pub(crate) only: Option<(u32, usize)>,
    /// For threads of the same block only, by block.
    pub(crate) near: Vec<(u32, View)>,
    /// For threads of all blocks.
    pub(crate) far: Option<View>,
    /// An instruction whose scope excluded its view from `far`.
    pub(crate) narrow: Option<u32>,
}

impl Published {
    pub(crate) fn near(&self, block: u32) -> Option<&View> {
        self.near.iter().find(|(known, _)| *known == block).map(|(_, view)| view)
    }

    pub(crate) fn add(&mut self, block: u32, released: Released) {
        if let Some(near) = released.near {
            match self.near.iter_mut().find(|(known, _)| *known == block) {
                Some((_, view)) => view.join(&near),
                None => {
                    self.near.truncate(NEAR - 1);
                    self.near.insert(0, (block, near));
                }
            }
        }
        match (&mut self.far, released.far) {
            (Some(far), Some(more)) => far.join(&more),
            (far @ None, more) => *far = more,
            _ => {}
        }
        self.narrow = released.narrow.or(self.narrow);
    }
}

/// Views that threads of a block would have acquired if an instruction's scope were wider.
#[derive(Debug, Default)]
pub(crate) struct Withheld(pub(crate) Vec<(u32, View)>);

impl Withheld {
    /// Instructions that are remembered.
    const MOST: usize = 8;

    pub(crate) fn note(&mut self, pc: u32, view: &View) {
        if let Some((_, all)) = self.0.iter_mut().find(|(known, _)| *known == pc) {
            all.join(view);
        } else if self.0.len() < Self::MOST {
            self.0.push((pc, view.clone()));
        }
    }
}
