//! Tables as CSV: rows of texts, whose columns the first row names. As in Python's `csv`, a field in quotes may have
//! separators and line breaks, a doubled quote stands for one, and blank lines are left out.

use std::io::{self, BufRead};

use csv_core::{ReadRecordResult, Reader, ReaderBuilder};
use serde_json::{Map, Value};

use super::platform::TextEncoding;
use super::records::MAX_RECORD;
use super::sniff::START;

/// The separators. Programs in countries with a decimal comma write semicolons.
const SEPARATORS: [u8; 3] = [b',', b';', b'\t'];

/// The most fields of a row beyond those of the header. Each takes memory, also an empty one.
const MORE_FIELDS: usize = 1 << 16;

/// The form of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableForm {
    separator: u8,
    /// In which separators, quotes and line breaks are those of ASCII.
    encoding: TextEncoding,
}

impl TableForm {
    /// Finds the form of a file that begins with `start`, with a header for which `is_wanted` returns a value.
    /// Returns `None` if it has no such header. `named` is the separator that the name of the file tells. Without it,
    /// the header must have several columns, and each row of the start as many fields: it could be a sentence, or a
    /// line of a program.
    pub fn find<T>(
        start: &[u8],
        encoding: TextEncoding,
        named: Option<u8>,
        is_wanted: impl Fn(&[String]) -> Option<T>,
    ) -> Option<(Self, T)> {
        named.into_iter().chain(SEPARATORS).find_map(|separator| {
            let form = Self { separator, encoding };
            let mut table = Table::new(form);
            let mut rest = start;
            let mut row = Vec::new();
            table.read_header(&mut rest, &mut row).ok()?;
            // One that goes on beyond the start of the file is not known.
            let is_whole = |rest: &[u8]| !rest.is_empty() || start.len() < START;
            let found = is_wanted(&table.columns).filter(|_| is_whole(rest))?;
            let mut has_rows = || {
                let columns = table.columns.len();
                if columns < 2 || table.columns.iter().any(|name| name.trim() != name) {
                    return false;
                }
                let mut rows = 0;
                loop {
                    let read = table.read_row(&mut rest, &mut row);
                    if !is_whole(rest) {
                        // The last row goes on. It may be the only one, with a long text.
                        return table.fields <= columns;
                    }
                    match read {
                        Ok(_) if !table.has_row() => return rows > 0,
                        Ok(_) if table.fields == columns => rows += 1,
                        // A quote is open at the end: reading the rows says so.
                        Err(_) if rest.is_empty() => return rows > 0,
                        _ => return false,
                    }
                }
            };
            (named.is_some() || has_rows()).then_some((form, found))
        })
    }
}

/// Why a row cannot be read.
#[derive(Debug)]
pub enum RowError {
    Io(io::Error),
    /// A clause about the problem.
    Row(String),
    /// A clause about a text that is in another encoding.
    Encoding(String),
}

/// Reads the rows of a table.
#[derive(Debug)]
pub struct Table {
    reader: Reader,
    form: TableForm,
    columns: Vec<String>,
    /// Where each field of the row ends.
    ends: Vec<usize>,
    /// The number of fields of the row.
    fields: usize,
    position: Position,
    /// The line in which the row begins, from 1.
    pub line: u64,
}

impl Table {
    pub fn new(form: TableForm) -> Self {
        let reader = ReaderBuilder::new().delimiter(form.separator).build();
        let (columns, ends) = (Vec::new(), vec![0; 16]);
        Self { reader, form, columns, ends, fields: 0, position: Position::default(), line: 0 }
    }

    pub fn has_header(&self) -> bool {
        !self.columns.is_empty()
    }

    /// Reads the names of the columns, and returns the bytes that were read.
    pub fn read_header(
        &mut self,
        input: &mut impl BufRead,
        row: &mut Vec<u8>,
    ) -> Result<u64, RowError> {
        let read = self.read_row(input, row)?;
        let names = (0..self.fields).map(|index| self.field(row, index));
        self.columns = names.collect::<Result<_, _>>()?;
        Ok(read)
    }

