//! The tables and commands of docs/memory.md agree with `wgpt plan`.
//!
//! `UPDATE_TABLES=1 cargo test --release --test cli tables` writes the tables.

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/memory.md");

const MODELS: [&str; 4] = ["gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"];

fn page() -> String {
    fs::read_to_string(PAGE).unwrap()
}

fn plan(args: &[&str]) -> Value {
    let output = run(temporary().path(), &[&["plan", "--json"], args].concat());
    serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{args:?}: {error}\n{}", text(&output.stderr)))
}

fn gib(bytes: &Value) -> f64 {
    bytes.as_f64().unwrap() / 2f64.powi(30)
}

/// Returns a row of a table of GPUs, with the micro-batch, how memory is saved, and the memory for each
/// model. If a model needs at most a tenth more than the GPU has, the row says how much it needs.
fn gpu_row(size: &str, flags: &str) -> String {
    let target = size.replace(' ', "");
    let memory: f64 = size.trim_end_matches(" GiB").parse().unwrap();
    let cell = |model: &str| {
        let preset = format!("--preset={model}");
        let mut args = vec![preset.as_str(), "--target", &target];
        args.extend(flags.split(' '));
        let plan = plan(&args);
        if plan["fits"] != true {
            let need = gib(&plan["least"]["predicted_bytes"]);
            return match need < 1.1 * memory {
                true => format!("no, needs {need:.2} GiB"),
                false => "no".into(),
            };
        }
        let used = |key: &str, word| if plan[key] == true { word } else { "" };
        format!(
            "{}{}{}, {:.2} GiB",
            plan["micro_batch"],
            used("grad_checkpoint", " checkpointed"),
            used("offload_optimizer", " offloaded"),
            gib(&plan["predicted_bytes"])
        )
    };
    format!("| {size} | {} |", MODELS.map(cell).join(" | "))
}

/// Returns a row of the table of host memory.
fn host_row(flags: &str) -> String {
    let cell = |model: &str| {
        let preset = format!("--preset={model}");
        let mut args = vec![preset.as_str(), "--target=1024GiB", "--offload_optimizer=true"];
        args.extend(flags.split(' '));
        format!("{:.2} GiB", gib(&plan(&args)["host_bytes"]))
    };
    format!("| `{flags}` | {} |", MODELS.map(cell).join(" | "))
}

/// Returns the row of a preset for a GPU size, which fits such a GPU with its own micro-batch.
fn preset_row(name: &str) -> String {
    let preset = format!("--preset={name}");
    let size = name.trim_start_matches("largest-").to_uppercase();
    let plan = plan(&[&preset, "--target", &size, "--dtype=float32"]);
    assert_eq!(plan["fits"], true, "{name}: {plan}");
    assert_eq!(plan["grad_checkpoint"], false, "{name}: {plan}");
    let shown = ok(temporary().path(), &["config", "show", &preset]);
    let batch_size = format!("batch_size = {} ", plan["micro_batch"]);
    assert!(shown.lines().any(|line| line.starts_with(&batch_size)), "{name}: {plan}");
    let parameters = plan["run"]["parameters"].as_u64().unwrap();
    let model = match parameters / 1_000_000 {
        124 => "124M",
        354 => "350M",
        774 => "774M",
        1557 => "1558M",
        _ => panic!("{name} has {parameters} parameters"),
    };
    let place = if plan["offload_optimizer"] == true { "in host memory" } else { "on the GPU" };
    format!("| `{name}` | {model} | {} x {} | {place} |", plan["micro_batch"], plan["accumulation"])
}

/// Returns the line as the plan has it, if it is a row of a table. Takes the flags of the table from
/// its header.
fn row<'a>(line: &'a str, flags: &mut &'a str) -> Option<String> {
    let first = line.strip_prefix("| ")?.split(" |").next()?;
    match first.trim_matches('`') {
        size if size.ends_with(" GiB") => Some(gpu_row(size, flags)),
        header if header.starts_with("--dtype") => {
            *flags = header;
            None
        }
        flags if flags.starts_with("--optimizer") => Some(host_row(flags)),
        preset if preset.starts_with("largest-") => Some(preset_row(preset)),
        _ => None,
    }
}

#[test]
fn the_tables_agree_with_the_plan() {
    let page = page();
    let (mut flags, mut rows) = ("", 0);
    let mut planned = String::new();
    let mut wrong = String::new();
    for line in page.lines() {
        let row = row(line, &mut flags);
        rows += usize::from(row.is_some());
        let row = row.unwrap_or_else(|| line.to_string());
        if row != line {
            wrong += &format!("{row}\n");
        }
        planned += &format!("{row}\n");
    }
    assert!(rows >= 40, "{rows} rows");
    if std::env::var_os("UPDATE_TABLES").is_some() {
        fs::write(PAGE, planned).unwrap();
    } else {
        assert_eq!(wrong, "", "UPDATE_TABLES=1 writes these rows to docs/memory.md:\n{wrong}");
    }
}

/// Among them are runs that ended with `CUDA out of memory` in other trainers, and the largest models
/// that a GPU holds.
#[test]
fn the_runs_on_the_page_fit() {
    let page = page();
    let commands: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("wgpt plan ") && line.contains("--target"))
        .collect();
    assert!(commands.len() >= 8, "{commands:?}");
    for command in commands {
        let args: Vec<&str> = command.split(' ').skip(2).collect();
        let plan = plan(&args);
        assert_eq!(plan["fits"], true, "{command}: {plan}");
        for [rows, total, budget] in [
            ["rows", "predicted_bytes", "budget_bytes"],
            ["host_rows", "host_bytes", "host_budget_bytes"],
        ] {
            let total = plan[total].as_u64().unwrap();
            let budget = plan[budget].as_u64().unwrap_or(u64::MAX);
            assert!(total <= budget, "{command}: {total} of {budget}");
            let sizes = plan[rows].as_array().unwrap().iter();
            assert_eq!(sizes.map(|row| row["bytes"].as_u64().unwrap()).sum::<u64>(), total);
        }
    }
}
