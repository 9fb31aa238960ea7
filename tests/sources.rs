//! Checks the rules between modules, which docs/architecture.md lists, by reading the sources under `src/`.
//!
//! clippy.toml and the lints in Cargo.toml and src/lib.rs check the rules that clippy can express.
//! `profile` checks the list of crates in Cargo.toml, and `release` what goes into a release.

use std::path::Path;

use fancy_regex::{Captures, Regex};

#[path = "sources/profile.rs"]
mod profile;
// Runs scripts for bash.
#[cfg(unix)]
#[path = "sources/release.rs"]
mod release;

/// The modules of `src/` from the ground up. A module names only modules on floors below its own.
const FLOORS: &str = "text disk version, config, plan, protocol, browser, data hub, gpu, ops, model, eval, ranks, runs, \
                      train, bench, doctor report, worker, gui, cli web, lib main";

/// A pattern that code must not contain, in some files and folders or except in some.
struct Rule {
    pattern: &'static str,
    places: &'static str,
    reason: &'static str,
}

const RULES: &[Rule] = &[
    Rule {
        pattern: r"\b(clap\w*|indicatif|egui\w*|eframe|winit|rfd)(::|;| as )",
        places: "except worker/ gui/ cli/ web/ main.rs",
        reason: "only front ends use the crates of front ends",
    },
    Rule {
        pattern: r"\bburn\w*(::|;| as )",
        places: "in worker/ gui/ cli/ web/ main.rs",
        reason: "front ends use no tensor",
    },
    Rule {
        // The window tells eframe which graphics APIs it must not use.
        pattern: r"(?i)wgpu|cubecl",
        places: "except gpu/ ops/ gui/platform/desktop/window.rs",
        reason: "only gpu and ops name graphics APIs",
    },
    Rule {
        pattern: r"\bstd::(\{[^;]*\b)?(fs|env|io|net|process|thread)\b(?!::ExitCode)|\b(Instant|SystemTime)\b|\b(rand\w*|getrandom|fastrand|burn\w*)::",
        places: "in text/ config/ plan/ protocol/ version.rs",
        reason: "this module is pure: no I/O, clock, randomness or tensor",
    },
    Rule {
        // Each exception gives its reason in its `allow`.
        pattern: r"\bunsafe_code\b",
        places: "except lib.rs main.rs cli/allocator.rs ops/shared/cube/mod.rs ops/shared/cpu/product.rs ranks/mpi.rs \
                 gpu/launch/cuda.rs gpu/launch/cublas.rs gpu/launch/cublas/library.rs \
                 gpu/device/cuda.rs gpu/device/threads.rs gpu/device/adapter/query.rs \
                 gpu/device/adapter/instance.rs gpu/device/adapter/matrices.rs gpu/device/adapter/vulkan/ \
                 worker/desktop/signals/session.rs train/clock.rs \
                 gpu/sensors/display.rs",
        reason: "unsafe code",
    },
    Rule {
        // The exceptions serve something that is global itself: the browser's file system, the drivers of Vulkan and
        // CUDA, cuBLASLt, cubecl's observer and streams, the allocator, the memory that CPU ops reuse and a
        // window of Windows.
        pattern: r"(?<!')\bstatic\s+(mut\b|\w+\s*:[^=;]*(Mutex|RwLock|\bAtomic|\bOnce|Lazy|Cell\b|Condvar))",
        places: "except cli/allocator.rs disk/pool/mounted.rs gpu/launch/observer.rs gpu/launch/queue.rs gpu/launch/cuda.rs \
                 gpu/launch/cublas.rs gpu/launch/cublas/library.rs gpu/device/adapter/vulkan/device.rs \
                 ops/shared/cpu/memory.rs worker/desktop/signals/session.rs",
        reason: "global mutable state",
    },
    Rule {
        pattern: r"\b(web_sys|js_sys|wasm_bindgen\w*)(::|;| as )",
        places: "except browser/ web/ worker/browser/ gui/platform/browser/",
        reason: "only the browser modules call the browser",
    },
    Rule {
        // The last two do not run in browsers: a data format, and CUDA's driver.
        pattern: r"\bstd::(\{[^;]*\b)?fs\b",
        places: "except disk/ cli/ gui/platform/desktop/ data/source/platform/parquet gpu/device/cuda.rs",
        reason: "use `disk` for files",
    },
    Rule {
        pattern: r"\b(ureq|rustls|hf_hub|reqwest|hyper|curl|native_tls|socket2)(::|;| as )|\bstd::(\{[^;]*\b)?net\b",
        places: "except hub/",
        reason: "only hub opens connections",
    },
    Rule {
        // `code` keeps no other literals. The exceptions print or paint a label.
        pattern: r#""(error|hint|warning):""#,
        places: "except cli/allocator.rs cli/terminal.rs",
        reason: "looks for a label in text: let an error cross as a value",
    },
];

#[test]
fn sources_keep_the_rules() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut failures = Vec::new();
    check_folder(&src, "", &mut failures);
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn check_folder(folder: &Path, prefix: &str, failures: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).expect("src/ is readable") {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.path().is_dir() {
            check_folder(&entry.path(), &format!("{path}/"), failures);
        } else if path.ends_with(".rs") {
            failures.extend(check(&path, &std::fs::read_to_string(entry.path()).unwrap()));
        }
    }
}

