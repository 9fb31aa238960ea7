//! `wgpt --version` and `wgpt doctor`, on machines that lack something.

use super::*;

fn report(command: &mut Command) -> Value {
    let output = command.args(["doctor", "--json"]).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success() && !said.contains("panicked"), "{said}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// Returns the hint of the problem whose text contains `words`.
#[cfg(unix)]
fn hint<'a>(report: &'a Value, words: &str) -> Option<&'a str> {
    let problems = report["problems"].as_array().expect("a list of problems");
    let text = |problem: &Value| problem["text"].as_str().unwrap().to_string();
    problems.iter().find(|problem| text(problem).contains(words))?["hint"].as_str()
}

#[test]
fn the_version_has_commit_features_and_target() {
    let folder = temporary();
    let version = format!("wgpt {}", env!("CARGO_PKG_VERSION"));
    assert_eq!(ok(folder.path(), &["-V"]).trim_end(), version);
    let text = ok(folder.path(), &["--version"]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], version);
    for (line, label) in lines[1..].iter().zip(["commit: ", "features: ", "target: "]) {
        assert!(line.strip_prefix(label).is_some_and(|rest| !rest.is_empty()), "{text}");
    }
    let commit = lines[1].trim_start_matches("commit: ").trim_end_matches(", modified");
    let is_hash = commit.len() == 12 && commit.chars().all(|c| c.is_ascii_hexdigit());
    assert!(is_hash || commit == "unknown", "{text}");
    assert_eq!(lines[2].contains("gui"), cfg!(feature = "gui"), "{text}");
    assert_eq!(lines[3].starts_with("target: x86_64"), cfg!(target_arch = "x86_64"), "{text}");
    assert_eq!(lines.len(), 4, "{text}");
}

#[test]
fn the_doctor_reports_the_devices_and_the_build() {
    let folder = temporary();
    let json = report(&mut wgpt(folder.path()));
    let listed: Value = serde_json::from_str(&ok(folder.path(), &["devices", "--json"])).unwrap();
    let ids = |devices: &Value| -> Vec<String> {
        let devices = devices.as_array().unwrap();
        devices.iter().map(|device| device["id"].as_str().unwrap().to_string()).collect()
    };
    assert_eq!(ids(&json["devices"]), ids(&listed));
    assert_eq!(json["build"]["version"], env!("CARGO_PKG_VERSION"));
    for device in json["devices"].as_array().unwrap() {
        assert!(device["id"] == "cpu" || device["adapter"]["max_storage_buffers"].is_u64());
        assert_eq!(device["dtypes"][0], "float32");
    }
    assert_eq!(ids(&json["devices"]).last().unwrap(), "cpu");
    assert_eq!(json["folders"][0]["purpose"], "runs");
    assert!(json["system"]["memory"]["total"].as_u64().unwrap() > 0);
    let text = ok(folder.path(), &["doctor"]);
    let parts = ["\ntarget: ", "\nsystem\n", "\ndevices\n", "\n  auto", "\nfolders\n  runs  "];
    for part in parts.into_iter().chain(["\nproblems\n"]) {
        assert!(text.contains(part), "no {part:?}:\n{text}");
    }
    assert_eq!(text.contains("\nwindow\n"), cfg!(feature = "gui"), "{text}");
    assert_eq!(text.contains("\n  mpi "), cfg!(unix), "{text}");
}

