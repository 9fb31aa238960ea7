//! Finds problems in a report.

use serde::Serialize;

use super::{Check, DeviceReport, DoctorReport};
use crate::gpu::DeviceKind;
use crate::ranks::MPI_LIBRARY;

/// A problem, and a hint at its solution.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Problem {
    pub text: String,
    pub hint: String,
}

impl Problem {
    fn new(text: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { text: text.into(), hint: hint.into() }
    }
}

/// Names and drivers of NVIDIA GPUs contain this word, in capitals or not.
const NVIDIA: &str = "nvidia";

/// Returns the problems of a report.
pub(super) fn of(report: &DoctorReport) -> Vec<Problem> {
    let mut found: Vec<Problem> = gpus(report).into_iter().collect();
    let has_nvidia = report.devices.iter().any(|device| {
        device.name.to_lowercase().contains(NVIDIA) || device.driver.to_lowercase().contains(NVIDIA)
    });
    if let Some(reason) = report.no_cuda.as_ref().filter(|_| has_nvidia) {
        let hint = "the GPU computes through Vulkan; for CUDA install NVIDIA's driver (on Debian \
                    with libcuda1) and check that `nvidia-smi` lists the GPU";
        found.push(Problem::new(format!("no CUDA device: {reason}"), hint));
    }
    for folder in &report.folders {
        let Some(error) = &folder.error else { continue };
        let text = format!("{}: no file can be written: {error}", folder.path);
        found.push(Problem::new(text, hint_for(folder.purpose)));
    }
    if let (Some(named), Some(Check { works: false, detail })) =
        (report.variables.get(MPI_LIBRARY), &report.mpi)
    {
        found.push(Problem::new(
            format!("{named}: no MPI library that a run on several devices can open: {detail}"),
            "name the library of the mpirun that starts the run, or remove WGPT_MPI_LIBRARY",
        ));
    }
    match &report.display {
        Some(Check { works: false, detail }) => found.push(Problem::new(
            format!("the window cannot open: {detail}"),
            "the command line needs no display: `wgpt train --preset=demo` trains a first model",
        )),
        Some(_) if report.devices.iter().all(|device| device.kind == DeviceKind::Cpu) => {
            let hint = "install the driver of the graphics card, or a software renderer (on Debian \
                        and Ubuntu: mesa-vulkan-drivers)";
            found.push(Problem::new("the window cannot open: no graphics driver", hint));
        }
        Some(_) => found.extend(dialogs(report.file_dialogs.as_ref())),
        None => {}
    }
    found
}

fn hint_for(purpose: &str) -> &'static str {
    match purpose {
        "runs" => {
            "start wgpt in a folder of yours, choose another folder under Runs, or give one with \
             --run"
        }
        "settings" => "the window forgets its settings until it can write there",
        _ => "estimates of time stay rough until it can be written",
    }
}

fn dialogs(check: Option<&Check>) -> Option<Problem> {
    let Check { works: false, detail } = check? else { return None };
    let hint = "install zenity, or xdg-desktop-portal with the backend of your desktop; until then \
                the window asks for paths";
    Some(Problem::new(format!("no file dialogs: {detail}"), hint))
}

