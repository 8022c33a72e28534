//! Roofline probes shared by the benches.
