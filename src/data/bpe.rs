//! Byte-level BPE with other vocabularies than GPT-2's, from a Hugging Face `tokenizer.json` that was trained
//! here or belongs to another model (Llama 3, Qwen, DeepSeek, ...).
//!
//! The code that encodes words is the same as for GPT-2, also in a browser. It always merges the pair that
//! makes the token with the lowest rank. That gives the ids of the file only if the vocabulary comes from
//! byte-pair training: a token has either one merge, which is also how the token itself is encoded, or every
//! possible merge. [`Bpe::parse`] checks this.

use std::collections::{HashMap, HashSet};
use std::fmt;

use serde_json::{Map, Value};
use tiktoken_rs::CoreBPE;

use super::DataError;
use super::special_names::SpecialNames;
use super::spelling::{END_OF_TEXT, byte_character, bytes_of_characters, spelled};

#[cfg_attr(target_arch = "wasm32", path = "bpe/no_trainer.rs")]
pub(super) mod trainer;
mod words;

use words::Words;
pub(super) use words::{GPT2_NAME, pre_tokenizer, words_named};

/// The tokens that end a document, by their usual names.
const ENDS: [&str; 4] =
    [END_OF_TEXT, "<|end_of_text|>", "</s>", "<\u{ff5c}end\u{2581}of\u{2581}sentence\u{ff5c}>"];

/// The largest id of a token. A file with a larger one is damaged.
const MAX_ID: u64 = (1 << 24) - 1;

const NO_ID: u32 = u32::MAX;

/// The rank of each token, by its bytes: the lowest merges first.
pub(super) type Ranks = HashMap<Vec<u8>, u32>;

pub struct Bpe {
    pub(super) file: String,
    core: CoreBPE,
    /// The id of each rank: the bytes, then the merges. [`NO_ID`] for a byte that the vocabulary lacks.
    ids: Vec<u32>,
    /// The id of bytes that the vocabulary lacks; without one they are left out.
    unknown: Option<u32>,
    /// The bytes of each id; empty where the file skips an id.
    tokens: Vec<Vec<u8>>,
    pub(super) end: Option<(u32, String)>,
    pub(super) names: SpecialNames,
    added: Vec<Added>,
    words: Words,
}

/// A token that is found as a whole, not merged from bytes.
struct Added {
    id: u32,
    content: String,
    /// True if text never becomes it.
    is_special: bool,
    /// True if it consumes the spaces around it, or must stand alone.
    is_bound: bool,
}

impl Bpe {
    /// Reads a `tokenizer.json`. The error is a clause that says what is wrong or not supported.
    pub fn parse(file: &str) -> Result<Self, String> {
        let json: Value =
            serde_json::from_str(file).map_err(|error| format!("not JSON: {error}"))?;
        let model = &json["model"];
        check_model(model)?;
        let vocab = model["vocab"].as_object().ok_or("it has no vocabulary")?;
        let added = added_tokens(&json)?;
        let words = Words::parse(&json, &added)?;
        let tokens = table(vocab, &added)?;
        let unknown = model["unk_token"].as_str().and_then(|name| id(vocab.get(name)?));
        let (ids, ranks) = ranks(vocab, &added, &model["merges"], model["ignore_merges"] == true)?;
        let encoder = ranks.into_iter().collect();
        let core = CoreBPE::new(encoder, Default::default(), words.last_pattern())
            .map_err(|error| format!("its tokens cannot be used: {error}"))?;
        let end = ENDS.into_iter().find_map(|name| {
            let added = added.iter().find(|token| token.content == name).map(|token| token.id);
            Some((added.or_else(|| id(vocab.get(name)?))?, name.to_owned()))
        });
        let names = SpecialNames::default();
        Ok(Self { file: file.to_owned(), core, ids, unknown, tokens, end, names, added, words })
    }

