//! Runs with too little memory.

use super::*;
use crate::protocol::ReplanReason;
use crate::train::memory::MemoryPressure;

#[test]
fn a_run_whose_memory_is_moved_away_is_split_smaller() {
    let (_folder, run) = new_run();
    let mut events = Vec::new();
    let mut emit = |event: &Event| events.push(event.clone());
    let request = request(&run, &[]);
    let mut session = open(cpu(), request, Group::alone(), &mut emit).unwrap();
    let before = session.training.steps.plan().micro_batch;
    session.memory.pace.best = Some(1.0);
    session.memory.pace.is_settled = true;
    session.memory.excess = 1 << 30;
    assert_eq!(session.memory.check_pace(1.5), None);
    let pressure = session.memory.check_pace(2.5).unwrap();
    pollster::block_on(session.relieve(pressure)).unwrap();
    assert_eq!(session.training.steps.plan().micro_batch, before / 2);
    drop(session);
    let is_budget =
        |event: &&Event| matches!(event, Event::Replan { reason: ReplanReason::Budget, .. });
    assert_eq!(events.iter().filter(is_budget).count(), 1, "{events:?}");
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
