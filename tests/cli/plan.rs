//! `wgpt plan`, and runs that are planned by time.

use super::*;

/// Returns the exit code and stdout of `wgpt plan`.
fn plan(args: &[&str]) -> (Option<i32>, String) {
    let folder = temporary();
    let output = run(folder.path(), &[&["plan"], args].concat());
    (output.status.code(), text(&output.stdout))
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&plan(&[args, &["--json"]].concat()).1).expect("one JSON object")
}

#[test]
fn the_verdict_comes_first_and_the_table_fits_80_columns() {
    let mut shown = 0;
    for preset in ["demo", "gpt2", "gpt2-xl", "largest-24gb", "card-24gb"] {
        for target in ["4", "12GiB", "RTX 4090"] {
            for more in [
                &[][..],
                &["--grad_checkpoint=true"],
                &["--dtype=bfloat16"],
                &["--offload_optimizer=true"],
                &["--optimizer=muon", "--dtype=float16"],
            ] {
                let preset = format!("--preset={preset}");
                let args = [&[preset.as_str(), "--target", target, "-v"], more].concat();
                let (code, stdout) = plan(&args);
                let verdict = match code {
                    Some(0) => "Fits: ",
                    Some(3) => "Does not fit: needs ",
                    code => panic!("{args:?}: {code:?}"),
                };
                assert!(stdout.starts_with(verdict), "{args:?}\n{stdout}");
                assert!(
                    stdout.lines().all(|line| line.chars().count() <= 80),
                    "{args:?}\n{stdout}"
                );
                assert!(stdout.split_whitespace().all(|word| word != "0.0"), "{args:?}\n{stdout}");
                let json = json(&args);
                assert!(stdout.starts_with(json["verdict"].as_str().unwrap()), "{json}");
                let forecast = if code == Some(0) { &json } else { &json["least"] };
                let rows = forecast["rows"].as_array().unwrap();
                let names: BTreeMap<_, _> =
                    rows.iter().map(|row| (row["name"].to_string(), ())).collect();
                assert_eq!(names.len(), rows.len(), "{args:?}: two rows with one name\n{rows:?}");
                let host = forecast["host_rows"].as_array().unwrap().iter();
                let host: u64 = host.map(|row| row["bytes"].as_u64().unwrap()).sum();
                assert_eq!(forecast["host_bytes"], host, "{args:?}");
                let is_offloaded = forecast["offload_optimizer"] == true;
                assert!(is_offloaded || !more.contains(&"--offload_optimizer=true"), "{args:?}");
                let is_title = |line: &str| line.starts_with("class") && line.contains("in host");
                let has_table = stdout.lines().any(is_title);
                assert_eq!((host > 0, has_table), (is_offloaded, is_offloaded), "{stdout}");
                shown += 1;
            }
        }
    }
    assert_eq!(shown, 75);
}

#[test]
fn a_named_gpu_has_a_time_and_a_size_has_none() {
    let named = json(&["--preset=gpt2", "--target", "RTX 3060"]);
    assert_eq!(named["run"]["parameters"], 124_439_808);
    assert_eq!(named["run"]["tokens"], 294_912_000_000u64);
    let seconds = |plan: &Value| plan["run"]["time"]["seconds"].as_f64();
    assert!(seconds(&named).is_some_and(|seconds| seconds > 1e7), "{named}");
    assert_eq!(named["precision"], "float16 with float32 sums, on 16x16 cooperative matrices");
    let sized = json(&["--preset=gpt2", "--target", "12", "--dtype=float16"]);
    assert_eq!(sized["predicted_bytes"], named["predicted_bytes"]);
    assert_eq!(sized["run"]["time"], Value::Null);
    let (_, stdout) = plan(&["--preset=gpt2", "--target", "12"]);
    assert!(stdout.contains("time      unknown"), "{stdout}");
    assert!(stdout.contains("dtype     float32\n"), "{stdout}");
    assert!(stdout.contains("optimizer AdamW\n"), "{stdout}");
    // For a size alone, the plan assumes matrices, which take more memory.
    let (_, stdout) = plan(&["--preset=gpt2", "--target", "12", "--dtype=float16"]);
    assert!(stdout.contains("cooperative matrices, assumed for"), "{stdout}");
    // `max_time` shortens the schedule, unless its length is set.
    let limited = ["--preset=gpt2", "--target", "RTX 3060", "--max_time=8h"];
    let tonight = json(&limited);
    assert!(seconds(&tonight).unwrap() <= 8.0 * 3600.0, "{tonight}");
    assert!((100..2000).contains(&tonight["run"]["updates"].as_u64().unwrap()), "{tonight}");
    let set = json(&[&limited[..], &["--max_iters=600000"]].concat());
    assert_eq!(set["run"]["updates"], 600_000);
}

