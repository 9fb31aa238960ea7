use std::fs;

use super::super::testing::{self, assert_says, bytes, padded_bytes};
use super::super::{PrepareOptions, TokenizerChoice, prepare};
use super::*;

/// Creates a folder called `name` with these files.
fn folder(name: &str, files: &[(&str, &[u8])]) -> (tempfile::TempDir, String) {
    let at = |(file, bytes): &(&str, &[u8])| (format!("{name}/{file}"), bytes.to_vec());
    let root = testing::folder(&files.iter().map(at).collect::<Vec<_>>());
    let spec = root.path().join(name).to_str().unwrap().to_owned();
    (root, spec)
}

/// Returns the error and its hint.
fn message(spec: &str) -> String {
    let error = Dataset::open(spec, 4).unwrap_err();
    format!("{error}; {}", error.hint())
}

/// The output of Python's pickle.dumps, with protocols 4 (nanoGPT's default) and 0, for
/// {'vocab_size': 3, 'itos': {0: '\n', ...}, 'stoi': {'\n': 0, 'a': 1, 'b': 2}}.
const PICKLE_4: &[u8] = b"\x80\x04\x95H\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\nvocab_size\x94K\x03\
    \x8c\x04itos\x94}\x94(K\x00\x8c\x01\n\x94K\x01\x8c\x01a\x94K\x02\x8c\x01b\x94u\x8c\x04stoi\x94}\
    \x94(h\x04K\x00h\x05K\x01h\x06K\x02uu.";
const PICKLE_0: &[u8] = b"(dp0\nVvocab_size\np1\nI3\nsVitos\np2\n(dp3\nI0\nV\\u000a\np4\nsI1\nVa\n\
    p5\nsI2\nVb\np6\nssVstoi\np7\n(dp8\ng4\nI0\nsg5\nI1\nsg6\nI2\nss.";

#[test]
fn a_prepared_folder_opens() {
    let root = testing::folder(&[("a.txt", "hello there, ".repeat(100))]);
    let (input, out) = (root.path().join("a.txt"), root.path().join("data"));
    let options = PrepareOptions { tokenizer: TokenizerChoice::Char, ..PrepareOptions::default() };
    prepare(&[input], &out, &options, &mut |_| {}).unwrap();
    let spec = out.to_str().unwrap();
    let dataset = Dataset::open(spec, 64).unwrap();
    assert_eq!((dataset.train.len(), dataset.val.len()), (1_170, 130));
    assert_eq!((dataset.vocab_size, dataset.name.as_str()), (8, "data"));
    let tokenizer = dataset.tokenizer.unwrap();
    let window = dataset.train.window(13, 12).unwrap();
    assert_eq!(tokenizer.decode(&window), "hello there,");

    let short = Dataset::open(spec, 130).unwrap_err().to_string();
    assert!(short.contains("val of data has 130 tokens") && short.contains("needs 131"), "{short}");
    let train = fs::read(out.join("train.bin")).unwrap();
    fs::write(out.join("train.bin"), &train[..2_000]).unwrap();
    assert_says(message(spec), "meta.json says 1170 tokens, but the file has 1000");
    fs::write(out.join("meta.json.tmp"), "{}").unwrap();
    assert_says(message(spec), "interrupted");
}

#[test]
fn data_fits_a_model_without_the_tokens_that_it_does_not_have() {
    let open = |train: [u16; 9]| {
        let mut meta: serde_json::Value = serde_json::from_str(testing::META_JSON).unwrap();
        meta["tokenizer"] = serde_json::to_value(padded_bytes()).unwrap();
        meta["vocab_size"] = 262.into();
        let (meta, train, val) = (meta.to_string(), bytes(train), bytes([1; 9]));
        let files = [("meta.json", meta.as_bytes()), ("train.bin", &train), ("val.bin", &val)];
        let (_root, spec) = folder("data", &files);
        let mut dataset = Dataset::open(&spec, 4).unwrap();
        dataset.fit(262).unwrap();
        assert_eq!(dataset.vocab_size, 262);
        dataset.fit(261).map(|()| dataset)
    };
    let mut dataset = open([260; 9]).unwrap();
    assert_eq!(dataset.vocab_size, 261);
    // Bytes 0 to 255, and the thoughts at 259 and 260, which text can become.
    assert_says(dataset.fit(260).unwrap_err(), "a model with 261 tokens, but the model has 260");
    let error = open([0, 1, 2, 3, 4, 5, 6, 7, 261]).unwrap_err();
    assert_says(&error, "the data uses token 261, but the model has 261 tokens");
    assert_says(error.hint(), "without such conversations");
}

