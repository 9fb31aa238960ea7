//! Tests that read the logs back, with readers that share no code with the writers.

use std::fs;

use super::*;
use crate::plan::DeviceHealth;
use crate::protocol::Step;

fn step(iter: u64, loss: f64) -> Event {
    Event::Step(Step {
        iter,
        loss,
        lr: 6e-5,
        grad_norm: Some(1.5),
        tokens: 64,
        ms: 2.0,
        tokens_per_s: 32_000.0,
        vram_bytes: iter.is_multiple_of(2).then_some(1 << 33),
        ..Step::default()
    })
}

fn eval(iter: u64, val_loss: f64) -> Event {
    Event::Eval { iter, train_loss: 2.5, val_loss, bits_per_byte: None, hellaswag: None }
}

fn write(folder: &Path, logs: &str, from: Continued, events: &[Event]) {
    let (mut logs, failed) = Logs::open(folder, logs, from);
    assert_eq!(failed, [""; 0]);
    for event in events {
        assert_eq!(logs.append(event), [""; 0]);
    }
}

fn at(iteration: u64, last_eval: u64) -> Continued {
    Continued { iteration, last_eval: Some(last_eval) }
}

const HEADER: &str = "iter,loss,lr,grad_norm,tokens_per_s,vram_bytes,train_loss,val_loss\n";

#[test]
fn a_resumed_table_has_each_iteration_once() {
    let folder = tempfile::tempdir().unwrap();
    let read = || fs::read_to_string(folder.path().join("scalars.csv")).unwrap();
    let pause = Event::Paused { iter: 0 };
    let events = [eval(0, 4.0), step(0, 4.0), pause, step(1, 3.5), eval(2, 3.0), step(2, 3.0)];
    write(folder.path(), "csv", Continued::default(), &events);
    let first = format!(
        "{HEADER}0,,,,,,2.5,4\n0,4,0.00006,1.5,32000,8589934592,,\n1,3.5,0.00006,1.5,32000,,,\n"
    );
    let whole = format!("{first}2,,,,,,2.5,3\n2,3,0.00006,1.5,32000,8589934592,,\n");
    assert_eq!(read(), whole);

    // The checkpoint at 2 was written before its evaluation, which is repeated; the last row of a
    // killed process may be incomplete.
    fs::write(folder.path().join("scalars.csv"), format!("{whole}3,2.9,0.0")).unwrap();
    write(folder.path(), "csv", at(2, 0), &[]);
    assert_eq!(read(), first);
    write(folder.path(), "csv", at(2, 0), &events[4..]);
    assert_eq!(read(), whole);
    // The checkpoint was written after its evaluation, which is not.
    write(folder.path(), "csv", at(2, 2), &events[5..]);
    assert_eq!(read(), whole);
    write(folder.path(), "csv", Continued::default(), &[]);
    assert_eq!(read(), HEADER);
}

/// A field of a protocol buffer: its number, and its integer or bytes.
#[derive(Debug, PartialEq)]
enum Field {
    Int(u64),
    Bytes(Vec<u8>),
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> &'a [u8] {
    bytes.split_off(..length).unwrap()
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..).step_by(7) {
        let byte = take(bytes, 1)[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let value = match key & 7 {
            0 => Field::Int(varint(&mut bytes)),
            1 => Field::Bytes(take(&mut bytes, 8).to_vec()),
            5 => Field::Bytes(take(&mut bytes, 4).to_vec()),
            2 => {
                let length = varint(&mut bytes) as usize;
                Field::Bytes(take(&mut bytes, length).to_vec())
            }
            wire => panic!("wire type {wire}"),
        };
        fields.push((key >> 3, value));
    }
    fields
}

fn message(fields: &[(u64, Field)], number: u64) -> Option<&[u8]> {
    fields.iter().find_map(|(found, value)| match value {
        Field::Bytes(bytes) if *found == number => Some(bytes.as_slice()),
        _ => None,
    })
}

/// The checksum bit by bit, from its definition.
fn checksum(data: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for bit in data.iter().flat_map(|byte| (0..8).map(move |bit| u32::from((byte >> bit) & 1))) {
        let carry = (crc ^ bit) & 1;
        crc = (crc >> 1) ^ (carry * 0x82f6_3b78);
    }
    let crc = !crc;
    let twice = (u64::from(crc) << 32) | u64::from(crc);
    ((twice >> 15) as u32).wrapping_add(0xa282_ead8)
}

