//! The memory plan: does the run fit its device, and how much does it take?

use std::num::NonZeroU64;

use eframe::egui::{self, RichText, Ui};

use super::form::{SettingsForm, capitalize};
use super::platform;
use super::widgets::{action, button, note, weak_note, wrapped};
use super::{AUTO, Intent, Shared, theme};
use crate::config::{Budget, Config, Dtype, GPT2_VOCABULARY, Schedule};
use crate::plan::{
    self, DataSize, DeviceMemory, DeviceProfile, DeviceSpeed, Fix, Forecast, GPT2_SIZES, Limits,
    PlanError, Row, Totals,
};
use crate::protocol::{Command, DataInfo, Progress, RankLine, RankStep, RunPhase, Setting, Step};
use crate::text::{GIB, bytes, known, percent};

pub(super) mod bar;

#[derive(Default)]
pub(super) struct FitState {
    /// The selected device; `None` until it was queried.
    device: Option<DeviceProfile>,
    cached: Option<CachedPlan>,
    /// A budget that was set by hand but not yet sent to the active run.
    unsent: Option<u64>,
}

/// Everything that a plan is made from, except for the device's speed. A new speed drops the cache.
#[derive(PartialEq)]
struct Inputs {
    config: Config,
    vocab: u32,
    data: Option<DataSize>,
    /// True if `max_time` plans the schedule, as the trainer does then.
    plans_schedule: bool,
    limits: Limits,
}

struct CachedPlan {
    inputs: Inputs,
    /// The plan or, if none fits, the plan that needs the least, and the totals of its run; `None` if
    /// a tensor is too large for the device.
    forecast: Option<(Forecast, Totals)>,
    refusal: Option<Refusal>,
}

/// The reason why a run does not fit, and changes that make it fit.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Refusal {
    pub reason: String,
    /// Changes to the settings, the mildest first; none if only another model fits.
    pub fixes: Vec<Fix>,
}

/// The range of the budget slider, in GiB. The upper end holds where the memory of the device is
/// unknown.
const MIN_BUDGET: f64 = 0.5;
const MAX_BUDGET: f64 = 24.0;

impl FitState {
    pub fn set_device(&mut self, device: DeviceProfile) {
        self.device = Some(device);
        // Its speed may be new.
        self.cached = None;
    }

    /// Returns the limits of a run with this budget and dtype. Before the device was queried, they
    /// are the limits of an unknown GPU.
    pub fn limits(&self, vram_budget: Budget, dtype: Dtype) -> Limits {
        let limits = Limits { pools: true, ..Limits::default() };
        let unknown = DeviceProfile { limits, ..DeviceProfile::default() };
        self.device.as_ref().unwrap_or(&unknown).limits(vram_budget, dtype).0
    }

    /// Returns the speed of the device, if it is known.
    pub fn speed(&self) -> Option<&DeviceSpeed> {
        self.device.as_ref()?.speed.as_ref()
    }

    /// Returns the time that the run of the form is expected to take, in seconds.
    pub fn seconds(&mut self, form: &SettingsForm) -> Option<f64> {
        let (_, totals) = self.plan(form)?.forecast.as_ref()?;
        Some(totals.time.as_ref()?.seconds)
    }

    /// Returns why the run that the form describes does not fit. `None` if it fits, and while the
    /// form has errors or the vocabulary is unknown: then the run itself finds out.
    pub fn refusal(&mut self, form: &SettingsForm) -> Option<Refusal> {
        form.vocab_size()?;
        self.plan(form)?.refusal.clone()
    }

