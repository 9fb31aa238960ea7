//! Escapes untrusted text for terminals, HTML and Markdown: names of folders and devices, prompts, generated
//! text and quotes of files.

use std::fmt::Display;

/// The most characters of an error about a file, its quote included.
const MOST_QUOTED: usize = 200;

/// Escapes text for a terminal: control characters, which would move its cursor or change its colors, become
/// visible (`\u001b`). Tabs and line breaks stay. JSON and TOML remain valid, because their strings have
/// the same escapes.
pub(crate) fn escape_terminal(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\r' if rest.peek() == Some(&'\n') => shown.push(c),
            '\r' => shown += "\\r",
            '\n' | '\t' => shown.push(c),
            c if c.is_control() || reorders(c) => shown += &format!("\\u{:04x}", u32::from(c)),
            c => shown.push(c),
        }
    }
    shown
}

/// Escapes text for one line of a terminal: like [`escape_terminal`], with visible tabs and line breaks.
pub(crate) fn escape_line(text: &str) -> String {
    escape_terminal(text).replace('\r', "\\r").replace('\n', "\\n").replace('\t', "\\t")
}

/// Escapes text for HTML and SVG. SVG allows no control characters.
pub(crate) fn escape_html(text: &str) -> String {
    let text = escape_terminal(text);
    let escaped = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    escaped.replace('"', "&quot;").replace('\'', "&#39;")
}

/// Escapes text for a line, a table cell or the target of a link in Markdown, where an underscore inside a
/// word has no meaning.
pub(crate) fn escape_markdown(text: &str) -> String {
    let text = escape_terminal(text).replace("\r\n", " ").replace(['\n', '\t'], " ");
    let mut escaped = String::with_capacity(text.len());
    let mut before = ' ';
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let mut is_in_word =
            || before.is_alphanumeric() && rest.peek().is_some_and(|next| next.is_alphanumeric());
        match c {
            '<' => escaped += "&lt;",
            '&' => escaped += "&amp;",
            '_' if is_in_word() => escaped.push(c),
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '~' | '$' => escaped.extend(['\\', c]),
            c => escaped.push(c),
        }
        before = c;
    }
    escaped
}

/// Returns an error about a file, cut in the middle if it quotes too much.
pub(crate) fn excerpt(words: impl Display) -> String {
    const END: usize = 60;
    const CUT: &str = " ... ";
    let words = words.to_string();
    let count = words.chars().count();
    if count <= MOST_QUOTED {
        return words;
    }
    // An error of JSON ends with its line and column.
    let end = words.chars().skip(count - END);
    words.chars().take(MOST_QUOTED - END - CUT.len()).chain(CUT.chars()).chain(end).collect()
}

/// Returns true for characters that reorder the text after them.
fn reorders(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_gets_no_control_character() {
        for (text, shown) in [
            ("a\u{1b}[31mb", r"a\u001b[31mb"),
            ("\u{7}\u{8}\0\u{7f}\u{9b}2J", r"\u0007\u0008\u0000\u007f\u009b2J"),
            ("visible\rhidden", r"visible\rhidden"),
            ("tab\tand\nbreak\r\n", "tab\tand\nbreak\r\n"),
            ("\u{202e}gpj.exe", r"\u202egpj.exe"),
            ("é 日本 👩‍💻 |`<", "é 日本 👩‍💻 |`<"),
        ] {
            assert_eq!(escape_terminal(text), shown);
            assert_eq!(escape_terminal(shown), shown, "twice");
        }
        assert_eq!(escape_line("a\r\n\tb\u{1b}"), r"a\r\n\tb\u001b");
    }

    #[test]
    fn escaped_json_is_the_same_json() {
        let text = "\u{1b}\u{9b}\u{7f}\u{202e}\r\n\"";
        let json = escape_terminal(&serde_json::to_string(text).unwrap());
        assert_eq!(serde_json::from_str::<String>(&json).unwrap(), text);
        assert!(!json.contains(char::is_control), "{json}");
    }

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape_html("<b a='\"'>&\u{1b}"), r"&lt;b a=&#39;&quot;&#39;&gt;&amp;\u001b");
        for (text, shown) in [
            ("max_iters", "max_iters"),
            ("_a_ _b", r"\_a\_ \_b"),
            ("a|b`c`<script>", r"a\|b\`c\`&lt;script>"),
            ("[x](javascript:y) ![z](w)", r"\[x\](javascript:y) !\[z\](w)"),
            ("*b* ~s~ $m$ \\", r"\*b\* \~s\~ \$m\$ \\"),
            ("&lt;", "&amp;lt;"),
            ("a\r\n\n# b\u{1b}\u{7}", r"a  # b\\u001b\\u0007"),
        ] {
            assert_eq!(escape_markdown(text), shown);
        }
    }

    #[test]
    fn errors_quote_little() {
        let short = "x".repeat(MOST_QUOTED);
        assert_eq!(excerpt(&short), short);
        let long = format!("unknown `{}` at line 1 column 2", "é".repeat(100_000));
        let shown = excerpt(long);
        assert_eq!(shown.chars().count(), MOST_QUOTED, "{shown}");
        assert!(shown.starts_with("unknown `é") && shown.ends_with(" at line 1 column 2"));
    }
}
