//! Selecting the device that a run uses, and opening it.

use burn::tensor::Device;

#[cfg(feature = "wgpu")]
use super::webgpu;
use super::{Backend, DeviceError, DeviceInfo, DeviceKind, Watchdog};
#[cfg(not(target_arch = "wasm32"))]
use super::{DeviceChoice, DeviceId, GRAPHICS, cuda_devices, graphics_devices, why_no_cuda};
use crate::config::Precision;
#[cfg(not(target_arch = "wasm32"))]
use crate::config::{Abilities, Dtype};

/// A device that is open and computes.
#[derive(Clone, Debug)]
pub struct OpenDevice {
    /// Its description.
    pub info: DeviceInfo,
    /// The reason why it was selected, for the user.
    pub reason: String,
    /// burn's handle.
    pub device: Device,
    /// Detects its failure.
    pub watchdog: Watchdog,
}

/// A device that was selected and is not open: none of its memory is taken yet.
#[derive(Clone, Debug)]
pub struct SelectedDevice {
    /// Its description.
    pub info: DeviceInfo,
    /// The reason why it was selected, for the user.
    pub reason: String,
    /// True if wgpt chose it, not the user.
    auto: bool,
}

impl SelectedDevice {
    /// Checks, on a device that is open only for this, that it multiplies the cooperative matrices
    /// that it lists. If it does not, it has none from here on; returns a warning then.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn confirm_matrices(&mut self) -> Option<String> {
        #[cfg(feature = "wgpu")]
        if let Err(reason) = webgpu::confirm_matrices(&self.info) {
            let DeviceInfo { id, name, abilities, .. } = &mut self.info;
            *abilities = Abilities { matrices: None, emulated: false, ..*abilities };
            return Some(format!(
                "{name} ({id}) lists cooperative matrices but does not multiply them: {reason}; \
                 computing without them"
            ));
        }
        None
    }

    /// Returns a warning if this is an NVIDIA GPU whose tensor cores do not multiply in `dtype`, or
    /// that has none: a product then takes several times as long.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn without_tensor_cores(&self, dtype: Dtype) -> Option<String> {
        #[cfg(feature = "cuda")]
        return super::cuda::without_tensor_cores(&self.info, dtype);
        #[cfg(not(feature = "cuda"))]
        {
            let _ = dtype;
            None
        }
    }

    /// Opens the device for a run in this precision.
    ///
    /// # Errors
    /// If its driver refuses.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn open(&self, precision: Precision) -> Result<OpenDevice, DeviceError> {
        if self.info.kind == DeviceKind::Cpu {
            compute_on_this_thread();
        }
        pollster::block_on(self.open_async(precision))
    }

    /// Opens the device for runs in this precision, without blocking this thread.
    ///
    /// # Errors
    /// If its driver refuses.
    pub async fn open_async(&self, precision: Precision) -> Result<OpenDevice, DeviceError> {
        open_device(self.info.clone(), self.reason.clone(), precision).await
    }

    /// Returns the device to use when this one could not be opened because of `error`: the CPU, if
    /// the user did not name this device.
    ///
    /// # Errors
    /// Returns `error` if the user did, or if this is the CPU.
    pub fn fallback(&self, error: DeviceError) -> Result<Self, DeviceError> {
        if !self.auto || self.info.kind == DeviceKind::Cpu {
            return Err(error);
        }
        let reason = format!("{error}; --device={} tries again", self.info.id);
        Ok(Self { info: DeviceInfo::cpu(), reason, auto: false })
    }
}

/// Makes this thread one of those that compute on the CPU. As an outsider it would hand each loop to
/// another thread and wait for it: two context switches for each of a step's hundreds of loops.
#[cfg(not(target_arch = "wasm32"))]
fn compute_on_this_thread() {
    // Alone it would make other threads wait until it computes.
    if std::thread::available_parallelism().is_ok_and(|threads| threads.get() > 1) {
        // An error means that the threads exist already; they compute the same.
        let _ = rayon::ThreadPoolBuilder::new().use_current_thread().build_global();
    }
}

/// Returns the device that the browser offers, if it offers one.
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub async fn select_in_browser() -> Option<SelectedDevice> {
    let info = webgpu::devices(&[Backend::WebGpu]).await.into_iter().next()?;
    Some(SelectedDevice { info, reason: "the browser's choice".into(), auto: false })
}