    /// Returns the plan for the settings of `form`, from the cache if nothing has changed; `None` if
    /// they are not valid.
    fn plan(&mut self, form: &SettingsForm) -> Option<&CachedPlan> {
        let config = form.config().ok()?;
        let sets_length = config.schedule == Schedule::Cosine
            && ["max_iters", "lr_decay_iters"].iter().any(|key| form.is_changed(key));
        let size = |data: &DataInfo| DataSize { train: data.train_tokens, val: data.val_tokens };
        let inputs = Inputs {
            config: config.clone(),
            vocab: form.vocab_size().unwrap_or(GPT2_VOCABULARY),
            data: form.data.as_ref().and_then(|data| data.as_ref().ok()).map(size),
            plans_schedule: !sets_length,
            limits: self.limits(config.vram_budget, config.dtype),
        };
        let cached = self.cached.take().filter(|cached| cached.inputs == inputs);
        let speed = self.device.as_ref().and_then(|device| device.speed.as_ref());
        Some(self.cached.insert(cached.unwrap_or_else(|| {
            let Inputs { config, vocab, data, plans_schedule, limits } = &inputs;
            let (forecast, refusal) = match plan::plan(config, *vocab, limits, speed) {
                Ok(forecast) => (Some(forecast), None),
                Err(PlanError::TooBig { least, fixes, .. }) => {
                    let reason = capitalize(&format!("{}.", least.shortage()));
                    (Some(*least), Some(Refusal { reason, fixes }))
                }
                Err(error @ PlanError::TensorTooLarge { .. }) => {
                    let reason = capitalize(&format!("{error}. Reduce n_embd or block_size."));
                    (None, Some(Refusal { reason, fixes: Vec::new() }))
                }
            };
            let forecast = forecast.map(|forecast| {
                let plan = &forecast.plan;
                let totals = Totals::new(config, *vocab, plan, *data, speed, *plans_schedule);
                (forecast, totals)
            });
            CachedPlan { inputs, forecast, refusal }
        })))
    }
}

pub(super) fn show(ui: &mut Ui, shared: &mut Shared) -> Option<Intent> {
    let Shared { settings, shown, fit, .. } = shared;
    let (form, progress) = (&mut settings.form, &shown.progress);
    let is_active = matches!(progress.state, RunPhase::Running | RunPhase::Paused);
    let now = progress.last_step.as_ref().filter(|_| is_active);
    // What other programs use now, or have used when the device was queried.
    let queried = match fit.device.as_ref().map(|device| &device.memory) {
        Some(DeviceMemory::Reported { total, free, .. }) => Some(total.saturating_sub(*free)),
        _ => None,
    };
    let others = now.and_then(|step| step.others_bytes).or(queried);
    let Some(CachedPlan { inputs, forecast, refusal }) = fit.plan(form) else {
        ui.weak("Correct the settings to see the plan.");
        return None;
    };
    let limits = inputs.limits;
    // Setup has the changes that make the run fit, next to the start button.
    let verdict = match forecast {
        Some((forecast, _)) => forecast.verdict(),
        None => "Does not fit: a tensor is too large for the device".into(),
    };
    let color = if refusal.is_none() { theme::good(ui) } else { theme::error(ui) };
    wrapped(ui, RichText::new(verdict).strong().color(color));
    if let Some((forecast, totals)) = forecast {
        bar::show(ui, forecast, others, limits.memory, now);
        figures(ui, forecast, totals);
        // Before the data were read, the vocabulary is a guess.
        let advice = inputs.data.map(|_| totals.advice(&inputs.config));
        for text in advice.into_iter().flatten() {
            note(ui, capitalize(&text), theme::warning(ui));
        }
    }
    if let Some(step) = now {
        memory_in_use(ui, step, limits.budget);
        rank_table(ui, progress, step);
    }
    ui.add_space(4.0);
    let new_budget = budget(ui, form, fit, limits).filter(|_| is_active);
    device_memory(ui, fit);
    new_budget.map(|bytes| Intent::Send(Command::Set(Setting::VramBudget(bytes))))
}

