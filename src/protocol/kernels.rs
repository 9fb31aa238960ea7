//! The kernels of a run, and the tests that compare them with the CPU's.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::config::{Arch, Config, Gelu, Precision, words};
use crate::protocol::Failure;

words! {
    #[derive(Default)]
    pub enum Implementation {
        /// The fastest that the device has.
        #[default]
        Auto = "auto",
        /// The tensor-op reference everywhere, for comparisons.
        Reference = "reference",
        /// [`Implementation::Auto`] without cooperative matrices, and with the tiles of GPUs on
        /// software adapters too, to test those tiles without a GPU.
        Wide = "wide",
        /// The kernels of devices that do not compile WGSL on every device that runs kernels, to test
        /// those kernels without one.
        Cube = "cube",
    }
}

/// The function of a layer's input before the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Activation {
    /// GELU (Hendrycks and Gimpel 2016, arXiv:1606.08415) in one of its forms.
    Gelu(Gelu),
    /// SwiGLU (Shazeer 2020, arXiv:2002.05202): the input is gate and up side by side, `[n, 2 in]`, and
    /// becomes `silu(gate) * up` `[n, in]`, with `silu(x) = x / (1 + exp(-x))`.
    SwiGlu,
}

impl From<Gelu> for Activation {
    fn from(form: Gelu) -> Self {
        Self::Gelu(form)
    }
}

/// The settings that decide, with device and precision, which variants of kernels a run launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelShapes {
    pub width: usize,
    pub heads: usize,
    /// Divides `heads`.
    pub kv_heads: usize,
    pub head_size: usize,
    /// The activation of the MLP. With SwiGLU, norms are RMS norms, and q and k are rotated.
    pub activation: Activation,
    /// True if heads of q and k are normalised before they are rotated.
    pub head_norms: bool,
    pub bias: bool,
    pub dropout: bool,
}

impl From<&Config> for KernelShapes {
    fn from(config: &Config) -> Self {
        let [width, heads] = [config.n_embd, config.n_head].map(|count| count.get() as usize);
        Self {
            width,
            heads,
            kv_heads: config.kv_heads() as usize,
            head_size: config.head_size() as usize,
            activation: match config.arch {
                Arch::Gpt2 => config.gelu.into(),
                Arch::Llama | Arch::Qwen2 | Arch::Qwen3 => Activation::SwiGlu,
            },
            head_norms: config.arch == Arch::Qwen3,
            bias: config.bias || config.arch == Arch::Qwen2,
            dropout: config.dropout > 0.0 || config.lora_dropout > 0.0,
        }
    }
}

impl fmt::Display for KernelShapes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { width, heads, kv_heads, head_size, activation, head_norms, bias, dropout } =
            self;
        write!(f, "width {width}, {heads} heads")?;
        match activation {
            Activation::Gelu(gelu) => write!(f, ", {gelu}")?,
            Activation::SwiGlu => write!(f, " of {head_size}, {kv_heads} of keys, swiglu")?,
        }
        f.write_str(if *head_norms { ", head norms" } else { "" })?;
        f.write_str(if *bias { ", bias" } else { "" })?;
        f.write_str(if *dropout { ", dropout" } else { "" })
    }
}

/// The largest error of a kernel's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelError {
    pub kernel: String,
    /// Relative to the largest expected element; `None` if an element is not finite.
    pub error: Option<f64>,
    pub allowed: f64,
}

impl KernelError {
    pub fn is_right(&self) -> bool {
        self.error.is_some_and(|error| error <= self.allowed)
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.error {
            None => write!(f, "{} computes values that are not finite", self.kernel),
            Some(error) => {
                let [error, allowed] = [error, self.allowed].map(|share| 100.0 * share);
                write!(f, "{} is off by {error:.2}% ", self.kernel)?;
                write!(f, "of its largest value, {allowed}% allowed")
            }
        }
    }
}

/// The kernels to test, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct KernelTests {
    /// The value of `--device`.
    pub device: String,
    pub implementation: Implementation,
    pub precision: Precision,
    /// True if products are cuBLASLt's.
    pub cublas: bool,
    pub shapes: KernelShapes,
    /// The number of the first check, from 0.
    pub first: usize,
}

/// The progress of [`Request::TestKernels`](super::Request::TestKernels).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KernelProgress {
    /// The kernels of a check are about to run. If this is the last message, they ended the process.
    Testing(String),
    Tested(KernelError),
    /// The device or its driver has reported an error, and the process is about to exit.
    Failed(Failure),
    /// Every check has run.
    Done,
}
