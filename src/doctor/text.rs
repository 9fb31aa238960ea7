//! The text of a report.

use std::fmt;

use super::{Check, Device, Folder, Report};
use crate::gpu::ReportedMemory;
use crate::text::bytes;
use crate::version;

/// A title, and labels with their texts.
struct Section {
    title: &'static str,
    rows: Vec<(String, String)>,
}

impl fmt::Display for Report {
    /// Writes the report without a final line break. The home folder is `~`: its path has the name of
    /// the user, and the text is made to be published.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wgpt {}", version::describe())?;
        for Section { title, rows } in self.sections() {
            write!(f, "\n\n{title}")?;
            let width = rows.iter().map(|(label, _)| label.chars().count()).max().unwrap_or(0);
            for (label, text) in rows {
                write!(f, "\n  {label:<width$}  {text}")?;
            }
        }
        f.write_str("\n\nproblems")?;
        if self.problems.is_empty() {
            f.write_str("\n  none")?;
        }
        for problem in &self.problems {
            write!(f, "\n  {}\n    hint: {}", without_home(&problem.text), problem.hint)?;
        }
        Ok(())
    }
}

impl Report {
    fn sections(&self) -> Vec<Section> {
        let all = [
            ("system", self.system_rows()),
            ("devices", self.device_rows()),
            ("folders", self.folder_rows()),
            ("window", self.window_rows()),
            (
                "environment",
                self.variables.iter().map(|(name, value)| row(name, without_home(value))).collect(),
            ),
        ];
        let sections = all.into_iter().filter(|(_, rows)| !rows.is_empty());
        sections.map(|(title, rows)| Section { title, rows }).collect()
    }

    fn system_rows(&self) -> Vec<(String, String)> {
        let system = &self.system;
        let threads = match system.threads {
            1 => "1 thread".to_string(),
            threads => format!("{threads} threads"),
        };
        let cpu = system.cpu.as_ref().map(|cpu| format!("{cpu}, {threads}"));
        let program = self.build.program.as_deref().map(without_home);
        let rows = [
            ("os", Some(system.os.clone())),
            ("kernel", system.kernel.clone()),
            ("cpu", cpu),
            ("memory", system.memory.as_ref().map(memory)),
            ("mpi", self.mpi.as_ref().map(mpi)),
            ("program", program),
        ];
        rows.into_iter().filter_map(|(label, text)| Some(row(label, text?))).collect()
    }

    fn device_rows(&self) -> Vec<(String, String)> {
        let mut rows: Vec<_> = self.devices.iter().flat_map(rows_of).collect();
        rows.extend(self.no_cuda.as_ref().map(|reason| row("cuda", format!("none: {reason}"))));
        rows.extend(self.auto.as_ref().map(|auto| row("auto", auto.clone())));
        rows
    }

    fn folder_rows(&self) -> Vec<(String, String)> {
        let text = |folder: &Folder| {
            let state = match (&folder.error, folder.exists) {
                (Some(error), _) => format!("not writable: {error}"),
                (None, true) => "writable".into(),
                (None, false) => "created when needed".into(),
            };
            format!("{}, {state}", without_home(&folder.path))
        };
        self.folders.iter().map(|folder| row(folder.purpose, text(folder))).collect()
    }

    fn window_rows(&self) -> Vec<(String, String)> {
        let checks = [("display", &self.display), ("file dialogs", &self.file_dialogs)];
        let known = checks.into_iter().filter_map(|(label, check)| Some((label, check.as_ref()?)));
        let text = |check: &Check| match check.works {
            true => check.detail.clone(),
            false => format!("missing: {}", check.detail),
        };
        known.map(|(label, check)| row(label, text(check))).collect()
    }
}

/// No problem if it is missing: one device needs none.
fn mpi(library: &Check) -> String {
    match library.works {
        true => library.detail.clone(),
        false => format!("none: {}", library.detail),
    }
}

fn row(label: &str, text: impl Into<String>) -> (String, String) {
    (label.to_string(), text.into())
}

/// The device in the first row; what is known of it in rows without a label.
fn rows_of(device: &Device) -> Vec<(String, String)> {
    let mut lines = vec![format!("{} ({})", device.name, device.kind)];
    lines.push(format!("driver {}", device.driver));
    let ids = device.adapter.as_ref().and_then(|adapter| adapter.ids.clone());
    let pci = [ids, device.pci.as_ref().map(|address| format!("at {address}"))];
    let pci: Vec<String> = pci.into_iter().flatten().collect();
    if !pci.is_empty() {
        lines.push(format!("PCI {}", pci.join(" ")));
    }
    lines.push(match &device.memory {
        Some(reported) => format!("memory {}", memory(reported)),
        None => "memory unknown: nothing reports it".into(),
    });
    let matrices = device.matrices.map(|side| format!(" (matrices of {side}x{side})"));
    lines.push(format!("dtypes {}{}", device.dtypes.join(", "), matrices.unwrap_or_default()));
    lines.extend(limits(device));
    let labels = std::iter::once(device.id.as_str()).chain(std::iter::repeat(""));
    labels.zip(lines).map(|(label, line)| row(label, line)).collect()
}

