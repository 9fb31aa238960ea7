//! The recipe of a run: what to train on some data, with some device, in a given time.
//!
//! docs/rule.md has the rule with its sources, and the runs that check it.

use std::num::NonZeroU32;
use std::time::Duration;

use super::{DataSize, DeviceSpeed, Forecast, Limits, Pace, SettingValues, Totals, Work, plan};
use crate::config::{Arch, Config, GPT2_VOCABULARY, InitFrom, OptimizerKind};
use crate::text::{count, two_digits};

/// Common times for a run, with their names, in seconds.
pub const TIMES: [(&str, u64); 4] =
    [("10 minutes", 600), ("an hour", 3600), ("a night", 8 * 3600), ("a weekend", 48 * 3600)];

/// The tokens of the micro-batch that is measured to know the speed of a device.
const MEASURED_TOKENS: u64 = 4096;

/// Layers and widths of the models to choose from, the smallest first. Each has 1.3 to 2 times the weights
/// of the one before in its blocks; from GPT-2's on they are GPT-2's.
const SHAPES: [(u32, u32); 20] = [
    (2, 64),
    (2, 96),
    (3, 96),
    (3, 128),
    (4, 128),
    (4, 160),
    (4, 192),
    (4, 224),
    (4, 256),
    (5, 320),
    (6, 384),
    (7, 448),
    (8, 512),
    (9, 576),
    (10, 640),
    (12, 768),
    (16, 896),
    (24, 1024),
    (36, 1280),
    (48, 1600),
];

/// The width of an attention head of small and of large models.
const SMALL_HEAD: u32 = 32;
const HEAD: u32 = 64;

/// The constants of the loss `E + A / N^a + B / D^a` for N parameters and D tokens, and the number of passes
/// after which a repeated token has lost `1 - 1/e` of its worth (Muennighoff et al., arXiv:2305.16264). The
/// best use of an amount of compute is 20 tokens per parameter, as of Hoffmann et al. (arXiv:2203.15556).
const OF_PARAMETERS: f64 = 521.0;
const OF_TOKENS: f64 = 1488.0;
const EXPONENT: f64 = 0.3527;
const WORTH_OF_PASSES: f64 = 15.39;

/// The parameters for each token of the data from which on a model memorises them in many passes.
const MEMORISES: f64 = 0.5;

/// More passes over the data teach next to nothing (Muennighoff et al.). With dropout a model learns from more of
/// them, by our own sweeps (docs/rule.md).
const MOST_PASSES: f64 = 16.0;
const MOST_PASSES_WITH_DROPOUT: f64 = 32.0;

/// The same for a model that is trained already: its batches, its passes and its learning rate are those with
/// which GPT-2 is usually fine-tuned (3e-5 in nanoGPT, 5e-5 in Hugging Face's examples).
const FINE_TUNING_BATCH: f64 = 32_768.0;
const FINE_TUNING_UPDATES: f64 = 300.0;
const FINE_TUNING_PASSES: f64 = 3.0;
const FINE_TUNING_RATE: f64 = 5e-5;

/// Of an adapter, whose weights begin at zero (2e-4 in QLoRA, arXiv:2305.14314, for models of 7B and 13B).
const ADAPTER_RATE: f64 = 2e-4;

/// With fewer tokens per parameter a smaller model is better, with more a larger one, if there are data.
const LEAST_TOKENS_PER_PARAMETER: f64 = 4.0;
const MOST_TOKENS_PER_PARAMETER: f64 = 40.0;

/// The choice of a batch.
struct BatchRule {
    /// The part of the law's batch, which is the largest one that is useful.
    of_law: f64,
    /// The fewest updates of a run. Fewer in larger batches learn less from the same tokens.
    updates: f64,
    /// The fewest tokens of an update, also if the run then has fewer updates.
    tokens: f64,
}

/// The passes over the data from which on a model that can memorise them gets dropout, and small batches are better.
const MANY_PASSES: f64 = 10.0;

