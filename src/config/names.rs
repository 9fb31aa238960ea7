//! Names of files and folders that every system takes.

/// The longest name, in characters.
const LONGEST: usize = 40;

/// Names that are devices on Windows in every folder, also with an extension.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// Names of devices with a digit after them.
const NUMBERED_DEVICES: [&str; 2] = ["com", "lpt"];

/// Returns a name for a file or a folder that says `text`, or `otherwise` if nothing of it can be said.
///
/// It has letters, digits, `-`, `_` and `.` alone, and neither begins nor ends with a dot. The name of a
/// Windows device gets a dash: `aux-`, `nul-.txt`.
pub(crate) fn file_name(text: &str, otherwise: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let name: String = text.chars().take(LONGEST).map(safe).collect();
    match name.trim_matches('.') {
        "" => otherwise.to_string(),
        name => match name.split_once('.') {
            Some((first, rest)) if is_device(first) => format!("{first}-.{rest}"),
            None if is_device(name) => format!("{name}-"),
            _ => name.to_string(),
        },
    }
}

fn is_device(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    let is_digit = |rest: &str| matches!(rest.as_bytes(), [b'0'..=b'9']);
    let numbered = |device: &&str| name.strip_prefix(*device).is_some_and(is_digit);
    DEVICES.contains(&name.as_str()) || NUMBERED_DEVICES.iter().any(numbered)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_valid_on_every_system() {
        for (text, name) in [
            ("foxes", "foxes"),
            ("my text: a/b\\c?", "my-text--a-b-c-"),
            ("\u{fc}ber.uns", "\u{fc}ber.uns"),
            ("..", "text"),
            ("", "text"),
            (".hidden.", "hidden"),
            ("a. ", "a.-"),
            ("nul", "nul-"),
            ("AUX.v2", "AUX-.v2"),
            ("com1", "com1-"),
            ("com10", "com10"),
            ("lpt", "lpt"),
            ("console", "console"),
        ] {
            assert_eq!(file_name(text, "text"), name, "{text:?}");
        }
        assert_eq!(file_name(&"\u{fc}".repeat(100), "text").chars().count(), LONGEST);
    }
}
