//! Where cuBLASLt may be: it comes with the CUDA toolkit and with PyTorch, not with the driver.

use std::path::{Path, PathBuf};

/// The variable that names the library, or the folder with it.
pub const LIBRARY: &str = "WGPT_CUBLAS_LIBRARY";

/// The names of the library's versions, the newest first.
const NAMES: [&str; 2] = if cfg!(windows) {
    ["cublasLt64_13.dll", "cublasLt64_12.dll"]
} else {
    ["libcublasLt.so.13", "libcublasLt.so.12"]
};

/// The folders of libraries in a toolkit.
const OF_TOOLKIT: &[&str] = if cfg!(windows) { &["bin/x64", "bin"] } else { &["lib64", "lib"] };

/// The folders of NVIDIA's packages and of PyTorch, in a folder of Python's packages.
const OF_PACKAGES: &[&str] = if cfg!(windows) {
    &["torch/lib", "nvidia/cu13/bin/x86_64", "nvidia/cu13/bin", "nvidia/cublas/bin"]
} else {
    &["nvidia/cu13/lib", "nvidia/cublas/lib", "torch/lib"]
};

/// A file that may be the library.
#[derive(Debug, PartialEq, Eq)]
pub enum Candidate {
    /// A name for the loader of Linux, which may know no such file.
    Name(&'static str),
    /// A file that exists, or that the user has named.
    File(PathBuf),
}

/// Returns the candidates in order: the file that the user names, and no other; else what is in the system's path
/// of libraries, then files of the toolkit and of Python's packages. `variable` returns the value of an
/// environment variable.
pub fn candidates(variable: impl Fn(&str) -> Option<PathBuf>) -> Vec<Candidate> {
    if let Some(named) = variable(LIBRARY) {
        let inside = NAMES.map(|name| named.join(name));
        let file = inside.into_iter().find(|path| path.is_file());
        return vec![Candidate::File(file.unwrap_or(named))];
    }
    // The loader of Windows would also look in the working folder, whose files may be anybody's.
    let path = variable("PATH").filter(|_| cfg!(windows));
    let path: Vec<_> = path.iter().flat_map(std::env::split_paths).collect();
    let path = path.into_iter().filter(|folder| folder.is_absolute());
    let folders = path.chain(toolkits(&variable)).chain(python(&variable));
    let mut known = Vec::new();
    let files = folders.flat_map(|folder| NAMES.map(|name| folder.join(name)));
    // Several folders may lead to one file.
    let files = files.filter(|file| file.is_file()).filter(|file| {
        let real = file.canonicalize().unwrap_or_else(|_| file.clone());
        let is_new = !known.contains(&real);
        known.push(real);
        is_new
    });
    let files = files.map(Candidate::File);
    let names = NAMES.into_iter().filter(|_| !cfg!(windows));
    names.map(Candidate::Name).chain(files).collect()
}

/// Returns the folders of the toolkit's libraries.
fn toolkits(variable: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let mut roots: Vec<_> = ["CUDA_PATH", "CUDA_HOME"].into_iter().filter_map(variable).collect();
    if cfg!(unix) {
        roots.push("/usr/local/cuda".into());
        roots.extend(inside(Path::new("/usr/local"), "cuda-"));
    }
    let of_root =
        |root: &PathBuf| OF_TOOLKIT.iter().map(|part| root.join(part)).collect::<Vec<_>>();
    roots.iter().flat_map(of_root).collect()
}

/// Returns the folders of the libraries in Python's packages: of the active environment, of the user and of the
/// system.
fn python(variable: &impl Fn(&str) -> Option<PathBuf>) -> Vec<PathBuf> {
    let (mut prefixes, mut packages, mut own) = (Vec::new(), Vec::new(), Vec::new());
    for environment in ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable) {
        // Conda has packages of CUDA that are none of Python.
        own.push(environment.join(if cfg!(windows) { "Library/bin" } else { "lib" }));
        prefixes.push(environment);
    }
    if cfg!(windows) {
        let user = variable("APPDATA").map(|data| data.join("Python"));
        let versions = user.iter().flat_map(|folder| inside(folder, "Python3"));
        packages.extend(versions.map(|version| version.join("site-packages")));
        let system = variable("LOCALAPPDATA").map(|data| data.join("Programs/Python"));
        prefixes.extend(system.iter().flat_map(|folder| inside(folder, "Python3")));
    } else {
        prefixes.extend(variable("HOME").map(|home| home.join(".local")));
        prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    }
    let mut all: Vec<_> = prefixes.iter().flat_map(|prefix| packages_of(prefix)).collect();
    all.extend(packages);
    let libraries = all.iter().flat_map(|packages| OF_PACKAGES.iter().map(|it| packages.join(it)));
    libraries.chain(own).collect()
}

