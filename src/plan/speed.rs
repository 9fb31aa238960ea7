//! The speed of a device, and the time that work takes on it.
//!
//! Work is counted in floating-point operations and in ops: launches on a GPU, parallel loops on
//! the CPU. An op takes a fixed time plus that of its arithmetic, so that a device is described by
//! the seconds per op over the operations per op. Between measurements that curve is a straight
//! line, beyond the largest a constant rate of arithmetic.

use serde::{Deserialize, Serialize};

use super::{Gpu, Plan};
use crate::config::{self, Config, Dtype, Precision};

/// A measured point of the curve, or one that is derived from a peak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPoint {
    /// Floating-point operations per op.
    pub flop: f64,
    /// Seconds per op.
    pub seconds: f64,
}

/// The speed of a device in training.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpeed {
    /// By rising operations per op; never empty.
    points: Vec<SpeedPoint>,
    /// The published peak that the points are derived from, as text; `None` if they were measured.
    published: Option<String>,
}

/// The share of its published peak that a GPU sustains in training: docs/kernels.md expects 32 to
/// 36%, and 25 to 45% in all.
const SUSTAINED: f64 = 1.0 / 3.0;

/// The same with float16 matrices. Others measured 19 TFLOP/s in their products on an RTX 4070, two
/// thirds of its peak in f32 (llama.cpp, pull request 12260); the rest of a step is no faster.
const SUSTAINED_IN_MATRICES: f64 = 0.5;

/// The seconds that an op takes on a GPU without any arithmetic: a launch and its share of the
/// waits between dependent kernels.
const LAUNCH_SECONDS: f64 = 10e-6;

/// The uncertainty of a time, as a factor either way.
const SIMILAR: f64 = 1.2;
const MEASURED: f64 = 1.5;
const GUESSED: f64 = 2.0;

/// Measurements are similar up to this ratio of their operations per op.
const SIMILAR_WORK: f64 = 2.0;

impl DeviceSpeed {
    /// Returns the speed that measurements describe; `None` without any.
    pub fn measured(mut points: Vec<SpeedPoint>) -> Option<Self> {
        points.retain(|point| point.flop > 0.0 && point.seconds > 0.0);
        points.sort_by(|a, b| a.flop.total_cmp(&b.flop));
        (!points.is_empty()).then_some(Self { points, published: None })
    }

    /// Returns the expected speed of the WGSL kernels on a GPU that was not measured; `None` in a
    /// precision that they do not have.
    pub fn published(gpu: &Gpu, precision: Precision) -> Option<Self> {
        let (sustained, share) = match (precision.dtype(), precision.matrices()) {
            (Dtype::Float16, Some(_)) => (SUSTAINED_IN_MATRICES, "half"),
            (Dtype::Float32 | Dtype::Float16, None) => (SUSTAINED, "a third"),
            _ => return None,
        };
        let peak = gpu.peak_tflop_per_s;
        // So much that the launch does not count.
        let flop = 1e12;
        let seconds = LAUNCH_SECONDS + flop / (sustained * peak * 1e12);
        let no_arithmetic = SpeedPoint { flop: 0.0, seconds: LAUNCH_SECONDS };
        let points = vec![no_arithmetic, SpeedPoint { flop, seconds }];
        let source = format!("not measured: {share} of the published {peak} TFLOP/s in float32");
        Some(Self { points, published: Some(source) })
    }

    /// Returns true if the device itself was measured.
    pub fn is_measured(&self) -> bool {
        self.published.is_none()
    }

    /// Returns the source of the figure, for the user.
    pub fn source(&self) -> String {
        self.published.clone().unwrap_or_else(|| "measured on this device".into())
    }

    /// Returns the seconds that `work` takes.
    pub fn seconds(&self, work: Work) -> f64 {
        work.ops * self.seconds_per_op(work.flop / work.ops)
    }

    fn seconds_per_op(&self, flop: f64) -> f64 {
        let above = self.points.partition_point(|point| point.flop <= flop);
        match (self.points[..above].last(), self.points.get(above)) {
            (Some(low), Some(high)) => {
                let share = (flop - low.flop) / (high.flop - low.flop);
                low.seconds + share * (high.seconds - low.seconds)
            }
            (Some(last), None) => last.seconds * flop / last.flop.max(1.0),
            // Between the same rate of arithmetic and the same time.
            (None, Some(first)) => first.seconds * (flop / first.flop).sqrt(),
            (None, None) => 0.0,
        }
    }

