// GELU and its derivative (Hendrycks and Gimpel 2016, arXiv:1606.08415): the exact form if ERF,
// else the tanh form of OpenAI's GPT-2. gelu(0) = 0, so zero padding stays zero.

const TANH_SCALE = 0.7978845608;  // sqrt(2 / pi)
const TANH_CUBIC = 0.044715;
const NORMAL_PEAK = 0.3989422804; // 1 / sqrt(2 pi)

// The error function to 1.5e-7 (Abramowitz and Stegun 7.1.26), given exp(-x^2).
fn erf(x: vec4<f32>, exp_minus_square: vec4<f32>) -> vec4<f32> {
    let t = 1.0 / (1.0 + 0.3275911 * abs(x));
    var poly = 1.061405429 * t - 1.453152027;
    poly = poly * t + 1.421413741;
    poly = poly * t - 0.284496736;
    poly = poly * t + 0.254829592;
    return sign(x) * (1.0 - poly * t * exp_minus_square);
}

// Returns exp(-2 u) of the tanh form. u is clamped where the logistic function of 2 u is 0 or 1 in
// f32, because the exp of some drivers overflows to NaN.
fn exp_minus_2u(x: vec4<f32>) -> vec4<f32> {
    let u = x * (TANH_SCALE + TANH_SCALE * TANH_CUBIC * x * x);
    return exp(clamp(-2.0 * u, vec4<f32>(-80.0), vec4<f32>(80.0)));
}

fn gelu(x: vec4<f32>) -> vec4<f32> {
    if (ERF) {
        let e = exp(-0.5 * x * x);
        return 0.5 * x * (1.0 + erf(x * 0.7071067812, e));
    }
    // The logistic function of 2 u equals (1 + tanh(u)) / 2, without cancellation.
    return x / (1.0 + exp_minus_2u(x));
}

fn gelu_derivative(x: vec4<f32>) -> vec4<f32> {
    if (ERF) {
        let e = exp(-0.5 * x * x);
        return 0.5 * (1.0 + erf(x * 0.7071067812, e)) + x * NORMAL_PEAK * e;
    }
    // With s the logistic function of 2 u: s + 2 x s (1 - s) u'.
    let slope = TANH_SCALE + 3.0 * TANH_SCALE * TANH_CUBIC * x * x;
    let e = exp_minus_2u(x);
    let s = 1.0 / (1.0 + e);
    return s + 2.0 * x * s * (e * s) * slope;
}
