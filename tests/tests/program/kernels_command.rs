//! `albert kernels`: list, PTX, and launches of PTX files on the simulated GPU.

use albert_tests::program::{Finished, run};
use serde_json::{Value, json};
use std::path::Path;

const DOUBLE: &str = "
.version 7.0
.target sm_80
.address_size 64
.visible .entry double(.param .u64 x, .param .u64 y, .param .u32 n) {
    .reg .pred %p; .reg .b32 %r<4>; .reg .b64 %d<5>; .reg .f32 %f<2>;
    ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.u32 %r0, [n];
    mov.u32 %r1, %tid.x;
    setp.ge.u32 %p, %r1, %r0;
    @%p ret;
    mul.wide.u32 %d2, %r1, 4; add.u64 %d3, %d0, %d2; add.u64 %d4, %d1, %d2;
    ld.global.f32 %f0, [%d3]; add.f32 %f1, %f0, %f0; st.global.f32 [%d4], %f1;
    ret;
}";

/// Launches `text` as described by `launch`, with additional arguments.
fn launch(folder: &Path, text: &str, launch: &Value, more: &str) -> Finished {
    std::fs::write(folder.join("kernel.ptx"), text).unwrap();
    std::fs::write(folder.join("launch.json"), launch.to_string()).unwrap();
    let folder = folder.display();
    run(&format!("kernels simulate {folder}/kernel.ptx --launch {folder}/launch.json {more}"))
}

/// Runs [`DOUBLE`] or another `text` on a buffer `x` of `n` elements.
fn simulate(folder: &Path, text: &str, x: &Value, n: u32, more: &str) -> Finished {
    let y = json!({"buffer": "y", "dtype": "f32", "shape": [8]});
    let [grid, block] = [[1, 1, 1], [32, 1, 1]];
    let description =
        json!({"entry": "double", "grid": grid, "block": block, "outputs": "out", "args": [x, y, {"u32": n}]});
    launch(folder, text, &description, more)
}

/// The buffer `x` of eight floats, with additional or changed keys.
fn x(more: Value) -> Value {
    let mut x = json!({"buffer": "x", "dtype": "f32", "shape": [8]});
    x.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    x
}

/// The elements of a NumPy file of floats.
fn floats(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    let header = usize::from(u16::from_le_bytes([bytes[8], bytes[9]]));
    bytes[10 + header..].chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

#[test]
fn every_kernel_of_the_list_has_a_text() {
    let list = run("kernels list --arch sm_80").succeeds();
    let names: Vec<&str> = list.stdout.lines().skip(1).map(|line| line.split_whitespace().next().unwrap()).collect();
    assert!(names.len() >= 20 && !list.stdout.contains("FLOPs"), "{}", list.stdout);
    let one = run(&format!("kernels list --arch sm_80 {}", names[0])).succeeds();
    assert!(one.stdout.contains("FLOPs") && one.stdout.contains(names[0]), "{}", one.stdout);
    for name in [names[0], names[names.len() - 1]] {
        let text = run(&format!("kernels ptx {name} --arch sm_80")).succeeds().stdout;
        assert!(text.starts_with(".version") && text.contains(".target sm_80"), "{name}: {text}");
        assert!(text.contains(&name.replace('-', "__").replace('.', "$")), "{name}: {text}");
    }
    run("kernels ptx activation").fails_with(&["kernel names start with `activation`; expected one of"]);
    run("kernels ptx nothing").fails_with(&["albert kernels list"]);
    run("kernels list --arch sm_70").fails_with(&["sm_70", "sm_80 or sm_90a"]);
}

#[test]
fn a_launch_writes_every_buffer_and_is_clean() {
    let folder = tempfile::tempdir().unwrap();
    for more in ["", "--schedule random --completion earliest --seed 5"] {
        let run = simulate(folder.path(), DOUBLE, &x(json!({"random": 3})), 8, more).succeeds();
        assert!(run.stdout.contains("clean") && run.stdout.contains("8 scalar"), "{}", run.stdout);
        let [x, y] = ["x", "y"].map(|name| floats(&folder.path().join("out").join(format!("{name}.npy"))));
        assert_eq!(x.len(), 8);
        assert!(x.iter().all(|x| x.abs() <= 1.0) && x.iter().any(|x| *x != 0.0), "{x:?}");
        assert_eq!(y, x.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    }
    // The outputs can be read.
    std::fs::copy(folder.path().join("out/y.npy"), folder.path().join("y.npy")).unwrap();
    let twice = floats(&folder.path().join("y.npy"));
    let run = simulate(folder.path(), DOUBLE, &x(json!({"from": "y.npy"})), 8, "--json").succeeds();
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!((&report["findings"], &report["metrics"]["scalar_flops"]), (&json!([]), &json!(8)), "{report}");
    assert_eq!(floats(&folder.path().join("out/y.npy")), twice.iter().map(|x| 2.0 * x).collect::<Vec<_>>());
}

#[test]
fn a_finding_is_exit_code_one_and_says_where() {
    let folder = tempfile::tempdir().unwrap();
    // Nine threads read eight elements.
    let run = simulate(folder.path(), DOUBLE, &x(json!({"fill": 1.5})), 9, "");
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stdout.contains("out of bounds") && run.stdout.contains("thread [8, 0, 0]"), "{}", run.stdout);
    let run = simulate(folder.path(), DOUBLE, &x(json!({})), 8, "--json");
    assert_eq!(run.code, Some(1), "{run:?}");
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["findings"][0]["kind"], "uninitialized", "{report}");
    assert_eq!(report["unwritten_bytes"]["x"], 32, "{report}");
}

