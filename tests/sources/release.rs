//! Checks the sources that go into a release: one version everywhere, and its section of the changelog.

use std::fs;
use std::path::Path;
use std::process::Command;

const VERSION: &str = env!("CARGO_PKG_VERSION");

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn changelog(version: &str, file: &Path) -> (String, Option<i32>) {
    let mut command = Command::new(root().join("scripts/changelog.sh"));
    let output = command.arg(version).arg(file).output().unwrap();
    (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
}

#[test]
fn the_version_is_the_same_everywhere() {
    for (path, line) in [
        ("Cargo.lock", format!("name = \"wgpt\"\nversion = \"{VERSION}\"")),
        ("CHANGELOG.md", format!("\n## [{VERSION}] - ")),
        (METAINFO, format!("<release version=\"{VERSION}\"")),
        ("README.md", format!("wgpt_{VERSION}-1_amd64.deb")),
    ] {
        assert!(read(path).contains(&line), "{path} does not have {line:?}");
    }
}

/// Copies the files that `release-check.sh` reads into `folder`, with the addresses of a repository.
fn copy_with_addresses(folder: &Path) {
    let manifest = read("Cargo.toml").replace("wgpt@wgpt.invalid", "a@example.com");
    let manifest = manifest.lines().filter(|line| !line.starts_with("repository = "));
    let manifest: Vec<&str> = manifest.collect();
    let repository = format!("[package]\nrepository = \"{REPOSITORY}\"");
    let metainfo = read(METAINFO).replace("invalid.wgpt.wgpt", "com.example.wgpt");
    for (path, text) in [
        ("Cargo.toml", manifest.join("\n").replacen("[package]", &repository, 1)),
        ("Cargo.lock", read("Cargo.lock")),
        ("CHANGELOG.md", read("CHANGELOG.md")),
        (METAINFO, metainfo),
    ] {
        let path = folder.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).unwrap();
        fs::write(path, text).unwrap();
    }
    fs::create_dir(folder.join("scripts")).unwrap();
    for script in ["changelog.sh", "release-check.sh"] {
        fs::copy(root().join("scripts").join(script), folder.join("scripts").join(script)).unwrap();
    }
}

const REPOSITORY: &str = "https://example.com/a/wgpt";
const METAINFO: &str = "assets/linux/wgpt.metainfo.xml";

#[test]
fn a_release_is_refused_until_everything_is_filled_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    copy_with_addresses(path);
    let check = |tag: &str, repository: &str| {
        let mut command = Command::new(path.join("scripts/release-check.sh"));
        let output = command.args([tag, repository]).output().unwrap();
        (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
    };
    let tag = format!("v{VERSION}");
    assert_eq!(check(&tag, REPOSITORY), (String::new(), Some(0)));
    let refused = |tag: &str, repository: &str, part: &str| {
        let (said, code) = check(tag, repository);
        assert!(code == Some(1) && said.contains(part), "no {part:?}:\n{said}");
        assert!(said.contains("docs/releasing.md"), "{said}");
    };
    refused("v9.9.9", REPOSITORY, "the tag is v9.9.9");
    refused(&tag, "https://example.com/b/wgpt", "no line: repository");
    for (file, from, to, part) in [
        (METAINFO, "com.example.wgpt", "invalid.wgpt.wgpt", "placeholders"),
        ("CHANGELOG.md", &*format!("[{VERSION}] - 2"), "[Unreleased] - 2", "no section"),
        (
            "Cargo.lock",
            &*format!("\nversion = \"{VERSION}\""),
            "\nversion = \"0.0.1\"",
            "Cargo.lock",
        ),
    ] {
        let good = fs::read_to_string(path.join(file)).unwrap();
        assert!(good.contains(from), "{file} has no {from}");
        fs::write(path.join(file), good.replace(from, to)).unwrap();
        refused(&tag, REPOSITORY, part);
        fs::write(path.join(file), good).unwrap();
    }
}

#[test]
fn the_section_of_a_version_is_cut_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("CHANGELOG.md");
    let text = "# Changelog\n\n## [Unreleased]\n\n- new\n\n## [1.2.0] - 2026-01-02\n\n### Added\n\n\
                - a [link](x)\n\n## [1.2] - 2025-01-01\n\n- old\n\n## [0.9.0] - 2024-01-01\n\n\
                [1.2.0]: https://example.com\n";
    fs::write(&file, text).unwrap();
    let cut = |version| changelog(version, &file);
    assert_eq!(cut("1.2.0"), ("### Added\n\n- a [link](x)\n".into(), Some(0)));
    assert_eq!(cut("1.2"), ("- old\n".into(), Some(0)));
    for without in ["0.9.0", "1.2.3", "1"] {
        assert_eq!(cut(without), (String::new(), Some(1)), "{without}");
    }
    let (section, code) = changelog(VERSION, &root().join("CHANGELOG.md"));
    assert_eq!(code, Some(0));
    assert!(section.contains("### Added") && !section.contains("## [0"), "{section}");
}

#[test]
fn the_package_for_crates_io_has_what_is_compiled_and_no_more() {
    let manifest = read("Cargo.toml");
    let line = manifest.lines().find(|line| line.starts_with("include = ")).expect("a line");
    for needed in ["/src", "/shaders", "/assets", "/build.rs", "/LICENSE-*"] {
        assert!(line.contains(&format!("{needed:?}")), "{line}");
    }
    for left_out in ["/tests", "/docs", "/scripts", "/web"] {
        assert!(!line.contains(left_out), "{line}");
    }
}
