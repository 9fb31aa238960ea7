//! Tests of sessions that train together, each on a thread.

/// The values of the events that match a pattern.
macro_rules! each {
    ($events:expr, $pattern:pat => $value:expr) => {
        $events.iter().filter_map(|event| if let $pattern = event { Some($value) } else { None })
    };
}

mod conversations;
mod finish;
mod llama;
mod memory;
mod resume;
mod tokenizers;

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::config::{self, Layer, resolve};
use crate::gpu::{DeviceChoice, DeviceInfo};
use crate::ops::OpsMode;
use crate::plan::Plan;
use crate::protocol::{Command, Failure, RankLine, Setting};
use crate::ranks::{Group, PlanLimit, RanksError, on_threads};
use crate::train::TrainRequest;

/// A temporary folder, and the folder of a run in it.
pub(super) fn new_run() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("r");
    (folder, run)
}

/// A model that trains in a moment, with settings that differ from these.
pub(super) fn request(run: &Path, more: &[(&str, &str)]) -> TrainRequest {
    let settings = [
        ("data", "builtin:stories"),
        ("n_layer", "2"),
        ("n_head", "2"),
        ("n_embd", "16"),
        ("block_size", "16"),
        ("batch_size", "4"),
        ("gradient_accumulation_steps", "3"),
        ("max_iters", "50"),
        ("lr_decay_iters", "50"),
        ("warmup_iters", "4"),
        ("learning_rate", "1e-3"),
        ("min_lr", "1e-4"),
        ("eval_interval", "10"),
        ("eval_iters", "2"),
        ("log_interval", "1"),
        ("sample_tokens", "0"),
        ("dropout", "0.1"),
    ];
    let typed = settings.iter().chain(more);
    let typed: Vec<(String, String)> =
        typed.map(|(key, value)| (key.to_string(), value.to_string())).collect();
    let config = resolve(vec![Layer::flags(typed).unwrap()]).unwrap().config;
    TrainRequest {
        config,
        run: run.to_path_buf(),
        resume: false,
        mode: OpsMode::AUTO,
        plans_schedule: false,
        decay: None,
        elapsed: Duration::ZERO,
        shares: Vec::new(),
        max_plan: None,
        makes_way: true,
        has_made_way: false,
    }
}

/// Runs a session of one rank to its end, with commands that have arrived before; returns its events.
fn train(request: TrainRequest, group: Group, commands: &[Command]) -> Result<Vec<Event>, Failure> {
    let (sender, receiver) = channel();
    commands.iter().for_each(|command| sender.send(command.clone()).unwrap());
    let mut events = Vec::new();
    run_on(cpu(), request, group, &receiver, &mut |event| events.push(event.clone()))?;
    Ok(events)
}

pub(super) fn cpu() -> DeviceInfo {
    gpu::select("cpu".parse::<DeviceChoice>().unwrap()).unwrap().info
}

/// Runs a session of one rank until a person stops it after `after` updates; returns its events.
fn stopped(request: TrainRequest, group: Group, after: u64) -> Vec<Event> {
    let (sender, receiver) = channel();
    let mut events = Vec::new();
    let mut emit = |event: &Event| {
        if matches!(event, Event::Step(step) if step.iter + 1 == after) {
            sender.send(Command::Stop).unwrap();
        }
        events.push(event.clone());
    };
    run_on(cpu(), request, group, &receiver, &mut emit).unwrap();
    events
}

fn run_on(
    info: DeviceInfo,
    request: TrainRequest,
    group: Group,
    commands: &Receiver<Command>,
    emit: &mut dyn FnMut(&Event),
) -> Result<(), Failure> {
    let mut session = open(info, request, group, emit)?;
    pollster::block_on(session.run(&mut &*commands))?;
    session.finish()
}

pub(super) fn open(
    info: DeviceInfo,
    request: TrainRequest,
    group: Group,
    emit: &mut dyn FnMut(&Event),
) -> Result<Session<'_>, Failure> {
    let setup = Setup::new(request, &info, group)?;
    Session::open(setup, OpenDevice::cpu(info), emit)
}

