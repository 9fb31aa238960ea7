//! The hashes by which the Hub names files.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::Path;

use sha1::Sha1;
use sha2::{Digest, Sha256};

use super::error::cannot;
use crate::disk::File;
use crate::protocol::Failure;

/// The hash of a file, in hexadecimal, by which the Hub and the cache name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Hash {
    Sha256(String),
    /// Git's hash of small files.
    GitBlob(String),
}

impl Hash {
    pub fn hex(&self) -> &str {
        let (Self::Sha256(hex) | Self::GitBlob(hex)) = self;
        hex
    }

    pub fn is_valid(&self) -> bool {
        match self {
            Self::Sha256(hex) => is_hash(hex, 64),
            Self::GitBlob(hex) => is_hash(hex, 40),
        }
    }

    pub fn is_of(&self, path: &Path) -> Result<bool, Failure> {
        let found = self.of_file(path).map_err(cannot("read", path))?;
        Ok(found == self.hex())
    }

    fn of_file(&self, path: &Path) -> io::Result<String> {
        let mut file = File::open(path)?;
        match self {
            Self::Sha256(_) => hex_of(Sha256::new(), &mut file),
            Self::GitBlob(_) => {
                let head = format!("blob {}\0", file.metadata()?.len());
                hex_of(Sha1::new().chain_update(head), &mut file)
            }
        }
    }
}

fn hex_of(mut digest: impl Digest + Write, file: &mut File) -> io::Result<String> {
    io::copy(file, &mut digest)?;
    Ok(digest.finalize().iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    }))
}

/// Returns true for a hash of this many hexadecimal digits.
pub(super) fn is_hash(text: &str, digits: usize) -> bool {
    text.len() == digits && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'))
}
