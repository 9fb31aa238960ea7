//! The changes of settings that make a run fit its device.

use eframe::egui::{self, Ui};

use crate::config::Budget;
use crate::gui::form::{SettingsForm, capitalize};
use crate::gui::widgets::action;
use crate::plan::{Fix, GPT2_SIZES};
use crate::text::bytes;

/// Draws a button for each change, and applies the one that is clicked.
pub(in crate::gui) fn show(ui: &mut Ui, form: &mut SettingsForm, fixes: &[Fix]) {
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
            apply(form, &fix.set);
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

pub(super) fn apply(form: &mut SettingsForm, set: &[(&str, String)]) {
    for (key, value) in set {
        form.set(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gui::fit::tests::{device, form, small_device};

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
            assert!(!refusal.fixes.is_empty());
            for fix in refusal.fixes {
                let mut form = tight.clone();
                apply(&mut form, &fix.set);
                assert_eq!(state.refusal(&form), None, "{fix}");
                assert!(!in_words(&fix.set).contains(['=', '_']), "{fix}");
            }
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
        let large = form(&[
            ("n_layer", "36"),
            ("n_head", "20"),
            ("n_embd", "1280"),
            ("vocab_size", "50257"),
        ]);
        let state = &mut small_device(6 << 30);
        let refusal = state.refusal(&large).unwrap();
        let by_device = refusal.reason.contains(" more than the budget of ");
        assert!(by_device || refusal.reason.contains(" of host memory"), "{refusal:?}");
        assert!(!refusal.fixes.is_empty());
        for fix in refusal.fixes {
            let mut form = large.clone();
            apply(&mut form, &fix.set);
            assert_eq!(state.refusal(&form), None, "{fix}");
        }
        // With this setting, only host memory counts.
        let mut form = large.clone();
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
