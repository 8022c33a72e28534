//! A kernel that reverses 64 elements through shared memory, first without the barrier that it needs, then with it. The
//! text is hand-written: the simulator needs only PTX.
//!
//! ```console
//! $ cargo run -p ptx --example race
//! ```

use ptx::Launch;
use ptx::sim::{Argument, Memory, Module, Options};

const REVERSE: &str = r#"
.version 7.4
.target sm_80
.address_size 64
.visible .entry reverse(.param .u64 x, .param .u64 y)
{
    .reg .b32 %r<4>;
    .reg .b64 %d<6>;
    .reg .f32 %f<3>;
    .shared .align 4 .b8 tile[256];
    ld.param.u64 %d0, [x];
    ld.param.u64 %d1, [y];
    mov.u32 %r0, %tid.x;
    mul.wide.u32 %d2, %r0, 4;
    add.u64 %d3, %d0, %d2;
    ld.global.f32 %f0, [%d3];
    mov.u64 %d4, tile;
    add.u64 %d5, %d4, %d2;
    st.shared.f32 [%d5], %f0;
    // BARRIER
    sub.u32 %r1, 63, %r0;
    mul.wide.u32 %d3, %r1, 4;
    add.u64 %d5, %d4, %d3;
    ld.shared.f32 %f1, [%d5];
    add.u64 %d3, %d1, %d2;
    st.global.f32 [%d3], %f1;
    ret;
}
"#;

fn main() -> Result<(), ptx::sim::Error> {
    let x: Vec<f32> = (0..64).map(|i| i as f32).collect();
    let launch = Launch { grid: [1, 1, 1], block: [64, 1, 1], shared_bytes: 0 };
    for (name, text) in
        [("without a barrier", REVERSE.to_string()), ("with bar.sync 0", REVERSE.replace("// BARRIER", "bar.sync 0;"))]
    {
        let mut memory = Memory::new();
        let from = memory.allocate_from("x", &x);
        let to = memory.allocate_from("y", &[0.0f32; 64]);
        let arguments = [Argument::U64(from), Argument::U64(to)];
        let report = Module::parse(&text)?.launch("reverse", launch, &arguments, &mut memory, &Options::default())?;
        println!("{name}: {} findings, y = {:?} ..", report.findings.len(), &memory.read::<f32>(to)?[..4]);
        for finding in &report.findings {
            println!("  {finding}");
        }
    }
    Ok(())
}
