//! Plans of many shapes, GPUs and ranks stay as they are until somebody changes them on purpose.
//!
//! `UPDATE_TABLES=1 cargo test --release --test cli plans` writes the file. tests/memory.rs and tests/budget
//! compare plans with what runs take.

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/plans.txt");

const MODELS: [&str; 6] =
    ["shakespeare-char", "gpt2", "gpt2-xl", "llama-124m", "smollm2-360m", "qwen3-0.6b"];

/// Each with every model.
const FLAGS: [&str; 11] = [
    "--target=4GiB --dtype=float32",
    "--target=6GiB --dtype=float16 --optimizer=muon",
    "--target=12GiB --dtype=bfloat16 --grad_checkpoint=true",
    "--target=24GiB --dtype=float32 --optimizer=muon --grad_checkpoint=false",
    "--target=8GiB --dtype=float16 --offload_optimizer=true",
    "--target=8GiB --dtype=float32 --optimizer=muon --offload_optimizer=true",
    "--target=16GiB --dtype=float32 --optimizer=muon --micro_batch=1",
    "--target=GTX_1080 --block_size=2048 --batch_size=3 --schedule=wsd --dropout=0.1",
    "--target=RTX_3060 --batch_size=512 --block_size=256 --loss_chunk=64",
    "--target=RTX_4090 --micro_batch=2 --eval_batch_size=32 --eval_iters=7",
    "--target=RX_7600 --max_time=8h",
];

/// Others, and ranks.
const MORE: [&str; 8] = [
    "--preset=gpt2 --target=RTX_3060 --dtype=float16 --vocab_size=256 --batch_size=1 --gradient_accumulation_steps=1 --block_size=32 --optimizer=muon --offload_optimizer=true",
    "--preset=gpt2 --target=12GiB --batch_size=1 --block_size=32 --optimizer=muon --vocab_size=256",
    "--preset=qwen3-0.6b --target=8GiB --batch_size=1 --block_size=32 --optimizer=muon --offload_optimizer=true",
    "--preset=gpt2-medium --target=16GiB --dtype=float32 --bias=true --optimizer=muon",
    "--preset=gpt2-large --target=6GiB --dtype=float16 --bias=true --gelu=erf",
    "--preset=gpt2 --target=RTX_3060 --ranks=3",
    "--preset=gpt2-medium --target=8GiB --ranks=4 --shard_optimizer=true --network=10Gbit",
    "--preset=gpt2-xl --target=24GiB --ranks=4 --shard_optimizer=true --optimizer=muon",
];

const RECIPES: [&str; 12] = [
    "--target=RTX_4090 --time=8h --data=builtin:stories",
    "--target=RTX_4090 --time=1d --data=builtin:chats",
    "--target=GTX_1080 --time=30d --data=builtin:stories",
    "--target=RTX_3060 --time=1h",
    "--target=RTX_3060 --time=8h --data=builtin:stories",
    "--target=RTX_4090 --time=10min --data=builtin:stories",
    "--target=RTX_4090 --time=30d --data=builtin:stories",
    "--target=RX_7600 --time=2min --data=builtin:chats",
    "--target=RTX_4070 --time=8h --data=builtin:chats",
    "--target=RTX_3060 --time=8h",
    "--target=RTX_4090 --time=7d",
    "--target=RTX_4090 --time=365d",
];

/// Returns the flags. The name of a GPU has spaces.
fn arguments(flags: &str) -> Vec<String> {
    let argument = |flag: &str| match flag.strip_prefix("--target=") {
        Some(gpu) => format!("--target={}", gpu.replace('_', " ")),
        None => flag.into(),
    };
    flags.split(' ').map(argument).collect()
}

/// Plans in a process of its own.
fn plan(flags: &str) -> Value {
    let folder = temporary();
    let mut command = wgpt(folder.path());
    let output = command.args(["plan", "--json"]).args(arguments(flags)).output().unwrap();
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{flags}: {error}\n{}", text(&output.stderr)))
}

/// Returns how a plan splits steps, and what it takes, or what it would if it fitted.
fn memory(plan: &Value) -> String {
    let (mut line, plan) = match plan["fits"] == true {
        true => (String::new(), plan),
        false => ("does not fit, ".to_string(), &plan["least"]),
    };
    line += &format!("{} x {}", plan["micro_batch"], plan["accumulation"]);
    for name in ["grad_checkpoint", "offload_optimizer"] {
        if plan[name] == true {
            line += &format!(", {name}");
        }
    }
    for name in ["loss_chunk", "eval_batch_size", "predicted_bytes", "classes", "host_bytes"] {
        line += &format!(", {name} {}", plan[name]);
    }
    line.replace(['"', '{', '}'], "")
}

