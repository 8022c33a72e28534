//! Bias and activation on CPUs, in one pass over the rows.

use super::Activation;
use crate::pool::Cpu;
use crate::rows::{Cached, Row, Rows, TASK, for_each_block, rows_per_task};
use crate::{
    Element,
    simd::{Kernel, Simd, compiled_here},
};
use std::marker::PhantomData;

compiled_here! {
    /// y = act(x + bias) for `x`, `y` [T, F], `bias` `[F]`; `pre` [T, F] receives x + bias if backward needs it.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn bias_activation_forward<X>(
        cpu: &Cpu,
        activation: Activation,
        x: &[X],
        bias: Option<&[f32]>,
        pre: Option<&mut [X]>,
        y: &mut [X],
    ) = bias_activation_forward_body;
}

fn bias_activation_forward_body<X: Element>(
    cpu: &Cpu,
    activation: Activation,
    x: &[X],
    bias: Option<&[f32]>,
    pre: Option<&mut [X]>,
    y: &mut [X],
) {
    assert_eq!(x.len(), y.len(), "activation: x and y differ in length");
    assert!(pre.as_ref().is_none_or(|pre| pre.len() == x.len()), "activation: x and pre differ in length");
    if x.is_empty() {
        return;
    }
    match activation {
        Activation::GeluTanh => forward_of::<X, GeluTanh>(cpu, x, bias, pre, y),
        Activation::GeluErf => forward_of::<X, GeluErf>(cpu, x, bias, pre, y),
        Activation::Relu => forward_of::<X, Relu>(cpu, x, bias, pre, y),
    }
}

compiled_here! {
    /// dx = dy · act'(pre), all of the same length.
    ///
    /// # Panics
    /// If lengths differ.
    pub fn backward<X>(cpu: &Cpu, activation: Activation, pre: &[X], dy: &[X], dx: &mut [X]) = backward_body;
}

fn backward_body<X: Element>(cpu: &Cpu, activation: Activation, pre: &[X], dy: &[X], dx: &mut [X]) {
    assert!(pre.len() == dy.len() && dy.len() == dx.len(), "activation: pre, dy and dx differ in length");
    match activation {
        Activation::GeluTanh => backward_of::<X, GeluTanh>(cpu, pre, dy, dx),
        Activation::GeluErf => backward_of::<X, GeluErf>(cpu, pre, dy, dx),
        Activation::Relu => backward_of::<X, Relu>(cpu, pre, dy, dx),
    }
}

/// Activation as a type, so that it is selected once per call and not once per vector.
trait Function: Copy + Send + Sync {
    const ACTIVATION: Activation;
}
#[derive(Clone, Copy)]
struct GeluTanh;
#[derive(Clone, Copy)]
struct GeluErf;
#[derive(Clone, Copy)]
struct Relu;
impl Function for GeluTanh {
    const ACTIVATION: Activation = Activation::GeluTanh;
}
impl Function for GeluErf {
    const ACTIVATION: Activation = Activation::GeluErf;
}
impl Function for Relu {
    const ACTIVATION: Activation = Activation::Relu;
}

fn forward_of<X: Element, F: Function>(cpu: &Cpu, x: &[X], bias: Option<&[f32]>, pre: Option<&mut [X]>, y: &mut [X]) {
    let isa = cpu.isa();
    // Without a bias the elements are independent: rows of any width will do.
    let width = bias.map_or(1, <[f32]>::len);
    assert!(width > 0 && x.len().is_multiple_of(width), "activation: {} elements are no rows of {width}", x.len());
    let outputs = (Rows::new(y, width), Rows::optional(pre, width));
    for_each_block(cpu, x.len() / width, rows_per_task(width), outputs, |rows, (y, pre)| {
        let x = &x[rows.start * width..rows.end * width];
        isa.run(Forward::<X, F> { x, bias, pre, y, function: PhantomData });
    });
}

struct Forward<'a, X, F> {
    x: &'a [X],
    bias: Option<&'a [f32]>,
    pre: Option<&'a mut [X]>,
    y: &'a mut [X],
    function: PhantomData<F>,
}

impl<X: Element, F: Function> Kernel for Forward<'_, X, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { x, bias, mut pre, y, .. } = self;
        let width = bias.map_or(x.len(), <[f32]>::len);
        let row = Row::new(simd, width);
        for (i, (x, y)) in x.chunks(width).zip(y.chunks_mut(width)).enumerate() {
            let pre = pre.as_deref_mut().map(|pre| &mut pre[i * width..][..width]);
            match (bias, pre) {
                (None, None) => row.map(
                    [x],
                    [y],
                    #[inline(always)]
                    |simd, [x]| [F::ACTIVATION.apply(simd, x)],
                ),
                (None, Some(pre)) => row.map(
                    [x],
                    [y, pre],
                    #[inline(always)]
                    |simd, [x]| [F::ACTIVATION.apply(simd, x), x],
                ),
                (Some(b), None) => row.map(
                    ([x], Cached([b])),
                    [y],
                    #[inline(always)]
                    |simd, ([x], [b])| [F::ACTIVATION.apply(simd, simd.add(x, b))],
                ),
                (Some(b), Some(pre)) => row.map(
                    ([x], Cached([b])),
                    [y, pre],
                    #[inline(always)]
                    |simd, ([x], [b])| {
                        let x = simd.add(x, b);
                        [F::ACTIVATION.apply(simd, x), x]
                    },
                ),
            }
        }
    }
}

fn backward_of<X: Element, F: Function>(cpu: &Cpu, pre: &[X], dy: &[X], dx: &mut [X]) {
    let isa = cpu.isa();
    for_each_block(cpu, dx.len(), TASK, Rows::new(dx, 1), |range, dx| {
        isa.run(Backward::<X, F> { pre: &pre[range.clone()], dy: &dy[range], dx, function: PhantomData });
    });
}

struct Backward<'a, X, F> {
    pre: &'a [X],
    dy: &'a [X],
    dx: &'a mut [X],
    function: PhantomData<F>,
}

impl<X: Element, F: Function> Kernel for Backward<'_, X, F> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let row = Row::new(simd, self.dx.len());
        row.map(
            [self.pre, self.dy],
            [self.dx],
            #[inline(always)]
            |simd, [p, dy]| [simd.mul(dy, F::ACTIVATION.derivative(simd, p))],
        );
    }
}
