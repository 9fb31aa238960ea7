use super::super::testing::{assert_says, folder};
use super::super::{Dataset, Message, Role, TOKENIZER_FILE, TextTokenizer, TokenizerKind};
use super::*;
use TokenizerChoice::Byte;
use std::fs;

fn read_tokens(folder: &Path, name: &str) -> Vec<u32> {
    let bytes = fs::read(folder.join(name)).unwrap();
    let (pairs, rest) = bytes.as_chunks();
    assert!(rest.is_empty());
    pairs.iter().map(|&p| u16::from_le_bytes(p).into()).collect()
}

struct Outcome {
    folder: tempfile::TempDir,
    out: PathBuf,
    meta: Meta,
    warnings: Vec<String>,
    train: Vec<u32>,
    val: Vec<u32>,
}

/// Runs `prepare` on a folder of these files.
fn run(files: &[(&str, &str)], options: &PrepareOptions) -> Result<Outcome, DataError> {
    let inputs: Vec<_> = files.iter().map(|(name, text)| (format!("in/{name}"), text)).collect();
    let folder = folder(&inputs);
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let Prepared { meta, warnings, .. } = prepare(&[input], &out, options, &mut |_| {})?;
    let [train, val] = ["train.bin", "val.bin"].map(|name| read_tokens(&out, name));
    Ok(Outcome { folder, out, meta, warnings, train, val })
}

fn run_on(name: &str, text: &str, tokenizer: TokenizerChoice) -> Outcome {
    run(&[(name, text)], &options(tokenizer)).unwrap()
}

fn options(tokenizer: TokenizerChoice) -> PrepareOptions {
    PrepareOptions { tokenizer, ..PrepareOptions::default() }
}

/// Returns documents of different lengths as JSON lines.
fn json_lines(documents: u32) -> String {
    (0..documents)
        .map(|n| format!("{{\"text\":\"document {n} {}\"}}\n", "x".repeat(n as usize % 7)))
        .collect()
}

#[test]
fn one_document_is_split_at_nine_tenths_of_its_characters() {
    // 1,115,394 characters, as many as tiny Shakespeare has, some of two bytes.
    let line = "h\u{e9} said: to be, or not?\n";
    let text: String = line.chars().cycle().take(1_115_394).collect();
    let prepared = run_on("a.txt", &text, TokenizerChoice::Char);
    assert_eq!((prepared.train.len(), prepared.val.len()), (1_003_854, 111_540));
    assert_eq!((prepared.meta.train_tokens, prepared.meta.val_tokens), (1_003_854, 111_540));
    let tokenizer = &prepared.meta.tokenizer;
    let joined = [prepared.train, prepared.val].concat();
    assert!(tokenizer.decode(&joined) == text, "the splits decode to the text");
    let TextTokenizer::Char(vocab) = tokenizer.base() else { panic!("not a character vocabulary") };
    assert!(vocab.chars.is_sorted(), "sorted by code point");
}

#[test]
fn a_document_is_split_before_it_is_tokenized() {
    let text = "one two three four ".repeat(40_000);
    let prepared = run_on("a.txt", &text, TokenizerChoice::Gpt2);
    let (train, val) = text.split_at(text.len() / 10 * 9);
    assert_eq!(prepared.train, Tokenizer::GPT2.encode(train).unwrap());
    let mut val = Tokenizer::GPT2.encode(val).unwrap();
    val.push(50_256);
    assert_eq!(prepared.val, val, "the document ends once, in val");
}

