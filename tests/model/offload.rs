//! Compares an optimizer in host memory with one on the device: losses, weights and states of the
//! same training.

use wgpt::config::OptimizerKind;
use wgpt::model::Parameter;
use wgpt::train::Masters;

use super::*;

/// Updates of the comparison. The reference has data for ten, which repeat.
const STEPS: usize = 20;
const DATA: usize = 10;

fn settings(optimizer: OptimizerKind) -> Config {
    Config { optimizer, grad_clip: 1.0, ..optimizer_config() }
}

/// Builds the reference model with an optimizer in host memory.
fn offloaded(config: &Config, device: &Device, mode: OpsMode) -> (Gpt, Optimizer) {
    let mut case = Case::open("gpt_tanh_bias.safetensors");
    let architecture = architecture(Gelu::Tanh, true);
    let mut masters = Masters::new(config).expect("this build has a CPU backend");
    let model = masters.model(mode.precision, &architecture, &mut case, device).unwrap();
    let optimizer = Optimizer::new(config, &model, Some(masters), None, mode);
    (model, optimizer)
}

/// Builds the reference model with an optimizer on its device.
fn on_device(config: &Config, device: &Device, mode: OpsMode) -> (Gpt, Optimizer) {
    let mut case = Case::open("gpt_tanh_bias.safetensors");
    let mut model = Gpt::new(&architecture(Gelu::Tanh, true), &mut case, device).unwrap();
    model.keep_half_weights(mode.precision);
    let optimizer = Optimizer::new(config, &model, None, None, mode);
    (model, optimizer)
}

/// Returns the weights and states as checkpoints save them, by name, and checks their shapes.
fn saved(model: &Gpt, optimizer: &Optimizer) -> Vec<(String, Vec<f32>)> {
    let all = optimizer.weights(model).into_iter().chain(optimizer.saved_states(model));
    let of_one = |saved: Parameter| {
        let elements: Vec<f32> = saved.parts.into_iter().flat_map(values).collect();
        assert_eq!(elements.len(), saved.shape.iter().product::<usize>(), "{}", saved.name);
        (saved.name, elements)
    };
    all.map(of_one).collect()
}

/// A training's losses, and the tensors that it saves at its end.
struct Trained {
    losses: Vec<f32>,
    saved: Vec<(String, Vec<f32>)>,
}

/// Trains for [`STEPS`] updates. One of them has a gradient that is not finite, and must change
/// nothing.
fn train((mut model, mut optimizer): (Gpt, Optimizer), mode: OpsMode) -> Trained {
    let case = Case::open("gpt_tanh_bias.safetensors");
    let tokens = BATCH * TIME;
    let loss = CrossEntropy { vocab: VOCAB, chunk: 24, scale: 1.0 / tokens as f32 };
    let pass = Pass { mode, dropout: None };
    let mut losses = Vec::new();
    let mut number = 0;
    for step in 0..STEPS {
        let mut sums = WeightGradients::default().scaled(optimizer.loss_scale());
        let value =
            model.add_gradients(&batch(&case, step % DATA), loss, pass, false, &mut sums, None);
        losses.push(values(value)[0]);
        let grads = sums.into_vec();
        if step == STEPS / 2 {
            let before = saved(&model, &optimizer);
            let mut wrong = grads.clone();
            wrong[3] = Tensor::full(wrong[3].shape(), f32::NAN, &wrong[3].device());
            number += 1;
            pollster::block_on(optimizer.update(&mut model, wrong, number, 1e-3, tokens));
            assert!(before == saved(&model, &optimizer), "{mode:?}: a skipped update");
        }
        number += 1;
        pollster::block_on(optimizer.update(&mut model, grads, number, 1e-3, tokens));
    }
    Trained { losses, saved: saved(&model, &optimizer) }
}

/// Returns the largest relative difference of two losses of the same step.
fn off(got: &Trained, want: &Trained) -> f64 {
    let pairs = got.losses.iter().zip(&want.losses);
    let off = |(&got, &want): (&f32, &f32)| (f64::from(got) / f64::from(want) - 1.0).abs();
    pairs.map(off).fold(0.0, f64::max)
}

fn names(trained: &Trained) -> Vec<&str> {
    trained.saved.iter().map(|(name, _)| name.as_str()).collect()
}

/// In f32 the device computes the same gradients from the same weights. Its AdamW may round
/// differently. The CPU's follows IEEE 754, a GPU's is off by a few units in the last place, and the
/// second moment multiplies in another order.
#[test]
fn an_offloaded_optimizer_has_the_losses_of_one_on_the_device() {
    for info in gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan) {
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        let mode = OpsMode::AUTO.on(open.info.kind);
        for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
            let config = settings(kind);
            let want = train(on_device(&config, &open.device, mode), mode);
            let got = train(offloaded(&config, &open.device, mode), mode);
            let off = off(&got, &want);
            let same_bits = got.saved == want.saved;
            println!("{} {kind}: losses at most {off:.1e} off, same bits: {same_bits}", info.name);
            assert!(off < 1e-5, "{}, {kind}: {off:e}", info.name);
            assert_eq!(names(&got), names(&want));
        }
    }
}