/// Returns the folders of packages of a Python whose files are in `prefix`.
fn packages_of(prefix: &Path) -> Vec<PathBuf> {
    if cfg!(windows) {
        return vec![prefix.join("Lib/site-packages")];
    }
    let libraries = ["lib", "lib64"].map(|name| prefix.join(name));
    let versions = libraries.iter().flat_map(|folder| inside(folder, "python3"));
    versions.flat_map(|it| ["site-packages", "dist-packages"].map(|kind| it.join(kind))).collect()
}

/// Returns the entries of a folder whose names begin so, the last name first.
fn inside(folder: &Path, beginning: &str) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let begins = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(beginning))
    };
    let mut found: Vec<_> = entries.map(|entry| entry.path()).filter(begins).collect();
    found.sort_unstable();
    found.reverse();
    found
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn create(path: &Path) -> Candidate {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, "").unwrap();
        Candidate::File(path.to_path_buf())
    }

    #[test]
    fn the_users_file_is_the_only_candidate() {
        let folder = tempfile::tempdir().unwrap();
        let named = |path: PathBuf| candidates(|name| (name == LIBRARY).then(|| path.clone()));
        // A folder without it is named in the error.
        let path = folder.path().to_path_buf();
        assert_eq!(named(path.clone()), [Candidate::File(path.clone())]);
        let file = create(&path.join("libcublasLt.so.12"));
        assert_eq!(named(path.clone()), [file]);
        assert_eq!(named(path.join("other.so")), [Candidate::File(path.join("other.so"))]);
    }

    #[test]
    fn toolkits_and_packages_are_searched_after_the_systems_loader() {
        let folder = tempfile::tempdir().unwrap();
        let [toolkit, environment, home] =
            ["cuda", "venv", "home"].map(|it| folder.path().join(it));
        let of_toolkit = create(&toolkit.join("lib64/libcublasLt.so.12"));
        std::os::unix::fs::symlink(toolkit.join("lib64"), toolkit.join("lib")).unwrap();
        let packages = "lib/python3.12/site-packages/nvidia";
        let of_environment = create(&environment.join(packages).join("cu13/lib/libcublasLt.so.13"));
        let of_user = home.join(".local").join(packages).join("cublas/lib/libcublasLt.so.12");
        let of_user = create(&of_user);
        let found = candidates(|name| match name {
            "CUDA_PATH" => Some(toolkit.clone()),
            "VIRTUAL_ENV" => Some(environment.clone()),
            "HOME" => Some(home.clone()),
            _ => None,
        });
        let names = ["libcublasLt.so.13", "libcublasLt.so.12"].map(Candidate::Name);
        let mut in_folder = found.iter().filter(|it| match it {
            Candidate::Name(_) => true,
            // This machine may have a toolkit.
            Candidate::File(path) => path.starts_with(folder.path()),
        });
        for expected in names.iter().chain([&of_toolkit, &of_environment, &of_user]) {
            assert_eq!(in_folder.next(), Some(expected));
        }
        assert_eq!(in_folder.next(), None);
    }
}