/// Returns a plan in one line.
fn line(flags: &str) -> String {
    let plan = plan(flags);
    let mut line = format!("{flags}: {}", memory(&plan));
    let (run, ranks) = (&plan["run"], &plan["ranks"]);
    for name in ["parameters", "updates", "tokens_per_update", "disk_bytes", "shortened_from"] {
        line += &format!(", {name} {}", run[name]);
    }
    for (name, value) in [
        ("seconds", &run["time"]["seconds"]),
        ("epochs", &run["epochs"]),
        ("efficiency", &ranks["efficiency"]),
        ("network", &ranks["network_seconds"]),
    ] {
        if let Some(value) = value.as_f64() {
            line += &format!(", {name} {value:.4e}");
        }
    }
    line.replace(", shortened_from null", "")
}

/// Settings of plans that nobody would choose, in which the peak is at other moments: of each row, one at random.
const ODD: [&[&str]; 13] = [
    &[
        "--arch=gpt2",
        "--arch=gpt2 --bias=true",
        "--arch=llama",
        "--arch=llama --n_kv_head=1 --ffn_size=96",
        "--arch=llama --tie_embeddings=false --ffn_size=4096",
        "--arch=qwen3 --n_kv_head=2 --head_size=64",
    ],
    &["--n_embd=64 --n_head=2", "--n_embd=256 --n_head=4", "--n_embd=1024 --n_head=8"],
    &["--n_layer=1", "--n_layer=2", "--n_layer=7"],
    &["--block_size=16", "--block_size=128", "--block_size=2048"],
    &["--batch_size=1", "--batch_size=3", "--batch_size=16"],
    &["--gradient_accumulation_steps=1", "--gradient_accumulation_steps=4"],
    &["--vocab_size=64", "--vocab_size=3000", "--vocab_size=60000"],
    &["--optimizer=adamw", "--optimizer=muon"],
    &["--offload_optimizer=true", "--offload_optimizer=false"],
    &["--grad_checkpoint=true", "--grad_checkpoint=false"],
    &["--dropout=0", "--dropout=0.1"],
    &["--eval_batch_size=0", "--eval_batch_size=1", "--eval_batch_size=64"],
    &[
        "--dtype=float32 --target=24GiB",
        "--dtype=float16 --target=24GiB",
        "--dtype=float16 --target=RTX_3060",
        "--dtype=bfloat16 --target=RTX_4090",
        "--dtype=float32 --target=GTX_1080",
        "--dtype=float16 --target=RX_7600",
    ],
];

/// Returns the flags of so many odd plans.
fn odd_plans(count: u64) -> impl Iterator<Item = String> {
    let mut state: u64 = 1;
    let mut choose = move |choices: &[&'static str]| {
        // Knuth's linear congruential generator for MMIX.
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        choices[(state >> 33) as usize % choices.len()]
    };
    (0..count).map(move |_| ODD.map(&mut choose).join(" "))
}

/// What `wgpt plan` says of some of them.
const SAID: [&str; 7] = [
    "--preset=gpt2 --target=2GiB --dtype=float32 --max_iters=1000",
    "-v --preset=gpt2-xl --target=RTX_3060 --offload_optimizer=true --max_iters=1000",
    "-v --preset=qwen3-0.6b --target=8GiB --optimizer=muon --max_iters=1000",
    "--preset=gpt2-medium --target=GTX_1080 --ranks=4 --network=1Gbit --max_iters=1000",
    "--preset=gpt2-xl --target=3GiB",
    "--preset=shakespeare-char --target=RTX_4090 --data=builtin:stories",
    "--target=RTX_3060 --time=8h --data=builtin:stories",
];

/// Returns the text of a plan.
fn said(flags: &str) -> String {
    let output = wgpt(temporary().path()).arg("plan").args(arguments(flags)).output().unwrap();
    format!("\n$ wgpt plan {flags}\n{}{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn plans_change_on_purpose_only() {
    let of_models = MODELS
        .iter()
        .flat_map(|model| FLAGS.iter().map(move |flags| format!("--preset={model} {flags}")));
    let others = MORE.iter().chain(&RECIPES).map(|flags| flags.to_string());
    let mut planned: Vec<String> = of_models.chain(others).map(|flags| line(&flags)).collect();
    let odd: Vec<String> = odd_plans(200).collect();
    for (number, flags) in odd.iter().enumerate() {
        planned.push(format!("odd {number}: {}", memory(&plan(flags))));
    }
    let planned = planned.join("\n") + "\n" + &SAID.map(said).concat();
    if std::env::var_os("UPDATE_TABLES").is_some() {
        return fs::write(FILE, planned).unwrap();
    }
    let known = fs::read_to_string(FILE).unwrap();
    for (planned, known) in planned.lines().zip(known.lines()) {
        let number = planned.strip_prefix("odd ").and_then(|line| line.split_once(':'));
        let flags = number.map(|(number, _)| &odd[number.parse::<usize>().unwrap()]);
        assert_eq!(planned, known, "{flags:?}: UPDATE_TABLES=1 writes the plans to {FILE}");
    }
    assert_eq!(known.lines().count(), planned.lines().count());
}
