//! Tests of sources: which files they are, and what is read from them.

use std::fs;
use std::io::Write;

use super::super::testing::folder;
use super::sniff::START;
use super::*;

/// Finds the sources of one file or folder.
pub(super) fn sources_of(path: PathBuf, skip_bad_lines: bool) -> Sources {
    let options = PrepareOptions { skip_bad_lines, ..PrepareOptions::default() };
    Sources::find(&[path], &options, Path::new("out"), &mut |_| {}).unwrap()
}

/// Reads the documents of a file or folder.
pub(super) fn documents(input: PathBuf, field: &str) -> Result<Vec<String>, DataError> {
    let options = PrepareOptions { text_field: field.to_owned(), ..PrepareOptions::default() };
    let sources = Sources::find(&[input], &options, Path::new("out"), &mut |_| {})?;
    let (documents, messages, _) = contents(&sources)?;
    assert_eq!(messages, 0, "these files have documents");
    Ok(documents)
}

/// Reads the documents, the number of messages, and the lines that are left out.
pub(super) fn contents(sources: &Sources) -> Result<(Vec<String>, usize, BadLines), DataError> {
    let (mut documents, mut messages, mut current) = (vec![], 0, String::new());
    let bad = sources.read(&mut |part, _| {
        match part {
            DocumentPart::Conversation(of_one) => messages += of_one.len(),
            DocumentPart::Text(text) => {
                assert!(!text.is_empty(), "an empty part");
                current.push_str(text);
            }
            DocumentPart::EndOfDocument => documents.push(std::mem::take(&mut current)),
        }
        Ok(())
    })?;
    assert!(current.is_empty(), "a document without an end");
    Ok((documents, messages, bad))
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// The same three documents in every form that they are published in, under names that do not tell.
#[test]
fn the_content_of_a_file_decides_how_it_is_read() {
    let lines = "{\"text\":\"one\"}\n{\"text\":null}\n{\"text\":\"two\",\"score\":NaN}\n";
    let array = "[\n  {\"text\": \"one\"},\n  {\"text\": null}, {\"text\":\n\"two\"}\n]\n";
    let marked = format!("\u{feff}{lines}");
    let wide: Vec<u8> = "\u{feff}one".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let zst = zstd::encode_all(lines.as_bytes(), 1).unwrap();
    let one_two = &["one", "two"][..];
    for (name, content, expected) in [
        ("a.jsonl", lines.as_bytes(), one_two),
        ("a.json", lines.as_bytes(), one_two),
        ("a.ndjson", marked.as_bytes(), one_two),
        ("a.json.gz", &gzip(lines), one_two),
        ("a", &gzip(array), one_two),
        ("a.txt", &zst, one_two),
        ("a.json", array.as_bytes(), one_two),
        ("a.txt", &wide, &["one"]),
        ("a.txt", b"\xef\xbb\xbfone", &["one"]),
        ("a.txt", b"[one] and {two}", &["[one] and {two}"]),
        ("package.json", b"{\n  \"name\": \"a\"\n}\n", &["{\n  \"name\": \"a\"\n}\n"]),
    ] {
        let folder = folder(&[(name, content)]);
        for input in [folder.path().to_owned(), folder.path().join(name)] {
            assert_eq!(documents(input, "text").unwrap(), expected, "{name} {content:?}");
        }
    }
}

#[test]
fn what_is_not_read_is_named() {
    let wide: Vec<u8> = "one two".encode_utf16().flat_map(u16::to_be_bytes).collect();
    let mut tar = b"a.txt".to_vec();
    tar.resize(257, b'0');
    tar.extend(b"ustar  one two");
    let tar = String::from_utf8(tar).unwrap();
    let pointer: &[u8] = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    for (name, content, problem, hint) in [
        ("a.txt", &b"%PDF-1.4 x"[..], "this is a PDF document", "save its text"),
        ("a.docx", b"PK\x03\x04 word/document.xml", "this is a Word document", "save its text"),
        ("a.txt.bz2", b"BZh91AY&SYx", "this is compressed with bzip2", "unpack it"),
        ("a.txt", &wide, "it looks like UTF-16", "--encoding=utf-16be"),
        ("a.tar", tar.as_bytes(), "this is a tar archive", "unpack it"),
        ("a.tar.gz", &gzip(&tar), "this is a tar archive", "unpack it"),
        ("a.txt", pointer, "a pointer of Git LFS", "git lfs pull"),
        ("a.parquet", pointer, "a pointer of Git LFS", "git lfs pull"),
        ("a.parquet", b"<!DOCTYPE html>", "cannot read", "download it again"),
        ("a.txt", b"ab\0\xffcd", "not text: it has zero bytes", "leave it out"),
        ("a.txt", b"caf\xe9", "not UTF-8 at byte 3", "--encoding latin1"),
        ("a.jsonl", b"{\"text\": \"x\"}\n{\n", "a.jsonl:2: not a JSON object", "fix or remove it"),
        ("a.jsonl", b"{\"body\": \"x\"}\n", "a.jsonl:1: no field", "choose the field"),
        ("a.json", b"[{\"text\":\"x\"},{\"te", "object 2: the list does not end", "cut short"),
        ("a.json", b"[{\"text\":\"x\"},", "object 2: the list does not end", "cut short"),
        (
            "a.json",
            b"{\"body\":\"x\"}\n{\"body\":\"y\"}\n",
            "a.json:1: no field \"text\"; it has body",
            "--text-field",
        ),
    ] {
        let folder = folder(&[(name, content)]);
        let error = documents(folder.path().join(name), "text").unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
        assert!(error.hint().contains(hint), "{}", error.hint());
    }
}

#[test]
fn a_published_data_set_is_read_without_its_readme_and_its_tests() {
    let line = |text: &str| format!("{{\"text\":\"{text}\"}}\n");
    let folder = folder(&[
        ("README.md", "# Stories".to_owned()),
        ("dataset_infos.json", "{\n}".to_owned()),
        ("load.py", "print()".to_owned()),
        ("data/train-00000.jsonl", line("train")),
        ("data/validation-00000.jsonl", line("val")),
        ("test/a.jsonl", line("test")),
    ]);
    let sources = || sources_of(folder.path().to_owned(), false);
    assert_eq!(sources().names(), ["train-00000.jsonl"]);
    let skipped = sources().skipped_files();
    assert!(skipped[0].starts_with("3 files about the data: "), "{skipped:?}");
    assert!(skipped[1].starts_with("2 validation or test files: "), "{skipped:?}");
    // A folder with texts of its own may be a program, or notes.
    fs::create_dir(folder.path().join("notes")).unwrap();
    fs::write(folder.path().join("notes/Test drive.txt"), "a text").unwrap();
    let names = ["train-00000.jsonl", "dataset_infos.json", "load.py", "Test drive.txt"];
    assert_eq!(sources().names(), names);
    // Without one to train with, and without data, nothing is left out.
    fs::remove_file(folder.path().join("data/train-00000.jsonl")).unwrap();
    assert_eq!(sources().len(), 5);
    for name in ["data/validation-00000.jsonl", "test/a.jsonl"] {
        fs::remove_file(folder.path().join(name)).unwrap();
    }
    assert_eq!(sources().len(), 4);
}

/// Settings and messages of programs are text, whatever their keys are called.
#[test]
fn a_program_with_json_stays_text() {
    let folder = folder(&[
        ("a.json", "{\n \"items\": [\n{\"text\":\"a\"},\n{\"text\":\"b\"}\n]\n}\n"),
        ("b.json", "{\"messages\":{\"ok\":\"OK\"}}\n"),
        ("c.json", "{\"text\":{\"colour\":1}}\n"),
        ("d.json", "{ \"path\": \"..\" }\n"),
        ("test/e.py", "print()"),
        ("train.py", "print()"),
    ]);
    let sources = sources_of(folder.path().to_owned(), false);
    assert_eq!(sources.len(), 6);
    assert_eq!(contents(&sources).unwrap().0.len(), 6);
    let named = documents(folder.path().join("d.json"), "text").unwrap();
    assert_eq!(named, ["{ \"path\": \"..\" }\n"]);
}

/// Lists that follow each other, and one that ends too early.
#[test]
fn a_list_is_read_to_the_end_of_its_file() {
    let read = |content: &str| {
        let folder = folder(&[("a.json", content)]);
        documents(folder.path().join("a.json"), "text").map_err(|error| error.to_string())
    };
    let two = "[{\"text\":\"a\"}, ]\n[\n{\"text\":\"b]\\\"\"}]\n";
    assert_eq!(read(two).unwrap(), ["a", "b]\""]);
    for cut in ["[{\"text\":\"a\"},\n", "[{\"text\":\"a\"}", "[{\"text\":\"a\"}, {\"te"] {
        let error = read(cut).unwrap_err();
        assert!(error.contains("a.json:2") || error.contains("does not end"), "{cut}: {error}");
    }
}

#[test]
fn a_folder_is_read_recursively_and_in_order() {
    let two_members = [gzip("{\"text\":\"sec"), gzip("ond\"}\n")].concat();
    let folder = folder(&[
        ("c.txt.zst", &zstd::encode_all(&b"last"[..], 1).unwrap()[..]),
        ("a.txt", b"first"),
        ("b/x.jsonl.gz", &two_members),
        ("b/y.md", b"third"),
        (".git/z.txt", b"not read"),
        ("out/meta.json", b"the output is not read"),
    ]);
    let (input, out) = (folder.path().to_owned(), folder.path().join("out"));
    let inputs = [input.clone()];
    let sources = Sources::find(&inputs, &PrepareOptions::default(), &out, &mut |_| {}).unwrap();
    assert_eq!(sources.names(), ["a.txt", "x.jsonl.gz", "y.md", "c.txt.zst"]);
    fs::remove_dir_all(out).unwrap();
    assert_eq!(documents(input, "text").unwrap(), ["first", "second", "third", "last"]);
}

#[test]
fn a_folder_skips_what_is_not_text() {
    // A character of three bytes across the end of the start.
    let long = format!("{}\u{4e2d}.", "x".repeat(START - 1));
    let folder = folder(&[
        ("a.py", b"print('text')".as_slice()),
        ("b.png", b"\x89PNG\r\n"),
        ("c.bin", b"a\0b"),
        ("d.tgz.gz", &gzip("zero\0")),
        ("e.log", long.as_bytes()),
        ("f.txt", b"half a character \xe4\xb8"),
        ("g.txt", b""),
    ]);
    let at = |name: &str| folder.path().join(name);
    let sources = sources_of(folder.path().to_owned(), false);
    assert_eq!(sources.names(), ["a.py", "e.log", "g.txt"]);
    let not_text =
        ["b.png", "c.bin", "d.tgz.gz", "f.txt"].map(|name| (at(name), SkipReason::NotText));
    assert_eq!(sources.skipped, not_text);
}

/// A clone without Git LFS.
#[test]
fn a_folder_of_pointers_is_no_text() {
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n";
    let folder = folder(&[("a.txt", pointer), ("b.parquet", pointer)]);
    let error = documents(folder.path().to_owned(), "text").unwrap_err();
    assert!(error.to_string().contains("skipped 2 pointers of Git LFS"), "{error}");
    assert!(error.hint().contains("git lfs pull"), "{}", error.hint());
}

#[cfg(unix)]
#[test]
fn links_are_followed_to_files_and_else_skipped_with_the_reason() {
    use std::os::unix::fs::symlink;

    let folder =
        folder(&[("in/a.txt", b"text".as_slice()), ("in/b.bin", b"\0"), ("c.txt", b"more")]);
    let input = folder.path().join("in");
    let at = |name: &str| input.join(name);
    symlink(folder.path().join("c.txt"), at("c.txt")).unwrap();
    symlink(folder.path(), at("d.folder")).unwrap();
    symlink(at("nowhere"), at("e.txt")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("f.socket")).unwrap();
    // It leads to itself.
    symlink(at("g.txt"), at("g.txt")).unwrap();
    let sources = sources_of(input.clone(), false);
    assert_eq!(sources.names(), ["a.txt", "c.txt"]);
    let expected = [
        ("1 file that is not UTF-8 text: ", "b.bin"),
        ("1 link to a missing file: ", "e.txt"),
        ("1 link to a folder: ", "d.folder"),
        ("1 entry that is not a file: ", "f.socket"),
        ("1 file that cannot be opened: ", "g.txt"),
    ];
    let expected = expected.map(|(why, name)| format!("{why}{}", at(name).display()));
    assert_eq!(sources.skipped_files(), expected);
}

#[test]
fn progress_counts_compressed_bytes_up_to_the_total() {
    let text = "some words. ".repeat(50_000);
    let folder = folder(&[("a.txt.gz", &gzip(&text)[..]), ("b.txt", text.as_bytes())]);
    let sources = sources_of(folder.path().to_owned(), false);
    let mut seen = vec![];
    let read = sources.read(&mut |_, bytes| {
        seen.push(bytes);
        Ok(())
    });
    read.unwrap();
    assert!(seen.is_sorted());
    assert_eq!(seen.last(), Some(&sources.bytes()));
}

#[test]
fn errors_name_the_file() {
    let compressed = gzip(&"words ".repeat(1000));
    let half = &compressed[..compressed.len() / 2];
    let folder = folder(&[("a.bin", b"%BIN\xff\0".as_slice()), ("b/half.txt.gz", half)]);
    for (input, expected) in [
        ("a.bin", &["a.bin: this is not text: it has zero bytes"][..]),
        ("none.txt", &["none.txt"]),
        ("b/half.txt.gz", &["cannot decompress", "half.txt.gz"]),
    ] {
        let error = documents(folder.path().join(input), "text").unwrap_err().to_string();
        assert!(expected.iter().all(|part| error.contains(part)), "{input}: {error}");
    }
    fs::remove_dir_all(folder.path().join("b")).unwrap();
    let empty = documents(folder.path().to_owned(), "text").unwrap_err().to_string();
    assert!(
        empty.contains("no text files") && empty.contains("skipped 1 file that is not UTF-8"),
        "{empty}"
    );
}
