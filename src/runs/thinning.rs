//! Bounds the record of a long run.

use serde_json::Value;

/// The bytes of a record from which on it is thinned.
pub(super) const MOST: u64 = 64 << 20;

/// Returns a record with half of the steps in its older three quarters. The time of a step that is left out is
/// added to the next, so sums over a run are unchanged. All other events stay.
pub(super) fn thinned(record: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(record.len());
    // The iteration of the last step that was kept, and one that the next may replace.
    let mut before = None;
    let mut pending = None::<(u64, f64, &[u8])>;
    let mut offset = 0;
    let recent = record.len() / 4 * 3;
    for line in record.split_inclusive(|&byte| byte == b'\n') {
        offset += line.len();
        let event =
            (offset <= recent).then(|| serde_json::from_slice::<Value>(line).ok()).flatten();
        let step = event.filter(|event| event["event"] == "step");
        let read =
            step.as_ref().and_then(|step| Some((step["iter"].as_u64()?, step["ms"].as_f64()?)));
        match (step, read, pending.take()) {
            (Some(mut step), Some((iter, ms)), Some((earlier, its_ms, _))) if iter > earlier => {
                // The iterations that each stands for.
                let first =
                    before.map_or(earlier + 1, |before| earlier.saturating_sub(before).max(1));
                let second = iter - earlier;
                let all = ms * second as f64 + its_ms * first as f64;
                let ms = all / (first + second) as f64;
                step["ms"] = ms.into();
                if let Some(tokens) = step["tokens"].as_f64() {
                    step["tokens_per_s"] = (tokens / ms * 1e3).into();
                }
                kept.extend(step.to_string().bytes());
                kept.push(b'\n');
                before = Some(iter);
            }
            (_, read, left) => {
                if let Some((iter, _, line)) = left {
                    kept.extend(line);
                    before = Some(iter);
                }
                match read {
                    Some((iter, ms)) => pending = Some((iter, ms, line)),
                    None => kept.extend(line),
                }
            }
        }
    }
    kept.extend(pending.map_or(&[][..], |(_, _, line)| line));
    kept
}

/// Returns a log with half of the lines about steps in its older three quarters.
pub(super) fn thinned_log(log: &[u8]) -> Vec<u8> {
    let mut offset = 0;
    let mut is_left_out = false;
    let is_kept = |line: &&[u8]| {
        offset += line.len();
        is_left_out = !is_left_out && offset <= log.len() / 4 * 3 && line.starts_with(b"iter ");
        !is_left_out
    };
    log.split_inclusive(|&byte| byte == b'\n').filter(is_kept).collect::<Vec<_>>().concat()
}
