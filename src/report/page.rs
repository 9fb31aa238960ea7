//! Pages that need no other file.

use std::io::ErrorKind;
use std::path::Path;

use super::CliError;
use crate::disk;
use crate::version::VERSION;

/// The mark of every page and table of wgpt: no other file is overwritten.
const MARK: &str = "<!-- made by wgpt -->";

const STYLE: &str = "\
:root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem}h1{margin-bottom:0}table{border-collapse:collapse;margin:1rem 0}th,td{text-align:left;\
padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884;vertical-align:top}td.n{text-align:right}\
svg{width:100%;height:auto;border-radius:4px}pre{white-space:pre-wrap;background:#8881;padding:.8rem;\
border-radius:4px}.quiet{opacity:.7}";

/// Returns text as HTML shows it.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            character => escaped.push(character),
        }
    }
    escaped
}

/// Returns a whole page. `body` is HTML.
pub(super) fn page(title: &str, body: &str) -> String {
    let title = escape(title);
    format!(
        "<!doctype html>\n{MARK}\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n\
         <style>{STYLE}</style></head>\n<body>\n{body}\n<p class=\"quiet\">Made with wgpt {}.</p>\n\
         </body></html>\n",
        VERSION
    )
}

/// Returns a table of texts. The first cell of each row is its heading.
pub(super) fn table<'a>(
    head: &[String],
    rows: impl IntoIterator<Item = &'a Vec<String>>,
) -> String {
    let cells = |tag: &str, cells: &[String]| -> String {
        cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
    };
    let mut table = String::from("<table>\n");
    if !head.is_empty() {
        table += &format!("<tr>{}</tr>\n", cells("th", head));
    }
    for row in rows {
        let (first, rest) = row.split_at(1.min(row.len()));
        table += &format!("<tr>{}{}</tr>\n", cells("th", first), cells("td", rest));
    }
    table + "</table>\n"
}

/// Returns a table in Markdown.
pub(super) fn markdown_table<'a>(
    head: &[String],
    rows: impl IntoIterator<Item = &'a Vec<String>>,
) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| escape_markdown(cell)).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let mut table = line(head) + &format!("|{}\n", "---|".repeat(head.len()));
    rows.into_iter().for_each(|row| table += &line(row));
    table
}

/// Returns text as a cell of a Markdown table shows it.
pub(super) fn escape_markdown(text: &str) -> String {
    text.replace('\\', "\\\\").replace('|', "\\|").replace('<', "&lt;").replace(['\n', '\r'], " ")
}

/// Returns a text in Markdown with the mark of wgpt.
pub(super) fn markdown(body: &str) -> String {
    format!("{MARK}\n\n{body}")
}

/// Writes a chart beside a page, also over a former one of wgpt.
///
/// # Errors
/// As [`write`].
pub(super) fn write_picture(path: &Path, svg: &str) -> Result<(), CliError> {
    write(path, &format!("{MARK}\n{svg}"))
}

/// Writes a page or a table, also over a former one of wgpt.
///
/// # Errors
/// If the file cannot be written, or another one is there.
pub(super) fn write(path: &Path, text: &str) -> Result<(), CliError> {
    let error = |source| CliError::File { path: path.to_path_buf(), source };
    match disk::read(path) {
        Ok(former) => {
            let beginning = String::from_utf8_lossy(&former[..former.len().min(200)]);
            if !beginning.contains(MARK) {
                return Err(CliError::Usage {
                    what: format!("{}: this file was not made by wgpt", path.display()),
                    hint: "give another file with -o",
                });
            }
        }
        Err(missing) if missing.kind() == ErrorKind::NotFound => {}
        Err(source) => return Err(error(source)),
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => {
            disk::create_dir_all(folder).map_err(error)?;
        }
        _ => {}
    }
    disk::write(path, text).map_err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        assert_eq!(escape("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
        let page = page("<x>", "");
        assert!(page.contains("<title>&lt;x&gt;</title>"), "{page}");
        let rows = [vec!["a|b".to_string(), "<i>\n".to_string()]];
        assert_eq!(
            markdown_table(&["h".into(), "k".into()], &rows),
            "| h | k |\n|---|---|\n| a\\|b | &lt;i>  |\n"
        );
        let table = table(&[], &rows);
        assert!(table.contains("<th>a|b</th><td>&lt;i&gt;\n</td>"), "{table}");
    }

    #[test]
    fn only_files_of_wgpt_are_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/a.html");
        write(&path, &page("a", "")).unwrap();
        write(&path, &page("b", "")).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("<title>b"));
        std::fs::write(&path, "mine").unwrap();
        assert!(matches!(write(&path, &page("c", "")), Err(CliError::Usage { .. })));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
    }
}
