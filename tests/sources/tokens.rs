//! Splits Rust sources into tokens, and finds the paths in them.

/// A path in code or in `use`. `a::{b, c}` is two paths.
pub struct Named<'a> {
    pub line: usize,
    pub segments: Vec<&'a str>,
    /// True in `use` and `extern crate`, where a single segment is a crate.
    imported: bool,
}

impl<'a> Named<'a> {
    /// Returns true if the path begins with one of these crates, or with a crate of that prefix.
    pub fn is_of(&self, crates: &[&str]) -> bool {
        let root = self.segments[0];
        let after = |name: &&str| root.strip_prefix(*name);
        (self.imported || self.segments.len() > 1)
            && crates.iter().filter_map(after).any(|rest| rest.is_empty() || rest.starts_with('_'))
    }

    /// Returns the module of this crate in the path: `cli` in `crate::cli::run`, `super::cli` and
    /// `wgpt::cli`.
    pub fn module(&self) -> Option<&'a str> {
        let ours = |segment: &&&str| ["crate", "super", "self", "wgpt"].contains(*segment);
        match self.segments.iter().take_while(ours).count() {
            0 => None,
            above => self.segments.get(above).copied(),
        }
    }
}

/// Lists the paths in a file.
pub fn paths<'a>(tokens: &[Token<'a>]) -> Vec<Named<'a>> {
    let text = |index: usize| tokens.get(index).map_or("", |token| token.text);
    let mut found = Vec::new();
    let mut index = 0;
    while index < tokens.len() {
        let imported =
            text(index) == "use" || (text(index) == "extern" && text(index + 1) == "crate");
        if imported {
            index += if text(index) == "extern" { 2 } else { 1 };
        } else if !is_name(text(index)) {
            index += 1;
            continue;
        }
        // `::burn::x` begins with the same crate as `burn::x`.
        index += usize::from(text(index) == "::");
        index = read_path(tokens, index, &[], imported, &mut found).max(index + 1);
    }
    found
}

/// Reads the path at `index`, which continues `prefix`, and returns the index after it.
fn read_path<'a>(
    tokens: &[Token<'a>],
    mut index: usize,
    prefix: &[&'a str],
    imported: bool,
    found: &mut Vec<Named<'a>>,
) -> usize {
    let mut segments = prefix.to_vec();
    while let Some(token) = tokens.get(index) {
        if imported && token.text == "{" {
            index += 1;
            while tokens.get(index).is_some_and(|token| token.text != "}") {
                // A comma, or the `as name` of the previous member.
                let skip = ["::", ",", "as"].contains(&tokens[index].text);
                index = if skip {
                    index + 1
                } else {
                    read_path(tokens, index, &segments, imported, found).max(index + 1)
                };
            }
            return index + 1;
        }
        if !is_name(token.text) {
            break;
        }
        segments.push(token.text);
        let line = token.line;
        index += 1;
        if tokens.get(index).is_none_or(|next| next.text != "::") {
            found.push(Named { line, segments, imported });
            return index;
        }
        index += 1;
    }
    // A path that ends in `*` or in type arguments.
    if let (Some(last), false) = (tokens.get(index.saturating_sub(1)), segments.is_empty()) {
        found.push(Named { line: last.line, segments, imported });
    }
    index
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

/// A name, a number, `::`, or one character of anything else.
#[derive(Clone, Copy, Debug)]
pub struct Token<'a> {
    pub line: usize,
    pub text: &'a str,
}

/// Splits Rust code into tokens, without comments, strings, characters and lifetimes.
pub fn tokens(source: &str) -> Vec<Token<'_>> {
    split(source, false)
}

/// Lists the string literals in Rust code, with their quotes.
pub fn strings(source: &str) -> Vec<Token<'_>> {
    split(source, true)
}

fn split(source: &str, strings: bool) -> Vec<Token<'_>> {
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let (mut at, mut line) = (0, 1);
    while let Some(c) = source[at..].chars().next() {
        let rest = &source[at..];
        let (len, counts) = if rest.starts_with("//") {
            (rest.find('\n').unwrap_or(rest.len()), false)
        } else if rest.starts_with("/*") {
            (block_comment(rest), false)
        } else if let Some(len) = raw_string(rest) {
            (len, strings)
        } else if c == '"' {
            (quoted(rest, '"'), strings)
        } else if c == '\'' {
            (character_or_lifetime(rest), false)
        } else if c.is_alphanumeric() || c == '_' {
            (
                rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len()),
                !strings,
            )
        } else if rest.starts_with("::") {
            (2, !strings)
        } else {
            (c.len_utf8(), !strings && !c.is_whitespace())
        };
        if counts {
            tokens.push(Token { line, text: &rest[..len] });
        }
        line += rest[..len].matches('\n').count();
        at += len;
    }
    tokens
}

/// Returns the length of the block comment that begins here. Block comments nest.
fn block_comment(rest: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        let step = match rest.as_bytes().get(at..at + 2) {
            Some(b"/*") => {
                depth += 1;
                2
            }
            Some(b"*/") => {
                depth -= 1;
                2
            }
            _ => 1,
        };
        at += step;
        if depth == 0 {
            return at;
        }
    }
    rest.len()
}

/// Returns the length of the raw string that begins here, like `r#"..."#`.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix);
        after.is_some_and(|after| after.trim_start_matches('#').starts_with('"'))
    })?;
    let open = rest.find('"')? + 1;
    let close = format!("\"{}", &rest[prefix.len()..open - 1]);
    Some(rest[open..].find(&close).map_or(rest.len(), |end| open + end + close.len()))
}

/// Returns the length of the string or character literal that begins here.
fn quoted(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in rest.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    rest.len()
}

/// Returns the length of `'x'`, `'\n'` or `'static`.
fn character_or_lifetime(rest: &str) -> usize {
    let mut chars = rest.chars().skip(1);
    match (chars.next(), chars.next()) {
        (Some('\\'), _) | (Some(_), Some('\'')) => quoted(rest, '\''),
        _ => {
            let name = rest[1..].find(|c: char| !(c.is_alphanumeric() || c == '_'));
            1 + name.unwrap_or(rest.len() - 1)
        }
    }
}