/// Trains `request` on several ranks; returns the events of each.
fn train_on(ranks: usize, request: &TrainRequest) -> Vec<Vec<Event>> {
    on_threads(ranks, |group| train(request.clone(), group, &[]).unwrap())
}

fn alone(request: &TrainRequest) -> Vec<Event> {
    train(request.clone(), Group::alone(), &[]).unwrap()
}

/// The loss and the gradient's norm of each update, by its number.
fn steps(events: &[Event]) -> Vec<(u64, f64, f64)> {
    each!(events, Event::Step(step) => (step.iter, step.loss, step.grad_norm.unwrap())).collect()
}

fn evals(events: &[Event]) -> Vec<f64> {
    each!(events, Event::Eval { train_loss, val_loss, .. } => [*train_loss, *val_loss])
        .flatten()
        .collect()
}

fn warns(events: &[Event], text: &str) -> bool {
    each!(events, Event::Warning { text } => text).any(|found| found.contains(text))
}

/// Compares the losses of updates, and their numbers.
fn assert_close_losses(found: &[(u64, f64, f64)], expected: &[(u64, f64, f64)]) {
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.0, expected.0);
        assert!((found.1 / expected.1 - 1.0).abs() < 1e-5, "loss {found:?} for {expected:?}");
    }
}

fn assert_close(events: &[Event], expected: &[Event]) {
    let (found, expected_steps) = (steps(events), steps(expected));
    assert_close_losses(&found, &expected_steps);
    for (found, expected) in found.iter().zip(&expected_steps) {
        assert!((found.2 / expected.2 - 1.0).abs() < 1e-3, "norm {found:?} for {expected:?}");
    }
    let (found, expected) = (evals(events), evals(expected));
    assert_eq!(found.len(), expected.len());
    for (found, expected) in found.iter().zip(expected) {
        assert!((found / expected - 1.0).abs() < 1e-5, "evaluation {found} for {expected}");
    }
}

#[test]
fn any_number_of_ranks_gives_the_losses_of_one() {
    let folder = tempfile::tempdir().unwrap();
    let expected = alone(&request(&folder.path().join("1"), &[]));
    assert_eq!((steps(&expected).len(), evals(&expected).len()), (50, 12));
    for ranks in 2..=4 {
        let run = folder.path().join(ranks.to_string());
        let all = train_on(ranks, &request(&run, &[]));
        assert_close(&all[0], &expected);
        for (rank, events) in all.iter().enumerate().skip(1) {
            // Models that differ in a bit would drift apart.
            assert_eq!(steps(events), steps(&all[0]), "rank {rank} of {ranks}");
            assert_eq!(evals(events), evals(&all[0]), "rank {rank} of {ranks}");
            let log = run.join(format!("ranks/{rank}.log"));
            assert!(std::fs::read_to_string(log).unwrap().contains("iter 49: loss"));
        }
        let recorded = std::fs::read_to_string(run.join("events.jsonl")).unwrap();
        assert_eq!(recorded.matches(r#""event":"step""#).count(), 50, "rank 0 alone records");
        assert!(!run.join("ranks/0.log").exists());
    }
}

#[test]
fn the_same_shares_give_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, shares: &[f64]| {
        let run = folder.path().join(name);
        // Muon and AdamW, and the last sum of a model that takes more than one.
        let request = request(&run, &[("max_iters", "8"), ("optimizer", "muon")]);
        train_on(3, &TrainRequest { shares: shares.to_vec(), ..request })
    };
    let uneven = of("a", &[4.0, 1.0, 1.0]);
    assert_eq!(steps(&uneven[0]), steps(&of("b", &[4.0, 1.0, 1.0])[0]));
    let equal = of("c", &[]);
    assert_ne!(steps(&uneven[0]), steps(&equal[0]));
    assert_close(&uneven[0], &equal[0]);
}

/// The files with tensors of the checkpoint after `iteration` updates.
fn saved(run: &Path, iteration: u64) -> [Vec<u8>; 2] {
    let folder = run.join(format!("checkpoints/{iteration:08}"));
    ["model.safetensors", "optimizer.safetensors"]
        .map(|name| std::fs::read(folder.join(name)).unwrap())
}

#[test]
fn a_sharded_optimizer_gives_the_bits_of_a_whole_one() {
    let folder = tempfile::tempdir().unwrap();
    for (optimizer, ranks) in [("adamw", 2), ("adamw", 5), ("muon", 3)] {
        let of = |shards: &str| {
            let run = folder.path().join(format!("{optimizer}-{ranks}-{shards}"));
            let settings =
                [("max_iters", "6"), ("optimizer", optimizer), ("shard_optimizer", shards)];
            (train_on(ranks, &request(&run, &settings)), saved(&run, 6))
        };
        let ((whole, expected), (sharded, found)) = (of("false"), of("true"));
        for (rank, events) in sharded.iter().enumerate() {
            assert_eq!(steps(events), steps(&whole[0]), "{optimizer}, rank {rank} of {ranks}");
            assert_eq!(evals(events), evals(&whole[0]), "{optimizer}, rank {rank} of {ranks}");
        }
        assert!(found == expected, "{optimizer}, {ranks} ranks: another checkpoint");
    }
}

#[test]
fn a_run_continues_with_another_number_of_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let all = ["false", "true"].map(|shards| {
        let run = folder.path().join(shards);
        let mut all = Vec::new();
        for (ranks, last) in [(4, "10"), (1, "20"), (2, "30")] {
            let settings = [("max_iters", last), ("shard_optimizer", shards)];
            let resume = last != "10";
            let request = TrainRequest { resume, ..request(&run, &settings) };
            let events = match ranks {
                1 => alone(&request),
                ranks => train_on(ranks, &request).remove(0),
            };
            let is_warned = warns(&events, "no effect in one process");
            assert_eq!(is_warned, ranks == 1 && shards == "true");
            all.extend(steps(&events));
        }
        (all, saved(&run, 30))
    });
    let [(whole, whole_files), (sharded, sharded_files)] = all;
    assert_eq!(sharded, whole);
    assert!(sharded_files == whole_files, "another checkpoint");
    let expected = alone(&request(&folder.path().join("1"), &[("max_iters", "30")]));
    assert_close_losses(&whole, &steps(&expected));
}