    /// Reads the next row into `row`, a buffer that grows, without its quotes and separators. Returns the bytes
    /// that were read. At the end of the file there is [no row](Self::has_row).
    pub fn read_row(
        &mut self,
        input: &mut impl BufRead,
        row: &mut Vec<u8>,
    ) -> Result<u64, RowError> {
        let Self { reader, ends, fields, position, line, .. } = self;
        *line = 0;
        *fields = 0;
        position.place = Place::Start;
        let separator = self.form.separator;
        let most_fields = self.columns.len() + MORE_FIELDS;
        let (mut filled, mut read) = (0, 0);
        row.resize(row.len().max(1 << 10), 0);
        loop {
            let block = input.fill_buf().map_err(RowError::Io)?;
            let is_end = block.is_empty();
            // Before a row, line breaks are blank lines, or the second half of one.
            let blank = block.iter().take_while(|byte| b"\r\n".contains(byte)).count();
            if *line == 0 && blank > 0 {
                position.count_breaks(&block[..blank]);
                input.consume(blank);
                read += blank as u64;
                continue;
            }
            if *line == 0 {
                *line = position.lines + 1;
            }
            // It ends the last row, or belongs to a field whose quote is open.
            let block = if is_end { b"\n" } else { block };
            let (result, taken, written, ended) =
                reader.read_record(block, &mut row[filled..], &mut ends[*fields..]);
            filled += written;
            *fields += ended;
            if !is_end {
                let taken_bytes = &block[..taken];
                position.count_breaks(taken_bytes);
                let is_closed_early = position.closes_early(taken_bytes, separator);
                input.consume(taken);
                read += taken as u64;
                if is_closed_early {
                    let reason = "more text follows the closing quote of a text with line breaks";
                    return Err(RowError::Row(reason.into()));
                }
            }
            if filled as u64 > MAX_RECORD {
                let reason = format!("the row is longer than {MAX_RECORD} bytes: is a quote open?");
                return Err(RowError::Row(reason));
            }
            if *fields > most_fields {
                let reason = format!("the row has more than {most_fields} fields");
                return Err(RowError::Row(reason));
            }
            match result {
                ReadRecordResult::Record => return Ok(read),
                ReadRecordResult::OutputFull => row.resize(row.len() * 2, 0),
                ReadRecordResult::OutputEndsFull => ends.resize(ends.len() * 2, 0),
                ReadRecordResult::InputEmpty if is_end && filled > 0 => {
                    return Err(RowError::Row("a quote is open at the end of the file".into()));
                }
                ReadRecordResult::InputEmpty if !is_end => {}
                ReadRecordResult::InputEmpty | ReadRecordResult::End => return Ok(read),
            }
        }
    }

    /// Returns false after the last row.
    pub fn has_row(&self) -> bool {
        self.fields > 0
    }

    fn field(&self, row: &[u8], index: usize) -> Result<String, RowError> {
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let bytes = row.get(start..self.ends[index]).unwrap_or_default();
        let encoding = self.form.encoding;
        let text = match encoding.decoder() {
            None => str::from_utf8(bytes).ok().map(str::to_owned),
            Some(mut decoder) => {
                let mut text = String::new();
                decoder.decode(bytes, true, &mut text).is_ok().then_some(text)
            }
        };
        let column = self.columns.get(index).map_or(String::new(), |name| format!(" of {name:?}"));
        let reason = || format!("the text{column} is not {}", encoding.name());
        text.ok_or_else(|| RowError::Encoding(reason()))
    }

    /// Returns a row as an object.
    pub fn object(&self, row: &[u8]) -> Result<Map<String, Value>, RowError> {
        let [have, need] = [self.fields, self.columns.len()];
        let is_empty = |index: usize| self.ends[index] == self.ends[index - 1];
        if have < need || (need..have).any(|index| !is_empty(index)) {
            let reason = format!("the row has {have} fields, but the first row has {need}");
            return Err(RowError::Row(reason));
        }
        let mut object = Map::new();
        for (index, name) in self.columns.iter().enumerate() {
            // As in pandas, the first column of a name has it.
            if !object.contains_key(name) {
                object.insert(name.clone(), Value::String(self.field(row, index)?));
            }
        }
        Ok(object)
    }
}

/// Where the reader is in a table, for what it does not tell itself.
#[derive(Debug, Default)]
struct Position {
    /// The line breaks that were read.
    lines: u64,
    /// True after a carriage return, which may be half a line break.
    is_return: bool,
    place: Place,
}

/// The part of a field that a byte belongs to. `has_break` is true after a line break in the quotes.
#[derive(Clone, Copy, Debug, Default)]
enum Place {
    #[default]
    Start,
    Plain,
    Quoted {
        has_break: bool,
    },
    Closed {
        has_break: bool,
    },
}

