//! The objects of a file: one a line of JSON, the elements of a JSON array, or the rows of a table.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::DataError;
use super::input::Input;
use super::jsonl::read_line;
use super::sniff::Layout;
use super::table::{RowError, Table};
use crate::data::error::FIX_LINE;

/// Largest object in bytes. A longer document belongs in a text file.
pub(super) const MAX_RECORD: u64 = 256 << 20;

/// The hint for a row with the wrong number of fields.
const FIX_ROW: &str = "put texts with separators in quotes, or remove the row, or leave such lines out with \
                       --skip-bad-lines";

const NAME_ENCODING: &str = "name the encoding of the file, as in --encoding=windows-1252";

/// Reads the objects of a file one by one, as text.
pub(super) struct Records<'a, 'f> {
    pub input: &'a mut Input<'f>,
    layout: Layout,
    /// The number of the line, or of the element, from 1.
    pub number: u64,
    pub bytes: Vec<u8>,
    /// The position in the file of `bytes`.
    pub offset: u64,
    end: u64,
    /// True after the end of an array.
    is_closed: bool,
    table: Option<Table>,
}

impl<'a, 'f> Records<'a, 'f> {
    pub fn new(input: &'a mut Input<'f>, layout: Layout) -> Self {
        let offset = input.mark;
        let bytes = Vec::new();
        let table = if let Layout::Table(form) = layout { Some(Table::new(form)) } else { None };
        Self { input, layout, number: 0, bytes, offset, end: offset, is_closed: false, table }
    }

    /// Creates an error about this object.
    pub fn refuse(&self, reason: &str, hint: &'static str) -> DataError {
        let path = self.input.path;
        match self.layout {
            Layout::Array => DataError::at(path, format!("object {}: {reason}", self.number), hint),
            _ => DataError::line(path, self.number, reason, hint),
        }
    }

    /// Reads the next object into `bytes`. Returns false at the end of the file.
    pub fn next(&mut self) -> Result<bool, DataError> {
        self.offset = self.end;
        if let Some(table) = &mut self.table {
            return read_row(table, self.input, &mut self.number, &mut self.bytes);
        }
        self.number += 1;
        self.end += match self.layout {
            Layout::Lines => read_line(self.input, self.number, MAX_RECORD, &mut self.bytes)?,
            _ => self.read_element()?,
        };
        Ok(self.end > self.offset && !(self.layout == Layout::Array && self.bytes.is_empty()))
    }

    /// Parses the object that was read; `None` for blank text.
    pub fn object(&self) -> Result<Option<Map<String, Value>>, DataError> {
        let path = self.input.path;
        if let Some(table) = &self.table {
            return table.object(&self.bytes).map(Some).map_err(|error| match error {
                RowError::Io(error) => self.input.failed(error),
                RowError::Row(reason) => self.refuse(&reason, FIX_ROW),
                RowError::Encoding(reason) => {
                    DataError::line(path, self.number, &reason, NAME_ENCODING)
                }
            });
        }
        match str::from_utf8(&self.bytes) {
            Ok(text) => object(text).map_err(|reason| self.refuse(&reason, FIX_LINE)),
            Err(error) => Err(DataError::not_utf8(path, self.offset + error.valid_up_to() as u64)),
        }
    }

    /// Reads an element of an array, or of one that follows, without what separates it from others: up to a comma
    /// or the end of the array outside its own brackets and texts. Returns the bytes that were read. `bytes` is
    /// empty after the last one.
    fn read_element(&mut self) -> Result<u64, DataError> {
        let Self { input, bytes, number, is_closed, .. } = self;
        bytes.clear();
        let mut read = 0;
        let mut depth = 0_u64;
        let mut is_text = false;
        let mut is_escaped = false;
        loop {
            let block = match input.reader.fill_buf() {
                Ok(block) => block,
                Err(error) => return Err(input.failed(error)),
            };
            if block.is_empty() {
                // Something else may follow the list: parsing it says so.
                let is_cut = depth > 0 || is_text || bytes.is_empty() && !*is_closed;
                if !is_cut {
                    return Ok(read);
                }
                let reason = format!("object {number}: the list does not end");
                let hint = "the file is cut short: download it again";
                return Err(DataError::at(input.path, reason, hint));
            }
            let mut taken = 0;
            let mut is_complete = false;
            for &byte in block {
                taken += 1;
                let is_outside = bytes.is_empty();
                if is_outside && byte.is_ascii_whitespace() {
                    continue;
                }
                *is_closed = byte == b']' && depth == 0 && !is_text;
                if is_outside && b",[]".contains(&byte) {
                    continue;
                }
                match byte {
                    _ if is_escaped => is_escaped = false,
                    b'\\' if is_text => is_escaped = true,
                    b'"' => is_text = !is_text,
                    _ if is_text => {}
                    b'{' | b'[' => depth += 1,
                    b']' | b',' if depth == 0 => {
                        is_complete = true;
                        break;
                    }
                    b'}' | b']' => depth = depth.saturating_sub(1),
                    _ => {}
                }
                bytes.push(byte);
                if byte == b'}' && depth == 0 && !is_text {
                    is_complete = true;
                    break;
                }
            }
            input.reader.consume(taken);
            read += taken as u64;
            if bytes.len() as u64 > MAX_RECORD {
                let reason = format!("object {number}: longer than {MAX_RECORD} bytes");
                let hint = "a .json file of documents is a list of objects";
                return Err(DataError::at(input.path, reason, hint));
            }
            if is_complete {
                return Ok(read);
            }
        }
    }
}