#[test]
fn a_checkpoint_that_cannot_be_written_leaves_no_rank_waiting() {
    let (_folder, run) = new_run();
    let settings = [("eval_interval", "2"), ("max_iters", "4"), ("shard_optimizer", "true")];
    let all = on_threads(2, |group| {
        let is_first = group.is_first();
        let mut events = Vec::new();
        let mut emit = |event: &Event| {
            if is_first && matches!(event, Event::Start { .. }) {
                // A file where the checkpoints go.
                std::fs::remove_dir(run.join("checkpoints")).unwrap();
                std::fs::write(run.join("checkpoints"), "").unwrap();
            }
            events.push(event.clone());
        };
        let commands = channel().1;
        let result = run_on(cpu(), request(&run, &settings), group, &commands, &mut emit);
        (events, result)
    });
    let failed = |text: &&String| text.starts_with("no checkpoint was written: cannot create");
    let (events, result) = &all[0];
    assert_eq!(each!(events, Event::Warning { text } => text).filter(failed).count(), 2);
    // The last one has to be written.
    assert!(matches!(&result, Err(error) if error.text.starts_with("cannot ")), "{result:?}");
    // The end of rank 0 is what ends the other.
    let silent = |error: &Failure| error.text.starts_with("rank 0 has not answered");
    assert!(all[1].1.as_ref().is_err_and(silent), "{:?}", all[1].1);
    for (events, _) in &all {
        assert_eq!(steps(events).len(), 4);
    }
}

