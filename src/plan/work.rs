//! The work of a run: operations, ops, and the host's part of an update.

use super::speed::of_share;
use super::{Plan, STAGED_ELEMENTS, SpeedPoint, TILE_ROWS, trained_weights};
use crate::config::{self, Arch, Config, Dtype, OptimizerKind};

/// Computation whose time can be estimated.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Work {
    /// Floating-point operations of the matrix products and of attention.
    pub flop: f64,
    /// At least 1.
    pub ops: f64,
    /// The operations and the ops of Muon, which are many and small.
    pub muon: [f64; 2],
    /// Seconds of transfers and of the CPU that the device waits for.
    pub host_seconds: f64,
}

/// Ops per block of a forward and a backward pass (`tests/memory.rs` counts the launches of 12
/// blocks), and of a forward pass alone.
const OPS_PER_BLOCK: f64 = 20.0;
const FORWARD_OPS_PER_BLOCK: f64 = 7.0;

/// Weights of a block. An op adds each gradient to its sum.
const WEIGHTS_PER_BLOCK: f64 = 12.0;

/// Weights that one op of the gradient norm or of AdamW takes.
const WEIGHTS_AT_ONCE: f64 = 12.0;

/// Ops of a block's adapters in a forward and a backward pass: 2 and 7 in each of the four layers.
const ADAPTER_OPS_PER_BLOCK: f64 = 4.0 * 9.0;

const OPS_PER_CHUNK: f64 = 4.0;

/// Steps of Muon on a matrix.
const MUON_STEPS: f64 = 5.0;

/// Ops of Muon on a matrix: about 9 in a step and 10 around the steps.
const MUON_OPS: f64 = MUON_STEPS * 9.0 + 10.0;

/// The bytes per second over the bus: half of PCIe 3.0 x16 or 4.0 x8, because each is copied once more.
const BUS_BYTES: f64 = 8e9;

/// The bytes of its memory that the CPU reads and writes per second: half of the 51 GB/s of two
/// channels of DDR4-3200, as loops on all cores reach them.
const MEMORY_BYTES: f64 = 25e9;

/// The bytes that AdamW reads and writes per weight on the CPU, in f32: it reads gradient, master weight
/// and two moments, and writes the latter three.
const ADAMW_BYTES: f64 = 28.0;

/// Seconds of a piece on the bus, without its bytes: a read that waits for the device, and a submission.
const PIECE_SECONDS: f64 = 0.15e-3;

/// Returns the operations per token of a forward pass, and of each half of a backward pass: of the products,
/// and of attention.
fn token_work(config: &Config, vocab: u32, time: u32) -> [f64; 2] {
    config.forward_operations(config.parameters(config::padded_vocab(vocab).into()), time)
}

/// Returns the operations and the ops of Muon on a block. With `s` the smaller side of a matrix and `l`
/// the larger one, a step takes `4 s^2 l + 2 s^3`.
fn muon_work(config: &Config) -> [f64; 2] {
    let [c, ffn] = [config.n_embd.get(), config.ffn_size()].map(f64::from);
    let attention = config.attention_width() as f64;
    let kv = f64::from(config.kv_heads() * config.head_size());
    let mut others = vec![attention, kv, kv, attention, ffn, ffn];
    if config.arch != Arch::Gpt2 {
        others.push(ffn);
    }
    let flop = |other: &f64| {
        let short = c.min(*other);
        let long = c.max(*other);
        MUON_STEPS * (4.0 * short * short * long + 2.0 * short.powi(3))
    };
    [others.iter().map(flop).sum(), MUON_OPS * others.len() as f64]
}

