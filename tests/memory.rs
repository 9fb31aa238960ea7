//! Tests the memory and the launches of training steps on Vulkan. Most steps are dry runs, which
//! allocate as usual and compute nothing.

#![cfg(feature = "wgpu")]

use std::sync::{Arc, Mutex, MutexGuard};

use burn::tensor::{Device, Int, Tensor, TensorData, activation};
use wgpt::bench::TrainingStep;
use wgpt::config::{self, Abilities, Arch, BaseDtype, Choice, Config, Dtype, Layer, Precision};
use wgpt::gpu::{self, DeviceKind, SelectedDevice};
use wgpt::ops::{self, CrossEntropy, Implementation, OpsMode};
use wgpt::plan::{self, Kernels, Limits};

/// Serialises the tests: dry runs and memory pools belong to the whole process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn one_at_a_time() -> MutexGuard<'static, ()> {
    ONE_AT_A_TIME.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Opens the Vulkan adapter of these tests: the first that stores float16, as recent GPUs and Mesa's
/// lavapipe do. SwiftShader does not, and compiles every kernel anew in every process. Returns it and
/// the mode of its fastest kernels.
fn vulkan() -> (Device, OpsMode) {
    let (device, kind) = vulkan_in(float16());
    (device, OpsMode::AUTO.on(kind))
}

/// Lists the Vulkan adapters.
fn adapters() -> impl Iterator<Item = SelectedDevice> {
    let select = |number| gpu::select(format!("vulkan:{number}").parse().expect("a device name"));
    (0..).map_while(move |number| select(number).ok())
}

/// Opens the first Vulkan adapter that computes in `precision`. Returns it and its kind.
fn vulkan_in(precision: Precision) -> (Device, DeviceKind) {
    let is_able = |device: &SelectedDevice| {
        let Abilities { matrices, .. } = device.info.abilities;
        let has_matrices = precision.matrices().is_none() || precision.matrices() == matrices;
        has_matrices && device.info.abilities.dtypes().contains(&precision.dtype())
    };
    let device = adapters().find(is_able);
    let device = device.unwrap_or_else(|| {
        panic!("no Vulkan adapter computes in {precision}: Mesa's lavapipe does")
    });
    let open = device.open(precision).expect("the driver opens it");
    (open.device, open.info.kind)
}

/// float16 without cooperative matrices.
fn float16() -> Precision {
    let abilities = Abilities { float16: true, ..Abilities::default() };
    abilities.precision(Dtype::Float16).expect("float16 is among the abilities")
}

fn config(flags: &[(&str, usize)]) -> Config {
    let flags = flags.iter().map(|(key, value)| (key.to_string(), value.to_string()));
    let layers = vec![Layer::preset("gpt2").unwrap(), Layer::flags(flags).unwrap()];
    config::resolve(layers).unwrap().config
}

/// Counts the launches of a whole step on nanoGPT's CPU recipe, and on 12 layers with biases. The
/// device's bindings limit the tensors that share a launch. lavapipe has 31 bindings. `scripts/cuda-check.sh`
/// counts those of CUDA's kernels.
#[test]
fn steps_take_few_launches() {
    let _guard = one_at_a_time();
    let (device, auto) = vulkan();
    let recipe = [("n_layer", 4), ("n_head", 4), ("n_embd", 128), ("block_size", 64)];
    let recipe = [&recipe[..], &[("batch_size", 12), ("vocab_size", 65)]].concat();
    let twelve = [("n_embd", 24), ("block_size", 16), ("batch_size", 2), ("vocab_size", 64)];
    for (flags, bias, mode, most) in [
        (&recipe[..], false, auto, 110),
        (&recipe[..], false, OpsMode::WIDE, 100),
        (&twelve[..], true, auto, 320),
        (&twelve[..], true, OpsMode::WIDE, 280),
    ] {
        let mut config = config(flags);
        config.bias = bias;
        let mut step = TrainingStep::new(&device, &config, mode);
        let ((_, launches), _) = gpu::dry_run(&device, || gpu::count_launches(|| step.step()));
        println!("{launches} launches in a step of {flags:?}, {mode:?}");
        assert!((most / 2..=most).contains(&launches), "{launches}, {mode:?}");
    }
}

