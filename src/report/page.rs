//! Templates, and the files of pages.

use std::io::ErrorKind;
use std::path::Path;

use crate::disk;
use crate::protocol::Failure;
use crate::text::escape_html;
use crate::version::VERSION;

/// The mark of every page and picture of wgpt. Files without it are not overwritten.
pub(super) const MARK: &str = "<!-- made by wgpt -->";

/// The page about a run, in its folder.
pub(crate) const REPORT_FILE: &str = "report.html";

/// Fills a template. `{{name}}` becomes the value of that name, escaped, and `{{&name}}` the markup of
/// that name. Leaves out paragraphs with empty markup.
pub(super) fn fill(
    template: &str,
    escape: fn(&str) -> String,
    values: &[(&str, impl AsRef<str>)],
) -> String {
    let paragraph = |text: &str| {
        let mut parts = text.split("{{");
        let mut filled = parts.next()?.to_string();
        for part in parts {
            let (name, rest) = part.split_once("}}")?;
            let markup = name.strip_prefix('&');
            let name = markup.unwrap_or(name);
            let (_, value) = values.iter().find(|(known, _)| *known == name)?;
            let value = value.as_ref();
            match markup {
                Some(_) if value.is_empty() => return None,
                Some(_) => filled += value.trim_end(),
                None => filled += &escape(value),
            }
            filled += rest;
        }
        Some(filled)
    };
    let paragraphs: Vec<String> = template.trim_end().split("\n\n").filter_map(paragraph).collect();
    paragraphs.join("\n\n") + "\n"
}

/// Returns a whole page. `content` is HTML.
pub(super) fn page(title: &str, content: &str) -> String {
    let values = [("title", title), ("content", content), ("version", VERSION)];
    fill(include_str!("../../assets/pages/page.html"), escape_html, &values)
}

/// Writes a page or a table, also over a former one of wgpt.
///
/// # Errors
/// If the file cannot be written, or another file is at its path.
pub(crate) fn write(path: &Path, text: &str) -> Result<(), Failure> {
    match disk::read_own(path) {
        Ok(former) => {
            let beginning = String::from_utf8_lossy(&former[..former.len().min(200)]);
            if !beginning.contains(MARK) {
                let text = format!("{}: this file was not made by wgpt", path.display());
                return Err(Failure::usage(text, "give another file with -o"));
            }
        }
        Err(missing) if missing.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(Failure::file(path)(error)),
    }
    if let Some(folder) = path.parent() {
        disk::create_dir_all(folder).map_err(Failure::file(path))?;
    }
    disk::replace(path, text.as_bytes()).map_err(Failure::file(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_is_filled_with_escaped_values() {
        let template = "<b>{{a}}</b>\n\n<h2>B</h2>\n{{&b}}\n\n{{a}} {{&c}}\n";
        let fill = |b| fill(template, escape_html, &[("a", "<{{b}}>"), ("b", b), ("c", "<i>")]);
        assert_eq!(fill(""), "<b>&lt;{{b}}&gt;</b>\n\n&lt;{{b}}&gt; <i>\n");
        assert!(fill("<p>{{a}}</p>\n").contains("<h2>B</h2>\n<p>{{a}}</p>\n\n"));
        let page = page("<x>", "<p>");
        assert!(page.contains("<title>&lt;x&gt;</title>") && page.contains("\n<p>\n"), "{page}");
    }
}