/// Reads the next row of a table, after its header. Returns false at the end of the file. `line` becomes the line
/// in which the row begins.
fn read_row(
    table: &mut Table,
    input: &mut Input<'_>,
    line: &mut u64,
    bytes: &mut Vec<u8>,
) -> Result<bool, DataError> {
    let reader = &mut input.reader;
    let mut read = || {
        if !table.has_header() {
            table.read_header(reader, bytes)?;
        }
        table.read_row(reader, bytes)
    };
    let read = read();
    *line = table.line;
    match read {
        Ok(_) => Ok(table.has_row()),
        Err(RowError::Io(error)) => Err(input.failed(error)),
        Err(RowError::Encoding(reason)) => {
            Err(DataError::line(input.path, *line, &reason, NAME_ENCODING))
        }
        // The rows after it are not found.
        Err(RowError::Row(reason)) => {
            let hint = "close the quote in this row, or in one of the rows before it; a text with quotes of its \
                        own is in quotes as a whole, and each of its own is doubled";
            Err(DataError::line(input.path, *line, &reason, hint))
        }
    }
}

/// Parses an object as Python's `json` writes it too; `None` for blank text. The error is a clause about the
/// problem.
pub(super) fn object(text: &str) -> Result<Option<Map<String, Value>>, String> {
    if text.trim().is_empty() {
        return Ok(None);
    }
    let object = serde_json::from_str(text).or_else(|error| {
        // Most lines are plain, so only the others are written anew.
        serde_json::from_str(&standard(text)).map_err(|_| error)
    });
    object.map(Some).map_err(|error| format!("not a JSON object ({error})"))
}

/// Returns JSON with null for the numbers NaN and infinity, and a replacement character for each half of a
/// surrogate pair that stands alone: Python writes both, and the standard has neither.
fn standard(json: &str) -> String {
    const NUMBERS: [&str; 3] = ["NaN", "-Infinity", "Infinity"];
    let unit = |text: &str| u16::from_str_radix(text.strip_prefix("\\u")?.get(..4)?, 16).ok();
    let mut written = String::with_capacity(json.len());
    let mut rest = json;
    let mut is_text = false;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        if first == '"' {
            is_text = !is_text;
        } else if is_text && first == '\\' {
            let half = unit(rest);
            let pair = half.zip(rest.get(6..).and_then(unit));
            let is_pair =
                |(high, low)| (0xd800..0xdc00).contains(&high) && (0xdc00..0xe000).contains(&low);
            length = match half {
                Some(_) if pair.is_some_and(is_pair) => 12,
                Some(0xd800..0xe000) => {
                    written.push('\u{fffd}');
                    rest = &rest[6..];
                    continue;
                }
                Some(_) => 6,
                None => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            };
        } else if !is_text && let Some(number) = NUMBERS.iter().find(|it| rest.starts_with(**it)) {
            written.push_str("null");
            rest = &rest[number.len()..];
            continue;
        }
        let (taken, after) = rest.split_at(length);
        written.push_str(taken);
        rest = after;
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_python_writes_is_read() {
        for (json, expected) in [
            (r#"{"a": NaN, "b": -Infinity, "text": "NaN"}"#, r#"{"a":null,"b":null,"text":"NaN"}"#),
            (r#"{"text": "a\ud83d b"}"#, "{\"text\":\"a\u{fffd} b\"}"),
            (
                r#"{"text": "\udc00\ud83d\ude00\\ud800"}"#,
                "{\"text\":\"\u{fffd}\u{1f600}\\\\ud800\"}",
            ),
            (r#"{"text": "\"\ud800"}"#, "{\"text\":\"\\\"\u{fffd}\"}"),
        ] {
            let object = object(json).unwrap().unwrap();
            assert_eq!(serde_json::to_string(&object).unwrap(), expected, "{json}");
        }
        for wrong in ["{\"a\": NaNo}", "{", "[1]", "{\"a\\", "{\"\\u12"] {
            assert!(object(wrong).is_err(), "{wrong}");
        }
        assert_eq!(object(" \n").unwrap(), None);
    }
}