/// The limits and features of an adapter.
fn limits(device: &Device) -> Vec<String> {
    let Some(adapter) = &device.adapter else { return Vec::new() };
    let binding = device.max_binding_bytes.map_or_else(|| "any".into(), bytes);
    let subgroups = match adapter.subgroup_sizes {
        None => "no subgroups".to_string(),
        Some([min, max]) if min == max => format!("subgroups of {min}"),
        Some([min, max]) => format!("subgroups of {min} to {max}"),
    };
    let matrices = match &adapter.matrices[..] {
        [] => "no cooperative matrices".to_string(),
        shapes => format!("cooperative matrices {}", shapes.join("; ")),
    };
    vec![
        format!("limits: binding {binding}, buffer {}", bytes(adapter.max_buffer_bytes)),
        format!(
            "limits: {} buffers, {} invocations and {} KiB in a workgroup",
            adapter.max_storage_buffers,
            adapter.max_workgroup_invocations,
            adapter.max_workgroup_bytes >> 10
        ),
        format!("{subgroups}, {matrices}"),
    ]
}

fn memory(reported: &ReportedMemory) -> String {
    let ReportedMemory { total, free, source } = reported;
    format!("{} free of {} ({source})", bytes(*free), bytes(*total))
}

/// Replaces the home folder where a path in `text` begins with it.
fn without_home(text: &str) -> String {
    match std::env::home_dir() {
        Some(home) => shorten(text, &home.display().to_string()),
        None => text.to_string(),
    }
}

fn shorten(text: &str, home: &str) -> String {
    // The home folder of a service may be `/`.
    if home.len() <= 1 {
        return text.to_string();
    }
    let mut short = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(home) {
        let ends =
            after.chars().next().is_none_or(|c| !c.is_alphanumeric() && c != '-' && c != '_');
        let begins = before.chars().last().is_none_or(|c| !c.is_alphanumeric() && c != '/');
        short += before;
        short += if ends && begins { "~" } else { home };
        rest = after;
    }
    short + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{AdapterReport, DeviceKind};

    #[test]
    fn the_home_folder_is_a_tilde() {
        for (text, want) in [
            ("/home/jörg", "~"),
            ("/home/jörg/out, writable", "~/out, writable"),
            ("a:/home/jörg/b:/home/jörg/c", "a:~/b:~/c"),
            ("/home/jörgen/out", "/home/jörgen/out"),
            ("/mnt/home/jörg/out", "/mnt/home/jörg/out"),
            ("out", "out"),
        ] {
            assert_eq!(shorten(text, "/home/jörg"), want);
        }
        assert_eq!(shorten("/out", "/"), "/out");
        assert_eq!(shorten(r"C:\Users\Jörg Ö\out", r"C:\Users\Jörg Ö"), r"~\out");
    }

    #[test]
    fn a_device_has_its_limits_and_features() {
        let adapter = AdapterReport {
            ids: Some("10de:2504".into()),
            max_buffer_bytes: 4 << 30,
            max_storage_buffers: 64,
            max_workgroup_invocations: 1024,
            max_workgroup_bytes: 48 << 10,
            subgroup_sizes: Some([32, 32]),
            matrices: vec!["16x16x16 F16, sums in F32".into()],
        };
        let device = Device {
            id: "vulkan:0".into(),
            name: "NVIDIA GeForce RTX 3060".into(),
            kind: DeviceKind::Discrete,
            driver: "NVIDIA 570.86".into(),
            pci: Some("0000:01:00.0".into()),
            memory: Some(ReportedMemory { total: 12 << 30, free: 11 << 30, source: "the driver" }),
            dtypes: vec!["float32".into(), "float16".into()],
            matrices: Some(16),
            max_binding_bytes: Some(2 << 30),
            adapter: Some(adapter),
        };
        let rows = rows_of(&device);
        assert_eq!(rows[0], row("vulkan:0", "NVIDIA GeForce RTX 3060 (discrete)"));
        assert!(rows[1..].iter().all(|(label, _)| label.is_empty()));
        let lines: Vec<&str> = rows[1..].iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "driver NVIDIA 570.86",
                "PCI 10de:2504 at 0000:01:00.0",
                "memory 11.00 GiB free of 12.00 GiB (the driver)",
                "dtypes float32, float16 (matrices of 16x16)",
                "limits: binding 2.00 GiB, buffer 4.00 GiB",
                "limits: 64 buffers, 1024 invocations and 48 KiB in a workgroup",
                "subgroups of 32, cooperative matrices 16x16x16 F16, sums in F32",
            ]
        );
    }
}