/// Selects the requested device. Only its own backend is searched, so that a run on one
/// loads no libraries of another.
///
/// # Errors
/// If it does not exist, or this build has no support for its backend.
#[cfg(not(target_arch = "wasm32"))]
pub fn select(choice: DeviceChoice) -> Result<SelectedDevice, DeviceError> {
    let id = match choice {
        DeviceChoice::Named(id) => id,
        DeviceChoice::Auto => return Ok(select_best()),
    };
    match of_backend(id.backend).into_iter().find(|info| info.id == id) {
        Some(info) => Ok(SelectedDevice { info, reason: "as requested".into(), auto: false }),
        None => Err(missing(id)),
    }
}

/// Selects the device of process number `local` of those on this machine that train one run: with
/// `auto` each takes another GPU of the kind of the best. On the CPU all compute together.
///
/// # Errors
/// As [`select`], and if there are fewer such GPUs.
#[cfg(not(target_arch = "wasm32"))]
pub fn select_for_rank(choice: DeviceChoice, local: usize) -> Result<SelectedDevice, DeviceError> {
    let best = SelectedDevice { auto: false, ..select(choice)? };
    if choice != DeviceChoice::Auto || best.info.kind == DeviceKind::Cpu || local == 0 {
        return Ok(best);
    }
    let found = of_backend(best.info.id.backend);
    match other(&found, &best.info, local) {
        Some(info) => {
            let reason = format!("GPU {local} of this machine");
            Ok(SelectedDevice { info: info.clone(), reason, auto: false })
        }
        None => Err(DeviceError::TooFew { number: local + 1, found: names(&found) }),
    }
}

/// Returns GPU number `local` besides `best` of those like it: an integrated GPU or a software renderer
/// would hold the others up.
#[cfg(not(target_arch = "wasm32"))]
fn other<'a>(found: &'a [DeviceInfo], best: &DeviceInfo, local: usize) -> Option<&'a DeviceInfo> {
    let mut others = found.iter().filter(|info| info.kind == best.kind && info.id != best.id);
    others.nth(local.checked_sub(1)?)
}

/// Opens the requested device, without what only training in another precision than float32 needs.
///
/// # Errors
/// If it does not exist, this build has no support for its backend, or its driver refuses.
#[cfg(not(target_arch = "wasm32"))]
pub fn open(choice: DeviceChoice) -> Result<OpenDevice, DeviceError> {
    let selected = select(choice)?;
    let open = |device: &SelectedDevice| device.open(Precision::FLOAT32);
    open(&selected).or_else(|error| open(&selected.fallback(error)?))
}

