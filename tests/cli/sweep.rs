//! Tests sweeps, and runs that are told only how long they may take.

use super::*;

/// Flags of runs that end in a moment.
const SHORT: [&str; 4] = ["--max_iters=4", "--eval_interval=4", "--sample_tokens=0", "--n_layer=1"];

#[test]
fn a_sweep_compares_settings_over_seeds_and_continues() {
    let folder = temporary();
    let path = folder.path();
    let swept = ["sweep", "--json", "--seeds=2", "--learning_rate=2e-3,1e-2", "-o", "s"];
    let args = [&swept[..], TINY, &SHORT, &["--learning_rate=2e-3,1e-2"]].concat();
    let result: Value = serde_json::from_str(&ok(path, &args)).unwrap();
    assert_eq!(result["metric"], "bits per byte");
    let rows = result["rows"].as_array().unwrap();
    let settings: Vec<&str> = rows.iter().map(|row| row["settings"].as_str().unwrap()).collect();
    assert_eq!(settings, ["learning_rate=1e-2", "learning_rate=2e-3"], "the better one is first");
    for row in rows {
        assert_eq!(row["results"].as_array().unwrap().len(), 2, "{row}");
        assert!(row["standard_error"].as_f64().unwrap() > 0.0, "{row}");
    }
    assert!(rows[1]["p_value"].as_f64().unwrap() < 1.0);

    // Finished runs are kept, and those that are gone are trained again, side by side, to the same result.
    let seed = path.join("s/learning_rate=1e-2,seed=1338");
    let kept = fs::metadata(path.join("s/learning_rate=1e-2,seed=1337/events.jsonl")).unwrap();
    fs::remove_dir_all(&seed).unwrap();
    fs::remove_dir_all(path.join("s/learning_rate=2e-3,seed=1338")).unwrap();
    let on_two = |arg| if arg == "--device=cpu" { "--device=cpu, cpu" } else { arg };
    let two: Vec<&str> = args.iter().copied().map(on_two).collect();
    let again: Value = serde_json::from_str(&ok(path, &two)).unwrap();
    assert_eq!(again, result);
    let now = fs::metadata(path.join("s/learning_rate=1e-2,seed=1337/events.jsonl")).unwrap();
    assert_eq!(now.modified().unwrap(), kept.modified().unwrap());

    // The folder of the sweep is a comparison, with curves of the first seed.
    let compared: Value = serde_json::from_str(&ok(path, &["compare", "s", "--json"])).unwrap();
    assert_eq!((&compared["sweep"], compared["runs"].as_array().unwrap().len()), (&result, 2));
    ok(path, &["compare", "s", "-o", "s.html"]);
    let page = fs::read_to_string(path.join("s.html")).unwrap();
    assert!(page.contains("<th>learning_rate=1e-2</th>"), "{page}");
    let one = run(path, &["compare", "s/learning_rate=1e-2,seed=1337"]);
    assert_eq!(one.status.code(), Some(2), "{}", text(&one.stderr));

    fs::create_dir(path.join("new")).unwrap();
    fs::copy(path.join("s/sweep.json"), path.join("new/sweep.json")).unwrap();
    let new = run(path, &["compare", "new"]);
    assert!(text(&new.stderr).contains("has ended yet"), "{}", text(&new.stderr));

    let other = run_sweep(path, &["--n_embd=32"]);
    assert_eq!(other.status.code(), Some(2));
    assert!(text(&other.stderr).contains("has a sweep with other settings"));
}

/// Runs the sweep in `s` with other settings.
fn run_sweep(path: &Path, more: &[&str]) -> Output {
    let args =
        [&["sweep", "--seeds=2", "--learning_rate=2e-3,1e-2", "-o", "s"], TINY, more].concat();
    run(path, &args)
}

#[test]
fn a_sweep_whose_first_run_was_refused_can_be_corrected() {
    let folder = temporary();
    for (data, code) in [("--data=nowhere", 7), ("--data=builtin:stories", 0)] {
        let args = [&["sweep", "--seeds=2", "-o", "s"], TINY, &SHORT, &[data]].concat();
        let output = run(folder.path(), &args);
        assert_eq!(output.status.code(), Some(code), "{}", text(&output.stderr));
    }
}