/// Two equal books, neither of them small enough for validation, and a long file next to a single line.
#[test]
fn only_the_document_at_the_split_is_cut() {
    let [a, b] = ["a", "b"].map(|c| c.repeat(1_000));
    let prepared = run(&[("a.txt", &a), ("b.txt", &b)], &options(TokenizerChoice::Byte)).unwrap();
    let end = "<|endoftext|>";
    let text = |ids: &[u32]| Tokenizer::BYTE.decode(ids);
    let train = format!("{a}{end}{}", &b[..800]);
    let val = format!("{}{end}", &b[800..]);
    assert_eq!((text(&prepared.train), text(&prepared.val)), (train, val));
    assert_eq!(prepared.meta.documents, 2);

    let line = "short\n";
    for files in [[("a.txt", line), ("b.txt", &a[..])], [("a.txt", &a[..]), ("b.txt", line)]] {
        let prepared = run(&files, &options(TokenizerChoice::Char)).unwrap();
        // A line break ends the long file.
        assert_eq!((prepared.train.len(), prepared.val.len()), (905, 102));
        assert_eq!(prepared.warnings, [""; 0]);
    }
}

/// A model learns from each end of a document where text ends.
#[test]
fn documents_end_where_they_end() {
    let lines =
        |n| (0..n).map(|n| format!("{{\"text\":\"Story {n}. THE END.\"}}\n")).collect::<String>();
    for documents in [2, 5, 10, 40, 99] {
        let prepared = run_on("s.jsonl", &lines(documents), TokenizerChoice::Byte);
        let ends = [&prepared.train, &prepared.val].map(|ids| {
            let text = Tokenizer::BYTE.decode(ids);
            let cut = text.split("<|endoftext|>").filter(|d| !d.is_empty() && !d.ends_with("END."));
            (ids.iter().filter(|&&id| id == 256).count(), cut.count())
        });
        // Half of two documents would be too many for val, so it gets the end of the second.
        let expected = match documents {
            2 => [(1, 1), (1, 0)],
            n => {
                let val = (n as f64 / 10.0).round().max(1.0) as usize;
                [(n - val, 0), (val, 0)]
            }
        };
        assert_eq!(ends, expected, "{documents}");
    }
}

/// Without a token for it, a line break ends a document.
#[test]
fn characters_have_line_breaks_between_documents() {
    let names: String = ["emma", "olivia\\n", "ava"]
        .iter()
        .cycle()
        .take(30)
        .map(|name| format!("{{\"text\":\"{name}\"}}\n"))
        .collect();
    let prepared = run_on("names.jsonl", &names, TokenizerChoice::Char);
    let text = [&prepared.train, &prepared.val].map(|ids| prepared.meta.tokenizer.decode(ids));
    let mut lines: Vec<_> = text.iter().flat_map(|text| text.lines()).collect();
    assert!(text.iter().all(|text| text.ends_with('\n')), "{text:?}");
    lines.sort();
    assert_eq!(lines.len(), 30);
    lines.dedup();
    assert_eq!(lines, ["ava", "emma", "olivia"]);
    // One text has none that it lacks.
    assert_eq!(run_on("a.txt", &"emma".repeat(9), TokenizerChoice::Char).meta.vocab_size, 3);
}

#[test]
fn many_documents_are_split_by_document() {
    for documents in [100, 400, 3_000] {
        let prepared = run_on("a.jsonl", &json_lines(documents), TokenizerChoice::Byte);
        assert_eq!(prepared.meta.documents, u64::from(documents));
        let count = |ids: &[u32]| ids.iter().filter(|&&id| id == 256).count();
        let (train, val) = (count(&prepared.train), count(&prepared.val));
        assert_eq!(train + val, documents as usize);
        // Exact below 1,000; above, five standard deviations of a binomial.
        let expected = (documents as usize).div_ceil(10);
        let slack = if documents < 1_000 { 0 } else { 85 };
        assert!(val.abs_diff(expected) <= slack, "{val} of {documents} in val");
        for ids in [&prepared.train, &prepared.val] {
            assert_eq!(ids.last(), Some(&256));
            for document in Tokenizer::BYTE.decode(ids).split_terminator("<|endoftext|>") {
                assert!(document.starts_with("document "), "{document:?}");
            }
        }
    }
}

