//! Models that came from elsewhere, for people and for the form.

use std::path::PathBuf;

use crate::config::{Config, Layer, resolve};
use crate::model::Architecture;
use crate::web::messages::ModelInfo;

/// Where a model lies, and what it is.
pub(super) fn named(model: &ModelInfo) -> (PathBuf, String) {
    let Architecture { n_layer, n_embd, .. } = model.architecture;
    let words = format!("{}: {n_layer} blocks of {n_embd}", model.name);
    let tokens = if model.has_tokenizer { "" } else { ", tokens unknown" };
    (PathBuf::from(&model.path), format!("{words}{tokens}"))
}

/// GPT-2's settings with the shapes of a model.
pub(super) fn shaped(model: &Architecture) -> Option<Config> {
    let Architecture { n_layer, n_head, n_embd, block_size, vocab_size, bias, gelu } = model;
    let pairs = [
        ("n_layer", n_layer.to_string()),
        ("n_head", n_head.to_string()),
        ("n_embd", n_embd.to_string()),
        ("block_size", block_size.to_string()),
        ("vocab_size", vocab_size.to_string()),
        ("bias", bias.to_string()),
        ("gelu", format!("{gelu:?}").to_ascii_lowercase()),
    ];
    let layer = Layer::flags(pairs.map(|(key, text)| (key.to_string(), text))).ok()?;
    Some(resolve(vec![layer]).ok()?.config)
}
