//! Checks the rules between modules by reading the sources under `src/`.
//!
//! 1. `train` and everything below it name no front end. Front ends name no tensor.
//! 2. Only `gpu` and `ops` name wgpu or cubecl, but for the setup of the window.
//! 3. `config`, `plan` and `protocol` are pure: no I/O, no clock, no randomness, no device.
//! 4. Unsafe code is allowed in ten files and global mutable state in six. No file has a name like
//!    `utils`.
//! 5. Only `web`, `worker/browser` and `gui/platform/browser` call the browser. Only `disk` and
//!    desktop front ends open files.
//! 6. No text crosses between our own processes: nothing looks for a label like `error:` in what a
//!    process printed, no command line is built from the one that was typed, and `worker` alone starts
//!    this program again.
//! 7. Only `hub` opens connections, for `wgpt get` alone: no other module names the HTTP crate or `std::net`.
//! 8. Nothing prints past the functions of `cli` that make the control characters of others visible.
//!
//! `sizes` checks the budgets of folders, files and types; `profile` the list of crates in Cargo.toml;
//! `release` the sources that go into a release.
//!
//! The sources are first split into tokens, without comments and literals. Every module needs a line in
//! [`MODULES`], so that a renamed module keeps its rules.

use std::path::{Path, PathBuf};

// Scripts for bash.
#[path = "sources/profile.rs"]
mod profile;
#[cfg(unix)]
#[path = "sources/release.rs"]
mod release;
#[path = "sources/sizes.rs"]
mod sizes;
#[path = "sources/tokens.rs"]
mod tokens;

use tokens::{Token, paths, strings, tokens};

/// The layer of a module decides what the module may name.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layer {
    /// Values in, values out.
    Pure,
    /// Files, clocks and tensors, but no front end and no graphics API.
    Core,
    /// As `Core`, and graphics APIs.
    Device,
    /// Events in, commands out, no tensors.
    Front,
}

/// The modules of `src/`, by the name of their file or folder.
const MODULES: &[(&str, Layer)] = &[
    ("text", Layer::Pure),
    ("config", Layer::Pure),
    ("plan", Layer::Pure),
    ("protocol", Layer::Pure),
    ("version", Layer::Pure),
    ("lib", Layer::Core),
    ("data", Layer::Core),
    ("disk", Layer::Core),
    ("model", Layer::Core),
    ("train", Layer::Core),
    ("bench", Layer::Core),
    ("eval", Layer::Core),
    ("runs", Layer::Core),
    ("report", Layer::Core),
    ("ranks", Layer::Core),
    ("doctor", Layer::Core),
    ("hub", Layer::Core),
    ("gpu", Layer::Device),
    ("ops", Layer::Device),
    ("cli", Layer::Front),
    ("gui", Layer::Front),
    ("web", Layer::Front),
    ("worker", Layer::Front),
    ("main", Layer::Front),
];

/// Each entry also matches crates with this prefix: `egui_plot`, `rand_chacha`.
const UI_CRATES: &[&str] = &["clap", "indicatif", "egui", "eframe", "winit", "rfd"];
const TENSOR_CRATES: &[&str] = &["burn"];
const RANDOM_CRATES: &[&str] = &["rand", "getrandom", "fastrand"];
/// Matched as parts of names, as in `Device::wgpu_options`.
const GRAPHICS: &[&str] = &["wgpu", "cubecl"];
const IMPURE_STD: &[&str] = &["fs", "env", "io", "net", "process", "thread"];
const CLOCKS: &[&str] = &["Instant", "SystemTime"];
const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln", "dbg"];
/// Types with interior mutability, which make a `static` mutable.
const INTERIOR: &[&str] = &["Mutex", "RwLock", "Atomic", "Once", "Lazy", "Cell", "Condvar"];
/// Vague file names, without a final `s`.
const VAGUE_NAMES: &[&str] = &["util", "helper", "common", "manager"];

