//! How kernels are launched: within a driver's limits, around its faults, and to suit the GPU's size.

use crate::plan::{Backend, DeviceKind, gpu_named};
use crate::protocol::DeviceInfo;

/// A driver's limits and faults, and the size of the GPU. The amounts of work change no result: they only
/// decide how outputs are grouped into tiles, rows into dispatches, and dispatches into submissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DriverTraits {
    /// The most multiplications and additions of one dispatch.
    pub operations: u64,
    /// The most dispatches of one submission.
    pub dispatches: usize,
    /// True if a value beyond the range of float16 may be stored as the largest finite one, by which no
    /// overflow is noticed. DirectX rounds toward zero, also where a browser uses it.
    pub clamps_float16: bool,
    /// True if a cooperative matrix loads as fast from memory in which its rows lie the other way, because the
    /// driver uses the instruction that transposes it. Mesa's compilers load such elements one by one instead.
    pub loads_transposed: bool,
    /// The parts of the GPU that each run their own workgroups; `None` if their number is unknown.
    pub multiprocessors: Option<usize>,
}

/// The seconds of a submission in which every dispatch is as large as it may be. Drivers reset a device
/// that works on one for more than a few seconds, on Windows two, and speeds are known within a factor of
/// two.
const SECONDS: f64 = 0.5;

/// The same on a GPU that draws a desktop, which waits for it. A picture of 60 in a second takes 17 ms.
const GENTLE_SECONDS: f64 = 0.01;

/// The operations of a dispatch unless the device is very slow or very fast: enough to hide its launch.
const OPERATIONS: u64 = 1 << 35;

/// The operations of a dispatch for each multiprocessor, on which they take 30 to 90 ms in float32. Smaller
/// dispatches would leave most of a large GPU idle.
const OPERATIONS_OF_EACH: u64 = 1 << 33;

/// More dispatches save nothing: a submission takes the host as long as a few launches.
const MAX_DISPATCHES: f64 = 64.0;

impl DriverTraits {
    pub const UNKNOWN: Self = Self {
        operations: OPERATIONS,
        dispatches: 4,
        clamps_float16: false,
        loads_transposed: false,
        multiprocessors: None,
    };

    /// Returns the traits of a device, which sustains `flop_per_s` in large products if that is known.
    pub fn of(device: &DeviceInfo, flop_per_s: Option<f64>) -> Self {
        let clamps_float16 = matches!(device.id.backend, Backend::Dx12 | Backend::WebGpu);
        // Mesa's driver for NVIDIA's GPUs is "NVK".
        let loads_transposed =
            device.id.backend == Backend::Vulkan && device.driver.starts_with("NVIDIA ");
        // 2^40 operations take a small GPU one or two seconds, and an integrated GPU ten.
        let dispatches = match device.kind {
            DeviceKind::Discrete => 16,
            DeviceKind::Integrated => 2,
            DeviceKind::Software | DeviceKind::Cpu => 32,
            // Like a browser's adapters, they may be any GPU.
            DeviceKind::Virtual | DeviceKind::Unknown => 4,
        };
        let reported = device.adapter.as_ref().and_then(|adapter| adapter.multiprocessors);
        let named =
            || gpu_named(&device.name).filter(|gpu| !gpu.is_vague).map(|gpu| gpu.multiprocessors);
        let multiprocessors = reported.map(|count| count as usize).or_else(named);
        let operations = OPERATIONS.max(multiprocessors.unwrap_or(0) as u64 * OPERATIONS_OF_EACH);
        // Larger dispatches, but no more work in a submission, unless it is a single one.
        let dispatches = (dispatches as u64 * OPERATIONS / operations).max(1) as usize;
        let usual =
            Self { operations, dispatches, clamps_float16, loads_transposed, multiprocessors };
        // Nothing resets a software renderer.
        let Some(rate) = flop_per_s.filter(|_| device.kind.is_gpu()) else { return usual };
        usual.within(rate * SECONDS, OPERATIONS)
    }

    /// Returns the same for submissions that take a hundredth of a second, so that a desktop on the same GPU stays
    /// smooth. No dispatch of the work has more operations than `largest`.
    pub fn gentle(self, flop_per_s: Option<f64>, largest: u64) -> Self {
        let usual = (self.operations * self.dispatches as u64) as f64 / SECONDS;
        let all = flop_per_s.unwrap_or(usual) * GENTLE_SECONDS;
        self.within(all, largest.min(OPERATIONS))
    }

