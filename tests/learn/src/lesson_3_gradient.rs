//! Lesson 3: the gradient of a shared weight.

/// Width, and applications of the layer.
pub(crate) const H: usize = 3;
const N: usize = 4;

pub(crate) type Vector = [f64; H];
pub(crate) type Matrix = [Vector; H];

/// The gradient of Σ y[N] with respect to W, for y[i + 1] = tanh(W·y[i]). `y` has the values of the forward pass, y[0] to y[N].
fn exercise(w: &Matrix, y: &[Vector]) -> Matrix {
    let mut dw = [[0.0; H]; H];
    let mut dy = [1.0; H];
    for i in (0..y.len() - 1).rev() {
        let dz: Vector = std::array::from_fn(|row| dy[row] * (1.0 - y[i + 1][row].powi(2)));
        for row in 0..H {
            for column in 0..H {
                // The gap: W has a gradient from each application, and this keeps the last one computed.
                dw[row][column] = dz[row] * y[i][column];
            }
        }
        dy = std::array::from_fn(|column| (0..H).map(|row| w[row][column] * dz[row]).sum());
    }
    dw
}

fn forward(w: &Matrix) -> Vec<Vector> {
    let mut y = vec![[0.3, -0.5, 0.8]];
    for i in 0..N {
        y.push(std::array::from_fn(|row| (0..H).map(|column| w[row][column] * y[i][column]).sum::<f64>().tanh()));
    }
    y
}

/// Compares each element with a difference quotient.
pub(crate) fn check(gradient: fn(&Matrix, &[Vector]) -> Matrix) {
    const STEP: f64 = 1e-5;
    let w = [[0.4, -0.7, 0.2], [0.9, 0.1, -0.3], [-0.6, 0.5, 0.8]];
    let dw = gradient(&w, &forward(&w));
    for (row, column) in (0..H).flat_map(|row| (0..H).map(move |column| (row, column))) {
        let loss = |step: f64| {
            let mut moved = w;
            moved[row][column] += step;
            forward(&moved)[N].iter().sum::<f64>()
        };
        let (slope, dw) = ((loss(STEP) - loss(-STEP)) / (2.0 * STEP), dw[row][column]);
        assert!(
            (slope - dw).abs() < 1e-6,
            "dW[{row}, {column}] is {dw:.4}; expected the slope of the loss, {slope:.4}"
        );
    }
}

exercise_tests!(check(exercise), "dW[0, 0] is -0.1121; expected the slope of the loss, -0.2168");
