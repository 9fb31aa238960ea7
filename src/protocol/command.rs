//! Commands to a trainer, and the settings that can change during a run.

use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::config::DecayLength;

/// A command to a trainer, one JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "snake_case")]
pub enum Command {
    /// Pause after the current step.
    Pause,
    /// Train again.
    Resume,
    /// Finish the step, write a checkpoint and exit.
    Stop,
    /// Write a checkpoint and exit, to continue later in another process.
    StandBy,
    /// Write a checkpoint, decay the learning rate and end: `{"command":"finish","decay":"10%"}`.
    Finish {
        #[serde(default)]
        decay: DecayLength,
    },
    /// Write a checkpoint and continue.
    Checkpoint,
    /// Generate text, with the probabilities of its tokens if `probabilities` is true.
    Sample {
        prompt: String,
        #[serde(default)]
        probabilities: bool,
    },
    /// Change a setting: `{"command":"set","key":"learning_rate","value":1e-4}`.
    Set(Setting),
}

/// A setting that can change during a run, with its new value.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "key", content = "value", rename_all = "snake_case", try_from = "KeyValue")]
pub enum Setting {
    /// `learning_rate`: constant from here on, in place of the schedule.
    LearningRate(f64),
    /// `eval_interval`, in iterations.
    EvalInterval(NonZeroU64),
    /// `log_interval`, in iterations.
    LogInterval(NonZeroU64),
    /// `vram_budget`, in bytes.
    VramBudget(NonZeroU64),
    /// `stop_on_close`: stop the run when the stdin that carried this command closes, as
    /// `--stop-on-close` does. The process that reads that stdin applies it and does not pass it
    /// to the trainer: it does not belong to the run.
    StopOnClose(bool),
}

#[derive(Deserialize)]
struct KeyValue {
    key: String,
    value: Value,
}

impl TryFrom<KeyValue> for Setting {
    type Error = String;

    fn try_from(KeyValue { key, value }: KeyValue) -> Result<Self, String> {
        let setting = match key.as_str() {
            "learning_rate" => value.as_f64().filter(|&rate| rate > 0.0).map(Setting::LearningRate),
            "eval_interval" => count(&value).map(Setting::EvalInterval),
            "log_interval" => count(&value).map(Setting::LogInterval),
            "vram_budget" => count(&value).map(Setting::VramBudget),
            "stop_on_close" => value.as_bool().map(Setting::StopOnClose),
            _ => return Err(format!("`{key}` cannot change during a run; {CHANGEABLE} can")),
        };
        setting.ok_or_else(|| format!("`{key}` cannot be {value}; {CHANGEABLE}"))
    }
}

/// The settings that can change, for error messages.
const CHANGEABLE: &str = "learning_rate (a number above 0), eval_interval and log_interval \
                          (iterations) and vram_budget (bytes)";

/// Reads a positive whole number, also where a program wrote it as `5.0` or `1e9`. A float of 2^53
/// or more is refused: it stands for several integers.
fn count(value: &Value) -> Option<NonZeroU64> {
    let whole = |value: f64| value.fract() == 0.0 && (0.0..2f64.powi(53)).contains(&value);
    let float = || value.as_f64().filter(|&value| whole(value)).map(|value| value as u64);
    NonZeroU64::new(value.as_u64().or_else(float)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(key: &str, value: &str) -> String {
        format!(r#"{{"command":"set","key":"{key}","value":{value}}}"#)
    }

    fn finish(decay: &str) -> String {
        format!(r#"{{"command":"finish","decay":"{decay}"}}"#)
    }

    #[test]
    fn commands_read_back_from_their_json_lines() {
        let count = NonZeroU64::new(8 << 30).unwrap();
        for (command, line) in [
            (Command::Stop, r#"{"command":"stop"}"#.to_string()),
            (Command::Finish { decay: "600".parse().unwrap() }, finish("600")),
            (Command::Finish { decay: DecayLength::default() }, finish("10%")),
            (Command::Set(Setting::LearningRate(1e-4)), set("learning_rate", "0.0001")),
            (Command::Set(Setting::VramBudget(count)), set("vram_budget", "8589934592")),
            (Command::Set(Setting::StopOnClose(true)), set("stop_on_close", "true")),
        ] {
            assert_eq!(serde_json::to_string(&command).unwrap(), line);
            assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        }
        assert!(serde_json::from_str::<Command>(r#"{"command":"explode"}"#).is_err());
        let finish = serde_json::from_str::<Command>(r#"{"command":"finish"}"#);
        assert_eq!(finish.unwrap(), Command::Finish { decay: DecayLength::default() });
        // A whole number may be written as a float.
        let budget = serde_json::from_str::<Command>(&set("vram_budget", "8589934592.0"));
        assert_eq!(budget.unwrap(), Command::Set(Setting::VramBudget(count)));
    }

    #[test]
    fn a_bad_setting_is_refused_with_the_settings_that_can_change() {
        for (key, value) in [
            ("batch_size", "4"),
            ("learning_rate", "0"),
            ("learning_rate", "\"fast\""),
            ("eval_interval", "0"),
            ("log_interval", "2.5"),
            ("log_interval", "-3"),
            ("vram_budget", "2e18"),
            ("stop_on_close", "1"),
        ] {
            let error = serde_json::from_str::<Command>(&set(key, value)).unwrap_err().to_string();
            assert!(error.contains(key) && error.contains("vram_budget (bytes)"), "{error}");
        }
    }
}
