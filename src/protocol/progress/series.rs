//! Curves that are fast to draw, however long they are.

use serde::{Deserialize, Serialize};

use super::Cumulative;

/// The binary logarithm of the smallest block of the pyramid. Smaller blocks save no time over
/// their points, and so the pyramid takes a quarter of the points' memory.
const SMALLEST: u32 = 3;

/// A growing curve: points (x, y) with x strictly ascending, all finite.
///
/// A pyramid of blocks over the points, each twice as long as those below it, holds the positions
/// of the lowest and the highest y. Only complete blocks are kept, so that appending and truncating
/// change nothing before them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    points: Vec<[f64; 2]>,
    /// `[level][n]` is the block that begins at point `n << (SMALLEST + level)`.
    levels: Vec<Vec<Extremes>>,
}

/// The indices of the points of a block with the lowest and the highest y, the first of equal ones.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Extremes {
    least: usize,
    greatest: usize,
}

impl Series {
    /// Appends a point, in amortized constant time. A y that is not finite is left out. A point at
    /// or before the last x first removes all points from there on: an iteration that is repeated
    /// replaces what followed it.
    pub fn append(&mut self, x: f64, y: f64) {
        if x.is_finite() && self.last().is_some_and(|last| x <= last[0]) {
            self.truncate_from(x);
        }
        if !(x.is_finite() && y.is_finite()) {
            return;
        }
        self.points.push([x, y]);
        let len = self.points.len();
        for log in SMALLEST..=len.trailing_zeros() {
            let level = (log - SMALLEST) as usize;
            let first = len - (1 << log);
            let block = match level.checked_sub(1).map(|below| &self.levels[below]) {
                Some(below) => {
                    let half = first >> (log - 1);
                    self.join(below[half], below[half + 1])
                }
                None => (first + 1..len)
                    .fold(Extremes::of(first), |known, at| self.join(known, Extremes::of(at))),
            };
            self.levels.resize_with(self.levels.len().max(level + 1), Vec::new);
            self.levels[level].push(block);
        }
    }

    /// Removes every point at or after `x`.
    pub fn truncate_from(&mut self, x: f64) {
        let len = self.points.partition_point(|point| point[0] < x);
        self.points.truncate(len);
        for (log, blocks) in (SMALLEST..).zip(&mut self.levels) {
            blocks.truncate(len >> log);
        }
        self.levels.retain(|blocks| !blocks.is_empty());
    }

    pub fn len(&self) -> usize {
        self.points.len()
    }

    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    pub fn last(&self) -> Option<[f64; 2]> {
        self.points.last().copied()
    }