/// One document is most of the text: either split could get all of it.
#[test]
fn a_document_that_outweighs_the_others_is_split() {
    let long = format!("{{\"text\":\"{}\"}}\n", "x".repeat(200_000));
    let lines = format!("{}{long}{}", json_lines(60), json_lines(60));
    let prepared = run_on("a.jsonl", &lines, TokenizerChoice::Byte);
    let share = prepared.val.len() as f64 / (prepared.val.len() + prepared.train.len()) as f64;
    assert!((0.09..0.11).contains(&share), "{share}");
    assert_eq!(prepared.warnings, [""; 0]);

    let lines = format!("{long}{}", json_lines(1_500));
    let prepared = run_on("a.jsonl", &lines, TokenizerChoice::Byte);
    let [warning] = &prepared.warnings[..] else { panic!("{:?}", prepared.warnings) };
    assert!(warning.contains("instead of 10.0%"), "{warning}");
}

#[test]
fn skipped_files_are_named() {
    let names: Vec<String> = (1..=5).map(|n| format!("{n}.bin")).collect();
    let mut files = vec![("a.py", "print('some text')\n")];
    files.extend(names.iter().map(|name| (name.as_str(), "\0")));
    let warnings =
        |files: &[(&str, &str)]| run(files, &options(TokenizerChoice::Byte)).unwrap().warnings;
    let all = warnings(&files).remove(0);
    assert!(all.starts_with("skipped 5 files that are not UTF-8 text: "), "{all}");
    assert!(all.contains("3.bin, and 2 more") && !all.contains("4.bin"), "{all}");
    let one = warnings(&files[..2]).remove(0);
    assert!(one.contains("1 file") && one.ends_with("1.bin"), "{one}");
    assert_eq!(warnings(&files[..1]), [""; 0]);
}

#[test]
fn the_split_depends_on_the_seed() {
    let lines = json_lines(150);
    let hashes = |seed| {
        let options = PrepareOptions { seed, ..options(TokenizerChoice::Gpt2) };
        let meta = run(&[("a.jsonl", &lines)], &options).unwrap().meta;
        (meta.train_blake3, meta.val_blake3)
    };
    assert_eq!(hashes(1), hashes(1));
    assert_ne!(hashes(1), hashes(2));
}

#[test]
fn meta_json_describes_the_folder() {
    let files = [("b.txt", "second document"), ("a.txt", "first")];
    let prepared = run(&files, &options(TokenizerChoice::Byte)).unwrap();
    let out = prepared.out;
    let meta = Meta::load(&out.join("meta.json")).unwrap();
    assert_eq!(meta, prepared.meta);
    assert_eq!(meta.sources, ["a.txt", "b.txt"]);
    assert_eq!((meta.vocab_size, meta.dtype), (257, TokenDtype::U16));
    let train = fs::read(out.join("train.bin")).unwrap();
    assert_eq!(meta.train_blake3, blake3::hash(&train).to_hex().as_str());
    assert_eq!(fs::read_dir(&out).unwrap().count(), 3, "no temporary files are left");
}

#[test]
fn progress_ends_at_the_total() {
    let folder = folder(&[("a.txt", "some words here. ".repeat(100_000))]);
    let (input, out) = (folder.path().join("a.txt"), folder.path().join("out"));
    let mut seen = vec![];
    let options = options(TokenizerChoice::Byte);
    let meta = prepare(&[input], &out, &options, &mut |progress| seen.push(progress)).unwrap().meta;
    let last = seen.last().unwrap();
    assert_eq!(last.phase, Phase::Done);
    assert_eq!((last.bytes_read, last.documents), (last.bytes_total, 1));
    assert_eq!(last.tokens, meta.train_tokens + meta.val_tokens);
    for phase in [Phase::Survey, Phase::Tokenize] {
        let of_phase = || seen.iter().filter(move |p| p.phase == phase);
        assert!(of_phase().count() >= 5, "{phase:?}");
        assert!(of_phase().is_sorted_by_key(|p| p.bytes_read));
    }
    assert!(seen.is_sorted_by_key(|p| p.tokens));
}

