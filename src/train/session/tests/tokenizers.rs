//! Runs that start from a model, on data with other tokens.

use super::*;
use crate::data::{PrepareOptions, TokenizerChoice, prepare};
use crate::disk;

/// Prepares a text with its own byte pairs, always the same number. Returns the folder.
fn prepared(folder: &Path, name: &str, text: &str) -> String {
    let (input, out) = (folder.join(name).with_extension("txt"), folder.join(name));
    disk::write(&input, text.repeat(200)).unwrap();
    let tokenizer = TokenizerChoice::Trained(262);
    let options = PrepareOptions { tokenizer, ..PrepareOptions::default() };
    let meta = prepare(&[input], &out, &options, &mut |_| {}).unwrap().meta;
    assert_eq!(meta.vocab_size, 262);
    out.display().to_string()
}

#[test]
fn a_model_is_trained_on_only_with_its_own_tokens_where_they_are_known() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let fox = prepared(folder.path(), "fox", "the fox ate the hen\n");
    let owl = prepared(folder.path(), "owl", "an owl saw an eel\n");
    let run = |name: &str, data: &str, init_from: &str, iters: &str| {
        let more = [("data", data), ("init_from", init_from), ("max_iters", iters)];
        request(&path(name), &more)
    };
    alone(&run("base", &fox, "scratch", "5"));
    let base = path("base").display().to_string();
    alone(&run("same", &fox, &base, "5"));
    let resumed = TrainRequest { resume: true, ..run("same", &fox, &base, "6") };
    assert_eq!(steps(&alone(&resumed)).len(), 1);
    let error = train(run("other", &owl, &base, "5"), Group::alone(), &[]).unwrap_err();
    assert!(error.text.contains("use different tokenizers"), "{error}");
    assert!(!path("other").exists());

    // With a tokenizer that is not supported, the size is all that can be compared.
    let model = path("model");
    disk::create_dir_all(&model).unwrap();
    for name in ["config.json", "model.safetensors", "tokenizer.json"] {
        let mut file = disk::read(path("base/checkpoints/00000005").join(name)).unwrap();
        if name == "tokenizer.json" {
            let mut json: serde_json::Value = serde_json::from_slice(&file).unwrap();
            json["normalizer"] = serde_json::json!({ "type": "NFKC" });
            file = json.to_string().into_bytes();
        }
        disk::write(model.join(name), file).unwrap();
    }
    let events = alone(&run("unknown", &owl, &model.display().to_string(), "5"));
    let is_named = |text: &&String| text.contains("tokenizer.json") && text.contains("NFKC");
    assert_eq!(each!(events, Event::Warning { text } => text).filter(is_named).count(), 1);
}
