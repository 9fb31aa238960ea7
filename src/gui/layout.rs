//! The layout of the panels: three columns of tabs that can be dragged and resized.

use eframe::egui;
use egui_tiles::{Container, Tile, TileId, Tiles, Tree};
use serde::{Deserialize, Serialize};

/// A panel.
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

impl Pane {
    fn title(self) -> &'static str {
        match self {
            Pane::Setup => "Setup",
            Pane::Fit => "Will it fit?",
            Pane::Loss => "Loss",
            Pane::Rate => "Learning rate",
            Pane::Speed => "Speed",
            Pane::Memory => "Memory",
            Pane::Samples => "Samples",
            Pane::Runs => "Runs",
            Pane::Log => "Log",
        }
    }

    /// Returns true if the panel fills its tile, false if the layout scrolls it.
    fn fills_tile(self) -> bool {
        !matches!(self, Pane::Setup | Pane::Fit)
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
    let setup = tabs(&mut tiles, &[Pane::Setup]);
    let charts = tabs(&mut tiles, &[Pane::Loss, Pane::Rate, Pane::Speed, Pane::Memory]);
    let samples = tabs(&mut tiles, &[Pane::Samples, Pane::Log]);
    let fit = tabs(&mut tiles, &[Pane::Fit]);
    let runs = tabs(&mut tiles, &[Pane::Runs]);
    let middle = tiles.insert_vertical_tile(vec![charts, samples]);
    let right = tiles.insert_vertical_tile(vec![fit, runs]);
    let root = tiles.insert_horizontal_tile(vec![setup, middle, right]);
    share(&mut tiles, middle, &[(charts, 0.62), (samples, 0.38)]);
    share(&mut tiles, right, &[(fit, 0.5), (runs, 0.5)]);
    share(&mut tiles, root, &[(setup, 0.25), (middle, 0.47), (right, 0.28)]);
    Tree::new(egui::Id::unique("panels"), root, tiles)
}

/// Makes a panel the visible one of the tabs that it belongs to.
pub(super) fn bring_up(tree: &mut Tree<Pane>, pane: Pane) {
    tree.make_active(|_, tile| matches!(tile, Tile::Pane(this) if *this == pane));
}

/// Returns the panel with this title.
pub(super) fn titled(title: &str) -> Option<Pane> {
    const ALL: [Pane; 9] = [
        Pane::Setup,
        Pane::Fit,
        Pane::Loss,
        Pane::Rate,
        Pane::Speed,
        Pane::Memory,
        Pane::Samples,
        Pane::Runs,
        Pane::Log,
    ];
    ALL.into_iter().find(|pane| pane.title() == title)
}

fn share(tiles: &mut Tiles<Pane>, tile: TileId, shares: &[(TileId, f32)]) {
    if let Some(Tile::Container(Container::Linear(linear))) = tiles.get_mut(tile) {
        for &(child, share) in shares {
            linear.shares.set_share(child, share);
        }
    }
}

/// Draws each pane with the function that it wraps.
pub(super) struct Panes<F>(pub F);

impl<F: FnMut(&mut egui::Ui, Pane)> egui_tiles::Behavior<Pane> for Panes<F> {
    fn pane_ui(
        &mut self,
        ui: &mut egui::Ui,
        _tile: TileId,
        pane: &mut Pane,
    ) -> egui_tiles::UiResponse {
        egui::Frame::central_panel(ui.style()).inner_margin(8.0).show(ui, |ui| {
            ui.set_min_size(ui.available_size());
            if pane.fills_tile() {
                (self.0)(ui, *pane);
            } else {
                let scroll = egui::ScrollArea::vertical().id_salt(pane.title());
                scroll.auto_shrink(false).show(ui, |ui| (self.0)(ui, *pane));
            }
        });
        egui_tiles::UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &Pane) -> egui::WidgetText {
        pane.title().into()
    }

    fn simplification_options(&self) -> egui_tiles::SimplificationOptions {
        egui_tiles::SimplificationOptions {
            all_panes_must_have_tabs: true,
            ..egui_tiles::SimplificationOptions::default()
        }
    }
}
