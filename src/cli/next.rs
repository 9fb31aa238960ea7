//! The command that follows a run or new data, ready to be pasted into a shell.

use std::path::Path;

use crate::data::{Meta, TokenizerKind};
use crate::hub::Fetched;
use crate::protocol::{Progress, RunPhase, StopReason};
use crate::runs::{has_chat, has_checkpoint};
use crate::text::quoted;
use crate::worker::describe;

/// Returns the next step after a run that has ended, as a sentence that ends with a command; `None` if
/// the run has no checkpoint.
pub(super) fn next_step(progress: &Progress) -> Option<String> {
    let RunPhase::Finished(reason) = &progress.state else { return None };
    let path = progress.run.as_ref().filter(|run| has_checkpoint(run))?;
    let run = quoted(&path.display().to_string());
    let program = program();
    match reason {
        StopReason::Finished if has_chat(path) => {
            Some(format!("try it with: {program} chat {run}"))
        }
        StopReason::Finished => {
            let start = prompt(progress).map(|text| format!(" --start={}", quoted(&text)));
            Some(format!("try it with: {program} sample {run}{}", start.unwrap_or_default()))
        }
        StopReason::Stopped | StopReason::MaxTime => {
            Some(format!("continue it with: {program} train --resume --run {run}"))
        }
        StopReason::EvalOnly | StopReason::StandBy => None,
    }
}

/// Returns the next step after data has been prepared in `folder`, with the tokenizer of a `model` if that is given, as a
/// sentence that ends with a command.
pub(super) fn train_on(folder: &Path, meta: &Meta, model: Option<&Path>) -> String {
    let program = program();
    let data = quoted(&folder.display().to_string());
    if let Some(model) = model {
        let model = quoted(&format!("--init_from={}", model.display()));
        let adapter = "--lora_rank=16";
        return format!(
            "fine-tune the model on it with: {program} train {model} {adapter} --data={data}"
        );
    }
    // Conversations are too little text to learn a language from.
    if meta.conversations.is_some() && meta.tokenizer.base().kind() == TokenizerKind::Gpt2 {
        let model = "--init_from=hf:openai-community/gpt2";
        return format!(
            "fine-tune GPT-2 on it with: {program} train {model} --data={data} --time=1h"
        );
    }
    format!("train on it with: {program} train --data={data} --time=1h")
}

/// Returns the next step after a model folder was written, as a sentence that ends with a command.
pub(super) fn use_model(folder: &Path) -> String {
    let command = if has_chat(folder) { "chat" } else { "sample" };
    let folder = quoted(&folder.display().to_string());
    format!("try it with: {} {command} {folder}", program())
}

/// Returns the next step after a GGUF file was written, as a sentence that ends with a command.
pub(super) fn use_file(file: &Path) -> String {
    let file = quoted(&file.display().to_string());
    format!("talk to it in llama.cpp with: llama-cli -m {file}; in LM Studio: lms import {file}")
}

/// Returns the next step after a page was written. Browsers give a page from a file no GPU.
pub(super) fn use_page(folder: &Path) -> String {
    let folder = quoted(&folder.display().to_string());
    format!("put it on a static host, or try it with: python3 -m http.server --directory {folder}")
}

/// Returns the next step after something was fetched, as a sentence that ends with a command.
pub(super) fn after_get(fetched: &Fetched) -> String {
    let program = program();
    match fetched {
        Fetched::Model { name, folder } if has_chat(folder) => {
            format!("try it with: {program} chat {}", quoted(&name.to_string()))
        }
        Fetched::Model { name, .. } => {
            format!("try it with: {program} sample {} --start=Once", quoted(&name.to_string()))
        }
        Fetched::Texts { name, .. } => {
            let data = quoted(&format!("data/{}", name.short()));
            format!("prepare it with: {program} prepare {} -o {data}", quoted(&name.to_string()))
        }
        Fetched::File(path) => {
            let data = path.with_extension("").with_extension("");
            // The folder must not be the file itself.
            let data = if data == *path { path.with_added_extension("data") } else { data };
            let [path, data] = [path, &data].map(|path| quoted(&path.display().to_string()));
            format!("prepare it with: {program} prepare {path} -o {data}")
        }
        Fetched::HellaSwag(path) => {
            let path = quoted(&path.display().to_string());
            format!("measure the newest run with: {program} eval --hellaswag={path}")
        }
    }
}

/// Returns the name that this program was started with.
#[allow(clippy::disallowed_methods, reason = "names the program in a message")]
fn program() -> String {
    let program = std::env::args_os().next().unwrap_or_else(|| "wgpt".into());
    quoted(&program.to_string_lossy())
}

/// Returns the prompt of the run's last sample, else the first word of its data or of that sample. The model's
/// vocabulary has all of these, but maybe not other words.
fn prompt(progress: &Progress) -> Option<String> {
    let sample = progress.samples.last()?;
    // The shells of Windows have no common way to quote these.
    let cannot_be_quoted = cfg!(windows) && sample.prompt.contains(['"', '$', '`', '%', '\n']);
    if !sample.prompt.trim().is_empty() && !cannot_be_quoted {
        return Some(sample.prompt.clone());
    }
    let data = progress.config.as_ref().and_then(|config| describe(&config.data).ok());
    let excerpt = data.map(|data| data.excerpt).unwrap_or_default();
    let words = excerpt.split(|c: char| !c.is_alphabetic());
    let words = words.chain(sample.text.split(|c: char| !c.is_alphabetic()));
    words.filter(|word| word.chars().nth(1).is_some()).map(str::to_string).next()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{BUILTIN_STORIES, Config};
    use crate::protocol::Sample;

    #[test]
    fn words_are_quoted_where_a_shell_would_read_them_otherwise() {
        let words = if cfg!(windows) {
            [
                (r"out\demo-1", r"out\demo-1"),
                (r"C:\my runs\a", r#""C:\my runs\a""#),
                (r"C:\my runs\", r#""C:\my runs\\""#),
                ("it's", "\"it's\""),
                ("", "\"\""),
            ]
        } else {
            [
                ("out/demo-1", "out/demo-1"),
                ("my runs/a", "'my runs/a'"),
                ("it's", r"'it'\''s'"),
                ("$HOME", "'$HOME'"),
                ("", "''"),
            ]
        };
        for (word, want) in words {
            assert_eq!(quoted(word), want);
        }
    }

    #[test]
    fn a_finished_run_is_tried_with_a_prompt_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("a run");
        let mut progress = Progress { run: Some(run.clone()), ..Progress::default() };
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(next_step(&progress), None, "it has no checkpoint");
        std::fs::create_dir_all(run.join("checkpoints/00000010")).unwrap();
        let sample = |prompt: &str| Sample {
            iter: 10,
            prompt: prompt.into(),
            text: "\n1 A \u{fffd}, Paul was".into(),
            tokens: Vec::new(),
        };
        let stories = Config { data: BUILTIN_STORIES.into(), ..Config::default() };
        for (prompt, config, start) in
            [("\n", None, "Paul"), ("Once", None, "Once"), ("\n", Some(stories.into()), "The")]
        {
            (progress.samples, progress.config) = (vec![sample(prompt)], config);
            let next = next_step(&progress).unwrap();
            assert!(next.starts_with("try it with: ") && next.contains(" sample "), "{next}");
            let quote = if cfg!(windows) { '"' } else { '\'' };
            assert!(next.ends_with(&format!("a run{quote} --start={start}")), "{next}");
        }
    }
}