    /// Takes the names of the special tokens from the folder of the file, or of its data.
    pub fn with_names(self, mut names: SpecialNames, has_template: bool) -> Self {
        if names.is_empty() {
            return self;
        }
        if names.document_end.is_none() {
            let usual = self.end.as_ref().map(|(_, name)| name);
            let named = names.tokens.get("eos_token").filter(|name| self.id_of(name).is_some());
            let ends = if has_template { [usual, named] } else { [named, usual] };
            names.document_end = ends.into_iter().flatten().next().cloned();
        }
        let end = names.document_end.as_ref();
        let end = end.and_then(|name| Some((self.id_of(name)?, name.clone())));
        Self { end, names, ..self }
    }

    fn id_of(&self, content: &str) -> Option<u32> {
        if content.is_empty() {
            return None;
        }
        let added = self.added.iter().find(|token| token.content == content).map(|token| token.id);
        let of_table = || self.tokens.iter().position(|token| token == content.as_bytes());
        added.or_else(|| of_table().map(|id| id as u32))
    }

    /// Returns the token of a role, like `bos_token`.
    pub(super) fn named(&self, role: &str) -> Option<u32> {
        self.id_of(self.names.tokens.get(role)?)
    }

    /// Returns the number of tokens: the highest id plus one.
    pub fn vocab_size(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Returns true if text has the same ids in both. Other tokens, like padding, may differ.
    pub(super) fn has_text_of(&self, other: &Self) -> bool {
        self.ids == other.ids && self.ids.iter().all(|&id| self.bytes(id) == other.bytes(id))
    }

    /// Returns the tokens that text can become.
    pub(super) fn text_ids(&self) -> impl Iterator<Item = u32> {
        let added = self.added.iter().filter(|token| !token.is_special).map(|token| token.id);
        let ids = self.ids.iter().copied().filter(|id| *id != NO_ID);
        ids.chain(added).chain(self.unknown)
    }

    /// Returns the token of this name that text never becomes.
    pub(super) fn special(&self, name: &str) -> Option<u32> {
        let token = self.added.iter().find(|token| token.is_special && token.content == name)?;
        (!self.ids.contains(&token.id)).then_some(token.id)
    }

    /// Returns the tokens that text never becomes.
    pub(super) fn specials(&self) -> Vec<(u32, String)> {
        let names = self.added.iter().map(|token| &token.content);
        let id = |name: &String| Some((self.special(name)?, name.clone()));
        names.filter(|name| !name.is_empty()).filter_map(id).collect()
    }

    /// Returns the special tokens that depend on the text around them.
    pub(super) fn bound(&self) -> impl Iterator<Item = &str> {
        self.added.iter().filter(|token| token.is_bound).map(|token| token.content.as_str())
    }

    /// Appends the ids of a piece of text, in which special tokens are ordinary text.
    pub(super) fn encode_into(&self, piece: &str, ids: &mut Vec<u32>) -> Result<(), DataError> {
        self.words.split(piece, &mut |word, token| {
            match token {
                Some(id) => ids.push(id),
                None => {
                    // It panics where a search takes too long. In our pieces, none of these patterns does.
                    let ranks = self.core.encode_ordinary(word);
                    // A byte without a token separates what is around it; transformers merges over it.
                    let id = |rank: u32| Some(self.ids[rank as usize]).filter(|id| *id != NO_ID);
                    ids.extend(ranks.into_iter().filter_map(|rank| id(rank).or(self.unknown)));
                }
            }
            Ok(())
        })
    }

    /// Returns the bytes of a token; `None` for an id that the vocabulary lacks.
    pub fn bytes(&self, id: u32) -> Option<&[u8]> {
        let token = self.tokens.get(usize::try_from(id).ok()?)?;
        (!token.is_empty()).then_some(token.as_slice())
    }

    /// Returns llama.cpp's name for the way in which text is split into words.
    pub(super) fn words(&self) -> Option<&'static str> {
        self.words.name()
    }

    /// Returns true if text becomes the ids of these `tokens`, in their order.
    pub(super) fn has_ids_of_text(&self, tokens: &[Vec<u8>]) -> bool {
        self.ids.len() == tokens.len()
            && self.ids[256..].iter().zip(256..).all(|(&id, rank)| id == rank)
            && self.tokens[..tokens.len()] == *tokens
    }
}