#[test]
fn an_error_leaves_the_old_data_unchanged() {
    let folder = folder(&[("a.txt", b"good text".as_slice()), ("b.txt", b"fine until here\xff")]);
    let [good, bad, out] = ["a.txt", "b.txt", "out"].map(|name| [folder.path().join(name)]);
    let out = &out[0];
    let mut options = options(TokenizerChoice::Byte);
    let meta = prepare(&good, out, &options, &mut |_| {}).unwrap().meta;

    assert_says(prepare(&good, out, &options, &mut |_| {}).unwrap_err().hint(), "--force");
    options.force = true;
    assert_says(prepare(&bad, out, &options, &mut |_| {}).unwrap_err(), "not UTF-8 at byte");
    assert_eq!(Meta::load(&out.join("meta.json")).unwrap(), meta);
    assert_eq!(fs::read_dir(out).unwrap().count(), 3);
    prepare(&good, out, &options, &mut |_| {}).unwrap();
}

#[test]
fn input_that_cannot_be_split_is_an_error() {
    let message = |text: &str, options: &PrepareOptions| {
        run(&[("a.txt", text)], options).err().expect("an error").to_string()
    };
    let char = options(TokenizerChoice::Char);
    assert!(message("", &char).contains("no text"));
    assert!(message("<|endoftext|>\n", &char).contains("no text"));
    assert_says(message("x", &char), "train split would be empty");
    for value in [0.0, 1.0, -0.1, f64::NAN] {
        let options = PrepareOptions { val_fraction: value, ..char.clone() };
        assert!(message("text", &options).contains("val_fraction"));
    }
}

/// Byte pairs are trained on all of the text, and the folder opens with them.
#[test]
fn a_tokenizer_is_trained_on_the_text() {
    let story = "The fox looked at the moon. The moon looked back at the fox.\n".repeat(300);
    let prepared = run_on("a.txt", &story, TokenizerChoice::Trained(270));
    assert_eq!(prepared.meta.vocab_size, 270);
    assert_eq!(prepared.warnings, [""; 0]);
    let tokenizer = &prepared.meta.tokenizer;
    let text = tokenizer.decode(&[prepared.train, prepared.val].concat());
    assert_eq!(text, format!("{story}<|endoftext|>"));
    // The file of the folder makes the same tokens of another text.
    let file = prepared.out.join("tokenizer.json");
    for path in [file.clone(), prepared.out.clone()] {
        let same = run_on("b.txt", &story[..9000], TokenizerChoice::File(path));
        assert_eq!(same.meta.tokenizer, *tokenizer);
        let text = tokenizer.decode(&[same.train, same.val].concat());
        assert_eq!(text, format!("{}<|endoftext|>", &story[..9000]));
    }
    assert_eq!(Meta::load(&prepared.out.join("meta.json")).unwrap().tokenizer, *tokenizer);
    // More tokens than the text has pairs.
    let few = run_on("a.txt", &story, TokenizerChoice::Trained(5000));
    assert!(few.meta.vocab_size < 400, "{}", few.meta.vocab_size);
    assert!(few.warnings[0].contains("instead of 5000"), "{:?}", few.warnings);

    // Other data in its place has no such file.
    let again = PrepareOptions { force: true, ..options(TokenizerChoice::Gpt2) };
    let input = prepared.folder.path().join("in");
    prepare(&[input], &prepared.out, &again, &mut |_| {}).unwrap();
    assert!(!file.exists() && prepared.out.join("meta.json").exists());

    fs::write(&file, "{}").unwrap();
    let error = run(&[("a.txt", &story)], &options(TokenizerChoice::File(file))).err().unwrap();
    assert!(error.to_string().starts_with("cannot use "), "{error}");
}

/// Returns conversations as JSON lines, and their messages.
fn conversations(count: usize) -> (String, Vec<Vec<Message>>) {
    let messages = |n: usize| {
        // The third one is longer than a piece of text.
        let question = format!("How much is {n}?").repeat(if n == 2 { 30_000 } else { 1 });
        vec![
            Message::new(Role::User, question),
            Message::new(Role::Assistant, format!("<|end|> It is {n}.")),
        ]
    };
    let all: Vec<_> = (0..count).map(messages).collect();
    let line = |messages: &Vec<Message>| format!("{}\n", serde_json::json!({"messages": messages}));
    (all.iter().map(line).collect(), all)
}

