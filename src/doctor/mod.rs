//! Gathers the facts for a bug report: this build, the machine, its devices, the folders of wgpt, and
//! problems with a hint at each.
//!
//! [`DoctorReport`] is plain data. `wgpt doctor` and the window's help show its text, and `--json`
//! prints the same fields. It has no file's content and no setting of a run.

#[cfg(not(target_arch = "wasm32"))]
mod dialogs;
mod folder;
mod problem;
mod text;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::gpu::{self, DeviceInfo};
pub(crate) use crate::protocol::{FeatureCheck, FrontEnd};
use crate::version;
pub(crate) use folder::Folder;
pub(crate) use problem::Problem;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DoctorReport {
    pub build: Value,
    pub system: Value,
    /// The devices of the machine, the CPU last.
    pub devices: Vec<Value>,
    /// The device that `--device=auto` takes, and the reason.
    pub auto: Option<String>,
    /// The reason why no device is reached through CUDA, in a build that has it.
    pub no_cuda: Option<String>,
    /// The MPI library for runs on several devices; `None` on systems where wgpt opens none. Most machines
    /// need none.
    pub mpi: Option<FeatureCheck>,
    /// The folders in which wgpt writes. A page has none.
    pub folders: Vec<Folder>,
    /// The display; `None` in a build without the window.
    pub display: Option<FeatureCheck>,
    /// The dialogs that choose files; `None` in a build without the window.
    pub file_dialogs: Option<FeatureCheck>,
    pub variables: BTreeMap<String, String>,
    pub problems: Vec<Problem>,
}

/// Beginnings and names of the environment variables in the report.
const VARIABLES: &str = "WGPT_ WGPU_ VK_ MESA_ LP_ LIBGL_ DRI_PRIME CUDA_ CUBECL_ RAYON_NUM_THREADS \
    DISPLAY WAYLAND_ XDG_RUNTIME_DIR XDG_SESSION_TYPE XDG_CURRENT_DESKTOP DBUS_SESSION_BUS_ADDRESS";

impl DoctorReport {
    /// Gathers the report of this machine. `found` are its devices, and `crashed` are the problems with
    /// drivers that could not list their devices.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn gather(front_end: FrontEnd, found: &[DeviceInfo], crashed: Vec<Problem>) -> Self {
        let FrontEnd { display, runs, settings } = front_end;
        let (taken, reason) = gpu::best(found);
        let speeds = crate::runs::cache_folder();
        let mut folders = vec![Folder::check("runs", &crate::disk::absolute(&runs))];
        folders.extend(settings.map(|path| Folder::check("settings", &path)));
        folders.extend(speeds.map(|path| Folder::check("speeds", &path)));
        let file_dialogs = display.is_some().then(dialogs::check);
        Self {
            build: build(),
            system: system(),
            devices: found.iter().map(device).collect(),
            auto: Some(format!("{}: {reason}", taken.id)),
            no_cuda: gpu::why_no_cuda(found),
            mpi: crate::ranks::mpi_library().map(mpi),
            folders,
            display,
            file_dialogs,
            variables: variables(),
            problems: crashed,
        }
        .with_problems(found)
    }

    #[cfg(target_arch = "wasm32")]
    pub fn of_page(browser: String, device_info: Option<&DeviceInfo>) -> Self {
        Self {
            build: build(),
            system: json!({ "os": browser, "threads": 1 }),
            devices: device_info.into_iter().map(device).collect(),
            ..Self::default()
        }
        .with_problems(device_info.map_or(&[], std::slice::from_ref))
    }

    fn with_problems(mut self, devices: &[DeviceInfo]) -> Self {
        self.problems.extend(problem::of(&self, devices));
        self
    }
}

#[allow(clippy::disallowed_methods, reason = "prints the path")]
fn build() -> Value {
    json!({
        "version": version::VERSION,
        "commit": version::COMMIT,
        "features": version::features(),
        "target": version::TARGET,
        "program": std::env::current_exe().ok().map(|path| path.display().to_string()),
    })
}

#[cfg(not(target_arch = "wasm32"))]
fn system() -> Value {
    use sysinfo::{CpuRefreshKind, RefreshKind, System as Machine};

    let cpus = RefreshKind::nothing().with_cpu(CpuRefreshKind::nothing());
    let brand = |machine: Machine| {
        let cpu = machine.cpus().first()?;
        Some(cpu.brand().trim().to_string()).filter(|brand| !brand.is_empty())
    };
    json!({
        "os": Machine::long_os_version().unwrap_or_else(|_| std::env::consts::OS.into()),
        "kernel": Machine::kernel_version().ok(),
        "cpu": Machine::new_with_specifics(cpus).ok().and_then(brand),
        // The threads that the process may use at once.
        "threads": std::thread::available_parallelism().map_or(1, |threads| threads.get()),
        "memory": gpu::host_memory(),
    })
}

fn device(info: &DeviceInfo) -> Value {
    json!({
        "id": info.id.to_string(),
        "name": info.name,
        "kind": info.kind,
        "driver": info.driver,
        "pci": info.pci,
        "memory": gpu::reported_memory(info),
        "health": gpu::device_health(info).map(|health| health.to_string()),
        "dtypes": info.abilities.dtypes(),
        "matrices": info.abilities.matrices.map(|matrices| matrices.side()),
        "max_binding_bytes": info.max_binding,
        "adapter": info.adapter,
    })
}

/// Returns the MPI library, or how to get one.
#[cfg(not(target_arch = "wasm32"))]
fn mpi(library: Result<String, String>) -> FeatureCheck {
    let is_named = std::env::var_os(crate::ranks::MPI_LIBRARY).is_some();
    match library {
        Ok(detail) => FeatureCheck { works: true, detail },
        Err(reason) if is_named => FeatureCheck { works: false, detail: reason },
        Err(_) => {
            let detail = "a run on several devices needs Open MPI (on Debian and Ubuntu: \
                          openmpi-bin; with Homebrew: open-mpi) or MPICH, or a library that \
                          WGPT_MPI_LIBRARY names";
            FeatureCheck { works: false, detail: detail.into() }
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
fn variables() -> BTreeMap<String, String> {
    let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let is_known = |name: &str| VARIABLES.split(' ').any(|known| name.starts_with(known));
    all.filter(|(name, _)| is_known(name)).collect()
}
