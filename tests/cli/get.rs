//! Fetches from a server of the test's own, which cuts connections, lies and stalls.

#[path = "get/server.rs"]
mod server;

use serde_json::json;
use server::{After, Answer, COMMIT, Repo, Request, Server, git_blob, sha256};

use super::*;

const STORY: &str = "The fox looked at the moon. The moon looked back.\n";

/// Returns a command whose cache is in the folder and whose Hub is at the address.
fn with_hub(folder: &Path, address: &str) -> Command {
    let mut command = wgpt(folder);
    for name in
        ["HF_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH", "http_proxy", "https_proxy", "all_proxy"]
    {
        command.env_remove(name).env_remove(name.to_ascii_uppercase());
    }
    command.env("HF_HOME", folder.join("hf")).env("HF_ENDPOINT", address);
    command
}

fn get(folder: &Path, server: &Server, args: &[&str]) -> Output {
    with_hub(folder, &server.address).arg("get").args(args).output().unwrap()
}

/// Runs a command that finds the cache, and no server.
fn offline(folder: &Path, args: &[&str]) -> Output {
    with_hub(folder, "http://127.0.0.1:9").args(args).output().unwrap()
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stderr)
}

#[track_caller]
fn failed(output: &Output, code: i32, parts: &[&str]) -> String {
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{said}");
    for part in parts.iter().chain(&["error: ", "hint: "]) {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
    said
}

fn blobs(folder: &Path, repo: &str) -> PathBuf {
    folder.join("hf/hub").join(repo).join("blobs")
}

/// Waits until so many bytes of a blob have arrived. Returns the path of the unfinished file.
fn wait_for_part(blob: &Path, bytes: usize) -> PathBuf {
    let partial = blob.with_added_extension("incomplete");
    let began = Instant::now();
    while fs::metadata(&partial).map_or(0, |found| found.len()) < bytes as u64 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    partial
}

/// A server that sends the beginning of the first file, then nothing. Its other answers are whole.
fn stalling_once(repo: &Repo, half: usize) -> Server {
    let repo = repo.clone();
    Server::start(move |request, earlier| match repo.file(&request.path) {
        Some(content) if earlier == 0 => {
            Answer { after: After::Stall, ..Answer::file(request, content).cut(half) }
        }
        _ => repo.answer(request),
    })
}

/// Returns the names of the files in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// A data set of one file, larger than a block.
fn texts() -> Repo {
    Repo::new("me/texts", true, &[("data/train.txt", STORY.repeat(20_000).as_bytes())])
}

#[test]
fn a_model_is_fetched_once_and_used_by_its_name() {
    let folder = temporary();
    let path = folder.path();
    fs::write(path.join("story.txt"), STORY.repeat(200)).unwrap();
    ok(path, &["prepare", "story.txt", "-o", "data", "--tokenizer", "bpe:300"]);
    train(path, "r", &["--data=data"]);
    ok(path, &["export", "r", "-o", "model"]);
    let mut repo = Repo::new("me/tiny", false, &[]);
    for (file, content) in listing(&path.join("model")) {
        repo.files.insert(file.file_name().unwrap().to_str().unwrap().into(), content);
    }
    for unused in ["pytorch_model.bin", "onnx/model.onnx", "onnx/config.json", "rust_model.ot"] {
        repo.files.insert(unused.into(), vec![b'x'; 5000]);
    }
    let unknown = offline(path, &["sample", "hf:me/tiny", "--device=cpu"]);
    failed(&unknown, 7, &["hf:me/tiny has not been fetched", "`wgpt get hf:me/tiny`"]);

    let served = repo.clone();
    let server = Server::start(move |request, _| served.answer(request));
    let said = succeeded(&get(path, &server, &["hf:me/tiny"]));
    assert!(said.contains("hf:me/tiny, a model: ") && said.contains("licence: mit"), "{said}");
    assert!(
        said.contains("try it with: ") && said.contains(" sample hf:me/tiny --start"),
        "{said}"
    );
    for unused in [".bin", "onnx", ".ot", "README"] {
        assert!(server.requests(unused).is_empty(), "{unused} was fetched");
    }
    // As Python's huggingface_hub lays it out.
    let cache = path.join("hf/hub/models--me--tiny");
    assert_eq!(fs::read_to_string(cache.join("refs/main")).unwrap(), COMMIT);
    let snapshot = cache.join("snapshots").join(COMMIT);
    for (file, hash) in [
        ("model.safetensors", sha256(&repo.files["model.safetensors"])),
        ("config.json", git_blob(&repo.files["config.json"])),
    ] {
        let blob = cache.join("blobs").join(&hash);
        assert_eq!(&fs::read(snapshot.join(file)).unwrap(), &repo.files[file]);
        assert_eq!(&fs::read(&blob).unwrap(), &repo.files[file]);
        #[cfg(unix)]
        assert_eq!(
            fs::read_link(snapshot.join(file)).unwrap(),
            Path::new("../../blobs").join(hash)
        );
    }
    let before = server.requests("").len();
    let again = succeeded(&get(path, &server, &["hf:me/tiny"]));
    assert!(again.contains("of it is here already"), "{again}");
    assert_eq!(server.requests("").len(), before + 1, "only the list of files");

    let sample = |model: &str| {
        let args =
            ["sample", model, "--start=The", "--seed=1", "--max-new-tokens=20", "--device=cpu"];
        let output = offline(path, &args);
        succeeded(&output);
        text(&output.stdout)
    };
    assert_eq!(sample("hf:me/tiny"), sample("model"));
    let tuned = offline(
        path,
        &[
            &["train", "--run=tuned", "--init_from=hf:me/tiny"],
            TINY,
            &["--data=data", "--max_iters=1"],
        ]
        .concat(),
    );
    succeeded(&tuned);
    let recorded = fs::read_to_string(path.join("tuned/config.toml")).unwrap();
    assert!(recorded.contains("init_from = \"hf:me/tiny\""), "{recorded}");
    let args = ["prepare", "story.txt", "-o", "same", "--tokenizer=hf:me/tiny"];
    let prepared = offline(path, &args);
    succeeded(&prepared);
    // Its tokenizer is that of the model, which the data are probably for.
    let said = text(&prepared.stdout) + &text(&prepared.stderr);
    assert!(said.contains("--init_from=hf:me/tiny --lora_rank=16 --data=same"), "{said}");
    let read = |data: &str| fs::read(path.join(data).join("train.bin")).unwrap();
    assert_eq!(read("same"), read("data"));
}

/// Another program, or a disk, has changed what the cache has.
#[test]
fn a_damaged_blob_and_a_link_elsewhere_are_mended() {
    let folder = temporary();
    let repo = texts();
    let content = repo.files["data/train.txt"].clone();
    let served = repo.clone();
    let server = Server::start(move |request, _| served.answer(request));
    succeeded(&get(folder.path(), &server, &["hf:me/texts"]));
    let blobs = blobs(folder.path(), "datasets--me--texts");
    let blob = blobs.join(sha256(&content));
    let fetched = || server.requests("train.txt").len();
    let once = fetched();
    // It is hashed once, and taken.
    succeeded(&get(folder.path(), &server, &["hf:me/texts"]));
    assert_eq!(fetched(), once);
    std::thread::sleep(Duration::from_millis(20));
    fs::write(&blob, content.to_ascii_uppercase()).unwrap();
    succeeded(&get(folder.path(), &server, &["hf:me/texts"]));
    assert!(fetched() > once && fs::read(&blob).unwrap() == content);

    let link = folder.path().join("hf/hub/datasets--me--texts/snapshots").join(COMMIT);
    let link = link.join("data/train.txt");
    fs::write(blobs.join("other"), &content[1..]).unwrap();
    fs::remove_file(&link).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../../../blobs/other", &link).unwrap();
    #[cfg(not(unix))]
    fs::copy(blobs.join("other"), &link).unwrap();
    succeeded(&get(folder.path(), &server, &["hf:me/texts"]));
    assert!(fs::read(&link).unwrap() == content);
}

/// A link in the data folder could lead a write to any file, and a pipe would be waited for.
#[cfg(unix)]
#[test]
fn links_and_pipes_in_place_of_files_are_not_followed() {
    let folder = temporary();
    let path = folder.path();
    let server = Server::start(|request, _| Answer::file(request, STORY.as_bytes()));
    fs::create_dir(path.join("data")).unwrap();
    fs::write(path.join("precious"), "mine").unwrap();
    for name in [".story.txt.incomplete", ".story.txt.version"] {
        std::os::unix::fs::symlink("../precious", path.join("data").join(name)).unwrap();
    }
    let address = format!("{}/story.txt", server.address);
    let output = get(path, &server, &[&address]);
    assert_eq!(fs::read_to_string(path.join("precious")).unwrap(), "mine");
    failed(&output, 1, &[".story.txt.incomplete", "it is a link"]);

    let pipe = path.join("hf/token");
    fs::create_dir_all(pipe.parent().unwrap()).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    fs::remove_file(path.join("data/.story.txt.incomplete")).unwrap();
    succeeded(&get(path, &server, &[&address]));
    assert_eq!(fs::read_to_string(path.join("precious")).unwrap(), "mine");
    assert_eq!(fs::read_to_string(path.join("data/story.txt")).unwrap(), STORY);
}

/// Cuts every second connection: each answer after it sends only the rest.
#[test]
fn a_cut_connection_is_continued() {
    let folder = temporary();
    let repo = texts();
    let content = repo.files["data/train.txt"].clone();
    let third = content.len() / 3;
    let server = Server::start(move |request, earlier| match repo.file(&request.path) {
        Some(content) if earlier < 2 => Answer::file(request, content).cut(third),
        _ => repo.answer(request),
    });
    succeeded(&get(folder.path(), &server, &["hf:me/texts"]));
    let ranges: Vec<_> = server
        .requests("/resolve/")
        .iter()
        .map(|request| request.header("range").map(str::to_string))
        .collect();
    let range = |offset: usize| Some(format!("bytes={offset}-"));
    assert_eq!(ranges, [None, range(third), range(2 * third)]);
    let blob = blobs(folder.path(), "datasets--me--texts").join(sha256(&content));
    assert_eq!(fs::read(blob).unwrap(), content);
}

/// A kill leaves the bytes so far. A second process does not write to the same file meanwhile.
#[test]
fn a_killed_get_continues_and_two_do_not_mix() {
    let folder = temporary();
    let repo = texts();
    let content = repo.files["data/train.txt"].clone();
    let half = content.len() / 2;
    let server = stalling_once(&repo, half);
    let mut first = with_hub(folder.path(), &server.address)
        .args(["get", "hf:me/texts"])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let blob = blobs(folder.path(), "datasets--me--texts").join(sha256(&content));
    let partial = wait_for_part(&blob, half);
    let second = get(folder.path(), &server, &["hf:me/texts"]);
    failed(&second, 1, &["another process is fetching this file"]);
    first.kill().unwrap();
    first.wait().unwrap();
    let unfinished = offline(folder.path(), &["prepare", "hf:me/texts", "-o", "data"]);
    failed(&unfinished, 7, &["or not all of it", "wgpt get"]);
    let said = succeeded(&get(folder.path(), &server, &["hf:me/texts"]));
    assert!(said.contains("of it is here already"), "{said}");
    let last = server.requests("/resolve/").pop().unwrap();
    assert_eq!(last.header("range"), Some(format!("bytes={half}-").as_str()));
    assert_eq!(fs::read(blob).unwrap(), content);
    assert!(!partial.exists());
}

/// The window has a worker fetch. Its end, here by a closed stdin, keeps what was fetched.
#[test]
fn a_worker_fetches_and_prepares_for_the_window() {
    let folder = temporary();
    let path = folder.path();
    let repo = texts();
    let content = repo.files["data/train.txt"].clone();
    let half = content.len() / 2;
    let server = stalling_once(&repo, half);
    let request = json!({
        "message": "request", "request": "get", "name": "hf:me/texts", "folder": path.join("data"),
    });
    let mut stopped = with_hub(path, &server.address)
        .arg("worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    writeln!(stopped.stdin.as_mut().unwrap(), "{request}").unwrap();
    let blob = blobs(path, "datasets--me--texts").join(sha256(&content));
    let partial = wait_for_part(&blob, half);
    drop(stopped.stdin.take());
    assert!(!stopped.wait().unwrap().success());
    assert!(partial.exists() && !path.join("data").exists());

    let replies = ask_worker(with_hub(path, &server.address), &request);
    let last = replies.last().unwrap();
    assert_eq!(last["reply"], "prepared", "{last}");
    let data = path.join("data/texts");
    assert_eq!(last["spec"], data.display().to_string());
    let fetched: Vec<_> = replies.iter().filter(|reply| reply["reply"] == "fetching").collect();
    assert!(!fetched.is_empty() && fetched.iter().all(|reply| reply["all"] == content.len()));
    assert_eq!(fetched[0]["name"], "hf:me/texts");
    assert_eq!(fs::read(blob).unwrap(), content);
    train(path, "r", &[&format!("--data={}", data.display())]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_fetched() {
    let folder = temporary();
    let repo = texts();
    let server = Server::start(move |request, _| match repo.file(&request.path) {
        Some(content) => Answer { after: After::Stall, ..Answer::file(request, content).cut(5000) },
        None => repo.answer(request),
    });
    let child = with_hub(folder.path(), &server.address)
        .args(["get", "hf:me/texts"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let folder = blobs(folder.path(), "datasets--me--texts");
    let has_bytes = || {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.metadata().unwrap().len()).sum::<u64>() == 5000
    };
    let began = Instant::now();
    while !has_bytes() {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.ends_with("stopped: the same command continues from here\n"), "{said}");
    assert!(has_bytes());
}

/// Answers that are not what the list of files says. None of them leaves a file.
#[test]
fn lies_are_found() {
    let longer = |content: &[u8]| [content, b"more"].concat();
    type Lie = Box<dyn Fn(&Request, &[u8]) -> Answer + Send + Sync>;
    let cases: Vec<(&str, i32, &str, Lie)> = vec![
        (
            "other bytes",
            7,
            "its hash is not",
            Box::new(|request, content| Answer::file(request, &content.to_ascii_uppercase())),
        ),
        (
            "a longer file",
            7,
            "the repository lists",
            Box::new(move |request, content| Answer::file(request, &longer(content))),
        ),
        (
            "a shorter file",
            7,
            "the repository lists",
            Box::new(|request, content| Answer::file(request, &content[..content.len() - 4])),
        ),
        (
            "a file without an end",
            7,
            "sends more than",
            Box::new(|_, content| Answer::endless(content)),
        ),
        (
            "another part",
            1,
            "train.txt",
            Box::new(|request, content| {
                let mut answer = Answer::file(request, content).cut(3000);
                answer.headers.retain(|(name, _)| *name != "content-range");
                if request.header("range").is_some() {
                    answer.headers.push(("content-range", "bytes 7-9/10".into()));
                }
                answer
            }),
        ),
    ];
    for (name, code, said, lie) in cases {
        let folder = temporary();
        let repo = texts();
        let server = Server::start(move |request, _| match repo.file(&request.path) {
            Some(content) => lie(request, content),
            None => repo.answer(request),
        });
        let output = get(folder.path(), &server, &["hf:me/texts"]);
        failed(&output, code, &[said, "train.txt"]);
        let left = names(&blobs(folder.path(), "datasets--me--texts"));
        let is_empty = left.iter().all(|name| code == 1 && name.ends_with(".incomplete"));
        assert!(is_empty, "{name} left {left:?}");
        assert!(!folder.path().join("hf/hub/datasets--me--texts/snapshots").exists(), "{name}");
    }
}

/// The token is for the Hub alone, and no redirect leads to a place less safe.
#[test]
fn redirects_are_followed_without_the_token_and_only_to_safe_addresses() {
    let folder = temporary();
    let repo = texts();
    let stored = repo.files["data/train.txt"].clone();
    let storage = Server::start(move |request, _| Answer::file(request, &stored));
    let target = format!("{}/signed?key=secret", storage.address);
    let server = Server::start(move |request, _| match repo.file(&request.path) {
        Some(_) => Answer::redirect(target.clone()),
        None => repo.answer(request),
    });
    let run = |token: Option<&str>| {
        let mut command = with_hub(folder.path(), &server.address);
        token.map(|token| command.env("HF_TOKEN", token));
        command.args(["get", "hf:me/texts"]).output().unwrap()
    };
    succeeded(&run(Some("hf_key")));
    for request in server.requests("") {
        assert_eq!(request.header("authorization"), Some("Bearer hf_key"));
    }
    assert!(!storage.requests("/signed").is_empty());
    assert!(storage.requests("").iter().all(|request| request.header("authorization").is_none()));
    // From the file of Hugging Face's own tools.
    fs::write(folder.path().join("hf/token"), "hf_file\n").unwrap();
    succeeded(&run(None));
    let last = server.requests("").pop().unwrap();
    assert_eq!(last.header("authorization"), Some("Bearer hf_file"));

    for target in
        ["file:///etc/passwd", "http://example.org/x?key=secret", "ftp://127.0.0.1/x", "//["]
    {
        let folder = temporary();
        let repo = texts();
        let server = Server::start(move |request, _| match repo.file(&request.path) {
            Some(_) => Answer::redirect(target),
            None => repo.answer(request),
        });
        let output = get(folder.path(), &server, &["hf:me/texts"]);
        let said = failed(&output, 1, &["redirects to", "https"]);
        assert!(!said.contains("secret"), "{said}");
    }
    let looping = Server::start(|request, _| Answer::redirect(request.path.clone()));
    failed(&get(folder.path(), &looping, &["hf:me/texts"]), 1, &["redirects"]);
}

#[test]
fn refusals_and_failures_of_the_server_are_explained() {
    let cases: &[(u16, i32, &[&str])] = &[
        (401, 7, &["no public model or data set", "HF_TOKEN"]),
        (404, 7, &["no public model or data set"]),
        (418, 1, &["418"]),
        (503, 1, &["503", "continues"]),
    ];
    for (status, code, parts) in cases {
        let folder = temporary();
        let server = Server::start(|_, _| Answer::new(*status, "no"));
        failed(&get(folder.path(), &server, &["hf:me/texts"]), *code, parts);
        if *status == 503 {
            assert_eq!(server.requests("").len(), 5, "it gives up");
        }
    }
    for body in ["<html>log in</html>", "{}", "[]", r#"{"sha": "../../x"}"#, "{\"sha\": 1"] {
        let folder = temporary();
        let server = Server::start(move |_, _| Answer::new(200, body));
        let output = get(folder.path(), &server, &["hf:me/texts"]);
        assert!([Some(1), Some(7)].contains(&output.status.code()), "{body}");
        failed(&output, output.status.code().unwrap(), &["answer"]);
    }
    let folder = temporary();
    let server = Server::start(|_, _| Answer::endless(vec![b' '; 1 << 20]));
    failed(&get(folder.path(), &server, &["hf:me/texts"]), 7, &["is too long"]);
    // A gated file, and a server that is busy once.
    let repo = texts();
    let server = Server::start(move |request, _| match repo.file(&request.path) {
        Some(_) => Answer::new(403, ""),
        None => repo.answer(request),
    });
    failed(&get(folder.path(), &server, &["hf:me/texts"]), 7, &["refuses", "HF_TOKEN"]);
    let repo = texts();
    let server = Server::start(move |request, earlier| match earlier {
        0 => {
            let mut busy = Answer::new(429, "");
            busy.headers.push(("retry-after", "1".into()));
            busy
        }
        _ => repo.answer(request),
    });
    succeeded(&get(folder.path(), &server, &["hf:datasets/me/texts"]));
    let nobody = offline(folder.path(), &["get", "hf:me/texts"]);
    failed(&nobody, 1, &["no answer from http://127.0.0.1:9/", "connection"]);
    let unsafe_hub = with_hub(folder.path(), "http://example.org").args(["get", "hf:a/b"]).output();
    failed(&unsafe_hub.unwrap(), 2, &["HF_ENDPOINT"]);
}

#[test]
fn a_list_that_leads_out_of_the_cache_is_refused() {
    for (key, value) in [
        ("rfilename", "../../../evil.txt"),
        ("rfilename", "/tmp/evil.txt"),
        ("rfilename", "a\\..\\evil.txt"),
        ("rfilename", "C:evil.txt"),
        ("rfilename", "a//evil.txt"),
        ("blobId", "../../../evil"),
        ("blobId", ""),
    ] {
        let folder = temporary();
        let repo = Repo::new("me/texts", true, &[("train.txt", b"short")]);
        let mut listing = repo.listing();
        listing["siblings"][0][key] = value.into();
        let server = Server::start(move |request, _| match request.path == repo.api_path() {
            true => Answer::new(200, listing.to_string()),
            false => repo.answer(request),
        });
        failed(&get(folder.path(), &server, &["hf:me/texts"]), 7, &["is not"]);
        assert!(server.requests("/resolve/").is_empty(), "{value}");
        assert!(!folder.path().join("hf").exists(), "{value}");
    }
}

/// Parts by configuration, folder and file. Data for tests is left out, and `prepare` needs no server.
#[test]
fn a_part_of_a_data_set_is_fetched_and_prepared() {
    let folder = temporary();
    let path = folder.path();
    let lines = |word: &str| format!("{{\"text\": \"{word} {}\"}}\n", STORY.trim()).repeat(40);
    let mut repo = Repo::new("me/parts", true, &[("README.md", b"# About")]);
    for (file, word) in [
        ("sample/10BT/train-0.jsonl", "small"),
        ("sample/10BT/train-1.jsonl", "small"),
        ("sample/10BT/validation-0.jsonl", "secret"),
        ("full/a.jsonl", "large"),
        ("full/b.txt", "other"),
    ] {
        repo.files.insert(file.into(), lines(word).into());
    }
    let card = |configs: Value| json!({ "license": ["odc-by"], "configs": configs });
    let small = json!({
        "config_name": "sample-10BT",
        "data_files": [
            { "split": "train", "path": "sample/10BT/train-*" },
            { "split": "validation", "path": ["sample/*/validation-*"] },
        ],
    });
    repo.card = card(json!([small, { "config_name": "full", "data_files": "full/*" }]));
    let server = Server::start(move |request, _| repo.answer(request));
    let whole = get(path, &server, &["hf:me/parts"]);
    failed(&whole, 2, &["several parts", " hf:me/parts#sample-10BT: ", "full"]);
    failed(
        &get(path, &server, &["hf:me/parts#none"]),
        7,
        &["no configuration", "sample-10BT, full"],
    );
    let said = succeeded(&get(path, &server, &["hf:me/parts#sample-10BT"]));
    assert!(said.contains("a data set: 2 files") && said.contains("licence: odc-by"), "{said}");
    let next = " prepare 'hf:me/parts#sample-10BT' -o data/sample-10BT\n";
    assert!(cfg!(windows) || said.ends_with(next), "{said}");
    let prepare = |name: &str, output: &str| {
        let output = offline(path, &["prepare", name, "-o", output, "--tokenizer=byte"]);
        succeeded(&output);
        text(&output.stdout)
    };
    let out = prepare("hf:me/parts#sample-10BT", "small");
    assert!(out.contains("read 2 files, 80 documents"), "{out}");
    // One format, as other formats have the same texts again; and a file by its name.
    succeeded(&get(path, &server, &["hf:me/parts#full"]));
    assert!(prepare("hf:me/parts#full", "full").contains("read 1 file, 40 documents"));
    succeeded(&get(path, &server, &["hf:me/parts#full/b.txt"]));
    // Its name says less than its content.
    assert!(prepare("hf:me/parts#full/b.txt", "b").contains("read 1 file, 40 documents"));
    // Other parts may have files that are not here.
    for part in ["hf:me/parts#sample", "hf:me/parts"] {
        let output = offline(path, &["prepare", part, "-o", "x"]);
        failed(&output, 7, &[&format!("`wgpt get {part}`")]);
    }
    let other = offline(path, &["prepare", "hf:me/else", "-o", "y"]);
    failed(&other, 7, &["hf:me/else has not been fetched", "`wgpt get hf:me/else`"]);
    failed(&offline(path, &["prepare", "hf:models/me/parts", "-o", "y"]), 2, &["a text is needed"]);
}

/// What other programs have put into the cache has no list of wgpt's.
#[test]
fn files_that_other_programs_fetched_are_used() {
    let folder = temporary();
    let repo = folder.path().join("hf/hub/datasets--me--theirs");
    let snapshot = repo.join("snapshots").join(COMMIT);
    fs::create_dir_all(repo.join("refs")).unwrap();
    fs::create_dir_all(snapshot.join("data")).unwrap();
    fs::write(repo.join("refs/main"), COMMIT).unwrap();
    fs::write(snapshot.join("README.md"), "about").unwrap();
    fs::write(snapshot.join("data/a.txt"), STORY.repeat(40)).unwrap();
    let output = offline(folder.path(), &["prepare", "hf:me/theirs", "-o", "data"]);
    succeeded(&output);
    assert!(text(&output.stdout).contains("read 1 file, 1 document"));
    // A commit is no path.
    fs::write(repo.join("refs/main"), "../../..").unwrap();
    failed(&offline(folder.path(), &["prepare", "hf:me/theirs", "-o", "x"]), 7, &["wgpt get"]);
}

#[test]
fn more_than_a_gigabyte_needs_a_yes() {
    let folder = temporary();
    let repo = texts();
    let mut listing = repo.listing();
    listing["siblings"][0]["lfs"]["size"] = 1_500_000_000_u64.into();
    let server = Server::start(move |request, _| match request.path == repo.api_path() {
        true => Answer::new(200, listing.to_string()),
        false => repo.answer(request),
    });
    let said = failed(&get(folder.path(), &server, &["hf:me/texts"]), 2, &["1.40 GiB", "--yes"]);
    assert!(server.requests("/resolve/").is_empty(), "{said}");
    // With it, the server is asked, whose file is shorter.
    failed(&get(folder.path(), &server, &["hf:me/texts", "--yes"]), 7, &["the repository lists"]);
    let full = Repo::new("me/texts", true, &[("train.txt", STORY.repeat(100).as_bytes())]);
    let mut listing = full.listing();
    listing["siblings"][0]["lfs"]["size"] = (1_u64 << 60).into();
    let server = Server::start(move |_, _| Answer::new(200, listing.to_string()));
    failed(
        &get(folder.path(), &server, &["hf:datasets/me/texts", "--yes"]),
        1,
        &["the disk has", "HF_HOME"],
    );
}

/// A file by its address: continued after the last bytes that were synced if it is still the same, else fetched
/// again.
#[test]
fn a_file_by_its_address_is_continued_if_it_is_still_the_same() {
    let folder = temporary();
    let path = folder.path();
    let (synced, half) = (4 << 20, 5 << 20);
    let long = STORY.repeat(2 * half / STORY.len());
    let [old, new] = ["old ", "new "].map(|word| [word, &long].concat().into_bytes());
    let contents = [old.clone(), new.clone()];
    let server = Server::start(move |request, earlier| {
        let at = usize::from(earlier > 1);
        let tag = format!("\"{at}\"");
        let is_same = request.header("if-range").is_some_and(|sent| sent == tag);
        let mut rest = request.clone();
        if !is_same {
            rest.headers.remove("range");
        }
        let mut answer = Answer::file(&rest, &contents[at]);
        answer.headers.push(("etag", tag));
        // The first file stalls after its middle, so that a kill can hit it.
        match earlier {
            0 => Answer { after: After::Stall, ..answer.cut(half) },
            _ => answer,
        }
    });
    let address = format!("{}/my%20book.txt?x=1", server.address);
    let mut child = with_hub(path, &server.address)
        .args(["get", &address])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let partial = path.join("data/.my book.txt.incomplete");
    let began = Instant::now();
    while fs::metadata(&partial).map_or(0, |found| found.len()) < half as u64 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing arrives");
        std::thread::sleep(Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let output = get(path, &server, &[&address]);
    let said = succeeded(&output);
    assert!(text(&output.stdout).contains("not verified"), "{}", text(&output.stdout));
    assert!(said.contains("prepare it with: "), "{said}");
    let requests = server.requests("book");
    assert_eq!(requests[1].header("range"), Some(format!("bytes={synced}-").as_str()));
    assert_eq!(fs::read(path.join("data/my book.txt")).unwrap(), old);
    assert_eq!(names(&path.join("data")), ["my book.txt"]);
    // It is not fetched over a file that is there.
    succeeded(&get(path, &server, &[&address]));
    assert_eq!(server.requests("book").len(), 2);
    // Another version on the server, after the first half of the old one.
    fs::remove_file(path.join("data/my book.txt")).unwrap();
    fs::write(&partial, &old[..half]).unwrap();
    fs::write(path.join("data/.my book.txt.version"), format!("{address}\n\"0\"")).unwrap();
    succeeded(&get(path, &server, &[&address]));
    assert_eq!(fs::read(path.join("data/my book.txt")).unwrap(), new);
    let no_name = get(path, &server, &[&format!("{}/", server.address)]);
    failed(&no_name, 2, &["does not end with the name of a file"]);
}

/// A file of this name that is another one is neither overwritten nor taken for the questions.
#[test]
fn another_file_of_the_same_name_is_kept() {
    let folder = temporary();
    let path = folder.path().join("data/hellaswag_val.jsonl");
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(&path, "mine").unwrap();
    let output = offline(folder.path(), &["get", "hellaswag"]);
    failed(&output, 7, &["is a different file", "move it elsewhere"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn the_list_names_texts_and_models() {
    let folder = temporary();
    let list = ok(folder.path(), &["get", "--list"]);
    for part in ["texts", "models", "hf:roneneldan/TinyStories", "CDLA-Sharing 1.0", "hellaswag"] {
        assert!(list.contains(part), "no {part} in {list}");
    }
    assert!(list.lines().all(|line| line.len() <= 80), "{list}");
    let output = run(folder.path(), &["get"]);
    assert_eq!(output.status.code(), Some(2));
}

/// Runs commands under `strace`, which sees every socket that they open.
#[cfg(target_os = "linux")]
#[test]
fn no_other_command_opens_a_connection() {
    let folder = temporary();
    let path = folder.path();
    let strace = |args: &[&str]| {
        let mut command = with_hub(path, "http://127.0.0.1:9");
        traced(command.args(args), "network")
    };
    let is_connection =
        |log: &str| log.lines().find(|line| line.contains("AF_INET")).map(str::to_string);
    let Some((_, log)) = strace(&["get", "hf:me/texts"]) else { return };
    assert!(is_connection(&log).is_some(), "the test sees no connection: {log}");
    fs::write(path.join("story.txt"), STORY.repeat(200)).unwrap();
    let train = [&["train", "--run=r"], TINY, &["--data=data"]].concat();
    let resume = ["train", "--resume", "--run=r", "--max_iters=42", "--device=cpu"];
    for (args, succeeds) in [
        (&["prepare", "story.txt", "-o", "data", "--tokenizer=bpe:300"][..], true),
        (&train, true),
        (&resume, true),
        (&["train", "--init_from=hf:me/tiny", "--data=data", "--device=cpu"], false),
        (&["sample", "r", "--max-new-tokens=5", "--device=cpu"], true),
        (&["sample", "hf:me/tiny", "--device=cpu"], false),
        (&["chat", "hf:me/tiny", "--device=cpu"], false),
        (&["eval", "r", "--device=cpu"], true),
        (&["prepare", "hf:me/texts", "-o", "other"], false),
        (&["plan", "--preset=gpt2", "--target=RTX 3060"], true),
        (&["export", "r", "-o", "model"], true),
        (&["import", "model", "-o", "back"], true),
        (&["report", "r"], true),
        (&["compare", "r", "r"], true),
        (&["runs", "."], true),
        (&["devices"], true),
        (&["doctor"], true),
        (&["config", "show"], true),
        (&["get", "--list"], true),
        (&["completions", "bash"], true),
    ] {
        let (output, log) = strace(args).expect("strace ran before");
        assert_eq!(output.status.success(), succeeds, "{args:?}: {}", text(&output.stderr));
        assert_eq!(is_connection(&log), None, "{args:?}");
    }
}
