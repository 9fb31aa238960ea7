use super::*;

#[test]
fn an_event_reads_back_from_its_json_line() {
    let former = r#"{"v":1,"event":"eval","iter":250,"train_loss":2.1,"val_loss":2.25}"#;
    let event: Event = serde_json::from_str(former).unwrap();
    let line = event.to_json(Duration::from_millis(1_795_354_265_678));
    assert!(line.starts_with(r#"{"v":1,"event":"eval","iter":250"#), "{line}");
    assert!(line.ends_with(r#","time":"2026-11-22T13:31:05.678Z"}"#), "{line}");
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    assert_eq!(event.to_string(), "step 250: train loss 2.1000, val loss 2.2500");
}

#[test]
fn a_step_tells_of_skipped_updates() {
    let line = r#"{"event":"step","iter":250,"loss":null,"lr":6e-4,"grad_norm":null,
        "loss_scale":2048.0,"skipped":2,"tokens":1024,"ms":12.5,"tokens_per_s":81920.0}"#;
    let Event::Step(step) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
    assert!(step.loss.is_nan() && step.grad_norm.is_none());
    let again = Event::Step(step.clone()).to_json(Duration::ZERO);
    assert!(again.contains(r#""loss":null,"#) && again.contains(r#""grad_norm":null,"#), "{again}");
    let want = "iter 250: loss NaN, time 12.50ms, 81920 tokens/s, lr 6.000e-4";
    assert_eq!(Event::Step(step.clone()).to_string(), want);
    assert_eq!(step.line(1), format!("{want}, skipped 2"));
    let made = Step { loss: 2.25, grad_norm: Some(0.8), ..step };
    assert_eq!(made.line(2), want.replace("NaN", "2.2500") + ", norm 0.80");
}

#[test]
fn the_health_of_a_device_is_absent_unless_it_is_known() {
    let line = r#"{"event":"step","iter":1,"loss":2.5,"lr":6e-4,"grad_norm":1.0,"tokens":64,
        "ms":1.0,"tokens_per_s":64.0,"health":{"celsius":71.0,"throttled":"power limit"}}"#;
    let Event::Step(mut step) = serde_json::from_str(line).unwrap() else { panic!("{line}") };
    let again = Event::Step(step.clone()).to_json(Duration::ZERO);
    assert!(again.contains(r#""health":{"celsius":71.0,"throttled":"power limit"}"#), "{again}");
    step.health = None;
    assert!(!Event::Step(step).to_json(Duration::ZERO).contains("health"));
}

#[test]
fn an_error_without_a_hint_is_one_line() {
    let error = |hint: &str| {
        Event::Error(RunError { text: "it failed".into(), hint: hint.into(), cause: None })
    };
    assert_eq!(error("").labelled(), "error: it failed");
    assert_eq!(error("try again").labelled(), "error: it failed\n  hint: try again");
    assert_eq!(Event::Warning { text: "a\nb".into() }.labelled(), r"warning: a\nb");
}

#[test]
fn work_is_described_with_its_parts_where_they_are_known() {
    let working = |task, done, total| Event::Working(Working { task, done, total });
    let evaluation = working(Task::Evaluation, 37, 400);
    let line = serde_json::to_string(&evaluation).unwrap();
    let want = r#"{"event":"working","task":"evaluation","done":37,"total":400}"#;
    assert_eq!(line, want);
    assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), evaluation);
    assert_eq!(evaluation.to_string(), "evaluating 37/400");
    assert_eq!(working(Task::Checkpoint, 0, 0).to_string(), "writing a checkpoint");
}