    /// Returns the uncertainty of the time of `work`: the true time is expected between the
    /// estimate divided by this factor and multiplied by it.
    pub fn uncertainty(&self, work: Work) -> f64 {
        let flop = work.flop / work.ops;
        let ratio = |point: &SpeedPoint| (point.flop / flop).max(flop / point.flop);
        let nearest = self.points.iter().map(ratio).fold(f64::INFINITY, f64::min);
        match self.is_measured() {
            true if nearest <= SIMILAR_WORK => SIMILAR,
            true if nearest <= SIMILAR_WORK.powi(3) => MEASURED,
            _ => GUESSED,
        }
    }
}

/// Computation to be timed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Floating-point operations of the matrix products and of attention.
    pub flop: f64,
    /// Ops, at least 1.
    pub ops: f64,
}

/// Ops per block of a forward and a backward pass (`tests/memory.rs` counts 287 launches for 12
/// blocks), and of a forward pass alone.
const OPS_PER_BLOCK: f64 = 24.0;
const FORWARD_OPS_PER_BLOCK: f64 = 8.0;

/// Weights of a block, each with its own ops in an update.
const WEIGHTS_PER_BLOCK: f64 = 12.0;

/// Ops of a logits chunk.
const OPS_PER_CHUNK: f64 = 4.0;

/// The operations of a forward pass over one token and of each half of a backward pass over it.
struct TokenWork {
    /// All weights: `2 P`, where the embedding counts for the output head.
    weights: f64,
    /// The weights of the blocks.
    blocks: f64,
    /// Causal attention over `time` positions: `2 L C T`.
    attention: f64,
}

impl TokenWork {
    fn new(config: &Config, vocab: u32, time: u32) -> Self {
        let parameters = config.parameters(config::padded_vocab(vocab).into()) as f64;
        let [layers, width] = [config.n_layer, config.n_embd].map(|count| f64::from(count.get()));
        Self {
            weights: 2.0 * parameters,
            blocks: 24.0 * layers * width * width,
            attention: 2.0 * layers * width * f64::from(time),
        }
    }
}

impl Work {
    /// Returns the gradients of one micro-batch: `6 P + 6 L C T` operations per token, and a
    /// forward pass of the blocks more with activation checkpointing.
    pub fn micro_batch(config: &Config, vocab: u32, plan: &Plan) -> Self {
        let tokens = plan.micro_batch as f64 * f64::from(config.block_size.get());
        let token = TokenWork::new(config, vocab, config.block_size.get());
        let layers = f64::from(config.n_layer.get());
        let mut flop = 3.0 * (token.weights + token.attention);
        let mut ops = OPS_PER_BLOCK * layers + chunk_ops(plan, tokens);
        if plan.grad_checkpoint {
            flop += token.blocks + token.attention;
            ops += FORWARD_OPS_PER_BLOCK * layers;
        }
        Self { flop: flop * tokens, ops }
    }

    /// Returns one update of the weights.
    pub fn update(config: &Config, vocab: u32, plan: &Plan) -> Self {
        let micro_batch = Self::micro_batch(config, vocab, plan);
        let weights = WEIGHTS_PER_BLOCK * f64::from(config.n_layer.get());
        let accumulation = plan.accumulation as f64;
        let sums = if plan.accumulation > 1 { weights * accumulation } else { 0.0 };
        Self {
            flop: micro_batch.flop * accumulation,
            // Each weight has an op of the norm and one of AdamW.
            ops: micro_batch.ops * accumulation + sums + 2.0 * weights,
        }
    }

    /// Returns a forward pass over `windows` windows of an evaluation.
    pub fn evaluation(config: &Config, vocab: u32, plan: &Plan, windows: u64) -> Self {
        let time = config.eval_block_size().get();
        let tokens = windows as f64 * f64::from(time);
        let token = TokenWork::new(config, vocab, time);
        let passes = windows.div_ceil(plan.eval_batch_size.max(1) as u64) as f64;
        let of_pass = plan.eval_batch_size as f64 * f64::from(time);
        let layers = f64::from(config.n_layer.get());
        let ops = passes * (FORWARD_OPS_PER_BLOCK * layers + chunk_ops(plan, of_pass));
        Self { flop: (token.weights + token.attention) * tokens, ops: ops.max(1.0) }
    }

