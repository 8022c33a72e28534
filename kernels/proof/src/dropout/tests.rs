use kernels::dropout::{BLOCK, Dropout};
use kernels::simd::{Isa, Kernel, Simd};

fn dropout() -> Dropout {
    Dropout { seed: 0x0123_4567_89ab_cdef, site: 42, rate: 0.1 }
}

/// Rates and their thresholds: rounded to the nearest of 256ths, but not to 0 or 1.
const THRESHOLDS: [(f32, u32); 11] = [
    (0.0, 0),
    (f32::MIN_POSITIVE, 1),
    (1e-9, 1),
    (0.1, 26),
    (0.15, 38),
    (0.3, 77),
    (0.5, 128),
    (0.75, 192),
    (0.998, 255),
    (0.999, 255),
    (1.0 - f32::EPSILON / 2.0, 255),
];

#[test]
fn rates_are_realized_in_256ths_and_kept_elements_scaled_by_the_realized_one() {
    for (rate, threshold) in THRESHOLDS {
        let mask = Dropout { rate, ..dropout() };
        assert_eq!(mask.threshold(), threshold, "rate {rate}");
        let kept = f64::from(256 - threshold) / 256.0;
        assert_eq!(mask.scale(), (1.0 / kept) as f32, "rate {rate}");
        let n = 1 << 16;
        let hits = (0..n).filter(|&i| mask.keeps(i as u64 / 256, i % 256)).count();
        let z = deviations(hits, n, kept);
        assert!(z.abs() < 4.0, "rate {rate}: {hits} of {n} kept, {z:.1} standard deviations off");
        assert_eq!(hits == n, threshold == 0, "rate {rate}");
    }
}

/// Standard deviations between `hits` and its mean, of `n` trials with probability `p`; 0 if there is none.
fn deviations(hits: usize, n: usize, p: f64) -> f64 {
    let variance = n as f64 * p * (1.0 - p);
    if variance == 0.0 { hits as f64 - n as f64 * p } else { (hits as f64 - n as f64 * p) / variance.sqrt() }
}

/// The share of 128 columns and of 64 rows; and, for two rates, all pairs of them: bytes of one word, words of one counter, counters, blocks.
#[test]
fn columns_and_rows_drop_their_share_and_any_two_are_uncorrelated() {
    for (rate, transposed) in [0.02, 0.1, 0.3, 0.5, 0.7].into_iter().flat_map(|rate| [(rate, false), (rate, true)]) {
        let mask = Dropout { seed: 5, site: 3, rate };
        let (count, length) = if transposed { (64, 8192) } else { (128, 8192) };
        let keeps = |i: usize, j: usize| if transposed { mask.keeps(i as u64, j) } else { mask.keeps(j as u64, i) };
        let bits = |i: usize| -> Vec<u64> {
            (0..length / 64).map(|w| (0..64).map(|b| u64::from(keeps(i, 64 * w + b)) << b).sum()).collect()
        };
        let all: Vec<Vec<u64>> = (0..count).map(bits).collect();
        let q = f64::from(256 - mask.threshold()) / 256.0;
        let ones = |words: &[u64]| words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
        for (i, words) in all.iter().enumerate() {
            let z = deviations(ones(words), length, q);
            assert!(z.abs() < 5.0, "rate {rate}, {i}, rows: {transposed}: {z:.1} standard deviations");
        }
        let paired = if [0.1, 0.5].contains(&rate) { count } else { 0 };
        // Standard deviations of a correlation are 1/√n: a sum of products of centered elements.
        for (i, j) in (0..paired).flat_map(|i| (0..i).map(move |j| (i, j))) {
            let both: usize = all[i].iter().zip(&all[j]).map(|(a, b)| (a & b).count_ones() as usize).sum();
            let n = length as f64;
            let covariance = both as f64 - q * (ones(&all[i]) + ones(&all[j])) as f64 + n * q * q;
            let z = covariance / (n.sqrt() * q * (1.0 - q));
            assert!(z.abs() < 5.0, "rate {rate}, {i} and {j}, rows: {transposed}: {z:.1} standard deviations");
        }
    }
}

#[test]
fn seeds_sites_and_high_rows_give_different_masks() {
    let mask = |d: Dropout, row: u64| (0..256).map(|c| d.keeps(row, c)).collect::<Vec<_>>();
    let d = Dropout { rate: 0.5, ..dropout() };
    let others = [
        mask(Dropout { seed: d.seed + 1, ..d }, 0),
        mask(Dropout { seed: d.seed ^ 1 << 40, ..d }, 0),
        mask(Dropout { site: d.site + 1, ..d }, 0),
        mask(Dropout { site: d.site ^ 1 << 40, ..d }, 0),
        mask(d, 1),
        mask(d, 1 << 33),
    ];
    for (i, a) in others.iter().enumerate() {
        assert_ne!(&mask(d, 0), a, "{i}");
        assert!(others[..i].iter().all(|b| a != b), "{i}");
    }
}

/// Multipliers of one row from `block` at every block.
struct ByBlocks {
    dropout: Dropout,
    row: u64,
    blocks: Vec<f32>,
}

impl Kernel for &mut ByBlocks {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for (block, out) in self.blocks.chunks_mut(BLOCK).enumerate() {
            let mut multipliers = [f32::NAN; BLOCK];
            self.dropout.block(simd, self.row, block, &mut multipliers);
            out.copy_from_slice(&multipliers);
        }
    }
}

#[test]
fn blocks_give_the_mask_of_single_elements() {
    for isa in Isa::testable() {
        for (rate, _) in THRESHOLDS {
            let (n, row, dropout) = (8 * BLOCK, (5 << 32) + 3, Dropout { rate, ..dropout() });
            let mut kernel = ByBlocks { dropout, row, blocks: vec![f32::NAN; n] };
            isa.run(&mut kernel);
            for column in 0..n {
                let expected = if dropout.keeps(row, column) { dropout.scale() } else { 0.0 };
                assert_eq!(kernel.blocks[column], expected, "{}, rate {rate}, column {column}", isa.kind());
            }
        }
    }
}
