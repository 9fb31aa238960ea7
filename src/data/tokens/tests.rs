use super::super::testing::folder;
use super::*;
use proptest::prelude::*;
use std::fs;

fn bytes(ids: &[u16]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn shard(magic: i32, version: i32, tokens: i32, ids: &[u16]) -> Vec<u8> {
    let mut header = vec![0_u8; 1024];
    for (slot, word) in header.chunks_mut(4).zip([magic, version, tokens]) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    header.extend(bytes(ids));
    header
}

/// Opens a split of files with these contents; returns the folder too.
fn split(
    contents: &[Vec<u8>],
    dtype: Option<Dtype>,
) -> (tempfile::TempDir, Result<Split, DataError>) {
    let names = ["part0.bin", "part1.bin", "part2.bin", "part3.bin", "part4.bin"];
    let folder = folder(&names.into_iter().zip(contents).collect::<Vec<_>>());
    let paths = names[..contents.len()].iter().map(|name| folder.path().join(name));
    let split = Split::from_files(paths.collect(), 50_257, dtype);
    (folder, split)
}

fn message(contents: &[Vec<u8>], dtype: Option<Dtype>) -> String {
    split(contents, dtype).1.unwrap_err().to_string()
}

#[test]
fn windows_span_files() {
    let a: Vec<u16> = (0..100).collect();
    let b: Vec<u16> = (100..150).collect();
    let contents = [
        shard(SHARD_MAGIC, 1, 100, &a),
        bytes(&[]),
        bytes(&b),
        // A file may be longer than its header says.
        shard(SHARD_MAGIC, 1, 1, &[150, 9, 9]),
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
        let error = split.window(start, count).unwrap_err();
        assert!(error.to_string().contains("outside a split of"), "{error}");
    }
}

#[test]
fn the_error_names_file_and_position_of_an_unknown_token() {
    let (_folder, split) = split(&[bytes(&[1, 2]), bytes(&[3, 50_256, 50_257])], None);
    let split = split.unwrap();
    assert_eq!(split.window(0, 4).unwrap(), [1, 2, 3, 50_256]);
    let message = split.window(1, 4).unwrap_err().to_string();
    assert!(message.contains("part1.bin: token 50257 at position 2 is outside"), "{message}");
    let memory = Split::from_memory(vec![0, 5, 7], 7);
    assert_eq!(memory.window(0, 2).unwrap(), [0, 5]);
    let message = memory.window(1, 2).unwrap_err().to_string();
    assert!(message.contains("token 7 at position 2"), "{message}");
}

#[test]
fn errors_of_damaged_files_give_both_lengths() {
    let odd = message(&[vec![0; 7]], None);
    assert!(odd.contains("7 bytes") && odd.contains("2-byte"), "{odd}");
    let odd = message(&[vec![0; 6]], Some(Dtype::U32));
    assert!(odd.contains("6 bytes") && odd.contains("4-byte"), "{odd}");
    for expected in [4, -1, i32::MAX] {
        let truncated = message(&[shard(SHARD_MAGIC, 1, expected, &[1, 2, 3])], None);
        let numbers = format!("its header gives {expected} tokens, but the file has 3");
        assert!(truncated.contains(&numbers), "{truncated}");
    }
    let mut header = shard(SHARD_MAGIC, 1, 0, &[]);
    header.truncate(500);
    assert!(message(&[header], None).contains("0 tokens"));
    for (magic, version) in [(SHARD_MAGIC, 2), (20_240_801, 7)] {
        let other = message(&[shard(magic, version, 1, &[1])], None);
        assert!(other.contains(&format!("magic {magic}, version {version}")), "{other}");
    }
}

#[test]
fn truncating_an_open_file_is_an_error() {
    let content = [1_u32, 50_256].iter().flat_map(|id| id.to_le_bytes());
    let (folder, split) = split(&[content.collect()], Some(Dtype::U32));
    let split = split.unwrap();
    assert_eq!(split.window(0, 2).unwrap(), [1, 50_256]);
    fs::write(folder.path().join("part0.bin"), bytes(&[1])).unwrap();
    let message = split.window(0, 2).unwrap_err().to_string();
    assert!(message.contains("part0.bin"), "{message}");
}

#[test]
fn the_fingerprint_covers_length_start_and_end() {
    let mut ids: Vec<u16> = (0..40_000).collect();
    let mut hashes = vec![];
    for change in [None, Some(0), Some(39_999)] {
        if let Some(at) = change {
            ids[at] += 1;
        }
        for ids in [&ids[..], &ids[..39_998]] {
            let (_folder, split) = split(&[bytes(ids)], None);
            let mut hasher = blake3::Hasher::new();
            split.unwrap().fingerprint(&mut hasher).unwrap();
            hashes.push(hasher.finalize().to_hex().to_string());
        }
    }
    // The shorter file does not contain the changed last token.
    assert_eq!(hashes.pop(), hashes.get(3).cloned());
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 5);
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
            bytes(part)
        }).collect();
        let (_folder, split) = split(&contents, None);
        let found = split.unwrap().window(start as u64, count).ok();
        let expected = all.get(start..start + count)
            .map(|ids| ids.iter().copied().map(u32::from).collect::<Vec<_>>());
        prop_assert_eq!(found, expected);
    }
}
