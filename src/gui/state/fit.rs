//! The plan of the next run: does it fit its device, and how long does it take?

use super::form::SettingsForm;
use crate::config::{Budget, Config, Dtype, GPT2_VOCABULARY, Schedule};
use crate::plan::{
    self, DataSize, DeviceProfile, DeviceSpeed, Fix, Forecast, GPT2_SIZES, Limits, PlanError,
    Totals,
};
use crate::protocol::DataInfo;
use crate::text::{bytes, capitalize};

#[derive(Default)]
pub struct FitState {
    /// The selected device; `None` until it was queried.
    pub device: Option<DeviceProfile>,
    cached: Option<Planned>,
}

/// Everything that a plan is made from, except for the device's speed. A new speed drops the cache.
#[derive(PartialEq)]
pub struct PlanInputs {
    pub config: Config,
    pub vocab: u32,
    pub data: Option<DataSize>,
    /// True if `max_time` plans the schedule, as the trainer does then.
    pub plans_schedule: bool,
    pub limits: Limits,
}

pub struct Planned {
    pub inputs: PlanInputs,
    /// The plan or, if none fits, the plan that needs the least, and the totals of its run; `None` if
    /// a tensor is too large for the device.
    pub forecast: Option<(Forecast, Totals)>,
    pub refusal: Option<Refusal>,
}

/// The reason why a run does not fit, and changes that make it fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub reason: String,
    /// Changes to the settings, the mildest first; none if only another model fits.
    pub fixes: Vec<Fix>,
}

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

    /// Returns why the run that the form describes does not fit. `None` if it fits, and while the
    /// form has errors or the vocabulary is unknown: then the run itself finds out.
    pub fn refusal(&mut self, form: &SettingsForm) -> Option<Refusal> {
        form.vocab_size()?;
        self.plan(form)?.refusal.clone()
    }

    /// Returns the plan for the settings of `form`, from the cache if nothing has changed; `None` if
    /// they are not valid.
    pub fn plan(&mut self, form: &SettingsForm) -> Option<&Planned> {
        let config = form.config().ok()?;
        let sets_length = config.schedule == Schedule::Cosine
            && ["max_iters", "lr_decay_iters"].iter().any(|key| form.is_changed(key));
        let size = |data: &DataInfo| DataSize { train: data.train_tokens, val: data.val_tokens };
        let inputs = PlanInputs {
            config: config.clone(),
            vocab: form.vocab_size().unwrap_or(GPT2_VOCABULARY),
            data: form.data.as_ref().and_then(|data| data.as_ref().ok()).map(size),
            plans_schedule: !sets_length,
            limits: self.limits(config.vram_budget, config.dtype),
        };
        let cached = self.cached.take().filter(|cached| cached.inputs == inputs);
        let speed = self.device.as_ref().and_then(|device| device.speed.as_ref());
        Some(self.cached.insert(cached.unwrap_or_else(|| {
            let PlanInputs { config, vocab, data, plans_schedule, limits } = &inputs;
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
            Planned { inputs, forecast, refusal }
        })))
    }
}

/// Describes new values of settings as a change: `6 heads, width 384`.
pub fn in_words(set: &[(&str, String)]) -> String {
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
    use crate::plan::DeviceMemory;

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

    /// A device with 8 GiB and an automatic budget of 6 GiB.
    fn device() -> FitState {
        device_with((6 << 30) + (8 << 30) / 20, None)
    }

    /// A device that holds GPT-2 large only without its optimizer, in a machine with this much memory for
    /// the optimizer.
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
