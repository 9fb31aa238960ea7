//! Advice about a run that fits the device and would still disappoint: too short, too large, too long.

use super::Totals;
use super::recipe::most_passes;
use crate::config::{Config, InitFrom};
use crate::text::{bytes, count, estimate, grouped, percent, two_digits};

/// Fewer updates teach a model little more than which words are frequent.
const FEW_UPDATES: u64 = 1000;

/// The updates that advice aims at.
const ENOUGH_UPDATES: u64 = 2500;

/// The best number of tokens for a parameter (Hoffmann et al., arXiv:2203.15556).
const TOKENS_PER_PARAMETER: f64 = 20.0;

/// This many times the passes after which nothing is gained are called too many.
const TOO_MANY: f64 = 1.25;

/// A higher peak makes a trained model forget more than it learns.
const FINE_TUNING_RATE: f64 = 2e-4;

/// A run of fewer operations, minutes on a CPU, is a trial.
const TRIAL: f64 = 3e13;

/// A run of more seconds, a week, is longer than a person may expect.
const LONG: f64 = 7.0 * 86400.0;

impl Totals {
    /// Returns a sentence for each reason why the run of `config` would teach its model little, or take
    /// longer than a person may expect: with a change that helps, and what that gives.
    pub fn advice(&self, config: &Config) -> Vec<String> {
        let is_trial = 6.0 * self.parameters as f64 * (self.tokens as f64) < TRIAL;
        let is_new = config.init_from == InitFrom::Scratch && config.lora_rank == 0;
        let learning = [self.about_updates(config), self.about_parameters()];
        let learning = learning.into_iter().filter(|_| is_new && !is_trial);
        let others = [about_rate(config), self.about_passes(config), self.about_time()];
        learning.chain(others).flatten().collect()
    }

    fn about_updates(&self, config: &Config) -> Option<String> {
        if self.updates >= FEW_UPDATES {
            return None;
        }
        let updates = grouped(self.updates as f64, 0);
        let sequences = (config.global_batch() * self.updates / ENOUGH_UPDATES).max(1);
        let more = self.updates * config.global_batch() / sequences;
        if more < 2 * self.updates {
            return Some(format!("{updates} updates teach a model little: give it more time"));
        }
        Some(format!(
            "{updates} updates teach a model little: batch_size = {sequences} and \
             gradient_accumulation_steps = 1 make {} of the same tokens",
            grouped(more as f64, 0)
        ))
    }

    fn about_parameters(&self) -> Option<String> {
        let each = self.tokens as f64 / self.parameters as f64;
        if each >= 1.0 {
            return None;
        }
        let better = (self.tokens as f64 * self.parameters as f64 / TOKENS_PER_PARAMETER).sqrt();
        let each = if each < 0.01 { "less than 0.01".to_string() } else { two_digits(each) };
        Some(format!(
            "{each} tokens per parameter is too few for a model of this size: one with {} parameters \
             sees {TOKENS_PER_PARAMETER} per parameter in the same time and learns more",
            count(better as u64)
        ))
    }

    /// Returns a warning if the checkpoints take more than the `free` bytes of their disk.
    pub fn about_disk(&self, free: u64) -> Option<String> {
        (self.disk_bytes > free).then(|| {
            let [all, free, one] = [self.disk_bytes, free, self.checkpoint_bytes].map(bytes);
            format!(
                "the disk has {free} free, but {} checkpoints of {one} take {all}: free some space, or \
                 keep fewer with keep_checkpoints",
                self.checkpoints
            )
        })
    }

    fn about_passes(&self, config: &Config) -> Option<String> {
        let enough = most_passes(&InitFrom::Scratch, config.dropout > 0.0);
        let passes = self.epochs.filter(|&passes| passes > TOO_MANY * enough)?;
        let updates = (self.updates as f64 * enough / passes) as u64;
        let dropout = if config.dropout == 0.0 { ", and dropout = 0.1 delays that" } else { "" };
        Some(format!(
            "{} passes over the data: after about {enough} a model memorises them{dropout}; \
             max_iters = {} takes {} of the time",
            two_digits(passes),
            updates.max(1),
            percent(enough / passes, 0)
        ))
    }

