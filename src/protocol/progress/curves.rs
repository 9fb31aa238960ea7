//! Curves that grow with the iterations, their moving averages, and counts as x axes.

use serde::{Deserialize, Serialize};

/// The points of a block. Finding the extremes of 600,000 points, as every frame of the window does,
/// takes a fifth of a millisecond with blocks and three without.
const BLOCK: usize = 32;

/// A growing curve: points (x, y) with x strictly ascending, all finite.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    points: Vec<[f64; 2]>,
    /// The indices of the lowest and the highest y of each complete block.
    blocks: Vec<[usize; 2]>,
}

impl Series {
    /// Appends a point. A y that is not finite is left out. A point at or before the last x first
    /// removes all points from there on: an iteration that is repeated replaces what followed it.
    pub fn append(&mut self, x: f64, y: f64) {
        if !x.is_finite() {
            return;
        }
        self.truncate_from(x);
        if y.is_finite() {
            self.points.push([x, y]);
            if self.len().is_multiple_of(BLOCK) {
                let (block, _) = self.extremes(self.len() - BLOCK, self.len(), f64::INFINITY);
                self.blocks.push(block);
            }
        }
    }

    /// Removes every point at or after `x`.
    pub fn truncate_from(&mut self, x: f64) {
        self.points.truncate(self.count_before(x));
        self.blocks.truncate(self.len() / BLOCK);
    }

    fn count_before(&self, x: f64) -> usize {
        self.points.partition_point(|point| point[0] < x)
    }

    /// Returns the indices of the lowest and the highest y, the first of equal ones, among the points in
    /// `at..end` with x < `right`, and the index after these points. The point at `at` always counts.
    fn extremes(&self, at: usize, end: usize, right: f64) -> ([usize; 2], usize) {
        let ([mut least, mut greatest], mut next) = ([at; 2], at);
        while next == at || (next < end && self.points[next][0] < right) {
            let last = next + BLOCK - 1;
            let is_block = next.is_multiple_of(BLOCK) && last < end && self.points[last][0] < right;
            let block = self.blocks.get(next / BLOCK).filter(|_| is_block);
            let [low, high] = block.copied().unwrap_or([next; 2]);
            if self.points[low][1] < self.points[least][1] {
                least = low;
            }
            if self.points[high][1] > self.points[greatest][1] {
                greatest = high;
            }
            next += if block.is_some() { BLOCK } else { 1 };
        }
        ([least, greatest], next)
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

    /// Returns the point with the nearest x, the first of two equally near ones.
    pub fn nearest(&self, x: f64) -> Option<[f64; 2]> {
        let after = self.count_before(x);
        let around = &self.points[after.saturating_sub(1)..self.len().min(after + 1)];
        let distance = |point: &[f64; 2]| (point[0] - x).abs();
        around.iter().copied().min_by(|a, b| distance(a).total_cmp(&distance(b)))
    }

    /// Returns the y at `x` of the line through the points, or the y of the nearest point beyond its
    /// ends, and `None` if the series is empty.
    pub fn interpolate(&self, x: f64) -> Option<f64> {
        let after = self.count_before(x);
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
        let y = |index: usize| self.points[index][1];
        let x = |index: usize| {
            axis.map_or(self.points[index][0], |axis| axis.at(self.points[index][0]))
        };
        let begin = self.count_before(iteration(from));
        let end = self.points.partition_point(|point| point[0] <= iteration(to));
        let around = begin.saturating_sub(1)..self.len().min(end + 1);
        let columns = columns.max(1);
        if end - begin <= columns.saturating_mul(4) {
            return around.map(|index| [x(index), y(index)]).collect();
        }
        // Strips are a power of two wide and counted from x = 0, so that they stay in place while
        // the window moves or grows: else peaks would flicker.
        let inside = x(end - 1) - x(begin);
        let strip = 2f64.powi((inside / (2.0 * columns as f64)).log2().ceil() as i32);
        let mut shown = Vec::with_capacity(4 * columns + 6);
        shown.extend([around.start, begin]);
        let mut at = begin;
        // The strip's number must be above the last strip's number, but a conversion may round
        // its end down.
        let mut nth = f64::NEG_INFINITY;
        while at < end {
            nth = (x(at) / strip).floor().max(nth + 1.0);
            let ([least, greatest], next) = self.extremes(at, end, iteration((nth + 1.0) * strip));
            shown.extend([least.min(greatest), least.max(greatest)]);
            at = next;
        }
        shown.extend([end - 1, around.end - 1]);
        shown.dedup();
        shown.into_iter().map(|index| [x(index), y(index)]).collect()
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
        // Even growth, as of tokens, needs only its ends.
        let former = self.known.iter().nth_back(1).copied().unwrap_or_default();
        if (last[1] - former[1]) / (last[0] - former[0]) == each {
            self.known.pop();
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

    fn convert(&self, value: f64, from: usize, to: usize) -> f64 {
        let after = self.known.partition_point(|known| known[from] < value);
        let after = after.min(self.known.len().saturating_sub(1));
        let a = after.checked_sub(1).map_or([0.0; 2], |before| self.known[before]);
        let b = self.known.get(after).copied().unwrap_or([1.0; 2]);
        a[to] + (value - a[from]) * (b[to] - a[to]) / (b[from] - a[from])
    }
}

/// The exponential moving average of a series over its iterations: a value counts half as much as
/// one that is a half-life newer. Divided by the sum of the weights, so that it has no bias towards
/// 0 at the start.
///
/// Values many half-lives away from each other hardly mix. So the average of a curve with few points does
/// not lag behind them, as an average with a weight per point does.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Smoothed {
    half_life: f64,
    /// The sum of the values, each times its weight.
    sum: f64,
    total: f64,
    series: Series,
    /// The last point of the series that was added.
    seen: Option<[f64; 2]>,
}

impl Smoothed {
    /// Returns the average of `raw` with a half-life in iterations; 0 does not smooth. Takes time
    /// in its new points only, unless it was truncated or the half-life has changed.
    pub fn follow(&mut self, raw: &Series, half_life: f64) -> &Series {
        let last = self.series.len().checked_sub(1);
        let known = last.and_then(|last| raw.iter().nth(last));
        if known != self.seen || half_life != self.half_life {
            *self = Self { half_life, ..Self::default() };
        }
        for [x, y] in raw.iter().skip(self.series.len()) {
            let kept = self.seen.map_or(0.0, |[last, _]| ((last - x) / self.half_life).exp2());
            self.sum = self.sum * kept + y;
            self.total = self.total * kept + 1.0;
            self.series.append(x, self.sum / self.total);
            self.seen = Some([x, y]);
        }
        &self.series
    }
}

/// Returns a half-life that suits a curve of this many iterations: one or two 400ths of it, which are
/// a few pixels, and a power of two, so that it seldom changes while a run grows.
pub fn automatic_half_life(iterations: f64) -> f64 {
    (2.0 * iterations / 400.0).log2().floor().exp2()
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
        }
    }

