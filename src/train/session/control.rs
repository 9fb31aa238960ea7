//! What a front end may ask of a run that is under way.

use std::time::Duration;

use super::Session;
use crate::model::{SampleOptions, Sampler};
use crate::protocol::{Command, Event, StopReason};
use crate::train::{Commands, Next, TrainError};

impl Session<'_> {
    /// Lets the model write, if it is known which tokens it uses.
    pub(super) async fn sample(&mut self, prompt: &str) {
        let Some(tokenizer) = self.dataset.tokenizer.clone() else { return };
        // The default of the setting, which not every alphabet has.
        let own = tokenizer.default_prompt();
        let prompt = if prompt == "\n" { own.as_str() } else { prompt };
        let ids = match tokenizer.encode_prompt(prompt) {
            Ok(ids) if !ids.is_empty() => ids,
            Ok(_) => return self.warn("an empty prompt: nothing to continue".into()),
            Err(error) => return self.warn(format!("no sample: {error}")),
        };
        let seed = self.config.seed.wrapping_add(self.iteration);
        let options = SampleOptions { temperature: 0.8, top_k: 200, seed };
        let model = self.model();
        let mut sampler = Sampler::new(model, &ids, options, self.mode);
        let mut tokens = Vec::new();
        for _ in 0..self.config.sample_tokens {
            tokens.push(sampler.next_token().await);
            self.device.watchdog.restart();
        }
        let text = tokenizer.decode(&tokens);
        self.emit(Event::Sample { iter: self.iteration, prompt: prompt.to_string(), text });
    }

    /// Carries out what was asked for meanwhile; gives a reason to end, if there is one.
    pub(super) async fn interrupted(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<Option<StopReason>, TrainError> {
        let mut paused = false;
        loop {
            if self.is_late() {
                return Ok(Some(StopReason::MaxTime));
            }
            let next = self.waiting.pop_front().map_or_else(|| commands.next(), Next::Command);
            let command = match next {
                Next::Command(command) => command,
                Next::None if paused => {
                    self.device.watchdog.allow_silence(Duration::MAX);
                    commands.idle().await;
                    self.device.watchdog.restart();
                    continue;
                }
                // Whoever could resume is gone: what is paused goes on.
                Next::None | Next::Never => return Ok(None),
            };
            match command {
                Command::Pause => paused = true,
                Command::Resume => paused = false,
                Command::Stop => return Ok(Some(StopReason::Stopped)),
                Command::Checkpoint => self.save(None).await?,
                Command::Sample { prompt } => self.sample(&prompt).await,
                Command::Set { key, value } => self.set(&key, value).await?,
            }
        }
    }

    /// Whether the run's time is over.
    pub(super) fn is_late(&self) -> bool {
        self.config.max_time.is_some_and(|limit| self.started.elapsed() >= limit)
    }

    async fn set(&mut self, key: &str, value: f64) -> Result<(), TrainError> {
        // What a float holds exactly: more is no count, and no configuration could be read again.
        let exact = value.fract() == 0.0 && value < 2f64.powi(53);
        let count = std::num::NonZeroU64::new(value as u64).filter(|_| exact);
        match (key, count) {
            ("learning_rate", _) if value > 0.0 && value.is_finite() => {
                self.learning_rate = Some(value);
            }
            ("eval_interval", Some(count)) => self.config.eval_interval = count,
            ("log_interval", Some(count)) => self.config.log_interval = count,
            ("vram_budget", Some(bytes)) => self.set_budget(bytes.get()).await?,
            ("learning_rate" | "eval_interval" | "log_interval" | "vram_budget", _) => {
                self.warn(format!("`{key}` cannot be {value}"));
            }
            _ => self.warn(format!(
                "`{key}` cannot change during a run; learning_rate, eval_interval, log_interval and \
                 vram_budget can"
            )),
        }
        Ok(())
    }
}