/// Lists the devices of a backend.
#[cfg(not(target_arch = "wasm32"))]
fn of_backend(backend: Backend) -> Vec<DeviceInfo> {
    match backend {
        Backend::Cpu => vec![DeviceInfo::cpu()],
        Backend::Cuda => cuda_devices(),
        backend => graphics_devices(&[backend]),
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn missing(id: DeviceId) -> DeviceError {
    let cuda = id.backend == Backend::Cuda;
    let wgpu = !cuda && id.backend != Backend::Cpu;
    if (cuda && !cfg!(feature = "cuda")) || (wgpu && !cfg!(feature = "wgpu")) {
        return DeviceError::NotBuilt { backend: id.backend };
    }
    let mut found = if cuda { cuda_devices() } else { Vec::new() };
    found.extend(graphics_devices(&GRAPHICS));
    found.push(DeviceInfo::cpu());
    match why_no_cuda(&found) {
        Some(why) if cuda => DeviceError::NoCuda { id, why, found: names(&found) },
        _ => DeviceError::Missing { id, found: names(&found) },
    }
}

/// Returns the names of devices on the command line, in a list.
#[cfg(not(target_arch = "wasm32"))]
fn names(found: &[DeviceInfo]) -> String {
    let names: Vec<String> = found.iter().map(|info| info.id.to_string()).collect();
    names.join(", ")
}

async fn open_device(
    info: DeviceInfo,
    reason: String,
    precision: Precision,
) -> Result<OpenDevice, DeviceError> {
    let watchdog = Watchdog::new(!info.kind.is_gpu());
    let device = match info.id.backend {
        #[cfg(not(target_arch = "wasm32"))]
        Backend::Cpu => Device::flex(),
        #[cfg(feature = "cuda")]
        Backend::Cuda => Device::cuda(info.id.index),
        #[cfg(feature = "wgpu")]
        _ => webgpu::open(&info, precision, &watchdog).await?,
        #[cfg(not(feature = "wgpu"))]
        backend => {
            let _ = precision;
            return Err(DeviceError::NotBuilt { backend });
        }
    };
    Ok(OpenDevice { info, reason, device, watchdog })
}

/// Selects the best device. OpenGL is tried only if no other backend has a GPU: it reaches none
/// that they do not reach faster, and its libraries are slow to load and print warnings.
#[cfg(not(target_arch = "wasm32"))]
fn select_best() -> SelectedDevice {
    let mut found = cuda_devices();
    let [others @ .., gl] = GRAPHICS;
    found.extend(graphics_devices(&others));
    if found.iter().all(|info| info.rank().is_none()) {
        found.extend(graphics_devices(&[gl]));
    }
    found.push(DeviceInfo::cpu());
    let (info, reason) = best(&found);
    SelectedDevice { info, reason, auto: true }
}

/// Returns the best of `found`, which `--device=auto` takes, and the reason.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn best(found: &[DeviceInfo]) -> (DeviceInfo, String) {
    let ranked = found.iter().filter_map(|info| Some((info.rank()?, info)));
    let Some((_, info)) = ranked.min_by_key(|(rank, _)| *rank) else {
        return (DeviceInfo::cpu(), "the only device".into());
    };
    let reason = if info.kind != DeviceKind::Cpu {
        let count = found.len();
        match found.iter().find(|other| is_reached_again(info, other)) {
            Some(other) => format!(
                "the best of {count} devices; {} is the same GPU, which {} serves better",
                other.id, info.id.backend
            ),
            None => format!("the best of {count} devices"),
        }
    } else if let Some(software) = found.iter().find(|info| info.kind == DeviceKind::Software) {
        format!(
            "no GPU found; {} is a software renderer, used only with --device={}",
            software.name, software.id
        )
    } else {
        "no GPU found".into()
    };
    (info.clone(), reason)
}

/// Returns true if `other` is the GPU of a Vulkan device, through DirectX 12: that has no cooperative
/// matrices, and compiles the kernels longer. Their names are the same: both are from the driver.
#[cfg(not(target_arch = "wasm32"))]
fn is_reached_again(info: &DeviceInfo, other: &DeviceInfo) -> bool {
    let backends = (info.id.backend, other.id.backend);
    backends == (Backend::Vulkan, Backend::Dx12) && info.name == other.name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(backend: Backend, kind: DeviceKind) -> DeviceInfo {
        DeviceInfo { id: DeviceId { backend, index: 0 }, kind, ..DeviceInfo::cpu() }
    }

    #[test]
    fn gpus_rank_before_the_cpu_and_the_cpu_before_software() {
        let software = info(Backend::Vulkan, DeviceKind::Software);
        let cpu = DeviceInfo::cpu();
        let (picked, reason) = best(&[software.clone(), cpu.clone()]);
        assert_eq!(picked.id, cpu.id);
        assert!(reason.contains("--device=vulkan:0"), "{reason}");
        let integrated = info(Backend::Dx12, DeviceKind::Integrated);
        assert_eq!(best(&[software, integrated.clone(), cpu]).0.id, integrated.id);
        let discrete = info(Backend::Vulkan, DeviceKind::Discrete);
        assert_eq!(best(&[integrated, discrete.clone()]).0.id, discrete.id);
    }

    #[test]
    fn ranks_take_the_other_gpus_like_the_best() {
        let numbered = |index, kind| {
            let id = DeviceId { backend: Backend::Vulkan, index };
            DeviceInfo { id, ..info(Backend::Vulkan, kind) }
        };
        let kinds = [
            DeviceKind::Discrete,
            DeviceKind::Integrated,
            DeviceKind::Discrete,
            DeviceKind::Software,
        ];
        let found: Vec<DeviceInfo> =
            (0..).zip(kinds).map(|(at, kind)| numbered(at, kind)).collect();
        let taken = |local| other(&found, &found[0], local).map(|info| info.id.index);
        assert_eq!([1, 2].map(taken), [Some(2), None]);
        // The best is not always the first.
        let taken = other(&found, &found[2], 1).map(|info| info.id.index);
        assert_eq!(taken, Some(0));
        assert_eq!(names(&found[..2]), "vulkan:0, vulkan:1");
    }

    #[test]
    fn vulkan_is_taken_before_directx_and_says_so() {
        let named =
            |backend, kind, name: &str| DeviceInfo { name: name.into(), ..info(backend, kind) };
        let directx = named(Backend::Dx12, DeviceKind::Discrete, "RTX 3060");
        let vulkan = named(Backend::Vulkan, DeviceKind::Discrete, "RTX 3060");
        let (picked, reason) = best(&[directx.clone(), vulkan.clone()]);
        assert_eq!(picked.id, vulkan.id);
        assert!(reason.contains("dx12:0 is the same GPU"), "{reason}");
        // Another GPU is not the same one, and a better one is taken through DirectX.
        let small = named(Backend::Vulkan, DeviceKind::Integrated, "UHD 770");
        let (picked, reason) = best(&[directx.clone(), small]);
        assert_eq!((picked.id, reason.as_str()), (directx.id, "the best of 2 devices"));
    }
}