#[test]
fn a_model_without_tokens_of_conversations_may_lack_others_too() {
    let open = |tokenizer: Tokenizer| {
        let begin = tokenizer.chat().map_or(257, |template| template.begin);
        Dataset::builtin("x", tokenizer, [vec![begin; 9], vec![begin; 9]]).unwrap()
    };
    let own = open(padded_bytes().with_chat());
    assert_eq!([260, 261, 262, 266].map(|rows| own.adds_to(rows)), [false, true, true, false]);
    // All tokens of a folder's template are in its tokenizer.
    assert!(!open(testing::chat_ml()).adds_to(260));
}

#[test]
fn a_nanogpt_folder_opens() {
    let (train, val) = (bytes([0, 1, 2, 1, 0, 2]), bytes([2, 1, 0, 1, 2]));
    for pickle in [PICKLE_0, PICKLE_4] {
        let files = [("train.bin", &train[..]), ("val.bin", &val), ("meta.pkl", pickle)];
        let (_root, spec) = folder("shakespeare_char", &files);
        let dataset = Dataset::open(&spec, 4).unwrap();
        assert_eq!(dataset.vocab_size, 3);
        let text = dataset.train.window(0, 6).unwrap();
        assert_eq!(dataset.tokenizer.unwrap().decode(&text), "\naba\nb");
    }
    let (_root, spec) = folder("owt", &[("train.bin", &train), ("val.bin", &val)]);
    let dataset = Dataset::open(&spec, 4).unwrap();
    assert_eq!(dataset.vocab_size, 50_257);
    assert_eq!(dataset.tokenizer, Some(Tokenizer::GPT2));
}

#[test]
fn a_malicious_or_damaged_pickle_is_an_error() {
    let tokens = bytes([0; 9]);
    let deep = [b"\x80\x04N".as_slice(), &[0x85; 100_000], b"."].concat();
    // Thirty nested lists that each contain the previous one twice: 2^30 elements.
    let bomb = [b"\x80\x04]".as_slice(), &b"2a2a".repeat(15), b"."].concat();
    let wrong_id = [PICKLE_0.strip_suffix(b"I2\nss.").unwrap(), b"I7\nss."].concat();
    for (pickle, expected) in [
        // os.system("touch owned") in two spellings, neither of which may run.
        (&b"cos\nsystem\n(S'touch owned'\ntR."[..], "not a readable pickle"),
        (b"\x80\x02cos\nsystem\nX\x0b\0\0\0touch owned\x85R.", "not a dictionary"),
        (&PICKLE_4[..40], "not a readable pickle"),
        (b"", "not a readable pickle"),
        (b"}.", "no vocab_size"),
        (&wrong_id, "not 0 to vocab_size - 1"),
        (&deep, "not a readable pickle"),
        (&bomb, "meta.pkl"),
    ] {
        let files = [("train.bin", &tokens[..]), ("val.bin", &tokens), ("meta.pkl", pickle)];
        let (_root, spec) = folder("data", &files);
        assert_says(message(&spec), expected);
    }
}

#[test]
fn shards_are_concatenated_in_the_order_of_their_names() {
    let shard = |ids: std::ops::Range<u16>| testing::shard([20_240_520, 1, ids.len() as i32], ids);
    let files: [(&str, &[u8]); 4] = [
        ("fineweb_train_000002.bin", &shard(10..20)),
        ("fineweb_train_000001.bin", &shard(0..10)),
        ("fineweb_val_000000.bin", &shard(100..110)),
        ("notes.txt", b"training"),
    ];
    let (_root, spec) = folder("fineweb10B", &files);
    let dataset = Dataset::open(&spec, 4).unwrap();
    assert_eq!((dataset.train.len(), dataset.val.len()), (20, 10));
    assert_eq!(dataset.train.window(8, 4).unwrap(), [8, 9, 10, 11]);
    assert_eq!(dataset.tokenizer, Some(Tokenizer::GPT2));
}

#[test]
fn the_error_of_missing_data_gives_the_command() {
    let (_root, spec) = folder("shakespeare_char", &[("input.txt", b"text")]);
    let text = Path::new(&spec).join("input.txt");
    let command = format!("`wgpt prepare {} -o {spec} --tokenizer char`", text.display());
    assert_says(message(&spec), "no train.bin");
    assert_says(message(&spec), &command);

    let (_root, spec) = folder("a", &[("train.bin", &bytes([0; 9])), ("b.txt", b"x")]);
    assert_says(message(&spec), "no val.bin");
    for (missing, text, out) in
        [("none", "TEXT.txt", "none"), ("b.txt", &*format!("{spec}/b.txt"), "b")]
    {
        let out = Path::new(&format!("{spec}/{missing}")).with_file_name(out);
        let command = format!("`wgpt prepare {text} -o {}`", out.display());
        assert_says(message(&format!("{spec}/{missing}")), &command);
    }
    assert_says(message("builtin:poems"), "builtin:stories");
}

