//! Lists the devices, and chooses the device of a run: the one that is named, or the best.

use super::choice::DeviceChoice;
use super::select::{OpenDevice, SelectedDevice};
use super::threads::compute_on_this_thread;
use super::{adapter, cuda};
use crate::config::Precision;
use crate::gpu::error::DeviceError;
use crate::plan::{Backend, DeviceKind};
use crate::protocol::{DeviceId, DeviceInfo, Search};

impl Search {
    /// Returns the search for a choice. A named device needs only the libraries of its backend.
    pub fn of(choice: DeviceChoice) -> Self {
        match choice {
            DeviceChoice::Auto => Self::Auto,
            DeviceChoice::Named(id) => Self::Only(id.backend),
        }
    }

    /// Returns the backends to search, the CPU last.
    pub fn backends(self) -> Vec<Backend> {
        use Backend::{Cpu, Cuda, Dx12, Gl, Metal, Vulkan};
        match self {
            Self::All | Self::Auto => vec![Cuda, Vulkan, Metal, Dx12, Gl, Cpu],
            Self::Only(backend) => vec![backend],
        }
    }

    /// Returns true if the search leaves `backend` out after it has found these devices.
    pub fn skips(self, backend: Backend, found: &[DeviceInfo]) -> bool {
        let has_gpu = || found.iter().any(|info| info.rank().is_some());
        self == Self::Auto && backend == Backend::Gl && has_gpu()
    }
}

/// Lists every device, the CPU last.
pub fn devices() -> Vec<DeviceInfo> {
    list(Search::All, &[])
}

/// Lists the devices of a search in this process. Leaves out the backends in `without`.
pub(crate) fn list(search: Search, without: &[Backend]) -> Vec<DeviceInfo> {
    let mut found = Vec::new();
    for backend in search.backends() {
        if !without.contains(&backend) && !search.skips(backend, &found) {
            found.extend(list_one(backend));
        }
    }
    found
}

fn list_one(backend: Backend) -> Vec<DeviceInfo> {
    match backend {
        Backend::Cuda => cuda::devices(),
        Backend::Cpu => vec![DeviceInfo::cpu()],
        backend => pollster::block_on(adapter::devices(&[backend])),
    }
}

/// Explains why none of `found` is a CUDA device. Returns `None` if one is, or in a build without CUDA.
pub fn why_no_cuda(found: &[DeviceInfo]) -> Option<String> {
    let is_missing = cfg!(feature = "cuda") && !found.iter().any(DeviceInfo::is_cuda);
    is_missing.then(cuda::absence)
}

impl DeviceInfo {
    fn is_cuda(&self) -> bool {
        self.id.backend == Backend::Cuda
    }

    /// Returns the rank of the device for `--device=auto`, lowest for the best. A device without one is
    /// used only if the user names it: a software renderer is slower than the CPU backend.
    fn rank(&self) -> Option<u32> {
        let kind = match self.kind {
            DeviceKind::Discrete => 0,
            DeviceKind::Virtual => 1,
            DeviceKind::Integrated => 2,
            DeviceKind::Cpu => 3,
            DeviceKind::Software | DeviceKind::Unknown => return None,
        };
        let backend = match self.id.backend {
            Backend::Cuda => 0,
            Backend::Vulkan | Backend::Metal | Backend::WebGpu => 1,
            Backend::Dx12 => 2,
            Backend::Gl => 3,
            Backend::Cpu => 4,
        };
        Some(kind * 10 + backend)
    }
}

impl SelectedDevice {
    /// Returns the CPU, which was selected for this reason.
    pub fn cpu(reason: String) -> Self {
        Self::named(DeviceInfo::cpu(), reason)
    }

    /// Returns true if wgpt chose the device and the CPU may be faster.
    pub fn may_be_slow(&self) -> bool {
        self.auto && self.info.kind == DeviceKind::Integrated
    }

    /// Opens the device for computing in float32, or else the CPU if the user has not named the device.
    pub fn open_float32(&self) -> Result<OpenDevice, DeviceError> {
        let open = |device: &Self| device.open(Precision::FLOAT32);
        open(self).or_else(|error| open(&self.fallback(error)?))
    }

    pub fn open(&self, precision: Precision) -> Result<OpenDevice, DeviceError> {
        if self.info.kind == DeviceKind::Cpu {
            compute_on_this_thread();
        }
        pollster::block_on(self.open_async(precision))
    }
}

/// Selects the requested device, in this process. Searches only its backend, so a run loads no other
/// libraries.
///
/// # Errors
/// If it does not exist, or this build has no support for its backend.
pub fn select(choice: DeviceChoice) -> Result<SelectedDevice, DeviceError> {
    select_without(choice, &[])
}

