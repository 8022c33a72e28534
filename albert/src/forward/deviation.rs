//! Deviation of one run's tensors from another's: the error of a narrower number format.
//!
//! ```text
//! greatest   max |a - b|
//! relative   ‖a - b‖₂ / ‖b‖₂
//! cosine     a·b / (‖a‖₂·‖b‖₂)
//! ```

use super::NamedTensor;

/// Deviation of a tensor from its reference.
#[derive(Clone, Debug, PartialEq)]
pub struct Deviation {
    /// Name of the tensor.
    pub name: String,
    /// Maximum absolute difference of two elements.
    pub greatest: f64,
    /// Norm of the difference divided by the reference's; 0 if both are zero.
    pub relative: f64,
    /// Cosine of the angle between the two; 1 if both are zero.
    pub cosine: f64,
}

impl Deviation {
    /// Deviation of `values` from `reference`, which have equal lengths.
    fn of(name: &str, values: &[f32], reference: &[f32]) -> Self {
        let pairs = || values.iter().zip(reference).map(|(&a, &b)| (f64::from(a), f64::from(b)));
        let sum = |of: fn((f64, f64)) -> f64| pairs().map(of).sum::<f64>();
        let greatest = pairs().map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        let (difference, length) = (sum(|(a, b)| (a - b) * (a - b)).sqrt(), sum(|(_, b)| b * b).sqrt());
        let both = sum(|(a, _)| a * a).sqrt() * length;
        let relative = if difference == 0.0 { 0.0 } else { difference / length };
        let cosine = if both == 0.0 && difference == 0.0 { 1.0 } else { sum(|(a, b)| a * b) / both };
        Self { name: name.to_owned(), greatest, relative, cosine }
    }
}

/// Compares each tensor of `values` with the one of the same name in `reference`; unmatched tensors are skipped.
pub fn deviations(values: &[NamedTensor], reference: &[NamedTensor]) -> Vec<Deviation> {
    let of = |tensor: &NamedTensor| {
        let other = reference.iter().find(|other| other.name == tensor.name && other.shape == tensor.shape)?;
        Some(Deviation::of(&tensor.name, &tensor.values, &other.values))
    };
    values.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, values: &[f32]) -> NamedTensor {
        NamedTensor { name: name.into(), shape: vec![values.len()], values: values.to_vec() }
    }

    #[test]
    fn it_is_measured_as_the_module_says() {
        let values = [named("a", &[3.0, 4.5]), named("zero", &[0.0]), named("alone", &[1.0])];
        let reference = [named("zero", &[0.0]), named("a", &[3.0, 4.0]), named("alone", &[1.0, 2.0])];
        let found = deviations(&values, &reference);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].greatest, found[0].relative), (0.5, 0.1));
        assert!((found[0].cosine - 27.0 / (5.0 * 29.25f64.sqrt())).abs() < 1e-15);
        let zero = Deviation { name: "zero".into(), greatest: 0.0, relative: 0.0, cosine: 1.0 };
        assert_eq!(found[1], zero);
    }
}
