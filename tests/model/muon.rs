//! Compares Muon with PyTorch's torch.optim.Muon (tests/reference/muon.py), for the matrices of a
//! block: square, wide, tall, and three next to each other.

use wgpt::config::OptimizerKind;
use wgpt::model::Parameter;
use wgpt::train::Masters;

use super::*;

const WIDTH: usize = 12;

/// The weights of the reference, or ones where it has none.
struct Start(Case);

impl WeightSource for Start {
    fn weight(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        if is_matrix(name) {
            self.0.weight(name, shape)
        } else {
            Ok(vec![1.0; shape.iter().product()])
        }
    }
}

/// Returns true for the weights that Muon updates.
fn is_matrix(name: &str) -> bool {
    name.starts_with("h.") && name.ends_with(".weight") && !name.contains("ln_")
}

fn block(width: usize) -> Architecture {
    Architecture { n_layer: 1, n_embd: width, ..architecture(Gelu::Tanh, false) }
}

fn muon_config() -> Config {
    Config { optimizer: OptimizerKind::Muon, grad_clip: 1.0, ..optimizer_config() }
}

fn muon(model: &Gpt, mode: OpsMode) -> Optimizer {
    Optimizer::new(&muon_config(), model, None, None, mode)
}

/// Returns a gradient for each part of each weight, in the order of the model. `of` returns the
/// gradients of a matrix.
fn gradients(model: &Gpt, of: impl Fn(&str) -> Vec<f32>) -> Vec<Tensor<1>> {
    let of_weight = |Parameter { name, parts, .. }: Parameter| {
        if is_matrix(&name) {
            vec![Tensor::from_data(of(&name).as_slice(), &parts[0].device())]
        } else {
            parts.iter().map(Tensor::zeros_like).collect()
        }
    };
    parameters(model).into_iter().flat_map(of_weight).collect()
}