    /// Iterates over all points, in the order of x.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = [f64; 2]> + ExactSizeIterator {
        self.points.iter().copied()
    }

    /// Returns the lowest x and y, and the highest x and y, in logarithmic time.
    pub fn bounds(&self) -> Option<[[f64; 2]; 2]> {
        let (first, last) = (self.points.first()?, self.points.last()?);
        let found = self.extremes(0, self.len(), f64::INFINITY).0;
        Some([[first[0], self.y(found.least)], [last[0], self.y(found.greatest)]])
    }

    /// Returns the point with the nearest x, the first of two equally near ones.
    pub fn nearest(&self, x: f64) -> Option<[f64; 2]> {
        let after = self.points.partition_point(|point| point[0] < x);
        let around = &self.points[after.saturating_sub(1)..self.len().min(after + 1)];
        let distance = |point: &[f64; 2]| (point[0] - x).abs();
        around.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    /// Returns the y at `x` of the line through the points, that of the nearest point beyond its
    /// ends, and `None` if the series is empty.
    pub fn interpolate(&self, x: f64) -> Option<f64> {
        let after = self.points.partition_point(|point| point[0] < x);
        let last = self.points.len().checked_sub(1)?;
        let [a, b] = [after.saturating_sub(1), after.min(last)].map(|index| self.points[index]);
        let share = if b[0] > a[0] { ((x - a[0]) / (b[0] - a[0])).clamp(0.0, 1.0) } else { 0.0 };
        Some(a[1] + share * (b[1] - a[1]))
    }

    /// Returns the curve over `axis`, or over the iterations, from x = `from` to `to` for a plot
    /// that is `columns` pixels wide, in the order of x: all points if the curve has at most
    /// `4 * columns`, else at most `4 * columns + 6`, which are the lowest and the highest of
    /// strips that are half a pixel to a pixel wide. One neighbor on either side is added, so that
    /// the line reaches the edge of the plot.
    ///
    /// Takes a search for each strip, in the logarithm of its points, and with an axis four more,
    /// in the logarithm of the run's length.
    pub fn window(
        &self,
        axis: Option<&Cumulative>,
        [from, to]: [f64; 2],
        columns: usize,
    ) -> Vec<[f64; 2]> {
        if from.is_nan() || to.is_nan() || from > to {
            return Vec::new();
        }
        let iteration = |x: f64| axis.map_or(x, |axis| axis.iterations(x));
        let x = |index: usize| {
            axis.map_or(self.points[index][0], |axis| axis.at(self.points[index][0]))
        };
        let begin = self.points.partition_point(|point| point[0] < iteration(from));
        let end = self.points.partition_point(|point| point[0] <= iteration(to));
        let around = begin.saturating_sub(1)..self.len().min(end + 1);
        let columns = columns.max(1);
        if end - begin <= columns.saturating_mul(4) {
            return around.map(|index| [x(index), self.y(index)]).collect();
        }
        // Strips are a power of two wide and counted from x = 0, so that they stay in place while
        // the window moves or grows: else peaks would flicker.
        let inside = x(end - 1) - x(begin);
        let strip = 2f64.powi((inside / (2.0 * columns as f64)).log2().ceil() as i32);
        let mut shown = Vec::with_capacity(4 * columns + 6);
        shown.extend([around.start, begin]);
        let mut at = begin;
        // The number of the strip, at least one more than that of the last: a conversion may round
        // its end down.
        let mut nth = f64::NEG_INFINITY;
        while at < end {
            nth = (x(at) / strip).floor().max(nth + 1.0);
            let (found, next) = self.extremes(at, end, iteration((nth + 1.0) * strip));
            shown.push(found.least.min(found.greatest));
            shown.push(found.least.max(found.greatest));
            at = next;
        }
        shown.extend([end - 1, around.end - 1]);
        shown.dedup();
        shown.into_iter().map(|index| [x(index), self.y(index)]).collect()
    }

    /// Returns the extremes of the points from `at` to before `end` with x < `right`, of at least
    /// the first of them, and the index after them.
    fn extremes(&self, at: usize, end: usize, right: f64) -> (Extremes, usize) {
        let (mut found, mut next) = (Extremes::of(at), at);
        loop {
            let (block, size) = self.block(next, end, right);
            found = self.join(found, block);
            next += size;
            if next >= end || self.points[next][0] >= right {
                return (found, next);
            }
        }
    }

    /// Returns the largest block that begins at `at`, ends before `end` and lies left of `right`,
    /// and its number of points. Without one, returns the point itself.
    fn block(&self, at: usize, end: usize, right: f64) -> (Extremes, usize) {
        let largest = at.trailing_zeros().min((end - at).ilog2());
        let fits = |log: &u32| self.points[at + (1 << log) - 1][0] < right;
        match (SMALLEST..=largest).rev().find(fits) {
            Some(log) => (self.levels[(log - SMALLEST) as usize][at >> log], 1 << log),
            None => (Extremes::of(at), 1),
        }
    }

    /// Joins the extremes of two neighboring blocks.
    fn join(&self, left: Extremes, right: Extremes) -> Extremes {
        let less = self.y(right.least) < self.y(left.least);
        let more = self.y(right.greatest) > self.y(left.greatest);
        Extremes {
            least: if less { right.least } else { left.least },
            greatest: if more { right.greatest } else { left.greatest },
        }
    }

    fn y(&self, index: usize) -> f64 {
        self.points[index][1]
    }
}

