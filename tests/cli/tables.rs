//! docs/tables/fits.tsv, and the tables and commands of docs/memory.md, fine-tuning.md, time.md and recipes.md, agree with
//! `wgpt plan`.
//!
//! `UPDATE_TABLES=1 cargo test --release --test cli tables` writes the tables.

use super::*;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/memory.md");

/// Its rows have the flags, the memory of a GPU or `host`, and a cell for each model. The page has some of
/// them.
const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/tables/fits.tsv");

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

/// Returns the micro-batch, how memory is saved, and the memory for each model on a GPU of this size. If a
/// model needs at most a tenth more than the GPU has, its cell says how much it needs.
fn gpu_cells(size: &str, flags: &str) -> [String; 4] {
    let target = size.replace(' ', "");
    let memory: f64 = size.trim_end_matches(" GiB").parse().unwrap();
    let cell = |model: &str| {
        let preset = format!("--preset={model}");
        let mut args = vec![preset.as_str(), "--target", &target];
        args.extend(flags.split(' '));
        let plan = plan(&args);
        if plan["fits"] != true {
            let need = gib(&plan["least"]["predicted_bytes"]);
            return if need < 1.1 * memory {
                format!("no, needs {need:.2} GiB")
            } else {
                "no".into()
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
    MODELS.map(cell)
}

/// Returns the host memory of each model with its optimizer there.
fn host_cells(flags: &str) -> [String; 4] {
    let cell = |model: &str| {
        let preset = format!("--preset={model}");
        let mut args = vec![preset.as_str(), "--target=1024GiB", "--offload_optimizer=true"];
        args.extend(flags.split(' '));
        format!("{:.2} GiB", gib(&plan(&args)["host_bytes"]))
    };
    MODELS.map(cell)
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

/// Returns a row of the file as the plan has it.
fn file_row(row: &str) -> String {
    let [flags, memory, ..] = row.split('\t').collect::<Vec<_>>()[..] else { panic!("{row}") };
    let cells = if memory == "host" { host_cells(flags) } else { gpu_cells(memory, flags) };
    format!("{flags}\t{memory}\t{}", cells.join("\t"))
}

/// Returns a line of the page as the plan and the rows of the file have it, if it is a row of a table. Keeps
/// the flags that the header of a table names.
fn page_row<'a>(line: &'a str, flags: &mut &'a str, file: &str) -> Option<String> {
    let first = line.strip_prefix("| ")?.split(" |").next()?;
    match first.trim_matches('`') {
        size if size.ends_with(" GiB") => {
            let start = format!("{flags}\t{size}\t");
            let cells = file.lines().find_map(|row| row.strip_prefix(&start));
            let cells = cells.unwrap_or_else(|| panic!("no row {start}"));
            Some(format!("| {size} | {} |", cells.replace('\t', " | ")))
        }
        header if header.starts_with("--dtype") => {
            *flags = header;
            None
        }
        preset if preset.starts_with("largest-") => Some(preset_row(preset)),
        _ => None,
    }
}

/// Writes a file with `UPDATE_TABLES`, else expects that it has these lines.
fn update_or_compare(path: &str, planned: &str) {
    if std::env::var_os("UPDATE_TABLES").is_some() {
        return fs::write(path, planned).unwrap();
    }
    let written = fs::read_to_string(path).unwrap();
    let wrong: Vec<&str> = planned
        .lines()
        .zip(written.lines())
        .filter(|(planned, written)| planned != written)
        .map(|(planned, _)| planned)
        .collect();
    assert!(wrong.is_empty(), "UPDATE_TABLES=1 writes these rows to {path}:\n{}", wrong.join("\n"));
}

#[test]
fn the_tables_agree_with_the_plan() {
    let file = fs::read_to_string(TABLE).unwrap();
    let (header, rows) = file.split_once('\n').unwrap();
    assert_eq!(rows.lines().count(), 34);
    let planned: String = rows.lines().map(|row| file_row(row) + "\n").collect();
    update_or_compare(TABLE, &format!("{header}\n{planned}"));

    let page = page();
    let mut flags = "";
    let mut rows = 0;
    let mut lines = String::new();
    for line in page.lines() {
        let row = page_row(line, &mut flags, &planned);
        rows += usize::from(row.is_some());
        lines += &row.unwrap_or_else(|| line.to_string());
        lines += "\n";
    }
    assert_eq!(rows, 12);
    update_or_compare(PAGE, &lines);
}

const ADAPTERS_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/fine-tuning.md");

/// Returns the row of a model whose adapter of rank 16 is trained on one sequence at a time, on a base in float16 and
/// in 8 bits.
fn adapter_row(model: &str) -> String {
    let preset = format!("--preset={}", model.to_lowercase());
    let need = |base: &str| {
        let base = format!("--base_dtype={base}");
        let args = [
            preset.as_str(),
            "--lora_rank=16",
            "--dtype=float16",
            "--block_size=1024",
            "--micro_batch=1",
            "--grad_checkpoint=true",
            "--target=64GiB",
            &base,
        ];
        format!("{:.2} GiB", gib(&plan(&args)["predicted_bytes"]))
    };
    format!("| {model} | {} | {} |", need("auto"), need("q8_0"))
}

#[test]
fn the_adapters_take_what_the_page_says() {
    let page = fs::read_to_string(ADAPTERS_PAGE).unwrap();
    let mut rows = 0;
    let line = |line: &str| match line.strip_prefix("| ").and_then(|row| row.split(" |").next()) {
        Some(model) if line.ends_with(" GiB |") => {
            rows += 1;
            adapter_row(model) + "\n"
        }
        _ => format!("{line}\n"),
    };
    let planned: String = page.lines().map(line).collect();
    assert_eq!(rows, 8);
    update_or_compare(ADAPTERS_PAGE, &planned);
}

const TIME_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/time.md");

/// Returns a row of a table whose header names GPUs: the time of 1B tokens with a preset on each.
fn time_row(preset: &str, gpus: &[&str]) -> String {
    let time = |gpu: &&str| {
        let preset = format!("--preset={preset}");
        let plan = plan(&[&preset, "--tokens=1B", "--lora_rank=0", "--target", gpu]);
        if plan["fits"] != true {
            return "does not fit".into();
        }
        let hours = plan["run"]["time"]["seconds"].as_f64().unwrap() / 3600.0;
        if hours < 48.0 { format!("{hours:.1} h") } else { format!("{:.1} days", hours / 24.0) }
    };
    let times: Vec<String> = gpus.iter().map(time).collect();
    format!("| `{preset}` | {} |", times.join(" | "))
}

#[test]
fn a_billion_tokens_take_what_the_page_says() {
    let page = fs::read_to_string(TIME_PAGE).unwrap();
    let (mut gpus, mut rows) = (Vec::new(), 0);
    let mut lines = String::new();
    for line in page.lines() {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells[0] == "1B tokens" {
            gpus = cells[1..].to_vec();
        } else if !line.starts_with('|') {
            gpus.clear();
        } else if !gpus.is_empty() && cells[0].starts_with('`') {
            rows += 1;
            lines += &(time_row(cells[0].trim_matches('`'), &gpus) + "\n");
            continue;
        }
        lines += &format!("{line}\n");
    }
    assert_eq!(rows, 6);
    update_or_compare(TIME_PAGE, &lines);
}

const RECIPES_PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/recipes.md");

/// Returns the row of a memory size: the micro-batch and the memory of Qwen3-0.6B, with an adapter, with an adapter on a
/// base in 8 bits, and with all weights.
fn tuning_row(size: &str) -> String {
    let cell = |more: &[&str]| {
        let target = size.replace(' ', "");
        let model = "--init_from=hf:Qwen/Qwen3-0.6B";
        let plan = plan(&[&[model, "--dtype=float16", "--target", &target], more].concat());
        if plan["fits"] != true {
            return "no".into();
        }
        let host = if plan["offload_optimizer"] == true { " offloaded" } else { "" };
        format!("{}{host}, {:.2} GiB", plan["micro_batch"], gib(&plan["predicted_bytes"]))
    };
    let rank = "--lora_rank=16";
    format!(
        "| {size} | {} | {} | {} |",
        cell(&[rank]),
        cell(&[rank, "--base_dtype=q8_0"]),
        cell(&[])
    )
}

#[test]
fn qwen_is_fine_tuned_in_the_memory_that_the_page_says() {
    let page = fs::read_to_string(RECIPES_PAGE).unwrap();
    let mut rows = 0;
    let line = |line: &str| match line.strip_prefix("| ").and_then(|row| row.split(" |").next()) {
        Some(size) if size.ends_with(" GiB") => {
            rows += 1;
            tuning_row(size) + "\n"
        }
        _ => format!("{line}\n"),
    };
    let planned: String = page.lines().map(line).collect();
    assert_eq!(rows, 4);
    update_or_compare(RECIPES_PAGE, &planned);
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
