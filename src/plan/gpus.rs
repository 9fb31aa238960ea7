//! The published peaks of common GPUs, to estimate times for a GPU that is not in this machine.

use crate::config::{Abilities, Matrices};

/// A GPU as its vendor describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gpu {
    /// The name without the vendor, like `RTX 3060`.
    pub name: &'static str,
    /// Memory in GiB; of several variants, the most common.
    pub memory_gib: u64,
    /// The parts that each run workgroups of their own: multiprocessors, AMD's pairs of compute units,
    /// Intel's Xe cores.
    pub multiprocessors: usize,
    /// The peak rate of f32 multiply-adds in TFLOP/s, each counted as two operations, at the boost
    /// clock. RDNA 3 is listed without dual issue, which compilers rarely reach.
    pub peak_tflop_per_s: f64,
    /// True if it multiplies 16 x 16 matrices of float16: tensor cores, AMD's WMMA. Arc's are not
    /// square, which the kernels need.
    matrices: bool,
}

impl Gpu {
    /// Returns the dtypes and matrices of this GPU through Vulkan, besides float32.
    pub fn abilities(&self) -> Abilities {
        let matrices = self.matrices.then_some(Matrices::Sixteen);
        Abilities { float16: true, matrices, ..Abilities::default() }
    }

    /// True if its tensor cores multiply tf32 and bfloat16, through CUDA: from the RTX 30 on.
    pub fn has_tf32(&self) -> bool {
        self.name.strip_prefix("RTX ").is_some_and(|number| !number.starts_with("20"))
    }
}

const fn gpu(
    name: &'static str,
    memory_gib: u64,
    multiprocessors: usize,
    peak: f64,
    matrices: bool,
) -> Gpu {
    Gpu { name, memory_gib, multiprocessors, peak_tflop_per_s: peak, matrices }
}

/// Memory, multiprocessors and peaks from the vendors' specifications.
#[rustfmt::skip] // One GPU per line, to read as a table.
const GPUS: &[Gpu] = &[
    gpu("RTX 2060", 6, 30, 6.5, true),
    gpu("RTX 2060 SUPER", 8, 34, 7.2, true),
    gpu("RTX 2070", 8, 36, 7.5, true),
    gpu("RTX 2070 SUPER", 8, 40, 9.1, true),
    gpu("RTX 2080", 8, 46, 10.1, true),
    gpu("RTX 2080 Ti", 11, 68, 13.4, true),
    gpu("RTX 3050", 8, 20, 9.1, true),
    gpu("RTX 3060", 12, 28, 12.7, true),
    gpu("RTX 3060 Ti", 8, 38, 16.2, true),
    gpu("RTX 3070", 8, 46, 20.3, true),
    gpu("RTX 3070 Ti", 8, 48, 21.7, true),
    gpu("RTX 3080", 10, 68, 29.8, true),
    gpu("RTX 3080 Ti", 12, 80, 34.1, true),
    gpu("RTX 3090", 24, 82, 35.6, true),
    gpu("RTX 3090 Ti", 24, 84, 40.0, true),
    gpu("RTX 4060", 8, 24, 15.1, true),
    gpu("RTX 4060 Ti", 8, 34, 22.1, true),
    gpu("RTX 4070", 12, 46, 29.1, true),
    gpu("RTX 4070 SUPER", 12, 56, 35.5, true),
    gpu("RTX 4070 Ti", 12, 60, 40.1, true),
    gpu("RTX 4070 Ti SUPER", 16, 66, 44.1, true),
    gpu("RTX 4080", 16, 76, 48.7, true),
    gpu("RTX 4080 SUPER", 16, 80, 52.2, true),
    gpu("RTX 4090", 24, 128, 82.6, true),
    gpu("RTX 5070", 12, 48, 30.9, true),
    gpu("RTX 5070 Ti", 16, 70, 43.9, true),
    gpu("RTX 5080", 16, 84, 56.3, true),
    gpu("RTX 5090", 32, 170, 104.8, true),
    gpu("RX 6600", 8, 14, 8.9, false),
    gpu("RX 6600 XT", 8, 16, 10.6, false),
    gpu("RX 6700 XT", 12, 20, 13.2, false),
    gpu("RX 6800", 16, 30, 16.2, false),
    gpu("RX 6800 XT", 16, 36, 20.7, false),
    gpu("RX 6900 XT", 16, 40, 23.0, false),
    gpu("RX 7800 XT", 16, 30, 18.7, true),
    gpu("RX 7900 XT", 20, 42, 25.8, true),
    gpu("RX 7900 XTX", 24, 48, 30.7, true),
    gpu("Arc A770", 16, 32, 17.2, false),
    gpu("Arc B580", 12, 20, 13.7, false),
];

