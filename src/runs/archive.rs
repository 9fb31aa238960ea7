//! A model folder as one zip file.

use std::io::{self, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::TrainError;
use crate::disk;

/// The largest file of a plain zip; larger ones need zip64.
const ZIP32_BYTES: u64 = u32::MAX as u64;

const MOST_FILES: usize = 64;

/// Writes the files of a folder to a zip, without its subfolders.
pub fn pack(folder: &Path, to: impl Write + Seek) -> Result<(), TrainError> {
    let write = || -> io::Result<()> {
        let mut zip = ZipWriter::new(to);
        for entry in disk::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if disk::is_dir(&path) {
                continue;
            }
            let mut file = disk::open_regular(&path)?;
            let bytes = file.metadata()?.len();
            // Weights do not compress.
            let method = if path.extension().is_some_and(|ending| ending == "safetensors") {
                CompressionMethod::Stored
            } else {
                CompressionMethod::Deflated
            };
            let options = SimpleFileOptions::default()
                .compression_method(method)
                .large_file(bytes >= ZIP32_BYTES);
            zip.start_file(entry.file_name().to_string_lossy(), options)?;
            io::copy(&mut file, &mut zip)?;
        }
        zip.finish()?;
        Ok(())
    };
    write().map_err(TrainError::io("pack", folder))
}

/// Extracts a zip of [`pack`], or any other zip of a model folder, into `folder`. The files may be
/// in a folder of the zip.
pub fn unpack(from: impl Read + Seek, folder: &Path) -> Result<(), TrainError> {
    let read = || -> io::Result<()> {
        let mut zip = ZipArchive::new(from)?;
        if zip.len() > MOST_FILES {
            return Err(io::Error::other("too many files for a model folder"));
        }
        disk::create_dir_all(folder)?;
        for index in 0..zip.len() {
            let mut file = zip.by_index(index)?;
            // Folders in the name are dropped: a zip must not write outside `folder`.
            let name = file.enclosed_name().and_then(|path| Some(path.file_name()?.to_owned()));
            let Some(name) = name.filter(|_| file.is_file()) else { continue };
            let mut to = disk::create_own(folder.join(name))?;
            io::copy(&mut file, &mut to)?;
            to.sync_all()?;
        }
        Ok(())
    };
    read().map_err(TrainError::io("unpack into", folder))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_folder_is_unpacked_as_it_was_packed() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::create_dir_all(from.join("below")).unwrap();
        std::fs::write(from.join("model.safetensors"), vec![7; 100_000]).unwrap();
        std::fs::write(from.join("state.json"), "{}".repeat(1000)).unwrap();
        let mut zip = Cursor::new(Vec::new());
        pack(&from, &mut zip).unwrap();
        unpack(zip, &to).unwrap();
        for name in ["model.safetensors", "state.json"] {
            let [before, after] =
                [&from, &to].map(|folder| std::fs::read(folder.join(name)).unwrap());
            assert!(before == after, "{name}");
        }
        assert_eq!(std::fs::read_dir(&to).unwrap().count(), 2);
        assert!(unpack(Cursor::new(b"not a zip"), &to).is_err());
    }

    #[test]
    fn a_zip_writes_into_its_folder_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for name in ["../above.txt", "gpt2/config.json"] {
            zip.start_file(name, SimpleFileOptions::default()).unwrap();
            zip.write_all(b"x").unwrap();
        }
        let to = folder.path().join("in");
        unpack(zip.finish().unwrap(), &to).unwrap();
        assert!(to.join("config.json").exists());
        assert!(!folder.path().join("above.txt").exists());
    }

    #[test]
    fn a_zip_of_too_many_files_is_refused() {
        for (files, is_unpacked) in [(MOST_FILES, true), (MOST_FILES + 1, false)] {
            let folder = tempfile::tempdir().unwrap();
            let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
            for file in 0..files {
                zip.start_file(format!("{file}.txt"), SimpleFileOptions::default()).unwrap();
            }
            let to = folder.path().join("in");
            let unpacked = unpack(zip.finish().unwrap(), &to);
            assert_eq!((unpacked.is_ok(), to.exists()), (is_unpacked, is_unpacked), "{files}");
        }
    }
}
