//! Writes y = a·x + y as PTX, prints the text, and runs it on the simulated GPU.
//!
//! ```console
//! $ cargo run -p ptx --example saxpy
//! ```

use ptx::sim::{Argument, Memory, Module, Options};
use ptx::{F32, Launch, Sm, Special, U32};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const THREADS: u32 = 128;
    let mut saxpy = ptx::Module::new(Sm::Sm80);
    saxpy.entry("saxpy", [THREADS, 1, 1], |k| {
        let (a, x, y) = (k.param::<F32>("a"), k.pointer_param("x"), k.pointer_param("y"));
        let n = k.param::<U32>("n");
        let (a, n) = (k.ld_param(a), k.ld_param(n));
        let (x, y) = (k.cvta_to_global(k.ld_param_pointer(x)), k.cvta_to_global(k.ld_param_pointer(y)));
        let i = k.mad_lo(k.special(Special::CtaidX), k.special(Special::NtidX), k.special(Special::TidX));
        k.if_(k.lt(i, n), || {
            let (x, y) = (k.index(x, i, 4).at(0), k.index(y, i, 4).at(0));
            let ([xi], [yi]) = (k.ld::<F32, 1>(x), k.ld::<F32, 1>(y));
            k.st(y, [k.fma(a, xi, yi)]);
        });
    });
    println!("{}", saxpy.listing());

    let n = 1000u32;
    let (x, y): (Vec<f32>, Vec<f32>) = (0..n).map(|i| (i as f32, 0.5)).unzip();
    let mut memory = Memory::new();
    let (x_at, y_at) = (memory.allocate_from("x", &x), memory.allocate_from("y", &y));
    let arguments = [Argument::F32(2.0), Argument::U64(x_at), Argument::U64(y_at), Argument::U32(n)];
    let launch = Launch { grid: [n.div_ceil(THREADS), 1, 1], block: [THREADS, 1, 1], shared_bytes: 0 };
    let report = Module::parse(&saxpy.text())?.launch("saxpy", launch, &arguments, &mut memory, &Options::default())?;

    assert!(report.findings.is_empty(), "{:?}", report.findings);
    let result = memory.read::<f32>(y_at)?;
    assert!(result.iter().zip(&x).all(|(result, x)| *result == 2.0 * x + 0.5));
    println!(
        "y[{}] = {}; {} instructions of threads",
        n - 1,
        result[n as usize - 1],
        report.metrics.instructions.values().sum::<u64>()
    );
    Ok(())
}