/// Returns the bits of a model's weights and of an optimizer's states.
fn all_bits(model: &Gpt, optimizer: &Optimizer) -> Vec<Vec<u32>> {
    let states = optimizer.saved_states(model).into_iter().flat_map(|saved| saved.parts);
    all_values(model).into_iter().chain(states.map(values)).map(|values| bits(&values)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Returns the part of the reference's gradients that belongs to step `step`.
fn reference_gradient(case: &Case, name: &str, step: usize) -> Vec<f32> {
    const GRADIENTS: usize = 4;
    let all = case.f32(&format!("grad.{name}"));
    let len = all.len() / GRADIENTS;
    let first = step % GRADIENTS * len;
    let scale = case.f32("scales")[step];
    all[first..first + len].iter().map(|grad| grad * scale).collect()
}

fn check_muon(device: &Device, mode: OpsMode) {
    let case = Case::open("muon.safetensors");
    let mut start = Start(Case::open("muon.safetensors"));
    let mut model = Gpt::new(&block(WIDTH), &mut start, device).unwrap();
    let mut optimizer = muon(&model, mode);
    let mut worst = 0.0f64;
    for (step, &rate) in case.f32("learning_rates").iter().enumerate() {
        let grads = gradients(&model, |name| reference_gradient(&case, name, step));
        let update = optimizer.update(&mut model, grads, step as u64 + 1, f64::from(rate), 1);
        pollster::block_on(update);
        for Parameter { name, parts, .. } in parameters(&model) {
            if is_matrix(&name) {
                let got: Vec<f32> = parts.into_iter().flat_map(values).collect();
                let all = case.f32(&format!("steps.{name}"));
                let off = error(&got, &all[step * got.len()..][..got.len()]);
                worst = worst.max(off);
                assert!(off < 1e-4, "{mode:?}: {name} after step {step} is off by {off:e}");
            }
        }
    }
    let mut momenta = 0;
    for Parameter { name, parts, .. } in optimizer.saved_states(&model) {
        let weight = name.strip_prefix("m.").filter(|weight| is_matrix(weight));
        assert!(weight.is_some() || !is_matrix(&name[2..]), "{name}: Muon has one moment");
        if let Some(weight) = weight {
            let got: Vec<f32> = parts.into_iter().flat_map(values).collect();
            let off = error(&got, &case.f32(&format!("momentum.{weight}")));
            assert!(off < 1e-4, "{mode:?}: {name} is off by {off:e}");
            momenta += 1;
        }
    }
    assert_eq!(momenta, 4);
    println!("{mode:?}: weights at most {worst:.1e} off");
}

/// An update with a gradient that is not finite changes no bit of weights and momentum.
fn check_skip(device: &Device, mode: OpsMode) {
    let case = Case::open("muon.safetensors");
    let mut start = Start(Case::open("muon.safetensors"));
    let mut model = Gpt::new(&block(WIDTH), &mut start, device).unwrap();
    let mut optimizer = muon(&model, mode);
    let poisons = [None, Some(f32::NAN), Some(f32::INFINITY), None, Some(f32::NEG_INFINITY)];
    for (step, poison) in poisons.into_iter().enumerate() {
        let before = all_bits(&model, &optimizer);
        let grads = gradients(&model, |name| {
            let mut grad = reference_gradient(&case, name, step);
            // Elements without a gradient have a momentum of zero, maybe with a sign.
            grad[0] = -0.0;
            if name.contains("c_attn") {
                grad[1] = poison.unwrap_or(1.0);
            }
            grad
        });
        pollster::block_on(optimizer.update(&mut model, grads, step as u64 + 1, 1e-2, 1));
        let same = before == all_bits(&model, &optimizer);
        assert_eq!(same, poison.is_some(), "{mode:?}, step {step}: {poison:?}");
    }
    assert!(all_values(&model).iter().flatten().all(|weight| weight.is_finite()), "{mode:?}");
}

#[test]
fn cpu_matches_pytorchs_muon() {
    for mode in [OpsMode::AUTO, OpsMode::REFERENCE] {
        check_muon(&Device::flex(), mode);
        check_skip(&Device::flex(), mode);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_pytorchs_muon() {
    for info in gpu::devices().into_iter().filter(|info| info.id.backend == gpu::Backend::Vulkan) {
        eprintln!("{}: {}", info.id, info.name);
        let open = gpu::open(DeviceChoice::Named(info.id)).unwrap();
        for mode in [OpsMode::AUTO.on(open.info.kind), OpsMode::WIDE, OpsMode::CUBE] {
            check_muon(&open.device, mode);
            check_skip(&open.device, mode);
        }
        let config = muon_config();
        // The matrices of `c_attn` begin where a GPU can bind a buffer, so they are not copied.
        let mode = OpsMode::AUTO.on(open.info.kind);
        let wanted = train_on_noise(&config, 64, &Device::flex(), OpsMode::AUTO, false);
        let got = train_on_noise(&config, 64, &open.device, mode, false);
        for ((name, got), (_, wanted)) in got.iter().zip(&wanted) {
            let off = error(got, wanted);
            assert!(off < 1e-4, "{name} is off by {off:e}");
        }
        check_offload(&config, 64, &open.device, mode);
    }
}

/// Values without a pattern, the same in each run.
struct Noise(u32);

impl Noise {
    fn values(&mut self, len: usize) -> Vec<f32> {
        let mut next = || {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        (0..len).map(|_| next()).collect()
    }
}

impl WeightSource for Noise {
    fn weight(&mut self, _name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightError> {
        Ok(self.values(shape.iter().product()))
    }
}

/// Makes two updates of a block, with states on the device or in host memory. Returns its weights and
/// the states of the optimizer by their names in checkpoints.
fn train_on_noise(
    config: &Config,
    width: usize,
    device: &Device,
    mode: OpsMode,
    offload: bool,
) -> Vec<(String, Vec<f32>)> {
    let (architecture, mut source) = (block(width), Noise(1));
    let (mut model, mut optimizer) = if offload {
        let mut masters = Masters::new(config).expect("this is no browser");
        let model = masters.model(mode.precision, &architecture, &mut source, device).unwrap();
        let optimizer = Optimizer::new(config, &model, Some(masters), None, mode);
        (model, optimizer)
    } else {
        let model = Gpt::new(&architecture, &mut source, device).unwrap();
        let optimizer = Optimizer::new(config, &model, None, None, mode);
        (model, optimizer)
    };
    for step in 1..=2 {
        let mut noise = Noise(10 * step as u32);
        let mut grad =
            |part: Tensor<1>| Tensor::from_data(noise.values(part.dims()[0]).as_slice(), device);
        let parts = parameters(&model).into_iter().flat_map(|parameter| parameter.parts);
        let grads = parts.map(&mut grad).collect();
        pollster::block_on(optimizer.update(&mut model, grads, step, 1e-2, 1));
    }
    let all = optimizer.weights(&model).into_iter().chain(optimizer.saved_states(&model));
    let named =
        |Parameter { name, parts, .. }| (name, parts.into_iter().flat_map(values).collect());
    all.map(named).collect()
}

/// Compares states on the device and in host memory. In either case the device computes Muon, with the
/// same operations on the same values.
pub fn check_offload(config: &Config, width: usize, device: &Device, mode: OpsMode) {
    let [here, offloaded] =
        [false, true].map(|offload| train_on_noise(config, width, device, mode, offload));
    assert_eq!(here.len(), offloaded.len());
    let is_muon = config.optimizer == OptimizerKind::Muon;
    let mut compared = 0;
    for ((name, here), (same_name, offloaded)) in here.into_iter().zip(offloaded) {
        assert_eq!(name, same_name);
        let off = error(&offloaded, &here);
        // AdamW computes where its state is, and rounds as it does there.
        if is_muon && is_matrix(name.strip_prefix("m.").unwrap_or(&name)) {
            assert!(bits(&offloaded) == bits(&here), "{mode:?}: {name} is off by {off:e}");
            compared += 1;
        }
        assert!(off < 1e-5, "{mode:?}: {name} is off by {off:e}");
    }
    let expected = if is_muon { 8 } else { 0 };
    assert_eq!(compared, expected, "the weights and momenta of four matrices");
}

/// With an MLP that crosses to the device in two pieces.
#[test]
fn muon_in_host_memory_changes_no_bit() {
    check_offload(&muon_config(), 576, &Device::flex(), OpsMode::AUTO);
}

/// With matrices so large that the products of the CPU are divided among threads.
#[test]
fn muon_depends_on_neither_the_run_nor_the_number_of_threads() {
    let train = || {
        let all = train_on_noise(&muon_config(), 192, &Device::flex(), OpsMode::AUTO, false);
        all.iter().map(|(_, values)| bits(values)).collect::<Vec<_>>()
    };
    let first = train();
    assert!(first == train(), "a second run differs");
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        assert!(first == pool.install(train), "{threads} threads differ");
    }
}
