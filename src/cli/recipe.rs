//! Chooses what to train in a given time, for commands without a preset.

use std::cell::Cell;
use std::path::PathBuf;
use std::time::Duration;

use chrono::Local;
use serde_json::{Value, json};

use super::args::Global;
use super::find_model::{select_device, warn};
use crate::config::{
    Config, ConfigSource, GPT2_VOCABULARY, InitFrom, Layer, Resolved, RunLength, resolve,
};
use crate::data::{Dataset, markov_bits};
use crate::gpu::DeviceInfo;
use crate::model::has_weights;
use crate::ops::OpsMode;
use crate::plan::{
    DataSize, DeviceProfile, DeviceSpeed, ExpectedBits, Recipe, RecipeQuestion, TIMES, Totals,
    Work, plan, recipe,
};
use crate::protocol::Failure;
use crate::runs::{self, ModelSource};
use crate::text::{Table, count, duration, estimate, grouped, two_digits};
use crate::worker::{RankProcess, measure};

/// The factor by which the speed of the device may be wrong.
const UNCERTAINTY: f64 = 1.5;

/// The factor by which a known speed may differ from what a run sees.
const SAME: f64 = 1.2;

/// The most measurements before a choice. Each one measures the former choice.
const MEASUREMENTS: usize = 3;

pub(super) const NOTHING_FITS: &str = "no model fits this device and this data";

/// The time of a run that only its data limit.
pub(super) const NO_LIMIT: Duration = Duration::from_secs(365 * 24 * 3600);

/// Returns true if the rule chooses what to train: the user has set a time, or a model to fine-tune, but no preset, no
/// file and no length, or only the length of a fine-tuning.
pub(super) fn chooses(is_named: bool, resolved: &Resolved, length: Option<RunLength>) -> bool {
    let config = &resolved.config;
    let sets_length = ["max_iters", "lr_decay_iters", "eval_only"];
    let is_length_set = sets_length.iter().any(|key| resolved.is_set(key));
    let is_tuned = matches!(config.init_from, InitFrom::Path(_));
    let is_limited = is_tuned || config.is_timed() && length.is_none();
    !is_named && is_limited && !is_length_set
}

/// Returns the time that a run has which begins now.
pub(super) fn time_of(config: &Config) -> Option<Duration> {
    config.max_time.into_iter().chain(config.time_until_end(Local::now())).min()
}

/// Returns true if the user has chosen nothing about the model or its training.
pub(super) fn asks_for_table(resolved: &Resolved) -> bool {
    const ABOUT_RUN: [&str; 6] =
        ["n_layer", "n_head", "n_embd", "block_size", "batch_size", "max_iters"];
    const ABOUT_MACHINE: [&str; 4] = ["data", "vram_budget", "max_time", "end_at"];
    let is_asked = if resolved.is_set("data") {
        !ABOUT_RUN.iter().any(|key| resolved.is_set(key))
    } else {
        resolved.provenance.keys().all(|key| ABOUT_MACHINE.contains(key) || !resolved.is_set(key))
    };
    is_asked && resolved.config.init_from == InitFrom::Scratch
}

/// Adds the rule's choice, for this many ranks, to the settings of a new run without a preset. Prints
/// the choice. Returns what to expect of it, too.
pub(super) fn with_choice(
    mut source: ConfigSource,
    global: &Global,
    ranks: u32,
) -> Result<(ConfigSource, Option<ExpectedBits>), Failure> {
    let resumes = source.typed("init_from").as_deref() == Some("resume");
    if source.is_named() || resumes || RankProcess::of_this_process().is_some() {
        return Ok((source, None));
    }
    let length = source.length.take();
    let resolved = source.clone().resolve(Vec::new(), None)?;
    let config = &resolved.config;
    if config.data.is_empty() || !chooses(false, &resolved, length) {
        return Ok((ConfigSource { length, ..source }, None));
    }
    if let InitFrom::Path(path) = &config.init_from {
        ModelSource::open(path.as_ref())?;
    }
    let selected = RecipeDevice::selected(&resolved.config, global)?;
    let device = RecipeDevice { ranks, checks: true, ..selected };
    let data = ChosenData::open(&resolved.config)?.with_length(length);
    let time = time_of(&resolved.config).unwrap_or(NO_LIMIT);
    let found = device.recipe(&resolved, &data, time, global.quiet)?;
    if !global.quiet {
        for line in lines(&found) {
            message!("{line}");
        }
    }
    source.flags.extend(found.set.into_iter().map(|(key, value)| (key.to_string(), value)));
    Ok((source, found.expected))
}

