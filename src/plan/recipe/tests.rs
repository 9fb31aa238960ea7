use super::*;
use crate::config::{Budget, Dtype, Schedule};
use crate::plan::{
    DeviceMemory, DeviceProfile, Kernels, PublishedGpu, SpeedPoint, gpu_named, gpus,
};

const GPT2: u32 = 50_257;
const TIMES: [u64; 4] = [600, 3600, 8 * 3600, 48 * 3600];

fn profile(gpu: PublishedGpu) -> DeviceProfile {
    let memory = DeviceMemory::Target(gpu.memory_gib << 30);
    let abilities = gpu.abilities();
    let speed = DeviceSpeed::published(gpu, abilities.planned(Dtype::Auto));
    let limits = Limits { pools: true, ..Limits::default() };
    DeviceProfile { memory, abilities, speed, limits }
}

/// Returns the recipe for a GPU, data of this many training tokens, seconds, and settings as typed.
fn of(gpu: &str, train: u64, seconds: u64, typed: &[(&'static str, &str)]) -> Recipe {
    let profile = profile(gpu_named(gpu).unwrap());
    let (limits, _) = profile.limits(Budget::Auto, Dtype::Auto);
    let typed: Vec<_> = typed.iter().map(|(key, value)| (*key, value.to_string())).collect();
    let question = RecipeQuestion {
        config: &Config::default().with(&typed).unwrap(),
        is_set: &|key| typed.iter().any(|(set, _)| *set == key),
        vocab: GPT2,
        data: DataSize { train, val: train / 10 },
        markov_bits: None,
        limits: &limits,
        speed: profile.speed.as_ref().unwrap(),
        time: Duration::from_secs(seconds),
        tokens: None,
    };
    recipe(question).unwrap()
}

/// From a megabyte of text, some 300 thousand tokens, to ten gigabytes.
#[test]
fn every_gpu_learns_from_any_amount_of_data_in_any_time() {
    let mut wrong = Vec::new();
    for name in gpus().map(|gpu| gpu.name) {
        for train in [300_000, 6_000_000, 300_000_000, 3_000_000_000] {
            for seconds in TIMES {
                let recipe = of(name, train, seconds, &[]);
                let Recipe { config, forecast, totals, .. } = &recipe;
                let (each, passes) = (recipe.tokens_per_parameter(), totals.epochs.unwrap());
                let learns = (4.0..=40.0).contains(&each) || passes >= 4.0;
                let is_right = totals.updates >= 2000
                    && learns
                    && passes <= 33.0
                    && !forecast.plan.offload_optimizer
                    && forecast
                        .budget_bytes
                        .is_some_and(|budget| forecast.predicted_bytes <= budget)
                    && totals.time.as_ref().unwrap().seconds <= 0.96 * seconds as f64
                    && totals.updates.div_ceil(config.eval_interval.get()) >= EVALUATIONS - 1;
                if !is_right {
                    wrong.push(format!("{name}, {train} tokens, {seconds} s: {totals:?}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} wrong: {}", wrong.len(), wrong.join("\n"));
}

#[test]
fn a_night_on_an_rtx_3060_trains_a_model_of_tens_of_millions() {
    let night = of("RTX 3060", 1_000_000_000, 8 * 3600, &[]);
    let Totals { parameters, updates, tokens_per_update, .. } = night.totals;
    assert!((25_000_000..90_000_000).contains(&parameters), "{parameters}");
    assert!((2_500..40_000).contains(&updates), "{updates}");
    assert!((32_768..=262_144).contains(&tokens_per_update), "{tokens_per_update}");
    assert_eq!(night.config.schedule, Schedule::Wsd);
    assert_eq!(night.expectation(), "sentences");
    let sizes = TIMES.map(|time| of("RTX 3060", 1_000_000_000, time, &[]).totals.parameters);
    assert!(sizes.is_sorted() && sizes[0] < sizes[3], "{sizes:?}");
    assert!(night.why().starts_with("limited by the time: "), "{}", night.why());
    let small = of("RTX 3060", 1_000_000, 8 * 3600, &[]);
    assert!(small.is_limited_by_data && small.totals.parameters < parameters);
    assert!(small.totals.time.unwrap().seconds < 3600.0);
}

#[test]
fn settings_that_a_person_has_typed_stay() {
    let typed = [("n_layer", "12"), ("learning_rate", "1e-3"), ("block_size", "256")];
    let recipe = of("RTX 4090", 1_000_000_000, 3600, &typed);
    let Config { n_layer, n_embd, learning_rate, block_size, .. } = recipe.config;
    assert_eq!((n_layer.get(), n_embd.get(), block_size.get()), (12, 768, 256));
    assert_eq!(learning_rate, 1e-3);
    assert!(recipe.totals.updates >= 1000);
    assert!(recipe.set.iter().all(|(key, _)| typed.iter().all(|(set, _)| set != key)));
}

/// The runs of docs/rule.md, on two cores at 116 GFLOP/s and at 280: characters, and man pages.
#[test]
fn two_minutes_of_two_cores_are_the_best_of_the_runs_that_were_tried() {
    let limits = Limits { kernels: Kernels::Cpu, ..Limits::default() };
    for (gflops, vocab, train, shape) in [
        (116.0, 65, 1_003_854, [2, 96, 128, 16]),
        (116.0, 4096, 4_820_751, [3, 96, 64, 32]),
        (280.0, 65, 1_003_854, [3, 96, 128, 32]),
        (280.0, 4096, 4_820_751, [3, 128, 64, 32]),
    ] {
        let point = SpeedPoint::new(3.3e7, 3.3e-2 / gflops);
        let question = RecipeQuestion {
            config: &Config::default(),
            is_set: &|_| false,
            vocab,
            data: DataSize { train, val: train / 10 },
            markov_bits: None,
            limits: &limits,
            speed: &DeviceSpeed::measured(vec![point]).unwrap(),
            time: Duration::from_secs(120),
            tokens: None,
        };
        let got = recipe(question).unwrap().config;
        let chosen = [got.n_layer, got.n_embd, got.block_size, got.batch_size].map(|n| n.get());
        assert_eq!(chosen, shape, "{gflops} GFLOP/s, a vocabulary of {vocab}");
    }
}

#[test]
fn a_trained_model_is_fine_tuned_gently() {
    let typed = [("init_from", "gpt2"), ("n_layer", "12"), ("block_size", "1024")];
    let recipe = of("RTX 3060", 5_000_000, 48 * 3600, &typed);
    let Config { learning_rate, optimizer, .. } = recipe.config;
    assert_eq!((learning_rate, optimizer), (5e-5, OptimizerKind::AdamW));
    let totals = &recipe.totals;
    assert!((2.8..=3.1).contains(&totals.epochs.unwrap()), "{totals:?}");
    assert!((300..1000).contains(&totals.updates), "{totals:?}");
    assert!(totals.advice(&recipe.config).is_empty());
    assert!(recipe.is_limited_by_data && recipe.why().contains("3 passes"));
}

#[test]
fn a_model_that_is_large_for_its_text_gets_dropout() {
    assert_eq!(dropout(10_000_000, 1_000_000, 16.0), 0.2);
    assert_eq!(dropout(600_000, 1_000_000, 16.0), 0.1);
    assert_eq!(dropout(4_000_000, 1_000_000, 32.0), 0.1);
    assert_eq!(dropout(300_000, 1_000_000, 16.0), 0.0);
    assert_eq!(dropout(10_000_000, 1_000_000, 2.0), 0.0);
}

#[test]
fn a_repeated_token_is_worth_less_each_time() {
    assert_eq!(effective(5e5, 1e6), 5e5);
    // Four passes are worth 3.7, forty 15.4.
    assert!((effective(4e6, 1e6) - 3.73e6).abs() < 2e4);
    assert!((effective(40e6, 1e6) - 15.2e6).abs() < 2e5);
    assert_eq!([0.3, 1.0, 2.9, 3.0, 5.0, 6.5, 100.0].map(round), [1, 1, 2, 3, 4, 6, 96]);
}

#[test]
fn the_presets_of_cards_are_the_recipes_of_a_night() {
    for (size, gpu) in [
        (4, "RTX 2060"),
        (6, "RTX 2060"),
        (8, "RTX 3050"),
        (12, "RTX 3060"),
        (16, "RTX 4070 Ti SUPER"),
        (24, "RTX 4090"),
    ] {
        let night = of(gpu, 10_000_000_000, 8 * 3600, &[]).config;
        let preset = Config::of_preset(&format!("card-{size}gb"), &[]);
        assert_eq!(preset, night, "{size} GB");
        let profile = DeviceProfile {
            memory: DeviceMemory::Target(size << 30),
            ..profile(gpu_named(gpu).unwrap())
        };
        let (limits, _) = profile.limits(Budget::Auto, Dtype::Auto);
        let plan = plan(&preset, GPT2, &limits, profile.speed.as_ref()).unwrap().plan;
        assert!(!plan.offload_optimizer && !plan.grad_checkpoint, "{size} GB: {plan:?}");
    }
}

#[test]
fn a_small_model_learns_with_muon_at_twice_the_rate_of_the_law() {
    let night = of("RTX 3060", 1_000_000_000, 8 * 3600, &[]);
    let minutes = of("RTX 3060", 1_000_000_000, 60, &[("optimizer", "muon")]);
    for (recipe, times) in [(night, 1.0), (minutes, 2.0)] {
        let Totals { parameters, tokens_per_update, .. } = recipe.totals;
        assert_eq!(parameters < SMALL_MODEL, times > 1.0, "{parameters}");
        let flop = 6.0 * parameters as f64 * recipe.totals.tokens as f64;
        let root = (tokens_per_update as f64 / batch_law(flop)).min(1.0).sqrt();
        let law = learning_rate_law(flop) * root;
        let ratio = recipe.config.learning_rate / law;
        assert!((0.9 * times..1.1 * times).contains(&ratio), "{ratio}");
    }
}

#[test]
fn a_result_is_compared_with_what_was_expected() {
    let expected = ExpectedBits { middle: 2.0 };
    let [low, high] = [2.0 / SURE, 2.0 * SURE];
    assert_eq!(expected.to_string(), format!("2.00 bits per byte ({low:.2} to {high:.2})"));
    for (reached, verdict) in [
        (0.99 * low, "less than expected"),
        (2.1, "as expected"),
        (1.01 * high, "more than expected"),
    ] {
        assert!(expected.verdict(reached).contains(verdict), "{}", expected.verdict(reached));
    }
    let known = of("RTX 3060", 1_000_000_000, 3600, &[]);
    assert!(known.expected.is_none(), "the text is not known");
}