fn figures(ui: &mut Ui, forecast: &Forecast, totals: &Totals) {
    const HELP: [(&str, &str); 7] = [
        ("model", "Weights, without padding"),
        ("run", "Updates of the weights, each from one global batch"),
        ("data", "Passes over the training data"),
        ("disk", "The kept checkpoints, the best one, and one that is being written"),
        ("time", "Without samples and checkpoints"),
        ("step", "Sequences on the device at a time, accumulation steps, rows of logits at a time"),
        ("host", "The CPU updates the weights there, so that the device needs less memory"),
    ];
    let mut lines = totals.lines();
    if totals.time.is_none() {
        lines.push(("time", "unknown until a run on this device has measured it".into()));
    }
    lines.push(("step", forecast.plan.to_string()));
    if !forecast.host_rows.is_empty() {
        let row = |row: &Row| format!("{} {}", row.name, bytes(row.bytes));
        lines.push(("host", forecast.host_rows.iter().map(row).collect::<Vec<_>>().join(", ")));
    }
    let mut help = "";
    egui::Grid::new("figures").num_columns(2).show(ui, |ui| {
        for (label, text) in lines {
            help = HELP.iter().find(|(name, _)| *name == label).map_or(help, |(_, help)| help);
            ui.weak(label).on_hover_text(help);
            wrapped(ui, RichText::new(text)).on_hover_text(help);
            ui.end_row();
        }
    });
    if !forecast.why.is_empty() {
        weak_note(ui, &forecast.why);
    }
}

fn memory_in_use(ui: &mut Ui, step: &Step, budget: Option<u64>) {
    let Some(held) = step.vram_bytes else { return };
    let is_over = budget.is_some_and(|budget| held > budget);
    let mut text = format!("The run holds {} now", bytes(held));
    if let Some(peak) = step.vram_peak_bytes {
        text += &format!(", {} at its peak", bytes(peak));
    }
    if let Some(optimizer_ms) = step.optimizer_ms {
        let share = percent(optimizer_ms / step.ms, 0);
        text += &format!("; updates in host memory take {share} of the time");
    }
    let text = RichText::new(text);
    wrapped(ui, if is_over { text.color(theme::warning(ui)) } else { text });
}

/// Draws the budget slider. Returns a new budget when the slider is released, for the active
/// run.
fn budget(
    ui: &mut Ui,
    form: &mut SettingsForm,
    fit: &mut FitState,
    limits: Limits,
) -> Option<NonZeroU64> {
    let max = limits.memory.map_or(MAX_BUDGET, |total| total as f64 / GIB);
    let max = max.max(MIN_BUDGET + 0.1);
    let mut gib = limits.budget.map_or(max, |budget| budget as f64 / GIB);
    let is_dragged = ui.horizontal_wrapped(|ui| {
        let label = ui.label("Budget").on_hover_text("The most memory that the run may use");
        let left = ui.available_size_before_wrap().x;
        ui.spacing_mut().slider_width = (left - 140.0).clamp(60.0, 260.0);
        let slider = egui::Slider::new(&mut gib, MIN_BUDGET..=max).step_by(0.1);
        // `Always` would round an untouched budget to a step, and that counts as an edit.
        let slider = slider.clamping(egui::SliderClamping::Edits);
        let slider = slider.fixed_decimals(1).update_while_editing(false);
        let slider = match limits.budget {
            Some(_) => slider.suffix(" GiB"),
            None => slider.custom_formatter(|_, _| "none".into()),
        };
        let response = ui.add(slider).labelled_by(label.id);
        if response.changed() {
            form.set("vram_budget", budget_text(gib));
            let limits = |config: &Config| fit.limits(config.vram_budget, config.dtype);
            fit.unsent = form.config().ok().and_then(|config| limits(config).budget);
        }
        let is_auto = form.text("vram_budget") == AUTO;
        let disabled = is_auto.then_some("The budget is chosen automatically.");
        if button(ui, AUTO, disabled, AUTO_HELP) {
            form.set("vram_budget", AUTO);
            fit.unsent = fit.limits(Budget::Auto, Dtype::Auto).budget;
        }
        response.dragged()
    });
    let released = if is_dragged.inner { None } else { fit.unsent.take() };
    released.and_then(NonZeroU64::new)
}

const AUTO_HELP: &str = if platform::IS_PAGE {
    "Use the default budget for browsers"
} else {
    "Use the free memory of the device, less a reserve for other programs"
};

/// Formats a budget as it would be typed: `6.5GiB`.
fn budget_text(gib: f64) -> String {
    let text = format!("{gib:.1}");
    format!("{}GiB", text.strip_suffix(".0").unwrap_or(&text))
}

