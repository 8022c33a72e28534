use super::{BLOCK, Dropout, apply};
use crate::check::*;
use crate::simd::{Isa, Kernel, Simd};

fn dropout() -> Dropout {
    Dropout { seed: 0x0123_4567_89ab_cdef, site: 42, rate: 0.1 }
}

#[test]
fn is_bit_identical_for_any_thread_count() {
    let x = uniform::<f32>(3, 301 * 131, 1.0);
    assert_same_for_any_thread_count(&"[301, 131]", |cpu| {
        let mut y = vec![f32::NAN; x.len()];
        apply(cpu, &dropout(), 131, &x, &mut y);
        y
    });
}

#[test]
fn drops_its_share_of_every_row_and_column_and_of_neighbors_alike() {
    let (rows, columns, rate) = (512usize, 512usize, 0.3f32);
    let mask = Dropout { seed: 9, site: 1, rate };
    let kept: Vec<bool> = (0..rows * columns).map(|i| mask.keeps((i / columns) as u64, i % columns)).collect();
    let deviations = |hits: usize, n: usize, p: f64| (hits as f64 - n as f64 * p) / (n as f64 * p * (1.0 - p)).sqrt();
    let q = 1.0 - f64::from(rate);
    for r in 0..rows {
        let row = kept[r * columns..][..columns].iter().filter(|&&k| k).count();
        let column = (0..rows).filter(|i| kept[i * columns + r]).count();
        for (what, hits) in [("row", row), ("column", column)] {
            let z = deviations(hits, columns, q);
            assert!(z.abs() < 5.0, "{what} {r}: {hits} of {columns} kept, {z:.1} standard deviations off");
        }
    }
    for distance in [1, 16, 64, columns] {
        let n = kept.len() - distance;
        let both = (0..n).filter(|&i| kept[i] && kept[i + distance]).count();
        let z = deviations(both, n, q * q);
        assert!(z.abs() < 5.0, "distance {distance}: {both} of {n} pairs kept, {z:.1} standard deviations off");
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

/// Multipliers of one row from `lanes` at every column and from `block` at every block.
struct ByLanes {
    dropout: Dropout,
    row: u64,
    lanes: Vec<f32>,
    blocks: Vec<f32>,
}

impl Kernel for &mut ByLanes {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        for column in (0..self.lanes.len()).step_by(S::LANES) {
            simd.store(&mut self.lanes[column..], self.dropout.lanes(simd, self.row, column));
        }
        for (block, out) in self.blocks.chunks_mut(BLOCK).enumerate() {
            let mut multipliers = [f32::NAN; BLOCK];
            self.dropout.block(simd, self.row, block, &mut multipliers);
            out.copy_from_slice(&multipliers);
        }
    }
}

#[test]
fn lanes_and_blocks_give_the_mask_of_single_elements() {
    for isa in Isa::testable() {
        let (n, row) = (4 * BLOCK, (5 << 32) + 3);
        let mut kernel = ByLanes { dropout: dropout(), row, lanes: vec![f32::NAN; n], blocks: vec![f32::NAN; n] };
        isa.run(&mut kernel);
        for column in 0..n {
            let expected = if dropout().keeps(row, column) { dropout().scale() } else { 0.0 };
            assert_eq!(kernel.lanes[column], expected, "{} column {column}", isa.kind());
            assert_eq!(kernel.blocks[column], expected, "{} column {column}", isa.kind());
        }
    }
}

#[test]
fn rate_zero_keeps_everything() {
    let x = uniform::<f32>(1, 100, 1.0);
    let mut y = vec![f32::NAN; 100];
    apply(&testable_cpus()[0], &Dropout { rate: 0.0, ..dropout() }, 10, &x, &mut y);
    assert_eq!(x, y);
}