    pub(crate) fn about_time(&self) -> Option<String> {
        let seconds = self.time.as_ref().map(|time| time.seconds).filter(|&time| time >= LONG)?;
        Some(format!(
            "this run takes about {} on this device: max_time = 8h plans one that ends in 8 hours, and \
             `wgpt train --time=8h` without a preset chooses a model for that",
            estimate(seconds)
        ))
    }
}

fn about_rate(config: &Config) -> Option<String> {
    let is_trained = matches!(config.init_from, InitFrom::Path(_)) && config.lora_rank == 0;
    (is_trained && config.learning_rate > FINE_TUNING_RATE).then(|| {
        format!(
            "a learning rate of {:e} is meant for training from scratch; a trained model would forget \
             what it knows: learning_rate = 5e-5 and min_lr = 0.0 are better for fine-tuning",
            config.learning_rate
        )
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::plan::work::tests::{VOCAB, published};
    use crate::plan::{DataSize, Plan};

    fn advice(preset: &str, vocab: u32, time: Option<u64>, train: u64) -> Vec<String> {
        let max_time = time.map(Duration::from_secs);
        let config = Config { max_time, ..Config::of_preset(preset, &[]) };
        let (plan, data) = (Plan::new(&config, vocab), DataSize { train, val: train / 10 });
        let speed = published("RTX 3060");
        Totals::new(&config, vocab, &plan, Some(data), Some(&speed), true).advice(&config)
    }

    fn begins(advice: &[String], words: &[&str]) {
        let is_so = |(line, words): (&String, &&str)| line.contains(words);
        assert!(advice.len() == words.len() && advice.iter().zip(words).all(is_so), "{advice:#?}");
    }

    #[test]
    fn a_night_for_a_model_that_is_too_large_is_told_what_helps() {
        let night = advice("gpt2-large", VOCAB, Some(10 * 3600), 9_000_000_000);
        begins(&night, &[" updates teach a model little: batch_size = ", " tokens per parameter"]);
        assert!(
            night[0].ends_with("gradient_accumulation_steps = 1 make 2,574 of the same tokens"),
            "{night:?}"
        );
    }

    #[test]
    fn a_run_of_years_and_one_with_too_little_text_are_told() {
        begins(
            &advice("gpt2", VOCAB, None, 9_000_000_000),
            &["33 passes over the data", "max_time = 8h"],
        );
        begins(
            &advice("shakespeare-char", 65, None, 1_000_000),
            &["82 passes over the data: after about 32"],
        );
        begins(&advice("demo", 300, None, 2_000_000), &[]);
    }

    #[test]
    fn a_model_that_is_trained_already_needs_few_updates() {
        let advice = |rate: &'static str| {
            let flags = [("init_from", "gpt2"), ("max_iters", "100"), ("learning_rate", rate)];
            let config = Config::of_preset("gpt2", &flags);
            let totals = Totals::new(&config, VOCAB, &Plan::new(&config, VOCAB), None, None, false);
            totals.advice(&config)
        };
        begins(&advice("2e-4"), &[]);
        begins(&advice("6e-4"), &["a learning rate of 6e-4 is meant for training from scratch"]);
    }
    #[test]
    fn a_disk_that_is_too_small_is_told() {
        let config = Config::of_preset("gpt2", &[]);
        let totals = Totals::new(&config, VOCAB, &Plan::new(&config, VOCAB), None, None, false);
        assert_eq!(totals.about_disk(totals.disk_bytes), None);
        let told = totals.about_disk(1 << 30).unwrap();
        assert!(told.contains("1.00 GiB free, but 4 checkpoints of 1.39 GiB"), "{told}");
    }
}