fn device_memory(ui: &mut Ui, fit: &FitState) {
    let text = match fit.device.as_ref().map(|device| &device.memory) {
        None => "Querying the device...".into(),
        Some(DeviceMemory::Reported { total, free, source, holders, .. }) => {
            let [total, free] = [*total, *free].map(bytes);
            let held = match &holders[..] {
                [] => String::new(),
                holders => format!(" Other programs hold: {}.", plan::listed(holders)),
            };
            format!("The device has {total}, {free} of it free ({source}).{held}")
        }
        Some(DeviceMemory::Assumed(budget)) => format!(
            "Browsers do not report how much memory the device has. A run uses at most {} unless you \
             set a larger budget.",
            bytes(*budget)
        ),
        Some(DeviceMemory::Unknown | DeviceMemory::Target(_)) => {
            "The device does not report its memory. Set a budget by hand.".into()
        }
    };
    weak_note(ui, text);
}

const COLUMNS: [(&str, &str); 6] = [
    ("rank", "The process; rank 0 owns the run folder"),
    ("device", "Its device and its machine"),
    ("share", "The sequences of the global batch that it computes"),
    ("tokens/s", "While it computes"),
    ("memory", "The memory that its device holds now"),
    ("network", "The part of an update in which it communicates, or waits for others"),
];

fn rank_table(ui: &mut Ui, progress: &Progress, step: &Step) {
    if progress.ranks.is_empty() {
        return;
    }
    ui.add_space(4.0);
    egui::Grid::new("ranks").num_columns(COLUMNS.len()).striped(true).show(ui, |ui| {
        for (label, help) in COLUMNS {
            ui.weak(label).on_hover_text(help);
        }
        ui.end_row();
        let all: u64 = progress.ranks.iter().map(|rank| rank.sequences).sum();
        for (number, (line, now)) in progress.ranks.iter().zip(&step.ranks).enumerate() {
            for text in cells(number, line, now, step.tokens / all.max(1)) {
                ui.label(text);
            }
            ui.end_row();
        }
    });
}

/// Returns the texts of a row. A sequence has `tokens` tokens.
fn cells(number: usize, line: &RankLine, now: &RankStep, tokens: u64) -> [String; 6] {
    let RankLine { device, machine, sequences } = line;
    let place = machine.as_ref().map(|name| format!(" on {name}")).unwrap_or_default();
    let per_second = (sequences * tokens) as f64 / (now.compute_ms / 1e3).max(1e-9);
    let network = now.network_ms / (now.compute_ms + now.network_ms).max(1e-9);
    [
        number.to_string(),
        format!("{device}{place}"),
        sequences.to_string(),
        format!("{per_second:.0}"),
        known(now.vram_bytes, bytes),
        percent(network, 0),
    ]
}

/// Draws a button for each change, and applies the one that is clicked.
pub(super) fn fixes(ui: &mut Ui, form: &mut SettingsForm, fixes: &[Fix]) {
    if fixes.is_empty() {
        return;
    }
    ui.weak("Any of these changes makes it fit:");
    for fix in fixes {
        let words = in_words(&fix.set);
        let text = if fix.set.iter().any(|(key, _)| *key == "vram_budget") {
            words
        } else {
            format!("{words}  ({})", bytes(fix.predicted_bytes))
        };
        let button = egui::Button::new(text).wrap();
        if action(ui, button, None, "Apply this change to the settings") {
            fix.set.iter().for_each(|(key, value)| form.set(key, value));
        }
    }
}