#[test]
fn a_rank_that_ran_out_of_memory_goes_on_with_half_its_micro_batch() {
    let folder = tempfile::tempdir().unwrap();
    let part = |run: &Path, last: &str, resume: bool| {
        let batch = [("batch_size", "8"), ("gradient_accumulation_steps", "2")];
        let settings = [("max_iters", last), batch[0], batch[1]];
        train_on(2, &TrainRequest { resume, ..request(run, &settings) })
    };
    let plan = |events: &Vec<Event>| {
        each!(events, Event::Plan(forecast) => forecast.plan.clone()).next().unwrap()
    };
    let (run, other) = (folder.path().join("r"), folder.path().join("other"));
    let begun = part(&run, "4", false);
    assert_eq!(begun.iter().map(|events| plan(events).micro_batch).collect::<Vec<_>>(), [8, 8]);
    PlanLimit::new(&run, 1, plan(&begun[1]), false).lower().unwrap();
    let continued = part(&run, "8", true);
    let plans: Vec<Plan> = continued.iter().map(plan).collect();
    assert_eq!([plans[0].micro_batch, plans[0].accumulation], [8, 1]);
    assert_eq!([plans[1].micro_batch, plans[1].accumulation], [4, 2]);
    let undisturbed = part(&other, "8", false);
    let (found, expected) = (steps(&continued[0]), steps(&undisturbed[0]));
    assert_eq!(steps(&continued[1]), found);
    assert_close_losses(&found, &expected[4..]);
}

/// The settings of the run stay as they were, and a later process keeps the plan that was enough.
#[test]
fn a_plan_that_ran_out_of_memory_is_no_setting() {
    let (_folder, run) = new_run();
    let settings = [("batch_size", "8"), ("gradient_accumulation_steps", "1"), ("max_iters", "4")];
    let first = request(&run, &settings);
    let plan = |events: &[Event]| {
        each!(events, Event::Plan(forecast) => forecast.plan.clone()).next().unwrap()
    };
    let split = Plan { micro_batch: 4, accumulation: 2, ..Plan::new(&first.config, 50_257) };
    assert_eq!(Plan::new(&first.config, 50_257).micro_batch, 8);
    let limited = alone(&TrainRequest { max_plan: Some(split), ..first.clone() });
    assert_eq!(plan(&limited).micro_batch, 4);
    assert_eq!(crate::runs::config(&run).unwrap().micro_batch, first.config.micro_batch);
    let settings = [settings[0], settings[1], ("max_iters", "8")];
    let resumed = alone(&TrainRequest { resume: true, ..request(&run, &settings) });
    assert_eq!([plan(&resumed).micro_batch, plan(&resumed).accumulation], [4, 2]);
    // A plan that became smaller since stays, also while the limit holds.
    let limit = |micro_batch: usize| Plan {
        micro_batch,
        accumulation: 8 / micro_batch,
        ..Plan::new(&first.config, 50_257)
    };
    for (micro_batch, kept) in [(2, 2), (4, 2)] {
        let last = if micro_batch == 2 { "12" } else { "16" };
        let settings = [settings[0], settings[1], ("max_iters", last)];
        let again = TrainRequest {
            resume: true,
            max_plan: Some(limit(micro_batch)),
            ..request(&run, &settings)
        };
        assert_eq!(plan(&alone(&again)).micro_batch, kept);
    }
}

#[test]
fn a_command_reaches_every_rank_at_the_same_update() {
    let (_folder, run) = new_run();
    let all = on_threads(3, |group| {
        let rate = Command::Set(Setting::LearningRate(5e-4));
        // A rank other than the first takes no commands.
        let commands = if group.is_first() {
            vec![rate, Command::Pause, Command::Resume, Command::Stop]
        } else {
            vec![Command::Set(Setting::LearningRate(1.0))]
        };
        train(request(&run, &[]), group, &commands).unwrap()
    });
    let end = |events: &[Event]| match events.last() {
        Some(Event::Done { iter, reason, .. }) => (*iter, *reason),
        other => panic!("{other:?}"),
    };
    for events in &all {
        assert_eq!(end(events), (0, StopReason::Stopped));
    }
}

