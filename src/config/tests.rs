//! Tests of merging layers, of the rules between keys, and of writing TOML.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn flags(pairs: &[(&str, &str)]) -> Layer {
    Layer::flags(pairs.iter().copied()).unwrap()
}

fn rejection(pairs: &[(&str, &str)]) -> String {
    resolve(vec![flags(pairs)]).unwrap_err().with_hint()
}

#[test]
fn the_table_and_the_struct_have_the_same_keys() {
    let fields = toml::Table::try_from(Config::default()).unwrap();
    let fields: BTreeSet<_> = fields.keys().map(String::as_str).collect();
    let table: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
    assert_eq!(fields, table);
}

#[test]
fn every_valid_value_fits_its_field() {
    for key in KEYS {
        let texts = match key.kind {
            ValueKind::Bool => vec!["true".to_owned(), "false".into()],
            ValueKind::Count { min, max } => vec![min.to_string(), max.to_string()],
            ValueKind::Positive => vec!["1e-300".into(), "3e38".into()],
            ValueKind::NonNegative => vec!["0".into(), "3e38".into()],
            ValueKind::Fraction => vec!["0".into(), "0.999".into()],
            ValueKind::Text => vec!["".into(), "x".into()],
            ValueKind::Choice(words) => words.iter().map(|&word| word.into()).collect(),
            ValueKind::Words(words) => vec!["".into(), words.join(", ")],
            ValueKind::Duration => vec!["".into(), "100years".into(), "99years".into()],
            ValueKind::Moment => vec!["".into(), "2026-11-28T07:30:00+01:00".into()],
            ValueKind::Memory => vec!["auto".into(), "none".into(), "8GiB".into(), "90%".into()],
            ValueKind::Hours => vec!["".into(), "mon-fri 23:00-07:00, sat-sun".into()],
            ValueKind::Scaling => vec!["".into(), "linear:4".into(), "llama3:8,1,4,8192".into()],
        };
        for text in texts {
            // A rule between keys may reject the value; the struct must not.
            if let Ok(layer) = Layer::flags([(key.name.to_owned(), text.clone())]) {
                let result = resolve(vec![layer]);
                assert!(!matches!(result, Err(ConfigError::Table(_))), "{} = {text}", key.name);
            }
        }
    }
}

#[test]
fn defaults_match_nanogpt() {
    let config = Config::default();
    assert_eq!(config.global_batch(), 480);
    assert_eq!((config.learning_rate, config.min_lr), (6e-4, 6e-5));
    assert_eq!((config.beta1, config.beta2, config.weight_decay), (0.9, 0.95, 0.1));
    assert_eq!((config.max_iters.get(), config.seed), (600_000, 1337));
    assert_eq!(config.micro_batch(), config.batch_size);
    assert_eq!(config.require_data(), Err(ConfigError::NoData));
}

#[test]
fn settings_that_are_gone_are_read_where_they_had_no_effect() {
    let gone = "outer_learning_rate = 0.7\nouter_momentum = 0.9\nsync_every = 1 # off\n";
    let layer = Layer::toml("a.toml", gone).unwrap();
    assert_eq!(resolve(vec![layer]).unwrap().config, Config::default());
    let error = Layer::toml("a.toml", "sync_every = 5").unwrap_err().with_hint();
    assert!(error.contains("a.toml:1: sync_every = 5 is not allowed"), "{error}");
    let mut event = serde_json::to_value(Config::default()).unwrap();
    event["sync_every"] = 5.into();
    assert_eq!(serde_json::from_value::<Config>(event).unwrap(), Config::default());
}

