//! Tests of the choice of a plan.

use super::*;
use crate::config::{Budget, Dtype};
use crate::plan::work::tests::{VOCAB, gpt2};
use crate::plan::{Class, DeviceMemory, DeviceProfile, Fix, SpeedPoint, gpu_named};

const GIB: u64 = 1 << 30;

fn limits(budget: Option<u64>) -> Limits {
    Limits { budget, pools: true, ..Limits::default() }
}

fn planned(config: &Config, limits: &Limits) -> Result<Forecast, PlanError> {
    plan(config, VOCAB, limits, None)
}

fn plan_with(config: &Config, budget: u64) -> Result<Forecast, PlanError> {
    planned(config, &limits(Some(budget)))
}

/// Returns the least plan of a run that is too big, and the changes that would fit.
fn refused(result: Result<Forecast, PlanError>) -> (Forecast, Vec<Fix>) {
    match result {
        Err(PlanError::TooBig { least, fixes, .. }) => (*least, fixes),
        other => panic!("not too big: {other:?}"),
    }
}

#[test]
fn gpt2_needs_the_documented_memory() {
    for (flags, most) in [
        (&[("batch_size", "1")][..], 2.8),
        (&[("batch_size", "4")], 4.3),
        (&[("batch_size", "8"), ("grad_checkpoint", "true")], 3.2),
    ] {
        let requested = gpt2(flags);
        let limits = Limits { largest_tensor: Some(128 << 20), pools: true, ..Limits::default() };
        let forecast = planned(&requested, &limits).unwrap();
        let gib = forecast.predicted_bytes as f64 / GIB as f64;
        assert!(gib < most && gib > 0.8 * most, "{flags:?}: {gib}");
        assert_eq!(forecast.why, "");
    }
}

/// With the global batch of 480 sequences a smaller micro-batch costs next to nothing, the optimizer
/// in host memory less than 1%, and activation checkpointing a quarter.
#[test]
fn a_smaller_budget_costs_as_little_time_as_it_can_and_never_the_global_batch() {
    let requested = gpt2(&[("batch_size", "12")]);
    let seconds = |plan: &Plan| {
        DeviceSpeed::assumed(Kernels::Wgsl).seconds(Work::update(&requested, VOCAB, plan))
    };
    let mut last = Plan::new(&requested, VOCAB);
    let mut seen = Vec::new();
    for budget in (10..=90).rev().map(|tenth| tenth * GIB / 10) {
        match plan_with(&requested, budget) {
            Ok(forecast) => {
                let Forecast { plan, why, predicted_bytes, .. } = forecast;
                assert!(predicted_bytes <= budget);
                assert_eq!(plan.micro_batch * plan.accumulation, 480);
                assert_eq!(why.is_empty(), plan.micro_batch == 12, "{why}");
                assert!(TIE * seconds(&plan) >= seconds(&last), "{last:?} then {plan:?}");
                let options = (plan.offload_optimizer, plan.grad_checkpoint);
                if options == (last.offload_optimizer, last.grad_checkpoint) {
                    // A smaller micro-batch leaves more for the logits.
                    let split = |plan: &Plan| (plan.micro_batch, plan.loss_chunk);
                    let is_first = why.is_empty() || seen.last() != Some(&options);
                    assert!(is_first || split(&plan) <= split(&last), "{last:?} then {plan:?}");
                }
                if seen.last() != Some(&options) {
                    seen.push(options);
                }
                last = plan;
            }
            too_big => {
                let (least, fixes) = refused(too_big);
                assert!(least.predicted_bytes > budget);
                assert!(fixes.len() >= 2, "{fixes:?}");
                assert!(fixes.iter().take(2).all(|fix| fix.predicted_bytes <= budget));
            }
        }
    }
    assert_eq!(seen, [(false, false), (true, false), (true, true)]);
}

