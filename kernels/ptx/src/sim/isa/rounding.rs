//! Exact sums of two f64, rounded once to f32.

/// Rounding direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Rounding {
    /// To the nearest, ties to even.
    #[default]
    Nearest,
    /// To the nearest, ties away from zero.
    NearestAway,
    Zero,
    Down,
    Up,
}

/// The f32 next to the exact sum `high + low` in the direction of `rounding`.
pub(crate) fn rounded(high: f64, low: f64, rounding: Rounding) -> f32 {
    // f64 to f32 rounds to nearest; a tie that `low` breaks is taken back below.
    let near = high as f32;
    if near.is_nan() || (low == 0.0 && rounding == Rounding::Nearest) {
        return near;
    }
    if near.is_infinite() && high.is_infinite() {
        return near;
    }
    // Sign of exact - near. The difference of an f64 and its rounding is exact unless `near` overflowed.
    let beyond = if near.is_infinite() { -f64::from(near) } else { (high - f64::from(near)) + low };
    let towards = |up: bool| if up { near.next_up() } else { near.next_down() };
    match rounding {
        Rounding::Nearest | Rounding::NearestAway => {
            let other = towards(beyond > 0.0);
            let ours = beyond.abs();
            let theirs = ((high - f64::from(other)) + low).abs();
            let away = rounding == Rounding::NearestAway && ours == theirs && other.abs() > near.abs();
            if beyond != 0.0 && !near.is_infinite() && (theirs < ours || away) { other } else { near }
        }
        Rounding::Zero if beyond != 0.0 && (beyond < 0.0) == (high > 0.0) => towards(beyond > 0.0),
        Rounding::Down if beyond < 0.0 => near.next_down(),
        Rounding::Up if beyond > 0.0 => near.next_up(),
        _ => near,
    }
}

/// The exact sum `high + low` rounded to odd: rounding the result again to 22 bits or fewer is rounding once.
pub(crate) fn odd(high: f64, low: f64) -> f32 {
    let cut = rounded(high, low, Rounding::Zero);
    let exact = f64::from(cut) == high && low == 0.0;
    if exact || !cut.is_finite() { cut } else { f32::from_bits(cut.to_bits() | 1) }
}

/// The sum of two f64 without error: the rounded sum and what was lost.
pub(crate) fn two_sum(a: f64, b: f64) -> (f64, f64) {
    let sum = a + b;
    let part = sum - a;
    (sum, (a - (sum - part)) + (b - part))
}

/// Clamped to [0, 1]; NaN becomes 0.
pub(crate) fn saturated(value: f32) -> f32 {
    if value > 0.0 { value.min(1.0) } else { 0.0 }
}

/// The lesser of two: the number where one is NaN, unless NaN shall win; -0 is less than +0.
pub(crate) fn least(a: f32, b: f32, nan: bool) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, false) if !nan => b,
        (false, true) if !nan => a,
        (true, _) | (_, true) => f32::NAN,
        _ if a < b || (a == b && a.is_sign_negative()) => a,
        _ => b,
    }
}
