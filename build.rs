//! Tells the program its commit and its target, which `wgpt --version` prints, gives `wgpt.exe` its icon,
//! version and manifest, and keeps what mingw's linker would remove of it.
//!
//! It runs again only where the sources of the program changed, which are compiled again anyway.
//! `vergen` and `built` do the same at every commit, and cargo compiles a package again whenever its
//! build script has run: two minutes for sources that are the same. The price is that a build before
//! a commit keeps the commit before it, as "modified", until a source changes.

use std::path::Path;
use std::process::Command;

/// The files that decide what is compiled.
const SOURCES: [&str; 3] = ["src", "shaders", "assets/presets"];

/// Digits of a commit, as many as a repository of a million objects needs.
const DIGITS: usize = 12;

fn main() {
    for path in SOURCES.iter().chain(&["build.rs", "assets/windows"]) {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rustc-env=BUILD_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    if let Some(commit) = of_repository().or_else(of_package) {
        println!("cargo::rustc-env=BUILD_COMMIT={commit}");
    }
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("windows") {
        windows_resources();
        if std::env::var("CARGO_CFG_TARGET_ENV").as_deref() == Ok("gnu") {
            // Types and interfaces of kernels are registered by `linkme` in sections that nothing refers
            // to: mingw's linker removes them, and a kernel then panics in the compiler.
            println!("cargo::rustc-link-arg=-Wl,--no-gc-sections");
        }
    }
}

/// Returns the commit that is checked out, with the note that sources differ from it. A package that
/// lies within the repository of something else is none of its files.
fn of_repository() -> Option<String> {
    if !Path::new(".git").exists() {
        return None;
    }
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = ["status", "--porcelain", "--", "Cargo.toml", "Cargo.lock"];
    let is_modified = !git(&[&changes[..], &SOURCES].concat())?.is_empty();
    Some(describe(&commit, is_modified))
}

/// Returns the commit from which cargo made this package, as crates.io has it.
fn of_package() -> Option<String> {
    let info = std::fs::read_to_string(".cargo_vcs_info.json").ok()?;
    let (_, rest) = info.split_once("\"sha1\"")?;
    let commit = rest.split('"').nth(1)?;
    Some(describe(commit, info.contains("\"dirty\": true")))
}

fn describe(commit: &str, is_modified: bool) -> String {
    let commit = commit.get(..DIGITS).unwrap_or(commit);
    format!("{commit}{}", if is_modified { ", modified" } else { "" })
}

/// Returns the output of a git command that takes no lock; `None` if it fails, or without git.
fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("--no-optional-locks").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_string())
}

/// Compiles the resources: by `rc.exe` of the Windows SDK, or by `windres` of mingw. The tests of the
/// library have none.
fn windows_resources() {
    let mut resources = winresource::WindowsResource::new();
    resources
        .set_icon("assets/windows/wgpt.ico")
        .set_manifest_file("assets/windows/wgpt.manifest")
        .set("ProductName", "wgpt")
        .set("FileDescription", "wgpt: train GPT-2 on your graphics card")
        .set("OriginalFilename", "wgpt.exe")
        .set("LegalCopyright", "MIT or Apache-2.0");
    if let Err(error) = resources.compile_for("wgpt") {
        panic!(
            "wgpt.exe gets no icon, version and manifest: {error}; install the Windows SDK, or \
             binutils-mingw-w64-x86-64 for a cross build"
        );
    }
}