/// The properties of the data that the rule needs.
pub(super) struct ChosenData {
    vocab: u32,
    size: DataSize,
    /// How predictable the text is.
    markov_bits: Option<f64>,
    /// The tokens of the run, if they are set.
    tokens: Option<f64>,
}

/// The training tokens of data that nobody has given: a text that is never short, and a book or a few hundred chats for
/// a model that is fine-tuned.
const ASSUMED_TOKENS: u64 = 10_000_000_000;
const ASSUMED_TUNING_TOKENS: u64 = 1_000_000;

impl ChosenData {
    /// Returns the data of a plan, which needs none. Says what it assumes, unless this is `quiet`.
    pub fn for_plan(config: &Config, quiet: bool) -> Result<Self, Failure> {
        if !config.data.is_empty() {
            return Self::open(config);
        }
        let is_new = config.init_from == InitFrom::Scratch;
        let train = if is_new { ASSUMED_TOKENS } else { ASSUMED_TUNING_TOKENS };
        let vocab = if config.vocab_size > 0 { config.vocab_size } else { GPT2_VOCABULARY };
        if !quiet {
            let is_gpt2 = config.vocab_size == 0;
            let whose = if is_gpt2 { " in GPT-2's vocabulary" } else { "" };
            message!("no --data: this plan assumes {} tokens{whose}", count(train));
        }
        let size = DataSize { train, val: train / 100 };
        Ok(Self { vocab, size, markov_bits: None, tokens: None })
    }

    pub fn with_length(self, length: Option<RunLength>) -> Self {
        let tokens = length.map(|length| length.tokens(self.size.train));
        Self { tokens, ..self }
    }

    pub fn open(config: &Config) -> Result<Self, Failure> {
        let data = Dataset::open(&config.data, 1)?;
        let size = DataSize { train: data.train.len(), val: data.val.len() };
        let vocab = config.vocab_size.max(data.vocab_size);
        Ok(Self { vocab, size, markov_bits: markov_bits(&data)?, tokens: None })
    }
}

/// A device to train on: a device of this machine, or one with a published speed.
pub(super) struct RecipeDevice {
    profile: DeviceProfile,
    /// `None` if it need not be in this machine.
    selected: Option<(DeviceInfo, OpsMode)>,
    /// The number of such devices, each for a rank.
    pub ranks: u32,
    /// True to measure a known speed again: other programs may have slowed the device down.
    checks: bool,
    /// True once the measurement was announced.
    is_announced: Cell<bool>,
}

impl RecipeDevice {
    /// A GPU with a published speed.
    pub fn target(profile: DeviceProfile) -> Self {
        Self { profile, selected: None, ranks: 1, checks: false, is_announced: Cell::default() }
    }

    /// Returns the device of the command.
    pub fn selected(config: &Config, global: &Global) -> Result<Self, Failure> {
        let mut info = select_device(global)?.info;
        let mut mode = global.ops()?.with_products(config.cublas);
        let slower = runs::kernel_verdicts::avoid_faulty(&mut info, &mut mode, config.dtype);
        warn(slower.as_slice());
        let mode = mode.for_run(config.dtype, &info)?;
        let profile = runs::device_profile(&info, mode);
        Ok(Self { selected: Some((info, mode)), ..Self::target(profile) })
    }

