//! Parts of the definition of arguments: examples, suggested values, values from variables.

use std::ffi::OsStr;

use clap::builder::styling::Styles;
use clap::builder::{PossibleValue, StringValueParser, StyledStr, TypedValueParser};
use clap::{Arg, Command};

/// The heading of the flags that only `--help-all` shows.
pub(in crate::cli) const DEBUGGING: &str = "Debugging";

/// Formats example commands with a few words on each.
pub(in crate::cli) fn examples(examples: &[(&str, &str)]) -> StyledStr {
    let styles = Styles::styled();
    let heading = styles.get_header();
    let literal = styles.get_literal();
    let width = examples.iter().map(|(command, _)| command.len()).max().unwrap_or(0);
    let mut text = format!("{heading}Examples:{heading:#}");
    for (command, does) in examples {
        let space = width - command.len() + 2;
        text += &format!("\n  {literal}{command}{literal:#}{:space$}{does}", "");
    }
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n").into()
}

/// Takes any text, and lists values for help and for the completions of shells. The code that reads the
/// value later has the better errors.
#[derive(Clone, Debug)]
pub(in crate::cli) struct Suggested(Vec<&'static str>);

impl Suggested {
    pub fn new(values: impl IntoIterator<Item = &'static str>) -> Self {
        Self(values.into_iter().collect())
    }
}

impl TypedValueParser for Suggested {
    type Value = String;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().copied().map(PossibleValue::new)))
    }
}
