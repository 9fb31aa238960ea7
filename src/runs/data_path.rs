//! Finds the data of a run: from any folder, and after run and data were moved together.
//!
//! A run records absolute paths of its data and of itself. Older runs, and configurations that a person
//! wrote, have relative paths. A run from another system has paths in the form of that system.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use crate::config::Config;
use crate::data::{Dataset, is_builtin};
use crate::disk;
use crate::protocol::Failure;

/// Returns the current path of the data of the run in the folder `run`.
pub fn find_data(config: &Config, run: &Path) -> Result<String, Failure> {
    let data = config.require_data()?;
    if is_builtin(data) {
        return Ok(data.to_owned());
    }
    let recorded = readable(data);
    let out_dir = readable(&config.out_dir);
    let run = disk::absolute(run);
    let paths = possible_paths(Path::new(&*recorded), Path::new(&*out_dir), &run);
    match paths.iter().find(|path| disk::exists(path)) {
        Some(path) => Ok(text(path, data)),
        None => Err(Dataset::not_found(data, &paths).into()),
    }
}

/// Returns an absolute path for typed data, so that a later process finds it too.
pub fn absolute_data(data: &str) -> String {
    if is_builtin(data) { data.to_owned() } else { text(&disk::absolute(Path::new(data)), data) }
}

/// Returns an absolute path for a typed model. The name of a fetched model stays, because it is valid for any
/// user.
pub fn absolute_model(model: &str) -> String {
    #[cfg(not(target_arch = "wasm32"))]
    if crate::hub::is_hub_name(model.as_ref()) {
        return model.to_owned();
    }
    text(&disk::absolute(Path::new(model)), model)
}

/// Returns a path of Windows with the separators of this system.
fn readable(path: &str) -> Cow<'_, str> {
    if !cfg!(windows) && (has_drive(path) || path.starts_with(r"\\")) {
        path.replace('\\', "/").into()
    } else {
        path.into()
    }
}

/// Returns true for a path that begins with a drive, like `C:\data`.
fn has_drive(path: &str) -> bool {
    matches!(path.as_bytes(), [drive, b':', b'/' | b'\\', ..] if drive.is_ascii_alphabetic())
}

/// Returns true for a path that is absolute on this system or was on another.
fn is_rooted(path: &Path) -> bool {
    path.has_root() || path.to_str().is_some_and(has_drive)
}

/// Returns a path as text, because settings are text; a path that is not Unicode as it was typed.
fn text(path: &Path, typed: &str) -> String {
    path.to_str().unwrap_or(typed).to_owned()
}

/// Returns the paths that `data` may mean, in the order to try them. `out_dir` is the run folder as
/// it was recorded with `data`, `run` the absolute path of that folder now.
fn possible_paths(data: &Path, out_dir: &Path, run: &Path) -> Vec<PathBuf> {
    let mut paths = vec![disk::absolute(data)];
    let mut add = |path: PathBuf| {
        if !paths.contains(&path) {
            paths.push(path);
        }
    };
    if !is_rooted(data) {
        // The folder that the run was started in.
        let out_dir = out_dir.strip_prefix(".").unwrap_or(out_dir);
        if !is_rooted(out_dir)
            && run.ends_with(out_dir)
            && let Some(started) = run.ancestors().nth(out_dir.components().count())
        {
            add(started.join(data));
        }
        add(run.join(data));
    } else if let Some(path) = moved_along(data, out_dir, run) {
        add(path);
    }
    paths
}

/// Returns the path that has the same position relative to `to` as `data` had to `from`.
fn moved_along(data: &Path, from: &Path, to: &Path) -> Option<PathBuf> {
    let shared = data.components().zip(from.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().count() - shared;
    let above = to.ancestors().nth(up).filter(|_| shared > 0)?;
    Some(above.join(data.components().skip(shared).collect::<PathBuf>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
    #[test]
    fn data_is_found_where_it_was_where_its_run_is_and_where_that_was_started() {
        let [here, above] = ["data/x", "../data/x"].map(|path| disk::absolute(Path::new(path)));
        let [here, above] = [&here, &above].map(|path| path.to_str().unwrap());
        for (data, out_dir, run, expected) in [
            ("/p/data/x", "/p/out/r", "/p/out/r", &["/p/data/x"][..]),
            ("/p/data/x", "/p/out/r", "/q/s/out/r", &["/p/data/x", "/q/s/data/x"]),
            ("/p/r/data", "/p/r", "/q/r2", &["/p/r/data", "/q/r2/data"]),
            ("/p/data/x", "", "/q/r", &["/p/data/x"]),
            ("data/x", "./out/r", "/p/out/r", &[here, "/p/data/x", "/p/out/r/data/x"]),
            ("../data/x", "elsewhere", "/p/out/r", &[above, "/p/out/r/../data/x"]),
        ] {
            let found = possible_paths(Path::new(data), Path::new(out_dir), Path::new(run));
            let expected: Vec<&Path> = expected.iter().map(Path::new).collect();
            assert_eq!(found, expected);
        }
    }

    /// A run from Windows on Linux, and one from Linux on Windows.
    #[test]
    fn data_of_another_system_is_found_next_to_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("data/x")).unwrap();
        let config = |data: &str, out_dir: &str| Config {
            data: data.into(),
            out_dir: out_dir.into(),
            ..Config::default()
        };
        for (data, out_dir) in [
            (r"C:\Users\a b\wgpt\data\x", r"C:\Users\a b\wgpt\out\r"),
            (r"\\server\share\p\data\x", r"\\server\share\p\out\r"),
            ("D:/wgpt/data/x", "D:/wgpt/out/r"),
            ("/home/a/wgpt/data/x", "/home/a/wgpt/out/r"),
        ] {
            let found = find_data(&config(data, out_dir), &at("out/r"));
            assert_eq!(Path::new(&found.unwrap()), at("data/x"), "{data}");
        }
        assert!(find_data(&config(r"C:\p\data\x", r"D:\p\out\r"), &at("out/r")).is_err());
        // A name may have a backslash in it.
        #[cfg(unix)]
        {
            let odd = at(r"data\y").display().to_string();
            std::fs::create_dir(&odd).unwrap();
            assert_eq!(find_data(&config(&odd, "out/r"), &at("out/r")).unwrap(), odd);
        }
    }

    #[test]
    fn data_moves_with_its_run() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir_all(at("new/data/x")).unwrap();
        let config = Config {
            data: at("old/data/x").display().to_string(),
            out_dir: at("old/out/r").display().to_string(),
            ..Config::default()
        };
        let found = find_data(&config, &at("new/out/r")).unwrap();
        assert_eq!(Path::new(&found), at("new/data/x"));
        let error = find_data(&config, &at("other/out/r")).unwrap_err().to_string();
        for path in [at("old/data/x"), at("other/data/x")] {
            assert!(error.contains(&disk::absolute(&path).display().to_string()), "{error}");
        }
    }

    #[test]
    fn built_in_data_has_no_path() {
        let config = Config { data: "builtin:stories".into(), ..Config::default() };
        assert_eq!(find_data(&config, Path::new("r")).unwrap(), "builtin:stories");
        assert_eq!(absolute_data("builtin:stories"), "builtin:stories");
        assert!(Path::new(&absolute_data("data/x")).is_absolute());
        assert!(find_data(&Config::default(), Path::new("r")).is_err());
    }
}