impl Work {
    /// Returns the work for the gradients of one micro-batch: `6 P + 6 L H D T` operations per token, and
    /// with activation checkpointing another forward pass of the blocks. Products take whole tiles of
    /// tokens. An adapter saves the gradients of the weights, a third of the products, and adds `12` for each of
    /// its own, which multiply `x A` again in the backward pass.
    pub fn micro_batch(config: &Config, vocab: u32, plan: &Plan) -> Self {
        let tokens = plan.micro_batch as f64 * f64::from(config.block_size.get());
        let [weights, attention] = token_work(config, vocab, config.block_size.get());
        let layers = f64::from(config.n_layer.get());
        let tile = TILE_ROWS as f64;
        let rows = tile * (tokens / tile).ceil();
        let mut flop = 3.0 * (rows * weights + tokens * attention);
        let mut ops = OPS_PER_BLOCK * layers + chunk_ops(plan, tokens);
        if config.lora_rank > 0 {
            let adapter = trained_weights(config, config::padded_vocab(vocab).into()) as f64;
            flop += rows * (12.0 * adapter - weights);
            ops += ADAPTER_OPS_PER_BLOCK * layers;
        }
        if plan.grad_checkpoint {
            flop += rows * 2.0 * config.block_matrices() as f64 + tokens * attention;
            ops += FORWARD_OPS_PER_BLOCK * layers;
        }
        Self { flop, ops, ..Self::default() }
    }

    pub fn update(config: &Config, vocab: u32, plan: &Plan) -> Self {
        let micro_batch = Self::micro_batch(config, vocab, plan);
        let layers = f64::from(config.n_layer.get());
        let weights = WEIGHTS_PER_BLOCK * layers;
        let accumulation = plan.accumulation as f64;
        let sums = if plan.accumulation > 1 { weights * accumulation } else { 0.0 };
        let muon = if config.optimizer == OptimizerKind::Muon { layers } else { 0.0 };
        Self {
            flop: micro_batch.flop * accumulation,
            ops: micro_batch.ops * accumulation + sums + 2.0 * weights / WEIGHTS_AT_ONCE,
            muon: muon_work(config).map(|of_layer| muon * of_layer),
            host_seconds: if plan.offload_optimizer { offload_seconds(config, vocab) } else { 0.0 },
        }
    }

    pub fn evaluation(config: &Config, vocab: u32, plan: &Plan, windows: u64) -> Self {
        let time = config.eval_block_size().get();
        let tokens = windows as f64 * f64::from(time);
        let [weights, attention] = token_work(config, vocab, time);
        let passes = windows.div_ceil(plan.eval_batch_size.max(1) as u64) as f64;
        let of_pass = plan.eval_batch_size as f64 * f64::from(time);
        let layers = f64::from(config.n_layer.get());
        let ops = passes * (FORWARD_OPS_PER_BLOCK * layers + chunk_ops(plan, of_pass));
        Self { flop: (weights + attention) * tokens, ops: ops.max(1.0), ..Self::default() }
    }

    /// Returns the point on the curve of a device that did this work in `seconds`.
    pub fn point(self, seconds: f64) -> SpeedPoint {
        // The host's part is an estimate, which may exceed what was measured.
        let of_device = (seconds - self.host_seconds).max(0.1 * seconds);
        let [flop, ops] = self.muon;
        let each = self.flop / self.ops;
        let muon = if ops > 0.0 { ops * of_share(flop / ops / each) } else { 0.0 };
        SpeedPoint::new(each, of_device / (self.ops + muon))
    }
}

/// Returns the additional seconds of an update with the optimizer in host memory.
///
/// AdamW's gradients are copied to the host while the CPU works on the previous ones, and new weights are
/// copied back afterwards. Of Muon's matrices only the state crosses the bus, both ways: the momentum, and in
/// half precision the master weight. The dtype `auto` counts as float32.
fn offload_seconds(config: &Config, vocab: u32) -> f64 {
    let is_half = matches!(config.dtype, Dtype::Float16 | Dtype::Bfloat16);
    let weights = config.parameters(config::padded_vocab(vocab).into()) as f64;
    let muon = config.muon_weights() as f64;
    let adamw = weights - muon;
    let (up, state) = if is_half { (2.0, 8.0) } else { (4.0, 4.0) };
    let waits = (4.0 * adamw / BUS_BYTES).max(ADAMW_BYTES * adamw / MEMORY_BYTES);
    let transfers = (up * adamw + 2.0 * state * muon) / BUS_BYTES;
    let tensors = WEIGHTS_PER_BLOCK * f64::from(config.n_layer.get());
    let pieces = tensors + weights / STAGED_ELEMENTS as f64;
    waits + transfers + pieces * PIECE_SECONDS
}

