//! The GPU of `wgpt plan --target`, which need not be in this machine.

use crate::config::Budget;
use crate::plan::{Gpu, gpu_named, gpu_names};

/// A GPU that need not be in this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Target {
    /// In bytes.
    pub memory: u64,
    /// Its entry in the table of GPUs, if it was given by name.
    pub gpu: Option<&'static Gpu>,
}

/// A number without a unit is in GiB up to this one; a larger one counts bytes.
const MAX_GIB: u64 = 1024;

pub(super) fn parse_target(text: &str) -> Result<Target, String> {
    let text = text.trim();
    if let Some(gpu) = gpu_named(text) {
        return Ok(Target { memory: gpu.memory_gib << 30, gpu: Some(gpu) });
    }
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        let known: Vec<&str> = gpu_names().collect();
        return Err(format!("give its memory, like 12GiB, or one of {}", known.join(", ")));
    }
    let number = text.parse::<f64>().ok().filter(|gib| *gib <= MAX_GIB as f64);
    let size = number.map_or_else(|| text.to_string(), |gib| format!("{gib}GiB"));
    match size.try_into()? {
        Budget::Bytes(bytes) => Ok(Target { memory: bytes, gpu: None }),
        _ => Err("give the memory of a GPU, like 12GiB".into()),
    }
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
        for bad in ["", "0", "90%", "auto", "GTX 9999", "12 apples"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
        assert!(parse_target("GTX 9999").unwrap_err().contains("RTX 3060"));
    }
}