    /// Returns the point of a device that did this work in `seconds`.
    pub fn point(self, seconds: f64) -> SpeedPoint {
        SpeedPoint { flop: self.flop / self.ops, seconds: seconds / self.ops }
    }
}

fn chunk_ops(plan: &Plan, tokens: f64) -> f64 {
    OPS_PER_CHUNK * (tokens / plan.loss_chunk.max(1) as f64).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Layer, resolve};
    use crate::plan::gpu_named;

    fn gpt2(flags: &[(&str, &str)]) -> Config {
        let flags = flags.iter().map(|(key, value)| (key.to_string(), value.to_string()));
        let layers = vec![Layer::preset("gpt2").unwrap(), Layer::flags(flags).unwrap()];
        resolve(layers).unwrap().config
    }

    fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-3, "{got} is not {expected}");
    }

    #[test]
    fn gpt2_takes_803_million_operations_per_token() {
        let config = gpt2(&[]);
        let plan = Plan::new(&config, 50_257);
        let update = Work::update(&config, 50_257, &plan);
        close(update.flop / 491_520.0, 803.4e6);
        let once = Work::micro_batch(&config, 50_257, &plan);
        close(update.flop, 40.0 * once.flop);
        // Recomputing the blocks costs less than a third more: the head is not recomputed.
        let again = Plan { grad_checkpoint: true, ..plan.clone() };
        let more = Work::micro_batch(&config, 50_257, &again).flop / once.flop;
        assert!((1.2..1.34).contains(&more), "{more}");
        let evaluation = Work::evaluation(&config, 50_257, &plan, 12);
        close(evaluation.flop * 3.0, once.flop);
    }

    #[test]
    fn a_published_peak_gives_the_expected_step() {
        // docs/kernels.md expects 720 ms on an RTX 3060 (580 to 980) and 350 ms on an RTX 4070.
        let config = gpt2(&[("batch_size", "4"), ("gradient_accumulation_steps", "1")]);
        let work = Work::update(&config, 50_257, &Plan::new(&config, 50_257));
        for (name, expected) in [("RTX 3060", 0.72), ("RTX 4070", 0.35)] {
            let gpu = gpu_named(name).unwrap();
            let speed = DeviceSpeed::published(gpu, Precision::FLOAT32).unwrap();
            let seconds = speed.seconds(work);
            assert!((0.75..1.33).contains(&(seconds / expected)), "{name}: {seconds} s");
            assert_eq!((speed.uncertainty(work), speed.is_measured()), (GUESSED, false));
            let matrices = gpu.abilities().precision(Dtype::Auto).unwrap();
            let half = DeviceSpeed::published(gpu, matrices).unwrap();
            // The launches take as long.
            assert!((1.45..1.5).contains(&(seconds / half.seconds(work))), "{name}");
            let bfloat16 = gpu.abilities().planned(Dtype::Bfloat16);
            assert_eq!(DeviceSpeed::published(gpu, bfloat16), None);
        }
    }

    #[test]
    fn a_measurement_is_reproduced_and_scaled() {
        let config = gpt2(&[("n_layer", "2")]);
        let plan = Plan::new(&config, 50_257);
        let work = Work::update(&config, 50_257, &plan);
        let speed = DeviceSpeed::measured(vec![work.point(3.0)]).unwrap();
        close(speed.seconds(work), 3.0);
        assert_eq!(speed.uncertainty(work), SIMILAR);
        // Twice the updates at once: larger ops at the same rate.
        let double = Work { flop: 2.0 * work.flop, ops: work.ops };
        close(speed.seconds(double), 6.0);
        // Much smaller ops take longer than their arithmetic and less than the same time.
        let small = Work { flop: work.flop / 100.0, ops: work.ops };
        close(speed.seconds(small), 0.3);
        assert_eq!(speed.uncertainty(small), GUESSED);
        assert_eq!(DeviceSpeed::measured(Vec::new()), None);
    }

    #[test]
    fn between_measurements_the_time_of_an_op_is_a_line() {
        let point = |flop, seconds| SpeedPoint { flop, seconds };
        // 10 µs per op and 1 TFLOP/s.
        let points = vec![point(1e9, 1.01e-3), point(1e5, 10.1e-6)];
        let speed = DeviceSpeed::measured(points).unwrap();
        for flop in [1e6, 1e7, 1e8] {
            close(speed.seconds(Work { flop, ops: 1.0 }), 10e-6 + flop / 1e12);
        }
    }
}
