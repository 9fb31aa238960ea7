//! The bytes of an input file, counted and decompressed.

use std::cell::Cell;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use super::sniff::UTF8_MARK;
use super::{DataError, platform};
use crate::disk::File;

pub const BLOCK: usize = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip,
    Zstd,
}

/// An open file, decompressed, which counts the bytes read.
pub struct Input<'a> {
    pub reader: BufReader<Box<dyn Read>>,
    count: Rc<Cell<u64>>,
    pub path: &'a Path,
    compression: Compression,
    /// The bytes of UTF-8's byte order mark, which is not part of what `reader` reads: 0 or 3.
    pub mark: u64,
}

impl<'a> Input<'a> {
    pub fn new(file: File, path: &'a Path, compression: Compression) -> Result<Self, DataError> {
        let count = Rc::new(Cell::new(0));
        let file = Counted { file, count: Rc::clone(&count) };
        let reader: Box<dyn Read> = match compression {
            Compression::None => Box::new(file),
            // A file may have several members, as written by `cat a.gz b.gz`.
            Compression::Gzip => Box::new(flate2::read::MultiGzDecoder::new(file)),
            Compression::Zstd => platform::zstd(file, path)?,
        };
        let mut input = Self {
            reader: BufReader::with_capacity(BLOCK, reader),
            count,
            path,
            compression,
            mark: 0,
        };
        if input.starts_with(UTF8_MARK)? {
            input.reader.consume(UTF8_MARK.len());
            input.mark = UTF8_MARK.len() as u64;
        }
        Ok(input)
    }

    fn starts_with(&mut self, bytes: &[u8]) -> Result<bool, DataError> {
        // The first read fills the buffer, unless the input is shorter than any text.
        match self.reader.fill_buf() {
            Ok(block) => Ok(block.starts_with(bytes)),
            // Whoever reads finds it again.
            Err(_) => Ok(false),
        }
    }

    pub fn bytes_read(&self) -> u64 {
        self.count.get()
    }

    /// Wraps a read error. Errors of a compressed file that have no OS error code come from the decoder.
    pub fn failed(&self, error: io::Error) -> DataError {
        if self.compression == Compression::None || error.raw_os_error().is_some() {
            return DataError::io("read", self.path)(error);
        }
        let problem = format!("cannot decompress {}: {error}", self.path.display());
        DataError::bad(problem, "the file is damaged or incomplete: download it again")
    }
}

struct Counted {
    file: File,
    count: Rc<Cell<u64>>,
}

impl Read for Counted {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buffer)?;
        self.count.set(self.count.get() + read as u64);
        Ok(read)
    }
}
