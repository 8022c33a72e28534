//! Support shared by the cross-crate tests.
