//! Tests what others have written, on its way to a terminal, a page or an error: names of folders, prompts,
//! generated texts and files. And the limits that others have set to memory and files.

use super::*;

/// Clears the screen and the title, rings the bell, hides what was before it, begins a line, a cell, code and a
/// script.
const NAME: &str = "a\u{1b}[2J\u{1b}]0;x\u{7}\r\u{9b}1m\nb|`c`<script>";

/// Returns the control characters of an output, without line breaks and tabs.
fn controls(output: &str) -> Vec<char> {
    output.chars().filter(|c| c.is_control() && !"\n\t".contains(*c)).collect()
}

/// Trains on bytes, so that every character can be a prompt.
fn train_on_bytes(folder: &Path, more: &[&str]) -> Vec<Value> {
    fs::write(folder.join("a.txt"), "One day a fox saw a bird in a tree.\n\n".repeat(100)).unwrap();
    ok(folder, &["prepare", "a.txt", "-o", "data", "--tokenizer=byte"]);
    train(folder, "r", &[&["--data=data", "--max_iters=4", "--eval_interval=2"], more].concat())
}

#[cfg(unix)]
#[test]
fn names_are_text() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, &["--sample_prompt=\u{1b}[31m\u{7}"]);
    let log = fs::read_to_string(path.join("r/log.txt")).unwrap();
    assert!(log.contains(r"\u001b[31m\u0007") && !log.contains('\u{1b}'), "{log}");
    copy(&path.join("r"), &path.join(NAME));
    let shown = r"a\u001b[2J\u001b]0;x\u0007\r\u009b1m\nb|`c`<script>";
    for (args, has_name) in [
        (&["runs", "."][..], true),
        (&["compare", "r", NAME], true),
        (&["report", NAME, "-o", "page.html"], false),
        (&["export", NAME, "-o", "model"], false),
        (&["train", "--run", "r", "--resume", "--max_iters=6", "--device=cpu"], false),
        (&["sample", NAME, "--max-new-tokens=1", "--device=cpu"], false),
    ] {
        let output = run(path, args);
        assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
        assert_eq!(controls(&text(&output.stderr)), [], "{args:?}");
        if has_name {
            let said = text(&output.stdout);
            assert!(controls(&said).is_empty() && said.contains(shown), "{said}");
        }
    }
    for args in [
        &["sample", "nowhere\u{1b}[2J"][..],
        &["eval", "--nonsense\u{1b}[2J"],
        &["compare", "r", "\u{7}"],
        &["\u{1b}[2J"],
    ] {
        let output = run(path, args);
        assert!(!output.status.success());
        assert_eq!(controls(&text(&output.stderr)), [], "{args:?}");
    }
    // JSON has the name itself.
    let runs: Value = serde_json::from_str(&ok(path, &["runs", ".", "--json"])).unwrap();
    let mut names = runs.as_array().unwrap().iter().map(|run| run["name"].as_str().unwrap());
    assert!(names.any(|name| name == NAME), "{runs}");

    let page = fs::read_to_string(path.join("page.html")).unwrap();
    assert!(!page.contains("<script") && controls(&page).is_empty(), "{page}");
    let model = format!("models/{NAME}");
    ok(path, &["export", "r", "-o", &model]);
    let card = fs::read_to_string(path.join(model).join("README.md")).unwrap();
    assert!(card.contains(r"\u009b1m b\|\`c\`&lt;script>") && controls(&card).is_empty(), "{card}");
}

/// `script` runs a program on a terminal.
#[cfg(target_os = "linux")]
#[test]
fn a_terminal_shows_the_control_characters_of_a_text_and_a_pipe_gets_them() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, &[]);
    let args = ["sample", "r", "--start=\u{1b}[31mOnce\ta", "--max-new-tokens=3", "--seed=1"];
    let args = [&args[..], &["--device=cpu", "--quiet"]].concat();
    let piped = ok(path, &args);
    assert!(piped.starts_with("\u{1b}[31mOnce\ta"), "{piped:?}");
    let quoted: Vec<String> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let command = format!("'{}' {}", env!("CARGO_BIN_EXE_wgpt"), quoted.join(" "));
    let mut script = started("script", path);
    let shown = match script.args(["-qec", &command, "/dev/null"]).output() {
        Ok(output) => text(&output.stdout),
        Err(error) => {
            assert!(std::env::var_os("CI").is_none(), "script: {error}");
            return eprintln!("skipped: script is not installed");
        }
    };
    assert!(shown.contains("\\u001b[31mOnce\ta") && !shown.contains("\u{1b}[31m"), "{shown:?}");
}

