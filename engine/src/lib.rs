//! Tensors, memory, devices and gradients; knows nothing of ALBERT.