/// The rule for a run that time limits. With Muon, a smaller batch costs as much and has noisier gradients.
const WITH_LITTLE_TIME: BatchRule = BatchRule { of_law: 0.7, updates: 2000.0, tokens: 2048.0 };

/// The rule for a run that the data limit, which has time for more updates on the same tokens.
const WITH_LITTLE_DATA: BatchRule = BatchRule { of_law: 0.5, updates: 2500.0, tokens: 1024.0 };

/// The share of the time for evaluations, and for samples and checkpoints.
const FOR_UPDATES: f64 = 0.9;

/// The fewest updates of a plan. A run whose time is too short for them makes fewer: its schedule follows its speed,
/// which some updates must show.
const LEAST_UPDATES: u64 = 10;

/// The share of a run in which the learning rate decays.
const DECAY: f64 = 0.6;

/// The evaluations and samples of a run, and the share of the training tokens between two of them that an
/// evaluation reads of each split. A forward pass takes a third of the time.
const EVALUATIONS: u64 = 20;
const EVALUATED: f64 = 0.07;

/// The part of the embedding that counts as parameters in the law. The laws were measured on large models,
/// where it does not matter; for small ones with a large vocabulary, all of it predicts models that are too
/// small, and none of it models that are too large (docs/rule.md).
const OF_EMBEDDING: f64 = 0.25;

/// The worth of a token with Muon in tokens with AdamW: it needs at least a third fewer (docs/optimizers.md).
const WORTH_WITH_MUON: f64 = 1.5;

/// Muon is ahead of AdamW in the same time if its update takes at most this many times as long (docs/rule.md).
const MUON_TAKES: f64 = 2.5;

/// Models with fewer parameters than this learn best at a multiple of the law's rate with Muon, by our own sweeps
/// (docs/rule.md).
const SMALL_MODEL: u64 = 10_000_000;
const RATE_OF_SMALL_WITH_MUON: f64 = 2.0;

/// A small model is expected to reach `OF_MARKOV + OF_MARKOV_BY_LOSS L` times the bits per byte of a Markov model
/// of order 4, where L is the law's reducible loss, within a factor of `SURE` (docs/rule.md has the fit).
const OF_MARKOV: f64 = 0.734;
const OF_MARKOV_BY_LOSS: f64 = 0.011;
const SURE: f64 = 1.15;

/// A question: what to train?
#[derive(Clone, Copy)]
pub struct RecipeQuestion<'a> {
    /// The configuration with what a person has set.
    pub config: &'a Config,
    /// Returns true for the settings that a person has set, which stay.
    pub is_set: &'a dyn Fn(&str) -> bool,
    pub vocab: u32,
    pub data: DataSize,
    /// The bits per byte of the validation split under a Markov model (data::markov_bits), if known.
    pub markov_bits: Option<f64>,
    pub limits: &'a Limits,
    pub speed: &'a DeviceSpeed,
    pub time: Duration,
    /// The tokens of the run, if a person has set them.
    pub tokens: Option<f64>,
}

/// A size of the batch, and the time of an update.
struct Batch {
    /// The settings up to here.
    set: SettingValues,
    tokens: f64,
    seconds: f64,
}

/// The answer: a configuration, with its plan.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The settings that the rule has chosen.
    pub set: SettingValues,
    pub config: Config,
    pub forecast: Forecast,
    pub totals: Totals,
    /// True if more time would not help: more data would, or a longer run than a person has asked for.
    pub is_limited_by_data: bool,
    /// True if a person has set the tokens.
    sets_tokens: bool,
    /// `None` for a model that is large or trained already, and for a text that is not known.
    pub expected: Option<ExpectedBits>,
    /// The worth of a token in tokens of GPT-2.
    worth: f64,
    /// The part of the loss that a larger model and more tokens could take away; infinite for a model that
    /// is too large for its tokens.
    reducible_loss: f64,
}

/// Batch size in tokens and peak learning rate for AdamW, from the operations of a run: the laws of
/// DeepSeek LLM (arXiv:2401.02954).
fn batch_law(flop: f64) -> f64 {
    0.2920 * flop.powf(0.3271)
}

