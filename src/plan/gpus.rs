//! The published peaks of common GPUs, to estimate times for a GPU that is not in this machine.

use crate::config::{Abilities, Matrices, words};

/// A GPU as its vendor describes it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PublishedGpu {
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
    /// True if other GPUs have the same name, with fewer cores or lower clocks: it is for plans only.
    pub is_vague: bool,
}

words! {
    /// The types that a GPU's cores compute in besides float32. Each variant includes those before it.
    enum Cores {
        F32 = "f32",
        F16 = "f16",
        /// Tensor cores or AMD's WMMA, which multiply 16 x 16 matrices of float16. Arc's are not square,
        /// which the kernels need.
        Mma = "mma",
        /// Tensor cores that also multiply tf32 and bfloat16, through CUDA.
        Tf32 = "tf32",
    }
}

impl PublishedGpu {
    /// Returns the dtypes and matrices of this GPU through Vulkan, besides float32.
    pub fn abilities(self) -> Abilities {
        let matrices = (self.cores >= Cores::Mma).then_some(Matrices::Sixteen);
        Abilities { float16: self.cores >= Cores::F16, matrices, ..Abilities::default() }
    }

    pub fn has_tf32(self) -> bool {
        self.cores == Cores::Tf32
    }
}

/// A GPU a line.
const GPUS: &str = include_str!("../../assets/gpus.txt");

impl PublishedGpu {
    /// Reads a line of the table; `None` for a comment.
    fn parse(line: &'static str) -> Option<Self> {
        let mut columns = line.split(", ");
        let mut next = || columns.next();
        let cores = |word: &str| Cores::ALL.iter().copied().find(|cores| cores.to_string() == word);
        Some(Self {
            name: next()?,
            memory_gib: next()?.parse().ok()?,
            multiprocessors: next()?.parse().ok()?,
            peak_tflop_per_s: next()?.parse().ok()?,
            cores: cores(next()?)?,
            is_vague: next() == Some("vague"),
        })
    }
}

/// Lists the GPUs of the table.
pub fn gpus() -> impl Iterator<Item = PublishedGpu> {
    GPUS.lines().filter_map(PublishedGpu::parse)
}

/// Words that make the name before them another GPU.
const VARIANTS: &[&str] =
    &["ti", "super", "xt", "xtx", "gre", "laptop", "mobile", "pro", "max", "ultra", "d", "m", "s"];

/// Returns the GPU that a name means, as typed or as a driver reports it: `rtx 3060`,
/// `NVIDIA GeForce RTX 3060`, `Intel(R) Arc(tm) A770 Graphics (DG2)`.
pub fn gpu_named(name: &str) -> Option<PublishedGpu> {
    let name = words(name);
    gpus().find(|gpu| {
        let wanted = words(gpu.name);
        let ends = name.windows(wanted.len()).enumerate();
        let mut ends = ends.filter(|(_, found)| **found == wanted).map(|(at, _)| at + wanted.len());
        ends.any(|end| name.get(end).is_none_or(|next| !VARIANTS.contains(&next.as_str())))
    })
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
        let lines = GPUS.lines().filter(|line| !line.starts_with('#'));
        assert_eq!(gpus().count(), lines.count());
        for gpu in gpus() {
            assert_eq!(gpu_named(gpu.name), Some(gpu));
            assert!((4..=80).contains(&gpu.memory_gib), "{gpu:?}");
            assert!((2.0..150.0).contains(&gpu.peak_tflop_per_s), "{gpu:?}");
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
