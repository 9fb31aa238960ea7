//! Finding and opening cuBLASLt.

#![allow(unsafe_code, reason = "cuBLASLt is a library in C")]

use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::sync::LazyLock;

use cudarc::driver::sys;

use super::search::{Candidate, candidates};

/// The versions whose interface is known.
const MAJORS: [usize; 2] = [12, 13];

/// A version as NVIDIA writes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Version([usize; 3]);

impl Version {
    /// Reads the library's number: 120805 is version 12.8.5.
    fn of(number: usize) -> Self {
        Self([number / 10_000, number / 100 % 100, number % 100])
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// An object of the library.
pub(super) type Object = *mut c_void;

/// The functions that products call, as `cublasLt.h` declares them. Each returns 0 or an error, and the first
/// parameter of those that create an object is the place for it.
#[derive(Clone, Copy)]
pub(super) struct Functions {
    version: unsafe extern "C" fn() -> usize,
    pub create: unsafe extern "C" fn(*mut Object) -> c_int,
    /// Of a type of computations and a type of factors alpha and beta.
    pub create_operation: unsafe extern "C" fn(*mut Object, c_int, c_int) -> c_int,
    pub set_operation: unsafe extern "C" fn(Object, c_int, *const c_void, usize) -> c_int,
    /// Of a type, rows, columns and the elements between columns.
    pub create_layout: unsafe extern "C" fn(*mut Object, c_int, u64, u64, i64) -> c_int,
    pub create_preference: unsafe extern "C" fn(*mut Object) -> c_int,
    pub set_preference: unsafe extern "C" fn(Object, c_int, *const c_void, usize) -> c_int,
    pub destroy_preference: unsafe extern "C" fn(Object) -> c_int,
    /// Of a handle, an operation, the layouts of a, b, c and d, and a preference. Writes up to a number of
    /// results, and how many.
    pub heuristic: unsafe extern "C" fn(
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        Object,
        c_int,
        *mut Heuristic,
        *mut c_int,
    ) -> c_int,
    /// `d = alpha a b + beta c`: a handle and an operation, alpha, a and b with their layouts, beta, c and d with
    /// theirs, an algorithm, memory to work in and its bytes, and a stream.
    pub multiply: unsafe extern "C" fn(
        Object,
        Object,
        *const c_void,
        *const c_void,
        Object,
        *const c_void,
        Object,
        *const c_void,
        *const c_void,
        Object,
        *mut c_void,
        Object,
        *const Algorithm,
        *mut c_void,
        usize,
        *mut c_void,
    ) -> c_int,
}

/// A way to multiply, which only the library understands.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Algorithm([u64; 8]);

impl Algorithm {
    pub const NONE: Self = Self([0; 8]);
}

/// An algorithm that the library proposes.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct Heuristic {
    pub algorithm: Algorithm,
    pub workspace: usize,
    pub state: c_int,
    _waves: f32,
    _reserved: [c_int; 4],
}

impl Heuristic {
    pub const NONE: Self = Self {
        algorithm: Algorithm::NONE,
        workspace: 0,
        state: -1,
        _waves: 0.0,
        _reserved: [0; 4],
    };
}

/// cuBLASLt, open until the process ends.
pub struct Library {
    /// The library and its version, like `cuBLASLt 12.8.5`: results of another one may differ in the last bits.
    pub name: String,
    /// Its file, or its name if Linux's loader has found it.
    pub from: String,
    pub(super) functions: Functions,
}

/// Returns the library if there is one that works with the driver.
pub fn library() -> Option<&'static Library> {
    SEARCH.as_ref().ok()
}

/// Returns the reason why a library that is there, or that the user names, is not used.
pub fn obstacle() -> Option<&'static str> {
    SEARCH.as_ref().err().and_then(Option::as_deref)
}

/// The result of the search in this process: a library, else the fault of the first one that was found.
static SEARCH: LazyLock<Result<Library, Option<String>>> = LazyLock::new(|| {
    let variable = |name: &str| std::env::var_os(name).filter(|it| !it.is_empty());
    let mut fault = None;
    for candidate in candidates(|name| variable(name).map(PathBuf::from)) {
        match open(&candidate) {
            Ok(library) => return Ok(library),
            Err(reason) => fault = fault.or(reason),
        }
    }
    Err(fault)
});

