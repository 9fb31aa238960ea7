//! Runs that decay their learning rate and end, and runs that continue from before the decay.

use chrono::Utc;

use super::*;
use crate::config::{DecayLength, Schedule, moment_text};
use crate::runs;
use crate::train::clock::Moment;

/// A run with the schedule `wsd`, which decays over the last fifth.
fn constant(run: &Path, more: &[(&str, &str)]) -> TrainRequest {
    let settings = [("schedule", "wsd"), ("lr_decay_iters", "1"), ("warmup_iters", "0")];
    request(run, &[&settings, more].concat())
}

fn resumed(run: &Path, config: Config, decay: Option<&str>) -> Vec<Event> {
    let decay = decay.map(|text| text.parse().unwrap());
    alone(&TrainRequest { config, resume: true, decay, ..request(run, &[]) })
}

fn rates(events: &[Event]) -> Vec<f64> {
    each!(events, Event::Step(step) => step.lr).collect()
}

/// Trains until the run is told to finish after `at` updates, and to its end.
fn finished(request: TrainRequest, at: u64, decay: DecayLength) -> Vec<Event> {
    let (sender, receiver) = channel();
    let mut events = Vec::new();
    let mut emit = |event: &Event| {
        if matches!(event, Event::Step(step) if step.iter + 1 == at) {
            sender.send(Command::Finish { decay }).unwrap();
            // A second one has no effect.
            sender.send(Command::Finish { decay: DecayLength::default() }).unwrap();
        }
        events.push(event.clone());
    };
    run_on(cpu(), request, Group::alone(), &receiver, &mut emit).unwrap();
    events
}

#[test]
fn a_decay_from_a_checkpoint_is_the_decay_of_a_run_that_was_planned_so() {
    let folder = tempfile::tempdir().unwrap();
    let planned = alone(&constant(&folder.path().join("planned"), &[("max_iters", "50")]));
    let run = folder.path().join("r");
    let long = constant(&run, &[("max_iters", "1000")]);
    let begun = stopped(long.clone(), Group::alone(), 40);
    let ended = resumed(&run, long.config, Some("10"));
    assert_eq!([steps(&begun), steps(&ended)].concat(), steps(&planned));
    assert_eq!([rates(&begun), rates(&ended)].concat(), rates(&planned));
    let [first, last] = [rates(&ended)[0], rates(&ended)[9]];
    assert!(first == 1e-3 && last < 2e-4, "{first} to {last}");
}

#[test]
fn a_run_that_is_told_to_finish_decays_through_a_stop_and_can_also_continue() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("r");
    let long = |run: &Path| constant(run, &[("max_iters", "1000"), ("keep_checkpoints", "1")]);
    let whole = finished(long(&folder.path().join("whole")), 20, "5".parse().unwrap());
    assert_eq!(steps(&whole).len(), 25);
    assert!(warns(&whole, "already finishing"));
    let config = each!(&whole, Event::Finishing { config, .. } => config.clone()).next().unwrap();
    assert_eq!((config.max_iters.get(), config.decay_start()), (25, 20));

    // Stopped in the middle of the decay.
    let (sender, receiver) = channel();
    let mut emit = |event: &Event| match event {
        Event::Step(step) if step.iter + 1 == 20 => {
            sender.send(Command::Finish { decay: "5".parse().unwrap() }).unwrap();
        }
        Event::Step(step) if step.iter + 1 == 23 => sender.send(Command::Stop).unwrap(),
        _ => {}
    };
    run_on(cpu(), long(&run), Group::alone(), &receiver, &mut emit).unwrap();
    let recorded = runs::config(&run).unwrap();
    assert_eq!((recorded.schedule, recorded.max_iters.get()), (Schedule::Wsd, 25));
    let rest = resumed(&run, recorded.clone(), None);
    assert_eq!(steps(&rest), steps(&whole)[23..]);
    assert!(saved(&run, 25) == saved(&folder.path().join("whole"), 25), "another checkpoint");

    // A longer schedule continues from before the decay, and keeps the decayed model.
    let longer = Config { max_iters: 40.try_into().unwrap(), ..recorded };
    let more = resumed(&run, longer, None);
    assert!(warns(&more, "continuing from iteration 20, before the learning rate decayed"));
    let other = folder.path().join("other");
    let expected = alone(&constant(&other, &[("max_iters", "40")]));
    assert_eq!(steps(&more), steps(&expected)[20..]);
    assert!(run.join("checkpoints/decayed-00000025/state.json").exists());
}

