//! The precision of a run: the dtypes it stores and multiplies, from the setting and the device.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::choices::words;

words! {
    /// The precision of activations and products. Master weights, gradients, moments and sums are float32.
    #[derive(Default)]
    pub enum Dtype {
        /// The fastest on the device: float16 with cooperative matrices, bfloat16 with tensor cores on
        /// CUDA, else float32. A run keeps the choice.
        #[default]
        Auto = "auto",
        Float32 = "float32",
        /// float32 storage; products use tensor cores, which read the upper 19 bits.
        Tf32 = "tf32",
        /// bfloat16, with the range of float32: activations take half the memory.
        Bfloat16 = "bfloat16",
        /// float16, with more digits than bfloat16 and a smaller range: activations take half the
        /// memory, and the loss is scaled.
        Float16 = "float16",
    }
}

/// The side of the square float16 matrices that a device multiplies at once, with float32 sums
/// (cooperative matrices, tensor cores).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Matrices {
    /// 8 x 8 x 8: Apple, software adapters.
    Eight = 8,
    /// 16 x 16 x 16: NVIDIA, AMD.
    Sixteen = 16,
}

impl Matrices {
    pub fn side(self) -> u32 {
        self as u32
    }
}

/// The dtypes and matrices that the kernels for a device support besides float32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abilities {
    pub tf32: bool,
    /// Storage and products in bfloat16.
    pub bfloat16: bool,
    /// Storage in float16. The products need `matrices`.
    pub float16: bool,
    /// `None` where float16 is converted and multiplied in float32.
    pub matrices: Option<Matrices>,
    /// True if a software adapter emulates `matrices`. It is faster without them.
    pub emulated: bool,
}

impl Abilities {
    /// Lists the dtypes, without `auto`.
    pub fn dtypes(self) -> Vec<Dtype> {
        let Self { tf32, bfloat16, float16, .. } = self;
        let all = [
            (Dtype::Float32, true),
            (Dtype::Tf32, tf32),
            (Dtype::Bfloat16, bfloat16),
            (Dtype::Float16, float16),
        ];
        all.into_iter().filter(|&(_, has)| has).map(|(dtype, _)| dtype).collect()
    }

    /// Returns the abilities without the units that multiply matrices: neither cooperative matrices nor
    /// the tensor cores of CUDA, which multiply its float16 too.
    pub fn without_matrices(self) -> Self {
        Self { float16: self.float16 && !self.bfloat16, ..Self::default() }
    }

    /// Returns the precision in which `dtype` computes; `None` if it cannot.
    pub fn precision(self, dtype: Dtype) -> Option<Precision> {
        let dtype = match dtype {
            Dtype::Auto => self.fastest(),
            dtype if self.dtypes().contains(&dtype) => dtype,
            _ => return None,
        };
        let matrices = self.matrices.filter(|_| dtype == Dtype::Float16);
        Some(Precision { dtype, matrices })
    }

    /// Returns the precision of a plan in `dtype` for a device that may not be in this machine. The
    /// device is assumed to have the dtype.
    pub fn planned(self, dtype: Dtype) -> Precision {
        self.precision(dtype).unwrap_or(Precision { dtype, matrices: None })
    }

    /// Returns the dtype that `auto` stands for. float16 that is multiplied in float32 saves memory
    /// but no time, so a user has to ask for it. CUDA's tensor cores multiply bfloat16 from the
    /// generation on that has tf32 (compute capability 8.0).
    fn fastest(self) -> Dtype {
        match self {
            Self { float16: true, matrices: Some(_), emulated: false, .. } => Dtype::Float16,
            Self { tf32: true, bfloat16: true, .. } => Dtype::Bfloat16,
            _ => Dtype::Float32,
        }
    }

    /// Describes the precision of a run in `dtype`, with the reason if `auto` became float32.
    pub fn explain(self, dtype: Dtype) -> String {
        let precision = self.planned(dtype);
        if (dtype, precision.dtype) != (Dtype::Auto, Dtype::Float32) {
            return precision.to_string();
        }
        let reason = match self {
            Self { matrices: Some(_), .. } => "a software adapter only emulates float16 matrices",
            Self { bfloat16: true, .. } => "the tensor cores of this GPU do not support bfloat16",
            Self { float16: true, .. } => {
                "without cooperative matrices, float16 saves memory but not time"
            }
            // The device has no other dtype.
            _ => return precision.to_string(),
        };
        format!("{precision}, because {reason}")
    }
}