/// Words that make the name before them another GPU.
const VARIANTS: &[&str] =
    &["ti", "super", "xt", "xtx", "gre", "laptop", "mobile", "max", "d", "m", "s"];

/// Returns the GPU that a name means, as typed or as a driver reports it: `rtx 3060`,
/// `NVIDIA GeForce RTX 3060`, `Intel(R) Arc(tm) A770 Graphics (DG2)`.
pub fn gpu_named(name: &str) -> Option<&'static Gpu> {
    let name = words(name);
    GPUS.iter().find(|gpu| {
        let wanted = words(gpu.name);
        let ends = name.windows(wanted.len()).enumerate();
        let mut ends = ends.filter(|(_, found)| **found == wanted).map(|(at, _)| at + wanted.len());
        ends.any(|end| name.get(end).is_none_or(|next| !VARIANTS.contains(&next.as_str())))
    })
}

pub fn gpu_names() -> impl Iterator<Item = &'static str> {
    GPUS.iter().map(|gpu| gpu.name)
}

/// Splits a name into words of lower-case letters and of digits, without trademark signs.
fn words(name: &str) -> Vec<String> {
    let name: Vec<char> = name.to_ascii_lowercase().chars().collect();
    let is_word = |a: &char, b: &char| {
        a.is_alphanumeric() && b.is_alphanumeric() && a.is_numeric() == b.is_numeric()
    };
    let words = name.chunk_by(is_word).map(|word| word.iter().collect::<String>());
    let is_kept = |word: &String| {
        word.starts_with(char::is_alphanumeric) && !["r", "tm"].contains(&word.as_str())
    };
    words.filter(is_kept).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gpu_is_found_by_its_own_name() {
        for gpu in GPUS {
            assert_eq!(gpu_named(gpu.name), Some(gpu));
            assert!((4..=32).contains(&gpu.memory_gib), "{gpu:?}");
            assert!((5.0..150.0).contains(&gpu.peak_tflop_per_s), "{gpu:?}");
            // 64, 128 or 256 multiply-adds of each in a cycle, at 1.5 to 3 GHz.
            let of_each = gpu.peak_tflop_per_s / gpu.multiprocessors as f64;
            assert!((0.18..1.3).contains(&of_each), "{gpu:?}");
        }
    }

    #[test]
    fn names_of_drivers_are_matched_by_whole_words() {
        for (name, known) in [
            ("NVIDIA GeForce RTX 3060", Some("RTX 3060")),
            ("NVIDIA GeForce RTX 3060/PCIe/SSE2", Some("RTX 3060")),
            ("NVIDIA GeForce RTX 3060 Ti", Some("RTX 3060 Ti")),
            ("NVIDIA GeForce RTX 4070 Ti SUPER", Some("RTX 4070 Ti SUPER")),
            ("rtx4090", Some("RTX 4090")),
            ("AMD Radeon RX 7900 XTX (RADV NAVI31)", Some("RX 7900 XTX")),
            ("AMD Radeon RX 6800 (RADV NAVI21)", Some("RX 6800")),
            ("Intel(R) Arc(tm) A770 Graphics (DG2)", Some("Arc A770")),
            ("NVIDIA GeForce RTX 3060 Laptop GPU", None),
            ("NVIDIA GeForce RTX 4090 D", None),
            ("NVIDIA GeForce GTX 1060", None),
            ("llvmpipe (LLVM 15.0.6, 256 bits)", None),
            ("", None),
        ] {
            assert_eq!(gpu_named(name).map(|gpu| gpu.name), known, "{name}");
        }
    }
}