#[test]
fn conversations_are_whole_in_one_split() {
    let (text, all) = conversations(40);
    for choice in [
        TokenizerChoice::Byte,
        TokenizerChoice::Char,
        TokenizerChoice::Gpt2,
        TokenizerChoice::Trained(300),
    ] {
        let prepared = run(&[("chats.jsonl", &text)], &options(choice.clone())).unwrap();
        let template = prepared.meta.tokenizer.chat().unwrap();
        let split = |tokens: &[u32]| -> Vec<Vec<u32>> {
            let parts = tokens.chunk_by(|_, id| *id != template.begin);
            parts.map(<[u32]>::to_vec).collect()
        };
        let (train, val) = (split(&prepared.train), split(&prepared.val));
        assert_eq!((train.len(), val.len()), (36, 4));
        let counts = prepared.meta.conversations.unwrap();
        assert_eq!((counts.train, counts.val), (36, 4));
        let longest = train.iter().chain(&val).map(Vec::len).max().unwrap();
        assert_eq!(counts.longest, longest as u64);
        let mut found = [train, val].concat();
        let expected = all.iter().map(|messages| template.conversation(messages).unwrap());
        let mut expected: Vec<_> = expected.collect();
        found.sort();
        expected.sort();
        assert!(found == expected, "{choice:?}");
        assert!(prepared.out.join(TOKENIZER_FILE).exists());
        let dataset = Dataset::open(prepared.out.to_str().unwrap(), 64).unwrap();
        assert_eq!(dataset.val.windows(64).packing().unwrap().conversations, 4);
    }
}

#[test]
fn one_conversation_cannot_be_split() {
    let (text, _) = conversations(1);
    let error = run(&[("a.jsonl", &text)], &options(TokenizerChoice::Byte)).err().unwrap();
    assert!(error.to_string().starts_with("the val split"), "{error}");
}

#[test]
fn the_size_of_the_text_chooses_the_tokenizer() {
    let chosen = |files: &[(&str, &str)]| {
        let inputs: Vec<_> =
            files.iter().map(|(name, text)| (format!("in/{name}"), text)).collect();
        let folder = folder(&inputs);
        let (input, out) = (folder.path().join("in"), folder.path().join("out"));
        let prepared = prepare(&[input], &out, &PrepareOptions::default(), &mut |_| {}).unwrap();
        let (choice, _) = prepared.chosen.unwrap();
        (choice, prepared.meta.tokenizer.base().kind(), prepared.files, prepared.text_bytes)
    };
    let story = "The f\u{e9}x looked at the moon.\n".repeat(20);
    let bytes = story.len() as u64;
    let files = [("a.txt", &*story), ("b.txt", &*story)];
    assert_eq!(chosen(&files), (TokenizerChoice::Char, TokenizerKind::Char, 2, 2 * bytes));
    let (text, all) = conversations(3);
    let contents = all.iter().flatten().map(|message| message.content.len() as u64).sum();
    let of_chats = (TokenizerChoice::Gpt2, TokenizerKind::Gpt2, 1, contents);
    assert_eq!(chosen(&[("chats.jsonl", &text)]), of_chats);

    let choice = TokenizerChoice::for_text;
    assert_eq!(choice((5 << 20) - 1), TokenizerChoice::Char);
    assert_eq!(choice(5 << 20), TokenizerChoice::Trained(8192));
    assert_eq!(choice((256 << 20) - 1), TokenizerChoice::Trained(8192));
    assert_eq!(choice(256 << 20), TokenizerChoice::Gpt2);
    for known in ["gpt2", "char", "byte", "bpe:8192", "a/tokenizer.json"] {
        assert_eq!(known.parse::<TokenizerChoice>().unwrap().to_string(), known);
    }
    let given = prepare_bytes(b"some text, any text", PrepareOptions::default(), Byte).unwrap();
    assert_eq!((given.chosen, given.text_bytes), (None, 19));
}

