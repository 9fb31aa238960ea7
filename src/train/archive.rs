//! A model's folder as one zip file, to be handed from one machine to another.

use std::io::{self, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::TrainError;
use crate::disk::{self, File};

/// Larger files need another form of zip.
const ZIP32_BYTES: u64 = u32::MAX as u64;

/// The most files that a model's folder has.
const MOST_FILES: usize = 64;

/// Writes the files of a folder, not those in folders below.
///
/// # Errors
/// If they cannot be read, or `to` not written.
pub fn pack(folder: &Path, to: impl Write + Seek) -> Result<(), TrainError> {
    let write = || -> io::Result<()> {
        let mut zip = ZipWriter::new(to);
        for entry in disk::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if disk::is_dir(&path) {
                continue;
            }
            let bytes = disk::metadata(&path)?.len();
            // Weights are as good as random: packing them takes time and saves nothing.
            let method = match path.extension().is_some_and(|ending| ending == "safetensors") {
                true => CompressionMethod::Stored,
                false => CompressionMethod::Deflated,
            };
            let options = SimpleFileOptions::default()
                .compression_method(method)
                .large_file(bytes >= ZIP32_BYTES);
            zip.start_file(entry.file_name().to_string_lossy(), options)?;
            io::copy(&mut File::open(&path)?, &mut zip)?;
        }
        zip.finish()?;
        Ok(())
    };
    write().map_err(TrainError::io("pack", folder))
}

/// Reads what [`pack`] wrote, or any zip of a model's folder, into a new folder. In the zip, the
/// files may lie in a folder.
///
/// # Errors
/// If it is no zip, there are too many files in it, or there is no room.
pub fn unpack(from: impl Read + Seek, folder: &Path) -> Result<(), TrainError> {
    let read = || -> io::Result<()> {
        let mut zip = ZipArchive::new(from)?;
        if zip.len() > MOST_FILES {
            return Err(io::Error::other("too many files for a model's folder"));
        }
        disk::create_dir_all(folder)?;
        for index in 0..zip.len() {
            let mut file = zip.by_index(index)?;
            // Whatever folders it names, it goes into this one.
            let name = file.enclosed_name().and_then(|path| Some(path.file_name()?.to_owned()));
            let Some(name) = name.filter(|_| file.is_file()) else { continue };
            let mut to = File::create(folder.join(name))?;
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
    fn a_folder_comes_out_as_it_went_in() {
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
        assert!(unpack(Cursor::new(b"no zip"), &to).is_err());
    }

    #[test]
    fn names_in_a_zip_lead_nowhere_else() {
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
}
