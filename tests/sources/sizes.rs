//! Checks sizes: the lines of a folder and of a file, and the files of one type.
//!
//! A folder that grows beyond its budget, or a type that is spread over files, has several ideas that
//! need their own place. The commit that adds a new capability may raise a budget by the lines that it
//! needs.

use std::collections::{BTreeMap, BTreeSet};

use super::{collect, module_of, src};

/// The most lines of the folders of `src/`, tests inside included. A file in `src/` counts as a folder.
const BUDGETS: &[(&[&str], usize)] = &[
    (&["main", "lib", "version"], 200),
    (&["text"], 475),
    (&["disk"], 700),
    (&["config"], 2_800),
    (&["plan"], 3_200),
    (&["data"], 9_460),
    (&["hub"], 1_900),
    (&["gpu"], 4_521),
    (&["ops"], 10_585),
    (&["model"], 3_450),
    (&["ranks"], 3_200),
    (&["runs"], 3_745),
    (&["train"], 4_882),
    (&["eval"], 1_370),
    (&["protocol"], 2_200),
    (&["worker"], 3_200),
    (&["report"], 900),
    (&["bench", "doctor"], 1_700),
    (&["cli"], 5_965),
    (&["gui"], 9_175),
    (&["web"], 200),
];

/// Folders above their budgets, with the lines that they may have until they shrink.
const ABOVE: &[(&str, usize)] = &[
    ("disk", 1_165),
    ("config", 3_517),
    ("plan", 5_050),
    ("protocol", 2_915),
    ("worker", 5_295),
    ("report", 1_350),
    ("bench", 1_980),
];

/// The most lines of a file without its tests, and of a file of tests.
const MAX_LINES: usize = 450;
const MAX_TEST_LINES: usize = 600;

/// The most files with methods of one type.
const MAX_FILES_OF_A_TYPE: usize = 3;

/// Types with more, with the number of files that they may have until they are split.
const SPREAD: &[(&str, usize)] = &[("ops::CubeKernels", 4), ("train::Session", 8)];

#[test]
fn folders_keep_their_budgets() {
    let mut lines: BTreeMap<String, usize> = BTreeMap::new();
    for (path, source) in collect(&src()) {
        *lines.entry(module_of(&path).to_string()).or_default() += source.lines().count();
    }
    let known: BTreeSet<&str> = BUDGETS.iter().flat_map(|(names, _)| *names).copied().collect();
    let unknown: Vec<_> = lines.keys().filter(|name| !known.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "no budget in tests/sources/sizes.rs: {unknown:?}");
    let (mut table, mut fits) = (String::new(), true);
    for (names, budget) in BUDGETS {
        let has: usize = names.iter().filter_map(|&name| lines.get(name)).sum();
        let above = ABOVE.iter().find(|(name, _)| *name == names[0]);
        let allowed = above.map_or(*budget, |(_, lines)| *lines);
        let mark = if has > allowed { "too many" } else { "" };
        fits &= has <= allowed;
        let name = names.join(", ");
        let off = has as i64 - *budget as i64;
        table += &format!("{name:32} {has:6} of {budget:6} {off:+6}  {mark}\n");
    }
    assert!(fits, "lines, budget, difference:\n{table}");
    // `cargo test --test sources folders -- --nocapture` shows them.
    println!("{table}");
}

