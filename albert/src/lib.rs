//! ALBERT: the model, its data, its training.
#![forbid(unsafe_code)]
