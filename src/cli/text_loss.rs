//! `wgpt eval --text`: the probability of each token.

use std::fmt::Write;
use std::io::Write as _;

use anstream::{AutoStream, ColorChoice};
use clap::builder::styling::{Ansi256Color, Style};
use serde::Serialize;

use super::activity::Activity;
use super::args::{EvalArgs, Global};
use super::find_model::{find_tokenizer, load_model};
use crate::eval::score_text;
use crate::protocol::{Failure, ProbabilityClass, ScoredToken, TextLoss, probability_text};
use crate::runs::ModelSource;
use crate::text::{Table, escape_terminal};

pub(super) fn run(
    text: &str,
    source: &ModelSource,
    args: &EvalArgs,
    global: &Global,
) -> Result<(), Failure> {
    let tokenizer = find_tokenizer(source, args.data.as_deref())?;
    let ids = tokenizer.encode_prompt(text).map_err(|error| {
        let text = format!("the text cannot be tokenized: {error}");
        Failure::usage(text, "give another text")
    })?;
    if ids.len() < 2 {
        let text = format!("the text has {} token(s), too few to predict one", ids.len());
        return Err(Failure::usage(text, "give a longer text with --text"));
    }
    let (model, mode) = load_model(source, global)?;
    let mut activity = Activity::new(global.quiet);
    let mut tokens = Vec::with_capacity(ids.len());
    let mut take = |scored| {
        tokens.extend(scored);
        activity.show(format!("{} of {} tokens", tokens.len(), ids.len()));
        false
    };
    let window = source.window();
    pollster::block_on(score_text(&model, &tokenizer, &ids, window, mode, &mut take));
    activity.clear();
    let loss = TextLoss::of(&tokens);
    let mut out = anstream::stdout().lock();
    let written = if args.json {
        writeln!(out, "{}", json(&tokens, loss))
    } else if AutoStream::choice(&std::io::stdout()) == ColorChoice::Never {
        write!(out, "{}\n{}", table(&tokens).plain(&[1, 2]), summary(loss))
    } else {
        write!(out, "{}\n\n{}\n{}", colored(&tokens), legend(), summary(loss))
    };
    written.map_err(super::output_error)
}

/// Writes the losses and the tokens as one JSON object.
fn json(tokens: &[ScoredToken], loss: TextLoss) -> String {
    #[derive(Serialize)]
    struct Scored<'a> {
        loss: f64,
        perplexity: f64,
        bits_per_byte: Option<f64>,
        tokens: &'a [ScoredToken],
    }
    let TextLoss { loss, bits_per_byte, .. } = loss;
    let scored = Scored { loss, perplexity: loss.exp(), bits_per_byte, tokens };
    serde_json::to_string(&scored).expect("numbers and strings are JSON")
}

fn summary(loss: TextLoss) -> String {
    let TextLoss { tokens, loss, bits_per_byte } = loss;
    let mut text = format!("loss {loss:.4} on {tokens} tokens, perplexity {:.2}", loss.exp());
    if let Some(bits) = bits_per_byte {
        let _ = write!(text, ", {bits:.4} bits per byte");
    }
    text + "\n"
}

fn table(tokens: &[ScoredToken]) -> Table {
    let row = |token: &ScoredToken| {
        let likely = token.likeliest.iter();
        let likely: Vec<_> = likely
            .map(|other| format!("{:?} {}", other.text, probability_text(other.probability)))
            .collect();
        vec![
            format!("{:?}", token.text),
            token.probability.map_or_else(|| "-".into(), probability_text),
            token.loss().map_or_else(|| "-".into(), |loss| format!("{loss:.3}")),
            likely.join(", "),
        ]
    };
    Table::new(["token", "probability", "loss", "likeliest"], tokens.iter().map(row))
}

/// Returns the style of a class: black on yellow to red, which is readable on every terminal. Likely
/// tokens have none.
fn style(class: ProbabilityClass) -> Style {
    let background = match class {
        ProbabilityClass::Likely => return Style::new(),
        ProbabilityClass::Possible => 230,
        ProbabilityClass::Unlikely => 222,
        ProbabilityClass::Rare => 214,
        ProbabilityClass::Surprising => 203,
    };
    let black = Ansi256Color(16).into();
    Style::new().fg_color(Some(black)).bg_color(Some(Ansi256Color(background).into()))
}

/// Returns the text with each token in the color of its probability.
fn colored(tokens: &[ScoredToken]) -> String {
    let mut text = String::new();
    for token in tokens {
        let style = token.probability.map_or(Style::new(), |share| style(share.into()));
        for (index, line) in escape_terminal(&token.text).split('\n').enumerate() {
            if index > 0 {
                text.push('\n');
            }
            // An open background would fill the rest of the line.
            if !line.is_empty() {
                let _ = write!(text, "{style}{line}{style:#}");
            }
        }
    }
    text
}

fn legend() -> String {
    let classes = ProbabilityClass::ALL.iter().map(|class| {
        let style = style(*class);
        format!("{style} {class} {style:#}")
    });
    format!("probability: {}", classes.collect::<Vec<_>>().join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str, probability: Option<f32>) -> ScoredToken {
        ScoredToken { text: text.into(), probability, likeliest: Vec::new() }
    }

    #[test]
    fn only_unlikely_tokens_have_a_color_and_no_line_break_has_one() {
        let tokens = [token("A", None), token(" b", Some(0.9)), token("c\n\u{7}", Some(0.001))];
        let rare = style(ProbabilityClass::Surprising);
        assert_eq!(colored(&tokens), format!("A b{rare}c{rare:#}\n{rare}\\u0007{rare:#}"));
        assert_eq!(anstream::adapter::strip_str(&colored(&tokens)).to_string(), "A bc\n\\u0007");
    }

    #[test]
    fn a_table_has_a_line_for_each_token() {
        let table = table(&[token("\n", None), token("é", Some(0.25))]).plain(&[1, 2]);
        let lines: Vec<_> = table.lines().skip(1).map(|line| line.split_whitespace()).collect();
        let lines: Vec<Vec<_>> = lines.into_iter().map(Iterator::collect).collect();
        assert_eq!(lines, [vec!["\"\\n\"", "-", "-"], vec!["\"é\"", "25.0%", "1.386"]]);
    }
}