/// The memory of the machine is the budget of the CPU.
#[test]
fn a_model_larger_than_the_machine_is_refused_on_the_cpu() {
    let folder = temporary();
    let large = ["--preset=gpt2-xl", "--n_layer=1000", "--device=cpu"];
    let planned = run(folder.path(), &[&["plan"], &large[..]].concat());
    assert_eq!(planned.status.code(), Some(3), "{}", text(&planned.stderr));
    let error = text(&planned.stderr);
    assert!(error.contains("it would fit with --"), "{error}");
    let small = json(&["--preset=demo", "--device=cpu"]);
    assert!(small["budget_bytes"].as_u64().is_some_and(|budget| budget > 1 << 20), "{small}");

    let args = ["train", "--data=builtin:stories", "--run=r"];
    let refused = run(folder.path(), &[&args, &large[..]].concat());
    assert_eq!(refused.status.code(), Some(3), "{}", text(&refused.stderr));
    assert!(!folder.path().join("r").exists());
}

/// `ulimit -v` limits the memory of the CPU, and the memory of an offloaded optimizer.
#[cfg(target_os = "linux")]
#[test]
fn a_limited_address_space_is_refused_in_words() {
    let folder = temporary();
    let limited = |args: &str| {
        // A loaded driver maps some of these 4 GiB.
        let script = format!("ulimit -v 4194304; exec {} {args}", env!("CARGO_BIN_EXE_wgpt"));
        let mut command = started("sh", folder.path());
        let output = command.args(["-c", &script]).output().expect("a shell");
        assert_eq!(output.status.code(), Some(3), "{args}\n{}", text(&output.stderr));
        (text(&output.stdout), text(&output.stderr))
    };
    let (stdout, _) = limited("plan --preset=gpt2-medium --device=cpu");
    assert!(stdout.contains("(the address space limit)"), "{stdout}");
    #[cfg(feature = "wgpu")]
    {
        let offloaded = "--preset=gpt2-medium --device=vulkan:0 --vram_budget=none \
                         --offload_optimizer=true";
        let (stdout, error) = limited(&format!("plan {offloaded}"));
        assert!(stdout.starts_with("Does not fit: needs "), "{stdout}");
        assert!(stdout.contains(" of host memory, "), "{stdout}");
        assert!(error.contains("close other programs"), "{error}");
        let data = "--data=builtin:stories --vocab_size=50257 --run=r";
        let (_, error) = limited(&format!("train {offloaded} {data}"));
        assert!(error.contains(" of host memory, "), "{error}");
        assert!(!folder.path().join("r").exists());
    }
}

#[cfg(target_os = "linux")]
fn is_of_adapter(flag: &str) -> bool {
    flag.starts_with("--lora_rank") || flag.starts_with("--base_dtype")
}