/// Selects like [`select`], without the backends that crash while they list devices.
pub(crate) fn select_without(
    choice: DeviceChoice,
    without: &[Backend],
) -> Result<SelectedDevice, DeviceError> {
    choose(choice, list(Search::of(choice), without), || list(Search::All, without))
}

/// Selects the requested device from `found`, the result of its search. `all` lists every device, for an
/// error that names them.
///
/// # Errors
/// If it is not among them, or this build has no support for its backend.
pub(crate) fn choose(
    choice: DeviceChoice,
    found: Vec<DeviceInfo>,
    all: impl FnOnce() -> Vec<DeviceInfo>,
) -> Result<SelectedDevice, DeviceError> {
    let DeviceChoice::Named(id) = choice else {
        let (info, reason) = best(&found);
        return Ok(SelectedDevice { auto: true, ..SelectedDevice::named(info, reason) });
    };
    let info = found.into_iter().find(|info| info.id == id).ok_or_else(|| missing(id, all))?;
    Ok(SelectedDevice::named(info, "as requested".into()))
}

/// Selects the device for process number `local` of a run's processes on this machine. With `auto`,
/// each process takes another GPU of the same kind as the best. On the CPU all share it.
///
/// # Errors
/// Like [`select`], and if the machine has too few such GPUs.
pub fn select_for_rank(choice: DeviceChoice, local: usize) -> Result<SelectedDevice, DeviceError> {
    let best = SelectedDevice { auto: false, ..select(choice)? };
    if choice != DeviceChoice::Auto || best.info.kind == DeviceKind::Cpu || local == 0 {
        return Ok(best);
    }
    let found = list(Search::Only(best.info.id.backend), &[]);
    let too_few = || DeviceError::TooFew { number: local + 1, found: names(&found) };
    let info = other(&found, &best.info, local).ok_or_else(too_few)?;
    Ok(SelectedDevice::named(info.clone(), format!("GPU {local} of this machine")))
}

/// Returns GPU number `local` of the same kind as `best`, not counting `best`. The others would wait
/// for an integrated GPU or a software renderer.
fn other<'a>(found: &'a [DeviceInfo], best: &DeviceInfo, local: usize) -> Option<&'a DeviceInfo> {
    let mut others = found.iter().filter(|info| info.kind == best.kind && info.id != best.id);
    others.nth(local.checked_sub(1)?)
}

/// Selects and opens the requested device for computing in float32, in this process.
///
/// # Errors
/// If it does not exist, this build has no support for its backend, or its driver refuses.
pub fn open(choice: DeviceChoice) -> Result<OpenDevice, DeviceError> {
    select(choice)?.open_float32()
}

fn missing(id: DeviceId, all: impl FnOnce() -> Vec<DeviceInfo>) -> DeviceError {
    let cuda = id.backend == Backend::Cuda;
    let wgpu = !cuda && id.backend != Backend::Cpu;
    if (cuda && !cfg!(feature = "cuda")) || (wgpu && !cfg!(feature = "wgpu")) {
        return DeviceError::NotBuilt { backend: id.backend };
    }
    let all = all();
    let found = names(&all);
    if cuda && !all.iter().any(DeviceInfo::is_cuda) {
        return DeviceError::NoCuda { id, why: cuda::absence(), found };
    }
    DeviceError::Missing { id, found }
}

fn names(found: &[DeviceInfo]) -> String {
    let names: Vec<String> = found.iter().map(|info| info.id.to_string()).collect();
    names.join(", ")
}

/// Returns the best of `found`, which `--device=auto` takes, and the reason.
pub fn best(found: &[DeviceInfo]) -> (DeviceInfo, String) {
    let ranked = found.iter().filter_map(|info| Some((info.rank()?, info)));
    let Some((_, info)) = ranked.min_by_key(|(rank, _)| *rank) else {
        return (DeviceInfo::cpu(), "the only device".into());
    };
    let reason = if info.kind != DeviceKind::Cpu {
        let count = found.len();
        match found.iter().find(|other| is_reached_again(info, other)) {
            Some(other) => format!(
                "the best of {count} devices; {} is the same GPU, which works better through {}",
                other.id, info.id.backend
            ),
            None => format!("the best of {count} devices"),
        }
    } else if let Some(software) = found.iter().find(|info| info.kind == DeviceKind::Software) {
        format!(
            "no graphics card found; {} is a software renderer, used only with --device={}",
            software.name, software.id
        )
    } else {
        "no graphics card found".into()
    };
    (info.clone(), reason)
}

