//! The panels, and their layout: columns of tabs that can be dragged and resized.

use eframe::egui::{self, Ui};
use egui_tiles::{EditAction, Linear, LinearDir, SimplificationOptions, Tile, TileId, Tiles, Tree};
use serde::{Deserialize, Serialize};

use super::intent::Intent;
use super::state::Shared;
use super::{charts, fit, log, run_list, run_tab, samples, setup};

/// A panel, under its name in stored layouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Pane {
    Setup,
    Fit,
    Loss,
    Rate,
    Speed,
    Memory,
    Run,
    Samples,
    Runs,
    Log,
}

/// Draws a panel. Returns what a click in it requests.
type Draw = fn(&mut Ui, &mut Shared) -> Option<Intent>;

impl Pane {
    fn row(self) -> (&'static str, Draw) {
        match self {
            Self::Setup => ("Next run", setup::show),
            Self::Fit => ("Will it fit?", fit::show),
            Self::Loss => ("Loss", charts::loss),
            Self::Rate => ("Learning rate", charts::rate),
            Self::Speed => ("Speed", charts::speed),
            Self::Memory => ("Memory", charts::memory),
            Self::Run => ("Run", run_tab::show),
            Self::Samples => ("Samples", samples::show),
            Self::Runs => ("Runs", run_list::show),
            Self::Log => ("Log", log::show),
        }
    }

    pub fn title(self) -> &'static str {
        self.row().0
    }
}

/// The layout of the panels, and whether a person has changed it.
#[derive(Default, Serialize, Deserialize)]
pub(super) struct PanelLayout {
    tree: Option<Tree<Pane>>,
    /// True if `tree` is for a wide window.
    is_wide: bool,
    /// True once a panel was moved or resized: the layout then no longer follows the window's width.
    is_edited: bool,
}

/// The width from which a window has room for four columns, in points.
const WIDE: f32 = 1600.0;

impl PanelLayout {
    /// Brings the panel of this title to the front of its tabs.
    pub fn bring_up(&mut self, title: &str) {
        let tree = self.tree.get_or_insert_with(|| tree(self.is_wide));
        tree.make_active(|_, tile| matches!(tile, Tile::Pane(pane) if pane.title() == title));
    }

    pub fn show(&mut self, ui: &mut Ui, shared: &mut Shared) -> Vec<Intent> {
        let is_wide = ui.available_width() >= WIDE;
        if is_wide != self.is_wide && !self.is_edited {
            *self = Self { is_wide, ..Self::default() };
        }
        let tree = self.tree.get_or_insert_with(|| tree(is_wide));
        let mut drawing =
            PaneDrawing { shared, intents: Vec::new(), is_edited: &mut self.is_edited };
        tree.ui(&mut drawing, ui);
        drawing.intents
    }
}

/// Returns the default layout: the next run on the left, charts and samples in the middle, the plan and
/// the list of runs on the right. In a wide window, samples have a column of their own.
fn tree(is_wide: bool) -> Tree<Pane> {
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
    let fit = tabs(&mut tiles, &[Pane::Fit]);
    let runs = tabs(&mut tiles, &[Pane::Runs]);
    let right = split(&mut tiles, LinearDir::Vertical, &[(fit, 0.5), (runs, 0.5)]);
    let columns = if is_wide {
        let loss = tabs(&mut tiles, &[Pane::Loss]);
        let others =
            tabs(&mut tiles, &[Pane::Speed, Pane::Memory, Pane::Rate, Pane::Run, Pane::Log]);
        let charts = split(&mut tiles, LinearDir::Vertical, &[(loss, 0.6), (others, 0.4)]);
        let samples = tabs(&mut tiles, &[Pane::Samples]);
        vec![(setup, 0.18), (charts, 0.38), (samples, 0.23), (right, 0.21)]
    } else {
        let charts = [Pane::Loss, Pane::Rate, Pane::Speed, Pane::Memory, Pane::Run];
        let charts = tabs(&mut tiles, &charts);
        let samples = tabs(&mut tiles, &[Pane::Samples, Pane::Log]);
        let middle = split(&mut tiles, LinearDir::Vertical, &[(charts, 0.62), (samples, 0.38)]);
        vec![(setup, 0.25), (middle, 0.47), (right, 0.28)]
    };
    let root = split(&mut tiles, LinearDir::Horizontal, &columns);
    Tree::new(egui::Id::unique("panels"), root, tiles)
}

struct PaneDrawing<'a> {
    shared: &'a mut Shared,
    intents: Vec<Intent>,
    is_edited: &'a mut bool,
}

impl egui_tiles::Behavior<Pane> for PaneDrawing<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _: TileId, pane: &mut Pane) -> egui_tiles::UiResponse {
        let (title, draw) = pane.row();
        egui::Frame::central_panel(ui.style()).inner_margin(8.0).show(ui, |ui| {
            ui.set_min_size(ui.available_size());
            self.intents.extend(if matches!(pane, Pane::Setup | Pane::Fit | Pane::Run) {
                let scroll = egui::ScrollArea::vertical().id_salt(title).auto_shrink(false);
                scroll.show(ui, |ui| draw(ui, self.shared)).inner
            } else {
                draw(ui, self.shared)
            });
        });
        egui_tiles::UiResponse::None
    }

    fn on_edit(&mut self, action: EditAction) {
        *self.is_edited |= matches!(action, EditAction::TileResized | EditAction::TileDropped);
    }

    fn tab_title_for_pane(&mut self, pane: &Pane) -> egui::WidgetText {
        pane.title().into()
    }

    fn simplification_options(&self) -> SimplificationOptions {
        SimplificationOptions { all_panes_must_have_tabs: true, ..Default::default() }
    }
}