#[test]
fn what_cannot_run_is_exit_code_two_and_says_why() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("text.npy"), "no NumPy file").unwrap();
    let filled = x(json!({"fill": 1}));
    for (from, to, x, expected) in [
        ("add.f32", "frob.f32", filled.clone(), "frob.f32"),
        ("double", "triple", filled, "double"),
        ("", "", x(json!({"from": "none.npy"})), "none.npy"),
        ("", "", x(json!({"from": "text.npy"})), "text.npy"),
        ("", "", json!({"buffer": "x", "shape": [8]}), "expected `dtype` and `shape`"),
        ("", "", x(json!({"dtype": "u8", "fill": 256})), "expected a value of type U8"),
        ("", "", x(json!({"buffer": "../x"})), "a name of letters"),
        ("", "", x(json!({"shape": [1u64 << 40]})), "too large"),
        ("", "", json!({"u32": 1}), "x"),
        ("", "", json!({"u31": 1}), "args[0]: unknown variant `u31`"),
        ("", "", json!({"buffer": "x", "color": 1}), "args[0]: unknown field `color`"),
        ("", "", json!({"tensor_map": "z", "box": [8]}), "no buffer has that name"),
    ] {
        let text = if from.is_empty() { DOUBLE.to_owned() } else { DOUBLE.replace(from, to) };
        simulate(folder.path(), &text, &x, 8, "").is_wrong_usage(&[expected]);
    }
}

#[test]
fn instructions_without_the_bits_of_the_device_are_counted_and_refused() {
    let folder = tempfile::tempdir().unwrap();
    let filled = x(json!({"fill": 1}));
    let of = |instruction: &str, target: &str, more: &str| {
        let text = DOUBLE.replace("add.f32 %f1, %f0, %f0", &format!("{instruction} %f1, %f0"));
        simulate(folder.path(), &text.replace("sm_80", target), &filled, 8, more)
    };
    let exact = of("ex2.approx.ftz.f32", "sm_90a", "--fidelity exact").succeeds().stdout;
    assert!(exact.contains("instructions of threads exact") && !exact.contains("approximate:"), "{exact}");
    let counted = of("ex2.approx.ftz.f32", "sm_80", "--fidelity").succeeds().stdout;
    assert!(counted.contains("8 unrecorded: ex2.approx.ftz.f32"), "{counted}");
    let json = of("sin.approx.f32", "sm_90a", "--fidelity --json").succeeds().stdout;
    let report: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(report["fidelity"]["others"], json!([["sin.approx.f32", "approximate", 8]]), "{report}");
    let expected = "`sin.approx.f32` is approximate on sm_90a and ran 8 times";
    of("sin.approx.f32", "sm_90a", "--fidelity exact").is_wrong_usage(&[expected]);
}

#[test]
fn the_course_shows_current_drawings() {
    for (drawing, file) in [
        ("tile avx2", include_str!("../../../docs/learn/tile-avx2.svg")),
        ("pipeline wide", include_str!("../../../docs/learn/pipeline-wide.svg")),
    ] {
        let svg = run(&format!("kernels draw {drawing}")).succeeds().stdout;
        let name = drawing.replace(' ', "-");
        assert!(svg == file, "docs/learn/{name}.svg is another drawing; write it with `albert kernels draw {drawing}`");
    }
}

/// Copies a tile of 4 x 8 floats, two rows and eight columns into a matrix of 6 x 16, to y.
const TILE: &str = "
.version 8.0
.target sm_90a
.address_size 64
.visible .entry tile(.param .align 64 .b8 map[128], .param .u64 y) {
    .reg .pred %p; .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .f32 %f<1>;
    .shared .align 128 .b8 tile_of_x[128];
    .shared .align 8 .b64 full;
    mov.u32 %r0, %tid.x; mov.u32 %r1, full; mov.u32 %r2, tile_of_x;
    setp.ne.u32 %p, %r0, 0;
    @%p bra WAIT;
    mbarrier.init.shared.b64 [%r1], 1;
    fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 128;
    mov.b64 %d0, map; cvta.param.u64 %d0, %d0; mov.u32 %r3, 8; mov.u32 %r4, 2;
    cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%d0, {%r3, %r4}], [%r1];
WAIT:
    bar.sync 0;
AGAIN:
    mbarrier.try_wait.parity.shared.b64 %p, [%r1], 0;
    @!%p bra AGAIN;
    shl.b32 %r5, %r0, 2; add.u32 %r6, %r2, %r5;
    ld.shared.f32 %f0, [%r6];
    ld.param.u64 %d1, [y]; cvt.u64.u32 %d2, %r5; add.u64 %d3, %d1, %d2;
    st.global.f32 [%d3], %f0;
    ret;
}";

#[test]
fn a_tensor_map_moves_the_tile_that_its_box_says() {
    let folder = tempfile::tempdir().unwrap();
    let x = json!({"tensor_map": "x", "dtype": "f32", "shape": [6, 16], "random": 1, "box": [8, 4], "swizzle": "none"});
    let y = json!({"buffer": "y", "dtype": "f32", "shape": [4, 8]});
    let [grid, block] = [[1, 1, 1], [32, 1, 1]];
    let description = json!({"entry": "tile", "grid": grid, "block": block, "outputs": ".", "args": [x, y]});
    launch(folder.path(), TILE, &description, "").succeeds();
    let [x, y] = ["x.npy", "y.npy"].map(|name| floats(&folder.path().join(name)));
    let expected = (2..6).flat_map(|row| &x[row * 16 + 8..][..8]).copied().collect::<Vec<_>>();
    assert_eq!(y, expected);
}
