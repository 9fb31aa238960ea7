//! What runs record stays as it is until somebody changes it on purpose: which events in which order, with
//! which values besides measured ones, how the lines of the log begin, and which files there are in the end.
//!
//! `UPDATE_TABLES=1 cargo test --release --test cli records` writes the file.

use super::*;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/reference/records.txt");

/// Fields that depend on the machine or on the version, or are long.
const LEFT_OUT: [&str; 6] = ["time", "device", "budget_bytes", "seconds", "v", "config"];

/// Runs, and how each begins: the flags after those of [`TINY`].
const RUNS: [(&str, &str); 8] = [
    ("plain", "--log=csv,tensorboard"),
    ("muon", "--optimizer=muon --offload_optimizer=true --grad_checkpoint=true --micro_batch=2"),
    ("chats", "--data=builtin:chats --block_size=64 --max_iters=20"),
    ("llama", "--arch=llama --bias=false --schedule=wsd --dropout=0 --log_interval=7"),
    ("one", "--shard_optimizer=true --eval_interval=15 --sample_tokens=0 --keep_checkpoints=1"),
    ("tuned", "--init_from=plain --eval_iters=1 --eval_interval=40 --decay_lr=false"),
    ("evaluated", "--eval_only=true"),
    (
        "short",
        "--max_iters=3 --batch_size=1 --gradient_accumulation_steps=1 --n_head=4 --weight_decay=0",
    ),
];

/// Runs that are resumed, with the flags.
const RESUMED: [(&str, &str); 3] = [
    ("plain", "--max_iters=60 --lr_decay_iters=60"),
    ("muon", ""),
    ("one", "--max_iters=45 --eval_iters=3"),
];

/// Replaces numbers, of which many are measured or rounded.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    for c in text.chars() {
        match c {
            '0'..='9' if masked.ends_with('#') => {}
            '0'..='9' => masked.push('#'),
            c => masked.push(c),
        }
    }
    masked
}

/// Appends the fields of an event. A number with digits after its point is a #, but for the learning rate.
fn describe(name: &str, value: &Value, to: &mut String) {
    match value {
        Value::Null => {}
        Value::Object(fields) => {
            for (field, value) in fields {
                if !LEFT_OUT.contains(&field.as_str()) {
                    describe(&format!("{name}.{field}"), value, to);
                }
            }
        }
        Value::Array(values) => *to += &format!(" {name}[{}]", values.len()),
        Value::Number(number) if name == ".lr" => {
            *to += &format!(" lr={:.3e}", number.as_f64().unwrap())
        }
        Value::Number(number) if number.is_f64() => *to += &format!(" {name}=#"),
        Value::String(text) => {
            *to +=
                &format!(" {name}={}", masked(&text.replace('\\', "/").escape_debug().to_string()))
        }
        other => *to += &format!(" {name}={other}"),
    }
}

/// Describes the events of a run after the first of them.
fn describe_events(run: &Path, first: usize) -> String {
    let mut said = String::new();
    for line in fs::read_to_string(run.join("events.jsonl")).unwrap().lines().skip(first) {
        let mut event: Value = serde_json::from_str(line).unwrap();
        if event["event"] == "sample" {
            event["text"] = Value::Null;
        }
        let name = event.as_object_mut().unwrap().remove("event").unwrap();
        said += name.as_str().unwrap();
        describe("", &event, &mut said);
        said += "\n";
    }
    said.replace(" .", " ")
}

/// Returns how the lines of a run's log begin, without those of samples, each once with its number.
fn describe_log(run: &Path, first: usize) -> String {
    let mut beginnings: Vec<(String, usize)> = Vec::new();
    let mut is_sampled = false;
    for line in fs::read_to_string(run.join("log.txt")).unwrap().lines().skip(first) {
        let begin = line.split(|c: char| c.is_ascii_digit()).next().unwrap().trim_end();
        let begin = begin.replace('\\', "/");
        is_sampled &= line != "---";
        match beginnings.last_mut() {
            _ if is_sampled => {}
            Some((last, count)) if *last == begin => *count += 1,
            _ => beginnings.push((begin, 1)),
        }
        is_sampled |= line.starts_with("--- sample");
    }
    beginnings.into_iter().map(|(begin, count)| format!("| {count} {begin}\n")).collect()
}

fn describe_files(run: &Path) -> String {
    let describe = |(path, content): (PathBuf, Vec<u8>)| {
        let path = path.strip_prefix(run).unwrap_or(&path).to_string_lossy().replace('\\', "/");
        match content.len() {
            size if path.contains("tfevents") => format!("> {}, {size} bytes\n", masked(&path)),
            size if path.ends_with(".safetensors") => format!("> {path}, {size} bytes\n"),
            _ => format!("> {path}\n"),
        }
    };
    listing(run).into_iter().map(describe).collect()
}

/// Returns the number of lines in a file, 0 if there is none.
fn lines(path: PathBuf) -> usize {
    fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[test]
fn runs_record_on_purpose_only() {
    let folder = temporary();
    let new = RUNS.map(|(run, flags)| (run, flags, false));
    let resumed = RESUMED.map(|(run, flags)| (run, flags, true));
    let mut records = String::new();
    for (run, flags, resumes) in new.into_iter().chain(resumed) {
        let flags: Vec<&str> = flags.split(' ').filter(|flag| !flag.is_empty()).collect();
        let path = folder.path().join(run);
        let [events, log] = ["events.jsonl", "log.txt"].map(|file| lines(path.join(file)));
        if resumes {
            let args = ["train", "--resume", "--json", "--device=cpu", "--run", run];
            ok(folder.path(), &[&args, &flags[..]].concat());
        } else {
            train(folder.path(), run, &flags);
        }
        records += &format!("\n# {run}{}\n", if resumes { ", resumed" } else { "" });
        records += &describe_events(&path, events);
        records += &describe_log(&path, log);
        records += &describe_files(&path);
    }
    if std::env::var_os("UPDATE_TABLES").is_some() {
        return fs::write(FILE, records).unwrap();
    }
    let known = fs::read_to_string(FILE).unwrap();
    for (at, (found, known)) in records.lines().zip(known.lines()).enumerate() {
        assert_eq!(found, known, "line {}: UPDATE_TABLES=1 writes {FILE}", at + 1);
    }
    assert_eq!(known.lines().count(), records.lines().count());
}
