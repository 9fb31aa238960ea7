//! `wgpt bench --card`: writes the benchmark row of a device, with its speed in each dtype, to a small
//! file.

use std::path::Path;

use serde_json::{Value, json};

use super::args::{BenchArgs, Global};
use super::bench::with_vocabulary;
use super::find_model::select_device;
use super::print_failure;
use crate::bench;
use crate::config::{Config, Dtype, Layer};
use crate::disk;
use crate::gpu::DeviceInfo;
use crate::protocol::Failure;
use crate::version::VERSION;
use crate::worker::measure;

/// Measures every dtype of the device, each in a separate process, and writes the file. Only the end of a
/// process reliably returns the memory of a device.
pub(super) fn run(args: BenchArgs, path: &Path, global: &Global) -> Result<(), Failure> {
    check_vacant(path)?;
    let info = select_device(global)?.info;
    // GPT-2 124M, if nothing else is asked for.
    let config = with_vocabulary(args.source.resolve(vec![Layer::preset("gpt2")?], None)?.config);
    let architecture = bench::architecture(&config);
    let config = Config { vocab_size: architecture.vocab_size as u32, ..config };
    let mode = global.ops()?;
    let row = |dtype: Dtype| {
        if !global.quiet {
            message!("measuring {dtype}...");
        }
        let measured = measure(&Config { dtype, ..config.clone() }, &info, mode);
        measured.map_err(|failure| print_failure(&failure, false)).ok()
    };
    let rows = rows(path, &info.name, &mode.abilities(&info).dtypes(), row)?;
    let mut card = json!({
        "parameters": architecture.parameters(),
        "block_size": config.block_size,
        "rows": rows,
    });
    describe(&mut card, &info);
    if let Some(results) = former(path).and_then(|former| former.get("results").cloned()) {
        card["results"] = results;
    }
    disk::write(path, format!("{card:#}\n")).map_err(Failure::file(path))?;
    for row in &rows {
        output!("{row}");
    }
    output!("{}", path.display());
    Ok(())
}

/// Returns the rows of the dtypes that can be measured.
///
/// # Errors
/// If no dtype can: a file without rows must not replace one that has some.
fn rows<R>(
    path: &Path,
    device: &str,
    dtypes: &[Dtype],
    measure: impl Fn(Dtype) -> Option<R>,
) -> Result<Vec<R>, Failure> {
    let mut rows = Vec::new();
    let mut failed = Vec::new();
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
        let path = path.display();
        let dtypes = failed.join(", ");
        return Err(Failure::new(
            format!("{path}: not written, because every measurement failed: {dtypes} on {device}"),
            "the errors above say why; choose another device with --device, or a smaller model with \
             --preset",
        ));
    }
    Ok(rows)
}

/// Adds this program and the device to a benchmark row.
pub(super) fn describe(card: &mut Value, info: &DeviceInfo) {
    card["wgpt"] = VERSION.into();
    card["device"] = json!(info.line());
    card["driver"] = json!(info.driver);
    // They are not ranked among GPUs.
    card["is_software"] = (!info.kind.is_gpu()).into();
}

/// Returns the benchmark row at `path`.
pub(super) fn former(path: &Path) -> Option<Value> {
    let row: Value = serde_json::from_slice(&disk::read(path).ok()?).ok()?;
    (row["wgpt"].is_string() && row["rows"].is_array()).then_some(row)
}

/// Returns an error if `path` has another file than a benchmark row.
pub(super) fn check_vacant(path: &Path) -> Result<(), Failure> {
    if path.extension().is_none_or(|ending| ending != "json") {
        let text = format!("{}: not the name of a benchmark row", path.display());
        return Err(Failure::usage(text, "--card takes a file called *.json"));
    }
    if former(path).is_some() || !path.exists() {
        return Ok(());
    }
    let text = format!("{}: this file was not made by wgpt", path.display());
    Err(Failure::usage(text, "give another file with --card"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Exit;

    #[test]
    fn a_card_without_rows_is_an_error() {
        let dtypes = [Dtype::Float32, Dtype::Float16];
        let path = Path::new("card.json");
        let error = rows(path, "box", &dtypes, |_| None::<()>).unwrap_err();
        let text = &error.text;
        assert!(text.contains("card.json") && text.contains("float32, float16 on box"), "{text}");
        assert_eq!((error.exit, error.hint.is_empty()), (Exit::Failure, false));
        let one = |dtype| (dtype == Dtype::Float16).then_some(dtype);
        assert_eq!(rows(path, "box", &dtypes, one).unwrap(), [Dtype::Float16]);
    }
}
