//! Compares the model in half precision with float32 and with PyTorch: gradients, updates and trainings
//! under loss scaling.

use super::*;

/// Compares loss and gradients of one reference model in half precision, with and without
/// activation checkpointing. The loss is scaled as in a run, so that small gradients do not
/// underflow.
fn check_half(
    name: &str,
    gelu: Gelu,
    bias: bool,
    device: &Device,
    mode: OpsMode,
    shards: usize,
    tolerance: &Tolerance,
) {
    const SCALE: f32 = 4096.0;
    let mut case = Case::open(&format!("gpt_{name}.safetensors"));
    let model = Gpt::with_shards(&architecture(gelu, bias), &mut case, device, shards).unwrap();
    let pass = Pass { mode, dropout: None };
    let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: SCALE / (BATCH * TIME) as f32 };
    let mut want = case.f32("losses");
    want.truncate(1);
    want[0] *= SCALE;
    for checkpoint in [false, true] {
        let mut sums = WeightGradients::default();
        let value = model.add_gradients(&batch(&case, 0), loss, pass, checkpoint, &mut sums, None);
        let off = error(&values(value), &want);
        assert!(off < tolerance.loss, "{name}: loss is off by {off:e}");
        check_gradients(name, &case, &model, &sums.into_vec(), SCALE, tolerance.grad);
    }
}

/// Makes the ten updates of a reference model in half precision. In one of them the gradients overflow.
/// It changes nothing, and the next updates continue from there.
fn check_scaled_updates(device: &Device, mode: OpsMode, tolerance: &Tolerance) {
    let mut case = Case::open("gpt_tanh_bias.safetensors");
    let mut model = Gpt::new(&architecture(Gelu::Tanh, true), &mut case, device).unwrap();
    model.keep_half_weights(mode.precision);
    let mut optimizer = Optimizer::new(&optimizer_config(), &model, None, None, mode);
    let tokens = BATCH * TIME;
    let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: 1.0 / tokens as f32 };
    let pass = Pass { mode, dropout: None };
    let update =
        |model: &mut Gpt, optimizer: &mut Optimizer, number: u64, step: usize, rate: f32| {
            let mut sums = WeightGradients::default().scaled(optimizer.loss_scale());
            let value =
                model.add_gradients(&batch(&case, step), loss, pass, false, &mut sums, None);
            let update = optimizer.update(model, sums.into_vec(), number, f64::from(rate), tokens);
            let norm = pollster::block_on(update);
            (values(value), values(norm))
        };
    let (losses, norms) = (case.f32("losses"), case.f32("grad_norms"));
    let mut number = 0;
    for (step, &rate) in case.f32("learning_rates").iter().enumerate() {
        if step == 4 {
            let before = all_values(&model);
            let state = pollster::block_on(optimizer.read_loss_scale());
            assert_eq!((state.clean, state.skipped), (4, 0));
            let (usual, scale) = (state.scale, 2f64.powi(30));
            optimizer = optimizer.with_loss_scale(LossScale { scale, ..state });
            number += 1;
            let (_, norm) = update(&mut model, &mut optimizer, number, step, rate);
            assert!(!norm[0].is_finite() && before == all_values(&model));
            let state = pollster::block_on(optimizer.read_loss_scale());
            let (clean, skipped, skipped_in_a_row) = (0, 1, 1);
            let want = LossScale { scale: scale / 2.0, clean, skipped, skipped_in_a_row };
            assert_eq!(state, want);
            optimizer = optimizer.with_loss_scale(LossScale { scale: usual, ..state });
        }
        number += 1;
        let (loss, norm) = update(&mut model, &mut optimizer, number, step, rate);
        let off = [error(&loss, &losses[step..=step]), error(&norm, &norms[step..=step])];
        // AdamW makes steps of full size along gradients that are all rounding.
        let most = [10.0 * tolerance.loss, 10.0 * tolerance.grad];
        assert!(off[0] < most[0] && off[1] < most[1], "loss and norm {step}: off by {off:?}");
    }
}

/// The losses of a training, its final validation loss, and the updates that were skipped.
struct Training {
    losses: Vec<f32>,
    val_loss: f32,
    skipped: Vec<usize>,
}

