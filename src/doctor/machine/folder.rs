//! Checks that files can be written to a folder.

use std::path::Path;

use crate::disk;
use crate::doctor::Folder;

impl Folder {
    /// Checks a folder by writing a file, which is removed again.
    pub fn check(purpose: &'static str, path: &Path) -> Self {
        let exists = disk::is_dir(path);
        let above = path.ancestors().find(|folder| disk::exists(folder));
        let error = try_write(above.unwrap_or(Path::new("."))).err().map(|error| {
            let text = error.to_string();
            // tempfile adds the name of the file.
            text.split_once(" at path ").map_or(text.clone(), |(reason, _)| reason.to_string())
        });
        Self { purpose, path: path.display().to_string(), exists, error }
    }
}

fn try_write(folder: &Path) -> std::io::Result<()> {
    use std::io::Write;

    if !disk::is_dir(folder) {
        let text = format!("{} is a file", folder.display());
        return Err(std::io::Error::new(std::io::ErrorKind::NotADirectory, text));
    }
    let mut file = tempfile::Builder::new().prefix(".wgpt-doctor").tempfile_in(folder)?;
    // A block, so that a full disk shows.
    file.write_all(&[0; 4096])?;
    // A file system may report only then that it is full.
    file.as_file().sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_checked_without_a_trace() {
        let root = tempfile::tempdir().unwrap();
        let entries = || std::fs::read_dir(root.path()).unwrap().count();
        let here = Folder::check("runs", root.path());
        assert!(here.exists && here.error.is_none(), "{here:?}");
        let new = Folder::check("runs", &root.path().join("ümläut and blank/new"));
        assert!(!new.exists && new.error.is_none(), "{new:?}");
        assert_eq!(entries(), 0);
        let file = root.path().join("file");
        std::fs::write(&file, "").unwrap();
        let below = Folder::check("runs", &file.join("out"));
        assert!(below.error.unwrap().ends_with("is a file"));
    }
}