/// On a busy machine the decay may get no update before the time is over, so a longer one is tried.
#[test]
fn a_run_that_is_slower_than_planned_decays_before_its_time_is_over() {
    let has_decayed = |time: &&str| {
        let (_folder, run) = new_run();
        let events = alone(&constant(&run, &[("max_iters", "10000000"), ("max_time", time)]));
        let mut ends = each!(&events, Event::Retimed { config, .. } => config.max_iters.get());
        let Some(end) = ends.next_back() else { return false };
        let rates = rates(&events);
        assert!(end < 10_000_000 && rates.len() as u64 <= end, "{end}, {}", rates.len());
        rates[rates.len() - 1] < 0.9 * rates[0]
    };
    assert!(["2s", "8s", "30s"].iter().any(has_decayed));
}

/// Trains a run that was planned for far fewer updates than its time allows, with a pause of 2 s. Returns its events,
/// and the seconds of its clock and of the wall's.
fn paused(run: &Path, limit: (&'static str, &str)) -> (Vec<Event>, f64, f64) {
    let settings = [("fill_time", "true"), limit, ("max_iters", "20")];
    let more = [("decay_fraction", "0.6"), ("eval_interval", "1000")];
    let request = constant(run, &[&settings[..], &more].concat());
    let (sender, receiver) = channel();
    let (began, mut events) = (Moment::now(), Vec::new());
    let mut emit = |event: &Event| {
        match event {
            Event::Step(step) if step.iter == 5 => sender.send(Command::Pause).unwrap(),
            Event::Paused { .. } => {
                let sender = sender.clone();
                std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_secs(2));
                    sender.send(Command::Resume).unwrap();
                });
            }
            _ => {}
        }
        events.push(event.clone());
    };
    run_on(cpu(), request, Group::alone(), &receiver, &mut emit).unwrap();
    let whole = began.elapsed().as_secs_f64();
    let used = each!(&events, Event::Done { seconds, .. } => *seconds).next().unwrap();
    (events, used, whole)
}

/// Returns the time of two updates, one of which may not have fit any more on a slow machine.
fn two_updates(events: &[Event]) -> f64 {
    2.0 * each!(events, Event::Step(step) => step.ms * 1e-3).fold(0.0, f64::max)
}

#[test]
fn a_run_uses_its_time_and_a_pause_is_none_of_it() {
    const LIMIT: f64 = 4.0;
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("r");
    let (events, used, whole) = paused(&run, ("max_time", "4s"));
    let updates = steps(&events).len();
    assert!(used + two_updates(&events) > 0.97 * LIMIT, "{updates} updates in {used} s");
    assert!(whole > used + 1.9, "{whole}, {used}");
    let recorded = runs::config(&run).unwrap();
    assert!(recorded.fill_time && recorded.max_iters.get() >= updates as u64);
}

#[test]
fn a_pause_shortens_a_run_that_ends_by_the_clock() {
    let folder = tempfile::tempdir().unwrap();
    let begun = Utc::now();
    let end = begun + Duration::from_secs(7);
    let end_at = moment_text(&end);
    let (events, used, whole) = paused(&folder.path().join("r"), ("end_at", &end_at));
    assert!(whole > used + 1.9, "{whole}, {used}");
    // `end_at` has whole seconds.
    let ended = (Utc::now() - begun).as_seconds_f64();
    assert!(ended + two_updates(&events) > 5.7, "{ended}");
    assert!(steps(&events).len() > 20);
    // The plan had no more updates than fit, so no rate was left over.
    let rates: Vec<f64> = each!(&events, Event::Step(step) => step.lr).collect();
    assert!(rates[rates.len() - 1] < rates[0], "{rates:?}");
}
