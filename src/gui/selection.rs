//! The sample that the panels show.

use eframe::egui;

/// The sample that the panels show: the sample under the pointer, else the chosen sample, else the
/// newest. Samples are counted from 0.
#[derive(Debug, Default)]
pub(super) struct Selection {
    chosen: Option<usize>,
    pointed_at: Option<usize>,
    /// The sample under the pointer in the pass that is being drawn.
    next: Option<usize>,
}

impl Selection {
    /// Returns the shown one of `count` samples.
    pub fn shown(&self, count: usize) -> Option<usize> {
        // The run displayed now may have fewer samples than the one before.
        let known = self.pointed_at.or(self.chosen).filter(|&index| index < count);
        known.or(count.checked_sub(1))
    }

    /// Returns true if each new sample is shown as it arrives.
    pub fn follows_newest(&self) -> bool {
        self.chosen.is_none()
    }

    /// Shows one of `count` samples until another is chosen; the newest follows new ones.
    pub fn choose(&mut self, index: usize, count: usize) {
        self.chosen = Some(index).filter(|&index| index + 1 < count);
    }

    /// Shows each new sample as it arrives.
    pub fn follow_newest(&mut self) {
        self.chosen = None;
    }

    /// Shows a sample while the pointer is at it.
    pub fn point_at(&mut self, index: usize) {
        self.next = Some(index);
    }

    /// Ends a pass over all panels. The sample under the pointer is shown from the next pass on, so
    /// that panels drawn earlier and later agree.
    pub fn end_pass(&mut self, ctx: &egui::Context) {
        let next = self.next.take();
        if self.pointed_at != next {
            self.pointed_at = next;
            ctx.request_repaint();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pointer_comes_before_the_choice_and_that_before_the_newest() {
        let (mut selection, ctx) = (Selection::default(), egui::Context::default());
        assert_eq!((selection.shown(0), selection.shown(5)), (None, Some(4)));
        selection.choose(1, 5);
        selection.point_at(2);
        assert_eq!(selection.shown(5), Some(1), "not before the pass ends");
        selection.end_pass(&ctx);
        assert_eq!(selection.shown(5), Some(2));
        selection.end_pass(&ctx);
        assert_eq!((selection.shown(5), selection.follows_newest()), (Some(1), false));
        assert_eq!(selection.shown(1), Some(0), "another run has fewer");
        selection.choose(4, 5);
        assert!(selection.follows_newest());
    }
}
