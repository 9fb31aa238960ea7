//! Tables of text for terminals, HTML and Markdown.

use super::escape::{escape_html, escape_line, escape_markdown};

/// A table of text. Every row has as many cells as the head, if there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Table {
    /// The headings; empty for a table without a first line.
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new<const N: usize>(
        head: [&str; N],
        rows: impl IntoIterator<Item = Vec<String>>,
    ) -> Self {
        Self { head: head.map(String::from).into(), rows: rows.into_iter().collect() }
    }

    /// Creates a table of names and their values.
    pub fn named<const N: usize>(
        head: [&str; N],
        rows: impl IntoIterator<Item = (impl Into<String>, String)>,
    ) -> Self {
        Self::new(head, rows.into_iter().map(|(name, value)| vec![name.into(), value]))
    }

    fn lines(&self) -> impl Iterator<Item = &Vec<String>> + Clone {
        std::iter::once(&self.head).filter(|head| !head.is_empty()).chain(&self.rows)
    }

    /// Formats the table for a terminal, with the columns of `right` aligned to the right.
    pub fn plain(&self, right: &[usize]) -> String {
        let shown = |row: &Vec<String>| row.iter().map(|cell| escape_line(cell)).collect();
        let lines: Vec<Vec<String>> = self.lines().map(shown).collect();
        let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column| {
            let cells = lines.iter().filter_map(move |row| row.get::<usize>(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| {
                if right.contains(&column) {
                    format!("{cell:>width$}")
                } else {
                    format!("{cell:<width$}")
                }
            });
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        lines.iter().map(line).collect()
    }

    /// Formats the table in HTML, where the first cell of each row is its heading; empty without rows.
    pub fn html(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let line = |row: &Vec<String>| {
            let cell = |(column, cell): (usize, &String)| {
                let tag = if column == 0 || std::ptr::eq(row, &self.head) { "th" } else { "td" };
                format!("<{tag}>{}</{tag}>", escape_html(cell))
            };
            format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>())
        };
        format!("<table>\n{}</table>\n", self.lines().map(line).collect::<String>())
    }

    /// Formats the table in Markdown; empty without rows.
    pub fn markdown(&self) -> String {
        if self.rows.is_empty() {
            return String::new();
        }
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().map(|cell| escape_markdown(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rows: String = self.rows.iter().map(line).collect();
        format!("{}|{}\n{rows}", line(&self.head), "---|".repeat(self.head.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_become_markup() {
        let mut table = Table::new(["h", "<k>"], []);
        assert_eq!((table.html(), table.markdown()), (String::new(), String::new()));
        table.rows.push(vec!["a|b".into(), "<i>\n".into()]);
        assert_eq!(table.markdown(), "| h | &lt;k> |\n|---|---|\n| a\\|b | &lt;i>  |\n");
        let html = table.html();
        assert!(html.contains("<tr><th>h</th><th>&lt;k&gt;</th></tr>"), "{html}");
        assert!(html.contains("<tr><th>a|b</th><td>&lt;i&gt;\n</td></tr>"), "{html}");
    }

    #[test]
    fn a_cell_stays_in_its_line() {
        let table = Table::named(["run", "state"], [("a\u{1b}[2J\nb", "done".into())]);
        assert_eq!(table.plain(&[]), "run            state\na\\u001b[2J\\nb  done\n");
    }

    #[test]
    fn columns_are_as_wide_as_their_cells() {
        let table = Table::named(["", "size"], [("a", "1".into()), ("höhe", "12345".into())]);
        assert_eq!(table.plain(&[]), "      size\na     1\nhöhe  12345\n");
        assert_eq!(table.plain(&[1]), "       size\na         1\nhöhe  12345\n");
    }
}
