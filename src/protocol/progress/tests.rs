//! Tests on events as runs write them.

use super::*;

// Lines of real runs, long texts shortened.
const EVAL: &str = r#"{"v":1,"event":"eval","iter":250,"train_loss":1.4479583770036697,"val_loss":1.4489465922117233}"#;
const CHECKPOINT: &str = r#"{"v":1,"event":"checkpoint","iter":250,"path":"/tmp/demo/checkpoints/00000250","best":true}"#;
const SAMPLE: &str =
    r#"{"v":1,"event":"sample","iter":300,"prompt":"\n","text":"\nPaul was a busy judge."}"#;
const DONE: &str = r#"{"v":1,"event":"done","iter":1500,"best_val_loss":0.43964667469263075,"seconds":122.874599524,"reason":"finished"}"#;
const WARNING: &str =
    r#"{"v":1,"event":"warning","text":"the data is not what this run began with"}"#;
const ERROR: &str = r#"{"v":1,"event":"error","text":"the device is out of memory","hint":"a smaller --micro_batch","cause":"out_of_memory"}"#;
const REPLAN: &str = r#"{"v":1,"event":"replan","reason":"device_lost","text":"the trainer process was killed","from":null,"to":null}"#;

fn start(resumed_from: Option<u64>) -> String {
    let device = r#"{"id":"cpu","name":"CPU, 2 threads","backend":"cpu","kind":"cpu"}"#;
    let config = Config { max_iters: 1500.try_into().unwrap(), ..Config::default() };
    let config = serde_json::to_string(&config).unwrap();
    let from = serde_json::to_string(&resumed_from).unwrap();
    format!(
        r#"{{"v":1,"event":"start","run":"/tmp/demo","device":{device},"config":{config},"params":238080,"resumed_from":{from},"entropy_floor":0.25165014314883233}}"#
    )
}

fn step(iter: u64, loss: f64) -> String {
    format!(
        r#"{{"v":1,"event":"step","iter":{iter},"loss":{loss},"lr":0.006,"grad_norm":0.83,"tokens":1536,"ms":100.0,"tokens_per_s":15360.0,"vram_bytes":38176768,"vram_peak_bytes":38311168}}"#
    )
}

fn apply(progress: &mut Progress, lines: &[&str]) {
    for line in lines {
        progress.apply(&serde_json::from_str(line).unwrap());
    }
}

/// A run after 15 steps, an evaluation, a checkpoint and a sample.
fn running() -> Progress {
    let mut progress = Progress::default();
    apply(&mut progress, &[&start(None)]);
    (0..250).step_by(20).for_each(|iter| apply(&mut progress, &[&step(iter, 3.0)]));
    apply(&mut progress, &[EVAL, CHECKPOINT]);
    (260..300).step_by(20).for_each(|iter| apply(&mut progress, &[&step(iter, 2.0)]));
    apply(&mut progress, &[SAMPLE]);
    progress
}

#[test]
fn work_lasts_until_the_next_other_event() {
    const WORKING: &str = r#"{"v":1,"event":"working","task":"evaluation","done":37,"total":400}"#;
    for next in [EVAL, CHECKPOINT, DONE, ERROR, r#"{"v":1,"event":"paused","iter":300}"#] {
        let mut progress = running();
        let state = progress.state.clone();
        apply(&mut progress, &[WORKING]);
        assert_eq!(progress.working.unwrap().to_string(), "evaluating 37/400");
        assert_eq!((progress.state.clone(), progress.iteration), (state, 300));
        apply(&mut progress, &[next]);
        assert_eq!(progress.working, None, "{next}");
    }
}

#[test]
fn events_add_up() {
    let mut progress = running();
    assert_eq!((progress.params, progress.max_iters, progress.iteration), (238_080, 1500, 300));
    apply(&mut progress, &[&step(399, 1.5)]);
    assert_eq!((progress.curves.loss.len(), progress.curves.memory_peak.len()), (16, 16));
    assert_eq!(progress.curves.memory.last(), Some([399.0, 38_176_768.0]));
    assert_eq!(progress.remaining(), Some(Duration::from_secs(110)));
    assert!((progress.fraction() - 400.0 / 1500.0).abs() < 1e-6);
    assert_eq!(progress.best_val_loss, Some(1.4489465922117233));
    apply(&mut progress, &[DONE]);
    assert_eq!(progress.state, RunPhase::Finished(StopReason::Finished));
    assert_eq!((progress.fraction(), progress.remaining()), (1.0, None));
    assert_eq!(progress.best_val_loss, Some(0.43964667469263075));
}