#[test]
fn an_error_quotes_little_of_a_file() {
    let folder = temporary();
    let path = folder.path();
    train_on_bytes(path, &[]);
    let long = "x\u{1b}".repeat(100_000);
    let json = serde_json::to_string(&long).unwrap();
    let in_place_of = |file: &str, content: String| {
        let copied = path.join(format!("copy-of-{}", file.replace('/', "-")));
        copy(&path.join("r/checkpoints/00000004"), &copied);
        fs::write(copied.join(file), content).unwrap();
        copied.display().to_string()
    };
    let state = in_place_of("state.json", format!("{{\"version\":{json}}}"));
    let config = in_place_of("config.json", format!("{{\"model_type\":{json}}}"));
    fs::remove_file(Path::new(&config).join("state.json")).unwrap();
    let header = format!("{{\"w\":{{\"dtype\":{json},\"shape\":[],\"data_offsets\":[0,0]}}}}");
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.into_bytes());
    let damaged = in_place_of("model.safetensors", String::new());
    fs::write(Path::new(&damaged).join("model.safetensors"), weights).unwrap();
    fs::remove_file(Path::new(&damaged).join("state.json")).unwrap();
    fs::write(path.join("words.jsonl"), format!("{{{json}:1}}\n")).unwrap();
    fs::write(path.join("settings.toml"), format!("{json} = 1\n")).unwrap();
    copy(&path.join("data"), &path.join("other"));
    let meta = fs::read_to_string(path.join("other/meta.json")).unwrap();
    fs::write(path.join("other/meta.json"), meta.replace("\"byte\"", &json)).unwrap();
    let tokenizer = in_place_of("tokenizer.json", format!("{{\"model\":{{\"type\":{json}}}}}"));
    for args in [
        &["sample", &state, "--device=cpu"][..],
        &["sample", &config, "--device=cpu"],
        &["sample", &damaged, "--device=cpu"],
        &["prepare", "words.jsonl", "-o", "new"],
        &["prepare", "a.txt", "-o", "new", &format!("--tokenizer={tokenizer}/tokenizer.json")],
        &["train", "settings.toml"],
        &["train", "--data=other", "--run=new", "--device=cpu"],
    ] {
        let output = run(path, args);
        let said = text(&output.stderr);
        assert!(!output.status.success() && said.starts_with("error: "), "{args:?}: {said}");
        assert!(said.matches("\\u001b").count() + said.matches('x').count() < 250, "{said}");
        assert_eq!(controls(&said), [], "{args:?}");
    }
}

#[test]
fn a_run_whose_name_cannot_be_in_a_configuration_is_refused() {
    let folder = temporary();
    for args in [&["train", "--run=a\u{7}"][..], &["sweep", "-o", "a\nb", "--seed=1,2"]] {
        let output = run(folder.path(), &[args, &["--data=builtin:stories"]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("cannot contain control characters"), "{said}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Runs a command with a limit of the shell.
#[cfg(target_os = "linux")]
fn limited(folder: &Path, limit: &str, args: &str) -> Output {
    let script = format!("ulimit {limit}; exec '{}' {args}", env!("CARGO_BIN_EXE_wgpt"));
    let mut command = started("bash", folder);
    command.args(["-c", &script]).env("RAYON_NUM_THREADS", "1").output().unwrap()
}

#[cfg(target_os = "linux")]
#[test]
fn a_file_larger_than_allowed_is_an_error() {
    let folder = temporary();
    fs::write(folder.path().join("a.txt"), "One day a fox saw a bird.\n".repeat(20_000)).unwrap();
    let train = [&["train", "--run=r"], TINY].concat().join(" ");
    for args in ["prepare a.txt -o data --tokenizer=byte", &train] {
        let output = limited(folder.path(), "-f 10", args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args}: {said}");
        assert!(said.contains("error: ") && said.contains("File too large"), "{args}: {said}");
    }
}

/// A log that has no room ends with a warning, and the run continues.
#[cfg(target_os = "linux")]
#[test]
fn a_scalar_log_larger_than_allowed_is_a_warning() {
    let folder = temporary();
    let more = ["--log=csv", "--max_iters=3000", "--eval_interval=100000"];
    let train = [&["train", "--json", "--run=r"], TINY, &more].concat().join(" ");
    let output = limited(folder.path(), "-f 100", &train);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let seen = events(&text(&output.stdout));
    let warns = |event: &&Value| event["text"].to_string().contains("the log for csv ends here");
    assert_eq!((losses(&seen).len(), named(&seen, "warning").filter(warns).count()), (3000, 1));
}

/// A process with too little memory to begin ends in the system's loader. With a little more, it ends with
/// an error.
#[cfg(target_os = "linux")]
#[test]
fn an_allocation_that_fails_is_an_error() {
    let folder = temporary();
    fs::write(folder.path().join("a.txt"), "One day a fox saw a bird.\n".repeat(1_000_000))
        .unwrap();
    let version = |megabytes: &u64| {
        let output = limited(folder.path(), &format!("-v {}", megabytes * 1000), "--version");
        output.status.success()
    };
    let least = (80..2000).step_by(10).find(version).expect("a limit in which the program starts");
    let (mut failed, mut works) = (0, false);
    for megabytes in (least..least + 1000).step_by(10) {
        let args = "prepare a.txt -o data --force --tokenizer=bpe:300 --quiet";
        let output = limited(folder.path(), &format!("-v {}", megabytes * 1000), args);
        let said = text(&output.stderr);
        if output.status.success() {
            works = true;
            break;
        }
        assert_eq!(output.status.code(), Some(1), "{megabytes} MB: {:?}, {said}", output.status);
        let is_thread = said.contains("error: the system refused a thread");
        assert!(is_thread || said.contains("out of memory"), "{megabytes} MB: {said}");
        failed += 1;
    }
    assert!(works && failed > 0, "{failed} from {least} MB on");
}