fn learning_rate_law(flop: f64) -> f64 {
    0.3118 * flop.powf(-0.1250)
}

/// Returns the tokens that are worth as much without repetition as `tokens` drawn from `unique` ones.
fn effective(tokens: f64, unique: f64) -> f64 {
    let repeated = tokens / unique - 1.0;
    if repeated <= 0.0 {
        return tokens;
    }
    unique * (1.0 + WORTH_OF_PASSES * (1.0 - (-repeated / WORTH_OF_PASSES).exp()))
}

/// Returns the worth of a token in tokens of GPT-2, on which the law was measured: a token of a small
/// vocabulary says less, at most the logarithm of its size.
fn worth(vocab: u32) -> f64 {
    (f64::from(vocab.max(2)).ln() / f64::from(GPT2_VOCABULARY).ln()).min(1.0)
}

pub(super) fn most_passes(init_from: &InitFrom, has_dropout: bool) -> f64 {
    match init_from {
        InitFrom::Scratch if has_dropout => MOST_PASSES_WITH_DROPOUT,
        InitFrom::Scratch => MOST_PASSES,
        _ => FINE_TUNING_PASSES,
    }
}

/// Returns the most updates from which a run with this configuration can learn.
pub(crate) fn most_updates(config: &Config, data: DataSize) -> u64 {
    let each = config.global_batch() as f64 * f64::from(config.block_size.get());
    (most_passes(&config.init_from, config.dropout > 0.0) * data.train as f64 / each) as u64
}

/// Rounds down to a power of two or three times one: numbers with many divisors, for micro-batches.
fn round(sequences: f64) -> u64 {
    let power = 2f64.powi(sequences.max(1.0).log2().floor() as i32);
    (if sequences >= 1.5 * power && power > 1.0 { 1.5 * power } else { power }) as u64
}

/// Returns the context of a model, in tokens: longer ones cost attention, and small models cannot use them. A
/// character is less than a token of a larger vocabulary.
fn context(parameters: u64, vocab: u32) -> u32 {
    match parameters {
        0..2_000_000 if vocab > 1000 => 64,
        0..2_000_000 => 128,
        2_000_000..12_000_000 => 256,
        12_000_000..60_000_000 => 512,
        _ => 1024,
    }
}

/// Returns the best recipe for `question`; `None` if no model fits the device and the time.
pub fn recipe(question: RecipeQuestion) -> Option<Recipe> {
    let RecipeQuestion { config, is_set, data, .. } = question;
    // Less is no text.
    if data.train < 2 || data.val < 2 {
        return None;
    }
    let is_sized = ["n_layer", "n_head", "n_embd"].iter().any(|key| is_set(key));
    if is_sized || config.init_from != InitFrom::Scratch {
        return question.train(Vec::new());
    }
    let mut best: Option<Recipe> = None;
    for (layers, width) in SHAPES {
        let head = if width < 4 * HEAD { SMALL_HEAD } else { HEAD };
        let shape = [("n_layer", layers), ("n_head", width / head), ("n_embd", width)];
        let shape = shape.map(|(key, value)| (key, value.to_string())).to_vec();
        let Some(found) = question.train(shape) else { break };
        if best.as_ref().is_none_or(|best| found.is_better_than(best)) {
            best = Some(found);
        } else if found.reducible_loss.is_infinite() {
            break;
        }
    }
    best
}

