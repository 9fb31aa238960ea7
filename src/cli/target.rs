//! The GPU of `wgpt plan --target`.

use crate::config::Budget;
use crate::plan::{PublishedGpu, gpu_named, gpus};
use crate::text::Table;

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

/// Words before the number of a GPU, which people may leave out.
const BRANDS: [&str; 7] = ["", "rtx ", "gtx ", "rx ", "radeon ", "arc ", "apple "];

/// The least chip in each computer of Apple.
const MACS: [(&str, &str); 6] = [
    ("macbook air", "m1"),
    ("macbook pro", "m1"),
    ("mac studio", "m1 max"),
    ("mac mini", "m1"),
    ("macbook", "m1"),
    ("imac", "m1"),
];

/// The GPUs of one maker: words that mean it, and beginnings of its names in the table.
const MAKERS: [(&[&str], &[&str]); 4] = [
    (&["apple", "mac", "imac", "macbook"], &["Apple"]),
    (&["intel", "arc", "iris", "xe", "uhd"], &["Arc", "Iris"]),
    (&["amd", "radeon", "rx", "vega"], &["RX", "Radeon"]),
    (
        &["nvidia", "geforce", "rtx", "gtx", "quadro", "tesla"],
        &["RTX", "GTX", "T4", "A10", "L4", "H"],
    ),
];

/// Reads a name, whole or without its brand (`3060`), a computer of Apple, or the memory of a GPU.
pub(super) fn parse_target(text: &str) -> Result<TargetGpu, String> {
    let text = text.trim().to_lowercase();
    let mac = MACS.iter().find_map(|(mac, chip)| {
        let rest = text.strip_prefix(mac)?.trim();
        Some(if rest.is_empty() { chip.to_string() } else { rest.into() })
    });
    let name = mac.as_ref().unwrap_or(&text);
    let names = BRANDS.map(|brand| format!("{brand}{name}"));
    if let Some(gpu) = names.iter().find_map(|name| gpu_named(name)) {
        return Ok(TargetGpu { memory: gpu.memory_gib << 30, gpu: Some(gpu) });
    }
    let number = text.parse::<f64>().ok().filter(|gib| *gib <= MAX_GIB as f64);
    let size = number.map_or_else(|| text.clone(), |gib| format!("{gib}GiB"));
    match size.try_into() {
        Ok(Budget::Bytes(memory)) if memory >= MIN_BYTES => Ok(TargetGpu { memory, gpu: None }),
        _ => Err(format!(
            "give its memory, like 12GiB, or a name, like {}; `wgpt plan --targets` lists them",
            nearest(&text, &names)
        )),
    }
}

/// Returns the three GPU names that are most similar to one of `names`: of the maker that `text` means, if it means
/// one.
fn nearest(text: &str, names: &[String]) -> String {
    let first: String = text.chars().take_while(|letter| letter.is_alphabetic()).collect();
    // Apple's chips have one digit; other names with an M have more.
    let is_chip = first == "m" && text.chars().filter(char::is_ascii_digit).count() == 1;
    let first = if is_chip { "apple" } else { &first };
    let maker = MAKERS.iter().find(|(words, _)| words.contains(&first));
    let is_of_maker = |name: &&str| {
        maker.is_none_or(|(_, begins)| begins.iter().any(|begin| name.starts_with(begin)))
    };
    let mut known: Vec<&str> = gpus().map(|gpu| gpu.name).filter(is_of_maker).collect();
    known.sort_by_cached_key(|name| {
        let name = name.to_lowercase();
        names.iter().map(|typed| strsim::damerau_levenshtein(typed, &name)).min()
    });
    known[..3].join(", ")
}

/// Prints the GPUs that `--target` knows.
pub(super) fn list() {
    let cells = |gpu: PublishedGpu| {
        let speed = format!("{:.1}", gpu.peak_tflop_per_s);
        vec![gpu.name.to_string(), gpu.memory_gib.to_string(), speed]
    };
    let table = Table::new(["GPU", "GiB", "TFLOP/s"], gpus().map(cells));
    output!("{}", table.plain(&[1, 2]).trim_end());
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
        for (text, name) in [
            ("m2", "Apple M2"),
            ("macbook", "Apple M1"),
            ("MacBook Pro", "Apple M1"),
            ("macbook pro m2 max", "Apple M2 Max"),
            ("4070 laptop", "RTX 4070 Laptop"),
            ("6800 xt", "RX 6800 XT"),
            ("b580", "Arc B580"),
            ("iris xe", "Iris Xe"),
            ("intel iris xe graphics", "Iris Xe"),
            ("780m", "Radeon 780M"),
        ] {
            assert_eq!(parse_target(text).unwrap().gpu.map(|gpu| gpu.name), Some(name), "{text}");
        }
        for bad in ["", "0", "90%", "auto", "3061", "100MiB", "12 apples"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
        for text in ["RTX 3061", "3061"] {
            let error = parse_target(text).unwrap_err();
            assert!(error.contains("RTX 3060") && error.split(", ").count() == 6, "{error}");
        }
        for (text, begin) in
            [("m9", "Apple"), ("macbook m9", "Apple"), ("iris 7", "Iris"), ("rx 9", "RX")]
        {
            let error = parse_target(text).unwrap_err();
            let names = error.split_once("like ").unwrap().1.split_once("like ").unwrap().1;
            let is_of_maker =
                |name: &str| name.starts_with(begin) || begin == "Iris" && name.starts_with("Arc");
            assert!(names.split(';').next().unwrap().split(", ").all(is_of_maker), "{error}");
        }
    }
}
