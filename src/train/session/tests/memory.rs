//! Runs with too little memory.

use super::*;
use crate::train::memory::MemoryPressure;
use crate::train::room::MemoryReading;

/// What a run leaves to others on a device of this many bytes.
const TOTAL: u64 = 4 << 30;
const RESERVE: u64 = TOTAL / 20;

/// Takes readings of a device on which others hold some bytes and the session `held`.
fn read(session: &mut Session<'_>, others: u64, held: u64) {
    // A plan changes what is held, and two readings in a row decide.
    for _ in 0..3 {
        let number = session.memory.room.latest().number + 1;
        let left = TOTAL as i64 - others as i64 - held as i64;
        session.memory.reading = Some(MemoryReading { number, total: TOTAL, left, held });
        pollster::block_on(session.share_device()).unwrap();
        if session.way.is_some() {
            return;
        }
    }
}

#[test]
fn a_run_makes_way_for_other_programs_and_takes_its_room_again() {
    let (_folder, run) = new_run();
    let mut events = Vec::new();
    let mut emit = |event: &Event| events.push(event.clone());
    let request = request(&run, &[("quiet_time", "0s")]);
    let mut session = open(cpu(), request, Group::alone(), &mut emit).unwrap();
    let (whole, limits) = (session.training.steps.forecast.clone(), session.training.steps.limits);
    let bytes = whole.predicted_bytes;
    let quiet = TOTAL / 2;
    read(&mut session, quiet, bytes);
    assert_eq!(session.training.steps.forecast, whole);
    // A little is missing. The pools of this device hold more than the plan.
    session.memory.has_released = true;
    let crowded = TOTAL - RESERVE - (bytes - 1000);
    read(&mut session, crowded, RESERVE + bytes);
    let less = session.training.steps.forecast.clone();
    assert!(less.predicted_bytes <= (bytes - 1000), "{less:?}");
    let of = |plan: &crate::plan::Plan| plan.micro_batch * plan.accumulation;
    assert_eq!(of(&less.plan), of(&whole.plan));
    // A budget changes what it returns to, and not what others leave now.
    let wanted = |session: &Session<'_>| session.training.steps.wanted.clone();
    let before = wanted(&session).unwrap();
    pollster::block_on(session.set_budget(2 * bytes)).unwrap();
    assert_eq!(session.training.steps.forecast.plan, less.plan);
    assert_eq!(wanted(&session).unwrap().0.budget, Some(2 * bytes));
    session.training.steps.wanted = Some(before);
    read(&mut session, quiet, less.predicted_bytes);
    assert_eq!(session.training.steps.forecast, whole);
    assert_eq!(session.training.steps.limits, limits);

    read(&mut session, crowded, RESERVE + bytes);
    assert!(session.way.is_none());
    read(&mut session, TOTAL - RESERVE, RESERVE + less.predicted_bytes);
    let waiting = session.way.clone().expect("nothing smaller fits");
    assert!(waiting.text.contains("other programs use"), "{}", waiting.text);
    let needed = waiting.free_bytes.unwrap();
    let margin = TOTAL / 40;
    assert!((margin..=margin + less.predicted_bytes).contains(&needed), "{waiting:?}");
    let reason = pollster::block_on(session.make_way()).unwrap();
    assert_eq!(reason, Some(StopReason::StandBy));
    drop(session);
    let (checkpoint, _) = Checkpoint::newest(&run.join("checkpoints")).unwrap();
    assert_eq!(checkpoint.state.plan, whole.plan, "it returns to that");
    let replans = events.iter().filter(|event| matches!(event, Event::Replan { .. }));
    assert_eq!(replans.count(), 3, "{events:?}");
    assert!(matches!(events.last(), Some(Event::Waiting(_))), "{events:?}");
}

#[test]
fn a_run_that_nobody_starts_again_stays_and_warns_once() {
    let (_folder, run) = new_run();
    let mut events = Vec::new();
    let mut emit = |event: &Event| events.push(event.clone());
    let request = TrainRequest { makes_way: false, ..request(&run, &[]) };
    let mut session = open(cpu(), request, Group::alone(), &mut emit).unwrap();
    let bytes = session.training.steps.forecast.predicted_bytes;
    read(&mut session, TOTAL / 2, bytes);
    for _ in 0..3 {
        read(&mut session, TOTAL - RESERVE, RESERVE);
    }
    assert!(session.way.is_none());
    drop(session);
    let warnings = events.iter().filter(|event| matches!(event, Event::Warning { .. }));
    assert_eq!(warnings.count(), 1, "{events:?}");
}

#[test]
fn a_new_plan_has_no_crossings_yet() {
    let (_folder, run) = new_run();
    let mut emit = |_: &Event| {};
    let mut session = open(cpu(), request(&run, &[]), Group::alone(), &mut emit).unwrap();
    assert!(session.memory.check_budget(11, 10).is_some());
    let forecast = session.training.steps.forecast.clone();
    pollster::block_on(session.replan(String::new(), forecast)).unwrap();
    assert_eq!(session.memory.check_budget(12, 10), Some(MemoryPressure::Release));
}
