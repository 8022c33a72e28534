//! The code of `docs/new-kernel.md`, compiled, run and compared with the page.
//!
//! `the_page_shows_this_code` compares every block of the page with this file.

// [1] the definition
use kernels_proof::check::Real;

/// y = max(x, 0)². Generic over the arithmetic: f64 is the reference, f32 in this plain order is the naive one.
fn squared_relu<R: Real>(x: &[R]) -> Vec<R> {
    x.iter().map(|&x| x.max(R::of(0.0)) * x.max(R::of(0.0))).collect()
}

/// dx = dy · 2·max(x, 0)
fn squared_relu_backward<R: Real>(x: &[R], dy: &[R]) -> Vec<R> {
    x.iter().zip(dy).map(|(&x, &dy)| dy * (R::of(2.0) * x.max(R::of(0.0)))).collect()
}
// [end]

// [2] the kernel
use kernels::rows::Row;
use kernels::simd::{Element, Kernel, Simd};

/// One task: the same source for every instruction set and both storage types.
struct Forward<'a, X> {
    x: &'a [X],
    y: &'a mut [X],
}

impl<X: Element> Kernel for Forward<'_, X> {
    type Output = ();
    // Inlined into the function that enables the instructions; without it every vector operation is a call.
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        Row::new(simd, self.y.len()).map(
            [self.x],
            [self.y],
            #[inline(always)]
            |simd, [x]| {
                let positive = simd.max(simd.zero(), x);
                [simd.mul(positive, positive)]
            },
        );
    }
}
// [end]

// [3] the entry point
use kernels::Cpu;

/// y = max(x, 0)², `x` and `y` of one length.
///
/// # Panics
/// If the lengths differ.
fn forward<X: Element>(cpu: &Cpu, x: &[X], y: &mut [X]) {
    /// Elements per task. Cut by the shape, never by the number of threads: results cannot depend on it.
    const TASK: usize = 16 * 1024;
    assert_eq!(x.len(), y.len(), "squared_relu: x and y differ in length");
    let isa = cpu.isa();
    cpu.for_each_chunk(y, TASK, |i, y| isa.run(Forward { x: &x[i * TASK..][..y.len()], y }));
}
// [end]

// [4] the check
use kernels_proof::check::{
    Guarded, assert_same_for_any_thread_count, assert_within, store, testable_cpus, uniform, widen,
};

fn agrees_with_its_definition<X: Element>() {
    for cpu in testable_cpus() {
        let lanes = cpu.isa().lanes();
        for len in [0, 1, lanes - 1, lanes, lanes + 1, 97, 16 * 1024 + 3] {
            let x: Vec<X> = uniform(7, len, 3.0);
            let mut y = Guarded::<X>::poisoned(len); // NaN between marked bands
            forward(&cpu, &x, &mut y);
            let case = format!("squared_relu {} {} [{len}]", X::DTYPE, cpu.isa().kind());
            y.assert_intact(&case);
            assert_within(&case, "y", &y, &store(&squared_relu::<f32>(&widen(&x))), &squared_relu::<f64>(&widen(&x)));
        }
    }
}

#[test]
fn squared_relu_agrees_with_its_definition_on_every_instruction_set() {
    agrees_with_its_definition::<f32>();
    agrees_with_its_definition::<half::bf16>();
}

#[test]
fn squared_relu_is_bit_identical_for_any_thread_count() {
    let x: Vec<f32> = uniform(8, 100_003, 3.0);
    assert_same_for_any_thread_count(&"squared_relu", |cpu| {
        let mut y = vec![f32::NAN; x.len()];
        forward(cpu, &x, &mut y);
        y
    });
}

#[test]
fn the_definition_of_backward_is_the_slope_of_forward() {
    let (x, dy) = (widen::<f64, f32>(&uniform(9, 50, 3.0)), widen::<f64, f32>(&uniform(10, 50, 1.0)));
    let dx = squared_relu_backward(&x, &dy);
    for i in 0..x.len() {
        let loss = |step: f64| {
            let mut moved = x.clone();
            moved[i] += step;
            squared_relu(&moved).iter().zip(&dy).map(|(y, dy)| y * dy).sum::<f64>()
        };
        let slope = (loss(1e-5) - loss(-1e-5)) / 2e-5;
        assert!((slope - dx[i]).abs() < 1e-6, "x[{i}] = {}: {} but the slope is {slope}", x[i], dx[i]);
    }
}
// [end]

#[test]
fn the_page_shows_this_code() {
    let (code, page) = (include_str!("new_kernel.rs"), include_str!("../../docs/new-kernel.md"));
    let mut blocks = 0;
    for block in page.split("```rust\n").skip(1) {
        let block = block.split("```").next().expect("split gives at least one part");
        assert!(code.contains(block), "docs/new-kernel.md shows code that this file does not have:\n{block}");
        blocks += 1;
    }
    let sections = code.matches("\n// [end]\n").count();
    assert_eq!(blocks, sections, "docs/new-kernel.md shows {blocks} blocks, this file has {sections} sections");
}