impl RecipeQuestion<'_> {
    /// Returns the recipe for a model of this shape; `None` if it does not fit.
    fn train(&self, mut set: SettingValues) -> Option<Recipe> {
        let &Self { vocab, data, speed, time, .. } = self;
        let parameters = self.config.with(&set)?.parameters(vocab.into());
        let longest = u32::try_from(data.val.min(data.train)).unwrap_or(u32::MAX).max(2) - 1;
        let block = context(parameters, vocab).min(longest.max(1));
        self.add(&mut set, "block_size", block);
        self.add(&mut set, "gradient_accumulation_steps", 1);
        let shaped = self.config.with(&set)?;
        let block = shaped.block_size.get();
        let parameters = shaped.parameters(vocab.into());
        let is_new = self.config.init_from == InitFrom::Scratch;
        let can_memorise = parameters as f64 >= MEMORISES * data.train as f64;
        let useful = most_passes(&self.config.init_from, can_memorise) * data.train as f64;
        let most = self.tokens.unwrap_or(useful);
        let mut tokens = most.min(20.0 * parameters as f64);
        // The batch depends on the number of tokens, and that on the speed of updates with this batch.
        let mut batch = None;
        let mut is_limited_by_data = false;
        for _ in 0..3 {
            let law = batch_law(6.0 * parameters as f64 * tokens);
            let rule = if is_limited_by_data { WITH_LITTLE_DATA } else { WITH_LITTLE_TIME };
            let repeats = tokens >= MANY_PASSES * data.train as f64;
            let least = if repeats { WITH_LITTLE_DATA.tokens } else { rule.tokens };
            let size = if is_new {
                (rule.of_law * law).min(tokens / rule.updates).max(least)
            } else {
                FINE_TUNING_BATCH.min(tokens / FINE_TUNING_UPDATES)
            };
            let size = round(size / f64::from(block)).min(1 << 16);
            let found = self.batch(&set, "batch_size", size)?;
            // GPT-2 was trained with AdamW.
            let muon = is_new.then(|| self.batch(&found.set, "optimizer", OptimizerKind::Muon));
            let is_worth_it = |muon: &Batch| muon.seconds <= MUON_TAKES * found.seconds;
            let found = muon.flatten().filter(is_worth_it).unwrap_or(found);
            let possible = FOR_UPDATES * time.as_secs_f64() * found.tokens / found.seconds;
            (tokens, is_limited_by_data) = (possible.min(most), possible > most);
            batch = Some(found);
        }
        let Batch { mut set, tokens: each, .. } = batch?;
        let flop = 6.0 * parameters as f64 * tokens;
        let passes = tokens / data.train as f64;
        self.add(&mut set, "dropout", dropout(parameters, data.train, passes));
        let rate = self.rate(&set, parameters, flop, each)?;
        let least = if is_limited_by_data { 1 } else { LEAST_UPDATES };
        let (forecast, config, set) =
            self.schedule(&set, rate, each, ((tokens / each) as u64).max(least))?;
        let totals = Totals::new(&config, vocab, &forecast.plan, Some(data), Some(speed), false);
        let has_muon = config.optimizer == OptimizerKind::Muon;
        let of_optimizer = if has_muon { WORTH_WITH_MUON } else { 1.0 };
        let worth = worth(vocab);
        let tokens = of_optimizer * worth * effective(totals.tokens as f64, data.train as f64);
        let blocks = config.block_matrices() as f64;
        let model = blocks + OF_EMBEDDING * (parameters as f64 - blocks);
        let loss = OF_PARAMETERS / model.powf(EXPONENT) + OF_TOKENS / tokens.powf(EXPONENT);
        // The rows of a small embedding are seen more often, so they need fewer tokens.
        let often = (f64::from(vocab) / f64::from(GPT2_VOCABULARY)).min(1.0);
        let seen = blocks + often * (totals.parameters as f64 - blocks);
        let is_too_large = (totals.tokens as f64) < LEAST_TOKENS_PER_PARAMETER * seen;
        let reducible_loss = if is_too_large { f64::INFINITY } else { loss };
        let share = OF_MARKOV + OF_MARKOV_BY_LOSS * loss;
        let markov_bits = self.markov_bits.filter(|_| is_new && parameters < SMALL_MODEL);
        let expected = markov_bits.map(|bits| ExpectedBits { middle: share * bits });
        Some(Recipe {
            set,
            config,
            forecast,
            totals,
            is_limited_by_data,
            sets_tokens: self.tokens.is_some(),
            expected,
            worth,
            reducible_loss,
        })
    }

    /// Returns the batch of a model with the settings of `set` and this one; `None` if it does not fit.
    fn batch(&self, set: &SettingValues, key: &'static str, value: impl ToString) -> Option<Batch> {
        let mut set = set.clone();
        self.add(&mut set, key, value);
        let config = self.config.with(&set)?;
        let plan = plan(&config, self.vocab, self.limits, Some(self.speed)).ok()?.plan;
        let seconds = self.speed.seconds(Work::update(&config, self.vocab, &plan));
        let tokens = config.global_batch() as f64 * f64::from(config.block_size.get());
        Some(Batch { set, tokens, seconds })
    }

    /// Returns the peak learning rate of a model with these parameters, for `flop` operations in updates of
    /// `each` tokens.
    fn rate(&self, set: &SettingValues, parameters: u64, flop: f64, each: f64) -> Option<f64> {
        let config = self.config.with(set)?;
        if config.init_from != InitFrom::Scratch {
            return Some(if config.lora_rank > 0 { ADAPTER_RATE } else { FINE_TUNING_RATE });
        }
        let has_muon = config.optimizer == OptimizerKind::Muon;
        let of_muon =
            if has_muon && parameters < SMALL_MODEL { RATE_OF_SMALL_WITH_MUON } else { 1.0 };
        // A smaller batch has noisier gradients: its rate falls with the root of its size.
        Some(of_muon * learning_rate_law(flop) * (each / batch_law(flop)).min(1.0).sqrt())
    }

    /// Adds the training of at most `updates` updates of `each` tokens that end in time, with a peak learning
    /// rate.
    fn schedule(
        &self,
        set: &SettingValues,
        rate: f64,
        each: f64,
        mut updates: u64,
    ) -> Option<(Forecast, Config, SettingValues)> {
        loop {
            let mut set = set.clone();
            self.add_training(&mut set, rate, each, updates);
            let config = self.config.with(&set)?;
            let forecast = plan(&config, self.vocab, self.limits, Some(self.speed)).ok()?;
            let pace = Pace::new(&config, self.vocab, &forecast.plan, Some(self.data), self.speed);
            match pace.within(&config, self.time) {
                Some(shorter)
                    if shorter.max_iters.get() < updates
                        && updates > LEAST_UPDATES
                        && !(self.is_set)("max_iters") =>
                {
                    updates = shorter.max_iters.get().max(LEAST_UPDATES);
                }
                _ => return Some((forecast, config, set)),
            }
        }
    }

    fn add(&self, set: &mut SettingValues, key: &'static str, value: impl ToString) {
        if !(self.is_set)(key) {
            set.push((key, value.to_string()));
        }
    }

    /// Adds the learning rate, the schedule and the evaluations of `updates` updates of `each` tokens.
    fn add_training(&self, set: &mut SettingValues, rate: f64, each: f64, updates: u64) {
        let between = each * updates as f64 / EVALUATIONS as f64;
        self.add(set, "learning_rate", format!("{rate:.1e}"));
        self.add(set, "min_lr", "0.0");
        self.add(set, "beta2", if each < 32_768.0 { "0.99" } else { "0.95" });
        self.add(set, "schedule", "wsd");
        self.add(set, "decay_fraction", DECAY);
        self.add(set, "fill_time", true);
        self.add(set, "warmup_iters", (updates / 50).clamp(u64::from(updates > 1), 2000));
        self.add(set, "max_iters", updates);
        self.add(set, "lr_decay_iters", updates);
        self.add(set, "eval_interval", updates.div_ceil(EVALUATIONS));
        self.add(set, "eval_iters", ((EVALUATED * between / each) as u64).clamp(1, 200));
        self.add(set, "log_interval", (updates / 500).clamp(1, 10));
        self.add(set, "bias", self.config.arch == Arch::Gpt2);
        self.add(set, "max_time", humantime::format_duration(self.time));
    }
}