/// Two files are equal if they describe the same words, tokens and merges in whatever form. The names of special
/// tokens are of no matter: data that was prepared without them fits the model.
impl PartialEq for Bpe {
    fn eq(&self, other: &Self) -> bool {
        self.tokens == other.tokens && self.ids == other.ids && self.words == other.words
    }
}

impl Eq for Bpe {}

impl fmt::Debug for Bpe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bpe").field("tokens", &self.tokens.len()).finish_non_exhaustive()
    }
}

fn check_model(model: &Value) -> Result<(), String> {
    let kind = &model["type"];
    if kind != "BPE" && !(kind.is_null() && model["merges"].is_array()) {
        return Err(format!("its model is {kind}; only BPE on bytes is supported"));
    }
    for name in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[name].as_str().is_some_and(|affix| !affix.is_empty()) {
            return Err(format!("it has a `{name}`, which is not supported"));
        }
    }
    if model["dropout"].as_f64().is_some_and(|dropout| dropout > 0.0) {
        return Err("it drops merges at random (`dropout`), which is not supported".to_owned());
    }
    Ok(())
}

fn added_tokens(json: &Value) -> Result<Vec<Added>, String> {
    let entry = |token: &Value| {
        let is_special = token["special"] == true;
        let is_bound =
            ["lstrip", "rstrip", "single_word"].into_iter().any(|name| token[name] == true);
        if is_bound && !is_special {
            return Err(format!(
                "its added token {} depends on the text around it, which is not supported",
                token["content"]
            ));
        }
        let parts = id(&token["id"]).zip(token["content"].as_str());
        let (id, content) = parts.ok_or("an added token has no text or no valid id")?;
        Ok(Added { id, content: content.to_owned(), is_special, is_bound })
    };
    json["added_tokens"].as_array().into_iter().flatten().map(entry).collect()
}

fn id(value: &Value) -> Option<u32> {
    value.as_u64().filter(|id| *id <= MAX_ID).map(|id| id as u32)
}

fn table(vocab: &Map<String, Value>, added: &[Added]) -> Result<Vec<Vec<u8>>, String> {
    let bytes = bytes_of_characters();
    let added_names: HashSet<&str> = added.iter().map(|token| token.content.as_str()).collect();
    let of_vocab = vocab.iter().map(|(name, value)| {
        let id = id(value).ok_or_else(|| format!("the id of {name:?} is {value}"))?;
        // A special token is spelled as it is written.
        let token = spelled(name, &bytes).filter(|_| !added_names.contains(name.as_str()));
        Ok::<_, String>((id, token.unwrap_or_else(|| name.as_bytes().to_vec()), name))
    });
    let of_added = added.iter().map(|token| {
        let Added { id, content, .. } = token;
        Ok((*id, content.as_bytes().to_vec(), content))
    });
    let mut tokens: Vec<Vec<u8>> = Vec::new();
    for entry in of_vocab.chain(of_added) {
        let (id, token, name) = entry?;
        let index = id as usize;
        tokens.resize(tokens.len().max(index + 1), Vec::new());
        if !tokens[index].is_empty() && tokens[index] != token {
            return Err(format!("the id {id} of {name:?} is also the id of another token"));
        }
        tokens[index] = token;
    }
    Ok(tokens)
}