/// Prepares one plain text.
fn prepare_bytes(
    text: &[u8],
    options: PrepareOptions,
    tokenizer: TokenizerChoice,
) -> Result<Prepared, DataError> {
    let folder = folder(&[("a.txt", text)]);
    let options = PrepareOptions { tokenizer, ..options };
    prepare(&[folder.path().join("a.txt")], &folder.path().join("out"), &options, &mut |_| {})
}

#[test]
fn plain_text_has_the_encoding_that_is_given() {
    let text = "caf\u{e9} na\u{ef}ve ".repeat(40_000);
    let latin: Vec<u8> = text.chars().map(|character| character as u8).collect();
    let mut wide: Vec<u8> = vec![0xff, 0xfe];
    wide.extend(text.encode_utf16().flat_map(u16::to_le_bytes));
    let with = |label: &str| PrepareOptions {
        encoding: label.parse().unwrap(),
        ..PrepareOptions::default()
    };
    let meta = |bytes: &[u8], label| prepare_bytes(bytes, with(label), Byte).unwrap().meta;
    let expected = meta(text.as_bytes(), "utf-8");
    assert_eq!(meta(&latin, "latin1"), expected);
    assert_eq!(meta(&wide, "utf-16le"), expected);
    // The mark tells that it is UTF-16 all the same.
    assert_eq!(meta(&wide, "latin1"), expected);

    let error = prepare_bytes(&latin, with("utf-8"), Byte).unwrap_err();
    assert_says(&error, "a.txt: not UTF-8 at byte 3");
    assert_says(error.hint(), "--encoding latin1");
    let error = prepare_bytes(b"ab\xff\xff", with("shift_jis"), Byte).unwrap_err();
    assert_says(&error, "a.txt: not Shift_JIS at byte 2");

    let lines = folder(&[("a.jsonl", json_lines(5)), ("b.txt", "caf".into())]);
    let at = |name: &str| lines.path().join(name);
    let run = |inputs: &[PathBuf]| {
        let options = PrepareOptions { force: true, tokenizer: Byte, ..with("latin1") };
        prepare(inputs, &at("out"), &options, &mut |_| {})
    };
    assert_says(run(&[at("a.jsonl")]).unwrap_err(), "--encoding is for plain text");
    run(&[at("a.jsonl"), at("b.txt")]).unwrap();
}

#[test]
fn a_request_to_stop_leaves_nothing() {
    let text = "some words here. ".repeat(200_000);
    let folder = folder(&[("a.txt", &text)]);
    let (input, out) = (folder.path().join("a.txt"), folder.path().join("new/out"));
    for phase in [Phase::Survey, Phase::Tokenize] {
        let options = options(TokenizerChoice::Byte);
        let stop = options.stop.clone();
        let mut answers = Vec::new();
        let stopped = prepare(std::slice::from_ref(&input), &out, &options, &mut |progress| {
            if progress.phase == phase && answers.is_empty() {
                assert_eq!(out.join("train.bin.tmp").exists(), phase == Phase::Tokenize);
                answers.push(stop.stop());
            }
        });
        assert_says(stopped.unwrap_err(), "nothing was written");
        assert_eq!(answers, [phase == Phase::Survey], "the process may end before it writes");
        assert!(!folder.path().join("new").exists());
    }
}

#[test]
fn the_share_of_all_phases_rises_to_one() {
    let story = "The fox looked at the moon. The moon looked back.\n".repeat(30_000);
    let folder = folder(&[("a.txt", &story)]);
    let (input, out) = (folder.path().join("a.txt"), folder.path().join("out"));
    let mut shares = vec![];
    let options = options(TokenizerChoice::Trained(300));
    prepare(&[input], &out, &options, &mut |progress| shares.push(progress.share())).unwrap();
    assert!(shares.is_sorted(), "{shares:?}");
    assert!(shares[0] < 0.3 && shares.contains(&0.5) && shares.last() == Some(&1.0), "{shares:?}");
}
