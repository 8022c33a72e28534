//! The feed-forward part of a layer, computed in blocks of rows.

use crate::check::uniform;
use half::bf16;
use kernels::Cpu;
use kernels::activation::Activation;
use kernels::gemm::{Epilogue, FeedForward, Gemm, Layout, PackedB, Precision, feed_forward, gemm_packed};
use kernels::simd::Isa;
use kernels::tiles::Tiles;

#[test]
fn blocks_of_rows_give_the_bits_of_two_products() {
    let (m, h, n) = (77, 40, 100);
    let isa = Isa::choose().unwrap();
    for (tiles, threads) in Tiles::testable(isa).into_iter().flat_map(|tiles| [(tiles.kind(), 1), (tiles.kind(), 3)]) {
        let cpu = Cpu::new(isa, threads).unwrap().with_tiles(tiles).unwrap();
        let [x, residual] = [1, 2].map(|seed| uniform::<bf16>(seed, m * h, 0.5));
        let biases = [(n, 3), (h, 4)].map(|(len, seed)| uniform::<f32>(seed, len, 0.5));
        let [w1, w2] = [(h, n, 5), (n, h, 6)].map(|(k, n, seed)| {
            let mut packed = PackedB::with_precision(isa, Precision::Bf16, k, n);
            packed.pack(&cpu, Layout::Transposed, k, &uniform::<bf16>(seed, k * n, 0.5));
            packed
        });
        let run = |block: Option<usize>, has_pre: bool, has_residual: bool| {
            let [mut pre, mut inner] = [(); 2].map(|()| vec![bf16::ZERO; m * n]);
            let mut y = vec![bf16::ZERO; m * h];
            let residual = has_residual.then_some(&residual[..]);
            let activation = Activation::GeluTanh;
            match block {
                Some(block) => feed_forward(
                    &cpu,
                    block,
                    FeedForward {
                        precision: Precision::Bf16,
                        sizes: [m, h, n],
                        x: &x,
                        weights: [&w1, &w2],
                        biases: [&biases[0], &biases[1]],
                        activation,
                        pre: has_pre.then_some(&mut pre[..]),
                        inner: &mut inner,
                        residual,
                        y: &mut y,
                    },
                ),
                None => {
                    let spec = Gemm::nt(m, n, h).with_precision(Precision::Bf16);
                    let pre = has_pre.then_some(&mut pre[..]);
                    let epilogue = Epilogue::bias_activation(&biases[0][..], activation, pre);
                    gemm_packed(&cpu, &spec, &x, &w1, &mut inner, epilogue);
                    let spec = Gemm::nt(m, h, n).with_precision(Precision::Bf16);
                    let epilogue = match residual {
                        Some(_) => Epilogue::bias_dropout_residual(&biases[1][..], None, residual),
                        None => Epilogue::bias(&biases[1][..]),
                    };
                    gemm_packed(&cpu, &spec, &inner, &w2, &mut y, epilogue);
                }
            }
            [pre, inner, y].concat().into_iter().map(bf16::to_bits).collect::<Vec<_>>()
        };
        for (has_pre, has_residual) in [(false, false), (true, false), (true, true)] {
            let wanted = run(None, has_pre, has_residual);
            for block in [1, 32, 64, 100] {
                let got = run(Some(block), has_pre, has_residual);
                assert!(got == wanted, "{tiles}, {threads} threads, blocks of {block}");
            }
        }
    }
}