#[test]
fn files_and_types_keep_their_sizes() {
    let files = collect(&src());
    let mut failures: Vec<String> =
        files.iter().filter_map(|(path, text)| long(path, text)).collect();
    for (name, files) in types(&files) {
        let allowed = SPREAD.iter().find(|(known, _)| *known == name);
        let allowed = allowed.map_or(MAX_FILES_OF_A_TYPE, |(_, files)| *files);
        if files.len() > allowed {
            let (count, files) = (files.len(), files.join(", "));
            failures
                .push(format!("{name} has methods in {count} files, more than {allowed}: {files}"));
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// Returns the complaint about a file that is too long.
fn long(path: &str, source: &str) -> Option<String> {
    let is_test = path.ends_with("tests.rs") || path.contains("/tests/");
    let lines = if is_test {
        source.lines().count()
    } else {
        source.lines().take_while(|line| *line != "#[cfg(test)]").count()
    };
    let most = if is_test { MAX_TEST_LINES } else { MAX_LINES };
    (lines > most)
        .then(|| format!("src/{path}: {lines} lines, more than {most}: it has several ideas"))
}

/// Returns the files with methods of each type, except for types of the same name in other folders and
/// of types that a file defines for itself.
fn types(files: &[(String, String)]) -> BTreeMap<String, Vec<&str>> {
    let mut found: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut defined: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (path, source) in files {
        let module = module_of(path);
        let names: BTreeSet<&str> = source.lines().filter_map(implemented).collect();
        for name in names {
            found.entry((module, name)).or_default().push(path);
        }
        for name in source.lines().filter_map(declared) {
            *defined.entry((module, name)).or_default() += 1;
        }
    }
    let is_one = |key: &(&str, &str)| defined.get(key).is_none_or(|count| *count == 1);
    let found = found.into_iter().filter(|(key, _)| is_one(key));
    found.map(|((module, name), files)| (format!("{module}::{name}"), files)).collect()
}

/// Returns the type of a line that begins its methods: `Gpt` of `impl Gpt {`.
fn implemented(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("impl")?;
    let rest = match rest.strip_prefix('<') {
        // Type parameters contain a `>` only in arrows, and none has an arrow.
        Some(parameters) => &parameters[parameters.find("> ")? + 1..],
        None => rest,
    };
    let rest = rest.strip_prefix(' ')?;
    let is_of_trait = rest.contains(" for ");
    let name = rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()?;
    (!is_of_trait && !name.is_empty()).then_some(name)
}

/// Returns the type that a line declares: `Gpt` of `pub struct Gpt {`.
fn declared(line: &str) -> Option<&str> {
    let rest = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(place) => place.split_once(") ").map_or("", |(_, rest)| rest),
        None => rest.trim_start(),
    });
    let rest = rest.strip_prefix("struct ").or_else(|| rest.strip_prefix("enum "))?;
    rest.split(|c: char| !(c.is_alphanumeric() || c == '_')).next()
}

#[test]
fn long_files_and_spread_types_are_found() {
    let long_file = "\n".repeat(MAX_LINES + 1);
    assert!(long("data/a.rs", &long_file).is_some() && long("data/tests.rs", &long_file).is_none());
    assert!(long("data/tests.rs", &"\n".repeat(MAX_TEST_LINES + 1)).is_some());
    let tested = format!("{}#[cfg(test)]\n{long_file}", "\n".repeat(MAX_LINES));
    assert_eq!(long("data/a.rs", &tested), None);
    for (line, name) in [
        ("impl Gpt {", Some("Gpt")),
        ("impl<'a, B: Backend> Session<'a, B> {", Some("Session")),
        ("impl<B> Clone for Session<B> {", None),
        ("impl fmt::Display for Gpt {", None),
        ("    impl Gpt {", None),
        ("fn f() -> impl Fn() {", None),
    ] {
        assert_eq!(implemented(line), name, "{line}");
    }
    for (line, name) in [
        ("pub(in crate::plan) struct Sizes<'a> {", Some("Sizes")),
        ("pub enum Kind {", Some("Kind")),
        ("struct A(u8);", Some("A")),
        ("pub fn f() {", None),
    ] {
        assert_eq!(declared(line), name, "{line}");
    }
    let file = |path: &str, text: &str| (path.to_string(), text.to_string());
    let files = [
        file("a/b.rs", "pub struct X {\n}\nimpl X {"),
        file("a/c.rs", "impl X {\nimpl X {"),
        file("d.rs", "impl X {"),
        file("a/e.rs", "struct Y;\nimpl Y {"),
        file("a/f.rs", "struct Y;\nimpl Y {"),
    ];
    let found = types(&files);
    assert_eq!(found["a::X"], ["a/b.rs", "a/c.rs"]);
    assert!(!found.contains_key("a::Y"), "{found:?}");
}