#[test]
fn precedence_does_not_depend_on_the_order_of_the_layers() {
    let layers = || {
        vec![
            Layer::preset("shakespeare-char").unwrap(),
            Layer::model("out/a", [("n_layer", "5".into()), ("block_size", "128".into())]).unwrap(),
            Layer::toml("a.toml", "n_layer = 2\nn_head = 2\nbatch_size = 2").unwrap(),
            Layer::environment([("WGPT_N_HEAD", "3"), ("WGPT_BATCH_SIZE", "3")]).unwrap(),
            flags(&[("batch-size", "4")]),
        ]
    };
    let ordered = resolve(layers()).unwrap();
    let got = &ordered.config;
    assert_eq!((got.n_embd.get(), got.n_layer.get(), got.n_head.get()), (384, 2, 3));
    assert_eq!((got.batch_size.get(), got.block_size.get()), (4, 128));
    assert_eq!(ordered.provenance["block_size"].to_string(), "model out/a");
    assert_eq!(ordered.provenance["n_layer"].to_string(), "a.toml:1");
    assert_eq!(ordered.provenance["batch_size"].to_string(), "flag --batch-size");
    assert_eq!(ordered.provenance["seed"].to_string(), "default");
    let reversed = resolve(layers().into_iter().rev().collect()).unwrap();
    assert_eq!(reversed.config, ordered.config);
}

#[test]
fn of_two_limits_of_time_the_later_word_holds() {
    const END: &str = "2026-11-28T07:30:00+01:00";
    let limits = |file: &str, flag| {
        let config =
            resolve(vec![Layer::toml("a.toml", file).unwrap(), flags(&[flag])]).unwrap().config;
        (config.max_time.is_some(), config.end_at.is_some())
    };
    assert_eq!(limits(&format!("end_at = {END:?}"), ("max_time", "8h")), (true, false));
    assert_eq!(limits("max_time = \"8h\"", ("end_at", END)), (false, true));
    // Each limits a run if both are said in one place.
    assert_eq!(
        limits(&format!("end_at = {END:?}\nmax_time = \"8h\""), ("seed", "1")),
        (true, true)
    );
}

#[test]
fn the_length_of_a_run_is_set_by_a_file_a_variable_or_a_flag() {
    let sets = |layers| resolve(layers).unwrap().sets_length();
    let preset = || Layer::preset("gpt2").unwrap();
    assert!(!sets(vec![preset()]));
    assert!(!sets(vec![preset(), flags(&[("max_time", "8h"), ("warmup_iters", "10")])]));
    assert!(sets(vec![preset(), flags(&[("max_iters", "10")])]));
    assert!(sets(vec![Layer::environment([("WGPT_LR_DECAY_ITERS", "700000")]).unwrap()]));
    assert!(sets(vec![Layer::toml("a.toml", "max_iters = 5").unwrap()]));
}

#[test]
fn another_shape_does_without_the_biases_of_a_preset() {
    let bias = |layers| resolve(layers).unwrap().config.bias;
    let demo = || Layer::preset("demo").unwrap();
    assert!(bias(vec![demo()]));
    assert!(!bias(vec![demo(), flags(&[("arch", "llama")])]));
    assert!(bias(vec![demo(), flags(&[("arch", "gpt2")])]));
}

#[test]
fn a_later_dataset_replaces_an_earlier_data() {
    let data = |layers| resolve(layers).unwrap().config.data;
    let demo = || Layer::preset("demo").unwrap();
    assert_eq!(data(vec![demo(), flags(&[("dataset", "x")])]), "data/x");
    let file = Layer::python("a.py", "dataset = 'x'").unwrap();
    assert_eq!(data(vec![file, flags(&[("data", "elsewhere")])]), "elsewhere");
}

#[test]
fn a_nanogpt_config_implies_its_gelu() {
    let gelu = |layers| resolve(layers).unwrap().config.gelu;
    let nanogpt = || Layer::python("train.py", "n_layer = 2").unwrap();
    assert_eq!(gelu(vec![]), Gelu::Tanh);
    assert_eq!(gelu(vec![nanogpt()]), Gelu::Erf);
    assert_eq!(gelu(vec![nanogpt(), flags(&[("gelu", "tanh")])]), Gelu::Tanh);
    assert_eq!(gelu(vec![Layer::preset("gpt2").unwrap(), nanogpt()]), Gelu::Tanh);
}