/// Opens a library.
///
/// # Errors
/// If it cannot be used, with the reason; without one if the loader knows no library of that name.
fn open(candidate: &Candidate) -> Result<Library, Option<String>> {
    let (path, is_file) = match candidate {
        Candidate::Name(name) => (name.as_ref(), false),
        Candidate::File(file) => (file.as_path(), true),
    };
    let from = path.display().to_string();
    let fault = |reason: String| Some(format!("{from}: {reason}"));
    // SAFETY: opening the library runs its initialisers, which are made for that.
    let opened = unsafe { libloading::Library::new(path) };
    let opened = opened.map_err(|error| match error.to_string() {
        text if !is_file && text.contains("No such file") => None,
        // Linux's loader begins with the file, too.
        text => fault(text.trim_start_matches(&format!("{from}: ")).to_string()),
    })?;
    // Its threads and handles may live as long as the process.
    let opened = ManuallyDrop::new(opened);
    let functions = Functions::of(&opened).map_err(|name| {
        fault(format!("it has no function `{name}`, so it is no cuBLASLt 12 or 13"))
    })?;
    // SAFETY: the function has no parameters and only returns a number.
    let version = Version::of(unsafe { (functions.version)() });
    check(version, driver()).map_err(fault)?;
    Ok(Library { name: format!("cuBLASLt {version}"), from, functions })
}

/// Checks that the interface of a version is known, and that it works with a driver for a version of CUDA.
fn check(version: Version, driver: Option<Version>) -> Result<(), String> {
    let Version([major, ..]) = version;
    if !MAJORS.contains(&major) {
        return Err(format!("it is version {version}, and wgpt knows 12 and 13"));
    }
    match driver {
        Some(Version([most, minor, _])) if most < major => Err(format!(
            "it is version {version}, and NVIDIA's driver is for CUDA {most}.{minor}: update the driver"
        )),
        _ => Ok(()),
    }
}

/// Returns the version of CUDA that the driver is for.
fn driver() -> Option<Version> {
    let mut number = 0;
    // SAFETY: cudarc calls the driver only if its library is there, and the driver writes one number.
    let asked = unsafe {
        sys::is_culib_present() && sys::cuDriverGetVersion(&raw mut number).result().is_ok()
    };
    // 12080 is version 12.8.
    let number = usize::try_from(number).ok().filter(|_| asked)?;
    Some(Version([number / 1000, number / 10 % 100, 0]))
}

impl Functions {
    /// # Errors
    /// With the name of a function that the library lacks.
    fn of(library: &libloading::Library) -> Result<Self, &'static str> {
        /// Returns the function of a name that ends with a zero.
        fn find<F: Copy>(
            library: &libloading::Library,
            name: &'static str,
        ) -> Result<F, &'static str> {
            // SAFETY: the types in `Functions` are those of `cublasLt.h` of versions 12 and 13.
            let found = unsafe { library.get::<F>(name.as_bytes()) };
            found.map(|function| *function).map_err(|_| name)
        }
        Ok(Self {
            version: find(library, "cublasLtGetVersion")?,
            create: find(library, "cublasLtCreate")?,
            create_operation: find(library, "cublasLtMatmulDescCreate")?,
            set_operation: find(library, "cublasLtMatmulDescSetAttribute")?,
            create_layout: find(library, "cublasLtMatrixLayoutCreate")?,
            create_preference: find(library, "cublasLtMatmulPreferenceCreate")?,
            set_preference: find(library, "cublasLtMatmulPreferenceSetAttribute")?,
            destroy_preference: find(library, "cublasLtMatmulPreferenceDestroy")?,
            heuristic: find(library, "cublasLtMatmulAlgoGetHeuristic")?,
            multiply: find(library, "cublasLtMatmul")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_must_be_known_and_not_newer_than_the_driver() {
        assert_eq!(Version::of(120_805).to_string(), "12.8.5");
        assert_eq!(Version::of(130_002).to_string(), "13.0.2");
        let of = |number, driver| check(Version::of(number), driver);
        let driver = |major, minor| Some(Version([major, minor, 0]));
        assert_eq!(of(120_805, driver(12, 0)), Ok(()));
        assert_eq!(of(120_805, driver(13, 0)), Ok(()));
        assert_eq!(of(130_002, None), Ok(()));
        for (number, driver, part) in [
            (110_400, driver(13, 0), "version 11.4.0, and wgpt knows 12 and 13"),
            (140_000, driver(14, 0), "version 14.0.0, and wgpt knows"),
            (130_002, driver(12, 8), "NVIDIA's driver is for CUDA 12.8: update the driver"),
        ] {
            let error = of(number, driver).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_file_that_is_no_library_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("libcublasLt.so.12");
        std::fs::write(&file, "no library").unwrap();
        let fault = open(&Candidate::File(file.clone())).err().flatten().unwrap();
        assert!(fault.starts_with(&format!("{}: ", file.display())), "{fault}");
        // The loader knows no such library, which is no fault.
        assert_eq!(open(&Candidate::Name("libwgpt-has-no-such.so.12")).err(), Some(None));
    }
}
