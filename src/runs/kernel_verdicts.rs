//! Keeps the results of kernel tests in the user's cache folder, so that kernels are tested only once for each
//! device, driver and version of wgpt.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::device_cache as cache;
use crate::config::Dtype;
use crate::gpu::DeviceInfo;
use crate::ops::{KernelError, KernelShapes, OpsMode};
use crate::version::COMMIT;

const VERDICTS_FILE: &str = "kernels.json";

/// The result of a test of all kernels that a run launches.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum KernelVerdict {
    Right,
    Wrong(KernelError),
    /// The device did not finish in time.
    Hung {
        kernel: String,
    },
    /// The driver ended the process.
    Crashed {
        kernel: String,
    },
    /// The device or its driver reported an error.
    Failed {
        kernel: String,
        reason: String,
    },
}

impl fmt::Display for KernelVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Right => f.write_str("all kernels are right"),
            Self::Wrong(error) => write!(f, "{error}"),
            Self::Hung { kernel } => write!(f, "the driver hangs in {kernel}"),
            Self::Crashed { kernel } => write!(f, "the driver crashes in {kernel}"),
            Self::Failed { kernel, reason } => write!(f, "the driver fails in {kernel}: {reason}"),
        }
    }
}

/// The content of the file: verdicts by device and variants.
type Verdicts = BTreeMap<String, KernelVerdict>;

pub(crate) fn known(
    device: &DeviceInfo,
    mode: OpsMode,
    shapes: KernelShapes,
) -> Option<KernelVerdict> {
    cache::read(VERDICTS_FILE).remove(&key(device, mode, shapes))
}

pub(crate) fn remember(
    device: &DeviceInfo,
    mode: OpsMode,
    shapes: KernelShapes,
    verdict: &KernelVerdict,
) {
    cache::change(VERDICTS_FILE, |verdicts| {
        verdicts.insert(key(device, mode, shapes), verdict.clone());
    });
}

/// Forgets the verdicts about a device, so that the next run tests it again.
pub(crate) fn forget(device: &DeviceInfo) {
    let beginning = cache::beginning(device);
    cache::change(VERDICTS_FILE, |verdicts: &mut Verdicts| {
        verdicts.retain(|key, _| !key.starts_with(&beginning));
    });
}

/// Replaces `mode` by the fastest mode in `dtype` on a device without kernels that are known to be wrong for
/// models of any shape, and removes the abilities that it does not use. Tests no kernel. Returns a warning if
/// the new mode is slower.
pub(crate) fn avoid_faulty(
    device: &mut DeviceInfo,
    mode: &mut OpsMode,
    dtype: Dtype,
) -> Option<String> {
    let verdicts = cache::read(VERDICTS_FILE);
    let mut warning = None;
    while let Ok(run) = mode.for_run(dtype, device)
        && let Some(fault) = fault(&verdicts, device, run)
        && let Some(slower) = mode.slower(dtype, device)
    {
        let name = &device.name;
        warning.get_or_insert_with(|| {
            format!("{name}: {fault}, so a run avoids these kernels. `wgpt doctor --kernels` tests them again")
        });
        *mode = slower;
    }
    warning
}

fn fault<'a>(
    verdicts: &'a Verdicts,
    device: &DeviceInfo,
    mode: OpsMode,
) -> Option<&'a KernelVerdict> {
    let (arithmetic, implementation) = (mode.arithmetic(), mode.implementation);
    let beginning = format!("{}, {arithmetic}, {implementation}, ", cache::beginning(device));
    let of_mode = verdicts.iter().filter(|(key, _)| key.starts_with(&beginning));
    of_mode.map(|(_, verdict)| verdict).find(|verdict| **verdict != KernelVerdict::Right)
}

fn key(device: &DeviceInfo, mode: OpsMode, shapes: KernelShapes) -> String {
    let (arithmetic, implementation) = (mode.arithmetic(), mode.implementation);
    let commit = COMMIT.unwrap_or("unknown");
    cache::key(device, &format!("{arithmetic}, {implementation}, {shapes}, {commit}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Abilities, Config, Matrices};

    #[test]
    fn another_driver_or_variant_has_another_key() {
        let device = DeviceInfo { driver: "595.58".into(), ..DeviceInfo::cpu() };
        let shapes = KernelShapes::from(&Config::default());
        let known = key(&device, OpsMode::AUTO, shapes);
        let newer = DeviceInfo { driver: "600.1".into(), ..device.clone() };
        for other in [
            key(&newer, OpsMode::AUTO, shapes),
            key(&device, OpsMode::REFERENCE, shapes),
            key(&device, OpsMode::AUTO, KernelShapes { heads: 3, ..shapes }),
        ] {
            assert_ne!(other, known);
        }
    }

    #[test]
    fn kernels_that_are_not_right_are_avoided_until_the_driver_changes() {
        let abilities =
            Abilities { float16: true, matrices: Some(Matrices::Sixteen), ..Abilities::default() };
        let gpu =
            |driver: &str| DeviceInfo { driver: driver.into(), abilities, ..DeviceInfo::cpu() };
        let device = gpu("595.58");
        let auto = OpsMode::AUTO.for_run(Dtype::Auto, &device).unwrap();
        let crashed = KernelVerdict::Crashed { kernel: "a training step".into() };
        let shapes = KernelShapes::from(&Config::default());
        let mut verdicts = Verdicts::from([(key(&device, auto, shapes), KernelVerdict::Right)]);
        assert_eq!(fault(&verdicts, &device, auto), None);
        let other = KernelShapes { heads: 3, ..shapes };
        verdicts.insert(key(&device, auto, other), crashed.clone());
        assert_eq!(fault(&verdicts, &device, auto), Some(&crashed));
        assert_eq!(fault(&verdicts, &gpu("600.10"), auto), None);
        let float32 = OpsMode::AUTO.for_run(Dtype::Float32, &device).unwrap();
        assert_eq!(fault(&verdicts, &device, float32), None);
    }
}
