//! `wgpt bench --card`: the benchmark row of a device, with its speed in each dtype, as a small file
//! and a picture to send.

use std::path::Path;

use serde_json::{Value, json};

use super::args::{BenchArgs, Global};
use super::print_failure;
use crate::bench::BenchmarkRow;
use crate::config::{Config, Dtype, GPT2_VOCABULARY, Layer};
use crate::disk;
use crate::gpu::{self, SelectedDevice};
use crate::model::Architecture;
use crate::protocol::{Failure, MeasureRequest, Reply, Request};
use crate::report;
use crate::text::count;
use crate::version::VERSION;
use crate::worker::ask;

/// Returns the configuration that is measured: GPT-2 124M, if nothing else is asked for.
fn config(args: BenchArgs) -> Result<Config, Failure> {
    let config = args.source.resolve_on(vec![Layer::preset("gpt2")?], None)?.config;
    let vocab = if config.vocab_size == 0 { GPT2_VOCABULARY } else { config.vocab_size };
    Ok(Config { vocab_size: vocab, ..config })
}

/// Measures every dtype of the device and writes the file, and a picture next to it. Each dtype has its
/// own process, because only the end of a process surely returns the memory of a device.
pub(super) fn run(args: BenchArgs, path: &Path, global: &Global) -> Result<(), Failure> {
    if path.extension().is_none_or(|ending| ending != "json") {
        return Err(Failure::usage(
            format!("{}: not the name of a benchmark row", path.display()),
            "--card takes a file called *.json",
        ));
    }
    check_vacant(path)?;
    let SelectedDevice { info, .. } = gpu::select(global.device()?)?;
    let config = config(args)?;
    let implementation = global.ops()?.implementation;
    let measure = |dtype: Dtype| {
        if !global.quiet {
            message!("measuring {dtype}...");
        }
        let config = Box::new(Config { dtype, ..config.clone() });
        let device = info.id.to_string();
        match ask(Request::Measure(MeasureRequest { config, device, implementation })) {
            Ok(Reply::Measured { row }) => Some(*row),
            Ok(Reply::Failed { text, hint, .. }) => {
                print_failure(&Failure::new(text, &hint), false);
                None
            }
            Ok(_) => None,
            Err(failure) => {
                print_failure(&failure, false);
                None
            }
        }
    };
    let rows = rows(path, &info.name, &global.ops()?.abilities(&info).dtypes(), measure)?;
    let architecture = Architecture::new(&config, config.vocab_size);
    let is_software = !info.kind.is_gpu();
    let card = json!({
        "wgpt": VERSION,
        "device": info.line(),
        "driver": info.driver,
        // They are not ranked among GPUs.
        "is_software": is_software,
        "parameters": architecture.parameters(),
        "block_size": config.block_size,
        "rows": rows,
    });
    disk::write(path, format!("{card:#}\n")).map_err(Failure::file(path))?;
    let parameters = count(architecture.parameters() as u64);
    let title = format!("GPT-2 with {parameters} parameters on {}", info.name);
    let picture = path.with_extension("svg");
    report::write_picture(&picture, &report::benchmark_picture(&title, is_software, &rows))?;
    for row in &rows {
        output!("{}", report::benchmark_summary(row));
    }
    output!("{} {}", path.display(), picture.display());
    Ok(())
}

/// Returns the rows of the dtypes that can be measured.
///
/// # Errors
/// If no dtype can: a file without rows must not replace one that has some.
fn rows(
    path: &Path,
    device: &str,
    dtypes: &[Dtype],
    measure: impl Fn(Dtype) -> Option<BenchmarkRow>,
) -> Result<Vec<BenchmarkRow>, Failure> {
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for &dtype in dtypes {
        match measure(dtype) {
            Some(row) => rows.push(row),
            None => {
                message!("warning: {dtype} is left out");
                failed.push(dtype.to_string());
            }
        }
    }
    if rows.is_empty() {
        let (path, dtypes) = (path.display(), failed.join(", "));
        return Err(Failure::new(
            format!("{path}: not written, because every measurement failed: {dtypes} on {device}"),
            "the errors above say why; choose another device with --device, or a smaller model with \
             --preset",
        ));
    }
    Ok(rows)
}

/// Returns an error if `path` has another file than a benchmark row.
fn check_vacant(path: &Path) -> Result<(), Failure> {
    if !path.exists() {
        return Ok(());
    }
    let former = disk::read(path).ok();
    let former = former.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    if former.is_some_and(|row| row["wgpt"].is_string() && row["rows"].is_array()) {
        return Ok(());
    }
    Err(Failure::usage(
        format!("{}: this file was not made by wgpt", path.display()),
        "give another file with --card",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Exit;

    fn row(dtype: Dtype) -> BenchmarkRow {
        BenchmarkRow {
            dtype,
            tokens_per_s: 50_000.0,
            hours_to_10b_tokens: 10e9 / 50_000.0 / 3600.0,
            micro_batch: 8,
            accumulation: 60,
            grad_checkpoint: false,
            offload_optimizer: false,
            watts: Some(199.6),
            peak_bytes: Some(5 << 30),
        }
    }

    #[test]
    fn a_card_without_rows_is_an_error() {
        let dtypes = [Dtype::Float32, Dtype::Float16];
        let (path, fails) = (Path::new("card.json"), |_| None);
        let error = rows(path, "box", &dtypes, fails).unwrap_err();
        let text = &error.text;
        assert!(text.contains("card.json") && text.contains("float32, float16 on box"), "{text}");
        assert_eq!((error.exit, error.hint.is_empty()), (Exit::Failure, false));
        let one = |dtype| (dtype == Dtype::Float16).then(|| row(dtype));
        let measured = rows(path, "box", &dtypes, one).unwrap();
        assert_eq!((measured.len(), measured[0].dtype), (1, Dtype::Float16));
    }
}
