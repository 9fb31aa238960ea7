//! Tests of sources: which files they are, and what is read from them.

use std::fs;
use std::io::Write;

use super::file::{Compression, Format, START, file_type};
use super::*;

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn extensions_determine_the_file_type() {
    for (name, expected) in [
        ("a.txt", (Format::Text, Compression::None)),
        ("a.rs", (Format::Text, Compression::None)),
        ("LICENSE", (Format::Text, Compression::None)),
        ("a.b.TXT.GZ", (Format::Text, Compression::Gzip)),
        ("a.gz", (Format::Text, Compression::Gzip)),
        ("a.jsonl", (Format::JsonLines, Compression::None)),
        ("a.jsonl.zst", (Format::JsonLines, Compression::Zstd)),
        ("a.parquet", (Format::Parquet, Compression::None)),
        ("a.parquet.gz", (Format::Text, Compression::Gzip)),
        ("parquet", (Format::Text, Compression::None)),
    ] {
        assert_eq!(file_type(Path::new(name)), expected, "{name}");
    }
}

#[test]
fn a_folder_is_read_recursively_and_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for folder in ["b", ".git", "out"] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    fs::write(at("c.txt.zst"), zstd::encode_all(&b"last"[..], 1).unwrap()).unwrap();
    fs::write(at("a.txt"), "first").unwrap();
    let two_members = [gzip("{\"text\":\"sec"), gzip("ond\"}\n")].concat();
    fs::write(at("b/x.jsonl.gz"), two_members).unwrap();
    fs::write(at("b/y.md"), "third").unwrap();
    fs::write(at(".git/z.txt"), "not read").unwrap();
    fs::write(at("out/meta.json"), "the output is not read").unwrap();
    let inputs = [folder.path().to_owned()];
    let sources =
        Sources::find(&inputs, &PrepareOptions::default(), &at("out"), &mut |_| {}).unwrap();
    assert_eq!(sources.names(), ["a.txt", "x.jsonl.gz", "y.md", "c.txt.zst"]);
    fs::remove_dir_all(at("out")).unwrap();
    let found = documents(&inputs, "text").unwrap();
    assert_eq!(found, ["first", "second", "third", "last"]);
}

#[test]
fn a_folder_skips_what_is_not_text() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // A character of three bytes across the end of the start.
    let long = format!("{}\u{4e2d}.", "x".repeat(START as usize - 1));
    for (name, content) in [
        ("a.py", b"print('text')".as_slice()),
        ("b.png", b"\x89PNG\r\n"),
        ("c.bin", b"a\0b"),
        ("d.tgz.gz", &gzip("zero\0")),
        ("e.log", long.as_bytes()),
        ("f.txt", b"half a character \xe4\xb8"),
        ("g.txt", b""),
    ] {
        fs::write(at(name), content).unwrap();
    }
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.path(), at("b.folder")).unwrap();
    let sources = sources_of(folder.path().to_owned(), false);
    assert_eq!(sources.names(), ["a.py", "e.log", "g.txt"]);
    let mut skipped = sources.skipped;
    skipped.retain(|path| !path.ends_with("b.folder"));
    assert_eq!(skipped, ["b.png", "c.bin", "d.tgz.gz", "f.txt"].map(at));
}

#[test]
fn progress_counts_compressed_bytes_up_to_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let text = "some words. ".repeat(50_000);
    fs::write(folder.path().join("a.txt.gz"), gzip(&text)).unwrap();
    fs::write(folder.path().join("b.txt"), &text).unwrap();
    let sources = sources_of(folder.path().to_owned(), false);
    let mut seen = vec![];
    sources
        .read(&mut |_, bytes| {
            seen.push(bytes);
            Ok(())
        })
        .unwrap();
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&sources.bytes()));
}

#[test]
fn errors_name_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.pdf");
    fs::write(&file, b"%PDF\xff\0").unwrap();
    let message = |inputs: &[PathBuf]| documents(inputs, "text").unwrap_err().to_string();
    let binary = message(std::slice::from_ref(&file));
    assert!(binary.contains("a.pdf: not UTF-8 at byte 4"), "{binary}");
    let empty = message(&[folder.path().to_owned()]);
    assert!(empty.contains("no text files") && empty.contains("1 skipped"), "{empty}");
    let missing = message(&[folder.path().join("none.txt")]);
    assert!(missing.contains("none.txt"), "{missing}");

    let mut bytes = gzip(&"words ".repeat(1000));
    bytes.truncate(bytes.len() / 2);
    let file = folder.path().join("half.txt.gz");
    fs::write(&file, bytes).unwrap();
    let half = message(&[file]);
    assert!(half.contains("cannot decompress") && half.contains("half.txt.gz"), "{half}");
}