fn records(mut file: &[u8]) -> Vec<Vec<(u64, Field)>> {
    let mut records = Vec::new();
    let u32_of = |bytes: &[u8]| u32::from_le_bytes(bytes.try_into().unwrap());
    while !file.is_empty() {
        let length = take(&mut file, 8);
        assert_eq!(u32_of(take(&mut file, 4)), checksum(length));
        let data = take(&mut file, u64::from_le_bytes(length.try_into().unwrap()) as usize);
        assert_eq!(u32_of(take(&mut file, 4)), checksum(data));
        records.push(fields(data));
    }
    records
}

/// Returns the scalars of an event file as `(step, tag, value)`, and the step that it starts at.
fn scalars(file: &[u8]) -> (u64, Vec<(u64, String, f32)>) {
    let records = records(file);
    let step = |record: &[(u64, Field)]| match record[1] {
        (2, Field::Int(step)) => step,
        _ => panic!("no step in {record:?}"),
    };
    assert_eq!(message(&records[0], 3), Some(&b"brain.Event:2"[..]));
    assert_eq!(fields(message(&records[1], 7).unwrap()), [(1, Field::Int(1))]);
    let mut found = Vec::new();
    for record in &records {
        let time = f64::from_le_bytes(message(record, 1).unwrap().try_into().unwrap());
        assert!(time > 1.7e9, "{time}");
        for (_, value) in message(record, 5).map(fields).unwrap_or_default() {
            let Field::Bytes(value) = value else { panic!("{value:?}") };
            let value = fields(&value);
            let tag = String::from_utf8(message(&value, 1).unwrap().to_vec()).unwrap();
            let number = f32::from_le_bytes(message(&value, 2).unwrap().try_into().unwrap());
            found.push((step(record), tag, number));
        }
    }
    (step(&records[1]), found)
}

#[test]
fn tensorboard_files_read_back() {
    let folder = tempfile::tempdir().unwrap();
    // 128 is the first number of two bytes.
    write(folder.path(), "tensorboard", Continued::default(), &[eval(128, 4.0), step(300, 3.5)]);
    write(folder.path(), "tensorboard", at(200, 200), &[step(201, 3.0)]);
    write(folder.path(), "tensorboard", at(200, 100), &[]);
    let mut files: Vec<_> =
        fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let files: Vec<_> = files.iter().map(|path| scalars(&fs::read(path).unwrap())).collect();
    assert_eq!(files.iter().map(|(start, _)| *start).collect::<Vec<_>>(), [0, 201, 200]);
    let first: Vec<_> = files[0].1.iter().map(|(s, tag, v)| (*s, tag.as_str(), *v)).collect();
    assert_eq!(
        first,
        [
            (128, "train_loss", 2.5),
            (128, "val_loss", 4.0),
            (300, "loss", 3.5),
            (300, "lr", 6e-5),
            (300, "grad_norm", 1.5),
            (300, "tokens_per_s", 32_000.0),
            (300, "vram_bytes", 8_589_934_592.0),
        ]
    );
    assert_eq!(files[1].1.len(), 4);
}

#[test]
fn only_known_health_of_the_device_is_logged() {
    let Event::Step(quiet) = step(1, 3.0) else { unreachable!() };
    let hot = DeviceHealth { celsius: Some(71.0), ..DeviceHealth::default() };
    let scalars = |health| Scalars::of(&Event::Step(Step { health, ..quiet.clone() })).unwrap();
    let of_device = |scalars: Scalars| -> Vec<_> {
        scalars.values.into_iter().filter(|(name, _)| name.starts_with("gpu_")).collect()
    };
    assert_eq!(of_device(scalars(None)), []);
    assert_eq!(of_device(scalars(Some(hot))), [("gpu_celsius", 71.0)]);
}

/// A log that cannot be written ends with one warning.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_ends_a_log_with_one_warning() {
    let folder = tempfile::tempdir().unwrap();
    let (mut logs, failed) = Logs::open(folder.path(), "csv", at(0, 0));
    assert_eq!(failed, [""; 0]);
    let full = fs::OpenOptions::new().append(true).open("/dev/full").unwrap();
    logs.open[0].file = full;
    let failed = logs.append(&step(0, 1.0));
    assert!(failed.len() == 1 && failed[0].contains("csv"), "{failed:?}");
    assert_eq!(logs.append(&step(1, 1.0)), [""; 0]);

    let nowhere = folder.path().join("none");
    let (mut logs, failed) = Logs::open(&nowhere, "tensorboard,csv", at(0, 0));
    assert_eq!(failed.len(), 2, "{failed:?}");
    assert_eq!(logs.append(&step(0, 1.0)), [""; 0]);
}