#[test]
fn the_logits_take_what_is_left_of_the_budget() {
    let requested = gpt2(&[("batch_size", "8")]);
    let default = Plan::new(&requested, VOCAB).loss_chunk;
    let chunk = |config: &Config, limits: &Limits| {
        let forecast = planned(config, limits).unwrap();
        assert_eq!((forecast.plan.micro_batch, forecast.why.as_str()), (8, ""));
        forecast.plan.loss_chunk
    };
    assert_eq!(chunk(&requested, &limits(None)), default);
    let need = planned(&requested, &limits(None)).unwrap().predicted_bytes;
    assert_eq!(chunk(&requested, &limits(Some(need))), default);
    // 309 MB of logits; twice as much is more than they ever take.
    assert_eq!(chunk(&requested, &limits(Some(2 * need))), 4 * default);
    let set = gpt2(&[("batch_size", "8"), ("loss_chunk", "256")]);
    assert_eq!(chunk(&set, &limits(Some(2 * need))), 256);
    let cpu = Limits { kernels: Kernels::Cpu, ..limits(Some(2 * need)) };
    assert_eq!(chunk(&requested, &cpu), default);
}

#[test]
fn largest_presets_are_the_largest_model_and_micro_batch_of_their_card() {
    for (size, next) in [
        (4, Some("gpt2-medium")),
        (6, Some("gpt2-large")),
        (8, Some("gpt2-large")),
        (12, Some("gpt2-xl")),
        (16, Some("gpt2-xl")),
        (24, None),
    ] {
        let name = format!("largest-{size}gb");
        let budget = size * 900_000_000;
        let requested = Config::of_preset(&name, &[]);
        assert_eq!(requested.global_batch(), 480, "{name}");
        let plan = plan_with(&requested, budget).unwrap().plan;
        let micro_batch = requested.batch_size.get();
        assert_eq!((plan.micro_batch, plan.grad_checkpoint), (micro_batch as usize, false));
        // No batch half as large again fits with the optimizer in the same place.
        let more = (micro_batch * 3).div_ceil(2).to_string();
        let place = plan.offload_optimizer.to_string();
        let whole = [("grad_checkpoint", "false"), ("offload_optimizer", place.as_str())];
        let larger =
            Config::of_preset(&name, &[&whole[..], &[("batch_size", more.as_str())]].concat());
        let less = plan_with(&larger, budget).unwrap().plan.micro_batch;
        assert!(less <= micro_batch as usize, "{name}: {less}");
        if let Some(next) = next {
            let next =
                Config::of_preset(next, &[("grad_checkpoint", "false"), ("micro_batch", "1")]);
            assert!(plan_with(&next, budget).is_err(), "{name}");
        }
    }
}

#[test]
fn plans_respect_what_is_forbidden_and_forced() {
    let flags = [("grad_checkpoint", "false"), ("offload_optimizer", "false")];
    let (_, fixes) = refused(plan_with(&gpt2(&flags), 5 * GIB / 2));
    assert_eq!(fixes[0].flags(), "--grad_checkpoint=auto");
    assert_eq!(fixes[1].flags(), "--offload_optimizer=auto");
    let always = gpt2(&[("grad_checkpoint", "true")]);
    assert!(plan_with(&always, 20 * GIB).unwrap().plan.grad_checkpoint);
    let always = gpt2(&[("offload_optimizer", "true")]);
    let forecast = plan_with(&always, 20 * GIB).unwrap();
    assert_eq!((forecast.plan.offload_optimizer, forecast.why.as_str()), (true, ""));
}

#[test]
fn the_largest_binding_limits_the_micro_batch() {
    let requested = gpt2(&[("batch_size", "16")]);
    let limits = Limits { largest_tensor: Some(128 << 20), pools: true, ..Limits::default() };
    let forecast = planned(&requested, &limits).unwrap();
    // 10,922 rows of 4 x 768 activations fill 128 MiB.
    assert_eq!(forecast.plan.micro_batch, 10);
    assert!(forecast.largest_tensor <= 128 << 20);
    let tiny = Limits { largest_tensor: Some(1 << 20), ..limits };
    assert!(matches!(planned(&requested, &tiny), Err(PlanError::TensorTooLarge { .. })));
}

#[test]
fn smaller_plans_end_with_activation_checkpointing_and_then_the_host() {
    let mut plan = Plan { loss_chunk: 100, ..Plan::new(&gpt2(&[]), VOCAB) };
    let mut seen = Vec::new();
    while let Some(next) = smaller_or_offloaded(&plan, true) {
        assert_eq!(next.micro_batch * next.accumulation, 480);
        let Plan { micro_batch, loss_chunk, grad_checkpoint, offload_optimizer, .. } = next;
        // A running trainer never moves its optimizer.
        assert_eq!(smaller(&plan), (!offload_optimizer).then_some(next.clone()));
        seen.push((micro_batch, loss_chunk, grad_checkpoint, offload_optimizer));
        plan = next;
    }
    let wanted = [
        (6, 100, false, false),
        (3, 100, false, false),
        (1, 100, false, false),
        (1, 50, false, false),
        (1, 50, true, false),
        (1, 50, true, true),
    ];
    assert_eq!(seen, wanted);
    let on_device = Plan { offload_optimizer: false, ..plan };
    assert_eq!(smaller_or_offloaded(&on_device, false), None);
}

