//! Share of the FMA peak that GEMM reaches; peak and GEMM are measured interleaved.
//!
//!     cargo run --release -p albert-benches --example gemm_peak -- [threads 1,2] [forms nt,nn,tn] [m 512,2048,4096] [shape index,..] [seconds]
//!
//! The form `p` is nt with B packed in advance.

use albert_benches::beside_peak;
use clap::ValueEnum;
use kernels::{
    Cpu, Isa,
    gemm::{Epilogue, Gemm, Layout, PackedB, gemm, gemm_packed},
};
use measure::{
    cases::{BASE_SHAPES, Form},
    random,
};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let list = |i: usize, default: &str| -> Vec<String> {
        arguments.get(i).map_or(default, String::as_str).split(',').map(str::to_owned).collect()
    };
    let number = |text: &String| -> usize { text.parse().expect("a number") };
    let seconds: f64 = list(4, "0.3")[0].parse().expect("seconds");
    let isa = Isa::choose().expect("ALBERT_ISA");
    println!(
        "{:>7} {:>7} form {:>6} {:>6} {:>6} {:>9} {:>9}   share",
        "isa", "threads", "m", "n", "k", "GFLOP/s", "peak"
    );
    for threads in list(0, "1,2").iter().map(number) {
        let cpu = Cpu::new(isa, threads).expect("threads");
        for m in list(2, "512,2048,4096").iter().map(number) {
            for shape in list(3, "0,1,2,3,4,5,6").iter().map(number) {
                let (n, k) = BASE_SHAPES[shape];
                let (a, b, mut c) = (random(m * k, 1), random(k * n, 2), vec![1f32; m * n]);
                for name in list(1, "nt,nn,tn") {
                    let speed = if name == "p" {
                        let mut packed = PackedB::new(isa, k, n);
                        packed.pack(&cpu, Layout::Transposed, k, &b);
                        let spec = Gemm::nt(m, n, k);
                        let call = || cpu.enter(|| gemm_packed(&cpu, &spec, &a, &packed, &mut c, Epilogue::NONE));
                        beside_peak(&cpu, spec.flops(), seconds, call)
                    } else {
                        let spec = Form::from_str(&name, false).expect("a form: nn, nt, tn, tt or p").gemm(m, n, k);
                        let call = || cpu.enter(|| gemm(&cpu, &spec, &a, &b, &mut c, Epilogue::NONE));
                        beside_peak(&cpu, spec.flops(), seconds, call)
                    };
                    println!(
                        "{:>7} {threads:>7} {name:>4} {m:>6} {n:>6} {k:>6} {:>9.1} {:>9.1} {:>9.1}  {:>5.1} %  {:>5.1} %",
                        isa.kind(),
                        speed.wall / 1e9,
                        speed.processor / 1e9,
                        speed.peak / 1e9,
                        100.0 * speed.wall / speed.peak,
                        100.0 * speed.processor / speed.peak
                    );
                }
            }
        }
    }
}
