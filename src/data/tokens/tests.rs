use super::super::testing::{assert_says, bytes, folder, shard};
use super::*;
use proptest::prelude::*;
use std::fs;

/// Opens a split of files with these contents; returns the folder too.
fn split(
    contents: &[Vec<u8>],
    dtype: Option<TokenDtype>,
) -> (tempfile::TempDir, Result<Split, DataError>) {
    let names = ["part0.bin", "part1.bin", "part2.bin", "part3.bin", "part4.bin"];
    let folder = folder(&names.into_iter().zip(contents).collect::<Vec<_>>());
    let paths = names[..contents.len()].iter().map(|name| folder.path().join(name));
    let split = Split::from_files(paths.collect(), 50_257, dtype);
    (folder, split)
}

#[test]
fn windows_span_files() {
    let contents = [
        shard([SHARD_MAGIC, 1, 100], 0..100),
        bytes([]),
        bytes(100..150),
        // A file may be longer than its header says.
        shard([SHARD_MAGIC, 1, 1], [150, 9, 9]),
    ];
    let (_folder, split) = split(&contents, None);
    let split = split.unwrap();
    assert_eq!(split.len(), 151);
    let all: Vec<u32> = (0..151).collect();
    assert_eq!(split.window(0, 151).unwrap(), all);
    assert_eq!(split.window(98, 4).unwrap(), [98, 99, 100, 101]);
    assert_eq!(split.window(149, 2).unwrap(), [149, 150]);
    assert!(split.window(151, 0).unwrap().is_empty());
    for (start, count) in [(151, 1), (0, 152), (u64::MAX, 2)] {
        assert_says(split.window(start, count).unwrap_err(), "outside a split of");
    }
}

#[test]
fn the_error_names_file_and_position_of_an_unknown_token() {
    let (_folder, split) = split(&[bytes([1, 2]), bytes([3, 50_256, 50_257])], None);
    let split = split.unwrap();
    assert_eq!(split.window(0, 4).unwrap(), [1, 2, 3, 50_256]);
    assert_says(split.window(1, 4).unwrap_err(), "part1.bin: token 50257 at position 2 is outside");
    let memory = Split::from_memory(vec![0, 5, 7], 7);
    assert_eq!(memory.window(0, 2).unwrap(), [0, 5]);
    assert_says(memory.window(1, 2).unwrap_err(), "token 7 at position 2");
}

#[test]
fn errors_of_damaged_files_give_both_lengths() {
    let mut short = shard([SHARD_MAGIC, 1, 0], []);
    short.truncate(500);
    let ids = [1, 2, 3];
    for (content, dtype, expected) in [
        (vec![0; 7], None, "7 bytes are not a whole number of 2-byte"),
        (vec![0; 6], Some(TokenDtype::U32), "6 bytes are not a whole number of 4-byte"),
        (shard([SHARD_MAGIC, 1, 4], ids), None, "its header says 4 tokens, but the file has 3"),
        (shard([SHARD_MAGIC, 1, -1], ids), None, "its header says -1 tokens, but the file has 3"),
        (short, None, "0 tokens"),
        (shard([SHARD_MAGIC, 2, 1], ids), None, "magic 20240520, version 2"),
        (shard([20_240_801, 7, 1], ids), None, "magic 20240801, version 7"),
    ] {
        let (_folder, split) = split(&[content], dtype);
        assert_says(split.unwrap_err(), expected);
    }
}

#[test]
fn truncating_an_open_file_is_an_error() {
    let content = [1_u32, 50_256].iter().flat_map(|id| id.to_le_bytes());
    let (folder, split) = split(&[content.collect()], Some(TokenDtype::U32));
    let split = split.unwrap();
    assert_eq!(split.window(0, 2).unwrap(), [1, 50_256]);
    fs::write(folder.path().join("part0.bin"), bytes([1])).unwrap();
    assert_says(split.window(0, 2).unwrap_err(), "part0.bin");
}

#[test]
fn the_fingerprint_covers_length_start_and_end() {
    let fingerprint = |length, changed: Option<usize>| {
        let mut ids: Vec<u16> = (0..length).collect();
        changed.into_iter().for_each(|at| ids[at] += 1);
        let (_folder, split) = split(&[bytes(ids)], None);
        let mut hasher = blake3::Hasher::new();
        split.unwrap().fingerprint(&mut hasher).unwrap();
        hasher.finalize()
    };
    let same = fingerprint(40_000, None);
    assert_eq!(fingerprint(40_000, None), same);
    for (length, changed) in [(39_998, None), (40_000, Some(0)), (40_000, Some(39_999))] {
        assert_ne!(fingerprint(length, changed), same, "{length} {changed:?}");
    }
}

proptest! {
    #[test]
    fn windows_equal_slices(
        lengths in proptest::collection::vec(0_usize..20, 1..6),
        start in 0_usize..100, count in 0_usize..100,
    ) {
        let total: usize = lengths.iter().sum();
        let all: Vec<u16> = (0..total as u16).collect();
        let mut rest = &all[..];
        let contents: Vec<_> = lengths.iter().map(|&length| {
            let (part, after) = rest.split_at(length);
            rest = after;
            bytes(part.iter().copied())
        }).collect();
        let (_folder, split) = split(&contents, None);
        let found = split.unwrap().window(start as u64, count).ok();
        let expected = all.get(start..start + count)
            .map(|ids| ids.iter().copied().map(u32::from).collect::<Vec<_>>());
        prop_assert_eq!(found, expected);
    }
}
