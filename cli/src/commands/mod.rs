//! One module a command: its arguments, what it asks of the library, what it prints.

pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod data;
pub(crate) mod doctor;
pub(crate) mod embed;
pub(crate) mod fill_mask;
pub(crate) mod forward;
pub(crate) mod info;
pub(crate) mod kernels;
pub(crate) mod pretrain;
pub(crate) mod quickstart;
pub(crate) mod tokenizer;