#[test]
fn a_resumed_run_drops_what_it_repeats_and_nothing_else() {
    let mut progress = running();
    apply(&mut progress, &[REPLAN]);
    assert_eq!(progress.state, RunPhase::Recovering);
    apply(&mut progress, &[WARNING, &start(Some(250))]);
    assert_eq!((progress.state.clone(), progress.iteration), (RunPhase::Running, 250));
    assert_eq!(progress.curves.loss.last(), Some([240.0, 3.0]));
    assert_eq!(progress.curves.eval_val.last(), Some([250.0, 1.4489465922117233]));
    assert_eq!((progress.samples.len(), progress.checkpoints.len()), (0, 1));
    assert_eq!((progress.remaining(), progress.log.len()), (None, 3));
    // Without a checkpoint everything is repeated.
    apply(&mut progress, &[REPLAN, &start(None)]);
    assert!(progress.curves == Curves::default() && progress.checkpoints.is_empty());
    assert_eq!((progress.best_val_loss, progress.log.len()), (None, 4));
}

#[test]
fn a_resumed_run_adds_its_time_and_tokens_up() {
    let mut progress = running();
    let counts = |progress: &Progress, iter: f64| {
        let Curves { tokens, seconds, .. } = &progress.curves;
        (tokens.at(iter) / 1536.0, (seconds.at(iter) * 1e3).round())
    };
    assert_eq!(counts(&progress, 281.0), (281.0, 28_100.0));
    let slower = step(269, 2.0).replace(r#""ms":100.0"#, r#""ms":200.0"#);
    apply(&mut progress, &[&start(Some(250)), &slower]);
    assert_eq!(counts(&progress, 250.0), (250.0, 25_000.0));
    // The process made 20 iterations, the first of them the repeated 250.
    assert_eq!(counts(&progress, 270.0), (270.0, 29_000.0));
    apply(&mut progress, &[&start(None)]);
    assert_eq!(progress.curves, Curves::default());
}

#[test]
fn a_step_that_goes_back_drops_what_came_after() {
    let mut progress = running();
    apply(&mut progress, &[&step(200, 2.5)]);
    assert_eq!((progress.curves.loss.len(), progress.iteration), (11, 201));
    assert_eq!((progress.curves.eval_train.len(), progress.best_val_loss), (0, None));
    assert_eq!((progress.samples.len(), progress.checkpoints.len()), (0, 0));
}

#[test]
fn each_evaluation_keeps_its_share_of_right_answers() {
    let mut progress = running();
    let eval = |iter: u64, share: &str| {
        let questions = format!(r#","hellaswag":{share}}}"#);
        EVAL.replace("250", &iter.to_string()).replace('}', &questions)
    };
    apply(&mut progress, &[&eval(250, "0.25"), &eval(300, "0.5"), &eval(350, "null")]);
    let shares = |progress: &Progress| progress.curves.hellaswag.iter().collect::<Vec<_>>();
    assert_eq!(shares(&progress), [[250.0, 0.25], [300.0, 0.5]]);
    progress.curves.forget_steps();
    assert_eq!((shares(&progress).len(), progress.curves.loss.len()), (2, 0));
    apply(&mut progress, &[&start(Some(250))]);
    assert_eq!(shares(&progress), [[250.0, 0.25]]);
    // It is evaluated again, without questions.
    apply(&mut progress, &[EVAL]);
    assert_eq!(shares(&progress), [[0.0; 2]; 0]);
}

#[test]
fn the_log_has_a_line_for_each_thing_to_know() {
    let mut progress = Progress::default();
    apply(&mut progress, &[WARNING]);
    assert_eq!((progress.state.clone(), progress.fraction()), (RunPhase::Idle, 0.0));
    apply(&mut progress, &[&start(None), CHECKPOINT, REPLAN, ERROR, DONE]);
    let lines: Vec<_> =
        progress.log.iter().map(|line| (line.level, line.iter, line.text.as_str())).collect();
    let done = "done after 1500 iterations, 122.9 s, best val loss 0.4396";
    let killed = "the trainer process was killed";
    let wanted = [
        (Level::Warning, None, "the data is not what this run began with"),
        (Level::Info, Some(250), "saved /tmp/demo/checkpoints/00000250 (best)"),
        (Level::Warning, Some(250), killed),
        (Level::Error, Some(250), "the device is out of memory"),
        (Level::Info, Some(1500), done),
    ];
    assert_eq!(lines, wanted);
    assert_eq!(progress.log[3].hint.as_deref(), Some("a smaller --micro_batch"));
}

#[test]
fn a_pause_lasts_until_the_run_resumes_or_ends() {
    let [paused, resumed] =
        ["paused", "resumed"].map(|name| format!(r#"{{"v":1,"event":"{name}","iter":400}}"#));
    let mut progress = running();
    apply(&mut progress, &[&step(399, 2.0), &paused, WARNING, SAMPLE, SAMPLE]);
    assert_eq!((progress.state.clone(), progress.samples.len()), (RunPhase::Paused, 1));
    apply(&mut progress, &[&resumed]);
    assert_eq!((progress.state.clone(), progress.iteration), (RunPhase::Running, 400));
    apply(&mut progress, &[&paused, ERROR, &step(0, 2.0)]);
    apply(&mut progress, &[&paused, &start(Some(250))]);
    assert_eq!(progress.state, RunPhase::Running, "a restarted trainer is not paused");
    progress.starting();
    assert_eq!(progress.state, RunPhase::Starting);
}

#[test]
fn a_wait_for_the_device_lasts_until_a_trainer_starts_or_gives_up() {
    let waiting =
        r#"{"v":1,"event":"waiting","text":"restarting","attempt":2,"attempts":9,"seconds":5}"#;
    let mut progress = running();
    apply(&mut progress, &[REPLAN, waiting]);
    let text = "restarting".to_string();
    let wanted =
        RunPhase::Waiting(Waiting { text, attempt: 2, attempts: 9, seconds: 5, free_bytes: None });
    assert_eq!(progress.state, wanted);
    assert_eq!(progress.log.last().unwrap().text, "restarting in 5 s (attempt 2 of 9)");
    apply(&mut progress, &[&start(Some(250))]);
    assert_eq!(progress.state, RunPhase::Running);
    apply(&mut progress, &[waiting, ERROR]);
    let cause = Some(crate::protocol::Cause::OutOfMemory);
    assert!(matches!(&progress.state, RunPhase::Failed(error) if error.cause == cause));
}

#[test]
fn skipped_updates_have_no_norm_to_draw() {
    let mut progress = running();
    let before = (progress.curves.grad_norm.len(), progress.curves.loss.len());
    let skipped = step(300, 2.0).replace("0.83", r#"null,"loss_scale":2048.0,"skipped":1"#);
    apply(&mut progress, &[&skipped]);
    let after = (progress.curves.grad_norm.len(), progress.curves.loss.len());
    assert_eq!(after, (before.0, before.1 + 1));
    assert_eq!(progress.last_step.unwrap().skipped, 1);
}

#[test]
fn lists_stay_short() {
    let mut progress = Progress::default();
    (0..3 * MAX_ITEMS).for_each(|_| apply(&mut progress, &[WARNING]));
    assert!((MAX_ITEMS * 3 / 4..=MAX_ITEMS).contains(&progress.log.len()));
    apply(&mut progress, &[&start(None), &step(0, 2.0), &step(1, 1.0), EVAL]);
    progress.curves.forget_steps();
    assert!(progress.curves.loss.is_empty() && progress.curves.memory.is_empty());
    assert_eq!((progress.loss, progress.iteration), (Some(1.0), 250));
    assert!(progress.best_val_loss.is_some() && progress.remaining().is_some());
}
