//! Pauses between updates that keep the device below a temperature and a power, which its driver only reports.

use std::time::Duration;

use super::clock::Moment;
use crate::config::Config;
use crate::plan::DeviceHealth;
use crate::protocol::Failure;

/// The device computes at least this share of the time.
const LEAST: f64 = 0.05;

/// The time between two readings.
const INTERVAL: Duration = Duration::from_secs(1);

/// The longest pause. Other ranks wait for this one.
const LONGEST: Duration = Duration::from_secs(300);

/// Temperatures follow slowly, and are reported in whole degrees: what counts is the one that is expected after this
/// many seconds, from a trend that is averaged over as many.
const AHEAD: f64 = 10.0;

/// The degrees below the limit that are aimed at.
const MARGIN: f64 = 1.0;

pub(super) struct Cooling {
    /// 0 for no limit.
    max_celsius: f64,
    max_watts: f64,
    /// The share of the time in which the device computes.
    share: f64,
    read: Option<Moment>,
    celsius: Option<f64>,
    /// In degrees per second.
    trend: f64,
    is_told: bool,
}

impl Cooling {
    /// Returns `None` for a run without limits.
    ///
    /// # Errors
    /// Nothing reports what is to be limited on this device, and the run is new.
    pub fn new(
        config: &Config,
        is_new: bool,
        device: &str,
        health: &DeviceHealth,
    ) -> Result<Option<Self>, Failure> {
        let &Config { max_celsius, max_watts, .. } = config;
        for (key, limit, reading, what) in [
            ("max_celsius", max_celsius, health.celsius, "temperature"),
            ("max_watts", max_watts, health.watts, "power"),
        ] {
            if is_new && limit > 0.0 && reading.is_none() {
                let text = format!("{key}: nothing reports the {what} of {device}");
                let hint =
                    "leave it out; `wgpt doctor` shows what the system reports of the device";
                return Err(Failure::usage(text, hint));
            }
        }
        let cooling = Self {
            max_celsius,
            max_watts,
            share: 1.0,
            read: None,
            celsius: None,
            trend: 0.0,
            is_told: false,
        };
        Ok((max_celsius > 0.0 || max_watts > 0.0).then_some(cooling))
    }

    /// Takes a reading if one is due.
    pub fn observe(&mut self, read: impl FnOnce() -> DeviceHealth) {
        let since = self.read.map_or(INTERVAL, Moment::elapsed);
        if since >= INTERVAL {
            self.read = Some(Moment::now());
            self.adjust(&read(), since.as_secs_f64());
        }
    }

    /// Takes a reading, `seconds` after the one before.
    fn adjust(&mut self, health: &DeviceHealth, seconds: f64) {
        // In a second.
        let mut factor: f64 = 1.05;
        if self.max_celsius > 0.0 {
            factor = factor.min(health.celsius.map_or(1.0, |celsius| {
                let before = self.celsius.replace(celsius).unwrap_or(celsius);
                let trend = (celsius - before) / seconds;
                self.trend += (trend - self.trend) * (seconds / AHEAD).min(1.0);
                let excess = celsius + AHEAD * self.trend - (self.max_celsius - MARGIN);
                1.0 - 0.02 * excess.clamp(-2.0, 10.0)
            }));
        }
        if self.max_watts > 0.0 {
            factor = factor.min(health.watts.map_or(1.0, |watts| {
                1.0 + 0.3 * (0.97 - watts / self.max_watts).clamp(-1.0, 0.15)
            }));
        }
        // One reading tells little of a long time.
        self.share = (self.share * factor.powf(seconds.min(AHEAD))).clamp(LEAST, 1.0);
    }

    /// Returns the pause after an update that took `time`.
    pub fn pause(&self, time: Duration) -> Duration {
        time.mul_f64(1.0 / self.share - 1.0).min(LONGEST)
    }