/// Returns the dropout for a model that sees the same text again and again, and is large enough to
/// memorise it.
fn dropout(parameters: u64, unique: u64, passes: f64) -> f64 {
    let each = parameters as f64 / unique.max(1) as f64;
    match passes {
        MANY_PASSES.. if each >= 8.0 => 0.2,
        MANY_PASSES.. if each >= MEMORISES => 0.1,
        _ => 0.0,
    }
}

impl Recipe {
    pub fn tokens_per_parameter(&self) -> f64 {
        self.totals.tokens as f64 / self.totals.parameters.max(1) as f64
    }

    /// Returns the configuration of a few sequences of this run with `vocab` tokens, to measure its speed.
    pub fn measured(&self, vocab: u32) -> Config {
        let block = u64::from(self.config.block_size.get());
        let most = (MEASURED_TOKENS / block).max(1).min(self.forecast.plan.micro_batch as u64);
        Config {
            vocab_size: vocab,
            batch_size: NonZeroU32::new(most as u32).unwrap_or(NonZeroU32::MIN),
            gradient_accumulation_steps: NonZeroU32::MIN,
            ..self.config.clone()
        }
    }

    fn is_better_than(&self, other: &Self) -> bool {
        let is_small = other.worth * other.tokens_per_parameter() > MOST_TOKENS_PER_PARAMETER;
        self.reducible_loss.is_finite() && (is_small || self.reducible_loss < other.reducible_loss)
    }

