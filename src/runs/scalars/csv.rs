//! The table `scalars.csv`: a row per step and per evaluation, with empty fields for the values
//! that it does not have.

use std::io::{self, Write};
use std::path::Path;

use super::{Continued, Scalars};
use crate::disk::{self, File};

pub const SCALARS_FILE: &str = "scalars.csv";
const COLUMNS: [&str; 8] =
    ["iter", "loss", "lr", "grad_norm", "tokens_per_s", "vram_bytes", "train_loss", "val_loss"];

/// Opens the table, with its rows up to the point that the run continues from.
pub fn open(folder: &Path, from: Continued) -> io::Result<File> {
    let path = folder.join(SCALARS_FILE);
    let former = if disk::exists(&path) { disk::read_record(&path)? } else { Vec::new() };
    let kept = kept(&String::from_utf8_lossy(&former), from);
    if kept.as_bytes() != former {
        disk::replace(&path, kept.as_bytes())?;
    }
    disk::append_own(&path)
}

pub fn write(table: &mut File, scalars: &Scalars) -> io::Result<()> {
    let value = |column: &&str| {
        let found = scalars.values.iter().find(|(name, _)| name == column);
        found.map_or_else(String::new, |(_, value)| value.to_string())
    };
    let mut row = vec![scalars.iter.to_string()];
    row.extend(COLUMNS[1..].iter().map(value));
    table.write_all(format!("{}\n", row.join(",")).as_bytes())
}

/// Returns the header and the complete rows before the point that the run continues from.
fn kept(table: &str, from: Continued) -> String {
    let is_kept = |line: &&str| {
        let fields: Vec<&str> = line.trim_end().split(',').collect();
        let is_eval = fields.get(1).is_some_and(|loss| loss.is_empty());
        let end = if is_eval { from.next_eval() } else { from.iteration };
        line.ends_with('\n')
            && fields.len() == COLUMNS.len()
            && fields[0].parse().is_ok_and(|iter: u64| iter < end)
    };
    let rows = table.split_inclusive('\n').filter(is_kept);
    let header = format!("{}\n", COLUMNS.join(","));
    std::iter::once(header.as_str()).chain(rows).collect()
}