#[test]
fn a_constant_learning_rate_may_be_below_min_lr() {
    let text = "learning_rate = 3e-5\ndecay_lr = False\nmax_iters = 20\ninit_from = 'gpt2-xl'";
    let config = resolve(vec![Layer::python("a.py", text).unwrap()]).unwrap().config;
    assert_eq!(config.init_from, InitFrom::Path("gpt2-xl".into()));
}

#[test]
fn ignored_keys_are_warned_about_where_a_wish_is_ignored() {
    let text = "wandb_log = True\nwandb_project = 'x'\ncompile = False\ndtype = 'bfloat16'";
    let layers = vec![Layer::python("a.py", text).unwrap(), flags(&[("wandb_run_name", "y")])];
    let Resolved { config, warnings, .. } = resolve(layers).unwrap();
    assert_eq!(config.dtype, Dtype::Bfloat16);
    assert_eq!(
        warnings,
        ["a.py:1: wandb_log has no effect: log = tensorboard or csv writes the \
                           curves to the run folder"]
    );
    for (text, count) in [
        ("wandb_log = False # off\nwandb_project = 'x'\ndevice = 'cuda'\nbackend = 'nccl'", 0),
        ("device = 'cuda:1'\ncompile = True", 1),
    ] {
        let warnings = resolve(vec![Layer::python("a.py", text).unwrap()]).unwrap().warnings;
        assert_eq!(warnings.len(), count, "{warnings:?}");
    }
}

#[test]
fn errors_between_keys_suggest_valid_values() {
    for (pairs, parts) in [
        (vec![("n_embd", "100")], vec!["--n_embd", "n_head = 12", "n_embd = 100", "10 or 20"]),
        (vec![("n_head", "7")], vec!["n_head = 7", "divide n_embd = 768", "6 or 8"]),
        (vec![("n_head", "2")], vec!["384 wide", "set n_head to 3"]),
        (vec![("n_head", "1000")], vec!["set n_head to 768"]),
        (vec![("micro_batch", "7")], vec!["global batch of 480", "set micro_batch to 6"]),
        (vec![("warmup-iters", "600_001")], vec!["--warmup-iters", "lr_decay_iters = 600000"]),
        (vec![("lr_decay_iters", "0")], vec!["lr_decay_iters = 0", "decay_lr to false"]),
        (vec![("learning_rate", "3e-5")], vec!["--learning_rate", "min_lr", "3.0e-6"]),
        (vec![("data", "builtin:poems")], vec!["builtin:poems", "builtin:stories"]),
        (vec![("init_from", "")], vec!["init_from", "scratch"]),
        (vec![("n_kv_head", "4")], vec!["--n_kv_head", "blocks of gpt2", "arch to llama"]),
        (vec![("tie_embeddings", "false")], vec!["tie_embeddings", "at true"]),
        (vec![("norm_eps", "1e-6")], vec!["norm_eps = 1e-6", "at 1e-5"]),
        (vec![("arch", "llama"), ("bias", "true")], vec!["biases", "bias to false"]),
        (vec![("arch", "qwen3"), ("n_kv_head", "5")], vec!["n_head = 12", "n_kv_head to 4"]),
        (vec![("arch", "llama"), ("n_embd", "36")], vec!["head_size = 3", "head_size to 4"]),
        (
            vec![("arch", "llama"), ("n_head", "7"), ("head_size", "64")],
            vec!["divide n_embd = 768", "6 or 8"],
        ),
    ] {
        let error = rejection(&pairs);
        for part in parts {
            assert!(error.contains(part), "{part} is not in: {error}");
        }
    }
}

#[test]
fn parameter_counts_are_exact() {
    let count = |name: &str, bias: &str, vocab| {
        let layers = vec![Layer::preset(name).unwrap(), flags(&[("bias", bias)])];
        resolve(layers).unwrap().config.parameters(vocab)
    };
    for (name, biased, padded, unbiased) in [
        ("gpt2", 124_439_808, 124_475_904, 124_373_760),
        ("gpt2-medium", 354_823_168, 354_871_296, 354_599_936),
        ("gpt2-large", 774_030_080, 774_090_240, 773_582_080),
        ("gpt2-xl", 1_557_611_200, 1_557_686_400, 1_556_840_000),
    ] {
        assert_eq!(count(name, "true", 50_257), biased, "{name}");
        assert_eq!(count(name, "true", 50_304), padded, "{name}");
        assert_eq!(count(name, "false", 50_304), unbiased, "{name}");
    }
}

