//! Standard input, which is read once, as a file that can be read twice.

use std::io::{self, Read, Write};
use std::path::Path;

use super::super::pieces::PIECE;
use super::DataError;
use crate::disk::File;

/// Copies stdin to a file without a name, which ends with this process; also returns its length.
/// The file is on the disk of `out`, the output folder: that disk needs the room for the tokens
/// anyway, while the system's folder for temporary files may be in memory. `progress` is called with
/// the bytes so far.
pub(super) fn copy(out: &Path, progress: &mut dyn FnMut(u64)) -> Result<(File, u64), DataError> {
    let folder = out.ancestors().find(|folder| folder.is_dir()).unwrap_or(Path::new("."));
    let mut copied = || -> io::Result<(File, u64)> {
        let mut file = tempfile::tempfile_in(folder)?;
        let (mut stdin, mut bytes) = (io::stdin().lock(), 0);
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