#[test]
fn every_kernel_of_a_step_is_named_and_timed() {
    let _guard = one_at_a_time();
    let (device, mode) = vulkan();
    let config = config(&[("n_layer", 2), ("n_head", 2), ("n_embd", 32), ("block_size", 16)]);
    let mut step = TrainingStep::new(&device, &config, mode);
    let ((), launches) = gpu::count_launches(|| step.step());
    let ((), kernels) = gpu::time_launches(|| step.step());
    assert_eq!(kernels.len(), launches);
    let ours = |name: &str| kernels.iter().filter(|(it, _)| it.starts_with(name)).count();
    assert_eq!((ours("attention_forward"), ours("embed_forward")), (2, 1), "{kernels:?}");
    assert!(kernels.iter().all(|(_, seconds)| *seconds > 0.0), "{kernels:?}");
}

/// Returns the peak memory of a step of one sequence in bytes, without weights and moments.
fn peak(device: &Device, mode: OpsMode, layers: usize, width: usize, time: usize) -> u64 {
    let config = config(&[
        ("n_layer", layers),
        ("n_head", 4),
        ("n_embd", width),
        ("block_size", time),
        ("batch_size", 1),
        ("vocab_size", 512),
        ("loss_chunk", 64),
    ]);
    let step = TrainingStep::new(device, &config, mode);
    let before = gpu::memory(device).unwrap().in_use;
    let (_, peak) = gpu::dry_run(device, || step.gradients());
    peak - before
}

/// Detects matrices of `time x time`, and activations that are saved twice.
#[test]
fn memory_grows_linearly_with_the_context() {
    let _guard = one_at_a_time();
    let (device, mode) = vulkan();
    let (layers, width) = (4, 128);
    let [short, middle, long] =
        [256, 512, 1024].map(|time| peak(&device, mode, layers, width, time) as f64);
    println!("256: {short}, 512: {middle}, 1024: {long} bytes");
    let slope = (long - middle) / 512.0;
    let earlier = (middle - short) / 256.0;
    assert!((slope / earlier - 1.0).abs() < 0.1, "{earlier} bytes a token, then {slope}");
    // A block saves 12 activations of the model's width per token, and the log-sum-exp. The
    // temporary tensors of one block are spread over the four.
    let of_blocks = (layers * width * 4) as f64;
    let units = (slope - (4 * 4 * layers) as f64) / of_blocks;
    println!("{units} times the width per token and block");
    assert!((12.0..=13.5).contains(&units), "{units}");
}

/// What is trained, and where its optimizer is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trained {
    OnDevice,
    InHostMemory,
    Adapter,
    /// On a base in 8 bits.
    AdapterOfQuantized,
    /// With dropout of its inputs.
    AdapterWithDropout,
}
use Trained::{Adapter, AdapterOfQuantized, AdapterWithDropout, InHostMemory, OnDevice};

/// Compares the plan's prediction with the memory that a step takes, for models of many shapes with
/// each of `trained`.
fn compare_with_the_plan(mode: OpsMode, trained: &[Trained]) {
    let _guard = one_at_a_time();
    // Cube kernels are compiled anew for each shape. Twelve models cover every value of every setting.
    let shapes = if mode.implementation == Implementation::Cube { 12 } else { 30 };
    let (device, kind) =
        if mode.precision.is_half() { vulkan_in(mode.precision) } else { vulkan_in(float16()) };
    let mut worst = 0.0f64;
    for number in 0..shapes {
        // A third of the models are of the other shapes.
        let other = (number % 3 == 0).then(|| llama_shape(number));
        for config in [Some(shape(number)), other].into_iter().flatten() {
            for &trained in trained {
                worst = worst.max(compare_step(&device, mode.on(kind), config.clone(), trained));
            }
        }
    }
    println!("{shapes} shapes, at most {:.1}% off", worst * 100.0);
}