fn floor(module: &str) -> Option<usize> {
    FLOORS.split(", ").position(|floor| floor.split(' ').any(|name| name == module))
}

/// Returns the violations in a file, except in its tests, each as `src/PATH:LINE: WHAT`.
fn check(path: &str, source: &str) -> Vec<String> {
    let module = path.split('/').next().unwrap().trim_end_matches(".rs");
    let Some(own) = floor(module) else {
        return vec![format!("src/{path}:1: a new module: give it a floor in tests/sources.rs")];
    };
    if path.ends_with("/tests.rs") || path.contains("/tests/") {
        return Vec::new();
    }
    let is_in = |places: &str| places.split_whitespace().any(|place| path.starts_with(place));
    let code = code(source);
    let mut found = Vec::new();
    let mut refuse = |at: usize, what: String| {
        found.push(format!("src/{path}:{}: {what}", code[..at].matches('\n').count() + 1));
    };
    let vague = Regex::new(r"\b(utils?|helpers?|common|managers?)\b").unwrap();
    if vague.is_match(path).unwrap() {
        refuse(0, "the name does not describe the content".into());
    }
    let names = Regex::new(r"(?<![\w:])(?:(?:crate|super|wgpt)::)*(\w+)::").unwrap();
    for captures in names.captures_iter(&code) {
        let name = captures.unwrap().get(1).unwrap();
        let is_above = floor(name.as_str()).is_some_and(|floor| floor >= own);
        if is_above && name.as_str() != module {
            refuse(name.start(), format!("names {}, which is not on a floor below", name.as_str()));
        }
    }
    let applies = |rule: &&Rule| is_in(rule.places) == rule.places.starts_with("in ");
    for rule in RULES.iter().filter(applies) {
        for hit in Regex::new(rule.pattern).unwrap().find_iter(&code).map(Result::unwrap) {
            refuse(hit.start(), format!("{}: {}", hit.as_str(), rule.reason));
        }
    }
    found
}

/// Returns Rust code without comments, literals and the tests at its end, with its line breaks.
fn code(source: &str) -> String {
    let other = r#"(?s)#\[cfg\(test\)\]\n[^\n;]*mod \w+ \{.*|//[^\n]*|/\*.*?\*/|\bb?r"[^"]*"|\bb?r\#".*?"\#|"(?:\\.|[^"\\])*"|'(?:\\.[^']*|[^'\\])'"#;
    let blank = |found: &Captures<'_, str>| {
        let label = found[0].trim_matches('"').replace("\\n", " ");
        let label = label.trim();
        match label {
            "error:" | "hint:" | "warning:" => format!("\"{label}\""),
            _ => "\n".repeat(found[0].matches('\n').count()),
        }
    };
    Regex::new(other).unwrap().replace_all(source, blank).into_owned()
}

#[test]
fn violations_are_found() {
    for (path, code) in [
        ("model/a.rs", "extern crate winit;"),
        ("protocol/event.rs", "fn f() { super::cli::main() }"),
        ("main.rs", "use burn as b;"),
        ("model/a.rs", "fn f() { Device::wgpu_options() }"),
        ("protocol/progress.rs", "use std::time::{Duration, Instant};"),
        ("plan.rs", "use super::gpu::DeviceInfo;"),
        ("gpu/a.rs", "#[allow(unsafe_code)] fn f() {}"),
        ("data/a.rs", "pub static TABLE: std::sync::OnceLock<u8> = OnceLock::new();"),
        ("cli/a.rs", "thread_local! { static BAR: RefCell<u8> = const { RefCell::new(0) }; }"),
        ("train/a.rs", "fn f() { js_sys::global() }"),
        ("worker/a.rs", "let at = stderr.find(\"\\n  hint: \");"),
        ("runs/a.rs", "use std::{fs, net::TcpStream};"),
        ("data/utils.rs", ""),
        ("other.rs", ""),
    ] {
        let source = format!("const A: [char; 2] = ['\"', '\\''];\n/* \" ' */\n{code}\n");
        assert!(!check(path, &source).is_empty(), "{path}: {code}");
    }
    for (path, code) in [
        ("plan.rs", "//! Reads no std::fs, and burn::Tensor is elsewhere."),
        ("train/a.rs", r##"const A: &str = r#"use clap::Parser; " wgpu::Device"#;"##),
        ("config/a.rs", r#"#[cfg(feature = "wgpu")] fn f<'a>(x: &'a str, y: &'static str) {}"#),
        ("data/a.rs", "static NAME: &str = \"x\"; struct Cells { cell: std::cell::Cell<u8> }"),
        ("data/a.rs", "use crate::disk;\n#[cfg(test)]\nmod tests { use std::fs; }"),
        ("gui/platform/browser/a.rs", "use web_sys::File; use crate::browser::document;"),
    ] {
        assert_eq!(check(path, code), Vec::<String>::new(), "{code}");
    }
}
