//! Text for people: bytes, counts, durations, percentages, tables, escaping and quoting. No other module formats them.
//!
//! What a user types (`6.5GiB`, `8h`) is read and printed by `config`.

mod escape;
mod table;

use std::time::Duration;

pub(crate) use escape::{escape_html, escape_line, escape_markdown, escape_terminal, excerpt};
pub(crate) use table::Table;

pub(crate) const MIB: f64 = 1_048_576.0;
pub(crate) const GIB: f64 = 1_073_741_824.0;
pub(crate) const MINUTE: f64 = 60.0;
pub(crate) const HOUR: f64 = 3600.0;
pub(crate) const DAY: f64 = 86_400.0;

/// Quotes a word for the shell if necessary: as POSIX shells do, or on Windows in a way that both of its
/// shells read.
pub(crate) fn quoted(word: &str) -> String {
    let is_plain =
        |c: char| c.is_alphanumeric() || "_-./:,+@%=".contains(c) || (cfg!(windows) && c == '\\');
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_string();
    }
    if cfg!(windows) {
        // A single backslash before a quote escapes it.
        let end = if word.ends_with('\\') { "\\" } else { "" };
        format!("\"{word}{end}\"")
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Formats a number of bytes in GiB or MiB: `10.80 GiB`.
pub(crate) fn bytes(count: u64) -> String {
    let count = count as f64;
    if count >= GIB { format!("{:.2} GiB", count / GIB) } else { format!("{:.1} MiB", count / MIB) }
}

/// Formats a part of a whole in the unit of the whole: `8.08 of 10.80 GiB`.
pub(crate) fn bytes_of(part: u64, whole: u64) -> String {
    let [part, whole] = [part, whole].map(|count| count as f64);
    let (unit, name) = if whole >= GIB { (GIB, "GiB") } else { (MIB, "MiB") };
    format!("{:.2} of {:.2} {name}", part / unit, whole / unit)
}

/// Formats bits per second: `2.5 Gbit/s`.
pub(crate) fn bit_rate(bits: f64) -> String {
    let (unit, name) = if bits >= 1e9 { (1e9, "Gbit/s") } else { (1e6, "Mbit/s") };
    format!("{} {name}", bits / unit)
}

/// Formats a number with commas between thousands: `1,234.5`.
pub(crate) fn grouped(value: f64, decimals: usize) -> String {
    let mut text = format!("{value:.decimals$}");
    let whole = text.find('.').unwrap_or(text.len());
    let first = usize::from(text.starts_with('-'));
    for at in (first + 1..whole).rev().filter(|at| (whole - at).is_multiple_of(3)) {
        text.insert(at, ',');
    }
    text
}

/// Formats a count for tables: `50.3K`, `124.4M`.
pub(crate) fn count(count: u64) -> String {
    let number = count as f64;
    match count {
        0..10_000 => grouped(number, 0),
        10_000..999_950 => format!("{:.1}K", number / 1e3),
        999_950..999_950_000 => format!("{:.1}M", number / 1e6),
        999_950_000..999_950_000_000 => format!("{:.1}B", number / 1e9),
        _ => format!("{:.1}T", number / 1e12),
    }
}

/// Formats a count for sentences: `50.3 thousand`.
pub(crate) fn count_in_words(count: u64) -> String {
    let (unit, name) = match count {
        0..10_000 => return count.to_string(),
        10_000..1_000_000 => (1e3, "thousand"),
        1_000_000..1_000_000_000 => (1e6, "million"),
        _ => (1e9, "billion"),
    };
    let number = count as f64 / unit;
    format!("{number:.*} {name}", usize::from(number < 100.0))
}

/// Formats a number of parameters as nanoGPT does: `124.44M`.
pub(crate) fn millions(count: u64) -> String {
    format!("{:.2}M", count as f64 / 1e6)
}

/// Formats a number with two digits, or with all digits before the point, in groups.
pub(crate) fn two_digits(number: f64) -> String {
    match number {
        ..0.095 => format!("{number:.2}"),
        ..9.95 => format!("{number:.1}"),
        _ => grouped(number, 0),
    }
}

/// Returns `text` with its first character in upper case.
pub(crate) fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(characters).collect()
}

