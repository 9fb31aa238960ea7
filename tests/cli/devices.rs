//! Devices: listing them, runs that move between them, and dtypes that they do not support.

use super::*;

/// Returns `TINY` without the device, which comes last.
fn without_device() -> &'static [&'static str] {
    &TINY[..TINY.len() - 1]
}

/// Trains ten steps with the options `from` and ten more with `to`. Returns the loss of each step.
fn losses_across(folder: &Path, name: &str, from: &[&str], to: &[&str]) -> BTreeMap<u64, f64> {
    let settings = ["--eval_interval=100", "--no-supervise"];
    let mut both = BTreeMap::new();
    let run = format!("--run={name}");
    let first = ["train", "--json", run.as_str()];
    let args = [&first, without_device(), &settings, from, &["--max_iters=10"]].concat();
    both.extend(losses(&events(&ok(folder, &args))));
    let args = ["train", "--json", "--resume", run.as_str(), "--no-supervise", "--max_iters=20"];
    both.extend(losses(&events(&ok(folder, &[&args, to].concat()))));
    both.into_iter().map(|(iter, loss)| (iter, loss.parse().unwrap())).collect()
}

/// A checkpoint does not depend on the kernels that computed it: a run continues with CUDA's
/// kernels, which also run on Vulkan, as if nothing had changed, and the other way round.
#[cfg(feature = "wgpu")]
#[test]
fn a_run_continues_with_other_kernels() {
    let folder = temporary();
    let wgsl = ["--device=vulkan:0", "--ops=auto"];
    let cube = ["--device=vulkan:0", "--ops=cube"];
    let cpu = ["--device=cpu", "--ops=auto"];
    let unchanged = losses_across(folder.path(), "unchanged", &wgsl, &wgsl);
    assert_eq!(unchanged.len(), 20);
    for (name, from, to) in [("there", wgsl, cube), ("back", cube, wgsl), ("cpu", cube, cpu)] {
        let losses = losses_across(folder.path(), name, &from, &to);
        for (iter, loss) in &unchanged {
            let difference = (losses[iter] - loss).abs();
            assert!(difference < 1e-4, "{name}, iteration {iter}: {} for {loss}", losses[iter]);
        }
    }
}

/// A dtype that the device does not support is refused before anything is written.
#[test]
fn an_unsupported_dtype_is_refused_by_name() {
    let folder = temporary();
    let mut devices = vec![("--device=cpu", &["bfloat16", "tf32", "float16"][..])];
    if cfg!(feature = "wgpu") {
        devices.push(("--device=vulkan:0", &["bfloat16", "tf32"]));
    }
    for (device, dtypes) in devices {
        for dtype in dtypes {
            let dtype_flag = format!("--dtype={dtype}");
            let args =
                [&["train", "--run=r"], without_device(), &[dtype_flag.as_str(), device]].concat();
            let refused = run(folder.path(), &args);
            let stderr = text(&refused.stderr);
            assert_eq!(refused.status.code(), Some(2), "{stderr}");
            assert!(stderr.contains(dtype) && stderr.contains("float32"), "{stderr}");
            assert!(!folder.path().join("r").exists());
        }
    }
}

/// A run keeps what `auto` became. Where that is missing, it continues only with another dtype.
#[test]
fn a_run_whose_dtype_is_missing_continues_only_in_another() {
    let folder = temporary();
    let dtype = |events: &[Value]| {
        named(events, "start").next().expect("a start")["config"]["dtype"].to_string()
    };
    assert_eq!(dtype(&train(folder.path(), "r", &["--max_iters=10"])), "\"float32\"");
    // As if a GPU had computed it in float16.
    for file in ["config.toml", "checkpoints/00000010/state.json"] {
        let path = folder.path().join("r").join(file);
        let text = fs::read_to_string(&path).unwrap();
        assert_eq!(text.matches("\"float32\"").count(), 1, "{text}");
        fs::write(path, text.replace("\"float32\"", "\"float16\"")).unwrap();
    }
    let resume = ["train", "--json", "--resume", "--run=r", "--max_iters=20", "--device=cpu"];
    let refused = run(folder.path(), &resume);
    let stderr = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{stderr}");
    for part in ["cannot continue", "float16", "supports float32", "--dtype=auto"] {
        assert!(stderr.contains(part), "{part} is not in: {stderr}");
    }
    let seen = events(&ok(folder.path(), &[&resume[..], &["--dtype=auto"]].concat()));
    assert_eq!((dtype(&seen).as_str(), losses(&seen).len()), ("\"float32\"", 10));
    let warning = named(&seen, "warning").next().expect("a warning")["text"].to_string();
    assert!(warning.contains("in float16 and continues in float32"), "{warning}");
    let config = fs::read_to_string(folder.path().join("r/config.toml")).unwrap();
    assert!(config.contains("dtype = \"float32\""), "{config}");
}

/// Without a desktop session, as in a container or through ssh, no library adds to wgpt's messages:
/// `-q` leaves none.
#[cfg(feature = "wgpu")]
#[test]
fn libraries_print_nothing_in_a_bare_environment() {
    let folder = temporary();
    let silent = |args: &[&str]| {
        let mut command = wgpt(folder.path());
        command.args(args).arg("-q").env_clear();
        for name in ["HOME", "PATH", "SystemRoot"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{args:?}\n{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{args:?}");
        text(&output.stdout)
    };
    assert!(silent(&["devices"]).contains("vulkan:0"));
    let short = ["--device=vulkan:0", "--eval_interval=100", "--max_iters=2"];
    let args = [&["train", "--json", "--run=r"], without_device(), &short].concat();
    assert!(silent(&args).contains(r#""event":"done""#));
}
