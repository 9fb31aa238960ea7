//! Moments at which a run is to end.

use chrono::{DateTime, FixedOffset, NaiveDateTime, NaiveTime, SecondsFormat, TimeZone};

/// Parses a moment as people write it, in the time zone of `now`: `7:30` is the next such moment, and
/// `2026-11-28 07:30` has its date. `None` if it is no moment, or less than a minute ahead.
pub(crate) fn next_moment<Z: TimeZone>(text: &str, now: &DateTime<Z>) -> Option<DateTime<Z>> {
    let text = text.trim().trim_start_matches("until ");
    // `7:3` is about to become `7:30`.
    text.rsplit_once(':').filter(|(_, minute)| minute.len() == 2)?;
    let today = now.date_naive();
    let moments = match NaiveTime::parse_from_str(text, "%H:%M") {
        Ok(time) => [today, today.succ_opt()?].map(|day| day.and_time(time)),
        Err(_) => [NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M").ok()?; 2],
    };
    let local = |moment: &NaiveDateTime| now.timezone().from_local_datetime(moment).earliest();
    let is_ahead =
        |moment: &DateTime<Z>| moment.clone().signed_duration_since(now).num_minutes() > 0;
    moments.iter().filter_map(local).find(is_ahead)
}

/// Writes a moment as `end_at` has it.
pub(crate) fn moment_text<Z: TimeZone>(moment: &DateTime<Z>) -> String {
    moment.fixed_offset().to_rfc3339_opts(SecondsFormat::Secs, false)
}

/// Parses an `end_at`: RFC 3339, or nothing.
pub(super) fn parse_moment(
    text: &str,
) -> Result<Option<DateTime<FixedOffset>>, chrono::ParseError> {
    let text = text.trim();
    if text.is_empty() { Ok(None) } else { DateTime::parse_from_rfc3339(text).map(Some) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_day_are_the_next_such_moment() {
        let now = DateTime::parse_from_rfc3339("2026-11-28T23:10:00+01:00").unwrap();
        for (text, end) in [
            ("7:30", "2026-11-29T07:30:00+01:00"),
            (" until 07:30 ", "2026-11-29T07:30:00+01:00"),
            ("23:11", "2026-11-28T23:11:00+01:00"),
            ("23:10", "2026-11-29T23:10:00+01:00"),
            ("2026-12-31 07:30", "2026-12-31T07:30:00+01:00"),
        ] {
            let moment = next_moment(text, &now).unwrap();
            assert_eq!(moment_text(&moment), end, "{text}");
            assert_eq!(parse_moment(end), Ok(Some(moment)));
        }
        for text in ["", "7:3", "25:00", "tonight", "2026-11-28 07:30", "2026-02-30 07:30"] {
            assert_eq!(next_moment(text, &now), None, "{text}");
        }
        assert_eq!(parse_moment(" "), Ok(None));
        assert!(parse_moment("07:30").is_err());
    }
}
