//! Tests of chat templates in the language of Go. [`ChatTemplate::go`] itself compares them with their Jinja.

use super::*;
use crate::data::special_names::SpecialNames;

/// Returns the loop over messages, with these lines in it.
fn looped(lines: &[&str]) -> String {
    let begin =
        ["{{- range $i, $_ := .Messages }}", "{{- $last := eq (len (slice $.Messages $i)) 1 }}"];
    [&begin[..], lines, &["{{- end }}"]].concat().join("\n")
}

#[test]
fn wgpts_template_is_expressed() {
    let expected = looped(&[
        r#"{{- if eq .Role "system" }}{{ "<|system|>" }}{{ .Content }}{{ "<|end|>" }}"#,
        r#"{{- else if eq .Role "user" }}{{ "<|user|>" }}{{ .Content }}{{ "<|end|>" }}"#,
        r#"{{- else if eq .Role "assistant" }}{{ "<|assistant|>" }}{{ .Content }}{{- if not $last }}{{ "<|end|>" }}{{ end }}"#,
        "{{- end }}",
        r#"{{- if and $last (ne .Role "assistant") }}{{ "<|assistant|>" }}{{ end }}"#,
    ]);
    let expected = ["{{ \"<|endoftext|>\" }}", &expected].join("\n");
    for base in [TextTokenizer::Byte, TextTokenizer::Gpt2, characters("ab").base().clone()] {
        assert_eq!(ChatTemplate::new(base).go().unwrap(), expected);
    }
}

#[test]
fn templates_of_folders_are_expressed() {
    let system = r#"{{- if eq .Role "system" }}{{ "<|im_start|>system\n" }}{{ .Content }}{{ "<|im_end|>\n" }}"#;
    let user = r#"{{- else if eq .Role "user" }}{{ "<|im_start|>user\n" }}{{ .Content }}{{ "<|im_end|>\n" }}"#;
    let assistant = r#"{{- else if eq .Role "assistant" }}{{ "<|im_start|>assistant\n" }}{{ .Content }}{{- if not $last }}{{ "<|im_end|>\n" }}{{ end }}"#;
    let opening =
        r#"{{- if and $last (ne .Role "assistant") }}{{ "<|im_start|>assistant\n" }}{{ end }}"#;
    let plain = CHAT_ML.replace("messages[0]['role'] != 'system'", "false");
    let ml = looped(&[system, user, assistant, "{{- end }}", opening]);
    assert_eq!(of_folder(&plain).unwrap().go().unwrap(), ml);

    // A system prompt, with characters that Ollama or Go would change.
    let nice = r#"{{- if and (eq $i 0) (ne .Role "system") }}{{ "<|im_start|>system\nBe \"\\nice\": {{\U000000e9}}.<|im_end|>\n" }}{{ end }}"#;
    let template = CHAT_ML.replace("Be nice.", "Be \"\\\\nice\": {{\u{e9}}}.");
    let go = looped(&[nice, system, user, assistant, "{{- end }}", opening]);
    assert_eq!(of_folder(&template).unwrap().go().unwrap(), go);

    // The last answer has a thought.
    let thinking = assistant.replace(
        r#"{{ "<|im_start|>assistant\n" }}"#,
        r#"{{- if $last }}{{ "<|im_start|>assistant\n<think>\n\n</think>\n\n" }}{{ else }}{{ "<|im_start|>assistant\n" }}{{ end }}"#,
    );
    let go = looped(&[system, user, &thinking, "{{- end }}", opening]);
    assert_eq!(of_folder(THINKING).unwrap().go().unwrap(), go);
}

/// A template like Llama 3's: a token begins a conversation, messages are trimmed, and the first system message
/// has more text than others.
#[test]
fn a_token_that_programs_add_is_left_out() {
    let trimming = BEGINNING.replace("!= (loop.index0 % 2 == 0)", "and false");
    let trimming = trimming.replace(
        "message['content'] | trim",
        "('Date.\n' if loop.first and message['role'] == 'system' else '') + message['content'] | trim",
    );
    let expected = looped(&[
        r#"{{- if eq .Role "system" }}{{- if eq $i 0 }}{{ "<|im_start|>system\n\nDate.\n" }}{{ else }}{{ "<|im_start|>system\n\n" }}{{ end }}{{ .Content }}{{ "<|im_end|>" }}"#,
        r#"{{- else if eq .Role "user" }}{{ "<|im_start|>user\n\n" }}{{ .Content }}{{ "<|im_end|>" }}"#,
        r#"{{- else if eq .Role "assistant" }}{{ "<|im_start|>assistant\n\n" }}{{ .Content }}{{- if not $last }}{{ "<|im_end|>" }}{{ end }}"#,
        "{{- end }}",
        r#"{{- if and $last (ne .Role "assistant") }}{{ "<|im_start|>assistant\n\n" }}{{ end }}"#,
    ]);
    let go = of_folder(&trimming).unwrap().go().unwrap();
    assert_eq!(go, ["{{ \"<|endoftext|>\" }}", &expected].join("\n"));
    let tokens = BTreeMap::from([("bos_token".to_owned(), "<|endoftext|>".to_owned())]);
    let written = WrittenTemplate { text: trimming, names: tokens.clone() };
    let base = chat_ml().base().clone();
    let base =
        base.with_names(SpecialNames { tokens, adds_begin: true, ..Default::default() }, true);
    assert_eq!(ChatTemplate::of_folder(base, written).unwrap().go().unwrap(), expected);
}

#[test]
fn templates_that_cannot_be_expressed_are_refused() {
    let first_user = "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set \
                      messages = messages[1:] %}{% endif %}{% for message in messages %}{{ '<|im_start|>' + \
                      message['role'] + '\n' + (system + '\n\n' if system and loop.first else '') + \
                      message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ \
                      '<|im_start|>assistant\n' }}{% endif %}";
    for (text, expected) in [
        (BEGINNING, "it fails for a system message: line 1: roles must alternate"),
        (first_user, "it does not write all messages of a role in the same way"),
        // The third turn differs.
        (
            &*CHAT_ML.replace("'<|im_end|>'", "('!' if loop.index == 5 else '') + '<|im_end|>'"),
            "it does not write all messages of a role in the same way",
        ),
        // What a message says changes the text around it.
        (
            &CHAT_ML.replace(
                "'<|im_end|>'",
                "('!' if ' x ' in message['content'] else '') + '<|im_end|>'",
            ),
            "it does not write all messages of a role in the same way",
        ),
        (
            &CHAT_ML.replace("message['content'] +", "message['content'] + message['content'] +"),
            "it does not write each message once, in their order",
        ),
    ] {
        assert_says(of_folder(text).unwrap().go().unwrap_err(), expected);
    }
}