/// Returns the settings of one of the models to compare.
fn shape(number: usize) -> Config {
    let pick = |salt: usize, from: &[usize]| from[(number * 7 + salt * 5) % from.len()];
    let heads = pick(1, &[1, 2, 3, 4]);
    let mut config = config(&[
        ("n_layer", pick(0, &[1, 2, 3, 5, 7])),
        ("n_head", heads),
        ("n_embd", heads * pick(2, &[16, 32, 64])),
        ("block_size", pick(3, &[64, 128, 200, 256])),
        ("batch_size", pick(4, &[2, 3, 4, 5, 8])),
        ("gradient_accumulation_steps", pick(7, &[1, 2, 3])),
        ("vocab_size", pick(5, &[65, 500, 5000])),
        ("loss_chunk", pick(6, &[0, 64, 200])),
    ]);
    config.bias = number.is_multiple_of(2);
    config.dropout = if number.is_multiple_of(3) { 0.1 } else { 0.0 };
    config.grad_checkpoint = if number % 4 == 1 { Choice::True } else { Choice::False };
    config
}

/// Returns the settings of one of the models to compare in the shape of Llama or a Qwen: with grouped heads
/// that are no quotient of the width, tied or not.
fn llama_shape(number: usize) -> Config {
    let config = shape(number);
    let heads = config.n_head.get();
    Config {
        arch: [Arch::Llama, Arch::Qwen3, Arch::Qwen2][number / 3 % 3],
        bias: false,
        n_kv_head: if heads.is_multiple_of(2) { heads / 2 } else { 1 },
        head_size: if number % 4 < 2 { 0 } else { 48 },
        tie_embeddings: !number.is_multiple_of(5),
        ..config
    }
}

/// Compares one step. Returns the relative error of the plan.
fn compare_step(device: &Device, mode: OpsMode, mut config: Config, trained: Trained) -> f64 {
    const TOLERANCE: f64 = 0.01;
    let offload = trained == InHostMemory;
    config.offload_optimizer = if offload { Choice::True } else { Choice::False };
    let is_adapter = !matches!(trained, OnDevice | InHostMemory);
    if is_adapter {
        config.lora_rank = 4;
        // Training takes so little that an evaluation would take more.
        config.eval_batch_size = 1;
    }
    if trained == AdapterOfQuantized {
        config.base_dtype = BaseDtype::Q8_0;
    }
    if trained == AdapterWithDropout {
        config.lora_dropout = 0.1;
    }
    let cube = mode.implementation == Implementation::Cube;
    let kernels = if cube { Kernels::Cube } else { Kernels::Wgsl };
    let limits = Limits { kernels, precision: mode.precision, ..Limits::default() };
    let forecast = plan::plan(&config, config.vocab_size, &limits, None).unwrap();
    let is_larger = forecast.rows.iter().any(|row| row.name.contains("sample"));
    if is_larger && is_adapter {
        return 0.0;
    }
    assert!(!is_larger, "more than a step");
    let before = gpu::memory(device).unwrap().in_use;
    let mut step = TrainingStep::planned(device, &config, &forecast.plan, mode);
    let (_, peak) = gpu::dry_run(device, || step.step());
    // The pieces in transfer. A dry run reads nothing, so it has one at the update.
    let staged = forecast.rows.iter().filter(|row| row.name == "staging");
    let staged = staged.map(|row| row.bytes).sum::<u64>();
    assert_eq!(staged > 0, offload);
    let predicted = (forecast.predicted_bytes - staged) as f64;
    let (peak, piece) = ((peak - before) as f64, staged as f64 / 4.0);
    let off = predicted / peak - 1.0;
    println!("{:6.2}% of {peak}: {config:?}", off * 100.0);
    // The plan has no rows for ids, masks and partial sums.
    let most = predicted + piece + 32_768.0;
    let rows: Vec<_> = forecast.rows.iter().map(|row| (&row.name, row.bytes)).collect();
    assert!(most >= peak * (1.0 - TOLERANCE), "{predicted} for {peak}: {rows:?}");
    assert!(
        predicted <= peak * (1.0 + 2.0 * TOLERANCE) + 32_768.0,
        "{predicted} for {peak}: {rows:?}"
    );
    off.abs()
}