    /// Returns true if `other` trains the same model on as many tokens.
    pub fn is_same_run(&self, other: &Self) -> bool {
        let [own, other] =
            [self, other].map(|found| [found.totals.parameters, found.totals.tokens]);
        own == other
    }

    /// Returns true if the data limit the run to less than half of its time: a longer one would be the same.
    pub fn has_time_left(&self) -> bool {
        let limit = self.config.max_time;
        let time = self.totals.time.as_ref();
        let takes = time.map_or(f64::INFINITY, |time| time.seconds);
        self.is_limited_by_data && limit.is_some_and(|limit| takes < 0.5 * limit.as_secs_f64())
    }

    /// Describes what to expect: the bits per byte, if they can be foreseen, and the text that the model will write.
    pub fn expectation(&self) -> String {
        match &self.expected {
            Some(bits) => format!("{bits}: {}", self.text()),
            None => self.text().into(),
        }
    }

    /// Describes the text that the model will write.
    pub fn text(&self) -> &'static str {
        if self.config.init_from != InitFrom::Scratch {
            return "what the model writes now, in the style of the data";
        }
        let flop = 6.0 * self.totals.parameters as f64 * self.totals.tokens as f64;
        match flop {
            ..3e13 => "words, many misspelt",
            ..1e16 => "words and phrases",
            ..1e18 => "sentences",
            _ => "paragraphs that hold together",
        }
    }

    /// Explains the choice in a line.
    pub fn why(&self) -> String {
        let passes = self.totals.epochs.unwrap_or(0.0);
        if self.is_limited_by_data && self.sets_tokens {
            return format!("{} passes over the data", two_digits(passes));
        }
        if self.is_limited_by_data {
            let most = most_passes(&self.config.init_from, self.config.dropout > 0.0);
            return format!("limited by the data: after {most} passes a model memorises them");
        }
        let Totals { parameters, tokens, .. } = self.totals;
        let ratio = two_digits(self.tokens_per_parameter());
        let again =
            if passes > 1.0 { format!(", {} passes", two_digits(passes)) } else { String::new() };
        format!(
            "limited by the time: {} tokens for {} parameters, {ratio} each{again}",
            count(tokens),
            count(parameters)
        )
    }
}

/// The bits per byte that a run is expected to reach.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedBits {
    middle: f64,
}

impl ExpectedBits {
    pub fn range(self) -> [f64; 3] {
        [self.middle / SURE, self.middle, self.middle * SURE]
    }

    /// Compares what a run has reached.
    pub fn verdict(self, reached: f64) -> String {
        let [low, _, high] = self.range();
        let how = match reached {
            reached if reached < low => "less than expected",
            reached if reached > high => "more than expected",
            _ => "as expected",
        };
        format!("{reached:.2} bits per byte, {how} ({low:.2} to {high:.2})")
    }
}

impl std::fmt::Display for ExpectedBits {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let [low, middle, high] = self.range();
        write!(f, "{middle:.2} bits per byte ({low:.2} to {high:.2})")
    }
}

#[cfg(test)]
mod tests;
