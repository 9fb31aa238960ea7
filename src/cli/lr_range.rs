//! `wgpt sweep --lr-range`: finds a learning rate that a model can be trained with, in one short run.

use std::path::Path;

use serde_json::json;

use super::sweep::{SweptRun, Values};
use crate::config::Config;
use crate::protocol::{Curves, Failure, Smoothed};
use crate::report::RunRecord;
use crate::text::Table;

/// The updates of the run, and the largest learning rate as a multiple of the configured one.
const UPDATES: u64 = 300;
const LARGEST: f64 = 30.0;

/// The part of the learning rate with the lowest loss that is proposed: a run holds its peak for most of its
/// updates, and the range test only for one. For the demo, whose loss here is lowest at 7.3e-2, that is 7.3e-3.
/// Its preset has 6e-3.
const PROPOSED: f64 = 0.1;

/// The rows of the table.
const ROWS: usize = 12;

/// Returns the run of a range test in `folder`: a warmup that never ends, in which the learning rate rises in a
/// line from 0 (Smith 2017, arXiv:1506.01186).
pub(super) fn run(mut settings: Values, config: &Config, folder: &Path) -> SweptRun {
    let set = [
        ("learning_rate", format!("{:e}", LARGEST * config.learning_rate)),
        ("schedule", "cosine".into()),
        ("decay_lr", "true".into()),
        ("min_lr", "0".into()),
        ("warmup_iters", UPDATES.to_string()),
        ("lr_decay_iters", UPDATES.to_string()),
        ("max_iters", UPDATES.to_string()),
        ("max_time", "0".into()),
        ("eval_interval", UPDATES.to_string()),
        ("eval_iters", "1".into()),
        ("sample_tokens", "0".into()),
        ("log_interval", "1".into()),
    ];
    settings.extend(set.map(|(key, value)| (key.to_string(), value)));
    SweptRun { settings, folder: folder.join("range") }
}

/// Prints how the loss depends on the learning rate, and proposes one.
pub(super) fn show(run: &SweptRun, json: bool) -> Result<(), Failure> {
    let curves = RunRecord::read(&run.folder)?.progress.curves;
    let points = points(&curves);
    let Some(lowest) = lowest(&points) else {
        let text = format!("{}: the run ended too early", run.folder.display());
        return Err(Failure::new(text, "try a lower --learning_rate"));
    };
    let proposed = PROPOSED * lowest;
    let all = json!({ "learning_rate": proposed, "lowest_loss_at": lowest, "points": points });
    if json {
        output!("{all}");
        return Ok(());
    }
    let step = points.len().div_ceil(ROWS).max(1);
    let cells = |[rate, loss]: &[f64; 2]| vec![format!("{rate:.1e}"), format!("{loss:.4}")];
    let rows = points.iter().skip(step - 1).step_by(step);
    let table = Table::new(["learning rate", "loss"], rows.map(cells));
    output!("{}", table.plain(&[0, 1]).trim_end());
    if points.last().is_some_and(|[last, _]| lowest >= 0.9 * last) {
        output!("the loss falls up to the largest learning rate: try a higher --learning_rate");
    } else {
        output!("the loss is lowest at {lowest:.1e}; a tenth of that is a good start");
    }
    let [low, high] = [0.5, 2.0].map(|factor| factor * proposed);
    output!("compare with --learning_rate={low:.1e},{proposed:.1e},{high:.1e}");
    Ok(())
}

/// Returns learning rates with the loss there, averaged over the updates before.
fn points(curves: &Curves) -> Vec<[f64; 2]> {
    let mut smoothed = Smoothed::default();
    let losses = smoothed.follow(&curves.loss, UPDATES as f64 / 50.0);
    let rates = curves.learning_rate.iter();
    rates.zip(losses.iter()).map(|([_, rate], [_, loss])| [rate, loss]).collect()
}

/// Returns the learning rate with the lowest loss; `None` for too few points.
fn lowest(points: &[[f64; 2]]) -> Option<f64> {
    let enough = points.get(UPDATES as usize / 10..)?;
    Some(enough.iter().min_by(|a, b| a[1].total_cmp(&b[1]))?[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_loss_is_found_in_noise_and_not_in_the_first_updates() {
        let mut curves = Curves::default();
        for update in 0..UPDATES {
            let x = update as f64;
            // Falls until update 200, then rises. One batch at the start is easy.
            let noise = if update == 3 { -5.0 } else { 0.05 * (7.0 * x).sin() };
            curves.loss.append(x, 3.0 + ((x - 200.0) / 100.0).powi(2) + noise);
            curves.learning_rate.append(x, 1e-4 * (x + 1.0));
        }
        let lowest = lowest(&points(&curves)).unwrap();
        assert!((0.019..0.023).contains(&lowest), "{lowest}");
        assert_eq!(super::lowest(&points(&Curves::default())), None);
    }
}
