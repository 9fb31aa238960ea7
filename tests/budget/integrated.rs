//! Tests `--device=auto` on an integrated GPU, which is the software renderer under another name.

use super::*;

/// Trains with these flags and, unless they name another, `--device=auto`. Returns the events, stderr and
/// the submits of each process that used the GPU.
fn train(folder: &Path, run: &str, args: &[String]) -> (Vec<Value>, String, Vec<u64>) {
    let reports = tempfile::tempdir().expect("a temporary folder");
    let output = program(folder)
        .args(["train", "--json", &format!("--run={run}")])
        .args(args)
        .current_dir(folder)
        .env("FAULT_KIND", "integrated")
        .env("FAULT_REPORT", reports.path().join("%p"))
        .output()
        .expect("the program starts");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{run}\n{stderr}");
    let events = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an event"))
        .collect();
    let submits = std::fs::read_dir(reports.path()).expect("a folder").filter_map(|file| {
        let text = std::fs::read_to_string(file.ok()?.path()).ok()?;
        serde_json::from_str::<Value>(&text).ok()?["submits"].as_u64().filter(|&count| count > 0)
    });
    (events, stderr, submits.collect())
}

fn warnings(events: &[Value]) -> Vec<&str> {
    let texts = events.iter().filter(|event| event["event"] == "warning");
    texts.filter_map(|event| event["text"].as_str()).filter(|it| it.contains("tokens/s")).collect()
}

fn backend(events: &[Value]) -> &str {
    let start = events.iter().find(|event| event["event"] == "start").expect("a start");
    start["device"]["backend"].as_str().expect("a backend")
}

/// Multiplies a field of the measurements that are kept of the devices whose key contains `name`.
fn scale(folder: &Path, name: &str, field: &str, factor: f64) {
    let path = folder.join("wgpt/speeds.json");
    let mut speeds: Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let mut changed = 0;
    for (key, points) in speeds.as_object_mut().unwrap() {
        for point in points.as_array_mut().unwrap().iter_mut().filter(|_| key.contains(name)) {
            point[field] = (point[field].as_f64().unwrap() * factor).into();
            changed += 1;
        }
    }
    assert!(changed > 0, "no {name} in {speeds}");
    std::fs::write(path, speeds.to_string()).unwrap();
}

fn losses(events: &[Value]) -> Vec<f64> {
    let steps = events.iter().filter(|event| event["event"] == "step");
    steps.filter_map(|step| step["loss"].as_f64()).collect()
}

#[test]
fn auto_takes_the_faster_of_an_integrated_gpu_and_the_cpu() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let folder = folder.path();
    // The software renderer computes on the CPU with the tiles of a GPU.
    let (events, _, submits) = train(folder, "first", &small_run());
    assert_eq!(backend(&events), "cpu");
    assert!(!submits.is_empty(), "a process trains on the GPU for a moment");
    let [warning] = warnings(&events)[..] else { panic!("{:?}", warnings(&events)) };
    println!("{warning}");
    let speeds: Vec<f64> = warning
        .split(|c: char| !c.is_ascii_digit() && c != ',')
        .filter_map(|word| word.replace(',', "").parse().ok())
        .collect();
    assert!(speeds[0] > speeds[1] && speeds[1] > 0.0, "{warning}");
    assert!(warning.contains("Fault GPU (vulkan:0)"), "{warning}");

    let (events, _, submits) = train(folder, "again", &small_run());
    assert_eq!((backend(&events), submits.len()), ("cpu", 0), "the speeds are kept");
    assert_eq!(warnings(&events).len(), 1);

    scale(folder, "CPU", "seconds", 1e4);
    let (on_gpu, stderr, small) = train(folder, "gpu", &small_run());
    assert_eq!(backend(&on_gpu), "vulkan");
    assert_eq!(warnings(&on_gpu), [""; 0]);
    assert!(stderr.contains(" on the CPU"), "{stderr}");

    // Where it began, a run continues, whatever is faster now.
    let (events, _, submits) =
        train(folder, "again", &["--resume", "--max_iters=8"].map(String::from));
    assert_eq!((backend(&events), submits.len()), ("cpu", 0));
    assert_eq!(warnings(&events), [""; 0]);

    // A device that is known as fast gets more at once, with the same losses.
    scale(folder, "Fault GPU", "flop", 1e4);
    let named = [small_run(), vec!["--device=vulkan:0".to_string()]].concat();
    let (events, stderr, large) = train(folder, "named", &named);
    assert_eq!(backend(&events), "vulkan");
    assert!(!stderr.contains("tokens/s"), "{stderr}");
    assert_eq!(losses(&events), losses(&on_gpu));
    assert!(large.iter().max() < small.iter().max(), "submits: {large:?}, {small:?}");
}