#[test]
fn sources_keep_the_rules() {
    let files = collect(&src());
    let mut failures: Vec<String> =
        files.iter().flat_map(|(path, source)| check(path, source)).collect();
    for (module, _) in MODULES {
        if !files.iter().any(|(path, _)| module_of(path) == *module) {
            failures.push(format!("src/{module}: does not exist; remove it from MODULES"));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn src() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// Returns the Rust files below `folder` with their paths relative to it, sorted, and their text.
fn collect(folder: &Path) -> Vec<(String, String)> {
    let mut files = Vec::new();
    collect_into(folder, "", &mut files);
    files
}

fn collect_into(folder: &Path, prefix: &str, files: &mut Vec<(String, String)>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(folder).expect("src/ is readable").map(Result::unwrap).collect();
    entries.sort_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().unwrap().is_dir() {
            collect_into(&entry.path(), &format!("{name}/"), files);
        } else if name.ends_with(".rs") {
            files.push((name, std::fs::read_to_string(entry.path()).unwrap()));
        }
    }
}

/// Returns the module of a file: `train` for `train/session.rs`, `plan` for `plan.rs`.
fn module_of(path: &str) -> &str {
    path.split('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn layer_of(module: &str) -> Option<Layer> {
    MODULES.iter().find(|(name, _)| *name == module).map(|(_, layer)| *layer)
}

/// Returns the violations in one file, each as `src/PATH:LINE: WHAT (invariant N)`.
fn check(path: &str, source: &str) -> Vec<String> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let tokens = tokens(source);
    match layer_of(module_of(path)) {
        Some(layer) => check_names(path, layer, &tokens, &mut found),
        None => found.push((1, "a new module: give it a layer in tests/sources.rs".into())),
    }
    check_safety(path, &tokens, &mut found);
    if !STATE_IN.contains(&path) {
        check_statics(&tokens, &mut found);
    }
    check_places(path, &tokens, &mut found);
    check_connections(path, &tokens, &mut found);
    for name in path.trim_end_matches(".rs").split('/') {
        if VAGUE_NAMES.contains(&name.trim_end_matches('s')) {
            found.push((1, format!("`{name}` does not describe its content (invariant 4)")));
        }
    }
    check_processes(path, &tokens, &strings(source), &mut found);
    found.sort();
    found.dedup();
    found.into_iter().map(|(line, what)| format!("src/{path}:{line}: {what}")).collect()
}

/// The file that tells eframe which graphics APIs not to draw with.
const NAMES_GRAPHICS: &[&str] = &["gui/platform/desktop/window.rs"];

/// Checks invariants 1 to 3.
fn check_names(path: &str, layer: Layer, tokens: &[Token<'_>], found: &mut Vec<(usize, String)>) {
    for named in paths(tokens) {
        let mut refuse = |rule: &str| {
            found.push((named.line, format!("names {}: {rule}", named.segments.join("::"))));
        };
        if layer != Layer::Front {
            let front = named.module().and_then(layer_of) == Some(Layer::Front);
            if front || named.is_of(UI_CRATES) {
                refuse("train and everything below it name no front end (invariant 1)");
            }
        } else if named.is_of(TENSOR_CRATES) {
            refuse("front ends name no tensor (invariant 1)");
        }
        if layer == Layer::Pure {
            let impure_std = matches!(named.segments[..], ["std", part, ..] if IMPURE_STD.contains(&part))
                && named.segments != ["std", "process", "ExitCode"];
            let impure_module =
                named.module().and_then(layer_of).is_some_and(|layer| layer != Layer::Pure);
            if impure_std || impure_module {
                refuse("this module is pure: no I/O and no device (invariant 3)");
            }
            if named.is_of(TENSOR_CRATES) || named.is_of(RANDOM_CRATES) {
                refuse("this module is pure: no tensors and no randomness (invariant 3)");
            }
        }
    }
    for (index, token) in tokens.iter().enumerate() {
        let lower = token.text.to_ascii_lowercase();
        let may_name = layer == Layer::Device || NAMES_GRAPHICS.contains(&path);
        if !may_name && GRAPHICS.iter().any(|part| lower.contains(part)) {
            let what = format!("names {}: only gpu and ops may (invariant 2)", token.text);
            found.push((token.line, what));
        }
        let is_macro = tokens.get(index + 1).is_some_and(|next| next.text == "!");
        let prints = is_macro && PRINTING.contains(&token.text);
        if layer == Layer::Pure && (prints || CLOCKS.contains(&token.text)) {
            let what = format!("names {}: this module is pure (invariant 3)", token.text);
            found.push((token.line, what));
        }
    }
    for pair in without_tests(path, tokens).windows(2) {
        let prints = PRINTING.contains(&pair[0].text) && pair[1].text == "!";
        if layer != Layer::Pure && prints {
            let what = format!("{}!: print through cli/terminal.rs (invariant 8)", pair[0].text);
            found.push((pair[0].line, what));
        }
    }
}

/// Crates for browser APIs.
const BROWSER_CRATES: &[&str] = &["web_sys", "js_sys", "wasm_bindgen"];
const BROWSER_IN: &[&str] = &["web/", "worker/browser/", "gui/platform/browser/"];

/// Files that may call `std::fs`: `disk`, desktop front ends, and code that browsers do not run (a
/// data format that is not read there, a driver).
const FILES_IN: &[&str] =
    &["disk/", "cli/", "gui/platform/desktop/", "data/source/parquet.rs", "gpu/cuda.rs"];

/// Returns the tokens of a file without its tests.
fn without_tests<'t, 's>(path: &str, tokens: &'t [Token<'s>]) -> &'t [Token<'s>] {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    if path.ends_with("/tests.rs") || path.contains("/tests/") {
        return &[];
    }
    let is_test = |window: &[Token<'_>]| window.iter().map(|token| token.text).eq(TEST);
    let end = tokens.windows(TEST.len()).position(is_test).unwrap_or(tokens.len());
    &tokens[..end]
}

/// Checks invariant 5, so that the code for files is the same on the desktop and in a browser. Tests
/// are exempt.
fn check_places(path: &str, tokens: &[Token<'_>], found: &mut Vec<(usize, String)>) {
    let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    for named in paths(without_tests(path, tokens)) {
        let mut refuse = |rule: &str| {
            found.push((named.line, format!("names {}: {rule}", named.segments.join("::"))));
        };
        if named.is_of(BROWSER_CRATES) && !is_in(BROWSER_IN) {
            refuse(
                "only web, worker/browser and gui/platform/browser call the browser (invariant 5)",
            );
        }
        if matches!(named.segments[..], ["std", "fs", ..]) && !is_in(FILES_IN) {
            refuse("use `disk` for files (invariant 5)");
        }
    }
}

/// Crates for connections, also those that could replace the one in use.
const NETWORK_CRATES: &[&str] =
    &["ureq", "rustls", "hf_hub", "reqwest", "hyper", "curl", "native_tls", "socket2"];

/// Checks invariant 7. A test at the level of the program looks at its system calls.
fn check_connections(path: &str, tokens: &[Token<'_>], found: &mut Vec<(usize, String)>) {
    for named in paths(without_tests(path, tokens)) {
        let is_net = matches!(named.segments[..], ["std", "net", ..]);
        if (is_net || named.is_of(NETWORK_CRATES)) && !path.starts_with("hub/") {
            let what =
                format!("names {}: only hub connects (invariant 7)", named.segments.join("::"));
            found.push((named.line, what));
        }
    }
}

/// Files that print or paint a label by itself. A label in a format string with a text after it is
/// printed. A label without one is searched for.
const LABELS_IN: &[&str] = &["cli/allocator.rs", "cli/terminal.rs"];
const LABELS: &[&str] = &["error:", "hint:", "warning:"];

/// Files that read the typed command line: to parse it, to name the program in a message, and to start
/// the window again without a console on Windows, with all that was typed.
const TYPED_IN: &[&str] = &["cli/mod.rs", "cli/next.rs", "gui/platform/desktop/explorer.rs"];

/// Files that name this program's file to start it: as a worker, and, on Windows, without a console.
const STARTS_IN: &[&str] = &["worker/", "gui/platform/desktop/explorer.rs"];

/// Checks invariant 6. Tests are exempt, because they start the program as a user does.
fn check_processes(
    path: &str,
    tokens: &[Token<'_>],
    strings: &[Token<'_>],
    found: &mut Vec<(usize, String)>,
) {
    let tokens = without_tests(path, tokens);
    let last = tokens.last().map_or(0, |token| token.line);
    let is_in = |places: &[&str]| places.iter().any(|place| path.starts_with(place));
    let mut refuse = |line, rule: String| found.push((line, format!("{rule} (invariant 6)")));
    for string in strings.iter().filter(|string| string.line <= last && !is_in(LABELS_IN)) {
        let text = string.text.trim_matches(['r', '#', '"']).replace("\\n", " ");
        if LABELS.contains(&text.trim()) {
            refuse(
                string.line,
                format!("looks for {}: let an error cross as a value", string.text),
            );
        }
    }
    let starts = tokens.iter().any(|token| token.text == "Command" || token.text == "Process");
    for named in paths(tokens) {
        let last = named.segments.last().copied().unwrap_or_default();
        let of_env = named.segments.contains(&"env");
        if of_env && ["args", "args_os"].contains(&last) && !is_in(TYPED_IN) {
            refuse(named.line, "reads the typed command line: take parsed arguments".into());
        }
        if of_env && last == "current_exe" && starts && !is_in(STARTS_IN) {
            refuse(named.line, "starts this program again: let worker do that".into());
        }
    }
}

/// The exceptions to invariant 4. These are unsafe functions: launches of cubecl kernels, which guard
/// their own bounds, the creation of a Vulkan instance and of a device through wgpu-hal, wgpu's token of
/// experimental features, queries of CUDA's driver and of wgpu's handles to the graphics APIs, the CPU's
/// matrix product, which takes pointers, its control register of denormals, MPI, a C library, and the functions
/// of an allocator.
const UNSAFE_IN: [&str; 10] = [
    "cli/allocator.rs",
    "ops/shared/cube/mod.rs",
    "ops/shared/cpu/product.rs",
    "gpu/cuda.rs",
    "gpu/granted.rs",
    "gpu/instance.rs",
    "gpu/matrices.rs",
    "gpu/threads.rs",
    "gpu/vulkan.rs",
    "ranks/mpi.rs",
];

/// Invariant 4: unsafe code is denied where each crate begins, and allowed once in each exception.
fn check_safety(path: &str, tokens: &[Token<'_>], found: &mut Vec<(usize, String)>) {
    const DENY: [&str; 8] = ["#", "!", "[", "deny", "(", "unsafe_code", ")", "]"];
    let is_root = path == "lib.rs" || path == "main.rs";
    let denial = tokens
        .windows(DENY.len())
        .position(|window| is_root && window.iter().map(|token| token.text).eq(DENY));
    if is_root && denial.is_none() {
        found.push((1, "no #![deny(unsafe_code)] (invariant 4)".into()));
    }
    let mut exceptions = usize::from(UNSAFE_IN.contains(&path));
    for (index, token) in tokens.iter().enumerate() {
        if token.text == "unsafe_code" && exceptions > 0 {
            exceptions -= 1;
        } else if token.text == "unsafe_code" && denial.is_none_or(|start| index != start + 5) {
            found.push((token.line, "changes the lint unsafe_code (invariant 4)".into()));
        }
    }
}

/// The exceptions to invariant 4: the browser's file system, which is global like an operating
/// system's, the functions of Vulkan's drivers, which are called with nothing but a device, the name of
/// the next launch for cubecl's observer, which is global, and the memory of CPU tensors that ops reuse,
/// which is part of the allocator. No result depends on it. The recorder of disk calls is only for tests, and
/// the program's allocator notes a refusal for the message that ends the process.
const STATE_IN: &[&str] = &[
    "cli/allocator.rs",
    "disk/pool/mounted.rs",
    "disk/recorder.rs",
    "gpu/stopwatch.rs",
    "gpu/vulkan.rs",
    "ops/shared/cpu/memory.rs",
];

/// Checks invariant 4: no `static mut`, and no `static` with interior mutability.
fn check_statics(tokens: &[Token<'_>], found: &mut Vec<(usize, String)>) {
    for (index, token) in tokens.iter().enumerate() {
        if token.text != "static" {
            continue;
        }
        let mut declared = tokens[index + 1..].iter().take_while(|t| !["=", ";"].contains(&t.text));
        let mutable = |t: &Token<'_>| {
            t.text == "mut" || INTERIOR.iter().any(|name| is_interior(t.text, name))
        };
        if declared.any(mutable) {
            found.push((token.line, "global mutable state (invariant 4)".into()));
        }
    }
}

/// Matches prefixes and suffixes: `AtomicBool` of `Atomic`, `OnceLock` of `Once`, `RefCell` of
/// `Cell`.
fn is_interior(text: &str, name: &str) -> bool {
    text.starts_with(name) || text.ends_with(name)
}

#[test]
fn violations_are_found() {
    for (path, code, invariant) in [
        ("train/a.rs", "use clap::Parser;", 1),
        ("config/a.rs", "fn f(bar: &indicatif::ProgressBar) {}", 1),
        ("data/a.rs", "use {::egui_plot::Plot, std::fmt};", 1),
        ("model/a.rs", "extern crate winit;", 1),
        ("gpu/a.rs", "use crate::{config, cli::args as typed};", 1),
        ("protocol/event.rs", "fn f() { super::cli::main() }", 1),
        ("cli/a.rs", "fn f(x: Vec<burn::tensor::Tensor<2>>) {}", 1),
        ("main.rs", "use burn as b;", 1),
        ("train/a.rs", "use wgpu;", 2),
        ("model/a.rs", "fn f() { Device::wgpu_options() }", 2),
        ("data/a.rs", "use burn::{backend::{Wgpu as W, Flex}, tensor};", 2),
        ("cli/a.rs", "let kernel = burn_cubecl::kernel;", 2),
        ("config/a.rs", "use std::{fmt, fs::{self, File}};", 3),
        ("plan.rs", "let home = std::env::var(name);", 3),
        ("protocol/progress.rs", "use std::time::{Duration, Instant};", 3),
        ("protocol/event.rs", "let now = time::SystemTime::now();", 3),
        ("plan.rs", "use burn::tensor::Shape;", 3),
        ("plan.rs", "use rand_chacha::ChaCha8Rng;", 3),
        ("plan.rs", "use super::gpu::DeviceInfo;", 3),
        ("protocol/progress.rs", "fn f() { println!() }", 3),
        ("main.rs", "#![warn(unsafe_code)]", 4),
        ("gpu/a.rs", "#[allow(unsafe_code)] fn f() {}", 4),
        ("ops/a.rs", "static mut COUNT: u32 = 0;", 4),
        ("data/a.rs", "pub static TABLE: std::sync::OnceLock<u8> = OnceLock::new();", 4),
        ("cli/a.rs", "static STOP: AtomicBool = AtomicBool::new(false);", 4),
        ("data/a.rs", "use std::fs::File;", 5),
        ("train/a.rs", "fn f() { js_sys::global() }", 5),
        ("gui/a.rs", "use web_sys::Window;", 5),
        ("worker/a.rs", "let at = stderr.find(\"\\n  hint: \");", 6),
        ("gui/a.rs", "const LABEL: &str = \"error: \";", 6),
        ("cli/a.rs", "let rest = std::env::args_os().skip(1);", 6),
        ("cli/a.rs", "use std::env; fn f() { Command::new(env::current_exe()) }", 6),
        ("cli/get.rs", "use ureq::Agent;", 7),
        ("runs/a.rs", "use std::{fs, net::TcpStream};", 7),
        ("runs/a.rs", "fn f() { eprintln!() }", 8),
        ("cli/a.rs", "thread_local! { static BAR: RefCell<u8> = const { RefCell::new(0) }; }", 4),
    ] {
        // An unterminated literal would hide the third line.
        let source = format!("const A: [char; 2] = ['\"', '\\''];\n/* \" /* */ ' */\n{code}\n");
        expect(path, &source, 3, &format!("(invariant {invariant})"));
    }
    let twice = "#[allow(unsafe_code)]\nmod a;\n#[allow(unsafe_code)]\nmod b;";
    expect(UNSAFE_IN[0], twice, 3, "(invariant 4)");
    expect("lib.rs", "pub mod plan;", 1, "no #![deny(unsafe_code)] (invariant 4)");
    expect("data/utils.rs", "", 1, "(invariant 4)");
    expect("ops/helper/mod.rs", "", 1, "(invariant 4)");
    expect("other.rs", "", 1, "give it a layer in tests/sources.rs");
}

fn expect(path: &str, source: &str, line: usize, end: &str) {
    let found = check(path, source);
    let place = format!("src/{path}:{line}: ");
    let hit = found.iter().any(|failure| failure.starts_with(&place) && failure.ends_with(end));
    assert!(hit, "not found: {place}...{end}; but {found:?} in\n{source}");
}

#[test]
fn comments_and_valid_code_pass() {
    for (path, code) in [
        (
            "plan.rs",
            "//! Reads no std::fs, no Instant; burn::Tensor and wgpu::Device are elsewhere.",
        ),
        ("plan.rs", "/* use std::fs; /* use burn::x; */ use wgpu; */"),
        ("train/a.rs", r####"const A: &str = "use clap::Parser; \" wgpu::Device";"####),
        ("train/a.rs", r####"const A: &str = r#"use clap::Parser; " wgpu::Device"#;"####),
        ("train/a.rs", r####"const A: (&[u8], char) = (br"\", '"'); // clap::Parser"####),
        ("config/a.rs", r#"#[cfg(feature = "wgpu")] fn f<'a>(x: &'a str, y: &'static str) {}"#),
        ("config/a.rs", "use crate::plan::Plan; use super::keys; use std::{fmt, path::Path};"),
        ("config/a.rs", "fn f(rand: u32, burn: bool, clap: Instance) -> u32 { rand }"),
        ("data/a.rs", "static TABLE: [u8; 3] = [1, 2, 3]; static NAME: &str = \"x\";"),
        ("data/a.rs", "use std::io; use rand::Rng; struct Cells { cell: std::cell::Cell<u8> }"),
        ("data/a.rs", "use crate::disk; #[cfg(test)] mod tests { use std::fs; }"),
        ("hub/client.rs", "use ureq::Agent; use std::net::IpAddr;"),
        ("gui/platform/browser/a.rs", "use web_sys::File; use wasm_bindgen::JsCast;"),
        ("ops/a.rs", "use burn_cubecl::CubeBackend; use wgpu::Device;"),
        ("cli/a.rs", "use clap::Parser; fn f() { crate::gpu::open(crate::train::Session::new()) }"),
        ("cli/a.rs", "message!(\"error: {error}\"); let own = std::env::current_exe();"),
        ("worker/a.rs", "let child = Command::new(std::env::current_exe()?);"),
        ("cli/mod.rs", "let typed = std::env::args_os();"),
        ("cli/a.rs", "#[cfg(test)] mod tests { const A: &str = \"error: \"; }"),
        ("main.rs", "#![deny(unsafe_code)]\nfn main() { wgpt::cli::main() }"),
        ("train/a.rs", "use burn::tensor::Device; use crate::gpu::OpenDevice;"),
    ] {
        assert_eq!(check(path, code), Vec::<String>::new(), "{code}");
    }
}
