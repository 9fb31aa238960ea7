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

/// Fills in the pages of the stores in `folder`, and returns what the script said and its exit code.
fn fill_in_stores(folder: &Path, sums: &[String], repository: &str) -> (String, Option<i32>) {
    fs::write(folder.join("SHA256SUMS"), sums.concat()).unwrap();
    let mut command = Command::new(root().join("scripts/package.sh"));
    command.arg("stores").env("OUT", folder).env("REPOSITORY", repository);
    let output = command.output().unwrap();
    (String::from_utf8_lossy(&output.stderr).into_owned(), output.status.code())
}

#[test]
fn the_pages_of_the_stores_are_filled_in() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let packages = [
        "x86_64-unknown-linux-gnu.tar.xz",
        "aarch64-apple-darwin.tar.xz",
        "x86_64-pc-windows-msvc.zip",
        "x86_64-pc-windows-msvc-setup.exe",
    ];
    let sum = |package: usize| format!("{:064x}", package + 1);
    let line = |(at, package)| format!("{}  wgpt-{VERSION}-{package}\n", sum(at));
    let sums: Vec<String> = packages.iter().enumerate().map(line).collect();

    let (said, code) = fill_in_stores(path, &sums[1..], REPOSITORY);
    assert!(code == Some(1) && said.contains(packages[0]) && said.contains("hint: "), "{said}");
    let (said, code) = fill_in_stores(path, &sums, "example.com");
    assert!(code == Some(1) && said.contains("hint: "), "{said}");
    assert_eq!(fill_in_stores(path, &sums, REPOSITORY), (String::new(), Some(0)));

    let page = |page: &str| fs::read_to_string(path.join("stores").join(page)).expect(page);
    let winget =
        |kind: &str| page(&format!("winget/manifests/a/a/wgpt/{VERSION}/a.wgpt{kind}.yaml"));
    let (pkgbuild, srcinfo) = (page("aur/wgpt-bin/PKGBUILD"), page("aur/wgpt-bin/.SRCINFO"));
    for (page, used) in [
        (pkgbuild.clone(), &[0][..]),
        (srcinfo.clone(), &[0]),
        (page("homebrew/Formula/wgpt.rb"), &[0, 1]),
        (winget(""), &[]),
        (winget(".installer"), &[2, 3]),
        (winget(".locale.en-US"), &[]),
    ] {
        assert!(
            page.contains(VERSION) && !page.contains("@VERSION") && !page.contains("@SHA256"),
            "{page}"
        );
        for &package in used {
            assert!(page.contains(&sum(package)), "{} is missing in {page}", packages[package]);
        }
    }

    // makepkg would write the one from the other.
    let mut quoted: Vec<&str> = pkgbuild.split('\'').skip(1).step_by(2).collect();
    let fields = srcinfo.lines().filter_map(|line| line.strip_prefix('\t')?.split_once(" = "));
    let mut listed: Vec<&str> = fields
        .filter(|(key, _)| !["pkgver", "pkgrel", "source"].contains(key))
        .map(|(_, value)| value)
        .collect();
    quoted.sort_unstable();
    listed.sort_unstable();
    assert_eq!(quoted, listed);
}
