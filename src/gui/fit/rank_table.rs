//! The ranks of a run: their devices, shares and speeds.

use eframe::egui::{self, Ui};

use crate::protocol::{Progress, RankLine, RankStep, Step};
use crate::text::{bytes, percent};

/// The columns, with the help of each.
const COLUMNS: [(&str, &str); 6] = [
    ("rank", "The process; rank 0 owns the run folder"),
    ("device", "Its device, and the machine of that"),
    ("share", "The sequences of the global batch that it computes"),
    ("tokens/s", "While it computes"),
    ("memory", "What its device holds now"),
    ("network", "The part of an update in which it communicates, or waits for others"),
];

/// Draws a row for each rank, if several processes train the run.
pub(super) fn show(ui: &mut Ui, progress: &Progress, step: &Step) {
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
    let device = match machine {
        Some(machine) => format!("{device} on {machine}"),
        None => device.clone(),
    };
    let per_second = (sequences * tokens) as f64 / (now.compute_ms / 1e3).max(1e-9);
    let network = now.network_ms / (now.compute_ms + now.network_ms).max(1e-9);
    [
        number.to_string(),
        device,
        sequences.to_string(),
        format!("{per_second:.0}"),
        now.vram_bytes.map_or_else(|| "-".into(), bytes),
        percent(network, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