/// Returns true if `info` is a Vulkan device and `other` the same GPU through DirectX 12, which has no
/// cooperative matrices and compiles the kernels more slowly. The driver gives both the same name.
fn is_reached_again(info: &DeviceInfo, other: &DeviceInfo) -> bool {
    info.id.backend == Backend::Vulkan
        && other.id.backend == Backend::Dx12
        && info.name == other.name
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(backend: Backend, kind: DeviceKind) -> DeviceInfo {
        DeviceInfo { id: DeviceId { backend, index: 0 }, kind, ..DeviceInfo::cpu() }
    }

    #[test]
    fn the_best_device_is_taken_for_a_reason() {
        let named =
            |backend, kind, name: &str| DeviceInfo { name: name.into(), ..info(backend, kind) };
        let software = info(Backend::Vulkan, DeviceKind::Software);
        let integrated = named(Backend::Dx12, DeviceKind::Integrated, "UHD 770");
        let discrete = info(Backend::Vulkan, DeviceKind::Discrete);
        let directx = named(Backend::Dx12, DeviceKind::Discrete, "RTX 3060");
        let vulkan = named(Backend::Vulkan, DeviceKind::Discrete, "RTX 3060");
        let small = named(Backend::Vulkan, DeviceKind::Integrated, "UHD 770");
        let cpu = DeviceInfo::cpu();
        for (found, expected, because) in [
            (vec![&software, &cpu], &cpu, "--device=vulkan:0"),
            (vec![&software, &integrated, &cpu], &integrated, "the best of 3 devices"),
            (vec![&integrated, &discrete], &discrete, "the best of 2 devices"),
            (vec![&directx, &vulkan], &vulkan, "dx12:0 is the same GPU"),
            // Another GPU is not the same one, and a better one is taken through DirectX.
            (vec![&directx, &small], &directx, "the best of 2 devices"),
        ] {
            let found: Vec<DeviceInfo> = found.into_iter().cloned().collect();
            let (picked, reason) = best(&found);
            assert_eq!(picked.id, expected.id, "{reason}");
            assert!(reason.contains(because), "{reason}");
            assert_eq!(reason.contains("same GPU"), because.contains("same GPU"), "{reason}");
        }
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn threads_that_compute_read_and_write_denormals_as_zero() {
        use std::hint::black_box;

        use crate::gpu::device::threads::compute_threads;

        let products = |_| {
            let [small, denormal] = [f32::MIN_POSITIVE, f32::from_bits(1)];
            [black_box(small) * black_box(0.5), black_box(denormal) * black_box(1e30)]
        };
        assert!(products(()).iter().all(|product| *product > 0.0), "a thread as any other");
        let pool = compute_threads().num_threads(2).build().unwrap();
        assert_eq!(pool.broadcast(|_| products(())), [[0.0; 2]; 2]);
        let own = std::thread::spawn(move || {
            let cpu = SelectedDevice::cpu(String::new());
            cpu.open(Precision::FLOAT32).unwrap();
            products(())
        });
        assert_eq!(own.join().unwrap(), [0.0; 2]);
    }

    #[test]
    fn opengl_is_searched_if_no_other_backend_has_a_gpu() {
        let software = info(Backend::Vulkan, DeviceKind::Software);
        let gpu = info(Backend::Dx12, DeviceKind::Integrated);
        for (search, found, skips) in [
            (Search::Auto, vec![], false),
            (Search::Auto, vec![software.clone()], false),
            (Search::Auto, vec![software, gpu.clone()], true),
            (Search::All, vec![gpu.clone()], false),
            (Search::Only(Backend::Gl), vec![gpu], false),
        ] {
            assert_eq!(search.skips(Backend::Gl, &found), skips, "{search:?} after {found:?}");
            assert!(!search.skips(Backend::Vulkan, &found));
        }
        let none = list(Search::All, &Search::All.backends());
        assert!(none.is_empty(), "{none:?}");
    }

    #[test]
    fn ranks_take_the_other_gpus_like_the_best() {
        use DeviceKind::{Discrete, Integrated, Software};
        let numbered = |(index, kind)| {
            let id = DeviceId { backend: Backend::Vulkan, index };
            DeviceInfo { id, ..info(Backend::Vulkan, kind) }
        };
        let found = [(0, Discrete), (1, Integrated), (2, Discrete), (3, Software)].map(numbered);
        // The best is not always the first.
        for (best, local, expected) in [(0, 1, Some(2)), (0, 2, None), (2, 1, Some(0))] {
            let taken = other(&found, &found[best], local).map(|info| info.id.index);
            assert_eq!(taken, expected, "rank {local} next to {best}");
        }
        assert_eq!(names(&found[..2]), "vulkan:0, vulkan:1");
    }
}
