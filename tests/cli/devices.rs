//! Tests devices: listing them, moving runs between them, and dtypes that they do not support.

use super::*;

/// Returns `TINY` without the device, which comes last.
fn without_device() -> &'static [&'static str] {
    &TINY[..TINY.len() - 1]
}

/// A checkpoint does not depend on the kernels that computed it: a run continues with CUDA's
/// kernels, which also run on Vulkan, as if nothing had changed, and the other way round.
#[cfg(feature = "wgpu")]
#[test]
fn a_run_continues_with_other_kernels() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let [wgsl, cube] = ["--ops=auto", "--ops=cube"].map(|ops| [device.as_str(), ops]);
    let cpu = ["--device=cpu", "--ops=auto"];
    let train = |start: &[&str], run: &str, more: [&str; 2], max_iters: &str| {
        let run = format!("--run={run}");
        let args = [start, &more, &[run.as_str(), max_iters, "--no-supervise"]].concat();
        let losses = losses(&events(&ok(folder.path(), &args))).into_iter();
        losses.map(|(iter, loss)| (iter, loss.parse().unwrap())).collect::<BTreeMap<u64, f64>>()
    };
    let quick = ["--eval_interval=100", "--eval_iters=1", "--sample_tokens=0"];
    let first = [&["train", "--json"], without_device(), &quick].concat();
    let [of_wgsl, of_cube] = [("wgsl", wgsl), ("cube", cube)]
        .map(|(name, flags)| train(&first, name, flags, "--max_iters=10"));
    let next = |name: &str, from: &str, before: &BTreeMap<u64, f64>, to: [&str; 2]| {
        copy(&folder.path().join(from), &folder.path().join(name));
        let mut losses = train(&["train", "--json", "--resume"], name, to, "--max_iters=20");
        losses.extend(before);
        losses
    };
    let unchanged = next("unchanged", "wgsl", &of_wgsl, wgsl);
    assert_eq!(unchanged.len(), 20);
    for (name, from, before, to) in [
        ("there", "wgsl", &of_wgsl, cube),
        ("back", "cube", &of_cube, wgsl),
        ("cpu", "cube", &of_cube, cpu),
    ] {
        let losses = next(name, from, before, to);
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

/// A run keeps the dtype that `auto` chose. On a device without it, the run continues only with another
/// dtype.
#[test]
fn a_run_whose_dtype_is_missing_continues_only_in_another() {
    let folder = temporary();
    let dtype = |events: &[Value]| {
        named(events, "start").next().expect("a start")["config"]["dtype"].to_string()
    };
    assert_eq!(dtype(&train(folder.path(), "r", &["--max_iters=10"])), "\"float32\"");
    // This looks as if a GPU had computed the run in float16.
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
        for name in ["PATH", "SystemRoot"] {
            command.envs(std::env::var_os(name).map(|value| (name, value)));
        }
        command.env("HOME", isolated::HOME);
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

/// With `-vvv`, what libraries say in the processes that open devices comes along.
#[cfg(feature = "wgpu")]
#[test]
fn libraries_speak_on_request() {
    let folder = temporary();
    let short = ["--device=vulkan:0", "--no-self-test", "--eval_interval=100", "--max_iters=1"];
    let train = [&["train", "--run=r"], without_device(), &short].concat();
    let alone = ["train", "--run=alone", "--no-supervise"];
    let alone = [&alone, without_device(), &short].concat();
    for args in [&["devices"][..], &train, &alone] {
        let output = run(folder.path(), &[args, &["-vvv"]].concat());
        let said = text(&output.stderr);
        assert!(output.status.success() && said.contains("DEBUG wgpu"), "{args:?}: {said}");
    }
}

/// Loss scaling gives up in the end, and the error names the dtype with a larger range.
#[cfg(feature = "wgpu")]
#[test]
fn a_run_that_diverges_in_float16_is_told_of_float32() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let wild = [device.as_str(), "--dtype=float16", "--learning_rate=1e12", "--grad_clip=0"];
    let more = ["--warmup_iters=0", "--eval_interval=1000", "--sample_tokens=0", "--max_iters=400"];
    let tiny = &TINY[..TINY.len() - 1];
    let output = run(folder.path(), &[&["train", "--run=r"], tiny, &wild, &more].concat());
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(6), "{said}");
    assert!(said.contains("--dtype=float32, which has a larger range"), "{said}");
}