#[test]
fn the_sizes_of_a_llama_follow_from_its_width() {
    let config = |more: &[(&str, &str)]| {
        let pairs = [&[("arch", "llama"), ("n_embd", "768")][..], more].concat();
        resolve(vec![flags(&pairs)]).unwrap().config
    };
    let plain = config(&[]);
    assert_eq!((plain.kv_heads(), plain.head_size(), plain.ffn_size()), (12, 64, 2048));
    assert_eq!((plain.qkv_width(), plain.up_width()), (3 * 768, 4096));
    let grouped = config(&[("n_kv_head", "4"), ("head_size", "32"), ("ffn_size", "100")]);
    assert_eq!((grouped.attention_width(), grouped.qkv_width()), (384, 384 + 2 * 128));
    assert_eq!((grouped.ffn_size(), grouped.up_width()), (100, 200));
    // Muon's matrices are the blocks', and an embedding that is looked up takes no operations.
    assert_eq!(grouped.block_matrices(), 12 * 768 * (640 + 384 + 300));
    let untied = Config { tie_embeddings: false, ..grouped.clone() };
    let (tied, own) = (grouped.parameters(1000), untied.parameters(1000));
    assert_eq!(own - tied, 1000 * 768);
    assert_eq!(grouped.operations(tied), untied.operations(own));
}

#[test]
fn the_largest_config_overflows_nothing() {
    let largest = resolve(vec![flags(&[
        ("n_layer", "1024"),
        ("n_embd", "65536"),
        ("n_head", "65536"),
        ("block_size", "1_048_576"),
        ("batch_size", "65536"),
        ("gradient_accumulation_steps", "1_048_576"),
        ("vocab_size", "2_147_483_647"),
    ])]);
    let config = largest.unwrap().config;
    let tokens = config.global_batch().checked_mul(config.block_size.get().into());
    assert_eq!(tokens, Some(1 << 56));
    let parameters = config.parameters(config.vocab_size.into());
    // Four float32 tensors: weights, gradients and two moments.
    assert!(parameters.checked_mul(16).is_some_and(|bytes| bytes < i64::MAX as u64));
    assert_eq!(config.parameters(u64::MAX), u64::MAX);
}

#[test]
fn vocabularies_are_padded_to_whole_tiles() {
    for (vocab, rows) in
        [(65, 68), (4095, 4096), (4096, 4096), (4097, 4160), (50_257, 50_304), (u32::MAX, u32::MAX)]
    {
        assert_eq!(padded_vocab(vocab), rows);
    }
}

#[test]
fn toml_has_a_heading_for_each_group_and_a_line_for_each_key() {
    let text = Config::default().to_toml();
    assert!(text.starts_with("# data and run\ndata = \"\""), "{text}");
    assert!(text.contains("\n\n# model\n"), "{text}");
    assert!(text.contains("sample_prompt = \"\\n\" "), "{text}");
    let assignments = text.lines().filter(|line| line.contains(" = ") && !line.starts_with('#'));
    assert_eq!(assignments.count(), KEYS.len());
}

