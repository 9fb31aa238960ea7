//! The GPU of `wgpt plan --target`.

use crate::config::Budget;
use crate::plan::{PublishedGpu, gpu_named, gpu_names};

/// A GPU that need not be in this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TargetGpu {
    /// In bytes.
    pub memory: u64,
    /// Its entry in the table of GPUs, if it was given by name.
    pub gpu: Option<PublishedGpu>,
}

/// A number without a unit is in GiB up to this one; a larger one counts bytes.
const MAX_GIB: u64 = 1024;
/// Every GPU that runs wgpt has more.
const MIN_BYTES: u64 = 512 << 20;

/// Reads a name, whole or without its brand (`3060`), or the memory of a GPU.
pub(super) fn parse_target(text: &str) -> Result<TargetGpu, String> {
    let text = text.trim();
    let names = ["", "rtx ", "gtx ", "rx "].map(|brand| format!("{brand}{text}").to_lowercase());
    if let Some(gpu) = names.iter().find_map(|name| gpu_named(name)) {
        return Ok(TargetGpu { memory: gpu.memory_gib << 30, gpu: Some(gpu) });
    }
    let number = text.parse::<f64>().ok().filter(|gib| *gib <= MAX_GIB as f64);
    let size = number.map_or_else(|| text.to_string(), |gib| format!("{gib}GiB"));
    match size.try_into() {
        Ok(Budget::Bytes(memory)) if memory >= MIN_BYTES => Ok(TargetGpu { memory, gpu: None }),
        _ => Err(format!("give its memory, like 12GiB, or a name, like {}", nearest(&names))),
    }
}

/// Returns the three GPU names that are most similar to one of `typed`, in lower case.
fn nearest(typed: &[String]) -> String {
    let mut names: Vec<&str> = gpu_names().collect();
    names.sort_by_cached_key(|name| {
        let name = name.to_lowercase();
        typed.iter().map(|typed| strsim::damerau_levenshtein(typed, &name)).min()
    });
    names[..3].join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_size_or_a_name() {
        let memory = |text| parse_target(text).unwrap().memory;
        for text in ["12", "12GiB", " 12 ", "12.0", "12884901888", "rtx 3060"] {
            assert_eq!(memory(text), 12 << 30, "{text}");
            assert_eq!(parse_target(text).unwrap().gpu.is_some(), text == "rtx 3060", "{text}");
        }
        assert_eq!((memory("12GB"), memory("1.5")), (12_000_000_000, 3 << 29));
        for (text, name) in [("3060", "RTX 3060"), ("4070 ti", "RTX 4070 Ti"), ("6600", "RX 6600")]
        {
            assert_eq!(parse_target(text).unwrap().gpu.map(|gpu| gpu.name), Some(name), "{text}");
        }
        for bad in ["", "0", "90%", "auto", "3061", "100MiB", "12 apples"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
        for text in ["RTX 3061", "3061"] {
            let error = parse_target(text).unwrap_err();
            assert!(error.contains("RTX 3060") && error.split(", ").count() == 6, "{error}");
        }
    }
}
