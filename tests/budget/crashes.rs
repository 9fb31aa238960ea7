//! Tests drivers that crash: while they list devices, and while they compute.

use super::*;

/// Calls of a driver that list its devices and describe one.
const LISTING: [&str; 3] =
    ["EnumeratePhysicalDevices", "GetPhysicalDeviceProperties2", "GetPhysicalDeviceFeatures2"];

/// Returns a command whose only Vulkan driver crashes in `function`, and without OpenGL.
fn crashing(folder: &Path, function: &str, args: &[&str]) -> Output {
    program(folder)
        .args(args)
        .current_dir(folder)
        .env("__EGL_VENDOR_LIBRARY_FILENAMES", "/nothing.json")
        .env("FAULT_CRASH_AT", function)
        .output()
        .expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Such a driver costs its backend: every command works with what is left, and says so once.
#[test]
fn a_driver_that_crashes_while_it_lists_costs_its_backend() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let warning = "the Vulkan driver crashed while it listed its devices (signal 11)";
    for function in LISTING {
        let start = Instant::now();
        let output = crashing(folder.path(), function, &["devices"]);
        let (listed, said) = (text(&output.stdout), text(&output.stderr));
        println!("{function}: {:?}\n{said}", start.elapsed());
        assert!(output.status.success(), "{said}");
        assert!(listed.lines().last().unwrap().starts_with("cpu"), "{listed}");
        assert!(!listed.contains("vulkan"), "{listed}");
        assert_eq!(said.matches(warning).count(), 1, "{said}");
        assert!(said.contains("hint:"), "{said}");
    }

    let doctor = crashing(folder.path(), LISTING[0], &["doctor", "--json"]);
    let report: Value = serde_json::from_slice(&doctor.stdout).expect("one JSON object");
    assert!(report["problems"][0]["text"].as_str().unwrap().starts_with(warning), "{report}");

    let mut args = vec!["train", "--json", "--run=run"];
    let small = small_run();
    args.extend(small.iter().map(String::as_str));
    let output = crashing(folder.path(), LISTING[0], &args);
    let events_of = |output: &Output| -> Vec<Value> {
        let stdout = text(&output.stdout);
        stdout.lines().map(|line| serde_json::from_str(line).expect("an event")).collect()
    };
    let events = events_of(&output);
    let named = |name: &str| events.iter().filter(|event| event["event"] == name).count();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!((named("step"), named("warning")), (6, 1), "{events:?}");
    let start = events.iter().find(|event| event["event"] == "start").unwrap();
    assert_eq!(start["device"]["id"], "cpu");
    let losses = |events: &[Value]| -> Vec<Value> {
        let steps = events.iter().filter(|event| event["event"] == "step");
        steps.map(|step| step["loss"].clone()).collect()
    };
    let on_cpu = ["train", "--json", "--run=cpu", "--device=cpu"];
    let on_cpu =
        program(folder.path()).args(on_cpu).args(&small).current_dir(folder.path()).output();
    assert_eq!(losses(&events), losses(&events_of(&on_cpu.expect("the program starts"))));

    let sample = crashing(folder.path(), LISTING[0], &["sample", "run", "--max-new-tokens=5"]);
    let said = text(&sample.stderr);
    assert!(sample.status.success() && said.matches(warning).count() == 1, "{said}");
}

/// A device of such a driver is refused by name, at once.
#[test]
fn a_device_whose_driver_crashes_is_refused() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let small = small_run();
    let train: Vec<&str> = ["train", "--run=run", "--device=vulkan:0"]
        .into_iter()
        .chain(small.iter().map(String::as_str))
        .collect();
    for args in [&train[..], &["plan", "--preset=demo", "--device=vulkan:0"]] {
        let output = crashing(folder.path(), LISTING[0], args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(4), "{said}");
        let error = "error: no device `vulkan:0`: its driver crashed";
        assert_eq!(said.matches(error).count(), 1, "{said}");
        assert!(said.contains("hint:"), "{said}");
    }
    assert!(!folder.path().join("run").exists());
}

/// A trainer that crashes with cooperative matrices gets a successor without, and later runs begin there.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn a_run_whose_matrices_crash_continues_without_them() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let args = [small_run(), vec!["--dtype=float16".to_string()]].concat();
    let cached = cache.path().to_str().expect("a path");
    let train = |args: &[String], faults: &[(&str, &str)]| {
        let faults = [&[("XDG_CACHE_HOME", cached)], faults].concat();
        let run = Run::new(args, &faults);
        assert!(run.output.status.success(), "{}", run.stderr());
        let warnings = run.events.iter().filter(|event| event["event"] == "warning");
        let warnings: Vec<String> = warnings.map(|event| event["text"].to_string()).collect();
        println!("{warnings:?}");
        (recovery::losses(&run), warnings, run.event("replan").is_some())
    };
    let crash = ("FAULT_CRASH_MATRICES", "30");
    // Without a test of the kernels, which would find it first.
    let (disturbed, warnings, has_crashed) = train(&args, &[crash]);
    assert!(has_crashed && warnings.len() == 1 && warnings[0].contains("crashed"), "{warnings:?}");
    let testing: Vec<String> = args.iter().filter(|flag| *flag != NO_SELF_TEST).cloned().collect();
    let (later, warnings, has_crashed) = train(&testing, &[crash]);
    assert!(!has_crashed && warnings.len() == 1, "{warnings:?}");
    assert!(warnings[0].contains("crashes in a training step"), "{warnings:?}");
    // Both have the losses of the path that they took.
    let wide = [args.clone(), vec!["--ops=wide".to_string()]].concat();
    let (without, warnings, _) = train(&wide, &[crash]);
    assert_eq!((without.len(), warnings.len()), (6, 0), "{warnings:?}");
    assert_eq!((&disturbed, later.len()), (&later, 6));
    for ((iter, loss), (_, wide)) in later.iter().zip(&without) {
        assert!((loss / wide - 1.0).abs() < 1e-3, "{iter}: {loss}, not {wide}");
    }
}