    /// Returns what to tell of the first pause.
    pub fn note(&mut self) -> Option<String> {
        let limits = [(self.max_celsius, "°C"), (self.max_watts, "W")];
        let set = limits.iter().filter(|(limit, _)| *limit > 0.0);
        let limits: Vec<_> = set.map(|(limit, unit)| format!("{limit} {unit}")).collect();
        let is_new = self.share < 1.0 && !std::mem::replace(&mut self.is_told, true);
        is_new.then(|| {
            format!("the run pauses between updates, to stay below {}", limits.join(" and "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cooling(max_celsius: f64, max_watts: f64) -> Cooling {
        let config = Config { max_celsius, max_watts, ..Config::default() };
        let known =
            DeviceHealth { celsius: Some(40.0), watts: Some(20.0), ..DeviceHealth::default() };
        Cooling::new(&config, true, "the GPU", &known).unwrap().unwrap()
    }

    /// A device that nears its temperature with a time constant, and is read in whole degrees.
    #[test]
    fn the_temperature_settles_just_below_its_limit() {
        for (constant, hottest, interval) in
            [(10.0, 90.0, 1), (30.0, 85.0, 1), (60.0, 95.0, 1), (60.0, 95.0, 6)]
        {
            let mut cooling = cooling(75.0, 0.0);
            let mut celsius: f64 = 40.0;
            let mut seen = Vec::new();
            for second in 0..1200 {
                let target = 35.0 + (hottest - 35.0) * cooling.share;
                celsius += (target - celsius) / constant;
                let reading =
                    DeviceHealth { celsius: Some(celsius.round()), ..DeviceHealth::default() };
                if second % interval == 0 {
                    cooling.adjust(&reading, f64::from(interval));
                }
                seen.push(celsius);
            }
            let highest = seen.iter().copied().fold(0.0, f64::max);
            assert!(highest < 76.5, "{constant} s: {highest}");
            let settled = &seen[600..];
            assert!(
                settled.iter().all(|celsius| (71.0..75.6).contains(celsius)),
                "{constant} s: {settled:?}"
            );
        }
    }

    #[test]
    fn the_power_settles_just_below_its_limit() {
        let mut cooling = cooling(0.0, 150.0);
        let mut watts = 0.0;
        for second in 0..120 {
            watts = 25.0 + 175.0 * cooling.share;
            assert!(second < 15 || watts < 150.0, "{watts} W after {second} s");
            cooling.adjust(&DeviceHealth { watts: Some(watts), ..DeviceHealth::default() }, 1.0);
        }
        assert!(watts > 140.0, "{watts}");
        let pause = cooling.pause(Duration::from_secs(1));
        assert!((0.3..0.6).contains(&pause.as_secs_f64()), "{pause:?}");
        assert!(cooling.note().unwrap().contains("150 W") && cooling.note().is_none());
    }

    #[test]
    fn a_cool_device_has_no_pauses_and_an_unknown_one_no_limits() {
        let mut cool = cooling(75.0, 150.0);
        let reading =
            DeviceHealth { celsius: Some(60.0), watts: Some(120.0), ..DeviceHealth::default() };
        (0..100).for_each(|_| cool.adjust(&reading, 1.0));
        assert_eq!((cool.pause(Duration::from_secs(1)), cool.note()), (Duration::ZERO, None));
        let unknown = DeviceHealth::default();
        let config = Config { max_watts: 150.0, ..Config::default() };
        let Err(failure) = Cooling::new(&config, true, "CPU", &unknown) else {
            panic!("it was taken")
        };
        assert!(failure.text.contains("the power of CPU"), "{failure}");
        // A driver that was reset may report it later. Until then the share stays.
        let mut later = Cooling::new(&config, false, "GPU", &unknown).unwrap().unwrap();
        later.share = 0.5;
        later.adjust(&unknown, 1.0);
        assert_eq!(later.share, 0.5);
        assert!(Cooling::new(&Config::default(), true, "CPU", &unknown).unwrap().is_none());
    }
}
