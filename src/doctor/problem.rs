//! Finds problems in a report.

use serde::Serialize;

use super::{DoctorReport, FeatureCheck};
use crate::gpu::{Backend, DeviceInfo, DeviceKind};
use crate::ranks::MPI_LIBRARY;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub text: String,
    pub hint: String,
}

pub(super) fn of(report: &DoctorReport, devices: &[DeviceInfo]) -> Vec<Problem> {
    let mut found = Vec::new();
    let mut add = |text: String, hint: &str| found.push(Problem { text, hint: hint.into() });
    let mut gpus = devices.iter().filter(|device| device.kind.is_gpu());
    match gpus.clone().next() {
        Some(first) if gpus.all(|device| device.id.backend == Backend::Gl) => add(
            format!("{} is reached through OpenGL only", first.name),
            "install a driver with Vulkan, through which the kernels are faster",
        ),
        // A page without a device reports that itself.
        None if devices.iter().any(|device| device.kind == DeviceKind::Cpu) => add(
            "no GPU found: training runs on the CPU".into(),
            if cfg!(windows) {
                "if this machine has one, install its driver from NVIDIA, AMD or Intel: the driver that \
                 Windows installs by itself may lack Vulkan"
            } else {
                "if this machine has one, install its driver: on Debian and Ubuntu mesa-vulkan-drivers \
                 for AMD and Intel, nvidia-driver for NVIDIA"
            },
        ),
        _ => {}
    }
    let is_nvidia = |text: &str| text.to_lowercase().contains("nvidia");
    if let Some(reason) = &report.no_cuda
        && devices.iter().any(|device| is_nvidia(&device.name) || is_nvidia(&device.driver))
    {
        add(
            format!("no CUDA device: {reason}"),
            "the GPU computes through Vulkan; for CUDA install NVIDIA's driver (on Debian with \
             libcuda1) and check that `nvidia-smi` lists the GPU",
        );
    }
    for folder in &report.folders {
        let Some(error) = &folder.error else { continue };
        let hint = match folder.purpose {
            "runs" => {
                "start wgpt in a folder that you can write to, choose another folder under Runs, or give one \
                 with --run"
            }
            "settings" => "make it writable: until then the window forgets its settings",
            _ => "make it writable: until then estimates of time stay rough",
        };
        add(format!("{}: no file can be written: {error}", folder.path), hint);
    }
    if let (Some(named), Some(FeatureCheck { works: false, detail })) =
        (report.variables.get(MPI_LIBRARY), &report.mpi)
    {
        add(
            format!("{named}: no MPI library that a run on several devices can open: {detail}"),
            "name the library of the mpirun that starts the run, or remove WGPT_MPI_LIBRARY",
        );
    }
    match (&report.display, &report.file_dialogs) {
        (Some(FeatureCheck { works: false, detail }), _) => add(
            format!("the window cannot open: {detail}"),
            "the command line needs no display: `wgpt train --preset=demo` trains a first model",
        ),
        (Some(_), _) if devices.iter().all(|device| device.kind == DeviceKind::Cpu) => add(
            "the window cannot open: no graphics driver".into(),
            "install the driver of the graphics card, or a software renderer (on Debian and Ubuntu: \
             mesa-vulkan-drivers)",
        ),
        (Some(_), Some(FeatureCheck { works: false, detail })) => add(
            format!("no file dialogs: {detail}"),
            "install zenity, or xdg-desktop-portal with the backend of your desktop; until then the \
             window asks for paths",
        ),
        _ => {}
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Folder;
    use crate::gpu::DeviceId;

    fn device(backend: Backend, name: &str, kind: DeviceKind) -> DeviceInfo {
        let id = DeviceId { backend, index: 0 };
        DeviceInfo { id, name: name.into(), kind, ..DeviceInfo::cpu() }
    }

    fn texts(report: &DoctorReport, devices: &[DeviceInfo]) -> Vec<String> {
        of(report, devices).into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn a_missing_gpu_and_a_slow_one_are_problems() {
        let cpu = device(Backend::Cpu, "CPU, 2 threads", DeviceKind::Cpu);
        let software = device(Backend::Vulkan, "llvmpipe", DeviceKind::Software);
        let gl = device(Backend::Gl, "Radeon", DeviceKind::Unknown);
        let vulkan = device(Backend::Vulkan, "Radeon", DeviceKind::Discrete);
        for (devices, problems) in [
            (&[software, cpu.clone()][..], &["no GPU found: training runs on the CPU"][..]),
            (&[gl.clone(), cpu.clone()], &["Radeon is reached through OpenGL only"]),
            (&[vulkan, gl, cpu], &[]),
            (&[], &[]),
        ] {
            assert_eq!(texts(&DoctorReport::default(), devices), problems);
        }
    }

    #[test]
    fn cuda_is_missed_only_next_to_an_nvidia_gpu() {
        let report = DoctorReport { no_cuda: Some("no driver".into()), ..DoctorReport::default() };
        for (name, problems) in [("NVIDIA GeForce RTX 3060", 1), ("Radeon", 0)] {
            let gpu = device(Backend::Vulkan, name, DeviceKind::Discrete);
            assert_eq!(of(&report, &[gpu]).len(), problems, "{name}");
        }
    }

    #[test]
    fn an_mpi_library_is_missed_only_if_it_is_named() {
        let mpi = Some(FeatureCheck { works: false, detail: "why".into() });
        let mut report = DoctorReport { mpi, ..DoctorReport::default() };
        assert_eq!(texts(&report, &[]), [""; 0]);
        report.variables = [(MPI_LIBRARY.to_string(), "/nowhere/libmpi.so".to_string())].into();
        let named = texts(&report, &[]);
        assert!(matches!(&named[..], [text] if text.starts_with("/nowhere/libmpi.so: no MPI")));
    }

    #[test]
    fn folders_and_the_window_have_a_hint_each() {
        let check = |works| Some(FeatureCheck { works, detail: "why".into() });
        let error = Some("No space left on device".to_string());
        let full =
            |purpose| Folder { purpose, path: "/full".into(), exists: true, error: error.clone() };
        let all = DoctorReport {
            folders: vec![full("runs"), full("settings"), full("speeds")],
            display: check(true),
            file_dialogs: check(false),
            ..DoctorReport::default()
        };
        let gpu = [device(Backend::Vulkan, "Radeon", DeviceKind::Discrete)];
        let found = of(&all, &gpu);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.iter().all(|problem| !problem.hint.is_empty()));
        assert_eq!(found[0].text, "/full: no file can be written: No space left on device");
        assert!(found[3].hint.contains("zenity"));
        assert_eq!(texts(&all, &[])[3..], ["the window cannot open: no graphics driver"]);
        // Without a display nobody misses its dialogs.
        let server = DoctorReport { display: check(false), ..all };
        assert_eq!(texts(&server, &gpu)[3..], ["the window cannot open: why"]);
    }
}
