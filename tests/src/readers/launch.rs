//! Launch files of `albert kernels simulate`: read, prepared, and run on the simulated GPU, with the NumPy files that they name.

use crate::npy;
use description::{Description, Prepared};
use ptx::sim::{Limits, Module, Options};
use std::path::Path;

// The program has no library, so its module is also compiled here, through a link; its output functions are not used.
#[allow(dead_code)]
mod description;

const COPY: &str = ".version 7.4\n.target sm_80\n.entry copy(.param .u64 x, .param .u64 y, .param .u32 n, .param .f32 s, \
    .param .align 64 .b8 m[128])\n{\n.reg .b64 %d<4>; .reg .b32 %r<4>;\nld.param.u64 %d0, [x]; ld.param.u64 %d1, [y];\n\
    ld.param.u32 %r0, [n]; mov.u32 %r1, %tid.x; mad.wide.u32 %d2, %r1, 4, %d0; ld.global.u32 %r2, [%d2];\n\
    mad.wide.u32 %d3, %r1, 4, %d1; st.global.u32 [%d3], %r2; ret;\n}\n";

/// Runs a launch to its end.
pub(super) fn launch(bytes: &[u8]) -> bool {
    let limits = Limits { memory_bytes: 1 << 16, ..Limits::SMALL };
    let Ok(text) = std::str::from_utf8(bytes) else { return false };
    let Ok(description) = Description::parse(text) else { return false };
    let Ok(mut prepared) = Prepared::new(&description, Path::new("."), &limits) else { return false };
    let module = Module::parse_within(COPY, limits).expect("the module of the test is valid");
    let options = Options { max_instructions: 500, ..Options::default() };
    module.launch(&description.entry, description.launch(), &prepared.arguments, &mut prepared.memory, &options).is_ok()
}

pub(super) fn launch_seeds() -> Vec<Vec<u8>> {
    let launch = |arguments: &str| {
        format!(
            r#"{{"entry": "copy", "grid": [2, 1, 1], "block": [32, 1, 1], "shared_bytes": 64, "args": [{arguments}]}}"#
        )
        .into_bytes()
    };
    let scalars = r#"{"u32": 3}, {"f32": 0.5}"#;
    vec![
        launch(&format!(
            r#"{{"buffer": "x", "dtype": "f32", "shape": [4, 8], "random": 1}},
            {{"buffer": "y", "dtype": "u32", "shape": [32], "fill": 7}}, {scalars},
            {{"tensor_map": "x", "box": [8, 4], "strides": [32], "swizzle": "32B", "interleave": "none"}}"#
        )),
        launch(&format!(
            r#"{{"buffer": "x", "dtype": "bf16", "shape": [64], "fill": -1.5}}, {{"buffer": "x"}}, {scalars},
            {{"tensor_map": "z", "dtype": "u8", "shape": [2, 16], "random": 2, "box": [16, 2], "swizzle": "none"}}"#
        )),
        launch(r#"{"s32": -1}, {"u64": 18446744073709551615}, {"s64": -9223372036854775808}"#),
    ]
}

/// Reads an array of six floats.
pub(super) fn npy(mut bytes: &[u8]) -> bool {
    npy::read(&mut bytes, "<f4", 4, &[2, 3]).is_ok()
}

pub(super) fn npy_seeds() -> Vec<Vec<u8>> {
    let file = |descr: &str, shape: &[usize], bytes: usize| {
        let mut file = Vec::new();
        npy::write(&mut file, descr, shape, &vec![1; bytes]).expect("memory is writable");
        file
    };
    let mut version_2 = b"\x93NUMPY\x02\x00\x40\x00\x00\x00".to_vec();
    version_2.extend(format!("{:63}\n", "{\"shape\": (2, 3), \"descr\": \"<f4\", 'fortran_order': False}").bytes());
    version_2.extend([2; 24]);
    vec![file("<f4", &[2, 3], 24), file("<f4", &[2, 3], 23), file("|u1", &[5], 5), version_2]
}
