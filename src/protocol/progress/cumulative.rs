//! Counts that grow with the iterations: x axes for curves.

use serde::{Deserialize, Serialize};

/// The tokens seen, or the seconds spent on updates, after a number of iterations.
///
/// It begins at 0 and grows evenly between two known counts and beyond the last. Without any it
/// counts iterations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Cumulative {
    /// `[iterations, count]`, both strictly ascending and above 0.
    known: Vec<[f64; 2]>,
}

impl Cumulative {
    /// Extends it to `iter` iterations, each of which adds `each`. Ignores an iteration that it
    /// covers, and a count that does not grow.
    pub fn extend(&mut self, iter: f64, each: f64) {
        let last = self.known.last().copied().unwrap_or_default();
        let count = last[1] + each * (iter - last[0]);
        if !(iter > last[0] && count > last[1] && count.is_finite()) {
            return;
        }
        // Even growth needs only its ends, as that of tokens.
        if let Some(before) = self.known.len().checked_sub(1) {
            let former = before.checked_sub(1).map_or([0.0; 2], |at| self.known[at]);
            if (last[1] - former[1]) / (last[0] - former[0]) == each {
                self.known.pop();
            }
        }
        self.known.push([iter, count]);
    }

    /// Drops everything after the first `iter` iterations.
    pub fn rewind(&mut self, iter: f64) {
        let count = self.at(iter);
        let before = self.known.partition_point(|known| known[0] < iter);
        if before < self.known.len() {
            self.known.truncate(before);
            if iter > 0.0 {
                self.known.push([iter, count]);
            }
        }
    }

    /// Returns the count after `iter` iterations, in logarithmic time.
    pub fn at(&self, iter: f64) -> f64 {
        self.convert(iter, 0, 1)
    }

    /// Returns the iterations after which the count is `count`, in logarithmic time.
    pub fn iterations(&self, count: f64) -> f64 {
        self.convert(count, 1, 0)
    }

    /// Converts a value of column `from` to column `to`.
    fn convert(&self, value: f64, from: usize, to: usize) -> f64 {
        let after = self.known.partition_point(|known| known[from] < value);
        let after = after.min(self.known.len().saturating_sub(1));
        let a = after.checked_sub(1).map_or([0.0; 2], |before| self.known[before]);
        let b = self.known.get(after).copied().unwrap_or([1.0; 2]);
        a[to] + (value - a[from]) * (b[to] - a[to]) / (b[from] - a[from])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 10 iterations of 2 s, then 90 of 1 s.
    fn seconds() -> Cumulative {
        let mut seconds = Cumulative::default();
        seconds.extend(10.0, 2.0);
        seconds.extend(100.0, 1.0);
        seconds
    }

    #[test]
    fn counts_grow_evenly_between_known_ones_and_after_them() {
        let seconds = seconds();
        for (iter, count) in [(0.0, 0.0), (5.0, 10.0), (10.0, 20.0), (55.0, 65.0), (120.0, 130.0)] {
            assert_eq!((seconds.at(iter), seconds.iterations(count)), (count, iter));
        }
        assert_eq!(
            (Cumulative::default().at(7.0), Cumulative::default().iterations(7.0)),
            (7., 7.)
        );
    }

    #[test]
    fn even_growth_takes_no_memory() {
        let mut tokens = Cumulative::default();
        (1..1000).for_each(|iter| tokens.extend(f64::from(iter), 491_520.0));
        assert_eq!((tokens.known.len(), tokens.at(500.0)), (1, 500.0 * 491_520.0));
        tokens.extend(1000.0, 1.0);
        assert_eq!(tokens.known.len(), 2);
    }

    #[test]
    fn a_repeated_iteration_is_counted_once() {
        let mut seconds = seconds();
        seconds.rewind(40.0);
        assert_eq!(seconds.at(40.0), 50.0);
        seconds.extend(60.0, 3.0);
        assert_eq!((seconds.at(60.0), seconds.iterations(110.0)), (110.0, 60.0));
        seconds.rewind(500.0);
        assert_eq!(seconds.at(60.0), 110.0);
        seconds.rewind(0.0);
        assert_eq!(seconds, Cumulative::default());
    }

    #[test]
    fn a_count_that_does_not_grow_is_ignored() {
        let mut seconds = seconds();
        for (iter, each) in [(110.0, 0.0), (110.0, f64::NAN), (110.0, -1.0), (50.0, 1.0)] {
            seconds.extend(iter, each);
        }
        seconds.extend(110.0, f64::INFINITY);
        assert_eq!(seconds, self::seconds());
    }
}
