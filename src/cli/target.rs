//! The GPU of `wgpt plan --target`, which need not be in this machine.

use crate::config::Budget;
use crate::plan::{Gpu, gpu_named, gpu_names};

/// A GPU that need not be in this machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    /// Any GPU with this much memory, in bytes.
    Memory(u64),
    /// This GPU.
    Named(&'static Gpu),
}

/// A number without a unit is in GiB up to this one; a larger one counts bytes.
const MAX_GIB: u64 = 1024;

/// Reads a GPU of `wgpt plan --target`.
///
/// # Errors
/// If the text is neither the name of a known GPU nor a size.
pub(super) fn parse_target(text: &str) -> Result<Target, String> {
    let text = text.trim();
    if let Some(gpu) = gpu_named(text) {
        return Ok(Target::Named(gpu));
    }
    if !text.starts_with(|c: char| c.is_ascii_digit()) {
        let known: Vec<&str> = gpu_names().collect();
        return Err(format!("give its memory, like 12GiB, or one of {}", known.join(", ")));
    }
    let number = text.parse::<f64>().ok().filter(|gib| *gib <= MAX_GIB as f64);
    let size = number.map_or_else(|| text.to_string(), |gib| format!("{gib}GiB"));
    match size.try_into()? {
        Budget::Bytes(bytes) => Ok(Target::Memory(bytes)),
        _ => Err("give the memory of a GPU, like 12GiB".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_a_size_or_a_name() {
        for text in ["12", "12GiB", " 12 ", "12.0", "12884901888"] {
            assert_eq!(parse_target(text), Ok(Target::Memory(12 << 30)), "{text}");
        }
        assert_eq!(parse_target("12GB"), Ok(Target::Memory(12_000_000_000)));
        assert_eq!(parse_target("1.5"), Ok(Target::Memory(3 << 29)));
        let named = parse_target("rtx 3060");
        assert!(matches!(named, Ok(Target::Named(gpu)) if gpu.memory_gib == 12), "{named:?}");
        for bad in ["", "0", "90%", "auto", "GTX 9999", "12 apples"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
        assert!(parse_target("GTX 9999").unwrap_err().contains("RTX 3060"));
    }
}
