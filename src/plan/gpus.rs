//! The published peaks of common GPUs, to estimate times for a GPU that is not in this machine.

use self::Cores::{F16, F32, Mma, Tf32};
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
    cores: Cores,
}

/// The types that a GPU's cores compute in besides float32. Each variant includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
enum Cores {
    F32,
    F16,
    /// Tensor cores or AMD's WMMA, which multiply 16 x 16 matrices of float16. Arc's are not square, which
    /// the kernels need.
    Mma,
    /// Tensor cores that also multiply tf32 and bfloat16, through CUDA.
    Tf32,
}

impl Gpu {
    /// Returns the dtypes and matrices of this GPU through Vulkan, besides float32.
    pub fn abilities(&self) -> Abilities {
        let matrices = (self.cores >= Mma).then_some(Matrices::Sixteen);
        Abilities { float16: self.cores >= F16, matrices, ..Abilities::default() }
    }

    pub fn has_tf32(&self) -> bool {
        self.cores == Tf32
    }
}

const fn gpu(
    name: &'static str,
    memory_gib: u64,
    multiprocessors: usize,
    peak: f64,
    cores: Cores,
) -> Gpu {
    Gpu { name, memory_gib, multiprocessors, peak_tflop_per_s: peak, cores }
}

/// Memory, multiprocessors and peaks from the vendors' specifications. Laptops' peaks are at the lowest clock
/// that their makers may set; the memory of Apple's chips is the smallest that they were sold with.
#[rustfmt::skip] // One GPU per line, to read as a table.
const GPUS: &[Gpu] = &[
    gpu("GTX 1060", 6, 10, 4.4, F32),
    gpu("GTX 1070", 8, 15, 6.5, F32),
    gpu("GTX 1070 Ti", 8, 19, 8.2, F32),
    gpu("GTX 1080", 8, 20, 8.9, F32),
    gpu("GTX 1080 Ti", 11, 28, 11.3, F32),
    gpu("GTX 1650", 4, 14, 3.0, F16),
    gpu("GTX 1650 SUPER", 4, 20, 4.4, F16),
    gpu("GTX 1660", 6, 22, 5.0, F16),
    gpu("GTX 1660 SUPER", 6, 22, 5.0, F16),
    gpu("GTX 1660 Ti", 6, 24, 5.4, F16),
    gpu("RTX 2060", 6, 30, 6.5, Mma),
    gpu("RTX 2060 SUPER", 8, 34, 7.2, Mma),
    gpu("RTX 2070", 8, 36, 7.5, Mma),
    gpu("RTX 2070 SUPER", 8, 40, 9.1, Mma),
    gpu("RTX 2080", 8, 46, 10.1, Mma),
    gpu("RTX 2080 Ti", 11, 68, 13.4, Mma),
    gpu("RTX 3050", 8, 20, 9.1, Tf32),
    gpu("RTX 3060", 12, 28, 12.7, Tf32),
    gpu("RTX 3060 Ti", 8, 38, 16.2, Tf32),
    gpu("RTX 3070", 8, 46, 20.3, Tf32),
    gpu("RTX 3070 Ti", 8, 48, 21.7, Tf32),
    gpu("RTX 3080", 10, 68, 29.8, Tf32),
    gpu("RTX 3080 Ti", 12, 80, 34.1, Tf32),
    gpu("RTX 3090", 24, 82, 35.6, Tf32),
    gpu("RTX 3090 Ti", 24, 84, 40.0, Tf32),
    gpu("RTX 4060", 8, 24, 15.1, Tf32),
    gpu("RTX 4060 Ti", 8, 34, 22.1, Tf32),
    gpu("RTX 4070", 12, 46, 29.1, Tf32),
    gpu("RTX 4070 SUPER", 12, 56, 35.5, Tf32),
    gpu("RTX 4070 Ti", 12, 60, 40.1, Tf32),
    gpu("RTX 4070 Ti SUPER", 16, 66, 44.1, Tf32),
    gpu("RTX 4080", 16, 76, 48.7, Tf32),
    gpu("RTX 4080 SUPER", 16, 80, 52.2, Tf32),
    gpu("RTX 4090", 24, 128, 82.6, Tf32),
    gpu("RTX 5050", 8, 20, 13.2, Tf32),
    gpu("RTX 5060", 8, 30, 19.2, Tf32),
    gpu("RTX 5060 Ti", 16, 36, 23.7, Tf32),
    gpu("RTX 5070", 12, 48, 30.9, Tf32),
    gpu("RTX 5070 Ti", 16, 70, 43.9, Tf32),
    gpu("RTX 5080", 16, 84, 56.3, Tf32),
    gpu("RTX 5090", 32, 170, 104.8, Tf32),
    gpu("RTX 3050 Laptop", 4, 16, 4.3, Tf32),
    gpu("RTX 3060 Laptop", 6, 30, 9.9, Tf32),
    gpu("RTX 3070 Laptop", 8, 40, 13.2, Tf32),
    gpu("RTX 3080 Laptop", 8, 48, 15.3, Tf32),
    gpu("RTX 4050 Laptop", 6, 20, 8.2, Tf32),
    gpu("RTX 4060 Laptop", 8, 24, 9.0, Tf32),
    gpu("RTX 4070 Laptop", 8, 36, 11.3, Tf32),
    gpu("RTX 4080 Laptop", 12, 58, 20.0, Tf32),
    gpu("RTX 4090 Laptop", 16, 76, 28.3, Tf32),
    gpu("T4", 16, 40, 8.1, Mma),
    gpu("A10", 24, 72, 31.2, Tf32),
    gpu("L4", 24, 58, 30.3, Tf32),
    gpu("L40S", 48, 142, 91.6, Tf32),
    gpu("H100", 80, 132, 66.9, Tf32),
    gpu("RX 6500 XT", 4, 8, 5.8, F16),
    gpu("RX 6600", 8, 14, 8.9, F16),
    gpu("RX 6600 XT", 8, 16, 10.6, F16),
    gpu("RX 6650 XT", 8, 16, 10.8, F16),
    gpu("RX 6700", 10, 18, 11.3, F16),
    gpu("RX 6700 XT", 12, 20, 13.2, F16),
    gpu("RX 6750 XT", 12, 20, 13.3, F16),
    gpu("RX 6800", 16, 30, 16.2, F16),
    gpu("RX 6800 XT", 16, 36, 20.7, F16),
    gpu("RX 6900 XT", 16, 40, 23.0, F16),
    gpu("RX 6950 XT", 16, 40, 23.7, F16),
    gpu("RX 7600", 8, 16, 10.9, Mma),
    gpu("RX 7600 XT", 16, 16, 11.3, Mma),
    gpu("RX 7700 XT", 12, 27, 17.6, Mma),
    gpu("RX 7800 XT", 16, 30, 18.7, Mma),
    gpu("RX 7900 GRE", 16, 40, 23.0, Mma),
    gpu("RX 7900 XT", 20, 42, 25.8, Mma),
    gpu("RX 7900 XTX", 24, 48, 30.7, Mma),
    gpu("RX 9060 XT", 16, 16, 12.8, Mma),
    gpu("RX 9070", 16, 28, 18.1, Mma),
    gpu("RX 9070 XT", 16, 32, 24.3, Mma),
    gpu("Arc A380", 6, 8, 4.1, F16),
    gpu("Arc A580", 8, 24, 10.4, F16),
    gpu("Arc A750", 8, 28, 14.7, F16),
    gpu("Arc A770", 16, 32, 17.2, F16),
    gpu("Arc B570", 10, 18, 11.5, F16),
    gpu("Arc B580", 12, 20, 13.7, F16),
    gpu("Apple M1", 8, 8, 2.6, F16),
    gpu("Apple M1 Pro", 16, 16, 5.2, F16),
    gpu("Apple M1 Max", 32, 32, 10.4, F16),
    gpu("Apple M2", 8, 10, 3.6, F16),
    gpu("Apple M2 Pro", 16, 19, 6.8, F16),
    gpu("Apple M2 Max", 32, 38, 13.6, F16),
];

/// Words that make the name before them another GPU.
const VARIANTS: &[&str] =
    &["ti", "super", "xt", "xtx", "gre", "laptop", "mobile", "pro", "max", "ultra", "d", "m", "s"];

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
            assert!((4..=80).contains(&gpu.memory_gib), "{gpu:?}");
            assert!((2.5..150.0).contains(&gpu.peak_tflop_per_s), "{gpu:?}");
            // 64, 128 or 256 multiply-adds of each in a cycle, at 1.2 to 3 GHz.
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
            ("NVIDIA GeForce RTX 3060 Laptop GPU", Some("RTX 3060 Laptop")),
            ("NVIDIA GeForce GTX 1060 6GB", Some("GTX 1060")),
            ("NVIDIA H100 80GB HBM3", Some("H100")),
            ("Apple M1 Pro", Some("Apple M1 Pro")),
            ("Apple M1 Ultra", None),
            ("NVIDIA GeForce RTX 2070 Mobile", None),
            ("NVIDIA GeForce RTX 4090 D", None),
            ("llvmpipe (LLVM 15.0.6, 256 bits)", None),
            ("", None),
        ] {
            assert_eq!(gpu_named(name).map(|gpu| gpu.name), known, "{name}");
        }
    }
}
