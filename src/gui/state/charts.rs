//! View settings that all charts share.

use std::path::PathBuf;

use eframe::egui;
use serde::{Deserialize, Serialize};

use crate::protocol::{Cumulative, Curves, Smoothed};

/// Stored from one session to the next.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ChartState {
    pub log: bool,
    /// Half-life of the moving average of the loss, in iterations: 0 does not smooth, `None` follows
    /// the length of the run.
    pub half_life: Option<u32>,
    pub axis: XAxis,
    pub view: VisibleRange,
    /// Moving averages of the shown run and then of each overlay.
    #[serde(skip)]
    pub averages: Vec<Smoothed>,
    /// The run drawn last. The view is reset when another one is shown.
    #[serde(skip)]
    pub run: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum XAxis {
    /// Updates made before.
    #[default]
    Iterations,
    /// Tokens trained on.
    Tokens,
    /// Seconds spent on updates.
    Time,
}

impl XAxis {
    pub const ALL: [Self; 3] = [Self::Iterations, Self::Tokens, Self::Time];

    pub fn name(self) -> &'static str {
        match self {
            Self::Iterations => "iterations",
            Self::Tokens => "tokens",
            Self::Time => "training time",
        }
    }

    /// Returns what this axis counts; `None` for iterations.
    pub fn count(self, curves: &Curves) -> Option<&Cumulative> {
        match self {
            Self::Iterations => None,
            Self::Tokens => Some(&curves.tokens),
            Self::Time => Some(&curves.seconds),
        }
    }

    pub fn place(self, curves: &Curves, iter: f64) -> f64 {
        self.count(curves).map_or(iter, |count| count.at(iter))
    }
}

/// The visible range of the x axis, shared by all charts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VisibleRange {
    pub follow: bool,
    /// The start and end of the visible range; `None` shows everything.
    #[serde(skip)]
    pub range: Option<[f64; 2]>,
    /// The last egui pass in which every chart resets to show everything.
    #[serde(skip)]
    pub fit_until: u64,
}

impl Default for VisibleRange {
    fn default() -> Self {
        Self { follow: true, range: None, fit_until: 0 }
    }
}

impl VisibleRange {
    pub fn fit(&mut self, ctx: &egui::Context) {
        // Charts that this pass has already drawn reset in the next one.
        self.fit_until = ctx.cumulative_pass_nr() + 1;
        self.range = None;
        ctx.request_repaint();
    }

    /// Takes the range of a chart that the mouse may have moved.
    pub fn update(&mut self, ctx: &egui::Context, range: Option<[f64; 2]>, newest: f64) {
        if range.is_some_and(|[from, to]| to < newest - 1e-9 * (to - from)) {
            self.follow = false;
        }
        // A new range needs other points, and the other charts follow it.
        if range != self.range {
            ctx.request_repaint();
        }
        self.range = range;
    }

    /// Moves the end of the range to x = `newest`. Returns true if it had to move.
    pub fn follow_newest(&mut self, newest: f64) -> bool {
        match &mut self.range {
            Some([from, to]) if self.follow && newest > *to => {
                *from += newest - *to;
                *to = newest;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_follows_the_newest_iteration_until_follow_is_off() {
        let mut view = VisibleRange { range: Some([0.0, 10.0]), ..VisibleRange::default() };
        assert!(!view.follow_newest(10.0) && view.follow_newest(15.0));
        assert_eq!(view.range, Some([5.0, 15.0]));
        view.follow = false;
        assert!(!view.follow_newest(20.0));
    }
}