    /// Returns what to train in `time`. If the speed of the device is uncertain, or is to be checked, measures the
    /// chosen model, and chooses again if its speed is another.
    pub fn recipe(
        &self,
        resolved: &Resolved,
        data: &ChosenData,
        time: Duration,
        quiet: bool,
    ) -> Result<Recipe, Failure> {
        let config = &resolved.config;
        let (limits, _) = self.profile.limits(config.vram_budget, config.dtype);
        let assumed = DeviceSpeed::assumed(limits.kernels);
        let mut speed = self.profile.speed.clone().unwrap_or(assumed);
        let choose = |speed: &DeviceSpeed| {
            // The moment at which a run ends limits its time, or nothing does.
            let is_set = &|key: &str| match key {
                "max_time" if config.end_at.is_some() => true,
                "max_time" | "fill_time" if time == NO_LIMIT => true,
                // A run that fills its time makes more passes than were asked for.
                "fill_time" if data.tokens.is_some() => true,
                key => resolved.is_set(key),
            };
            let ChosenData { vocab, size: data, markov_bits, tokens } = *data;
            let speed = &speed.on_ranks(self.ranks);
            let question = RecipeQuestion {
                config,
                is_set,
                vocab,
                data,
                markov_bits,
                limits: &limits,
                speed,
                time,
                tokens,
            };
            recipe(question).ok_or_else(|| {
                Failure::usage(
                    NOTHING_FITS,
                    "`wgpt plan --preset=demo` shows what a small one needs",
                )
            })
        };
        let mut found = choose(&speed)?;
        let Some((info, mode)) = &self.selected else { return Ok(found) };
        for _ in 0..MEASUREMENTS {
            let work = Work::update(&found.config, data.vocab, &found.forecast.plan);
            let is_certain = speed.uncertainty(work) <= UNCERTAINTY;
            if is_certain && !self.checks {
                break;
            }
            let measured = found.measured(data.vocab);
            if !quiet && !self.is_announced.replace(true) {
                message!("measuring {} ({})...", info.name, info.id);
            }
            let row = measure(&measured, info, *mode)?;
            if is_certain {
                let plan = plan(&measured, data.vocab, &limits, Some(&speed))?.plan;
                let expected = speed.seconds(Work::update(&measured, data.vocab, &plan));
                let tokens = measured.global_batch() as f64 * f64::from(measured.block_size.get());
                let slower = tokens / row.tokens_per_s / expected;
                if (1.0 / SAME..=SAME).contains(&slower) {
                    break;
                }
                speed = speed.slower(slower);
            } else {
                let Some(known) = runs::known_speed(info, *mode) else { break };
                speed = known;
            }
            found = choose(&speed)?;
            if found.measured(data.vocab) == measured {
                break;
            }
        }
        Ok(found)
    }
}

/// Describes a recipe in two lines.
fn lines(found: &Recipe) -> [String; 2] {
    let Config { n_layer, n_embd, block_size, .. } = &found.config;
    let totals = &found.totals;
    let [parameters, tokens] = [totals.parameters, totals.tokens].map(count);
    let updates = grouped(totals.updates as f64, 0);
    [
        format!(
            "chosen: {parameters} parameters ({n_layer} layers of width {n_embd}, context \
             {block_size}), {tokens} tokens in {updates} updates"
        ),
        format!("expect {}; {}", found.expectation(), found.why()),
    ]
}

/// A time for fine-tuning that is longer than the data needs.
const LONGEST: Duration = Duration::from_secs(7 * 86_400);

/// Prints which local models can be fine-tuned, then what to train in some common times.
pub(super) fn show(
    source: &ConfigSource,
    device: &RecipeDevice,
    resolved: &Resolved,
    data: &ChosenData,
    json: bool,
    quiet: bool,
) -> Result<(), Failure> {
    let mut recipes: Vec<(String, Recipe)> = Vec::new();
    for model in local_models(&resolved.config.data) {
        let path = model.display().to_string();
        let mut source = source.clone();
        source.flags.push(("init_from".into(), path.clone()));
        let tuned = source.resolve(Vec::new(), None)?;
        // A model that does not fit is no choice.
        let Ok(found) = device.recipe(&tuned, data, LONGEST, quiet) else { continue };
        let seconds = found.totals.time.as_ref().map_or(0.0, |time| time.seconds);
        recipes.push((format!("{}: fine-tune {path}", estimate(seconds)), found));
    }
    for (name, seconds) in TIMES {
        let time = Duration::from_secs(seconds);
        let found = device.recipe(resolved, data, time, quiet)?;
        // More time would change nothing.
        let is_enough = found.has_time_left();
        if recipes.last().is_some_and(|(_, before)| before.is_same_run(&found)) {
            break;
        }
        recipes.push((name.into(), found));
        if is_enough {
            break;
        }
    }
    show_table(&recipes, json);
    if !json {
        show_notes(&recipes, &resolved.config.data);
        if resolved.config.data.is_empty() {
            show_whole_run(device);
        }
    }
    Ok(())
}