fn chunk_ops(plan: &Plan, tokens: f64) -> f64 {
    OPS_PER_CHUNK * (tokens / plan.loss_chunk.max(1) as f64).ceil()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::config::Precision;
    use crate::plan::{DeviceSpeed, gpu_named};

    pub const VOCAB: u32 = 50_257;

    pub fn gpt2(flags: &[(&str, &str)]) -> Config {
        Config::of_preset("gpt2", flags)
    }

    pub fn published(name: &str) -> DeviceSpeed {
        DeviceSpeed::published(gpu_named(name).unwrap(), Precision::FLOAT32).unwrap()
    }

    pub fn close(got: f64, expected: f64) {
        assert!((got / expected - 1.0).abs() < 1e-3, "{got} is not {expected}");
    }

    #[test]
    fn gpt2_takes_803_million_operations_per_token() {
        let config = gpt2(&[]);
        let plan = Plan::new(&config, VOCAB);
        let update = Work::update(&config, VOCAB, &plan);
        close(update.flop / 491_520.0, 803.4e6);
        let once = Work::micro_batch(&config, VOCAB, &plan);
        close(update.flop, 40.0 * once.flop);
        // Recomputing the blocks costs less than a third more: the head is not recomputed.
        let again = Plan { grad_checkpoint: true, ..plan.clone() };
        let more = Work::micro_batch(&config, VOCAB, &again).flop / once.flop;
        assert!((1.2..1.34).contains(&more), "{more}");
        let evaluation = Work::evaluation(&config, VOCAB, &plan, 12);
        close(evaluation.flop * 3.0, once.flop);
    }

    #[test]
    fn an_update_of_gpt2_xl_on_the_host_takes_seconds_of_minutes() {
        let config = Config::of_preset("gpt2-xl", &[("dtype", "float16")]);
        let on_device = Plan::new(&config, VOCAB);
        let offloaded = Plan { offload_optimizer: true, ..on_device.clone() };
        let work = |plan| Work::update(&config, VOCAB, plan);
        // 6.2 GB come down while the CPU reads and writes 43.6 GB, and 3.1 GB go up.
        let seconds = work(&offloaded).host_seconds;
        assert!((2.0..3.0).contains(&seconds), "{seconds}");
        let speed = published("RTX 4070");
        close(speed.seconds(work(&offloaded)), speed.seconds(work(&on_device)) + seconds);
        assert!(seconds / speed.seconds(work(&on_device)) < 0.01);
        // A measured update is the device's and the host's.
        let work = work(&offloaded);
        let measured = DeviceSpeed::measured(vec![work.point(500.0)]).unwrap();
        close(measured.seconds(work), 500.0);
        // The momentum of the matrices goes up and down, and the CPU has a twentieth of the weights.
        let muon = Config::of_preset("gpt2-xl", &[("optimizer", "muon")]);
        let muon = Work::update(&muon, VOCAB, &offloaded);
        assert!((1.0..3.0).contains(&muon.host_seconds), "{}", muon.host_seconds);
    }

    #[test]
    fn muon_adds_little_to_a_large_batch_and_tiles_to_a_small_one() {
        let [adamw, muon] = [gpt2(&[]), gpt2(&[("optimizer", "muon")])];
        let plan = Plan::new(&adamw, VOCAB);
        let [adamw, muon] = [adamw, muon].map(|config| Work::update(&config, VOCAB, &plan));
        let more = muon.muon[0] / adamw.flop;
        assert!((0.002..0.01).contains(&more), "{more}");
        // 72 tokens fill a tile as 128 do.
        let flop = |size: &str| {
            let config = gpt2(&[("block_size", size), ("batch_size", "1")]);
            Work::micro_batch(&config, VOCAB, &Plan::new(&config, VOCAB)).flop
        };
        let [tile, part] = [flop("128"), flop("72")];
        assert!(part > 0.98 * tile && part < tile, "{part} of {tile}");
    }
}