/// The peak of the process, as Linux counts it.
#[cfg(target_os = "linux")]
#[test]
fn the_plan_of_the_cpu_is_near_the_memory_of_the_process() {
    for (number, more) in [
        &["--batch_size=16", "--gradient_accumulation_steps=1", "--vocab_size=2000"][..],
        &["--batch_size=4", "--gradient_accumulation_steps=2", "--vocab_size=30000"],
        &["--batch_size=16", "--gradient_accumulation_steps=1", "--grad_checkpoint=true"],
        &["--batch_size=4", "--gradient_accumulation_steps=1", "--lora_rank=16"],
        &[
            "--batch_size=4",
            "--gradient_accumulation_steps=1",
            "--lora_rank=16",
            "--base_dtype=q8_0",
        ],
    ]
    .into_iter()
    .enumerate()
    {
        let folder = temporary();
        let shape = [
            "--data=builtin:stories",
            "--n_layer=4",
            "--n_head=4",
            "--n_embd=256",
            "--block_size=256",
            "--max_iters=1",
            "--eval_iters=1",
            "--sample_tokens=0",
            "--device=cpu",
        ];
        let mut args = [&shape[..], more].concat();
        if more.contains(&"--lora_rank=16") {
            // A base whose weights count beside the memory of the process itself.
            args.extend([
                "--n_embd=768",
                "--n_layer=10",
                "--block_size=64",
                "--vocab_size=8000",
                "--learning_rate=1e-3",
            ]);
            let base: Vec<_> = args.iter().filter(|flag| !is_of_adapter(flag)).copied().collect();
            ok(folder.path(), &[&["train", "--run=base"], &base[..], &["--batch_size=1"]].concat());
            args.push("--init_from=base");
        }
        let mut child = wgpt(folder.path())
            .args([&["train", "--json", "--run=r"], &args[..]].concat())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let status = PathBuf::from(format!("/proc/{}/status", child.id()));
        let mut peak = 0;
        while child.try_wait().unwrap().is_none() {
            let text = fs::read_to_string(&status).unwrap_or_default();
            let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
            peak = peak.max(kib.unwrap_or(0) << 10);
            std::thread::sleep(Duration::from_millis(2));
        }
        assert!(child.wait().unwrap().success());
        let plan = [&["plan", "--json"], &args[..]].concat();
        let plan: Value = serde_json::from_str(&ok(folder.path(), &plan)).unwrap();
        let predicted = plan["predicted_bytes"].as_f64().unwrap();
        let ratio = predicted / peak as f64;
        println!("{number}: {predicted} predicted, {peak} at the peak: {ratio:.2}");
        assert!((0.8..1.25).contains(&ratio), "{more:?}: {predicted} for {peak}\n{plan}");
    }
}

/// The configuration in the run folder has the planned schedule, so that a resumed run keeps it.
#[test]
fn max_time_plans_a_schedule_that_ends_in_time() {
    let folder = temporary();
    let tiny = TINY.iter().filter(|flag| {
        !["--max_iters", "--lr_decay_iters", "--eval_interval", "--warmup_iters"]
            .iter()
            .any(|key| flag.starts_with(key))
    });
    // With a preset, only the length is planned.
    let planned = ["train", "--json", "--run=r", "--preset=gpt2", "--max_time=8s"];
    let args: Vec<&str> =
        planned.into_iter().chain(["--log_interval=100"]).chain(tiny.copied()).collect();
    let start = Instant::now();
    let events = events(&ok(folder.path(), &args));
    let seconds = start.elapsed().as_secs_f64();
    let config = |key: &str| events[0]["config"][key].as_u64().unwrap();
    let updates = config("max_iters");
    assert!((10..600_000).contains(&updates), "{updates}");
    assert_eq!(config("lr_decay_iters"), updates);
    assert_eq!(config("warmup_iters"), (updates / 50).min(2000));
    let note = named(&events, "note").next().unwrap();
    let said = note["text"].as_str().unwrap();
    assert!(said.contains(&updates.to_string()) && said.contains("8s"), "{said}");
    // The limit still holds if other programs slow the run down.
    assert!((1.0..20.0).contains(&seconds), "{seconds} s");
    let saved = fs::read_to_string(folder.path().join("r/config.toml")).unwrap();
    assert!(saved.contains(&format!("max_iters = {updates} ")), "{saved}");
    // A resumed run does not plan again.
    let args = ["train", "--resume", "--run=r", "--json", "--device=cpu", "--eval_only=true"];
    let resumed = super::events(&ok(folder.path(), &args));
    assert_eq!(resumed[0]["config"]["max_iters"], updates);
}