impl Position {
    /// Counts line breaks: line feeds, carriage returns, and both together as one.
    fn count_breaks(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.lines += u64::from(*byte == b'\r' || *byte == b'\n' && !self.is_return);
            self.is_return = *byte == b'\r';
        }
    }

    /// Returns true if more text follows the closing quote of a field with line breaks. Then the quotes are most likely
    /// part of texts that no program has quoted, and the rows between them would become one text.
    fn closes_early(&mut self, bytes: &[u8], separator: u8) -> bool {
        for &byte in bytes {
            let is_break = b"\r\n".contains(&byte);
            let is_end = is_break || byte == separator;
            self.place = match self.place {
                Place::Start if byte == b'"' => Place::Quoted { has_break: false },
                Place::Quoted { has_break } if byte == b'"' => Place::Closed { has_break },
                Place::Quoted { has_break } => Place::Quoted { has_break: has_break || is_break },
                Place::Closed { has_break } if byte == b'"' => Place::Quoted { has_break },
                _ if is_end => Place::Start,
                Place::Closed { has_break: true } => return true,
                Place::Start | Place::Plain | Place::Closed { .. } => Place::Plain,
            };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;
    use std::path::{Path, PathBuf};

    use super::super::super::testing::{assert_says, folder};
    use super::super::tests::{contents, documents, sources_of};
    use super::super::{PrepareOptions, Sources};
    use super::*;

    /// What `csv` and pandas read: tests/reference/tables.py.
    #[test]
    fn tables_have_the_texts_that_python_reads() {
        let cases = include_str!("../../../tests/reference/tables.jsonl");
        for case in cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let text = case["content"].as_str().unwrap();
            let (bytes, encoding) = match case["encoding"].as_str().unwrap() {
                "utf-8-sig" => (["\u{feff}", text].concat().into_bytes(), "utf-8"),
                "windows-1252" => {
                    (encoding_rs::WINDOWS_1252.encode(text).0.into_owned(), "windows-1252")
                }
                _ => (text.as_bytes().to_vec(), "utf-8"),
            };
            let (_folder, path) = table(&bytes);
            let options =
                PrepareOptions { encoding: encoding.parse().unwrap(), ..PrepareOptions::default() };

            let sources = Sources::find(&[path], &options, Path::new("out"), &mut |_| {}).unwrap();
            let texts: Vec<String> = serde_json::from_value(case["texts"].clone()).unwrap();
            let texts: Vec<_> = texts.into_iter().filter(|text| !text.is_empty()).collect();
            assert_eq!(contents(&sources).unwrap().0, texts, "{text:?}");
            assert!(sources.recognised()[0].ends_with("a.csv: a table, each row a document"));
        }
    }

    fn rows(content: &str, size: usize) -> Result<Vec<(u64, Vec<String>)>, RowError> {
        let mut input = BufReader::with_capacity(size, content.as_bytes());
        let form = TableForm { separator: b',', encoding: TextEncoding::default() };
        let (mut table, mut row, mut rows) = (Table::new(form), Vec::new(), Vec::new());
        loop {
            table.read_row(&mut input, &mut row)?;
            if !table.has_row() {
                return Ok(rows);
            }
            let fields = (0..table.fields).map(|index| table.field(&row, index).unwrap());
            rows.push((table.line, fields.collect()));
        }
    }

    #[test]
    fn rows_are_the_same_in_blocks_of_any_size() {
        let content = "a,b\r\n\r\n\"1\r\n\"\"2\",\r\n,\"x,y\"\r\n\"\"\n3,4";
        let row = |line, fields: &[&str]| (line, fields.iter().map(|it| it.to_string()).collect());
        let expected = [
            row(1, &["a", "b"]),
            row(3, &["1\r\n\"2", ""]),
            row(5, &["", "x,y"]),
            row(6, &[""]),
            row(7, &["3", "4"]),
        ];
        for size in 1..content.len() + 1 {
            assert_eq!(rows(content, size).unwrap(), expected, "{size}");
        }
        let many = "x,".repeat(100) + &"long".repeat(1000) + "\n";
        let fields = &rows(&many, 64).unwrap()[0].1;
        assert_eq!((fields.len(), fields[100].len()), (101, 4000));
        for open in ["a\n\"", "a\nb,\"c\nd\n", "a\n\"b\"\"\n"] {
            let Err(RowError::Row(reason)) = rows(open, 4) else { panic!("{open:?}") };
            assert_eq!(reason, "a quote is open at the end of the file");
        }
    }

    /// Creates a folder with the file `a.csv`.
    fn table(content: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = folder(&[("a.csv", content)]);
        let path = folder.path().join("a.csv");
        (folder, path)
    }

    fn read(name: &str, content: &[u8]) -> Result<Vec<String>, String> {
        let folder = folder(&[(name, content)]);
        documents(folder.path().join(name), "text").map_err(|error| error.to_string())
    }

    #[test]
    fn rows_that_do_not_fit_the_header_are_named_with_their_line() {
        for (content, expected) in [
            (
                "id,text\n\n1,\"a\nb\"\n2\n",
                "a.csv:5: the row has 1 fields, but the first row has 2",
            ),
            ("id,text\n1,a,b\n", "a.csv:2: the row has 3 fields, but the first row has 2"),
            ("id,text\n1,a\n2,\"b\n", "a.csv:3: a quote is open at the end of the file"),
            ("text\n\"", "a.csv:2: a quote is open at the end of the file"),
            (
                "id,text\n1,a\n2,\"b\n3,c\" d\n4,e\n",
                "a.csv:3: more text follows the closing quote of a text with line breaks",
            ),
            ("id,text\r1,a\r2\r", "a.csv:3: the row has 1 fields"),
        ] {
            assert_says(read("a.csv", content.as_bytes()).unwrap_err(), expected);
        }
        assert_says(
            read("a.csv", b"id,text\n1,a\n2,\xe9\n").unwrap_err(),
            "a.csv:3: the text of \"text\" is not UTF-8",
        );
        let (_folder, path) = table(b"id,text\n1,\xe9\n");
        let error = documents(path, "text").unwrap_err();
        assert!(error.hint().contains("--encoding=windows-1252"), "{}", error.hint());
        let commas = ",".repeat(MORE_FIELDS + 2);
        assert_says(
            read("a.csv", format!("id,text\n1,a\n{commas}\n").as_bytes()).unwrap_err(),
            "a.csv:3: the row has more than 65538 fields",
        );
        assert_eq!(read("a.csv", b"id,text\n1,\"a\"b\n").unwrap(), ["ab"]);
        // Excel ends rows with the separators of columns that others have.
        assert_eq!(read("a.csv", b"id,text\n1,a,,\n").unwrap(), ["a"]);
        let (_folder, path) = table(b"id,text\n1,a\nbad\n2,b\n");
        let (texts, _, bad) = contents(&sources_of(path, true)).unwrap();
        assert_eq!((texts, bad.count), (vec!["a".to_owned(), "b".to_owned()], 1));
    }

    #[test]
    fn only_a_header_with_the_column_makes_a_table() {
        for (name, content, expected) in [
            ("a.txt", "text;id\none;1\n", &["one"][..]),
            ("a.txt", "text\none\n", &["text\none\n"]),
            ("a.txt", "text, and more\nof it, too\n", &["text, and more\nof it, too\n"]),
            ("a.txt", "Now,text\nOne day a fox came.\n", &["Now,text\nOne day a fox came.\n"]),
            ("a.txt", "import re,text\na(b, c)\nd\n", &["import re,text\na(b, c)\nd\n"]),
            ("a.csv", "id,body\n1,one\n", &["id,body\n1,one\n"]),
            ("a.csv", "1,one\n2,text\n", &["1,one\n2,text\n"]),
            ("a.tsv", "text\none, two\n", &["one, two"]),
            ("a.csv", "text,body,text\none,1,two\n", &["one"]),
        ] {
            assert_eq!(read(name, content.as_bytes()).unwrap(), expected, "{name} {content:?}");
        }
        // A row that is longer than the start of a file.
        let long = "x".repeat(2 * START);
        for (content, is_table) in [
            (format!("id,text\n1,{long}\n2,b\n"), true),
            (format!("id,text\n1,{long}"), true),
            (format!("id,text\n1,a,{long}"), false),
        ] {
            let first = if is_table { &long } else { &content };
            assert_eq!(read("a.txt", content.as_bytes()).unwrap()[0], *first);
        }
        let (_folder, path) = table(b"id,body\n1,one\n");
        let sources = sources_of(path.clone(), false);
        let said = "a table without the column \"text\", read as plain text; name the column of its texts \
                    with --text-field";
        assert!(sources.recognised()[0].ends_with(said), "{:?}", sources.recognised());
        assert_eq!(documents(path, "body").unwrap(), ["one"]);
    }

    #[test]
    fn columns_of_questions_and_answers_are_conversations() {
        for (content, messages) in [
            ("instruction,input,output,id\nAdd.,\"1, 2\",3,7\nGreet.,,Hello!,8\n", 4),
            ("prompt;completion\na;b\n", 2),
            ("system,instruction,output\ns,a,b\n", 3),
        ] {
            let (_folder, path) = table(content.as_bytes());
            let sources = sources_of(path, false);
            assert!(sources.has_conversations);
            assert_eq!(contents(&sources).unwrap().1, messages, "{content}");
        }
    }
}
