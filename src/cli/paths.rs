//! Paths in pages that are given away: without the folders of the machine.

/// The separators of a path: the run may be of another system.
const SEPARATORS: [char; 2] = ['/', '\\'];

/// Returns the value of a setting as pages show it.
pub(super) fn shown(key: &str, value: String) -> String {
    match key {
        "data" | "init_from" | "hellaswag" => last_part(&value).to_string(),
        _ => value,
    }
}

/// Returns the last part of a path.
pub(super) fn last_part(path: &str) -> &str {
    path.rsplit(SEPARATORS).find(|name| !name.is_empty()).unwrap_or(path)
}

/// Returns a recorded line as pages show it: of absolute paths, the last part.
pub(super) fn shown_line(line: &str) -> String {
    let mut shown = String::with_capacity(line.len());
    let (mut rest, mut before) = (line, None);
    while let Some(next) = rest.chars().next() {
        let is_address = before == Some(':') && rest.starts_with("//") && !shown.ends_with("file:");
        let (len, is_path) = if is_address {
            (rest.find(char::is_whitespace).unwrap_or(rest.len()), false)
        } else if begins_path(before, rest) {
            (path_len(before, rest), true)
        } else {
            (next.len_utf8(), false)
        };
        let (part, after) = rest.split_at(len);
        shown.push_str(if is_path { last_part(part) } else { part });
        (rest, before) = (after, part.chars().next_back());
    }
    shown
}

/// Returns true if an absolute path begins at `text`, which follows the character `before`.
fn begins_path(before: Option<char>, text: &str) -> bool {
    // As in tokens/s, 3/4, ../x and %/s.
    if before.is_some_and(|c| c.is_alphanumeric() || r"_.~%)]}/\".contains(c)) {
        return false;
    }
    let drive = text.strip_prefix(|c: char| c.is_ascii_alphabetic());
    let name = drive
        .and_then(|text| text.strip_prefix(':')?.strip_prefix(SEPARATORS))
        .or_else(|| text.strip_prefix(r"\\"))
        .or_else(|| text.strip_prefix("~/"))
        .or_else(|| text.strip_prefix('/'));
    let name = name.map(|name| name.trim_start_matches(SEPARATORS));
    name.is_some_and(|name| name.starts_with(|c: char| !c.is_whitespace()))
}

/// Returns the length of the path at the start of `text`, without the punctuation after it. A path
/// right after a quotation mark ends at the next one.
fn path_len(before: Option<char>, text: &str) -> usize {
    if let Some(mark) = before.filter(|mark| ['"', '\''].contains(mark)) {
        // Not at an apostrophe.
        let is_end = |end: &usize| !text[end + 1..].starts_with(char::is_alphanumeric);
        if let Some(end) = text.match_indices(mark).map(|(at, _)| at).find(is_end) {
            return end;
        }
    }
    let mut end = word_len(text);
    // Names with blanks, like those in C:\Program Files (x86)\wgpt: a word with a separator soon
    // after a blank belongs to the path. Slashes are in other words, too.
    let is_windows = text[..end].contains('\\');
    let most = if is_windows { 4 } else { 1 };
    let (mut at, mut words) = (end, 0);
    while words < most && !text[..at].ends_with([':', ';', ',']) {
        let Some(next) = text[at..].strip_prefix(' ') else { break };
        let word = &next[..word_len(next)];
        if word.is_empty() || has_path(word) {
            break;
        }
        (at, words) = (at + 1 + word.len(), words + 1);
        let is_part = match is_windows {
            true => word.contains('\\'),
            false => word.contains('/') && word.starts_with(char::is_alphabetic),
        };
        if is_part {
            (end, words) = (at, 0);
        }
    }
    let punctuation = ['.', '…', ',', ':', ';', '!', '?', ')', ']', '}', '\''];
    text[..end].trim_end_matches(punctuation).len()
}

/// Returns the length of the word at the start of `text`.
fn word_len(text: &str) -> usize {
    let is_end = |c: char| c.is_whitespace() || "\"`<>|".contains(c);
    text.find(is_end).unwrap_or(text.len())
}

/// Returns true if an absolute path is in `word`.
fn has_path(word: &str) -> bool {
    let mut before = None;
    word.char_indices().any(|(at, c)| begins_path(before.replace(c), &word[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_shortened() {
        assert_eq!(shown("data", "/home/me/data/x".into()), "x");
        assert_eq!(shown("data", r"C:\Users\me\data\x\".into()), "x");
        assert_eq!(shown("data", "builtin:stories".into()), "builtin:stories");
        assert_eq!(shown("seed", "1/2".into()), "1/2");
    }

    #[test]
    fn absolute_paths_in_lines_are_shortened() {
        let lines = [
            (
                "cannot write /home/me/r/00000250: no room (os error 28)",
                "cannot write 00000250: no room (os error 28)",
            ),
            (r"C:\Users\me\r.part: denied", "r.part: denied"),
            (r#""C:\\Users\\me\\r" is gone"#, r#""r" is gone"#),
            (r"\\server\share\x, \\?\C:\y\z and d:/e/f", "x, z and f"),
            ("--run=/home/x/out --data=C:/d/e -o ~/g/h", "--run=out --data=e -o h"),
            ("(/a/b/c), `wgpt prepare /d/e -o /f/g`, [/h/i/]", "(c), `wgpt prepare e -o g`, [i]"),
            ("FILE:/home/me/p.jsonl:3: bad; file:///home/me/q.", "FILE:p.jsonl:3: bad; file:q."),
            ("/höme/mé/ä…", "ä…"),
            // Names with blanks.
            (r#"'/home/jane doe/o'neil/my run' and "/a b/c d""#, r#"'my run' and "c d""#),
            (r#"--run="/home/jane doe/my run""#, r#"--run="my run""#),
            (r"C:\Program Files (x86)\Jane van Dyke\x: 3 of 4", "x: 3 of 4"),
            ("/Users/me/Application Support/wgpt/x is gone", "x is gone"),
            (r"C:\a\x or C:\b\y --data=C:\c\z", "x or y --data=z"),
            ("/a/x 3/4 of it, /a/y: tokens/s", "x 3/4 of it, y: tokens/s"),
        ];
        for (line, expected) in lines {
            assert_eq!(shown_line(line), expected, "{line}");
        }
        let unchanged = [
            "",
            "/",
            "3/4 of 512 tokens/s, 100%/s, and/or, a / b/c, // x",
            "out/r, ./r/x, ../r/x and builtin:stories",
            "see https://example.org/a/b, http://[::1]/x and <https://example.org/c>",
            r"a \n b, at 12:30 / 13:00",
        ];
        for line in unchanged {
            assert_eq!(shown_line(line), line);
        }
    }
}