/// With the optimizer on the device, and in host memory, where the device has only weights and
/// gradients.
#[test]
fn the_plan_predicts_the_memory_of_a_step() {
    compare_with_the_plan(
        OpsMode::AUTO,
        &[OnDevice, InHostMemory, Adapter, AdapterOfQuantized, AdapterWithDropout],
    );
}

/// In float16 the weights are halves too, if the optimizer is in host memory.
#[test]
fn the_plan_predicts_the_memory_of_a_step_in_float16() {
    compare_with_the_plan(
        OpsMode::AUTO.in_precision(float16()),
        &[OnDevice, InHostMemory, Adapter, AdapterOfQuantized, AdapterWithDropout],
    );
}

/// The kernels for CUDA, which run on Vulkan too.
#[test]
fn the_plan_predicts_the_memory_of_a_step_of_cube_kernels() {
    compare_with_the_plan(OpsMode::CUBE, &[OnDevice, Adapter, AdapterWithDropout]);
}

/// Half precision, in f16. bfloat16 has the same size, but few Vulkan adapters compute in it.
#[test]
fn the_plan_predicts_the_memory_of_a_step_of_cube_kernels_in_half_precision() {
    compare_with_the_plan(
        OpsMode::CUBE.in_precision(float16()),
        &[OnDevice, InHostMemory, Adapter, AdapterOfQuantized],
    );
}

/// With an optimizer in host memory, the plan covers all that the pools hold after real steps, and they
/// hold no moments and master weights.
#[test]
fn pools_hold_no_state_of_an_optimizer_in_host_memory() {
    let _guard = one_at_a_time();
    let (device, mode) = vulkan();
    let mut config = config(&[
        ("n_layer", 2),
        ("n_head", 2),
        ("n_embd", 256),
        ("block_size", 32),
        ("batch_size", 2),
        ("vocab_size", 8192),
        ("loss_chunk", 64),
    ]);
    config.offload_optimizer = Choice::True;
    let limits = Limits { pools: true, ..Limits::default() };
    let forecast = plan::plan(&config, 8192, &limits, None).unwrap();
    let before = gpu::memory(&device).unwrap();
    let mut step = TrainingStep::planned(&device, &config, &forecast.plan, mode);
    for _ in 0..3 {
        step.step();
        gpu::wait(&device).unwrap();
    }
    let after = gpu::memory(&device).unwrap();
    let held = after.in_use - before.in_use;
    let parameters = forecast.rows.iter().find(|row| row.name == "parameters");
    let weights = parameters.expect("every plan has them").bytes;
    let reserved = after.reserved.saturating_sub(before.reserved);
    println!("{held} bytes in use between steps, {reserved} held, {weights} of weights");
    // Uniforms, the state of loss scaling and the norm.
    assert!((weights..weights + (1 << 20)).contains(&held), "{held} for {weights}");
    assert!(reserved <= forecast.predicted_bytes, "{reserved} for {}", forecast.predicted_bytes);
}

/// float16 on cooperative matrices, which newer versions of Mesa's lavapipe have.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn the_plan_predicts_the_memory_of_a_step_on_cooperative_matrices() {
    let mut abilities = adapters().map(|device| device.info.abilities);
    let abilities = abilities.find(|abilities| abilities.matrices.is_some());
    let abilities = abilities.expect("a Vulkan adapter with cooperative matrices of float16");
    let precision = abilities.precision(Dtype::Float16).expect("its matrices are float16");
    compare_with_the_plan(OpsMode::AUTO.in_precision(precision), &[OnDevice, Adapter]);
}

