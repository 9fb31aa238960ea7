//! The state of a run in words, for the headline, the title of the window and the status of a page.

use crate::protocol::{Level, Progress, RunPhase, StopReason};
use crate::text::percent_done;

pub fn status(progress: &Progress) -> (String, Level) {
    if let (RunPhase::Starting | RunPhase::Running, Some(working)) =
        (&progress.state, progress.working)
    {
        return (working.to_string(), Level::Info);
    }
    let (words, level) = match &progress.state {
        RunPhase::Idle if progress.run.is_some() => ("no training recorded", Level::Info),
        RunPhase::Idle => ("no run", Level::Info),
        RunPhase::Starting => ("starting", Level::Info),
        RunPhase::Running => ("training", Level::Info),
        RunPhase::Paused => ("paused", Level::Warning),
        RunPhase::Recovering => ("restarting from the last checkpoint", Level::Warning),
        RunPhase::Waiting(waiting) => {
            let level = if waiting.attempts == 0 { Level::Info } else { Level::Warning };
            (waiting.text.as_str(), level)
        }
        RunPhase::Finished(StopReason::Finished) => ("finished", Level::Info),
        RunPhase::Finished(StopReason::MaxTime) => ("finished: time limit reached", Level::Info),
        RunPhase::Finished(StopReason::Stopped | StopReason::StandBy) => ("stopped", Level::Info),
        RunPhase::Finished(StopReason::EvalOnly) => ("evaluated", Level::Info),
        RunPhase::Interrupted => ("interrupted", Level::Warning),
        RunPhase::Failed(error) => {
            let line = error.text.lines().next().unwrap_or_default();
            return (format!("failed: {line}"), Level::Error);
        }
    };
    (words.into(), level)
}

/// Returns the title of the window: state, run and program, the most important first.
pub fn title(progress: &Progress, run: Option<&str>) -> String {
    let Some(run) = run else { return "wgpt".into() };
    let percent = percent_done(progress.iteration, progress.max_iters);
    let state = match &progress.state {
        RunPhase::Idle => String::new(),
        RunPhase::Starting => "starting ".into(),
        RunPhase::Running => format!("{percent} "),
        RunPhase::Paused => format!("paused at {percent}: "),
        RunPhase::Recovering => format!("restarting at {percent}: "),
        RunPhase::Waiting(_) => format!("waiting at {percent}: "),
        RunPhase::Finished(StopReason::Stopped) => format!("stopped at {percent}: "),
        RunPhase::Finished(_) => "finished: ".into(),
        RunPhase::Interrupted => format!("interrupted at {percent}: "),
        RunPhase::Failed(_) => format!("failed at {percent}: "),
    };
    format!("{state}{run} - wgpt")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, Task, Working};

    #[test]
    fn the_status_names_work_that_lasts() {
        let mut progress = Progress { state: RunPhase::Running, ..Progress::default() };
        let working = Working { task: Task::Evaluation, done: 37, total: 400 };
        progress.apply(&Event::Working(working));
        assert_eq!(status(&progress), ("evaluating 37/400".into(), Level::Info));
        progress.apply(&Event::Paused { iter: 0 });
        progress.apply(&Event::Working(Working { task: Task::Sample, ..working }));
        assert_eq!(status(&progress), ("paused".into(), Level::Warning));
    }

    #[test]
    fn the_title_has_the_state_and_the_run() {
        let mut progress = Progress::default();
        assert_eq!(title(&progress, None), "wgpt");
        assert_eq!(title(&progress, Some("gpt2")), "gpt2 - wgpt");
        (progress.max_iters, progress.iteration) = (1500, 630);
        progress.state = RunPhase::Running;
        assert_eq!(title(&progress, Some("demo-3")), "42% demo-3 - wgpt");
        progress.state = RunPhase::Paused;
        assert_eq!(title(&progress, Some("demo-3")), "paused at 42%: demo-3 - wgpt");
        progress.state = RunPhase::Finished(StopReason::Finished);
        assert_eq!(title(&progress, Some("demo-3")), "finished: demo-3 - wgpt");
    }
}
