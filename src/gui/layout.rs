//! The panels, and their layout: three columns of tabs that can be dragged and resized.

use eframe::egui::{self, Ui};
use egui_tiles::{Container, SimplificationOptions, Tile, TileId, Tiles, Tree};
use serde::{Deserialize, Serialize};

use super::charts::{self, ChartPanel};
use super::fit::FitPanel;
use super::log::LogPanel;
use super::run_list::RunsPanel;
use super::samples::SamplesPanel;
use super::setup::SetupPanel;
use super::{Intent, Panel, Shared};

/// Lists the panels: their names in stored layouts, and how they are made.
macro_rules! panels {
    ($($name:ident: $panel:expr),*) => {
        /// The name of a panel in the layout.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub(super) enum Pane { $($name),* }

        impl Panels {
            pub fn new() -> Self {
                Self(vec![$((Pane::$name, Box::new($panel) as Box<dyn Panel>)),*])
            }
        }
    };
}

panels! {
    Setup: SetupPanel::default(),
    Fit: FitPanel::default(),
    Loss: ChartPanel { title: "Loss", draw: charts::loss },
    Rate: ChartPanel { title: "Learning rate", draw: charts::rate },
    Speed: ChartPanel { title: "Speed", draw: charts::speed },
    Memory: ChartPanel { title: "Memory", draw: charts::memory },
    Samples: SamplesPanel,
    Runs: RunsPanel::default(),
    Log: LogPanel::default()
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

fn share(tiles: &mut Tiles<Pane>, tile: TileId, shares: &[(TileId, f32)]) {
    if let Some(Tile::Container(Container::Linear(linear))) = tiles.get_mut(tile) {
        for &(child, share) in shares {
            linear.shares.set_share(child, share);
        }
    }
}

/// The panels by their names.
pub(super) struct Panels(Vec<(Pane, Box<dyn Panel>)>);

impl Panels {
    /// Returns the name of the panel with this title.
    pub fn titled(&self, title: &str) -> Option<Pane> {
        self.0.iter().find(|(_, panel)| panel.title() == title).map(|(pane, _)| *pane)
    }

    /// Draws all visible panels. Returns their intents.
    pub fn ui(&mut self, ui: &mut Ui, shared: &mut Shared, tree: &mut Tree<Pane>) -> Vec<Intent> {
        let mut drawing = Drawing { panels: self, shared, intents: Vec::new() };
        tree.ui(&mut drawing, ui);
        drawing.intents
    }

    fn get(&mut self, pane: Pane) -> Option<&mut Box<dyn Panel>> {
        self.0.iter_mut().find(|(known, _)| *known == pane).map(|(_, panel)| panel)
    }
}

/// The panels while they are drawn.
struct Drawing<'a> {
    panels: &'a mut Panels,
    shared: &'a mut Shared,
    intents: Vec<Intent>,
}

impl egui_tiles::Behavior<Pane> for Drawing<'_> {
    fn pane_ui(&mut self, ui: &mut Ui, _: TileId, pane: &mut Pane) -> egui_tiles::UiResponse {
        let Self { panels, shared, intents } = self;
        if let Some(panel) = panels.get(*pane) {
            egui::Frame::central_panel(ui.style()).inner_margin(8.0).show(ui, |ui| {
                ui.set_min_size(ui.available_size());
                intents.extend(if panel.scrolls() {
                    let scroll = egui::ScrollArea::vertical().id_salt(panel.title());
                    scroll.auto_shrink(false).show(ui, |ui| panel.ui(ui, shared)).inner
                } else {
                    panel.ui(ui, shared)
                });
            });
        }
        egui_tiles::UiResponse::None
    }

    fn tab_title_for_pane(&mut self, pane: &Pane) -> egui::WidgetText {
        self.panels.get(*pane).map_or("", |panel| panel.title()).into()
    }

    fn simplification_options(&self) -> SimplificationOptions {
        SimplificationOptions { all_panes_must_have_tabs: true, ..Default::default() }
    }
}
