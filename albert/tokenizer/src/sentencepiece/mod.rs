//! The SentencePiece format and its text rules.
//!
//! | file            | content                                               |
//! |-----------------|-------------------------------------------------------|
//! | `proto.rs`      | `ModelProto`, with unknown fields preserved           |
//! | `charsmap.rs`   | the precompiled rules: a double-array trie            |
//! | `normalizer.rs` | Google's `preprocess_text` and the model's normalizer |

mod charsmap;
mod normalizer;
mod proto;

pub(super) use charsmap::Charsmap;
pub(super) use normalizer::Normalizer;
pub(super) use proto::ModelProto;