/// Each kernel of a device is compared with the CPU's, in each of its dtypes.
#[cfg(feature = "wgpu")]
#[test]
fn the_doctor_tests_the_kernels_of_a_device() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let output = ok(folder.path(), &["doctor", "--kernels", "--json", &device]);
    let json: Value = serde_json::from_str(&output).expect("one JSON object");
    let rows = json["kernels"].as_array().unwrap();
    for dtype in ["float32", "float16"] {
        let of_dtype = || rows.iter().filter(|row| row["dtype"] == dtype);
        for kernel in ["linear + residual", "attention backward: keys", "adamw: weight"] {
            assert!(of_dtype().any(|row| row["kernel"] == kernel), "no {kernel} in {dtype}");
        }
        for row in of_dtype() {
            assert_eq!(row["result"], "right", "{row}");
            assert!(row["error"].as_f64().unwrap() <= row["allowed"].as_f64().unwrap(), "{row}");
        }
    }
    // A product in float32 rounds, so it differs from the CPU's.
    assert!(rows.iter().any(|row| row["error"].as_f64().unwrap() > 0.0));
    let refused =
        wgpt(folder.path()).args(["doctor", "--kernels", "--device=cpu"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
}

/// Without drivers, without a display, in a folder with umlauts and blanks, wgpt prints messages and
/// does not crash.
#[cfg(target_os = "linux")]
#[test]
fn a_bare_machine_gets_words() {
    let folder = temporary();
    let home = folder.path().join("Jörg Müller ß");
    fs::create_dir(&home).unwrap();
    let mut command = wgpt(&home);
    for name in ["DISPLAY", "WAYLAND_DISPLAY", "WAYLAND_SOCKET", "VK_ADD_DRIVER_FILES"] {
        command.env_remove(name);
    }
    command.envs([("HOME", home.as_os_str()), ("XDG_CACHE_HOME", "".as_ref())]);
    command.env("XDG_DATA_HOME", "").env("__EGL_VENDOR_LIBRARY_FILENAMES", "/nothing.json");
    command.envs(["VK_DRIVER_FILES", "VK_ICD_FILENAMES"].map(|name| (name, "/nothing.json")));
    let json = report(&mut command);
    let devices = json["devices"].as_array().unwrap();
    let id = |device: &Value| device["id"].as_str().unwrap().to_string();
    assert!(devices.iter().all(|device| !id(device).starts_with("vulkan")), "{json}");
    assert!(hint(&json, "no GPU found").unwrap().contains("driver"));
    if cfg!(feature = "gui") {
        assert_eq!(json["display"]["works"], false);
        assert!(hint(&json, "the window cannot open").is_some(), "{json}");
    }
    assert_eq!(hint(&json, "no file can be written"), None);
    assert!(
        json["folders"]
            .as_array()
            .unwrap()
            .iter()
            .any(|folder| { folder["path"].as_str().unwrap().starts_with(home.to_str().unwrap()) })
    );
}

/// `/proc` refuses files even to root, as a read-only folder does to everybody else.
#[cfg(target_os = "linux")]
#[test]
fn folders_that_cannot_be_written_are_named() {
    let folder = temporary();
    let mut command = wgpt(Path::new("/proc"));
    let json = report(command.env("XDG_DATA_HOME", "/proc").env("XDG_CACHE_HOME", folder.path()));
    let problem = hint(&json, "/proc/out: no file can be written");
    assert!(problem.is_some_and(|hint| hint.contains("--run")), "{json}");
    assert!(!json.to_string().contains(".wgpt-doctor"), "{json}");
    assert_eq!(hint(&json, "/proc/wgpt").is_some(), cfg!(feature = "gui"));
}

#[cfg(unix)]
#[test]
fn the_doctor_names_the_mpi_library() {
    let folder = temporary();
    let mpi = |library: &str| report(wgpt(folder.path()).env("WGPT_MPI_LIBRARY", library));
    let missing = mpi("/nowhere/libmpi.so");
    assert_eq!(missing["mpi"]["works"], false);
    let hint = hint(&missing, "/nowhere/libmpi.so: no MPI library").expect("a problem");
    assert!(hint.contains("WGPT_MPI_LIBRARY"), "{hint}");
    // This can be any library that is not MPI's.
    #[cfg(target_os = "linux")]
    {
        let other = mpi("libm.so.6");
        let detail = other["mpi"]["detail"].as_str().unwrap();
        assert!(detail.contains("neither Open MPI nor of MPICH's family"), "{detail}");
    }
}