/// Formats a value, or `-` if it is unknown.
pub(crate) fn known<T>(value: Option<T>, text: impl FnOnce(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// Formats a share of 1: `31%`.
pub(crate) fn percent(share: f64, decimals: usize) -> String {
    format!("{:.decimals$}%", 100.0 * share)
}

/// Formats the progress of a run, rounded down: only a finished run is at `100%`.
pub(crate) fn percent_done(done: u64, all: u64) -> String {
    format!("{}%", (done.min(all) * 100).checked_div(all).unwrap_or(0))
}

/// Formats an estimated time in one unit, as precisely as an estimate is: `8.0 hours`.
pub(crate) fn estimate(seconds: f64) -> String {
    let (unit, name) = match seconds {
        ..0.9995 => (1e-3, "ms"),
        ..119.5 => (1.0, "s"),
        ..7170.0 => (60.0, "min"),
        ..171_000.0 => (HOUR, "hours"),
        ..5_200_000.0 => (DAY, "days"),
        ..63_000_000.0 => (30.44 * DAY, "months"),
        _ => (365.25 * DAY, "years"),
    };
    format!("{} {name}", two_digits(seconds / unit))
}

/// Formats a measured time in at most two units: `2h 13m`, `45s`.
pub(crate) fn duration(time: Duration) -> String {
    const UNITS: [(u64, &str); 4] = [(24 * 3600, "d"), (3600, "h"), (60, "m"), (1, "s")];
    let seconds = time.as_secs_f64().round() as u64;
    let first = UNITS.iter().position(|(size, _)| seconds >= *size).unwrap_or(UNITS.len() - 1);
    let (last, _) = UNITS[(first + 1).min(UNITS.len() - 1)];
    let mut left = (seconds + last / 2) / last * last;
    if left == 0 {
        return "0s".into();
    }
    let parts = UNITS.iter().filter_map(|(size, unit)| {
        let count = left / size;
        left %= size;
        (count > 0).then(|| format!("{count}{unit}"))
    });
    parts.collect::<Vec<_>>().join(" ")
}

/// Formats the time since something in its largest unit: `5 min`.
pub(crate) fn age(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0..60 => "now".into(),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Formats a time that is shown while it passes: `1:02:59`.
pub(crate) fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_have_binary_units() {
        assert_eq!([bytes(3 << 20), bytes(3 << 29)], ["3.0 MiB", "1.50 GiB"]);
        assert_eq!(bytes_of(1 << 29, 11 << 30), "0.50 of 11.00 GiB");
        assert_eq!(bytes_of(1 << 28, 1 << 29), "256.00 of 512.00 MiB");
        assert_eq!([bit_rate(1e8), bit_rate(2.5e9)], ["100 Mbit/s", "2.5 Gbit/s"]);
    }

    #[test]
    fn counts_are_short() {
        for (value, decimals, text) in
            [(0.0, 0, "0"), (999.0, 0, "999"), (1234.5, 1, "1,234.5"), (-1e6, 0, "-1,000,000")]
        {
            assert_eq!(grouped(value, decimals), text);
        }
        let counts = [999, 9_999, 10_000, 124_439_808, 294_912_000_000].map(count);
        assert_eq!(counts, ["999", "9,999", "10.0K", "124.4M", "294.9B"]);
        for (count, text) in [
            (512, "512"),
            (50_257, "50.3 thousand"),
            (301_966, "302 thousand"),
            (9_035_582_198, "9.0 billion"),
        ] {
            assert_eq!(count_in_words(count), text);
        }
        assert_eq!(millions(124_439_808), "124.44M");
    }

    #[test]
    fn only_what_is_finished_is_at_100_percent() {
        assert_eq!([percent(0.309, 0), percent(0.309, 1)], ["31%", "30.9%"]);
        assert_eq!(percent(0.999, 0), "100%");
        assert_eq!([percent_done(999, 1000), percent_done(7, 7)], ["99%", "100%"]);
    }

    #[test]
    fn estimates_have_one_unit() {
        for (seconds, text) in [
            (0.0312, "31 ms"),
            (0.9996, "1.0 s"),
            (79.2, "79 s"),
            (600.0, "10 min"),
            (8.0 * HOUR, "8.0 hours"),
            (10.0 * DAY, "10 days"),
            (1e7, "3.8 months"),
            (6.4e7, "2.0 years"),
            (2.25e11, "7,130 years"),
        ] {
            assert_eq!(estimate(seconds), text);
        }
    }

    #[test]
    fn times_have_two_units() {
        for (seconds, text) in [
            (0.2, "0s"),
            (59.4, "59s"),
            (59.6, "1m"),
            (61.0, "1m 1s"),
            (3599.7, "1h"),
            (7980.123, "2h 13m"),
            (86_390.0, "1d"),
            (100.0 * DAY, "100d"),
            (100_000.0, "1d 4h"),
        ] {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), text, "{seconds}");
        }
        for (seconds, since, on_a_clock) in
            [(59, "now", "0:00:59"), (3599, "59 min", "0:59:59"), (360_061, "4 d", "100:01:01")]
        {
            let time = Duration::from_secs(seconds);
            assert_eq!((age(time).as_str(), clock(time).as_str()), (since, on_a_clock));
        }
    }
}
