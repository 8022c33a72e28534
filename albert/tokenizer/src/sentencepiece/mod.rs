//! The SentencePiece format and its text rules.
//!
//! | file            | what                                                   |
//! |-----------------|--------------------------------------------------------|
//! | `proto.rs`      | `ModelProto`, what it says and everything else kept    |
//! | `charsmap.rs`   | the precompiled rules: a double-array trie             |
//! | `normalizer.rs` | Google's `preprocess_text` and the model's normalizer  |

mod charsmap;
mod normalizer;
mod proto;

pub(super) use charsmap::Charsmap;
pub(super) use normalizer::Normalizer;
pub(super) use proto::ModelProto;