/// Matrices of more than one piece. The second piece ends where the device binds no buffer.
#[test]
fn an_offloaded_optimizer_updates_large_tensors_of_unaligned_size() {
    let config = settings(OptimizerKind::AdamW);
    for info in gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan) {
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        let mode = OpsMode::AUTO.on(open.info.kind);
        // [594, 3 x 594] and [594, 4 x 594] elements: 4.04 and 5.4 MiB, no multiples of 256 bytes.
        muon::check_offload(&config, 594, &open.device, mode);
    }
}

/// On the CPU both run the same loops.
#[test]
fn an_offloaded_optimizer_of_a_model_on_the_cpu_changes_no_bit() {
    let mode = OpsMode::AUTO;
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let config = settings(kind);
        let want = train(on_device(&config, &Device::flex(), mode), mode);
        let got = train(offloaded(&config, &Device::flex(), mode), mode);
        assert!(got.losses == want.losses && got.saved == want.saved, "{kind}");
    }
}

/// In float16 the device has half weights. The products round weights in either case, the embedding
/// only if they are stored in half precision.
#[test]
fn an_offloaded_optimizer_trains_half_weights() {
    let mut checked = 0;
    for info in gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan) {
        let Some(precision) = info.abilities.precision(Dtype::Float16) else { continue };
        let open = gpu::select(DeviceChoice::Named(info.id)).unwrap().open(precision).unwrap();
        let own = OpsMode::AUTO.on(open.info.kind);
        for mode in [own, OpsMode::CUBE] {
            let precision = if mode == own {
                precision
            } else {
                Abilities { matrices: None, ..info.abilities }.planned(Dtype::Float16)
            };
            let mode = mode.in_precision(precision);
            for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
                let config = settings(kind);
                let want = train(on_device(&config, &open.device, mode), mode);
                let got = train(offloaded(&config, &open.device, mode), mode);
                let off = off(&got, &want);
                println!("{} {mode:?} {kind}: losses at most {off:.1e} off", info.name);
                assert!(off < 1e-2, "{}, {mode:?}, {kind}: {off:e}", info.name);
                assert_eq!(names(&got), names(&want));
            }
            check_float32(&open.device, mode);
        }
        checked += 1;
    }
    assert!(checked > 0, "no Vulkan adapter stores f16: Mesa's lavapipe does");
}

/// Logits and samples compute with half weights in float32.
fn check_float32(device: &Device, mode: OpsMode) {
    let config = settings(OptimizerKind::AdamW);
    let case = Case::open("gpt_tanh_bias.safetensors");
    let (half, _) = offloaded(&config, device, mode);
    let logits = values(half.logits(batch(&case, 0).tokens, BATCH, mode));
    let off = error(&logits, &case.f32("logits"));
    assert!(off < 5e-3, "{mode:?}: logits are off by {off:e}");
    let options = SampleOptions { temperature: 0.0, top_k: 0, seed: 1 };
    let tokens = case.ids("tokens", 0, BATCH * TIME);
    let prompt = &tokens[..3];
    let mut sampler = Sampler::new(&half, prompt, options, mode);
    let whole = half.logits(prompt.into(), 1, mode);
    let last = values(whole.narrow(0, 2, 1));
    let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
    assert_eq!(pollster::block_on(sampler.next_token()), best as u32, "{mode:?}");
}

/// One optimizer loads the weights and states that the other saved.
#[test]
fn saved_states_load_into_either_place() {
    let (device, mode) = (Device::flex(), OpsMode::AUTO);
    for kind in [OptimizerKind::AdamW, OptimizerKind::Muon] {
        let config = settings(kind);
        let trained = train(on_device(&config, &device, mode), mode);
        let find = |name: &str, _: &[usize]| {
            let (_, values) = trained.saved.iter().find(|(saved, _)| saved == name).unwrap();
            Ok::<_, WeightError>(Some(values.clone()))
        };
        struct Saved<'a>(&'a Trained);
        impl WeightSource for Saved<'_> {
            fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
                let (_, values) = self.0.saved.iter().find(|(saved, _)| saved == name).unwrap();
                Ok(values[..shape.iter().product()].to_vec())
            }
        }
        let architecture = architecture(Gelu::Tanh, true);
        let mut masters = Masters::new(&config).unwrap();
        let mut source = Saved(&trained);
        let model = masters.model(mode.precision, &architecture, &mut source, &device).unwrap();
        let loaded = Optimizer::load(&config, &model, Some(masters), None, mode, find).unwrap();
        assert!(saved(&model, &loaded) == trained.saved, "{kind}");
    }
}