/// The limits of a run on a GPU of this size, whose machine has any amount of memory.
fn target(gib: u64, dtype: Dtype) -> Limits {
    let abilities = gpu_named("RTX 4070").unwrap().abilities();
    let (memory, limits) = (DeviceMemory::Target(gib * GIB), limits(None));
    let device = DeviceProfile { memory, abilities, limits, speed: None };
    device.limits(Budget::Auto, dtype).0
}

#[test]
fn large_models_fit_small_gpus_with_the_optimizer_in_host_memory() {
    for (preset, gib, dtype) in [
        ("gpt2-xl", 12, Dtype::Float16),
        ("gpt2-large", 6, Dtype::Float16),
        ("gpt2-large", 8, Dtype::Float32),
        ("gpt2-medium", 4, Dtype::Float32),
    ] {
        let requested = Config::of_preset(preset, &[("dtype", &dtype.to_string())]);
        let forecast = planned(&requested, &target(gib, dtype)).unwrap();
        let Plan { micro_batch, accumulation, offload_optimizer, .. } = forecast.plan;
        assert_eq!((micro_batch * accumulation, offload_optimizer), (480, true), "{preset}");
        assert!(forecast.why.contains("optimizer in host memory, updates take about "));
        assert_eq!(forecast.why.lines().count(), 1);
        // Master weights and two moments, and what is on its way.
        let of_weight = forecast.host_bytes as f64 / requested.parameters(50_304) as f64;
        assert!((12.0..12.5).contains(&of_weight), "{preset}: {of_weight}");
        let never = Config::of_preset(preset, &[("offload_optimizer", "false")]);
        assert!(planned(&never, &target(gib, dtype)).is_err(), "{preset}");
    }
}

#[test]
fn a_machine_with_too_little_memory_is_refused_in_words() {
    let limits = |host| Limits { host_budget: Some(host), ..target(8, Dtype::Float32) };
    let large = Config::of_preset("gpt2-large", &[]);
    let enough = planned(&large, &limits(32 * GIB)).unwrap();
    assert_eq!(enough.host_budget_bytes, Some(32 * GIB));
    assert!(enough.verdict().ends_with(" of 32.00 GiB of host memory"), "{}", enough.verdict());
    let too_big = planned(&large, &limits(4 * GIB));
    let error = too_big.as_ref().unwrap_err();
    let (text, hint) = (error.to_string(), error.hint().unwrap());
    assert!(text.ends_with(" of host memory, but only 4.00 GiB is free for a run"), "{text}");
    assert!(hint.starts_with("close other programs; it would fit with --"), "{hint}");
    let (least, fixes) = refused(too_big);
    assert!(least.plan.offload_optimizer && least.predicted_bytes <= 36 * GIB / 5);
    assert!(!fixes.is_empty());
    for fix in fixes {
        let set: Vec<_> = fix.set.iter().map(|(key, value)| (*key, value.as_str())).collect();
        let changed = Config::of_preset("gpt2-large", &set);
        assert!(planned(&changed, &limits(4 * GIB)).is_ok(), "{fix}");
    }
    // On a device that has room for it, the forced place is what has to change.
    let forced = gpt2(&[("offload_optimizer", "true")]);
    let limits = Limits { host_budget: Some(GIB), ..target(24, Dtype::Float32) };
    let (_, fixes) = refused(planned(&forced, &limits));
    assert_eq!(fixes[0].flags(), "--offload_optimizer=false");
}