/// Each row has the files of a folder, and a part of the advice.
#[test]
fn the_advice_about_missing_data_depends_on_the_folder() {
    let tokens = bytes([0; 9]);
    for (files, hint) in [
        (&[("train.bin", &tokens[..])][..], "prepare TEXT.txt -o {out}`"),
        (
            &[("train.bin", &tokens[..]), ("meta.json", testing::META_JSON.as_bytes())],
            " --force`, or give another folder with --data",
        ),
        (&[("prepare.py", b""), ("readme.md", b"")], "run the prepare.py in this folder"),
        (&[("book.txt", b"text")], "-o {out}`, and give --data={out}"),
        (&[("config.json", b"{}"), ("model.safetensors", b"")], "has a model or a run"),
        (&[], "create it with `wgpt prepare TEXT.txt -o "),
    ] {
        let (_root, spec) = folder("data", files);
        std::fs::create_dir_all(&spec).unwrap();
        let out = Path::new(&spec).with_file_name("data-tokens").display().to_string();
        let said = message(&spec);
        assert_says(&said, &hint.replace("{out}", &out));
        assert!(!said.contains("--force") || files.len() == 2, "{said}");
    }
    let (_root, spec) = folder("data", &[("train.bin", &tokens)]);
    assert_says(message(&format!("{spec}/train.bin")), "give the folder that the file is in");
    // Tokens that GPT-2 does not have.
    let others = bytes([60_000; 9]);
    let (_root, spec) = folder("data", &[("train.bin", &others), ("val.bin", &others)]);
    assert_says(message(&spec), "write a meta.pkl");
}

/// The tokens at either end of a split may stay the same: meta.json has the hashes of all.
#[test]
fn the_fingerprint_depends_on_the_data_and_not_on_the_folder() {
    let fingerprint = |name, train: &[u8], val: &[u8], meta: Option<[&str; 2]>| {
        let mut files = vec![("train.bin", train), ("val.bin", val)];
        let meta = meta.map(|[from, to]| testing::META_JSON.replace(from, to));
        files.extend(meta.as_ref().map(|meta| ("meta.json", meta.as_bytes())));
        let (_root, spec) = folder(name, &files);
        Dataset::open(&spec, 4).unwrap().fingerprint
    };
    let (train, val) = (bytes([0; 9]), bytes([1; 9]));
    let original = fingerprint("a", &train, &val, None);
    assert_eq!(original, fingerprint("b", &train, &val, None));
    let described = fingerprint("a", &train, &val, Some(["ab", "ab"]));
    for (what, before, after) in [
        ("a longer train", &original, fingerprint("a", &bytes([0; 10]), &val, None)),
        ("another train", &original, fingerprint("a", &bytes([2; 9]), &val, None)),
        ("a shorter val", &original, fingerprint("a", &train, &bytes([1; 8]), None)),
        ("another val", &original, fingerprint("a", &train, &bytes([3; 9]), None)),
        ("train's hash", &described, fingerprint("a", &train, &val, Some(["\"ab\"", "\"ac\""]))),
        ("val's hash", &described, fingerprint("a", &train, &val, Some(["\"cd\"", "\"ce\""]))),
    ] {
        assert_ne!(*before, after, "{what}");
    }
}

#[test]
fn the_built_in_corpus_opens_with_the_declared_size() {
    let dataset = Dataset::open("builtin:stories", 256).unwrap();
    assert_eq!(
        (dataset.train.len(), dataset.val.len(), dataset.vocab_size),
        (stories::TRAIN_TOKENS, stories::VAL_TOKENS, stories::VOCABULARY)
    );
    assert_eq!(dataset.name, "builtin:stories");
    assert!(dataset.entropy_floor.is_some());
    let tokenizer = dataset.tokenizer.unwrap();
    let start = tokenizer.decode(&dataset.val.window(0, 500).unwrap());
    assert!(stories::generate(stories::VAL_SEED, 500).starts_with(&start));
}

#[test]
fn the_built_in_conversations_open() {
    let dataset = Dataset::open("builtin:chats", 256).unwrap();
    let template = dataset.tokenizer.as_ref().and_then(Tokenizer::chat).unwrap();
    assert_eq!(dataset.vocab_size, template.vocab_size);
    for split in [&dataset.train, &dataset.val] {
        let windows = split.windows(256);
        let packing = windows.packing().unwrap();
        assert_eq!(packing.cut, 0);
        assert!(packing.padding() < 0.5, "{}", packing.padding());
        let first = windows.read(windows.evaluation(1)[0].clone()).unwrap();
        assert_eq!(first.tokens[0], template.begin);
        assert!(first.targets.iter().flatten().count() > 10);
    }
}