/// Describes new values of settings as a change: `6 heads, width 384`.
fn in_words(set: &[(&str, String)]) -> String {
    let value = |key: &str| set.iter().find(|(name, _)| *name == key)?.1.parse().ok();
    let size = ["n_layer", "n_head", "n_embd"].map(value);
    if let Some((_, name)) = GPT2_SIZES.iter().find(|(known, _)| known.map(Some) == size) {
        return format!("The shape of {name}");
    }
    let words = set.iter().map(|(key, value)| match (*key, value.as_str()) {
        ("grad_checkpoint", "auto" | "true") => "use activation checkpointing".to_string(),
        ("offload_optimizer", "auto" | "true") => "keep the optimizer in host memory".into(),
        ("offload_optimizer", "false") => "keep the optimizer on the device".into(),
        ("block_size", size) => format!("block size {size}"),
        ("n_layer", "1") => "1 layer".into(),
        ("n_layer", layers) => format!("{layers} layers"),
        ("n_head", "1") => "1 head".into(),
        ("n_head", heads) => format!("{heads} heads"),
        ("n_embd", width) => format!("width {width}"),
        ("vram_budget", budget) => match Budget::try_from(budget.to_string()) {
            Ok(Budget::Bytes(budget)) => format!("a budget of {}", bytes(budget)),
            _ => format!("a budget of {budget}"),
        },
        (key, value) => format!("{} {value}", key.replace('_', " ")),
    });
    capitalize(&words.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Precision;

    /// GPT-2 large.
    const LARGE: [(&str, &str); 4] =
        [("n_layer", "36"), ("n_head", "20"), ("n_embd", "1280"), ("vocab_size", "50257")];

    fn form(settings: &[(&str, &str)]) -> SettingsForm {
        let mut form = SettingsForm::of_preset("gpt2");
        settings.iter().for_each(|(key, text)| form.set(key, *text));
        form
    }

    /// A device with 8 GiB.
    fn device_with(free: u64, host_budget: Option<u64>) -> FitState {
        let (source, holders) = ("a test".into(), Vec::new());
        let memory = DeviceMemory::Reported { total: 8 << 30, free, context: 0, source, holders };
        let limits = Limits { pools: true, host_budget, ..Limits::default() };
        let device = DeviceProfile { memory, limits, ..DeviceProfile::default() };
        FitState { device: Some(device), ..FitState::default() }
    }

    /// A device with 8 GiB, of which the budget `auto` is 6 GiB.
    fn device() -> FitState {
        device_with((6 << 30) + (8 << 30) / 20, None)
    }

    /// A device whose memory holds GPT-2 large only without its optimizer, in a machine with this
    /// much memory for that.
    fn small_device(host_budget: u64) -> FitState {
        device_with(8 << 30, Some(host_budget))
    }

    /// Applies each change of a refusal, after which the run has to fit.
    fn fixes_help(state: &mut FitState, refused: &SettingsForm) {
        let refusal = state.refusal(refused).unwrap();
        assert!(!refusal.fixes.is_empty());
        for fix in refusal.fixes {
            let mut form = refused.clone();
            fix.set.iter().for_each(|(key, value)| form.set(key, value));
            assert_eq!(state.refusal(&form), None, "{fix}");
            assert!(!in_words(&fix.set).contains(['=', '_']), "{fix}");
        }
    }

    #[test]
    fn every_form_of_the_budget_is_resolved_for_the_device() {
        for (text, budget) in [
            ("auto", Some(6 << 30)),
            ("50%", Some(4 << 30)),
            ("1.5GiB", Some(3 << 29)),
            ("none", None),
        ] {
            let form = form(&[("vram_budget", text)]);
            let setting = form.config().unwrap().vram_budget;
            assert_eq!(device().limits(setting, Dtype::Auto).budget, budget, "{text}");
        }
        assert_eq!([6.5, 8.0].map(budget_text), ["6.5GiB", "8GiB"]);
    }

    #[test]
    fn a_run_that_the_machine_has_memory_for_is_offloaded() {
        let mut state = small_device(32 << 30);
        let (forecast, _) = state.plan(&form(&LARGE)).unwrap().forecast.as_ref().unwrap();
        assert!(forecast.plan.offload_optimizer, "{forecast}");
        assert!(forecast.verdict().starts_with("Fits: "), "{}", forecast.verdict());
        assert!(forecast.host_bytes > 8 << 30 && forecast.host_bytes < 12 << 30, "{forecast}");
    }

    #[test]
    fn max_time_shortens_the_shown_schedule_unless_its_length_is_set() {
        let gpu = plan::gpu_named("RTX 3060").unwrap();
        let speed = plan::DeviceSpeed::published(gpu, Precision::FLOAT32);
        let mut state = device();
        state.set_device(DeviceProfile { speed, ..state.device.clone().unwrap() });
        let mut updates = |settings: &[(&str, &str)]| {
            state.plan(&form(settings)).unwrap().forecast.as_ref().unwrap().1.updates
        };
        assert_eq!(updates(&[]), 600_000);
        assert!(updates(&[("max_time", "8h")]) < 1000);
        assert_eq!(updates(&[("max_time", "8h"), ("max_iters", "500000")]), 500_000);
    }

    #[test]
    fn a_row_tells_speed_memory_and_network() {
        let line = RankLine { device: "gpu".into(), machine: Some("box".into()), sequences: 120 };
        let now = RankStep { compute_ms: 1500.0, network_ms: 500.0, vram_bytes: Some(1 << 30) };
        let wanted = ["2", "gpu on box", "120", "81920", "1.00 GiB", "25%"];
        assert_eq!(cells(2, &line, &now, 1024), wanted);
        let cpu = RankLine { machine: None, ..line };
        let now = RankStep { vram_bytes: None, ..now };
        assert_eq!(cells(0, &cpu, &now, 1024)[1..5], ["gpu", "120", "81920", "-"]);
    }

    #[test]
    fn every_suggested_change_makes_the_run_fit() {
        let state = &mut device();
        for settings in [
            &[("vram_budget", "1GiB"), ("vocab_size", "50257")][..],
            &[("n_layer", "48"), ("n_embd", "1536"), ("vocab_size", "50257")],
        ] {
            let tight = form(settings);
            let refusal = state.refusal(&tight).unwrap();
            assert!(refusal.reason.contains(" more than the budget of "), "{refusal:?}");
            fixes_help(state, &tight);
        }
    }

    #[test]
    fn a_run_is_refused_only_once_its_vocabulary_is_known() {
        let state = &mut device();
        assert_eq!(state.refusal(&form(&[("vram_budget", "1GiB")])), None);
        let known = [("vram_budget", "1GiB"), ("vocab_size", "50257")];
        assert!(state.refusal(&form(&known)).is_some());
        assert_eq!(state.refusal(&form(&[("vocab_size", "50257")])), None);
    }

    #[test]
    fn a_machine_with_too_little_memory_is_named_and_fixes_help() {
        let mut form = form(&LARGE);
        let state = &mut small_device(6 << 30);
        let refusal = state.refusal(&form).unwrap();
        let by_device = refusal.reason.contains(" more than the budget of ");
        assert!(by_device || refusal.reason.contains(" of host memory"), "{refusal:?}");
        fixes_help(state, &form);
        // With this setting, only host memory counts.
        form.set("offload_optimizer", "true");
        let reason = state.refusal(&form).unwrap().reason;
        assert!(reason.contains("GiB of host memory, but "), "{reason}");
        assert_eq!(small_device(32 << 30).refusal(&form), None);
    }

    #[test]
    fn changes_are_in_words() {
        let medium = [("n_layer", "24"), ("n_head", "16"), ("n_embd", "1024")];
        for (set, words) in [
            (&[("grad_checkpoint", "auto")][..], "Use activation checkpointing"),
            (&[("offload_optimizer", "auto")], "Keep the optimizer in host memory"),
            (&[("block_size", "512")], "Block size 512"),
            (&[("n_layer", "1")], "1 layer"),
            (&[("n_head", "6"), ("n_embd", "384")], "6 heads, width 384"),
            (&medium, "The shape of GPT-2 medium, 350M"),
            (&[("vram_budget", "13108MiB")], "A budget of 12.80 GiB"),
            (&[("vram_budget", "13GiB")], "A budget of 13.00 GiB"),
            (&[("loss_chunk", "64")], "Loss chunk 64"),
        ] {
            let set: Vec<_> = set.iter().map(|&(key, value)| (key, value.to_string())).collect();
            assert_eq!(in_words(&set), words);
        }
    }
}