    /// Returns the same for submissions of as many operations, in dispatches of as many or more.
    fn within(self, all: f64, each: u64) -> Self {
        let dispatches = (all / each.max(1) as f64).clamp(1.0, MAX_DISPATCHES).floor();
        Self { operations: (all / dispatches) as u64, dispatches: dispatches as usize, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traits(kind: DeviceKind, flop_per_s: Option<f64>) -> DriverTraits {
        DriverTraits::of(&DeviceInfo { kind, ..DeviceInfo::cpu() }, flop_per_s)
    }

    #[test]
    fn a_submission_takes_at_most_half_a_second() {
        for rate in [1e9, 4e10, 1e11, 3.7e11, 1e12, 4.2e12, 2e13, 2e14] {
            let DriverTraits { operations, dispatches, .. } =
                traits(DeviceKind::Discrete, Some(rate));
            let seconds = operations as f64 * dispatches as f64 / rate;
            assert!((0.49..=0.5).contains(&seconds), "{rate}: {operations} x {dispatches}");
            assert!((1..=64).contains(&dispatches), "{rate}: {dispatches}");
        }
        // A third of the peaks of an RTX 4070, a GT 1030 and a UHD 630.
        let of = |rate| traits(DeviceKind::Discrete, Some(rate)).dispatches;
        assert_eq!([9.7e12, 0.37e12, 0.13e12].map(of), [64, 5, 1]);
    }

    #[test]
    fn a_gentle_submission_takes_a_hundredth_of_a_second() {
        for rate in [4e10, 3.7e11, 4.2e12, 2e13, 2e14] {
            for largest in [1 << 20, 1 << 30, 1 << 40] {
                let usual = traits(DeviceKind::Discrete, Some(rate));
                let DriverTraits { operations, dispatches, .. } = usual.gentle(Some(rate), largest);
                let each = operations.min(largest) as f64;
                let seconds = each * dispatches as f64 / rate;
                assert!(seconds <= 0.01, "{rate}, {largest}: {each} x {dispatches}");
                // Many small dispatches go together.
                assert!(seconds > 0.0049 || dispatches == 64, "{rate}, {largest}: {seconds} s");
            }
        }
        let unknown = traits(DeviceKind::Discrete, None).gentle(None, 1 << 40);
        let usual = traits(DeviceKind::Discrete, None);
        let work = |traits: DriverTraits| traits.operations * traits.dispatches as u64;
        assert_eq!(work(unknown), work(usual) / 50);
    }

    #[test]
    fn without_a_speed_the_kind_decides() {
        for kind in [DeviceKind::Discrete, DeviceKind::Integrated, DeviceKind::Unknown] {
            assert_eq!(traits(kind, None).operations, OPERATIONS);
        }
        let dispatches = |kind| traits(kind, None).dispatches;
        assert!(dispatches(DeviceKind::Discrete) > dispatches(DeviceKind::Integrated));
        let named = |name: &str| {
            let device =
                DeviceInfo { kind: DeviceKind::Discrete, name: name.into(), ..DeviceInfo::cpu() };
            let DriverTraits { operations, dispatches, .. } = DriverTraits::of(&device, None);
            (operations, dispatches)
        };
        assert_eq!(named("NVIDIA GeForce RTX 3060"), (28 << 33, 2));
        assert_eq!(named("an unknown GPU"), (OPERATIONS, 16));
        let software = traits(DeviceKind::Software, None);
        assert_eq!(traits(DeviceKind::Software, Some(1e9)), software);
    }

    #[test]
    fn nvidias_own_driver_loads_transposed_matrices() {
        for (backend, driver, loads_transposed) in [
            (Backend::Vulkan, "NVIDIA 595.58", true),
            (Backend::Vulkan, "NVK Mesa 26.1.6", false),
            (Backend::Vulkan, "radv Mesa 26.1.6", false),
            (Backend::Cuda, "NVIDIA 595.58", false),
        ] {
            let id = crate::gpu::DeviceId { backend, index: 0 };
            let device = DeviceInfo { id, driver: driver.into(), ..DeviceInfo::cpu() };
            let traits = DriverTraits::of(&device, Some(1e12));
            assert_eq!(traits.loads_transposed, loads_transposed, "{backend} {driver}");
        }
    }

    #[test]
    fn directx_clamps_float16() {
        for (backend, clamps) in
            [(Backend::Dx12, true), (Backend::WebGpu, true), (Backend::Vulkan, false)]
        {
            let id = crate::gpu::DeviceId { backend, index: 0 };
            let device = DeviceInfo { id, ..DeviceInfo::cpu() };
            assert_eq!(DriverTraits::of(&device, Some(1e12)).clamps_float16, clamps, "{backend}");
        }
    }
}
