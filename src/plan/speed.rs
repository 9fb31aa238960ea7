//! The speed of a device, and the time that work takes on it.
//!
//! Work is counted in floating-point operations and in ops: launches on a GPU, parallel loops on
//! the CPU. An op takes a fixed time plus the time of its arithmetic, so a curve describes a device:
//! seconds per op over operations per op. Between measurements the curve is a straight line; above the
//! largest one the rate of arithmetic is constant. Transfers and the CPU's part of an update take
//! seconds that do not depend on the device.

use serde::{Deserialize, Serialize};

use super::{Kernels, PublishedGpu, Work};
use crate::config::{Dtype, Precision};

/// A point of the curve, per op: measured, or derived from a peak.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpeedPoint {
    pub flop: f64,
    pub seconds: f64,
    /// The share of the CPUs that other programs used at the time: they may have slowed the device down.
    #[serde(default)]
    pub others: f64,
}

/// The share of the CPUs from which on other programs may have slowed a measurement down.
const BUSY: f64 = 0.1;

impl SpeedPoint {
    /// A point that was measured, or expected, with the device alone.
    pub fn new(flop: f64, seconds: f64) -> Self {
        Self { flop, seconds, others: 0.0 }
    }

    pub fn with_others(self, others: f64) -> Self {
        Self { others, ..self }
    }

    pub fn is_busy(&self) -> bool {
        self.others >= BUSY
    }