#[test]
fn ranks_that_disagree_are_refused() {
    let (folder, run) = new_run();
    let assert_refused =
        |ranks: usize, of: &(dyn Fn(&Group) -> TrainRequest + Sync), text: &str| {
            for error in on_threads(ranks, |group| train(of(&group), group, &[]).err().unwrap()) {
                assert!(error.to_string().contains(text), "{error}");
            }
        };
    let rates = |group: &Group| {
        let rate = if group.is_first() { "1e-3" } else { "2e-3" };
        request(&run, &[("learning_rate", rate)])
    };
    assert_refused(2, &rates, "learning_rate = 0.002, rank 0 has 0.001");
    // Else sequences would count twice.
    for second in [&[1.0, 2.0][..], &[2.0], &[]] {
        let shares = |group: &Group| {
            let shares = if group.is_first() { &[2.0, 1.0] } else { second };
            TrainRequest { shares: shares.to_vec(), ..request(&run, &[]) }
        };
        let expected = serde_json::to_string(second).unwrap();
        assert_refused(2, &shares, &format!("has share = {expected}, rank 0 has [2.0,1.0]"));
    }
    // The same path on two machines, with other data.
    let other_data = |group: &Group| {
        let data = folder.path().join(format!("data{}", group.rank()));
        std::fs::create_dir(&data).unwrap();
        let tokens = [group.rank() as u8, 0].repeat(100);
        for name in ["train.bin", "val.bin"] {
            std::fs::write(data.join(name), &tokens).unwrap();
        }
        request(&run, &[("data", data.to_str().unwrap())])
    };
    assert_refused(2, &other_data, "has other data: ");
    let batch = [("batch_size", "1"), ("gradient_accumulation_steps", "2")];
    let too_many = RanksError::TooMany { ranks: 4, sequences: 2 };
    assert_refused(4, &|_| request(&run, &batch), &too_many.to_string());
    assert!(!run.exists(), "a run that is refused creates no file");
}

#[test]
fn ranks_plan_one_schedule_that_ends_within_max_time() {
    let folder = tempfile::tempdir().unwrap();
    let planned = |events: &Vec<Event>| {
        let configs = each!(events, Event::Start { config, .. } => config);
        configs.map(|config| (config.max_iters, config.lr_decay_iters)).next().unwrap()
    };
    for more in [("shard_optimizer", "false"), ("shard_optimizer", "true")] {
        let long = [("max_iters", "10000000"), ("max_time", "1s"), ("log_interval", "100"), more];
        let run = folder.path().join(format!("{}{}", more.0, more.1));
        let request = TrainRequest {
            plans_schedule: true,
            shares: vec![4.0, 1.0, 1.0],
            ..request(&run, &long)
        };
        let all = train_on(3, &request);
        let first = planned(&all[0]);
        assert!(first.0.get() < 10_000_000, "{more:?}");
        for events in &all {
            assert_eq!(planned(events), first, "{more:?}");
            let mut notes = each!(events, Event::Note { text } => text);
            let length = format!("{} updates fit into max_time = 1s, ", first.0);
            assert!(notes.any(|text| text.starts_with(&length)), "{more:?}");
        }
        assert_eq!(losses(&all[1]), losses(&all[0]), "{more:?}");
    }
}

/// The losses and evaluations of a run, which all its ranks have in common.
fn losses(events: &[Event]) -> (Vec<(u64, f64)>, Vec<f64>) {
    let steps = steps(events).into_iter().map(|(iter, loss, _)| (iter, loss)).collect();
    (steps, evals(events))
}

fn ranks_of(events: &[Event]) -> Vec<RankLine> {
    each!(events, Event::Start { ranks, .. } => ranks.clone()).next().unwrap()
}

#[test]
fn ranks_with_different_devices_measure_their_speeds_and_keep_their_shares() {
    let (folder, run) = new_run();
    let of = |request: &TrainRequest| {
        on_threads(2, |group| {
            let info = DeviceInfo { name: format!("device {}", group.rank()), ..cpu() };
            let mut events = Vec::new();
            let mut emit = |event: &Event| events.push(event.clone());
            let commands = channel().1;
            run_on(info, request.clone(), group, &commands, &mut emit).unwrap();
            events
        })
    };
    let first = of(&request(&run, &[("max_iters", "6")]));
    let shares = ranks_of(&first[0]);
    assert_eq!(ranks_of(&first[1]), shares);
    assert_eq!(shares.iter().map(|rank| rank.sequences).sum::<u64>(), 12);
    assert_eq!(steps(&first[1]), steps(&first[0]));
    let longer = request(&run, &[("max_iters", "12")]);
    let second = of(&TrainRequest { resume: true, ..longer.clone() });
    assert_eq!(ranks_of(&second[0]), shares);
    let expected = steps(&alone(&TrainRequest { run: folder.path().join("1"), ..longer }));
    let found = [steps(&first[0]), steps(&second[0])].concat();
    assert_close_losses(&found, &expected);
}