    #[test]
    fn a_truncated_series_equals_one_that_was_never_longer() {
        let long = uneven(600, &mut Lcg(600));
        for len in [0, 1, 7, 8, 9, 16, 100, 511, 512] {
            let mut series = long.clone();
            let short: Series = series.iter().take(len).collect();
            series.truncate_from(long.points[len][0]);
            assert_eq!(series, short, "{len}");
        }
        let mut series: Series = (0..100).map(|x| [f64::from(x), 1.0]).collect();
        series.append(40.0, 6.0);
        series.append(40.0, 7.0);
        assert_eq!((series.len(), series.last()), (41, Some([40.0, 7.0])));
        series.append(10.0, f64::NAN);
        assert_eq!(series.len(), 10, "a repeated iteration drops its old value in any case");
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
        for (x, y) in [(-7.0, 1.0), (0.0, 1.0), (5.0, 2.0), (10.0, 3.0), (1e9, 3.0)] {
            assert_eq!(series.interpolate(x), Some(y), "{x}");
        }
        let empty = Series::default();
        assert_eq!((empty.nearest(1.0), empty.interpolate(1.0)), (None, None));
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
        let places: Vec<f64> = few.iter().map(|point| point[0]).collect();
        assert_eq!(places, [5.0, 10.0, 15.0, 20.0, 25.0]);
    }

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
        let empty = Cumulative::default();
        assert_eq!((empty.at(7.0), empty.iterations(7.0)), (7.0, 7.0));
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

    fn last(series: &Series, half_life: f64) -> f64 {
        Smoothed::default().follow(series, half_life).last().unwrap()[1]
    }

    #[test]
    fn weights_halve_with_each_half_life() {
        let series: Series = [[0.0, 1.0], [10.0, 4.0], [30.0, 2.0]].into_iter().collect();
        let wanted = (1.0 / 8.0 + 4.0 / 4.0 + 2.0) / (1.0 / 8.0 + 1.0 / 4.0 + 1.0);
        assert!((last(&series, 10.0) - wanted).abs() < 1e-12);
        assert_eq!(last(&series, 0.0), 2.0);
        assert!((last(&series, f64::INFINITY) - 7.0 / 3.0).abs() < 1e-12, "the mean");
    }

    /// The losses of the demo, logged every 50 iterations. With a weight of 0.9 per point, the last
    /// average was 1.32.
    #[test]
    fn the_average_of_few_points_does_not_lag() {
        let losses = [
            3.9125, 2.2702, 2.1755, 2.0086, 1.7252, 1.4420, 1.1509, 1.0448, 0.9401, 0.8501, 0.7713,
            0.7549,
        ];
        let series: Series = (0..).step_by(50).map(f64::from).zip(losses).map(Into::into).collect();
        assert_eq!(series.last(), Some([550.0, 0.7549]));
        for half_life in [automatic_half_life(550.0), 10.0] {
            let off = last(&series, half_life) - 0.7549;
            assert!(off.abs() < 1e-3, "{off} with a half-life of {half_life}");
        }
    }

    #[test]
    fn an_average_follows_new_and_repeated_points() {
        let wave = |x: i32| [f64::from(x), f64::from(x).sin()];
        let (mut smoothed, mut raw) = (Smoothed::default(), (0..100).map(wave).collect::<Series>());
        assert_eq!(smoothed.follow(&raw, 5.0).len(), 100);
        raw.append(100.0, 1.0);
        smoothed.follow(&raw, 5.0);
        raw.append(50.0, 0.25);
        (51..300).for_each(|x| raw.append(f64::from(x), 0.5));
        assert_eq!(smoothed.follow(&raw, 5.0), Smoothed::default().follow(&raw, 5.0));
        assert_eq!(smoothed.follow(&raw, 9.0), Smoothed::default().follow(&raw, 9.0));
        raw.truncate_from(0.0);
        assert!(smoothed.follow(&raw, 9.0).is_empty());
    }

    #[test]
    fn the_automatic_half_life_grows_with_the_run() {
        for (iterations, half_life) in [(0.0, 0.0), (120.0, 0.5), (1500.0, 4.0), (6e5, 2048.0)] {
            assert_eq!(automatic_half_life(iterations), half_life, "{iterations}");
        }
    }
}
