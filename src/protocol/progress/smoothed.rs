//! Moving averages of curves.

use super::Series;

/// The automatic half-life is between one and two of this many parts of a run: a few pixels of a
/// chart that shows it all.
const HALF_LIVES: f64 = 400.0;

/// The exponential moving average of a series over its iterations: a value counts half as much as
/// one that is a half-life newer. Divided by the sum of the weights, so that it has no bias towards
/// 0 at the start.
///
/// Values that are many half-lives apart hardly mix. So the average of a curve with few points does
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

/// Returns a half-life that suits a curve of this many iterations: a power of two, so that it
/// seldom changes while a run grows.
pub fn automatic_half_life(iterations: f64) -> f64 {
    (2.0 * iterations / HALF_LIVES).log2().floor().exp2()
}

#[cfg(test)]
mod tests {
    use super::*;

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
