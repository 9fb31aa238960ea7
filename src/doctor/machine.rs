//! The facts of this machine.

mod dialogs;
mod folder;

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{DoctorReport, Folder, FrontEnd, Problem, build, device};
use crate::gpu::{self, DeviceInfo};
use crate::{disk, ranks, runs};

/// Beginnings and names of the environment variables in the report.
const VARIABLES: &str = "WGPT_ WGPU_ VK_ MESA_ LP_ LIBGL_ DRI_PRIME CUDA_ CUBECL_ RAYON_NUM_THREADS \
    DISPLAY WAYLAND_ XDG_RUNTIME_DIR XDG_SESSION_TYPE XDG_CURRENT_DESKTOP DBUS_SESSION_BUS_ADDRESS";

impl DoctorReport {
    /// Gathers the report of this machine. `found` are its devices, and `crashed` are the problems with
    /// drivers that could not list their devices.
    pub fn gather(front_end: FrontEnd, found: &[DeviceInfo], crashed: Vec<Problem>) -> Self {
        let FrontEnd { display, runs, settings } = front_end;
        let (taken, reason) = gpu::best(found);
        let speeds = runs::cache_folder();
        let mut folders = vec![Folder::check("runs", &disk::absolute(&runs))];
        folders.extend(settings.map(|path| Folder::check("settings", &path)));
        folders.extend(speeds.map(|path| Folder::check("speeds", &path)));
        let file_dialogs = display.is_some().then(|| dialogs::check().into());
        Self {
            build: build(),
            system: system(),
            devices: found.iter().map(device).collect(),
            auto: Some(format!("{}: {reason}", taken.id)),
            no_cuda: gpu::why_no_cuda(found),
            mpi: ranks::mpi_library().map(|library| mpi(library).into()),
            folders,
            display,
            file_dialogs,
            variables: variables(),
            problems: crashed,
        }
        .with_problems(found)
    }
}

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

/// Returns the MPI library, or how to get one.
fn mpi(library: Result<String, String>) -> Result<String, String> {
    let is_named = std::env::var_os(ranks::MPI_LIBRARY).is_some();
    let advice = "a run on several devices needs Open MPI (on Debian and Ubuntu: openmpi-bin; with \
                  Homebrew: open-mpi) or MPICH, or a library that WGPT_MPI_LIBRARY names";
    library.map_err(|reason| if is_named { reason } else { advice.into() })
}

fn variables() -> BTreeMap<String, String> {
    let text = |part: std::ffi::OsString| part.to_string_lossy().into_owned();
    let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
    let is_known = |name: &str| VARIABLES.split(' ').any(|known| name.starts_with(known));
    all.filter(|(name, _)| is_known(name)).collect()
}