/// Prints what GPT-2 takes as it was published, for comparison.
fn show_whole_run(device: &RecipeDevice) -> Option<()> {
    let config = resolve(vec![Layer::preset("gpt2").ok()?]).ok()?.config;
    let profile = &device.profile;
    let (limits, _) = profile.limits(config.vram_budget, config.dtype);
    let speed = profile.speed.as_ref();
    let plan = plan(&config, GPT2_VOCABULARY, &limits, speed).ok()?.plan;
    let totals = Totals::new(&config, GPT2_VOCABULARY, &plan, None, speed, false);
    let [parameters, tokens] = [totals.parameters, totals.tokens].map(count);
    let takes = estimate(totals.time?.seconds);
    output!(
        "nanoGPT's GPT-2, {parameters} parameters and {tokens} tokens: {takes} (`wgpt plan --preset=gpt2`)"
    );
    Some(())
}

/// Returns the model folders here and in `models` with the tokenizer of the data.
fn local_models(data: &str) -> Vec<PathBuf> {
    let Ok(tokenizer) = Dataset::open(data, 1).map(|data| data.tokenizer) else {
        return Vec::new();
    };
    let folders = [".", "models"].into_iter().filter_map(|folder| std::fs::read_dir(folder).ok());
    let paths = folders.flatten().flatten().map(|entry| entry.path());
    let mut models: Vec<PathBuf> = paths
        .filter(|path| has_weights(path))
        .filter(|path| {
            let is_known = |source: ModelSource| {
                source.tokenizer.is_some() && source.has_text_of(tokenizer.as_ref())
            };
            ModelSource::open(path).is_ok_and(is_known)
        })
        .map(|path| path.strip_prefix(".").map(PathBuf::from).unwrap_or(path))
        .collect();
    models.sort();
    models
}

/// Prints what to train in some common times.
fn show_table(recipes: &[(String, Recipe)], json: bool) {
    if json {
        let rows: Vec<Value> = recipes.iter().map(|(_, found)| as_json(found)).collect();
        return output!("{}", json!({ "recipes": rows }));
    }
    let cells = |(name, found): &(String, Recipe)| {
        let totals = &found.totals;
        vec![
            name.to_string(),
            count(totals.parameters),
            count(totals.tokens),
            two_digits(found.tokens_per_parameter()),
            two_digits(totals.epochs.unwrap_or(0.0)),
            grouped(totals.updates as f64, 0),
            found.text().to_string(),
        ]
    };
    let head = ["time", "model", "tokens", "each", "passes", "updates", "expect"];
    let table = Table::new(head, recipes.iter().map(cells));
    output!("{}", table.plain(&[1, 2, 3, 4, 5]).trim_end());
}

/// Prints notes on the table, and how to train one of its choices.
fn show_notes(recipes: &[(String, Recipe)], data: &str) {
    let Some((name, last)) = recipes.last() else { return };
    if let Some(time) = &last.totals.time {
        output!("speed: {}", time.source);
    }
    if last.is_limited_by_data {
        let seconds = last.totals.time.as_ref().map_or(0.0, |time| time.seconds);
        let takes = duration(Duration::from_secs_f64(seconds));
        output!("{name} or longer: {takes} is enough. After that, a model memorises the text.");
    }
    let data = if data.is_empty() { "DIR" } else { data };
    let time = match TIMES.iter().find(|(known, _)| *known == name) {
        Some((_, seconds)) if last.is_limited_by_data => Duration::from_secs(*seconds),
        _ => Duration::from_secs(8 * 3600),
    };
    let time = humantime::format_duration(time);
    output!("`wgpt train --data={data} --time={time}` trains the best model for that time");
}

fn as_json(found: &Recipe) -> Value {
    let set = found.set.iter().map(|(key, value)| (key.to_string(), value.as_str().into()));
    json!({
        "settings": serde_json::Map::from_iter(set),
        "run": found.totals,
        "tokens_per_parameter": found.tokens_per_parameter(),
        "expect": found.text(),
        "bits_per_byte": found.expected.map(ExpectedBits::range),
        "why": found.why(),
    })
}
