//! The inputs that a browser does not read: stdin, Parquet, Zstandard and encodings other than UTF-8.

mod encoding;
mod parquet;

use std::io::{self, Read, Seek, Write};
use std::path::Path;

use super::DataError;
use crate::data::pieces::PIECE;
use crate::disk::File;
pub use encoding::{TextDecoder, TextEncoding};
pub(super) use parquet::read as read_parquet;

/// Decompresses Zstandard.
pub(super) fn zstd(file: impl Read + 'static, path: &Path) -> Result<Box<dyn Read>, DataError> {
    let decoder = zstd::stream::read::Decoder::new(file).and_then(|mut decoder| {
        // As `zstd --long=31` compresses.
        decoder.window_log_max(31)?;
        Ok(decoder)
    });
    Ok(Box::new(decoder.map_err(DataError::io("read", path))?))
}

/// Returns the encoding of a label, for text other than UTF-8.
pub(super) fn encoding(label: &str) -> Option<TextEncoding> {
    label.parse().ok()
}

/// Copies stdin to a file without a name, which ends with this process; also returns its length.
/// The file is on the disk of `out`, the output folder: that disk needs the room for the tokens
/// anyway, while the system's folder for temporary files may be in memory. `progress` is called with
/// the bytes so far.
pub(super) fn copy_stdin(
    out: &Path,
    progress: &mut dyn FnMut(u64),
) -> Result<(File, u64), DataError> {
    let folder = out.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let mut copied = || -> io::Result<(File, u64)> {
        let mut file = tempfile::tempfile_in(folder)?;
        let mut stdin = io::stdin().lock();
        let mut bytes = 0;
        let mut block = Vec::with_capacity(PIECE);
        while (&mut stdin).take(PIECE as u64).read_to_end(&mut block)? > 0 {
            file.write_all(&block)?;
            bytes += block.len() as u64;
            block.clear();
            progress(bytes);
        }
        Ok((file, bytes))
    };
    copied().map_err(DataError::io("copy stdin to", folder))
}

/// Opens a file without a name again, at its beginning.
pub(super) fn reopen(copy: &File) -> io::Result<File> {
    let mut file = copy.try_clone()?;
    file.rewind()?;
    Ok(file)
}
