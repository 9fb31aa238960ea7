//! Enums whose values are words.

/// Declares an enum and the word of each value: the same in files, on the command line and in events.
/// `WORDS` lists the words, `ALL` the values.
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[$value_meta:meta])* $value:ident = $word:literal,)*
    }) => {
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
    };
}
pub(crate) use words;