#[cfg(test)]
impl FromIterator<[f64; 2]> for Series {
    fn from_iter<T: IntoIterator<Item = [f64; 2]>>(points: T) -> Self {
        let mut series = Self::default();
        points.into_iter().for_each(|[x, y]| series.append(x, y));
        series
    }
}

impl Extremes {
    fn of(index: usize) -> Self {
        Self { least: index, greatest: index }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Knuth's linear congruential generator, for values in [0, 1).
    struct Lcg(u64);

    impl Lcg {
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    fn noise(len: usize) -> Series {
        let mut random = Lcg(len as u64);
        (0..len).map(|x| [x as f64, random.next()]).collect()
    }

    /// Points at uneven distances, with flat stretches.
    fn uneven(len: usize, random: &mut Lcg) -> Series {
        let mut x = -100.0;
        let point = |_| {
            x += if random.next() < 0.02 { 1000.0 * random.next() } else { 0.1 + random.next() };
            [x, (8.0 * random.next()).floor()]
        };
        (0..len).map(point).collect()
    }

    /// Checks a window against every point of the series.
    fn check(series: &Series, from: f64, to: f64, columns: usize) {
        let shown = series.window(None, [from, to], columns);
        let is_inside = |point: &[f64; 2]| point[0] >= from && point[0] <= to;
        let inside: Vec<_> = series.iter().filter(is_inside).collect();
        let before = series.iter().rfind(|point| point[0] < from);
        let after = series.iter().find(|point| point[0] > to);
        let neighbors = || before.iter().chain(&after);
        assert!(neighbors().all(|point| shown.contains(point)), "the neighbors are shown");
        assert!(shown.windows(2).all(|pair| pair[0][0] < pair[1][0]), "in order, none twice");
        let within: Vec<_> = shown.iter().copied().filter(is_inside).collect();
        assert_eq!(shown.len(), within.len() + neighbors().count());
        if inside.len() <= 4 * columns {
            return assert_eq!(within, inside);
        }
        assert!(shown.len() <= 4 * columns + 6, "{} for {columns}", shown.len());
        assert_eq!((within.first(), within.last()), (inside.first(), inside.last()));
        assert!(within.iter().all(|point| inside.contains(point)), "no point is made up");
        // No peak is further from a shown one than a pixel.
        let pixel = (to.min(inside[inside.len() - 1][0]) - from.max(inside[0][0])) / columns as f64;
        for [x, y] in &inside {
            let near = || within.iter().filter(|other| (other[0] - x).abs() <= pixel);
            assert!(near().any(|low| low[1] <= *y) && near().any(|high| high[1] >= *y), "at {x}");
        }
    }

    const SPIKE: [f64; 2] = [345_677.0, 50.0];

    /// A wave of 600,000 points with one spike.
    fn spiked() -> Series {
        let y = |x: f64| if x == SPIKE[0] { SPIKE[1] } else { x.sin() };
        (0..600_000).map(|x| [f64::from(x), y(f64::from(x))]).collect()
    }

    #[test]
    fn one_spike_among_600_000_points_is_in_every_window() {
        let series = spiked();
        let windows = [(0.0, 6e5), (-1e9, 1e9), (345_000.0, 346_000.5), (1e5, 345_677.0)];
        for ((from, to), columns) in windows.into_iter().zip([1, 7, 800, 3840]) {
            let shown = series.window(None, [from, to], columns);
            assert!(shown.len() <= 4 * columns + 6 && shown.contains(&SPIKE), "{from} to {to}");
        }
        assert!(series.window(None, [0.0, 6e5], 2000).len() >= 4000, "no coarser than the pixels");
    }

    #[test]
    fn windows_agree_with_a_search_of_every_point() {
        let mut random = Lcg(7);
        for len in [0, 1, 7, 8, 9, 64, 700, 1023] {
            let series = uneven(len, &mut random);
            for _ in 0..20 {
                let (from, width) = (12_000.0 * random.next() - 500.0, 9000.0 * random.next());
                check(&series, from, from + width, 1 + (40.0 * random.next()) as usize);
            }
            check(&series, f64::NEG_INFINITY, f64::INFINITY, 20);
            for [from, to] in [[5.0, 4.0], [f64::NAN, 4.0]] {
                assert!(series.window(None, [from, to], 20).is_empty(), "{from} to {to}");
            }
            let corners = |[low, high]: [[f64; 2]; 2], [point, _]: [[f64; 2]; 2]| {
                [[low[0], low[1].min(point[1])], [point[0], high[1].max(point[1])]]
            };
            assert_eq!(series.bounds(), series.iter().map(|point| [point; 2]).reduce(corners));
        }
    }

    #[test]
    fn a_truncated_series_equals_one_that_was_never_longer() {
        for len in [0, 1, 7, 8, 9, 16, 100, 511, 512] {
            let mut series = noise(600);
            let short: Series = series.iter().take(len).collect();
            series.truncate_from(len as f64);
            assert_eq!(series, short, "{len}");
        }
        let mut series = noise(100);
        series.append(40.0, 6.0);
        series.append(40.0, 7.0);
        assert_eq!((series.len(), series.last()), (41, Some([40.0, 7.0])));
        series.append(10.0, f64::NAN);
        assert_eq!(
            series.len(),
            10,
            "a repeated iteration drops the old value, even without a new one"
        );
    }

    #[test]
    fn values_that_are_not_finite_are_left_out_and_the_nearest_is_found() {
        let points = [[0.0, 1.0], [1.0, f64::NAN], [f64::NAN, 1.0], [2.0, f64::INFINITY]];
        let mut series: Series = points.into_iter().collect();
        assert_eq!((series.len(), series.nearest(9.0)), (1, Some([0.0, 1.0])));
        series.append(f64::NEG_INFINITY, 1.0);
        series.append(10.0, 3.0);
        for (x, nearest) in [(-7.0, 0.0), (5.0, 0.0), (5.1, 10.0), (10.0, 10.0), (1e9, 10.0)] {
            assert_eq!(series.nearest(x).map(|point| point[0]), Some(nearest), "{x}");
        }
        assert_eq!(series.bounds(), Some([[0.0, 1.0], [10.0, 3.0]]));
        for (x, y) in [(-7.0, 1.0), (0.0, 1.0), (5.0, 2.0), (10.0, 3.0), (1e9, 3.0)] {
            assert_eq!(series.interpolate(x), Some(y), "{x}");
        }
        let empty = Series::default();
        assert_eq!(
            (empty.nearest(1.0), empty.bounds(), empty.interpolate(1.0)),
            (None, None, None)
        );
    }

    /// The first 100,000 iterations take as long as the other 500,000.
    #[test]
    fn over_another_axis_strips_are_as_wide_as_pixels_too() {
        let series = spiked();
        let mut seconds = Cumulative::default();
        seconds.extend(1e5, 5.0);
        seconds.extend(6e5, 1.0);
        let shown = series.window(Some(&seconds), [0.0, 1e6], 500);
        assert!(shown.len() <= 4 * 500 + 6 && shown.is_sorted_by(|a, b| a[0] < b[0]));
        assert!(shown.contains(&[seconds.at(SPIKE[0]), SPIKE[1]]));
        let first = shown.iter().filter(|point| point[0] < 5e5).count();
        assert!((900..=1100).contains(&first), "{first} of {}", shown.len());
        let few = series.window(Some(&seconds), [10.0, 20.0], 500);
        assert_eq!(
            few.iter().map(|point| point[0]).collect::<Vec<_>>(),
            [5.0, 10.0, 15.0, 20.0, 25.0]
        );
    }
}