#[test]
fn one_memory_for_both_holds_the_sum() {
    let forced = gpt2(&[("offload_optimizer", "true"), ("batch_size", "4")]);
    let limits =
        |host| Limits { host_budget: Some(host), unified: true, pools: true, ..Limits::default() };
    let roomy = planned(&forced, &limits(64 * GIB)).unwrap();
    let both = roomy.predicted_bytes + roomy.host_bytes;
    assert_eq!(roomy.host_budget_bytes, Some(64 * GIB - roomy.predicted_bytes));
    assert_eq!(planned(&forced, &limits(both)).unwrap().plan, roomy.plan);
    let less = planned(&forced, &limits(both - 1)).unwrap();
    assert!(less.plan.micro_batch < 4 && less.predicted_bytes + less.host_bytes < both);
    assert!(less.why.contains(" of host memory, "), "{}", less.why);
    // Without an offloaded optimizer, the budget of the device is the only one.
    let on_device = gpt2(&[("offload_optimizer", "false")]);
    assert!(planned(&on_device, &limits(GIB)).unwrap().fits_host());
}

#[test]
fn the_cpu_and_a_browser_have_no_other_memory() {
    let cpu = Limits { kernels: Kernels::Cpu, budget: Some(4 * GIB), ..Limits::default() };
    let forced = gpt2(&[("offload_optimizer", "true")]);
    let forecast = planned(&forced, &cpu).unwrap();
    assert!(!forecast.plan.offload_optimizer && forecast.host_rows.is_empty());
    // The run was trained on a GPU before.
    let offloaded = Plan { offload_optimizer: true, ..forecast.plan.clone() };
    assert_eq!(keep(&forced, &forced, &offloaded, VOCAB, &cpu).unwrap().plan, forecast.plan);

    let browser = Limits { host_budget: Some(0), budget: Some(2 * GIB), ..cpu };
    let browser = Limits { kernels: Kernels::Wgsl, pools: true, ..browser };
    let (least, _) = refused(planned(&gpt2(&[]), &browser));
    assert!(!least.plan.offload_optimizer);
    let error = planned(&forced, &browser).unwrap_err().to_string();
    assert!(error.contains("of host memory, and none is free"), "{error}");
}

/// If launches take most of the time, halving the micro-batch costs more than recomputing the blocks.
#[test]
fn the_speed_of_the_device_decides_between_ways_that_fit() {
    let flags = [
        ("block_size", "64"),
        ("batch_size", "16"),
        ("offload_optimizer", "false"),
        ("n_layer", "6"),
    ];
    let requested = gpt2(&flags);
    let speed = |flop_per_s: f64| {
        let point = |flop: f64| SpeedPoint::new(flop, 10e-6 + flop / flop_per_s);
        DeviceSpeed::measured(vec![point(1.0), point(1e13)]).unwrap()
    };
    let (slow, fast) = (speed(1e12), speed(1e16));
    let mut differs = false;
    for budget in (30..50).map(|twentieth| twentieth * GIB / 20) {
        let chosen = |speed| plan(&requested, VOCAB, &limits(Some(budget)), Some(speed));
        let (Ok(slow), Ok(fast)) = (chosen(&slow), chosen(&fast)) else { continue };
        assert!(fast.plan.micro_batch >= slow.plan.micro_batch, "{budget}");
        differs |= fast.plan.grad_checkpoint && !slow.plan.grad_checkpoint;
    }
    assert!(differs);
}

#[test]
fn a_running_trainer_leaves_its_optimizer_where_it_is() {
    let limits = |budget| limits(Some(budget));
    let auto = Config::of_preset("gpt2-medium", &[]);
    let replan = |plan: &Plan, budget| replan(&auto, plan, VOCAB, &limits(budget), None);
    let on_device = planned(&auto, &limits(12 * GIB)).unwrap().plan;
    assert_eq!(replan(&on_device, 12 * GIB).unwrap().plan, on_device);
    assert!(!on_device.offload_optimizer);
    assert!(replan(&on_device, 4 * GIB).is_err());
    let offloaded = planned(&auto, &limits(4 * GIB)).unwrap().plan;
    assert!(offloaded.offload_optimizer);
    let less = replan(&offloaded, 39 * GIB / 10).unwrap().plan;
    assert!(less.offload_optimizer);
    // What fits is kept as it is.
    assert_eq!(replan(&offloaded, 40 * GIB).unwrap().plan, offloaded);
}