#[cfg(not(target_os = "macos"))]
#[test]
fn a_calibration_is_kept_and_used() {
    let folder = temporary();
    let args = ["plan", "--preset=shakespeare-char", "--vocab_size=65", "--device=cpu"];
    let plan = |more: &[&str]| {
        let mut command = wgpt(folder.path());
        set_cache(&mut command, folder.path());
        command.args(args).args(more);
        text(&command.output().unwrap().stdout)
    };
    assert!(plan(&[]).contains("--calibrate measures it"));
    assert!(plan(&["--calibrate"]).contains("measured on this device"));
    assert!(folder.path().join("wgpt/speeds.json").exists());
    let stdout = plan(&[]);
    assert!(stdout.contains("measured on this device"), "{stdout}");
}

/// The memory of the CPU is the host's, so there is no other place for the optimizer.
#[test]
fn an_offloaded_optimizer_on_the_cpu_is_a_warning() {
    let folder = temporary();
    let events = train(folder.path(), "r", &["--max_iters=2", "--offload_optimizer=true"]);
    let warning = named(&events, "warning").next().expect("a warning")["text"].to_string();
    assert!(warning.contains("offload_optimizer=true has no effect"), "{warning}");
    assert!(named(&events, "step").all(|step| step["optimizer_ms"].is_null()));
}

