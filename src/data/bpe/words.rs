//! Splits text into words by the `normalizer`, the `added_tokens` and the `pre_tokenizer` of a
//! `tokenizer.json`. Byte pairs are merged only within a word.

use std::borrow::Cow;

use fancy_regex::Regex;
use serde_json::{Value, json};
use thread_local::ThreadLocal;
use unicode_normalization::{UnicodeNormalization, is_nfc};

use super::Added;
use crate::data::DataError;

/// The pattern of GPT-2's words, without backtracking into repetitions.
pub(super) const GPT2_WORDS: &str =
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s";

pub(in crate::data) const GPT2_NAME: &str = "gpt-2";

/// The patterns of known models, by llama.cpp's names.
const NAMES: [(&str, &[&str]); 4] = [
    (GPT2_NAME, &[GPT2_WORDS]),
    ("smollm", &[DIGIT, GPT2_WORDS]),
    (
        "qwen2",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
    (
        "llama-bpe",
        &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
    ),
];

const DIGIT: &str = r"\p{N}";

/// Returns the name in [`NAMES`] of words that llama.cpp knows by `name`, which may be one of several.
pub(in crate::data) fn words_named(name: &str) -> Option<&'static str> {
    let name = match name {
        "default" | "gpt2" => GPT2_NAME,
        "llama3" | "llama-v3" => "llama-bpe",
        other => other,
    };
    NAMES.into_iter().map(|(known, _)| known).find(|known| *known == name)
}

/// Returns the `pre_tokenizer` of words with a name in [`NAMES`].
pub(in crate::data) fn pre_tokenizer(name: &str) -> Value {
    let known = NAMES.into_iter().find(|(known, _)| *known == name);
    let (_, patterns) = known.unwrap_or(NAMES[0]);
    let splits = patterns.iter().filter(|pattern| **pattern != GPT2_WORDS).map(|pattern| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
    });
    let bytes = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": false,
        "use_regex": patterns.contains(&GPT2_WORDS),
    });
    json!({"type": "Sequence", "pretokenizers": splits.chain([bytes]).collect::<Vec<_>>()})
}

/// Receives a part of the text: one that [`Words::last_pattern`] splits into words, or a token that is found
/// before all others.
type Each<'a> = dyn FnMut(&str, Option<u32>) -> Result<(), DataError> + 'a;

pub(super) struct Words {
    /// True if composed characters replace sequences that mean the same (NFC).
    composes: bool,
    /// The tokens that are found before all others: their text and ids.
    found: Vec<(String, u32)>,
    /// The pattern of `found`, if there are any.
    before: Option<String>,
    /// Each one splits the parts of the one before, at the ends of its matches.
    patterns: Vec<String>,
    /// One for each thread, because threads that share an expression, or clones of it, wait for its memory.
    compiled: ThreadLocal<Vec<Regex>>,
}

impl Words {
    /// Reads a parsed `tokenizer.json` with its `added` tokens. The error is a clause that says what is not
    /// supported.
    pub fn parse(json: &Value, added: &[Added]) -> Result<Self, String> {
        let composes = composes(&json["normalizer"])?;
        let patterns = patterns(&json["pre_tokenizer"])?;
        let found = added.iter().filter(|token| !token.is_special && !token.content.is_empty());
        let mut found: Vec<_> = found.map(|token| (token.content.clone(), token.id)).collect();
        // The first alternative that matches wins, so the longest token comes first.
        found.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
        let any: Vec<_> = found.iter().map(|(content, _)| fancy_regex::escape(content)).collect();
        let before = (!found.is_empty()).then(|| any.join("|"));
        let words = Self { composes, found, before, patterns, compiled: ThreadLocal::new() };
        match words.compiled() {
            Ok(_) => Ok(words),
            Err(error) => Err(format!("its pattern of words cannot be used: {error}")),
        }
    }

    /// Returns this thread's expressions: the pattern of added tokens, then all others but GPT-2's at the end.
    fn compiled(&self) -> Result<&[Regex], fancy_regex::Error> {
        let others = &self.patterns[..self.patterns.len() - usize::from(self.ends_as_gpt2())];
        let patterns = self.before.iter().chain(others).map(|pattern| Regex::new(pattern));
        Ok(self.compiled.get_or_try(|| patterns.collect::<Result<_, _>>())?)
    }

    fn ends_as_gpt2(&self) -> bool {
        self.patterns.last().is_some_and(|pattern| pattern == GPT2_WORDS)
    }