impl fmt::Display for Abilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |dtype| match (dtype, self.matrices.map(Matrices::side)) {
            (Dtype::Float16, Some(side)) => format!("{dtype} ({side}x{side} matrices)"),
            _ => dtype.to_string(),
        };
        f.write_str(&self.dtypes().into_iter().map(name).collect::<Vec<_>>().join(", "))
    }
}

/// The dtypes that a run stores and multiplies. Master weights, gradient sums, moments, the
/// statistics of layer norm and softmax, and all sums within kernels are float32 in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Precision {
    /// Never [`Dtype::Auto`].
    dtype: Dtype,
    matrices: Option<Matrices>,
}

impl Precision {
    /// float32 everywhere, which every device has.
    pub const FLOAT32: Self = Self { dtype: Dtype::Float32, matrices: None };

    /// Never returns [`Dtype::Auto`].
    pub fn dtype(self) -> Dtype {
        self.dtype
    }

    /// Returns the cooperative matrices of the products, if they use any.
    pub fn matrices(self) -> Option<Matrices> {
        self.matrices
    }

    pub fn activation_bytes(self) -> u64 {
        match self.dtype {
            Dtype::Auto | Dtype::Float32 | Dtype::Tf32 => 4,
            Dtype::Bfloat16 | Dtype::Float16 => 2,
        }
    }

    pub fn is_half(self) -> bool {
        self.activation_bytes() == 2
    }

    /// Returns true if each weight matrix has a copy in the dtype of activations, which the products
    /// load: float16 for cooperative matrices, bfloat16 for tensor cores.
    pub fn keeps_half_weights(self) -> bool {
        self.matrices.is_some() || self.dtype == Dtype::Bfloat16
    }

    /// Returns true if the loss is scaled: with 5 bits of exponent, small gradients would underflow.
    pub fn scales_loss(self) -> bool {
        self.dtype == Dtype::Float16
    }
}

impl Default for Precision {
    fn default() -> Self {
        Self::FLOAT32
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.dtype, self.matrices) {
            (Dtype::Float16, Some(matrices)) => {
                let side = matrices.side();
                write!(f, "float16 with float32 sums, on {side}x{side} cooperative matrices")
            }
            (Dtype::Float16 | Dtype::Bfloat16, _) => write!(f, "{} with float32 sums", self.dtype),
            (dtype, _) => write!(f, "{dtype}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_is_the_fastest_that_the_device_has() {
        let none = Abilities::default();
        let storage = Abilities { float16: true, ..none };
        let turing = Abilities { bfloat16: true, ..storage };
        let cuda = Abilities { tf32: true, ..turing };
        let matrices = Abilities { matrices: Some(Matrices::Sixteen), ..storage };
        let emulated = Abilities { emulated: true, ..matrices };
        for (able, dtype, text) in [
            (none, Dtype::Float32, "float32"),
            (storage, Dtype::Float32, "float32, because without cooperative matrices"),
            (turing, Dtype::Float32, "float32, because the tensor cores"),
            (cuda, Dtype::Bfloat16, "bfloat16 with float32 sums"),
            (matrices, Dtype::Float16, "float16 with float32 sums, on 16x16 cooperative matrices"),
            (emulated, Dtype::Float32, "float32, because a software adapter"),
        ] {
            assert_eq!(able.precision(Dtype::Auto).unwrap().dtype(), dtype, "{able:?}");
            let explained = able.explain(Dtype::Auto);
            assert!(explained.starts_with(text), "{explained}");
        }
        // Asked for, emulated matrices are used.
        assert_eq!(emulated.precision(Dtype::Float16), matrices.precision(Dtype::Float16));
        assert_eq!(matrices.explain(Dtype::Float32), "float32");
        let precision = matrices.precision(Dtype::Float16).unwrap();
        assert!(precision.keeps_half_weights() && precision.scales_loss());
        assert!(!matrices.precision(Dtype::Float32).unwrap().keeps_half_weights());
        assert!(!storage.precision(Dtype::Float16).unwrap().keeps_half_weights());
        assert_eq!(none.precision(Dtype::Float16), None);
        let bfloat16 = none.planned(Dtype::Bfloat16);
        assert!(bfloat16.is_half() && bfloat16.keeps_half_weights());
        assert_eq!(cuda.to_string(), "float32, tf32, bfloat16, float16");
        assert_eq!(matrices.to_string(), "float32, float16 (16x16 matrices)");
    }
}