/// Returns the ids in the order of their ranks (first the bytes, then the results of the merges), and the
/// rank of each token. Checks that applying `merges` gives the same result as merging the pair with the lowest
/// rank: a token must have one merge, the last one in its own encoding, or one for each way to cut it in two.
///
/// With `whole`, words that are tokens are not merged (`ignore_merges`), as in Llama 3.
fn ranks(
    vocab: &Map<String, Value>,
    added: &[Added],
    merges: &Value,
    whole: bool,
) -> Result<(Vec<u32>, Ranks), String> {
    let id_of = |name: &str| vocab.get(name).and_then(id);
    let bytes = bytes_of_characters();
    let mut ids = Vec::new();
    let mut ranks = Ranks::new();
    for byte in 0..=u8::MAX {
        let id = id_of(&byte_character(byte).to_string());
        // SmolLM2 has no tokens for a few control characters and for bytes that are in no text.
        let is_rare = byte.is_ascii_control() || !byte.is_ascii();
        let id = id.or(is_rare.then_some(NO_ID));
        ids.push(id.ok_or_else(|| format!("it has no token for the byte {byte}"))?);
        ranks.insert(vec![byte], u32::from(byte));
    }
    let other = |token: &[u8]| {
        let token = String::from_utf8_lossy(token);
        format!("its merges do not build {token:?} as byte-pair training does")
    };
    // Where the merges of each rank cut its token, and the tokens with other merges than the last one.
    let mut cuts: HashSet<(u32, usize)> = HashSet::new();
    let mut unusual: Vec<Vec<u8>> = Vec::new();
    for merge in merges.as_array().map_or(&[][..], Vec::as_slice) {
        let pair = match merge {
            Value::String(pair) => pair.split_once(' '),
            merge => merge[0].as_str().zip(merge[1].as_str()),
        };
        let (left, right) = pair.ok_or_else(|| format!("{merge} is not a merge"))?;
        let name = format!("{left}{right}");
        let known = |name: &str| spelled(name, &bytes).filter(|_| id_of(name).is_some());
        let parts = known(left).zip(known(&name));
        let (left, token) =
            parts.ok_or_else(|| format!("the token of merge {merge} is not in the vocabulary"))?;
        let next = ids.len() as u32;
        let rank = ranks.get(&token).copied();
        let is_usual = rank.is_none() && last_merge(&token, &ranks) == Some(left.len());
        if !is_usual && (!whole || rank.is_some_and(|rank| rank + 1 != next)) {
            return Err(other(&token));
        }
        cuts.insert((rank.unwrap_or(next), left.len()));
        if !is_usual {
            unusual.push(token.clone());
        }
        if rank.is_none() {
            ids.extend(id_of(&name));
            ranks.insert(token, next);
        }
    }
    // Whole words that no merges produce.
    let specials = added.iter().filter(|token| token.is_special);
    let specials: HashSet<&str> = specials.map(|token| token.content.as_str()).collect();
    let alone = vocab.keys().filter(|name| whole && !specials.contains(name.as_str()));
    let alone = alone.filter_map(|name| Some((id_of(name)?, spelled(name, &bytes)?)));
    let mut alone: Vec<(u32, Vec<u8>)> =
        alone.filter(|(_, token)| !token.is_empty() && !ranks.contains_key(token)).collect();
    alone.sort_unstable();
    for (id, token) in alone {
        unusual.push(token.clone());
        ranks.insert(token, ids.len() as u32);
        ids.push(id);
    }
    for token in &unusual {
        let is_cut =
            |at: &usize| ranks.contains_key(&token[..*at]) && ranks.contains_key(&token[*at..]);
        if !(1..token.len()).filter(is_cut).all(|at| cuts.contains(&(ranks[token], at))) {
            return Err(other(token));
        }
    }
    Ok((ids, ranks))
}

/// Returns the length of the left part of the merge that makes `token`, which has no rank yet: all merges so
/// far must leave two parts of its bytes.
pub(super) fn last_merge(token: &[u8], ranks: &Ranks) -> Option<usize> {
    // The boundaries of the parts.
    let mut bounds: Vec<usize> = (0..=token.len()).collect();
    while bounds.len() > 3 {
        let parts = bounds.windows(3).map(|part| &token[part[0]..part[2]]).zip(0..);
        let (_, at) = parts.filter_map(|(part, at)| Some((ranks.get(part)?, at))).min()?;
        bounds.remove(at + 1);
    }
    (bounds.len() == 3 && !ranks.contains_key(token)).then(|| bounds[1])
}

#[cfg(test)]
mod tests;