#[test]
fn the_chunked_loss_takes_a_tenth_of_the_memory_of_all_logits() {
    let _guard = one_at_a_time();
    let (device, mode) = vulkan();
    let (n, c, v) = (512, 384, 4096);
    let x = Tensor::<2>::zeros([n, c], &device);
    let wte = Tensor::<2>::zeros([v, c], &device);
    let targets: Arc<[u32]> = vec![0; n].into();
    let before = gpu::memory(&device).unwrap().in_use;
    let gradients = 4 * (n * c + v * c) as u64;
    let extra = |peak: u64| (peak - before - gradients) as f64;
    let loss = CrossEntropy { vocab: v, chunk: 64, scale: 1.0 };
    let (_, ours) = gpu::dry_run(&device, || {
        ops::linear_cross_entropy_gradients(x, vec![wte], None, targets, loss, true, mode)
    });
    let ad = device.clone().autodiff();
    let x = Tensor::<2>::zeros([n, c], &ad).require_grad();
    let wte = Tensor::<2>::zeros([v, c], &ad).require_grad();
    let indices = TensorData::new(vec![0i32; n], [n, 1]);
    let indices = Tensor::<2, Int>::from_data(indices, &ad);
    let before = gpu::memory(&device).unwrap().in_use;
    let extra_of_stock = |peak: u64| (peak - before - gradients) as f64;
    let (_, stock) = gpu::dry_run(&device, || {
        let logits = x.clone().matmul(wte.clone().transpose());
        activation::log_softmax(logits, 1).gather(1, indices).mean().neg().backward()
    });
    let (ours, stock) = (extra(ours), extra_of_stock(stock));
    println!(
        "{ours} bytes in addition to the gradients, {stock} with burn's ops: {:.1} times",
        stock / ours
    );
    assert!(ours * 10.0 <= stock, "{ours} against {stock}");
}

/// Launches share the placeholders of the operands that they leave out, and a failed launch leaves them
/// usable.
#[test]
fn launches_share_the_placeholders_of_left_out_operands() {
    let _guard = one_at_a_time();
    let (device, mode) = vulkan();
    let [x, w] = [1.0, 0.5].map(|value| Tensor::<2>::full([16, 16], value, &device));
    let linear = || ops::linear(x.clone(), w.clone(), None, None, None, mode);
    // Dry, because a launch also caches its parameters.
    let in_use = || {
        gpu::dry_run(&device, || drop(linear()));
        gpu::memory(&device).unwrap().in_use
    };
    let before = gpu::memory(&device).unwrap().in_use;
    let after = in_use();
    assert!(after > before, "a launch leaves out the bias, the residual and others");
    assert_eq!(in_use(), after, "the same again");

    // No device has 64 GiB in a binding, so the output is never written. The next launch does not need it.
    let huge = Tensor::<2>::empty([1 << 30, 16], &device);
    let failed = ops::linear(huge, w.clone() * 2.0, None, None, None, mode).try_into_data();
    assert!(failed.is_err(), "memory that is refused");
    assert_eq!(linear().into_data(), Tensor::<2>::full([16, 16], 8.0, &device).into_data());
}

/// In the first 25 steps or so, the pools grow.
#[test]
fn memory_is_flat_over_200_steps() {
    let _guard = one_at_a_time();
    let (device, mode) = vulkan();
    let config = config(&[
        ("n_layer", 1),
        ("n_head", 2),
        ("n_embd", 64),
        ("block_size", 16),
        ("batch_size", 2),
        ("vocab_size", 64),
    ]);
    let mut step = TrainingStep::new(&device, &config, mode);
    let mut reserved = |steps: usize| {
        for number in 0..steps {
            step.step();
            // A run waits at its log lines. Without waits the queue would grow without bound.
            if number % 10 == 9 {
                gpu::wait(&device).unwrap();
            }
        }
        gpu::memory(&device).unwrap()
    };
    let warm = reserved(50);
    let end = reserved(150);
    println!("after 50 steps {warm:?}, after 200 {end:?}");
    // The device keeps the parameters of up to 2048 launches, of at most 512 bytes each. Parameters
    // with the number of the step are new in each step. An activation of this width has 8192 bytes.
    const PARAMETERS: u64 = 2048 * 512;
    assert!(end.reserved <= warm.reserved + PARAMETERS, "{warm:?}, then {end:?}");
    assert!(end.in_use <= warm.in_use + PARAMETERS, "{warm:?}, then {end:?}");
}
