//! The paths of a discrete NVIDIA GPU, on Mesa's NVK in front of a GPU that computes nothing
//! (tests/driver/nvidia). VK_DRIVER_FILES must name it, so the tests are ignored elsewhere.

use super::*;

const GPUS: [&str; 3] = ["2060", "3060", "4070"];

fn on(gpu: &str, folder: &Path, args: &[&str]) -> Output {
    let output = may_fail_on(gpu, folder, args);
    assert!(output.status.success(), "{gpu}, {args:?}\n{}", text(&output.stderr));
    output
}

fn may_fail_on(gpu: &str, folder: &Path, args: &[&str]) -> Output {
    let mut command = wgpt(folder);
    // The speed of a GPU that computes nothing is not worth remembering.
    set_cache(&mut command, folder);
    let output = command.env("NVIDIA_STUB", gpu).args(args).output().expect("the program starts");
    let said = text(&output.stderr);
    assert!(!said.contains("panicked"), "{gpu}, {args:?}\n{said}");
    output
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("one JSON value")
}

#[test]
#[ignore = "needs tests/driver/nvidia"]
fn nvidia_gpus_are_listed() {
    let folder = temporary();
    for gpu in GPUS {
        let devices = json(&on(gpu, folder.path(), &["devices", "--json"]));
        let device = &devices[0];
        assert_eq!((&device["id"], &device["kind"]), (&"vulkan:0".into(), &"discrete".into()));
        assert!(device["name"].as_str().unwrap().contains(&format!("RTX {gpu}")), "{device}");
        assert_eq!(device["dtypes"], serde_json::json!(["float32", "float16"]));
        assert_eq!(device["matrices"], 16);
    }
}

#[test]
#[ignore = "needs tests/driver/nvidia"]
fn nvidia_gpus_are_described_by_the_doctor() {
    let folder = temporary();
    let said = text(&on("4070", folder.path(), &["doctor"]).stdout);
    for part in ["RTX 4070", "(discrete)", "PCI ids: 10de:2786", "subgroups: 32", "16x16x16 F16"] {
        assert!(said.contains(part), "no {part:?}:\n{said}");
    }
    let auto = said.lines().find(|line| line.trim_start().starts_with("auto "));
    assert!(auto.is_some_and(|line| line.contains("vulkan:0")), "{said}");
}

/// GPT-2 of 124M parameters fits a 12 GB GPU, in float16 on its matrices, and its time follows from the
/// published speed of that GPU.
#[test]
#[ignore = "needs tests/driver/nvidia"]
fn nvidia_gpus_have_plans() {
    let folder = temporary();
    let plan = |gpu, more: &[&str]| {
        on(gpu, folder.path(), &[&["plan", "--preset=gpt2", "--device=vulkan:0"], more].concat())
    };
    let bytes = |gpu| {
        let plan = json(&plan(gpu, &["--json", "--vram_budget=10GiB"]));
        assert_eq!(plan["fits"], true, "{plan}");
        assert!(plan["precision"].as_str().unwrap().contains("16x16"), "{plan}");
        plan["predicted_bytes"].as_u64().unwrap()
    };
    assert_eq!(bytes("3060"), bytes("4070"));
    let said = text(&plan("4070", &[]).stdout);
    assert!(said.contains("'s 29.1 TFLOP/s"), "{said}");
}

/// Trains with losses of zero, if the test of the kernels is left out. The test refuses them all.
#[test]
#[ignore = "needs tests/driver/nvidia"]
fn nvidia_gpus_train_to_the_end() {
    let folder = temporary();
    for dtype in ["auto", "float32", "float16"] {
        let dtype_flag = format!("--dtype={dtype}");
        let run = format!("--run={dtype}");
        let args = [
            "train",
            "--json",
            "--preset=demo",
            "--device=vulkan:0",
            "--max_iters=3",
            "--eval_interval=3",
            "--eval_iters=1",
            "--log_interval=1",
            "--sample_tokens=5",
            &dtype_flag,
            &run,
        ];
        let refused = may_fail_on("3060", folder.path(), &args);
        assert!(text(&refused.stderr).contains("failed the test of its kernels in"), "{refused:?}");
        std::fs::remove_dir_all(folder.path().join(dtype)).ok();
        let args = [&args[..], &["--no-self-test"]].concat();
        let events = events(&text(&on("3060", folder.path(), &args).stdout));
        let start = named(&events, "start").next().expect("a start");
        assert_eq!(start["device"]["kind"], "discrete");
        let steps = named(&events, "step").filter(|step| step["loss"] == 0.0);
        assert_eq!(steps.count(), 3, "{dtype}: {events:?}");
        assert!(named(&events, "step").all(|step| step["vram_peak_bytes"].as_u64() > Some(0)));
        assert_eq!(named(&events, "done").next().expect("an end")["iter"], 3);
    }
}

/// The GPU refuses what exceeds its 6 GiB, and the run continues with a smaller micro-batch.
#[test]
#[ignore = "needs tests/driver/nvidia"]
fn nvidia_gpus_run_out_of_memory_and_continue() {
    let folder = temporary();
    let args = [
        "train",
        "--json",
        "--preset=demo",
        "--device=vulkan:0",
        "--no-self-test",
        "--dtype=float32",
        "--batch_size=32768",
        "--vram_budget=none",
        "--grad_checkpoint=false",
        "--max_iters=1",
        "--warmup_iters=0",
        "--eval_iters=1",
        "--eval_batch_size=1024",
        "--sample_tokens=0",
        "--run=large",
    ];
    let events = events(&text(&on("2060", folder.path(), &args).stdout));
    let replan = named(&events, "replan").next().expect("a smaller plan");
    assert_eq!(replan["reason"], "out_of_memory");
    assert_eq!(named(&events, "done").next().expect("an end")["iter"], 1);
}
