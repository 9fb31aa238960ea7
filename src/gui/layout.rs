//! The panels, and their layout: three columns of tabs that can be dragged and resized.

use eframe::egui::{self, Ui};
use egui_tiles::{Linear, LinearDir, SimplificationOptions, TileId, Tiles, Tree};
use serde::{Deserialize, Serialize};

use super::{Intent, Shared, charts, fit, log, run_list, samples, setup};

/// A panel, under its name in stored layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pane {
    Setup,
    Fit,
    Loss,
    Rate,
    Speed,
    Memory,
    Samples,
    Runs,
    Log,
}

/// Draws a panel. Returns what a click in it requests.
type Draw = fn(&mut Ui, &mut Shared) -> Option<Intent>;

impl Pane {
    fn row(self) -> (&'static str, Draw) {
        match self {
            Self::Setup => ("Setup", setup::show),
            Self::Fit => ("Will it fit?", fit::show),
            Self::Loss => ("Loss", charts::loss),
            Self::Rate => ("Learning rate", charts::rate),
            Self::Speed => ("Speed", charts::speed),
            Self::Memory => ("Memory", charts::memory),
            Self::Samples => ("Samples", samples::show),
            Self::Runs => ("Runs", run_list::show),
            Self::Log => ("Log", log::show),
        }
    }

    pub fn title(self) -> &'static str {
        self.row().0
    }
}

/// Returns the default layout: settings on the left, charts and samples in the middle, memory and
/// runs on the right.
pub(super) fn tree() -> Tree<Pane> {
    let mut tiles = Tiles::default();
    let tabs = |tiles: &mut Tiles<Pane>, panes: &[Pane]| {
        let panes = panes.iter().map(|&pane| tiles.insert_pane(pane)).collect();
        tiles.insert_tab_tile(panes)
    };
    let split = |tiles: &mut Tiles<Pane>, direction, parts: &[(TileId, f32)]| {
        let mut linear = Linear::new(direction, parts.iter().map(|(child, _)| *child).collect());
        parts.iter().for_each(|&(child, share)| linear.shares.set_share(child, share));
        tiles.insert_container(linear)
    };
    let setup = tabs(&mut tiles, &[Pane::Setup]);
    let charts = tabs(&mut tiles, &[Pane::Loss, Pane::Rate, Pane::Speed, Pane::Memory]);
    let samples = tabs(&mut tiles, &[Pane::Samples, Pane::Log]);
    let fit = tabs(&mut tiles, &[Pane::Fit]);
    let runs = tabs(&mut tiles, &[Pane::Runs]);
    let middle = split(&mut tiles, LinearDir::Vertical, &[(charts, 0.62), (samples, 0.38)]);
    let right = split(&mut tiles, LinearDir::Vertical, &[(fit, 0.5), (runs, 0.5)]);
    let columns = [(setup, 0.25), (middle, 0.47), (right, 0.28)];
    let root = split(&mut tiles, LinearDir::Horizontal, &columns);
    Tree::new(egui::Id::unique("panels"), root, tiles)
}

pub(super) fn show(tree: &mut Tree<Pane>, ui: &mut Ui, shared: &mut Shared) -> Vec<Intent> {
    let mut drawing = Drawing { shared, intents: Vec::new() };
    tree.ui(&mut drawing, ui);
    drawing.intents
}

struct Drawing<'a> {
    shared: &'a mut Shared,
    intents: Vec<Intent>,
}

impl egui_tiles::Behavior<Pane> for Drawing<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _: TileId, pane: &mut Pane) -> egui_tiles::UiResponse {
        let (title, draw) = pane.row();
        egui::Frame::central_panel(ui.style()).inner_margin(8.0).show(ui, |ui| {
            ui.set_min_size(ui.available_size());
            self.intents.extend(if matches!(pane, Pane::Setup | Pane::Fit) {
                let scroll = egui::ScrollArea::vertical().id_salt(title).auto_shrink(false);
                scroll.show(ui, |ui| draw(ui, self.shared)).inner
            } else {
                draw(ui, self.shared)
            });
        });
        egui_tiles::UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &Pane) -> egui::WidgetText {
        pane.title().into()
    }

    fn simplification_options(&self) -> SimplificationOptions {
        SimplificationOptions { all_panes_must_have_tabs: true, ..Default::default() }
    }
}
