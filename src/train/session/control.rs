//! Commands to a run while it trains.

use std::time::Duration;

use super::Session;
use crate::config::DecayLength;
use crate::data::{DataError, Ending, Message, Role, Tokenizer};
use crate::eval::ScoredStream;
use crate::model::{SampleOptions, Sampler};
use crate::protocol::{Command, Event, Failure, Sample, Setting, StopReason, Task};
use crate::train::Commands;

/// The default of `sample_prompt`.
const DEFAULT_PROMPT: &str = "\n";

impl Session<'_> {
    /// Returns the next command of rank 0, and true once the run has used up its `max_time` by the clock of
    /// rank 0: all ranks apply the same commands between the same two updates.
    fn next(&mut self, commands: &mut impl Commands) -> Result<(Option<Command>, bool), Failure> {
        let is_late = self.job.is_late();
        let command = if self.ranks.group.is_first() && !is_late {
            self.due_decay().or_else(|| self.queued.pop_front()).or_else(|| commands.next())
        } else {
            None
        };
        Ok(self.ranks.group.share((command, is_late))?)
    }

    /// Returns true if a text is due, together with an evaluation or by `sample_interval`.
    pub(super) fn sample_is_due(&self, evaluates: bool) -> bool {
        match self.job.config.sample_interval {
            0 => evaluates,
            interval => self.position.is_due(interval),
        }
    }

    /// Generates a text from `sample_prompt`. The draws are the same each time, so that texts differ
    /// only as the weights do.
    pub(super) async fn sample_for_comparison(&mut self) {
        let config = &self.job.config;
        if config.sample_tokens > 0 && self.ranks.group.is_first() {
            self.sample(&config.sample_prompt.clone(), config.seed, false).await;
        }
    }

    /// Generates a text, with the probabilities of its tokens if they are wanted.
    async fn sample(&mut self, prompt: &str, seed: u64, probabilities: bool) {
        let Some(tokenizer) = self.job.dataset.tokenizer.clone() else { return };
        let (prompt, ids) = match self.sample_start(prompt, &tokenizer) {
            Ok((prompt, ids)) if !ids.is_empty() => (prompt, ids),
            Ok(_) => return self.journal.warn("no sample: the prompt is empty"),
            Err(error) => {
                return self.journal.warn(format!("no sample: {error}; {}", error.hint()));
            }
        };
        let options = SampleOptions { temperature: 0.8, top_k: 200, seed };
        let mut sampler = Sampler::new(self.learner.model(), &ids, options, self.job.mode);
        let count = self.job.config.sample_tokens;
        let mut reporter = self.journal.report(Task::Sample, count.into());
        let (mut tokens, mut scored) = (Vec::new(), Vec::new());
        let mut stream = ScoredStream::new(&tokenizer);
        for done in 0..count {
            reporter.report(done.into());
            let odds = if probabilities {
                Some(sampler.next_with_odds(tokenizer.vocab_size() as usize).await)
            } else {
                None
            };
            let token = match &odds {
                Some(odds) => odds.id,
                None => sampler.next_token().await,
            };
            self.device.watchdog.restart();
            // An answer ends with its message.
            if tokenizer.chat().is_some_and(|template| template.is_special(token)) {
                break;
            }
            tokens.push(token);
            scored.extend(odds.map(|odds| stream.push(odds)));
        }
        let text = tokenizer.decode(&tokens);
        let sample = Sample { iter: self.position.iteration, prompt, text, tokens: scored };
        self.journal.emit(Event::Sample(sample));
    }

    /// Returns the text and the tokens that a sample continues. In a run on conversations that is a
    /// message of the user, by default the first one of the validation split.
    fn sample_start(
        &self,
        prompt: &str,
        tokenizer: &Tokenizer,
    ) -> Result<(String, Vec<u32>), DataError> {
        let is_default = prompt == DEFAULT_PROMPT;
        let Some(template) = tokenizer.chat().filter(|_| self.job.dataset.val.has_conversations())
        else {
            // The default is not in every vocabulary.
            let prompt = if is_default { tokenizer.default_prompt() } else { prompt.to_owned() };
            let ids = tokenizer.encode_prompt(&prompt)?;
            return Ok((prompt, ids));
        };
        if !is_default {
            let message = Message::new(Role::User, prompt);
            return Ok((format!("{prompt}\n"), template.prompt(&[message], Ending::Answer)?));
        }
        let ids = self.job.dataset.val.first_prompt(0)?.unwrap_or_default();
        Ok((format!("{}\n", template.question(&ids)), ids))
    }

    /// Applies the commands that have arrived, and waits while the run is paused. Returns a reason
    /// to end the run, if any.
    pub(super) async fn apply_commands(
        &mut self,
        commands: &mut impl Commands,
    ) -> Result<Option<StopReason>, Failure> {
        let (mut paused, mut announced) = (false, false);
        loop {
            let (command, is_late) = self.next(commands)?;
            if is_late {
                return Ok(Some(StopReason::MaxTime));
            }
            let Some(command) = command else {
                if paused {
                    if !std::mem::replace(&mut announced, true) {
                        self.journal.emit(Event::Paused { iter: self.position.iteration });
                    }
                    let _silence = self.device.watchdog.allow_silence(Duration::MAX);
                    commands.idle().await;
                    continue;
                }
                if announced {
                    self.journal.emit(Event::Resumed { iter: self.position.iteration });
                }
                return Ok(None);
            };
            match command {
                Command::Pause => paused = true,
                Command::Resume => paused = false,
                Command::Stop => return Ok(Some(StopReason::Stopped)),
                Command::Finish { decay } => self.finish_after(decay).await?,
                Command::Checkpoint => self.save().await?,
                Command::Sample { prompt, probabilities } => {
                    let seed = self.job.config.seed.wrapping_add(self.position.iteration);
                    if self.ranks.group.is_first() {
                        self.sample(&prompt, seed, probabilities).await;
                    }
                }
                Command::Set(setting) => self.set(setting).await?,
            }
        }
    }

    /// Decays the learning rate over the next updates, after which the run ends. The checkpoint that it
    /// writes first stays, so that the run can also continue without the decay.
    pub(super) async fn finish_after(&mut self, decay: DecayLength) -> Result<(), Failure> {
        let (iter, config) = (self.position.iteration, &self.job.config);
        if config.is_decaying(iter) && self.position.set_rate.is_none() {
            let end = config.max_iters;
            self.journal.warn(format!("the run is already finishing: it ends at iteration {end}"));
            return Ok(());
        }
        let rate = self.position.learning_rate(config);
        let ending = config.ending_after(iter, rate, decay.updates(iter));
        self.save().await?;
        self.position.set_rate = None;
        self.job.config = ending;
        self.journal.folder.write_config(&self.job.config)?;
        let config = Box::new(self.job.config.clone());
        self.journal.emit(Event::Finishing { iter, config });
        Ok(())
    }

    async fn set(&mut self, setting: Setting) -> Result<(), Failure> {
        match setting {
            Setting::LearningRate(rate) => self.position.set_rate = Some(rate),
            Setting::EvalInterval(interval) => self.job.config.eval_interval = interval,
            Setting::LogInterval(interval) => self.job.config.log_interval = interval,
            Setting::VramBudget(bytes) => self.set_budget(bytes.get()).await?,
            // A setting of the process that reads stdin, which has applied it.
            Setting::StopOnClose(_) => {}
        }
        Ok(())
    }
}