/// Trains the model of half_training.safetensors like grad_scaler.py, with an overflow in one update if
/// the loss is scaled.
fn train(device: &Device, mode: OpsMode) -> Training {
    const STEPS: usize = 300;
    const OVERFLOW: usize = 10;
    const SCALE: f64 = 64.0;
    let mut case = Case::open("half_training.safetensors");
    let architecture = Architecture { n_layer: 4, ..architecture(Gelu::Tanh, true) };
    let mut model = Gpt::new(&architecture, &mut case, device).unwrap();
    model.keep_half_weights(mode.precision);
    let config = Config { grad_clip: 1.0, ..optimizer_config() };
    let mut optimizer = Optimizer::new(&config, &model, None, None, mode);
    let tokens = BATCH * TIME;
    let loss = CrossEntropy { vocab: VOCAB, chunk: tokens, scale: 1.0 / tokens as f32 };
    let pass = Pass { mode, dropout: None };
    let (mut losses, mut skipped) = (Vec::new(), Vec::new());
    for step in 0..STEPS {
        if mode.precision.scales_loss() && [0, OVERFLOW, OVERFLOW + 1].contains(&step) {
            let state = pollster::block_on(optimizer.read_loss_scale());
            let scale = if step == OVERFLOW { 2f64.powi(30) } else { SCALE };
            optimizer = optimizer.with_loss_scale(LossScale { scale, ..state });
        }
        let mut sums = WeightGradients::default().scaled(optimizer.loss_scale());
        let value = model.add_gradients(&batch(&case, step), loss, pass, false, &mut sums, None);
        let number = step as u64 + 1;
        let update = optimizer.update(&mut model, sums.into_vec(), number, 1e-3, tokens);
        let norm = pollster::block_on(update);
        losses.push(values(value)[0]);
        if !values(norm)[0].is_finite() {
            skipped.push(step);
        }
    }
    let batches = case.f32("val_targets").len() / tokens;
    let val_loss = |index: usize| {
        let [tokens, targets] =
            ["val_tokens", "val_targets"].map(|name| case.ids(name, index, tokens));
        values(model.loss(&MicroBatch { tokens, targets, sequences: BATCH }, loss, pass))[0]
    };
    let val_loss = (0..batches).map(val_loss).sum::<f32>() / batches as f32;
    Training { losses, val_loss, skipped }
}

/// Compares 300 updates in half precision and in float32 with each other and with PyTorch's.
fn check_training(device: &Device, mode: OpsMode) {
    let case = Case::open("half_training.safetensors");
    let half = train(device, mode);
    let whole = train(&Device::flex(), OpsMode::AUTO);
    let skipped = case.f32("float16.skipped").into_iter().map(|step| step.to_bits() as usize);
    assert_eq!(half.skipped, skipped.collect::<Vec<_>>());
    assert_eq!(whole.skipped, Vec::<usize>::new());
    let worst = |a: &[f32], b: &[f32]| {
        a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs() / b)).fold(0.0, f64::max)
    };
    for (what, a, b, most) in [
        ("float32 and PyTorch's", &whole, "float32", 1e-3),
        ("float16 and PyTorch's", &half, "float16", 1e-2),
        ("float16 and PyTorch's float32", &half, "float32", 1e-2),
    ] {
        let losses = worst(&a.losses, &case.f32(&format!("{b}.losses")));
        let val_loss = worst(&[a.val_loss], &case.f32(&format!("{b}.val_loss")));
        println!("{what}: losses {losses:.1e}, validation {val_loss:.1e} apart");
        assert!(losses < most && val_loss < most / 2.0, "{what}: {losses:e}, {val_loss:e}");
    }
}

/// Activations in f16, products in f32. With the same roundings in NumPy, gradients are at most 1.9e-3
/// off, the loss 5e-6, and 1.6e-4 over ten updates.
#[test]
fn f16_adapters_match_pytorch_in_half_precision() {
    let abilities = Abilities { float16: true, ..Abilities::default() };
    let precision = abilities.precision(Dtype::Float16).expect("float16 is among the abilities");
    let adapters = gpu::devices()
        .into_iter()
        .filter(|info| info.id.backend == gpu::Backend::Vulkan && info.abilities.float16);
    let mut checked = 0;
    for info in adapters {
        eprintln!("{}: {}", info.id, info.name);
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        let mode = OpsMode::AUTO.on(open.info.kind).in_precision(precision);
        for (name, gelu, bias, shards) in CASES {
            let tolerance = Tolerance { loss: 1e-4, grad: 5e-3 };
            check_half(name, gelu, bias, &open.device, mode, shards, &tolerance);
        }
        check_scaled_updates(&open.device, mode, &Tolerance { loss: 1e-3, grad: 1e-2 });
        check_training(&open.device, mode);
        checked += 1;
    }
    assert!(checked > 0, "no Vulkan adapter stores f16: Mesa's lavapipe does");
}

/// Ten updates with products on cooperative matrices and copies of the weights in f16.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn cooperative_matrices_match_pytorch() {
    let has_matrices = |info: &gpu::DeviceInfo| {
        info.id.backend == gpu::Backend::Vulkan && info.abilities.matrices.is_some()
    };
    let info = gpu::devices().into_iter().find(has_matrices);
    let info = info.expect("a Vulkan adapter with cooperative matrices of float16");
    let precision = info.abilities.precision(Dtype::Float16).unwrap();
    let selected = gpu::select(DeviceChoice::Named(info.id)).unwrap();
    let open = selected.open(precision).unwrap();
    let mode = OpsMode::AUTO.on(info.kind).in_precision(precision);
    check_scaled_updates(&open.device, mode, &Tolerance { loss: 1e-3, grad: 1e-2 });
    check_training(&open.device, mode);
}