    /// Returns llama.cpp's name for these words. It composes no characters, not even for Qwen.
    pub fn name(&self) -> Option<&'static str> {
        let (name, _) = NAMES.into_iter().find(|(_, patterns)| self.patterns == *patterns)?;
        (!self.composes || name == "qwen2").then_some(name)
    }

    /// Returns the pattern by which the merging library splits a part of the text into words. It drops text that
    /// the pattern doesn't match, and searches at each call. So it gets GPT-2's pattern, which matches any text,
    /// or else one word at a time.
    pub fn last_pattern(&self) -> &'static str {
        if self.ends_as_gpt2() { GPT2_WORDS } else { r"(?s:.+)" }
    }

    /// Calls `each` with the parts and tokens of `text`, in order.
    pub fn split(&self, text: &str, each: &mut Each<'_>) -> Result<(), DataError> {
        let text = if self.composes && !is_nfc(text) {
            Cow::Owned(text.nfc().collect::<String>())
        } else {
            Cow::Borrowed(text)
        };
        let patterns = self.compiled().map_err(DataError::tokenize)?;
        let (before, patterns) = patterns.split_at(usize::from(self.before.is_some()));
        let Some(before) = before.first() else { return split(patterns, &text, each) };
        pieces(before, &text, &mut |piece, is_match| {
            if !is_match {
                return split(patterns, piece, each);
            }
            let found = self.found.iter().find(|(content, _)| content == piece);
            each(piece, found.map(|(_, id)| *id))
        })
    }
}

impl PartialEq for Words {
    fn eq(&self, other: &Self) -> bool {
        (self.composes, &self.found, &self.patterns)
            == (other.composes, &other.found, &other.patterns)
    }
}

/// Splits text at the ends of the matches of the first pattern, the pieces by the second, and so on.
fn split(patterns: &[Regex], text: &str, each: &mut Each<'_>) -> Result<(), DataError> {
    match patterns.split_first() {
        Some((first, rest)) => pieces(first, text, &mut |piece, _| split(rest, piece, each)),
        None => each(text, None),
    }
}

/// Calls `each` with the matches of a pattern and the text between them, in order. The flag is true for a
/// match. The text is never empty.
fn pieces(
    pattern: &Regex,
    text: &str,
    each: &mut dyn FnMut(&str, bool) -> Result<(), DataError>,
) -> Result<(), DataError> {
    let mut end = 0;
    for found in pattern.find_iter(text) {
        let found = found.map_err(DataError::tokenize)?;
        if found.start() > end {
            each(&text[end..found.start()], false)?;
        }
        if !found.as_str().is_empty() {
            each(found.as_str(), true)?;
        }
        end = found.end();
    }
    if end < text.len() { each(&text[end..], false) } else { Ok(()) }
}

/// Returns true if the normalizer composes characters; false if it changes nothing.
fn composes(normalizer: &Value) -> Result<bool, String> {
    let parts = match &normalizer["normalizers"] {
        Value::Array(parts) => parts.as_slice(),
        _ if normalizer.is_null() => &[],
        _ => std::slice::from_ref(normalizer),
    };
    match parts.iter().find(|part| part["type"] != "NFC") {
        Some(part) => Err(format!("its normalizer ({}) is not supported", part["type"])),
        None => Ok(!parts.is_empty()),
    }
}

/// Returns the patterns that split text into words, from the pre-tokenizer.
fn patterns(pre_tokenizer: &Value) -> Result<Vec<String>, String> {
    let parts = match &pre_tokenizer["pretokenizers"] {
        Value::Array(parts) => parts.as_slice(),
        _ => std::slice::from_ref(pre_tokenizer),
    };
    let other = || {
        "it does not split text into words and bytes as GPT-2, Llama 3 or Qwen do; byte-level BPE \
         without a prefix space is supported"
            .to_owned()
    };
    let (bytes, splits) = parts.split_last().ok_or_else(other)?;
    if bytes["type"] != "ByteLevel" || bytes["add_prefix_space"] != false {
        return Err(other());
    }
    let mut patterns: Vec<String> =
        splits.iter().map(|split| pattern(split).ok_or_else(other)).collect::<Result<_, _>>()?;
    if bytes["use_regex"].as_bool().unwrap_or(true) {
        patterns.push(GPT2_WORDS.to_owned());
    }
    // Without words the whole text is one, as long as a document.
    if patterns.is_empty() { Err(other()) } else { Ok(patterns) }
}

/// Returns the pattern of a part of the pre-tokenizer; `None` if it is not supported.
fn pattern(split: &Value) -> Option<String> {
    if split["type"] == "Digits" {
        let each = split["individual_digits"] == true;
        return Some(if each { DIGIT } else { r"\p{N}+" }.to_owned());
    }
    let pattern = split["pattern"]["Regex"].as_str().filter(|_| split["type"] == "Split")?;
    // Such patterns match all of the text, so nothing between the matches is removed.
    let is_kept = match split["behavior"].as_str()? {
        "Isolated" => true,
        "Removed" => split["invert"] == true,
        _ => false,
    };
    is_kept.then(|| pattern.to_owned())
}