#[test]
fn a_sweep_without_anything_to_compare_is_refused() {
    let folder = temporary();
    let refused = run(folder.path(), &["sweep", "--preset=demo"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("--seeds=5"), "{}", text(&refused.stderr));
    let wrong = run(folder.path(), &["sweep", "--preset=demo", "--optimizer=adamw,sgd"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).contains("muon"), "{}", text(&wrong.stderr));
}

#[test]
fn with_a_time_each_combination_gets_the_updates_that_end_in_it() {
    let folder = temporary();
    let sizes = ["sweep", "--json", "--time=3s", "--data=builtin:stories", "--batch_size=4,64"];
    // A shape that the rule chooses could differ between the two on a busy machine.
    let shape =
        ["--n_layer=3", "--n_head=3", "--n_embd=96", "--block_size=128", "--optimizer=adamw"];
    let others = ["--device=cpu", "-o", "s", "--sample_tokens=0"];
    let args = [&sizes[..], &shape, &others].concat();
    let result: Value = serde_json::from_str(&ok(folder.path(), &args)).unwrap();
    assert_eq!(result["rows"].as_array().unwrap().len(), 2);
    let updates = [4, 64].map(|size| {
        let said =
            fs::read(folder.path().join(format!("s/batch_size={size},seed=1337/events.jsonl")));
        let events = events(&text(&said.unwrap()));
        // A limit of the run itself would end it sooner where the machine is busy.
        assert!(events[0]["config"]["max_time"].as_str().unwrap_or("").is_empty(), "{}", events[0]);
        events[0]["config"]["max_iters"].as_u64().unwrap()
    });
    // The second takes 16 times as long, which outweighs what else the machine does.
    assert!(updates[0] > updates[1], "{updates:?}");
}

#[test]
fn a_time_alone_chooses_what_to_train() {
    let folder = temporary();
    let args =
        ["train", "--json", "--data=builtin:stories", "--time=4s", "--device=cpu", "--run=r"];
    let events = events(&ok(folder.path(), &[&args[..], &["--sample_tokens=20"]].concat()));
    let config = &events[0]["config"];
    assert_eq!((&config["schedule"], &config["max_time"]), (&"wsd".into(), &"4s".into()));
    let [layers, updates] = ["n_layer", "max_iters"].map(|key| config[key].as_u64().unwrap());
    // On a busy machine these are the fewest that a plan has, and the run ends in time with fewer.
    assert!((1..=4).contains(&layers) && updates >= 10, "{config}");
    assert_eq!(config["sample_tokens"], 20, "what was typed stays");
    assert!(named(&events, "eval").count() >= 2, "{}", named(&events, "eval").count());

    // What a run with a preset is told of that teaches a model little.
    let night =
        run(folder.path(), &["plan", "--preset=gpt2-large", "--target=RTX 3060", "--time=8h"]);
    let said = text(&night.stderr);
    assert!(said.contains("updates teach a model little: batch_size = "), "{said}");
    assert!(said.contains("tokens per parameter is too few"), "{said}");
}

/// A model that sees a small text again and again gets dropout.
#[test]
fn little_data_in_much_time_gets_dropout() {
    use std::io::{BufRead, BufReader};
    let folder = temporary();
    let text: Vec<String> =
        (0..2000_u32).map(|number| format!("{} foxes.\n", number * number)).collect();
    fs::write(folder.path().join("a.txt"), text.concat()).unwrap();
    ok(folder.path(), &["prepare", "a.txt", "-o", "data", "--tokenizer=char"]);
    let args = ["train", "--json", "--data=data", "--time=1h", "--device=cpu", "--run=r"];
    let mut child = wgpt(folder.path()).args(args).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let start = lines.find(|line| line.contains(r#""event":"start""#)).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let start: Value = serde_json::from_str(&start).unwrap();
    assert_eq!(start["config"]["dropout"], 0.1, "{start}");
}

#[test]
fn a_plan_of_data_alone_shows_what_each_time_is_good_for() {
    let folder = temporary();
    let args = ["plan", "--data=builtin:stories", "--target=RTX 3060"];
    let table = ok(folder.path(), &args);
    assert!(table.starts_with("time "), "{table}");
    assert!(table.contains("10 minutes ") && table.contains(" or longer: 14m "), "{table}");
    assert!(table.lines().all(|line| line.chars().count() <= 100), "{table}");
    let json: Value =
        serde_json::from_str(&ok(folder.path(), &[&args[..], &["--json"]].concat())).unwrap();
    let settings = &json["recipes"][0]["settings"];
    assert_eq!(settings["max_time"], "10m");
    assert!(settings["batch_size"].as_str().unwrap().parse::<u32>().unwrap() >= 1);
    let unknown = run(folder.path(), &["plan", "--data=builtin:stories", "--target=12GiB"]);
    assert_eq!(unknown.status.code(), Some(2), "its speed is unknown");
    let night = ok(folder.path(), &[&args[..], &["--time=1h"]].concat());
    assert!(night.starts_with("Fits: ") && night.contains("chosen    expect "), "{night}");
}

#[test]
fn a_model_that_is_here_is_offered_for_fine_tuning() {
    let folder = temporary();
    let path = folder.path();
    let story = "The fox looked at the moon. The moon looked back.\n".repeat(2000);
    fs::write(path.join("story.txt"), story).unwrap();
    ok(path, &["prepare", "story.txt", "-o", "data", "--tokenizer=byte"]);
    train(path, "r", &["--data=data", "--max_iters=4"]);
    ok(path, &["export", "r", "-o", "models/fox"]);
    let args = ["plan", "--data=data", "--target=RTX 3060", "--json"];
    let json: Value = serde_json::from_str(&ok(path, &args)).unwrap();
    let first = &json["recipes"][0];
    assert_eq!(first["expect"], "what the model writes now, in the style of the data", "{json}");
    assert_eq!(first["settings"]["learning_rate"], "5.0e-5", "{json}");
    let table = ok(path, &args[..3]);
    assert!(table.lines().nth(1).unwrap().contains(": fine-tune models/fox "), "{table}");
}

/// Speeds in the cache that are wrong, as if they were measured on another day or beside another program.
#[test]
fn a_wrong_speed_in_the_cache_costs_no_time() {
    const LIMIT: f64 = 6.0;
    let folder = temporary();
    let train = |run: &str| {
        let args = ["train", "--json", "--data=builtin:stories", "--time=6s", "--device=cpu"];
        let mut command = wgpt(folder.path());
        set_cache(&mut command, folder.path());
        command.args(args).args([&format!("--run={run}"), "--sample_tokens=0"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        events(&text(&output.stdout))
    };
    train("true");
    let cache = folder.path().join("wgpt/speeds.json");
    let known: Value = serde_json::from_slice(&fs::read(&cache).unwrap()).unwrap();
    for factor in [0.2, 40.0] {
        let mut wrong = known.clone();
        for points in wrong.as_object_mut().unwrap().values_mut() {
            for point in points.as_array_mut().unwrap() {
                point["seconds"] = (factor * point["seconds"].as_f64().unwrap()).into();
            }
        }
        fs::write(&cache, wrong.to_string()).unwrap();
        let seen = train(&format!("{factor}"));
        let used = named(&seen, "done").next().unwrap()["seconds"].as_f64().unwrap();
        // On a busy machine the next update may have been too long, and an evaluation ends the run.
        let longest = named(&seen, "step").map(|step| step["ms"].as_f64().unwrap() * 1e-3);
        let longest = longest.fold(0.0, f64::max);
        let left = LIMIT - used - 2.0 * longest;
        assert!(left < 0.1 * LIMIT, "{factor}: {used} s, {longest} s");
        let rates: Vec<f64> =
            named(&seen, "step").map(|step| step["lr"].as_f64().unwrap()).collect();
        let peak = rates.iter().copied().fold(0.0, f64::max);
        assert!(rates[rates.len() - 1] < 0.5 * peak, "{factor}: {rates:?}");
    }
}
