//! Settings that are one of a few words.

use serde::{Deserialize, Serialize};

/// Declares enums and the word of each value: the same in files, on the command line and in events.
/// `WORDS` lists the words, `ALL` the values.
macro_rules! words {
    ($($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident = $word:literal,)*
    })*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        $vis enum $name {
            $($(#[$value_meta])* #[serde(rename = $word)] $value,)*
        }

        #[allow(dead_code, reason = "not every enum is a setting, nor is every one listed")]
        impl $name {
            pub(crate) const WORDS: &[&'static str] = &[$($word),*];
            pub(crate) const ALL: &[Self] = &[$(Self::$value),*];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(Self::WORDS[*self as usize])
            }
        }
    )*};
}
pub(crate) use words;

words! {
    /// The shape of a model's blocks.
    #[derive(Default)]
    pub enum Arch {
        /// Learned positions, layer norms with means, GELU (Radford et al. 2019).
        #[default]
        Gpt2 = "gpt2",
        /// Rotated queries and keys, root mean square norms, gated MLPs (Touvron et al.,
        /// arXiv:2302.13971), and heads that share keys and values.
        Llama = "llama",
        /// Like `Llama`, with biases of queries, keys and values (arXiv:2412.15115): Qwen2 and Qwen2.5.
        Qwen2 = "qwen2",
        /// Like `Llama`, with a norm of each head's queries and keys (arXiv:2505.09388).
        Qwen3 = "qwen3",
    }

    /// The form of the GELU activation (Hendrycks and Gimpel, 2016).
    pub enum Gelu {
        /// The tanh approximation: OpenAI's and Hugging Face's GPT-2.
        Tanh = "tanh",
        /// The exact form with the error function: nanoGPT.
        Erf = "erf",
    }

    /// A way to save memory that takes time: forced, forbidden, or left to the plan.
    #[derive(Default)]
    pub enum Choice {
        /// If the fastest plan that fits the budget uses it.
        #[default]
        Auto = "auto",
        True = "true",
        False = "false",
    }

    /// Whether the run or the other programs of the computer come first.
    #[derive(Default)]
    pub enum Priority {
        /// The run, as long as the memory of its device suffices for all.
        #[default]
        Normal = "normal",
        /// Other programs that use the GPU, and the battery.
        Background = "background",
    }

    /// The storage of weights that are not trained, because an adapter is.
    #[derive(Default)]
    pub enum BaseDtype {
        /// That of the run's precision.
        #[default]
        Auto = "auto",
        /// In the blocks: 8 bits, and a scale for each 32 weights of a column.
        Q8_0 = "q8_0",
    }

    /// The use of cuBLASLt, NVIDIA's library of matrix products, which only CUDA has.
    #[derive(Default)]
    pub enum Cublas {
        /// If it is installed.
        #[default]
        Auto = "auto",
        Off = "off",
    }

    /// The optimizer of the blocks' matrices. AdamW always updates embeddings, biases and layer norms.
    #[derive(Default)]
    pub enum OptimizerKind {
        /// Decoupled weight decay (Loshchilov and Hutter, arXiv:1711.05101): two moments a weight.
        #[default]
        AdamW = "adamw",
        /// Orthogonalised momentum (Keller Jordan, 2024; Liu et al., arXiv:2502.16982): one moment a
        /// weight.
        Muon = "muon",
    }

    /// The schedule of the learning rate after the warmup.
    #[derive(Default)]
    pub enum Schedule {
        /// Down to `min_lr` along a cosine (Loshchilov and Hutter, arXiv:1608.03983): nanoGPT's.
        #[default]
        Cosine = "cosine",
        /// Warmup, stable, decay (Hu et al., arXiv:2404.06395): constant up to a decay at the end, which
        /// can begin at any time.
        Wsd = "wsd",
    }
}

/// The number of weights that share a scale in `q8_0`.
pub const QUANTIZED_BLOCK: usize = 32;

/// The source of the initial weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitFrom {
    Scratch,
    /// The newest valid checkpoint of the run folder.
    Resume,
    /// The path of a Hugging Face folder, a checkpoint or a run; nanoGPT's `gpt2` is a path too.
    #[serde(untagged)]
    Path(String),
}
