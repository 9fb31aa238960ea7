//! The visible part of the x axis.

use eframe::egui;
use serde::{Deserialize, Serialize};

/// The visible range of the x axis, shared by all charts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct VisibleRange {
    /// Keep the newest iteration visible.
    pub follow: bool,
    /// Show everything; `from` and `to` are ignored.
    #[serde(skip)]
    all: bool,
    #[serde(skip)]
    from: f64,
    #[serde(skip)]
    to: f64,
    /// The last egui pass in which every chart resets to show everything.
    #[serde(skip)]
    fit_until: u64,
}

impl Default for VisibleRange {
    fn default() -> Self {
        Self { follow: true, all: true, from: 0.0, to: 1.0, fit_until: 0 }
    }
}

impl VisibleRange {
    /// Shows everything, in all charts.
    pub fn fit(&mut self, ctx: &egui::Context) {
        // Charts that this pass has already drawn reset in the next one.
        self.fit_until = ctx.cumulative_pass_nr() + 1;
        self.all = true;
        ctx.request_repaint();
    }

    /// Returns true if charts show everything in this pass.
    pub fn resets(&self, ctx: &egui::Context) -> bool {
        ctx.cumulative_pass_nr() <= self.fit_until
    }

    /// Returns the visible range; `None` for everything.
    pub fn range(&self) -> Option<[f64; 2]> {
        (!self.all).then_some([self.from, self.to])
    }

    /// Takes the range of a chart that the mouse may have moved.
    pub fn update(&mut self, ctx: &egui::Context, all: bool, [from, to]: [f64; 2], newest: f64) {
        if !all && to < newest - 1e-9 * (to - from) {
            self.follow = false;
        }
        // A new range needs other points, and the other charts follow it.
        if all != self.all || !all && (from, to) != (self.from, self.to) {
            ctx.request_repaint();
        }
        (self.all, self.from, self.to) = (all, from, to);
    }

    /// Moves the range so that it ends at x = `newest`. Returns true if it had to move.
    pub fn follow_newest(&mut self, newest: f64) -> bool {
        let beyond = newest - self.to;
        if self.all || !self.follow || beyond <= 0.0 {
            return false;
        }
        self.from += beyond;
        self.to += beyond;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_follows_the_newest_iteration_until_follow_is_off() {
        let mut view = VisibleRange { all: false, from: 0.0, to: 10.0, ..VisibleRange::default() };
        assert!(!view.follow_newest(10.0) && view.follow_newest(15.0));
        assert_eq!((view.from, view.to), (5.0, 15.0));
        view.follow = false;
        assert!(!view.follow_newest(20.0));
    }
}
