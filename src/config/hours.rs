//! The hours of a week in which a run trains.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Datelike, NaiveTime, Offset, TimeDelta, TimeZone, Timelike, Weekday};
use serde::{Deserialize, Serialize};

const DAY: u32 = 24 * 60;

/// Hours of each week in local time, like `mon-fri 23:00-07:00, sat-sun`; empty for all hours.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Hours {
    /// As they were typed.
    text: String,
    spans: Vec<Span>,
}

/// The same hours on some days of the week.
#[derive(Clone, Debug, PartialEq)]
struct Span {
    /// From Monday on.
    days: [bool; 7],
    /// Minutes of a day. An end that is not after the start is on the next day.
    start: u32,
    end: u32,
}

impl Span {
    fn contains(&self, day: Weekday, minute: u32) -> bool {
        let is_on = |day: Weekday| self.days[day.num_days_from_monday() as usize];
        let is_started = minute >= self.start;
        if self.end > self.start {
            is_on(day) && is_started && minute < self.end
        } else {
            is_on(day) && is_started || is_on(day.pred()) && minute < self.end
        }
    }
}

impl Hours {
    pub fn is_always(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns true if a moment is within the hours, by its own time zone.
    pub fn contain<Z: TimeZone>(&self, moment: &DateTime<Z>) -> bool {
        let minute = 60 * moment.hour() + moment.minute();
        self.is_always() || self.spans.iter().any(|span| span.contains(moment.weekday(), minute))
    }

    /// Returns the next moment within the hours, to the minute: `now` itself if it is.
    pub fn next<Z: TimeZone>(&self, now: &DateTime<Z>) -> DateTime<Z> {
        // The hours are the same each week, apart from an hour that a change of the clocks leaves out.
        let moments = minutes(now).take(2 * 7 * DAY as usize);
        moments.into_iter().find(|moment| self.contain(moment)).unwrap_or_else(|| now.clone())
    }

    /// Returns the moment at which this much time within the hours has passed; `None` if there is no such moment. Whole
    /// weeks are counted without changes of the clocks.
    pub fn after<Z: TimeZone>(&self, now: &DateTime<Z>, time: Duration) -> Option<DateTime<Z>> {
        let mut left = TimeDelta::from_std(time).ok()?;
        if self.is_always() {
            return now.clone().checked_add_signed(left);
        }
        let week = self.of_a_week();
        let weeks = (left.num_minutes() / week.num_minutes() - 1).max(0);
        left -= week * i32::try_from(weeks).ok()?;
        let start = now.clone().checked_add_signed(TimeDelta::try_weeks(weeks)?)?;
        let mut moments = minutes(&start).peekable();
        while let Some(moment) = moments.next() {
            let minute = moments.peek()?.clone().signed_duration_since(&moment);
            if !self.contain(&moment) {
                continue;
            }
            if left <= minute {
                return moment.checked_add_signed(left);
            }
            left -= minute;
        }
        None
    }

    /// Returns the time of a week that is within the hours.
    fn of_a_week(&self) -> TimeDelta {
        let days = std::iter::successors(Some(Weekday::Mon), |day| Some(day.succ())).take(7);
        let is_within =
            |day: Weekday, minute: u32| self.spans.iter().any(|span| span.contains(day, minute));
        let of_day = |day| (0..DAY).filter(|minute| is_within(day, *minute)).count();
        TimeDelta::minutes(days.map(of_day).sum::<usize>() as i64)
    }

    /// Returns the time within the hours from `now` to `end`.
    pub fn until<Z: TimeZone>(&self, now: &DateTime<Z>, end: &DateTime<Z>) -> Duration {
        let whole = |from: &DateTime<Z>| end.clone().signed_duration_since(from);
        if self.is_always() {
            return whole(now).to_std().unwrap_or_default();
        }
        let weeks = (whole(now).num_weeks() - 1).max(0);
        let start = now.clone() + TimeDelta::weeks(weeks);
        let of_weeks = self.of_a_week() * i32::try_from(weeks).unwrap_or(0);
        // Without a change of the clocks, and so without asking for one at each minute.
        let [first, last] = [&start, end].map(|moment| moment.offset().fix());
        let within = if first == last {
            self.within(&start.with_timezone(&first), &end.with_timezone(&last))
        } else {
            self.within(&start, end)
        };
        (of_weeks + within).to_std().unwrap_or_default()
    }

    /// Adds up the minutes within the hours.
    fn within<Z: TimeZone>(&self, start: &DateTime<Z>, end: &DateTime<Z>) -> TimeDelta {
        let mut within = TimeDelta::zero();
        let mut moments = minutes(start).peekable();
        while let Some(moment) = moments.next()
            && moment < *end
        {
            if self.contain(&moment) {
                let next = moments.peek().unwrap_or(end);
                within += next.min(end).clone().signed_duration_since(&moment);
            }
        }
        within
    }
}

/// Returns `now`, and the beginnings of all minutes after it.
fn minutes<Z: TimeZone>(now: &DateTime<Z>) -> impl Iterator<Item = DateTime<Z>> + use<Z> {
    let past = TimeDelta::seconds(now.second().into())
        + TimeDelta::nanoseconds(i64::from(now.nanosecond() % 1_000_000_000));
    let whole = now.clone() - past;
    let next = |moment: &DateTime<Z>| moment.clone().checked_add_signed(TimeDelta::minutes(1));
    let later = std::iter::successors(next(&whole), move |moment| next(moment));
    std::iter::once(now.clone()).chain(later)
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl From<Hours> for String {
    fn from(hours: Hours) -> Self {
        hours.text
    }
}

impl TryFrom<String> for Hours {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let spans = parts.map(span).collect::<Result<_, _>>()?;
        Ok(Self { text: text.trim().to_owned(), spans })
    }
}

/// Parses days, hours, or days and hours.
fn span(text: &str) -> Result<Span, String> {
    let (mut days, mut hours) = ([true; 7], (0, DAY));
    let text = &text.replace(" -", "-").replace("- ", "-");
    let words: Vec<&str> = text.split_whitespace().collect();
    match words[..] {
        [days_of, hours_of] => (days, hours) = (parse_days(days_of)?, parse_hours(hours_of)?),
        [word] if word.starts_with(|first: char| first.is_ascii_digit()) => {
            hours = parse_hours(word)?;
        }
        [word] => days = parse_days(word)?,
        _ => return Err(format!("{text:?} has more than days and hours")),
    }
    Ok(Span { days, start: hours.0, end: hours.1 })
}

fn parse_days(text: &str) -> Result<[bool; 7], String> {
    let parse = |name: &str| {
        name.parse::<Weekday>().map_err(|_| format!("{name:?} is not a day, like mon or saturday"))
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (mut day, last) = (parse(first)?, parse(last)?);
    let mut days = [false; 7];
    loop {
        days[day.num_days_from_monday() as usize] = true;
        if day == last {
            return Ok(days);
        }
        day = day.succ();
    }
}

fn parse_hours(text: &str) -> Result<(u32, u32), String> {
    let parse = |time: &str| match time.trim() {
        "24:00" => Ok(DAY),
        time => NaiveTime::parse_from_str(time, "%H:%M")
            .map(|time| 60 * time.hour() + time.minute())
            .map_err(|_| format!("{time:?} is not a time, like 23:00")),
    };
    let (start, end) = text.split_once('-').ok_or(format!("{text:?} has no end"))?;
    let (start, end) = (parse(start)?, parse(end)?);
    if start == end || start == DAY {
        return Err(format!("{text:?} is empty"));
    }
    Ok((start, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(text: &str) -> Hours {
        Hours::try_from(text.to_string()).unwrap()
    }

    fn at(text: &str) -> DateTime<chrono_tz::Tz> {
        let moment = chrono::NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M").unwrap();
        chrono_tz::Europe::Berlin.from_local_datetime(&moment).earliest().unwrap()
    }

    fn of_hours(count: f64) -> Duration {
        Duration::from_secs_f64(3600.0 * count)
    }

    /// 2026-11-30 is a Monday.
    #[test]
    fn nights_and_weekends_are_within_their_hours() {
        let nights = hours("mon-fri 23:00-07:00, Sat-Sunday");
        for (moment, is_within) in [
            ("2026-11-30 06:59", false),
            ("2026-11-30 22:59", false),
            ("2026-11-30 23:00", true),
            ("2026-12-01 06:59", true),
            ("2026-12-01 07:00", false),
            ("2026-12-05 00:00", true),
            ("2026-12-05 12:00", true),
            ("2026-12-06 23:59", true),
            ("2026-12-07 00:00", false),
        ] {
            assert_eq!(nights.contain(&at(moment)), is_within, "{moment}");
        }
        assert!(hours("").contain(&at("2026-11-30 12:00")) && hours("").is_always());
        let weekend = hours("fri-mon");
        assert!(
            weekend.contain(&at("2026-11-30 12:00")) && !weekend.contain(&at("2026-12-01 12:00"))
        );
        assert!(hours("22:00-24:00").contain(&at("2026-12-01 23:59")));
        assert!(!hours("22:00-24:00").contain(&at("2026-12-01 00:00")));
        assert!(hours("mon - fri 23:00 - 07:00").contain(&at("2026-11-30 23:00")));
    }

    #[test]
    fn the_next_moment_is_to_the_minute() {
        let nights = hours("mon-fri 23:00-07:00");
        let noon = at("2026-11-30 12:00") + TimeDelta::seconds(17);
        assert_eq!(nights.next(&noon), at("2026-11-30 23:00"));
        let late = at("2026-11-30 23:30") + TimeDelta::seconds(17);
        assert_eq!(nights.next(&late), late);
        // The night that begins on Friday ends on Saturday.
        assert_eq!(nights.next(&at("2026-12-05 07:00")), at("2026-12-07 23:00"));
        assert_eq!(hours("").next(&noon), noon);
    }

    /// In Berlin, clocks go from 2:00 to 3:00 on 2026-03-29, and from 3:00 to 2:00 on 2026-10-25.
    #[test]
    fn a_night_with_a_change_of_the_clocks_has_an_hour_less_or_more() {
        let nights = hours("23:00-07:00");
        for (evening, morning, length) in [
            ("2026-03-27 12:00", "2026-03-28 12:00", 8.0),
            ("2026-03-28 12:00", "2026-03-29 12:00", 7.0),
            ("2026-10-24 12:00", "2026-10-25 12:00", 9.0),
        ] {
            let (evening, morning) = (at(evening), at(morning));
            assert_eq!(nights.until(&evening, &morning), of_hours(length), "{evening}");
            let end = nights.after(&evening, of_hours(length)).unwrap();
            assert_eq!(end.time(), NaiveTime::from_hms_opt(7, 0, 0).unwrap(), "{evening}");
        }
        // An hour that this day does not have.
        assert_eq!(hours("sun 02:00-03:00").next(&at("2026-03-28 12:00")), at("2026-04-05 02:00"));
    }

    #[test]
    fn time_is_counted_within_the_hours() {
        let nights = hours("23:00-07:00");
        let noon = at("2026-11-30 12:00");
        assert_eq!(nights.after(&noon, of_hours(12.5)), Some(at("2026-12-02 03:30")));
        assert_eq!(nights.until(&noon, &at("2026-12-02 03:30")), of_hours(12.5));
        let within = at("2026-11-30 23:30") + TimeDelta::seconds(30);
        assert_eq!(nights.after(&within, of_hours(1.0)).unwrap() - within, TimeDelta::hours(1));
        assert_eq!(nights.until(&within, &within), Duration::ZERO);
        // Whole weeks, of 56 hours each.
        assert_eq!(nights.after(&noon, of_hours(56.0 * 4.0 + 1.0)), Some(at("2026-12-29 00:00")));
        assert_eq!(nights.until(&noon, &at("2026-12-29 00:00")), of_hours(56.0 * 4.0 + 1.0));
        assert_eq!(nights.after(&noon, of_hours(1e12)), None);
        assert_eq!(hours("").after(&noon, of_hours(2.0)), Some(at("2026-11-30 14:00")));
        assert_eq!(hours("").until(&noon, &at("2026-11-30 14:00")), of_hours(2.0));
    }

    #[test]
    fn what_are_no_hours_is_refused() {
        for (text, part) in [
            ("23-7", "23"),
            ("23:00", "no end"),
            ("someday 23:00-07:00", "someday"),
            ("mon 25:00-07:00", "25:00"),
            ("07:00-07:00", "07:00-07:00"),
            ("mon 23:00-07:00 tue", "more than"),
        ] {
            let error = Hours::try_from(text.to_string()).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert_eq!(hours(" mon , tue 8:00-9:00").to_string(), "mon , tue 8:00-9:00");
    }
}