/// Returns the problem of a machine without a GPU, or with a GPU that is reached slowly. A page without
/// a device reports that itself.
fn gpus(report: &DoctorReport) -> Option<Problem> {
    let is_gpu = |device: &&DeviceReport| device.kind.is_gpu();
    let mut gpus = report.devices.iter().filter(is_gpu).peekable();
    let Some(first) = gpus.peek() else {
        let has_cpu = report.devices.iter().any(|device| device.kind == DeviceKind::Cpu);
        let hint = if cfg!(windows) {
            "if it has one, install its driver from NVIDIA, AMD or Intel: the driver that Windows \
             installs by itself may lack Vulkan"
        } else {
            "if it has one, its driver is missing: on Debian and Ubuntu mesa-vulkan-drivers for AMD and \
             Intel, nvidia-driver for NVIDIA"
        };
        let text = "no GPU found: training runs on the CPU";
        return has_cpu.then(|| Problem::new(text, hint));
    };
    let name = first.name.clone();
    gpus.all(|device| device.id.starts_with("gl:")).then(|| {
        let hint = "its kernels are slower there: install a driver with Vulkan";
        Problem::new(format!("{name} is reached through OpenGL only"), hint)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Folder;

    fn device(id: &str, name: &str, kind: DeviceKind) -> DeviceReport {
        DeviceReport {
            id: id.into(),
            name: name.into(),
            kind,
            driver: String::new(),
            pci: None,
            memory: None,
            dtypes: Vec::new(),
            matrices: None,
            max_binding_bytes: None,
            adapter: None,
        }
    }

    fn report(devices: Vec<DeviceReport>) -> DoctorReport {
        DoctorReport { devices, ..DoctorReport::default() }
    }

    fn texts(report: &DoctorReport) -> Vec<String> {
        of(report).into_iter().map(|problem| problem.text).collect()
    }

    #[test]
    fn a_missing_gpu_and_a_slow_one_are_problems() {
        let cpu = || device("cpu", "CPU, 2 threads", DeviceKind::Cpu);
        let software = device("vulkan:0", "llvmpipe", DeviceKind::Software);
        assert_eq!(
            texts(&report(vec![software, cpu()])),
            ["no GPU found: training runs on the CPU"]
        );
        let gl = device("gl:0", "Radeon", DeviceKind::Unknown);
        assert_eq!(
            texts(&report(vec![gl.clone(), cpu()])),
            ["Radeon is reached through OpenGL only"]
        );
        let vulkan = device("vulkan:0", "Radeon", DeviceKind::Discrete);
        assert_eq!(texts(&report(vec![vulkan, gl, cpu()])), [""; 0]);
        assert_eq!(texts(&report(Vec::new())), [""; 0]);
    }

    #[test]
    fn cuda_is_missed_only_beside_an_nvidia_gpu() {
        let gpu = |name| device("vulkan:0", name, DeviceKind::Discrete);
        for (name, problems) in [("NVIDIA GeForce RTX 3060", 1), ("Radeon", 0)] {
            let report =
                DoctorReport { no_cuda: Some("no driver".into()), ..report(vec![gpu(name)]) };
            assert_eq!(of(&report).len(), problems, "{name}");
        }
    }

    #[test]
    fn an_mpi_library_is_missed_only_if_it_is_named() {
        let cpu = || {
            vec![
                device("cpu", "CPU, 2 threads", DeviceKind::Cpu),
                device("cuda:0", "a", DeviceKind::Discrete),
            ]
        };
        let mpi = Some(Check { works: false, detail: "why".into() });
        assert_eq!(texts(&DoctorReport { mpi: mpi.clone(), ..report(cpu()) }), [""; 0]);
        let variables = [(MPI_LIBRARY.to_string(), "/nowhere/libmpi.so".to_string())].into();
        let named = texts(&DoctorReport { mpi, variables, ..report(cpu()) });
        assert!(
            named.len() == 1 && named[0].starts_with("/nowhere/libmpi.so: no MPI"),
            "{named:?}"
        );
    }

    #[test]
    fn folders_and_the_window_have_a_hint_each() {
        let check = |works| Some(Check { works, detail: "why".into() });
        let full = |purpose| Folder {
            purpose,
            path: "/full".into(),
            exists: true,
            error: Some("No space left on device".into()),
        };
        let all = DoctorReport {
            folders: vec![full("runs"), full("settings"), full("speeds")],
            display: check(true),
            file_dialogs: check(false),
            ..report(vec![device("vulkan:0", "Radeon", DeviceKind::Discrete)])
        };
        let found = of(&all);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found.iter().all(|problem| !problem.hint.is_empty()));
        assert_eq!(found[0].text, "/full: no file can be written: No space left on device");
        assert!(found[3].hint.contains("zenity"));
        let driverless = DoctorReport { devices: Vec::new(), display: check(true), ..all.clone() };
        assert_eq!(texts(&driverless)[3..], ["the window cannot open: no graphics driver"]);
        // Without a display nobody misses its dialogs.
        let server = DoctorReport { display: check(false), ..all };
        assert_eq!(texts(&server)[3..], ["the window cannot open: why"]);
    }
}
