//! The model card of an exported folder: the model, its results and its training.

use std::path::Path;

use serde_json::json;

use super::CliError;
use super::chart::chart;
use super::facts::{Facts, Over};
use super::html::{markdown_table, write_picture};
use crate::data::Tokenizer;
use crate::disk;
use crate::runs;
use crate::runs::ModelSource;
use crate::text::count;

const CARD: &str = "README.md";
const PICTURE: &str = "loss.svg";
const GENERATION: &str = "generation_config.json";

/// Writes the card, the picture of the loss, and the settings with which transformers generates. An
/// existing card is kept.
pub(super) fn write(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    folder: &Path,
) -> Result<(), CliError> {
    let put = |name: &str, text: String| {
        let path = folder.join(name);
        disk::write(&path, text).map_err(|source| CliError::File { path, source })
    };
    put(GENERATION, generation(source, tokenizer))?;
    if folder.join(CARD).exists() {
        return Ok(());
    }
    // RUN/checkpoints/ITERATION
    let run = source.state.as_ref().and_then(|_| source.path.ancestors().nth(2));
    let facts = run.filter(|run| runs::is_run(run)).map(Facts::read).transpose()?;
    let picture = facts.as_ref().map(|facts| chart("tokens", "loss", &facts.losses(Over::Tokens)));
    let picture = picture.filter(|svg| !svg.is_empty());
    if let Some(svg) = &picture {
        write_picture(&folder.join(PICTURE), svg)?;
    }
    let name = folder.file_name().map_or("model".into(), |name| name.to_string_lossy());
    put(CARD, card(&name, source, facts.as_ref(), picture.is_some()))
}

/// Returns the settings of generation: those of `wgpt sample`.
fn generation(source: &ModelSource, tokenizer: Option<&Tokenizer>) -> String {
    let settings = json!({
        "bos_token_id": tokenizer.and_then(Tokenizer::end_of_text),
        "eos_token_id": tokenizer.and_then(Tokenizer::stop),
        "do_sample": true,
        "temperature": 0.8,
        "top_k": source.architecture.vocab_size.min(200),
        "max_length": source.architecture.block_size,
    });
    format!("{settings:#}\n")
}

fn card(name: &str, source: &ModelSource, facts: Option<&Facts>, has_picture: bool) -> String {
    let architecture = &source.architecture;
    let rows = |rows: Vec<(&str, String)>| -> Vec<Vec<String>> {
        rows.into_iter().map(|(name, value)| vec![name.to_string(), value]).collect()
    };
    let head = [String::new(), String::new()];
    let model = rows(vec![
        ("parameters", count(architecture.parameters() as u64)),
        ("layers", architecture.n_layer.to_string()),
        ("heads", architecture.n_head.to_string()),
        ("width", architecture.n_embd.to_string()),
        ("context", format!("{} tokens", architecture.block_size)),
        ("vocabulary", architecture.vocab_size.to_string()),
        ("biases", architecture.bias.to_string()),
    ]);
    let mut card = format!(
        "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- gpt2\n- wgpt\n---\n\n\
         # {name}\n\nA GPT-2 model, trained with wgpt.\n\n```python\n\
         from transformers import AutoTokenizer, GPT2LMHeadModel\n\n\
         tokenizer = AutoTokenizer.from_pretrained(\".\")\n\
         model = GPT2LMHeadModel.from_pretrained(\".\")\n\
         ids = tokenizer(\"Once\", return_tensors=\"pt\")\n\
         print(tokenizer.decode(model.generate(**ids)[0]))\n```\n\n## Model\n\n{}",
        markdown_table(&head, &model)
    );
    let Some(facts) = facts else { return card };
    card += "\n## Training\n\n";
    if let Some(state) = &source.state {
        card += &format!("This is the checkpoint after {} iterations", state.iteration);
        card += &match state.val_loss {
            Some(loss) => format!(", with a validation loss of {loss:.4}.\n\n"),
            None => ".\n\n".to_string(),
        };
    }
    let iteration = source.state.as_ref().map(|state| state.iteration as f64);
    card += &markdown_table(&head, &rows(facts.results_of(iteration)));
    if has_picture {
        card += &format!("\n![loss over tokens]({PICTURE})\n");
    }
    let settings = facts.settings().into_iter().filter(|(_, value)| !value.is_empty()).collect();
    card += "\n<details><summary>Settings</summary>\n\n";
    card += &markdown_table(&["setting".into(), "value".into()], &rows(settings));
    card + "\n</details>\n"
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::config::Config;
    use crate::plan::Plan;
    use crate::protocol::{Event, Progress};
    use crate::runs::checkpoint::{State, VERSION};

    #[test]
    fn a_card_has_the_hellaswag_of_its_checkpoint() {
        let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/hf_tiny");
        let mut source = ModelSource::open(&tiny).unwrap();
        let config = Config::default();
        source.state = Some(State {
            version: VERSION,
            iteration: 20,
            last_eval: Some(20),
            val_loss: Some(3.0),
            best_val_loss: Some(2.5),
            learning_rate: None,
            loss_scale: None,
            plan: Plan::new(&config, 64),
            config,
            tokenizer: None,
            data: String::new(),
            hashes: BTreeMap::new(),
        });
        let mut progress = Progress::default();
        for (iter, val_loss, share) in [(10, 2.5, 0.25), (20, 3.0, 0.375), (30, 4.0, 0.5)] {
            let hellaswag = Some(share);
            let bits_per_byte = None;
            progress.apply(&Event::Eval {
                iter,
                train_loss: 3.0,
                val_loss,
                bits_per_byte,
                hellaswag,
            });
        }
        let facts = Facts { title: "r".into(), state: "finished", progress, config: None };
        let card = card("m", &source, Some(&facts), false);
        assert!(card.contains("after 20 iterations, with a validation loss of 3.0000"), "{card}");
        assert!(card.contains("| best val loss | 2.5000 at iteration 10 |"), "{card}");
        assert!(card.contains("| HellaSwag | 37.5% at iteration 20 |"), "{card}");
    }
}
