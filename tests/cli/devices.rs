//! Runs that change their device, and dtypes that a device lacks.

use super::*;

/// Returns `TINY` without the device, its last flag.
fn tiny_on_any_device() -> &'static [&'static str] {
    &TINY[..TINY.len() - 1]
}

/// Returns the losses of a run that continues with other kernels after ten steps.
fn losses_after_change(
    folder: &Path,
    name: &str,
    from: &[&str],
    to: &[&str],
) -> BTreeMap<u64, f64> {
    let settings = ["--eval_interval=100", "--no-supervise"];
    let mut both = BTreeMap::new();
    let run = format!("--run={name}");
    let first = ["train", "--json", run.as_str()];
    let args = [&first, tiny_on_any_device(), &settings, from, &["--max_iters=10"]].concat();
    both.extend(losses(&events(&ok(folder, &args))));
    let args = ["train", "--json", "--resume", run.as_str(), "--no-supervise", "--max_iters=20"];
    both.extend(losses(&events(&ok(folder, &[&args, to].concat()))));
    both.into_iter().map(|(iter, loss)| (iter, loss.parse().unwrap())).collect()
}

/// A checkpoint does not depend on the kernels that computed it: a run continues with those of CUDA,
/// which run on Vulkan too, or on the CPU, as if it had never changed.
#[cfg(feature = "wgpu")]
#[test]
fn a_run_continues_with_other_kernels() {
    let folder = temporary();
    let wgsl = ["--device=vulkan:0", "--ops=auto"];
    let cube = ["--device=vulkan:0", "--ops=cube"];
    let cpu = ["--device=cpu", "--ops=auto"];
    let stayed = losses_after_change(folder.path(), "stayed", &wgsl, &wgsl);
    assert_eq!(stayed.len(), 20);
    for (name, from, to) in [("there", wgsl, cube), ("back", cube, wgsl), ("cpu", cube, cpu)] {
        let changed = losses_after_change(folder.path(), name, &from, &to);
        for (iter, loss) in &stayed {
            let off = (changed[iter] - loss).abs();
            assert!(off < 1e-4, "{name}, iteration {iter}: {} for {loss}", changed[iter]);
        }
    }
}

/// A dtype that the device lacks is refused before any file is written.
#[test]
fn a_dtype_that_the_device_lacks_is_refused() {
    let folder = temporary();
    let mut devices = vec!["--device=cpu"];
    if cfg!(feature = "wgpu") {
        devices.push("--device=vulkan:0");
    }
    for device in devices {
        for dtype in ["bfloat16", "tf32"] {
            let dtype_flag = format!("--dtype={dtype}");
            let args =
                [&["train", "--run=r"], tiny_on_any_device(), &[dtype_flag.as_str(), device]]
                    .concat();
            let refused = run(folder.path(), &args);
            let words = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{words}");
            assert!(words.contains(dtype) && words.contains("float32"), "{words}");
            assert!(!folder.path().join("r").exists());
        }
    }
}