prop_compose! {
    fn any_config()(
        n_layer in 1u32..=1024, n_head in 1u32..=256, head_size in 1u32..=256,
        block_size in 1u32..=1_048_576, bias: bool, dropout in 0.0..0.99, erf: bool,
        data in "\\PC{0,20}", out_dir in "\\PC{0,20}", text in ".{0,20}",
        init_from in "[a-z/\\\\\"]{1,12}",
        seed in 0..=i64::MAX as u64, micro_batch in 1u32..=64, accumulation in 1u32..=1_048_576,
        rate in 1e-30..1e3, min in 0.0..=1.0, warmup in 0u64..1000, decay in 1000u64..1_000_000,
        time in proptest::option::of((0u64..3_000_000_000, 1u32..1_000_000_000)),
        flag: bool, count: u32, iters in 1..=i64::MAX as u64,
    ) -> Config {
        let n = |n| NonZeroU32::new(n).unwrap();
        Config {
            n_layer: n(n_layer),
            n_head: n(n_head),
            n_embd: n(n_head * head_size),
            block_size: n(block_size),
            bias,
            dropout,
            gelu: if erf { Gelu::Erf } else { Gelu::Tanh },
            data,
            out_dir,
            sample_prompt: format!("\u{0}\u{7f}\r\n\t{text}"),
            init_from: InitFrom::Path(init_from),
            seed,
            micro_batch,
            batch_size: n(micro_batch * 2),
            gradient_accumulation_steps: n(accumulation),
            learning_rate: rate,
            min_lr: rate * min,
            warmup_iters: warmup,
            lr_decay_iters: decay,
            max_time: time.map(|(seconds, nanos)| Duration::new(seconds, nanos)),
            decay_lr: flag,
            eval_only: !flag,
            loss_chunk: count,
            log: if flag { "tensorboard,csv" } else { "" }.into(),
            max_iters: NonZeroU64::new(iters).unwrap(),
            ..Config::default()
        }
    }
}

proptest! {
    #[test]
    fn written_toml_resolves_to_the_same_config(config in any_config()) {
        let text = config.to_toml();
        let read = resolve(vec![Layer::toml("config.toml", &text).unwrap()]).unwrap();
        prop_assert_eq!(read.config, config);
        prop_assert!(read.warnings.is_empty());
    }

    #[test]
    fn arbitrary_toml_never_panics(text in "(\\PC|\n|=|\"|seed|\\[){0,60}") {
        let _ = Layer::toml("config.toml", &text);
    }
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_with_its_line() {
    let latin = b"seed = 1\nout_dir = \"caf\xe9\"\nseed = 2\n".to_vec();
    let error = decode("a.toml", latin).unwrap_err().with_hint();
    assert!(error.starts_with("a.toml:2: not UTF-8\n    out_dir = \"caf"), "{error}");
    let utf_16 = b"\xff\xfes\0e\0e\0d\0".to_vec();
    let error = decode("a.py", utf_16).unwrap_err().with_hint();
    assert!(error.starts_with("a.py:1: not UTF-8") && error.contains("UTF-16"), "{error}");
    assert_eq!(decode("a.py", "\u{feff}seed = 1".into()).unwrap(), "seed = 1");
}

#[test]
fn the_optimizer_and_its_place_are_read() {
    let muon = Layer::python("a.py", "optimizer = 'muon'\noffload_optimizer = True\n").unwrap();
    let text = "optimizer = \"adamw\"\noffload_optimizer = false";
    let adamw = Layer::toml("a.toml", text).unwrap();
    for (layers, optimizer, offload) in [
        (vec![], OptimizerKind::AdamW, Choice::Auto),
        (vec![muon], OptimizerKind::Muon, Choice::True),
        (vec![adamw], OptimizerKind::AdamW, Choice::False),
    ] {
        let config = resolve(layers).unwrap().config;
        assert_eq!((config.optimizer, config.offload_optimizer), (optimizer, offload));
    }
    let error = Layer::toml("a.toml", "optimizer = \"sgd\"").unwrap_err().with_hint();
    assert!(error.contains("adamw, muon"), "{error}");
}

/// A state file or an event of a version that had neither.
#[test]
fn a_config_without_the_newer_keys_is_read() {
    let mut old = toml::Table::try_from(Config::default()).unwrap();
    for key in [
        "optimizer",
        "offload_optimizer",
        "shard_optimizer",
        "grad_checkpoint",
        "arch",
        "n_kv_head",
        "head_size",
        "ffn_size",
        "rope_theta",
        "rope_scaling",
        "lora_rank",
        "lora_alpha",
        "lora_dropout",
        "lora_targets",
        "base_dtype",
        "norm_eps",
        "tie_embeddings",
        "max_positions",
    ] {
        assert!(old.remove(key).is_some(), "{key}");
    }
    assert_eq!(old.try_into::<Config>().unwrap(), Config::default());
}
