//! Weight sharing between layers.
//!
//! ```text
//! layer        0      1      2      3          group of layer i, G groups: ⌊i·G/N⌋ (integers, no rounding trap)
//! all          a0 f0  a0 f0  a0 f0  a0 f0      a = a set of attention weights, f = a set of feed-forward weights,
//! groups-2     a0 f0  a0 f0  a1 f1  a1 f1      each with the LayerNorm that follows it
//! attention    a0 f0  a0 f1  a0 f2  a0 f3
//! ffn          a0 f0  a1 f0  a2 f0  a3 f0
//! none         a0 f0  a1 f1  a2 f2  a3 f3
//! ```
//!
//! With `inner_group_num` = J a layer runs the J blocks of its group one after another, so a set is named by (group,
//! inner). The five strategies are those of table 4 of the paper; the released code can express all but `attention`
//! and `ffn`. Those two are stored as N groups in which every layer has a copy of the shared half, so that programs
//! without support for them compute the same function.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Assignment of weights to layers. Written `all`, `attention`, `ffn`, `none` or `groups-G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Sharing {
    /// One set of weights for all layers: ALBERT as published.
    All,
    /// One set of attention weights; every layer has its own feed-forward network.
    Attention,
    /// One feed-forward network; every layer has its own attention weights.
    Ffn,
    /// Every layer has its own weights: BERT.
    None,
    /// G runs of consecutive layers with one set of weights each (`num_hidden_groups`).
    Groups(usize),
}

/// A set of weights, by the indices in tensor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// `albert_layer_groups.{group}`.
    pub group: usize,
    /// `albert_layers.{inner}`.
    pub inner: usize,
}

impl fmt::Display for BlockId {
    /// Prefix of the names of its parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "albert.encoder.albert_layer_groups.{}.albert_layers.{}", self.group, self.inner)
    }
}

/// One block of a forward pass: the weights of its two halves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The layer that the block belongs to, 0 to N - 1.
    pub layer: usize,
    /// The attention weights and the LayerNorm after them.
    pub attention: BlockId,
    /// The feed-forward weights and the LayerNorm after them.
    pub ffn: BlockId,
}

impl Sharing {
    /// Strategy for `num_hidden_groups` = `groups` and `layers` layers.
    pub fn from_groups(groups: usize, layers: usize) -> Self {
        match groups {
            1 => Self::All,
            g if g == layers => Self::None,
            g => Self::Groups(g),
        }
    }

    /// Number of layer groups in the stored layout.
    pub fn groups(self, layers: usize) -> usize {
        match self {
            Self::All => 1,
            Self::Groups(groups) => groups,
            Self::Attention | Self::Ffn | Self::None => layers,
        }
    }

    /// Blocks of `layers` layers of `inner` blocks each, in execution order.
    pub(super) fn blocks(self, layers: usize, inner: usize) -> Vec<Block> {
        let groups = self.groups(layers);
        let run =
            |layer: usize| (0..inner).map(move |inner| (layer, BlockId { group: layer * groups / layers, inner }));
        (0..layers)
            .flat_map(run)
            .map(|(layer, own)| {
                let first = BlockId { group: 0, inner: own.inner };
                match self {
                    Self::Attention => Block { layer, attention: first, ffn: own },
                    Self::Ffn => Block { layer, attention: own, ffn: first },
                    Self::All | Self::None | Self::Groups(_) => Block { layer, attention: own, ffn: own },
                }
            })
            .collect()
    }
}

/// `ids` without repetitions, in the order of their first appearance.
pub(super) fn distinct(ids: impl Iterator<Item = BlockId>) -> Vec<BlockId> {
    let mut seen = HashSet::new();
    ids.filter(|&id| seen.insert(id)).collect()
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Attention => f.write_str("attention"),
            Self::Ffn => f.write_str("ffn"),
            Self::None => f.write_str("none"),
            Self::Groups(groups) => write!(f, "groups-{groups}"),
        }
    }
}

impl FromStr for Sharing {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => Ok(Self::All),
            "attention" => Ok(Self::Attention),
            "ffn" => Ok(Self::Ffn),
            "none" => Ok(Self::None),
            _ => {
                text.strip_prefix("groups-").and_then(|groups| groups.parse().ok()).map(Self::Groups).ok_or_else(|| {
                    format!(
                        "`sharing` is \"{text}\", expected all, attention, ffn, none or groups-G (such as groups-4)"
                    )
                })
            }
        }
    }
}

impl TryFrom<String> for Sharing {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Sharing> for String {
    fn from(sharing: Sharing) -> Self {
        sharing.to_string()
    }
}