    /// Returns true if this point says less of the device than an `older` one of the same work: other programs slowed
    /// it down.
    pub fn is_worse_than(&self, older: &Self) -> bool {
        let slower = self.seconds * older.flop > older.seconds * self.flop;
        slower && self.is_busy() && self.others > older.others
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSpeed {
    /// In the order of rising operations per op; never empty.
    points: Vec<SpeedPoint>,
    /// The published peak that the points are derived from, as text; `None` if they were measured.
    published: Option<String>,
}

/// The share of its published peak that a GPU sustains in training: docs/kernels.md expects 32 to
/// 36%, and 25 to 45% in all.
const SUSTAINED: f64 = 1.0 / 3.0;

/// The same with float16 matrices. An H100 sustains 1.3 times its peak in f32 (docs/benchmarks). On the
/// GeForce GPUs, where matrix units have twice that peak, docs/kernels.md expects 0.6 to 1.0 of it. AMD's
/// have four times the peak without dual issue from RDNA 3 on; docs/time.md says why they count the same.
const SUSTAINED_IN_MATRICES: f64 = 0.75;

/// The same with CUDA's tensor cores, which multiply tf32 at the peak in f32 and bfloat16 at twice that.
/// docs/kernels.md expects 0.30 to 0.46 and 0.60 to 0.95 of the peak in f32.
const SUSTAINED_IN_TF32: f64 = 0.4;
const SUSTAINED_IN_BFLOAT16: f64 = 0.75;

/// The seconds of an op without arithmetic on a GPU: its launch, and waits between dependent kernels.
const LAUNCH_SECONDS: f64 = 10e-6;

/// The host's seconds for a launch, while the GPU computes: measured with an H200.
const HOST_SECONDS: f64 = 50e-6;

/// The uncertainty of a time, as a factor either way.
const SIMILAR: f64 = 1.2;
const MEASURED: f64 = 1.5;
const GUESSED: f64 = 2.0;

/// Measurements are similar up to this ratio of their operations per op.
const SIMILAR_WORK: f64 = 2.0;

impl DeviceSpeed {
    /// Returns the speed that measurements describe; `None` without any.
    pub fn measured(mut points: Vec<SpeedPoint>) -> Option<Self> {
        points.retain(|point| point.flop > 0.0 && point.seconds > 0.0);
        points.sort_by(|a, b| a.flop.total_cmp(&b.flop));
        (!points.is_empty()).then_some(Self { points, published: None })
    }

    /// Returns the expected speed on a GPU that was not measured: of the WGSL kernels, and in tf32 and
    /// bfloat16 of CUDA's. `None` in a precision that the GPU does not support.
    pub fn published(gpu: PublishedGpu, precision: Precision) -> Option<Self> {
        let (sustained, share) = match (precision.dtype(), precision.matrices()) {
            (Dtype::Float16, Some(_)) => (SUSTAINED_IN_MATRICES, "three quarters"),
            (Dtype::Float32 | Dtype::Float16, None) => (SUSTAINED, "a third"),
            (Dtype::Tf32, _) if gpu.has_tf32() => (SUSTAINED_IN_TF32, "two fifths"),
            (Dtype::Bfloat16, _) if gpu.has_tf32() => (SUSTAINED_IN_BFLOAT16, "three quarters"),
            _ => return None,
        };
        let peak = gpu.peak_tflop_per_s;
        let points = line(sustained * peak * 1e12);
        let name = gpu.name;
        let source = format!("not measured: {share} of the {name}'s {peak} TFLOP/s");
        Some(Self { points, published: Some(source) })
    }

    /// Returns the speed for comparing plans if the device's is unknown: that of a GPU in the middle of the
    /// list, or of a CPU with eight cores. It is no estimate to show.
    pub(crate) fn assumed(kernels: Kernels) -> Self {
        let flop_per_s = if kernels == Kernels::Cpu { 1e11 } else { 7e12 };
        Self { points: line(flop_per_s), published: Some("assumed".into()) }
    }

    /// Returns the speed of several such devices, which share the work of every op. It leaves out their
    /// network.
    pub fn on_ranks(&self, ranks: u32) -> Self {
        let on_ranks =
            |point: &SpeedPoint| SpeedPoint { flop: point.flop * f64::from(ranks), ..*point };
        Self { points: self.points.iter().map(on_ranks).collect(), ..self.clone() }
    }

    /// Returns the speed of a device that takes `factor` times as long for everything.
    pub fn slower(&self, factor: f64) -> Self {
        let of = |point: &SpeedPoint| SpeedPoint { seconds: factor * point.seconds, ..*point };
        Self { points: self.points.iter().map(of).collect(), ..self.clone() }
    }

    pub fn source(&self) -> String {
        let others = self.points.iter().filter(|point| point.is_busy()).map(|point| point.others);
        match (&self.published, others.max_by(f64::total_cmp)) {
            (Some(text), _) => text.clone(),
            (None, None) => "measured on this device".into(),
            (None, Some(most)) => format!(
                "measured on this device while other programs used up to {:.0}% of the CPUs",
                100.0 * most
            ),
        }
    }

    /// Returns the rate of arithmetic in large ops; `None` if only ops were measured that were too small to
    /// tell it.
    pub fn flop_per_s(&self) -> Option<f64> {
        let largest = self.points.last().filter(|point| point.seconds > 10.0 * LAUNCH_SECONDS)?;
        Some(largest.flop / largest.seconds)
    }

    pub fn seconds(&self, work: Work) -> f64 {
        let of = |[flop, ops]: [f64; 2]| ops * self.seconds_per_op(flop / ops.max(1.0));
        of([work.flop, work.ops]) + of(work.muon) + work.host_seconds
    }

    fn seconds_per_op(&self, flop: f64) -> f64 {
        let above = self.points.partition_point(|point| point.flop <= flop);
        match (self.points[..above].last(), self.points.get(above)) {
            (Some(low), Some(high)) => {
                let share = (flop - low.flop) / (high.flop - low.flop);
                low.seconds + share * (high.seconds - low.seconds)
            }
            (Some(last), None) => last.seconds * flop / last.flop.max(1.0),
            (None, Some(first)) => {
                let least = LAUNCH_SECONDS.min(first.seconds);
                (first.seconds * of_share(flop / first.flop)).max(least)
            }
            (None, None) => 0.0,
        }
    }

    /// Returns the uncertainty of the time of `work`: the true time is expected between the
    /// estimate divided by this factor and multiplied by it.
    pub fn uncertainty(&self, work: Work) -> f64 {
        match self.nearest(work) {
            Some((..=SIMILAR_WORK, point)) if !point.is_busy() => SIMILAR,
            Some((_, point)) if !point.is_busy() && self.is_known_for(work) => MEASURED,
            _ => GUESSED,
        }
    }

    /// Returns true if work of this kind was measured, whether other programs were busy or not.
    pub fn is_known_for(&self, work: Work) -> bool {
        self.nearest(work).is_some_and(|(ratio, _)| ratio <= SIMILAR_WORK.powi(3))
    }

    /// Returns the measurement that is nearest to `work`, and the ratio of their operations per op.
    fn nearest(&self, work: Work) -> Option<(f64, &SpeedPoint)> {
        let flop = work.flop / work.ops;
        let ratio = |point: &SpeedPoint| (point.flop / flop).max(flop / point.flop);
        let points = self.points.iter().filter(|_| self.published.is_none());
        points.map(|point| (ratio(point), point)).min_by(|a, b| a.0.total_cmp(&b.0))
    }
}

/// Returns the time of an op with `share` of the arithmetic of another one, as a share of its time. A smaller
/// op is slower than at the same rate of arithmetic: Muon's small products on a CPU show by how much.
pub(super) fn of_share(share: f64) -> f64 {
    share.max(share.powf(0.85))
}

/// Returns the points of a GPU with this rate of arithmetic.
fn line(flop_per_s: f64) -> Vec<SpeedPoint> {
    let seconds = |flop: f64| HOST_SECONDS.max(LAUNCH_SECONDS + flop / flop_per_s);
    let point = |flop| SpeedPoint::new(flop, seconds(flop));
    // Up to the second point the GPU waits for the host. At the third the launch does not count.
    [0.0, (HOST_SECONDS - LAUNCH_SECONDS) * flop_per_s, 1e12].map(point).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::work::tests::{VOCAB, close, gpt2, published};
    use crate::plan::{Plan, gpu_named};

    #[test]
    fn ranks_share_the_arithmetic_of_an_op() {
        let speed = DeviceSpeed::published(gpu_named("RTX 3060").unwrap(), Precision::FLOAT32);
        let alone = speed.unwrap();
        let three = alone.on_ranks(3);
        for flop in [1e3, 1e8, 1e12] {
            assert_eq!(three.seconds_per_op(3.0 * flop), alone.seconds_per_op(flop));
        }
    }

    #[test]
    fn a_published_peak_gives_the_expected_step() {
        // docs/kernels.md expects 720 ms on an RTX 3060 (580 to 980) and 350 ms on an RTX 4070.
        let config = gpt2(&[("batch_size", "4"), ("gradient_accumulation_steps", "1")]);
        let work = Work::update(&config, VOCAB, &Plan::new(&config, VOCAB));
        for (name, expected) in [("RTX 3060", 0.72), ("RTX 4070", 0.35)] {
            let (gpu, speed) = (gpu_named(name).unwrap(), published(name));
            let seconds = speed.seconds(work);
            assert!((0.75..1.33).contains(&(seconds / expected)), "{name}: {seconds} s");
            assert_eq!(speed.uncertainty(work), GUESSED);
            let matrices = gpu.abilities().precision(Dtype::Auto).unwrap();
            let half = DeviceSpeed::published(gpu, matrices).unwrap();
            // The launches take as long.
            assert!((2.15..2.25).contains(&(seconds / half.seconds(work))), "{name}");
            let on_cuda = |dtype| DeviceSpeed::published(gpu, gpu.abilities().planned(dtype));
            let rate = |speed: Option<DeviceSpeed>| 4096.0 / speed.unwrap().seconds(work);
            let expected = 4096.0 / expected;
            assert!((1.05..1.3).contains(&(rate(on_cuda(Dtype::Tf32)) / expected)), "{name}");
            assert!((1.9..2.4).contains(&(rate(on_cuda(Dtype::Bfloat16)) / expected)), "{name}");
        }
        for name in ["RTX 2080 Ti", "RX 7900 XTX"] {
            let gpu = gpu_named(name).unwrap();
            let bfloat16 = gpu.abilities().planned(Dtype::Bfloat16);
            assert_eq!(DeviceSpeed::published(gpu, bfloat16), None, "{name}");
        }
    }

    #[test]
    fn a_measurement_is_reproduced_and_scaled() {
        let config = gpt2(&[("n_layer", "2")]);
        let plan = Plan::new(&config, VOCAB);
        let work = Work::update(&config, VOCAB, &plan);
        let speed = DeviceSpeed::measured(vec![work.point(3.0)]).unwrap();
        close(speed.seconds(work), 3.0);
        assert_eq!(speed.uncertainty(work), SIMILAR);
        // Twice the updates at once: larger ops at the same rate.
        let double = Work { flop: 2.0 * work.flop, ..work };
        close(speed.seconds(double), 6.0);
        let busy = DeviceSpeed::measured(vec![work.point(3.0).with_others(0.6)]).unwrap();
        assert_eq!((busy.uncertainty(work), busy.is_known_for(work)), (GUESSED, true));
        assert!(busy.source().ends_with("used up to 60% of the CPUs"), "{}", busy.source());
        // Much smaller ops take longer than their arithmetic and less than the same time.
        let small = Work { flop: work.flop / 100.0, ..work };
        let seconds = speed.seconds(small);
        assert!(seconds > 0.03 && seconds < 0.1, "{seconds}");
        assert_eq!((speed.uncertainty(small), speed.is_known_for(small)), (GUESSED, false));
        assert_eq!(DeviceSpeed::measured(vec![SpeedPoint::new(1e9, 0.0)]), None);
        let muon = Work::update(&gpt2(&[("optimizer", "muon")]), VOCAB, &plan);
        let of_muon = DeviceSpeed::measured(vec![muon.point(3.0)]).unwrap().seconds(muon);
        // Its smallest ops take a launch each.
        assert!((of_muon / 3.0 - 1.0).abs() < 0.01, "{of_muon}");
    }

    #[test]
    fn only_large_ops_tell_the_rate_of_arithmetic() {
        let rate = |flop, seconds| {
            DeviceSpeed::measured(vec![SpeedPoint::new(flop, seconds)]).unwrap().flop_per_s()
        };
        // A small model on a fast GPU, which waits for launches, and a larger one.
        assert_eq!(rate(1e7, 12e-6), None);
        assert_eq!(rate(8e9, 2e-3), Some(4e12));
        let peak = published("RTX 3060").flop_per_s().unwrap();
        close(peak, SUSTAINED * 12.7e12);
    }

    #[test]
    fn between_measurements_the_time_of_an_op_is_a_line() {
        let point = SpeedPoint::new;
        // 10 µs per op and 1 TFLOP/s.
        let points = vec![point(1e9, 1.01e-3), point(1e5, 10.1e-6)];
        let speed = DeviceSpeed::measured(points).unwrap();
        for flop in [1e6, 1e7, 1e8] {
            close(speed.seconds(Work { flop, ops: 1.0, ..Work::default() }), 10e-6 + flop / 1e12);
        }
    }
}