#[test]
fn smaller_plans_keep_any_global_batch() {
    for (micro_batch, accumulation) in [(12, 1), (7, 3), (15, 1), (1, 8)] {
        let requested = Plan::new(&gpt2(&[]), VOCAB);
        let mut plan = Plan { micro_batch, accumulation, loss_chunk: 256, ..requested };
        while let Some(next) = smaller(&plan) {
            assert_eq!(next.micro_batch * next.accumulation, micro_batch * accumulation, "{plan}");
            let split = |plan: &Plan| (plan.micro_batch, plan.loss_chunk, !plan.grad_checkpoint);
            assert!(split(&next) < split(&plan), "{plan} then {next}");
            plan = next;
        }
        assert_eq!((plan.micro_batch, plan.loss_chunk, plan.grad_checkpoint), (1, 32, true));
    }
}

#[test]
fn a_plan_is_kept_only_for_the_same_request() {
    let before = gpt2(&[]);
    // A smaller budget than that of the limits below.
    let planned = plan_with(&before, 4 * GIB).unwrap().plan;
    let kept_in = |flags: &[(&str, &str)], budget| {
        let limits = limits(Some(budget));
        keep(&gpt2(flags), &before, &planned, VOCAB, &limits).map(|kept| kept.plan)
    };
    let kept = |flags: &[(&str, &str)]| kept_in(flags, 20 * GIB);
    assert_eq!(kept(&[]), Some(planned.clone()));
    assert_eq!(kept_in(&[], 2 * GIB), None, "it does not fit");
    // The split does not depend on it.
    assert_eq!(kept(&[("learning_rate", "1e-3")]), Some(planned.clone()));
    for changed in [
        ("grad_checkpoint", "false"),
        ("grad_checkpoint", "true"),
        ("offload_optimizer", "false"),
        ("offload_optimizer", "true"),
        ("micro_batch", "6"),
        ("loss_chunk", "512"),
        ("eval_batch_size", "3"),
        ("gradient_accumulation_steps", "20"),
    ] {
        assert_eq!(kept(&[changed]), None, "{changed:?}");
    }
}

/// An event or a state file of a version that had no offloaded optimizer.
#[test]
fn plans_of_earlier_versions_are_read() {
    let forecast = plan_with(&gpt2(&[]), 12 * GIB).unwrap();
    let mut old = serde_json::to_value(&forecast).unwrap();
    let fields = old.as_object_mut().unwrap();
    for key in ["offload_optimizer", "host_rows", "host_bytes", "host_budget_bytes"] {
        assert!(fields.remove(key).is_some(), "{key}");
    }
    assert_eq!(serde_json::from_value::<Forecast>(old.clone()).unwrap(), forecast);
    assert_eq!(serde_json::from_value::<Plan>(old).unwrap(), forecast.plan);
}

#[test]
fn the_cost_of_a_change_is_in_words() {
    for (ratio, words) in [
        (1.003, "updates take about as long"),
        (1.02, "updates take about 2% longer"),
        (1.33, "updates take about 33% longer"),
        (2.16, "updates take about 2.2 times as long"),
    ] {
        assert_eq!(longer(ratio), words);
    }
}

#[test]
fn a_sharded_optimizer_stays_on_its_devices_and_leaves_them_room() {
    let sharded = Config::of_preset("gpt2-medium", &[("shard_optimizer", "true")]);
    let limits = |gib, ranks| target(gib, Dtype::Float32).sharded(&sharded, ranks);
    let planned = |limits: &Limits| planned(&sharded, limits).unwrap();
    assert!(planned(&limits(6, 1)).plan.offload_optimizer, "one process has all of it");
    let four = planned(&limits(6, 4));
    assert!(!four.plan.offload_optimizer, "{four}");
    assert_eq!(four.plan.micro_batch * four.plan.accumulation, 480);
    let never = Config::of_preset("gpt2-medium", &[]);
    assert_eq!(limits(6, 1), target(6, Dtype::Float32).sharded(&never, 4));
    // Of a run that fits in any case, the state alone is smaller.
    let [one, four] = [1, 4].map(|ranks| {
        let plan = Plan { micro_batch: 1, accumulation: 480, ..Plan::new(&sharded, VOCAB) };
        Forecast::of(plan, &sharded, VOCAB, &limits(24, ranks))
    });
    let state = |forecast: &Forecast| forecast.classes[&Class::Optimizer] as f64;
    assert_eq!(state(&one), 8.0 * sharded.parameters(50_304) as f64);
    assert!((0.25..0.26).contains(&(state(&four) / state(&one))));
    assert!(four.predicted_bytes < one.predicted_bytes);
}
