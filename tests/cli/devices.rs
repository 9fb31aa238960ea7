//! Runs that change their device, and numbers that a device does not have.

use super::*;

/// `TINY`, but for the device, which comes last.
fn anywhere() -> &'static [&'static str] {
    &TINY[..TINY.len() - 1]
}

/// The losses of a run on Vulkan that goes on on another implementation of its ops after ten steps.
fn changed(folder: &Path, name: &str, from: &[&str], to: &[&str]) -> BTreeMap<u64, f64> {
    let settings = ["--eval_interval=100", "--no-supervise"];
    let mut both = BTreeMap::new();
    let run = format!("--run={name}");
    let first = ["train", "--json", run.as_str()];
    let args = [&first, anywhere(), &settings, from, &["--max_iters=10"]].concat();
    both.extend(losses(&events(&ok(folder, &args))));
    let args = ["train", "--json", "--resume", run.as_str(), "--no-supervise", "--max_iters=20"];
    both.extend(losses(&events(&ok(folder, &[&args, to].concat()))));
    both.into_iter().map(|(iter, loss)| (iter, loss.parse().unwrap())).collect()
}

/// What a checkpoint holds does not depend on who computed it: with CUDA's kernels, which run here
/// too, a run goes on as if it had never changed, and the other way round.
#[cfg(feature = "wgpu")]
#[test]
fn a_run_goes_on_with_other_kernels() {
    let folder = temporary();
    let wgsl = ["--device=vulkan:0", "--ops=auto"];
    let cube = ["--device=vulkan:0", "--ops=cube"];
    let cpu = ["--device=cpu", "--ops=auto"];
    let stayed = changed(folder.path(), "stayed", &wgsl, &wgsl);
    assert_eq!(stayed.len(), 20);
    for (name, from, to) in [("there", wgsl, cube), ("back", cube, wgsl), ("cpu", cube, cpu)] {
        let changed = changed(folder.path(), name, &from, &to);
        for (iter, loss) in &stayed {
            let off = (changed[iter] - loss).abs();
            assert!(off < 1e-4, "{name}, iteration {iter}: {} for {loss}", changed[iter]);
        }
    }
}

/// Numbers that a device does not compute in are refused before anything is written.
#[test]
fn a_dtype_that_the_device_has_not_is_refused_by_name() {
    let folder = temporary();
    let mut devices = vec!["--device=cpu"];
    if cfg!(feature = "wgpu") {
        devices.push("--device=vulkan:0");
    }
    for device in devices {
        for dtype in ["bfloat16", "tf32"] {
            let dtype_flag = format!("--dtype={dtype}");
            let args = [&["train", "--run=r"], anywhere(), &[dtype_flag.as_str(), device]].concat();
            let refused = run(folder.path(), &args);
            let words = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{words}");
            assert!(words.contains(dtype) && words.contains("float32"), "{words}");
            assert!(!folder.path().join("r").exists());
        }
    }
}
