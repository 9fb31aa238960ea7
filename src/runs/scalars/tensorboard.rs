//! TensorBoard's event files: records of protocol buffers.
//!
//! The crates that write them are no longer maintained, and a scalar needs only seven fields of the format, so
//! we write them here, after TensorFlow's `event.proto` and `record_writer.h`.

use std::io::{self, Write};
use std::path::Path;

use web_time::{SystemTime, UNIX_EPOCH};

use super::{Continued, Scalars};
use crate::disk::{self, File};

/// TensorBoard reads files with `tfevents` in their names, in the order of their names.
const PREFIX: &str = "events.out.tfevents.";
const VERSION: &str = "brain.Event:2";

/// Creates a new event file. It starts with the point that the run continues from, so that TensorBoard
/// drops what former files have after it.
pub fn create(folder: &Path, from: Continued) -> io::Result<File> {
    let is_log = |name: &std::ffi::OsString| name.to_string_lossy().starts_with(PREFIX);
    let names = disk::read_dir(folder)?.flatten().map(|entry| entry.file_name());
    let former = names.filter(is_log).count();
    // Two processes may start within a second.
    let name = format!("{PREFIX}{:010}.{former:04}.wgpt", now().as_secs());
    let mut file = disk::append_own(folder.join(name))?;
    append(&mut file, 0, ProtoMessage::default().text(3, VERSION))?;
    // Field 7 is a `SessionLog` with the status START. The update at this iteration is made again, with
    // the same result, so the evaluation before it can stay.
    let start = ProtoMessage::default().message(7, ProtoMessage::default().int(1, 1));
    append(&mut file, from.next_eval(), start)?;
    Ok(file)
}

/// Appends an event with a `Summary` (field 5) that has a `Value` (field 1) for each scalar: a tag
/// (field 1) and a `simple_value` (field 2).
pub fn write(file: &mut File, scalars: &Scalars) -> io::Result<()> {
    let mut summary = ProtoMessage::default();
    for (name, value) in &scalars.values {
        summary = summary.message(1, ProtoMessage::default().text(1, name).float(2, *value as f32));
    }
    append(file, scalars.iter, ProtoMessage::default().message(5, summary))
}

/// Appends an event: its `wall_time` (field 1), `step` (field 2) and content.
fn append(file: &mut File, step: u64, content: ProtoMessage) -> io::Result<()> {
    let event = ProtoMessage::default().double(1, now().as_secs_f64()).int(2, step);
    let data = [event.0, content.0].concat();
    let length = (data.len() as u64).to_le_bytes();
    let crc = |bytes: &[u8]| masked(crc32c(bytes)).to_le_bytes();
    file.write_all(&[&length[..], &crc(&length), &data, &crc(&data)].concat())
}

fn now() -> std::time::Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// An encoded protocol buffer. Each method appends a field by its number.
#[derive(Default)]
struct ProtoMessage(Vec<u8>);

impl ProtoMessage {
    fn int(mut self, field: u8, value: u64) -> Self {
        self.0.push(field << 3);
        self.varint(value);
        self
    }

    fn double(mut self, field: u8, value: f64) -> Self {
        self.0.push((field << 3) | 1);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn float(mut self, field: u8, value: f32) -> Self {
        self.0.push((field << 3) | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    fn text(self, field: u8, text: &str) -> Self {
        self.message(field, ProtoMessage(text.as_bytes().to_vec()))
    }

    fn message(mut self, field: u8, message: ProtoMessage) -> Self {
        self.0.push((field << 3) | 2);
        self.varint(message.0.len() as u64);
        self.0.extend(message.0);
        self
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

/// Returns the checksum as records store it: rotated and offset, because checksums of data that
/// contain their own checksum are weak.
fn masked(crc: u32) -> u32 {
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Returns the CRC-32C (Castagnoli). Records are short, so it needs no table.
fn crc32c(data: &[u8]) -> u32 {
    let bit = |crc: u32, _| (crc >> 1) ^ ((crc & 1) * 0x82f6_3b78);
    let step = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), bit);
    !data.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_castagnolis() {
        // The check value of the catalogue of CRC algorithms.
        assert_eq!(super::crc32c(b"123456789"), 0xe306_9283);
    }
}