#[test]
fn ranks_are_planned_with_their_network() {
    let args = ["--preset=gpt2", "--target", "RTX 3060", "--dtype=float32"];
    let alone = json(&args);
    assert!(alone["ranks"].is_null());
    let two = json(&[&args[..], &["--ranks=2", "--network=1Gbit"]].concat());
    assert_eq!(two["ranks"]["sequences"], 240);
    assert_eq!(two["run"]["tokens_per_update"], alone["run"]["tokens_per_update"]);
    let seconds = |plan: &Value| plan["run"]["time"]["seconds_per_update"].as_f64().unwrap();
    let network = two["ranks"]["network_seconds"].as_f64().unwrap();
    assert!((3.9..4.1).contains(&network), "{network}");
    let ratio = (seconds(&two) - network) / seconds(&alone);
    assert!((0.45..0.55).contains(&ratio), "{ratio}");
    let (code, stdout) = plan(&[&args[..], &["--ranks=4", "--network", "100Mbit"]].concat());
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("4, up to 120 sequences each"), "{stdout}");
    assert!(stdout.contains("at 100 Mbit/s"), "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
    let sharded = ["--ranks=4", "--network=1Gbit", "--shard_optimizer=true"];
    let four = json(&[&args[..], &sharded].concat());
    let [whole, part] = [0, 1].map(|i| four["ranks"]["optimizer_bytes"][i].as_f64().unwrap());
    assert!((0.30..0.32).contains(&(part / whole)), "{part} of {whole}");
    let state = |plan: &Value| plan["classes"]["optimizer"].as_f64().unwrap();
    assert_eq!((state(&four), state(&alone)), (part, whole));
    let (code, stdout) = plan(&[&args[..], &sharded].concat());
    assert_eq!(code, Some(0), "{stdout}");
    assert!(stdout.contains("optimizer state: up to "), "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 80), "{stdout}");
    let measured = plan(&[&args[..], &sharded, &["--measure"]].concat());
    assert_eq!(measured.0, Some(2));
    for bad in [&["--ranks=481"][..], &["--ranks=0"], &["--ranks=2", "--network=fast"]] {
        assert_eq!(plan(&[&args[..], bad].concat()).0, Some(2), "{bad:?}");
    }
}

/// A model that is not there is an error before anything else; one of the list is planned before it is fetched.
#[test]
fn a_model_to_start_from_is_looked_for_first() {
    let folder = temporary();
    for command in [&["plan"][..], &["train", "--data=builtin:stories"]] {
        let args = [command, &["--init_from=nothere"]].concat();
        let output = run(folder.path(), &args);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{said}");
        assert!(said.contains("nothere: does not exist") && said.contains("hint: "), "{said}");
        assert!(output.stdout.is_empty());
    }
    let listed = json(&["--init_from=hf:Qwen/Qwen3-0.6B", "--target=3060"]);
    assert_eq!(listed["run"]["parameters"], 596_049_920);
    assert_eq!(listed["fits"], true);
    let args = ["train", "--data=builtin:stories", "--init_from=hf:Qwen/Qwen3-0.6B"];
    let output = run(folder.path(), &args);
    assert!(
        text(&output.stderr).contains("wgpt get hf:Qwen/Qwen3-0.6B"),
        "{}",
        text(&output.stderr)
    );
    assert!(!folder.path().join("out").exists());
}

#[test]
fn a_plan_of_nothing_shows_what_each_time_is_enough_for() {
    let (code, stdout) = plan(&["--target=4070"]);
    assert_eq!(code, Some(0), "{stdout}");
    for start in ["10 minutes ", "an hour ", "a night ", "a weekend ", "nanoGPT's GPT-2, 124.4M "] {
        assert!(stdout.lines().any(|line| line.starts_with(start)), "{start}\n{stdout}");
    }
    assert!(stdout.contains("RTX 4070's 29.1 TFLOP/s"), "{stdout}");
    let night = json(&["--target=4070", "--time=8h"]);
    let seconds = night["run"]["time"]["seconds"].as_f64().unwrap();
    assert!((0.5..1.0).contains(&(seconds / (8.0 * 3600.0))), "{night}");
    // Without a device nothing has a speed.
    assert!(plan(&["--vram_budget=8GiB"]).1.starts_with("Fits: "));
    assert!(plan(&["--targets"]).1.lines().any(|line| line.starts_with("RX 7600 XT")));
}

/// Two rows that promise the same would make a reader look for the difference.
#[test]
fn each_row_of_a_table_is_another_run() {
    for data in ["builtin:stories", "builtin:chats"] {
        for target in ["RTX 4090", "m1"] {
            let (_, stdout) = plan(&[&format!("--data={data}"), "--target", target]);
            let rows: Vec<&str> =
                stdout.lines().skip(1).take_while(|line| line.contains("    ")).collect();
            let promised: Vec<&str> = rows.iter().map(|row| &row[11..]).collect();
            assert!(promised.windows(2).all(|pair| pair[0] != pair[1]), "{stdout}");
            let has_end = stdout.contains("is enough");
            assert!(!has_end || !stdout.contains("--time=48h"), "{stdout}");
        }
    }
}

#[test]
fn a_length_is_in_tokens_or_passes_too() {
    let updates = |args: &[&str]| json(args)["run"]["updates"].as_u64().unwrap();
    // Of 480 x 1024 tokens each.
    assert_eq!(updates(&["--preset=gpt2", "--target=12", "--tokens=1B"]), 2035);
    let epoch = updates(&["--preset=demo", "--target=12", "--epochs=1"]);
    let three = updates(&["--preset=demo", "--target=12", "--epochs=3"]);
    assert!((3 * epoch - 2..=3 * epoch).contains(&three), "{epoch} {three}");
    let tuned = |more: &[&str]| {
        let args = ["--init_from=hf:openai-community/gpt2", "--target=12"];
        json(&[&args, more].concat())["run"]["tokens"].as_f64().unwrap()
    };
    // Three passes over the tokens that a plan without data assumes.
    assert!((2.8e6..=3.1e6).contains(&tuned(&[])));
    assert!((0.9e6..=1.1e6).contains(&tuned(&["--epochs=1"])));
    assert!((1.9e6..=2.1e6).contains(&tuned(&["--tokens=2M"])));
    for (args, word) in [
        (["--tokens=1B", "--epochs=3"], "cannot be used with"),
        (["--tokens=1B", "--max_iters=9"], "cannot be used with"),
        (["--tokens=many", "--target=12"], "like 300M or 1B"),
    ] {
        let output = run(temporary().path(), &[&["plan", "--preset=demo"], &args[..]].concat());
        assert!(text(&output.stderr).contains(word), "{}", text(&output.stderr));
    }
}
