//! Takes the place of `platform.rs` in a browser, which has no stdin and reads UTF-8 text and `.jsonl` files
//! only.

use std::io::{self, Read};
use std::path::Path;

use super::{BadLines, DataError, Sink, Stop};
use crate::disk::File;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextEncoding;

impl TextEncoding {
    pub fn is_utf8(self) -> bool {
        true
    }

    pub fn is_ascii_compatible(self) -> bool {
        true
    }

    pub fn name(self) -> &'static str {
        "UTF-8"
    }

    pub fn decoder(self) -> Option<TextDecoder> {
        None
    }
}

/// Has no value: UTF-8 needs no decoder.
pub enum TextDecoder {}

impl TextDecoder {
    pub fn decode(&mut self, _: &[u8], _: bool, _: &mut String) -> Result<(), i64> {
        match *self {}
    }
}

pub(super) fn read_parquet(
    path: &Path,
    _: u64,
    _: &str,
    _: &mut BadLines,
    _: &mut Sink<'_>,
) -> Result<(), Stop> {
    Err(unsupported(path).into())
}

pub(super) fn zstd(_: impl Read, path: &Path) -> Result<Box<dyn Read>, DataError> {
    Err(unsupported(path))
}

pub(super) fn encoding(_: &str) -> Option<TextEncoding> {
    None
}

pub(super) fn copy_stdin(_: &Path, _: &mut dyn FnMut(u64)) -> Result<(File, u64), DataError> {
    Err(unsupported(Path::new("stdin")))
}

pub(super) fn reopen(_: &File) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

fn unsupported(path: &Path) -> DataError {
    let problem = "a browser does not read this format";
    DataError::at(path, problem, "choose a text or a .jsonl file")
}
