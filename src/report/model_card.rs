//! The model card of an exported folder: the model, its results and its training.

use std::path::Path;

use serde_json::json;

use super::chart::chart;
use super::page::{MARK, fill, write};
use super::record::{Over, RunRecord, present};
use crate::data::Tokenizer;
use crate::disk;
use crate::plan::{Blocks, LlamaBlocks};
use crate::protocol::Failure;
use crate::runs::{self, ModelSource};
use crate::text::{Table, count, escape_markdown};

pub(crate) const CARD: &str = "README.md";
const PICTURE: &str = "loss.svg";

/// Continues text with transformers.
const CONTINUE: &str = include_str!("../../assets/pages/continue.md");

/// Answers a message with transformers.
const ANSWER: &str = include_str!("../../assets/pages/answer.md");

/// Writes the card, a chart of the loss and transformers' settings of generation into `folder`, which will
/// become `output`. Keeps an existing card.
pub(crate) fn write_model_card(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    folder: &Path,
    output: &Path,
) -> Result<(), Failure> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        disk::write(&path, text).map_err(Failure::file(path))
    };
    put("generation_config.json", generation(source, tokenizer))?;
    if output.join(CARD).exists() {
        return Ok(());
    }
    // RUN/checkpoints/ITERATION
    let run = source.state.as_ref().and_then(|_| source.path.ancestors().nth(2));
    let run = run.filter(|run| runs::is_run(run)).map(RunRecord::read).transpose()?;
    let loss = |run: &RunRecord| chart("tokens", "loss", &run.losses(Over::Tokens));
    let svg = run.as_ref().map_or_else(String::new, loss);
    if !svg.is_empty() {
        write(&folder.join(PICTURE), &format!("{MARK}\n{svg}"))?;
    }
    let name = output.file_name().map_or("model".into(), |name| name.to_string_lossy());
    let has_chat = tokenizer.is_some_and(|tokenizer| tokenizer.chat().is_some());
    let code = if has_chat { ANSWER } else { CONTINUE };
    put(CARD, card(&name, source, run.as_ref(), code, !svg.is_empty()))
}

/// Returns the settings of generation, which are the defaults of `wgpt sample`.
fn generation(source: &ModelSource, tokenizer: Option<&Tokenizer>) -> String {
    let mut settings = json!({
        "do_sample": true,
        "temperature": 0.8,
        "top_k": source.architecture.vocab_size.min(200),
        "max_length": source.architecture.block_size,
    });
    for (key, value) in Tokenizer::special_ids(tokenizer, source.architecture.vocab_size) {
        settings[key] = value;
    }
    format!("{settings:#}\n")
}

fn card(
    name: &str,
    source: &ModelSource,
    run: Option<&RunRecord>,
    code: &str,
    has_picture: bool,
) -> String {
    let architecture = &source.architecture;
    let [kv_heads, head_size] = architecture.kv_heads();
    let mut model = vec![
        ("architecture", architecture.arch().to_string()),
        ("parameters", count(architecture.parameters() as u64)),
        ("layers", architecture.n_layer.to_string()),
        ("heads", architecture.n_head.to_string()),
        ("width", architecture.n_embd.to_string()),
        ("context", format!("{} tokens", architecture.positions())),
        ("vocabulary", architecture.vocab_size.to_string()),
    ];
    model.extend(match architecture.blocks {
        Blocks::Gpt2 { bias, .. } => vec![("biases", bias.to_string())],
        Blocks::Llama(LlamaBlocks { ffn_size, .. }) => vec![
            ("heads of keys and values", kv_heads.to_string()),
            ("head size", head_size.to_string()),
            ("MLP width", ffn_size.to_string()),
        ],
    });
    let mut values =
        vec![("name", name.to_string()), ("model", Table::named(["", ""], model).markdown())];
    values.push(("code", code.to_string()));
    if let (Some(run), Some(state)) = (run, &source.state) {
        let loss = state.val_loss.map(|loss| format!(", with a validation loss of {loss:.4}"));
        let iteration = state.iteration;
        let results = present(run.results_of(Some(iteration as f64)));
        let settings = run.settings().into_iter().filter(|(_, value)| !value.is_empty());
        let settings = Table::named(["setting", "value"], settings).markdown();
        // There are many, so that a reader has to open them.
        let settings = format!("<details><summary>Settings</summary>\n\n{settings}\n</details>");
        values.extend([
            ("iteration", iteration.to_string()),
            ("loss", loss.unwrap_or_default()),
            ("results", Table::named(["", ""], results).markdown()),
            ("settings", settings),
        ]);
    }
    if has_picture {
        values.push(("picture", PICTURE.to_string()));
    }
    fill(include_str!("../../assets/pages/model_card.md"), escape_markdown, &values)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Config;
    use crate::plan::Plan;
    use crate::report::record::examples::{eval, record};
    use crate::runs::checkpoint::{CheckpointState, VERSION};

    #[test]
    fn a_card_has_the_hellaswag_of_its_checkpoint() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/hf_tiny");
        let mut source = ModelSource::open(&tiny).unwrap();
        let config = Config::default();
        source.state = Some(CheckpointState {
            base: None,
            version: VERSION,
            iteration: 20,
            last_eval: Some(20),
            val_loss: Some(3.0),
            best_val_loss: Some(2.5),
            learning_rate: None,
            loss_scale: None,
            products: None,
            seconds: None,
            plan: Plan::new(&config, 64),
            config,
            tokenizer: None,
            data: String::new(),
            hashes: BTreeMap::new(),
        });
        let evals =
            [eval(10, 2.5, Some(0.25)), eval(20, 3.0, Some(0.375)), eval(30, 4.0, Some(0.5))];
        let run = record("r", &evals);
        let card = card("m", &source, Some(&run), ANSWER, false);
        assert!(card.contains("tokenizer.apply_chat_template("), "{card}");
        assert!(card.contains("after 20 iterations, with a validation loss of 3.0000"), "{card}");
        assert!(card.contains("| best val loss | 2.5000 at iteration 10 |"), "{card}");
        assert!(card.contains("| HellaSwag | 37.5% at iteration 20 |"), "{card}");
    }
}
