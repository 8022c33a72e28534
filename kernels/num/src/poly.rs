//! Coefficients shared by every target: SIMD evaluates them by Horner's rule, PTX kernels emit the same chain.
//!
//! Each is a weighted minimax fit in f64 (Lawson iteration on Chebyshev nodes), rounded to f32, lowest power first.
//! The error given is that of the exact polynomial; what a kernel reaches with f32 rounding is in `kernels::num`.

/// log2(e)
pub const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 cut to few bits, so that n · LN2_HIGH is exact for |n| < 2^10.
pub const LN2_HIGH: f32 = 0.693_359_4;
/// ln 2 - LN2_HIGH
pub const LN2_LOW: f32 = -2.121_944_4e-4;
/// exp(r) = 1 + r + r² · P(r) for |r| <= ln 2 / 2; relative error 3.4e-9.
pub const EXP: [f32; 5] = [0.5, 0.166_665_12, 0.041_666_187, 0.008_369_599, 0.001_395_172];
/// 2^r = 1 + r · P(r) for |r| <= ½; relative error 9.1e-8: for sums of many powers, where no single one has to be
/// exact.
#[allow(clippy::approx_constant)] // the first one is the fit's, next to ln 2
pub const EXP2: [f32; 5] = [0.693_147, 0.240_222_42, 0.055_507_336, 0.009_671_513, 0.001_326_472_7];
/// ln(1 + f) = f - f²/2 + f³ · P(f) for √½ <= 1 + f <= √2; relative error 6.5e-9.
pub const LN: [f32; 8] =
    [0.333_333_3, -0.250_008_37, 0.200_012_92, -0.166_227_65, 0.141_996_95, -0.131_641_86, 0.127_791_15, -0.076_461_05];
/// tanh(x) = x + x · z · P(z) with z = x², |x| <= 0.625; relative error 4.1e-9.
pub const TANH: [f32; 5] = [-0.333_332_84, 0.133_314_91, -0.053_743_497, 0.020_650_586, -0.005_717_045];
/// erf(x) = x · P(x²) for |x| <= 1; error 1.2e-9.
#[allow(clippy::approx_constant)] // the first one is the fit's, next to 2/√π
pub const ERF_SMALL: [f32; 7] =
    [1.128_379_2, -0.376_126_26, 0.112_836, -0.026_854_444, 0.005_189_535_7, -0.000_802_084_2, 0.000_078_891_23];
/// erf(x) = 1 - exp(-P(x)) for 1 <= x <= 4; error 1.0e-9. Beyond 4 it is 1 to f32.
pub const ERF_LARGE: [f32; 7] =
    [0.000_353_718_76, 1.127_04, 0.638_225_7, 0.103_037_37, -0.021_805_32, 0.002_939_608, -0.000_185_574_07];
/// √(2/π), the scale of the tanh form of GELU.
pub const SQRT_2_OVER_PI: f32 = 0.797_884_6;
/// Coefficient of x³ in the tanh form of GELU (Hendrycks & Gimpel 2016).
pub const GELU_CUBIC: f32 = 0.044_715;
/// 1/√2
pub const FRAC_1_SQRT_2: f32 = std::f32::consts::FRAC_1_SQRT_2;
/// 1/√(2π), the height of the standard normal density.
pub const FRAC_1_SQRT_2_PI: f32 = 0.398_942_3;
