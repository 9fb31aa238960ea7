//! Compares the crates whose optimization level Cargo.toml sets with the crates that are compiled.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn table(file: &str) -> toml::Table {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    fs::read_to_string(path).unwrap().parse().unwrap()
}

/// A renamed crate would be compiled at level 3, and the build would take minutes longer.
#[test]
fn each_crate_of_the_release_profile_is_compiled() {
    let lock = table("Cargo.lock");
    let packages = lock["package"].as_array().unwrap();
    let compiled: BTreeSet<&str> =
        packages.iter().map(|package| package["name"].as_str().unwrap()).collect();
    let manifest = table("Cargo.toml");
    let named = manifest["profile"]["release"]["package"].as_table().unwrap();
    // The settings of all crates.
    let known = |name: &&String| *name == "*" || compiled.contains(name.as_str());
    let gone: Vec<_> = named.keys().filter(|name| !known(name)).collect();
    assert!(gone.is_empty(), "not in Cargo.lock; remove them from Cargo.toml: {gone:?}");
}
