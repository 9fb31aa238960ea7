//! The text of a report, from the fields that `--json` prints.

use std::fmt;

use serde_json::Value;

use super::{DoctorReport, Folder};
use crate::text::{Table, bytes};
use crate::version;

/// Labels and the fields with their values, as JSON pointers.
type Labels = &'static [(&'static str, &'static str)];

const SYSTEM: Labels = &[
    ("os", "/system/os"),
    ("kernel", "/system/kernel"),
    ("cpu", "/system/cpu"),
    ("threads", "/system/threads"),
    ("memory", "/system/memory"),
    ("mpi", "/mpi"),
    ("program", "/build/program"),
];

/// After the name and the kind of a device.
const DEVICE: Labels = &[
    ("driver", "/driver"),
    ("PCI address", "/pci"),
    ("PCI ids", "/adapter/ids"),
    ("memory", "/memory"),
    ("health", "/health"),
    ("dtypes", "/dtypes"),
    ("side of matrices", "/matrices"),
    ("largest binding", "/max_binding_bytes"),
    ("largest buffer", "/adapter/max_buffer_bytes"),
    ("storage buffers", "/adapter/max_storage_buffers"),
    ("invocations in a workgroup", "/adapter/max_workgroup_invocations"),
    ("memory of a workgroup", "/adapter/max_workgroup_bytes"),
    ("subgroups", "/adapter/subgroup_sizes"),
    ("cooperative matrices", "/adapter/matrices"),
];

const WINDOW: Labels = &[("display", "/display"), ("file dialogs", "/file_dialogs")];

impl fmt::Display for DoctorReport {
    /// Writes the report without a final line break. The home folder is `~`, because its path has the user's
    /// name and people publish this text.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wgpt {}", version::describe())?;
        let report = serde_json::to_value(self).map_err(|_| fmt::Error)?;
        let mut devices: Vec<_> = self.devices.iter().flat_map(device).collect();
        devices.extend(rows(&report, &[("no cuda", "/no_cuda"), ("auto", "/auto")]));
        let folder = |Folder { purpose, path, exists, error }: &Folder| {
            let state = match error {
                Some(error) => format!("not writable: {error}"),
                None if *exists => "writable".into(),
                None => "created when needed".into(),
            };
            (purpose.to_string(), format!("{path}, {state}"))
        };
        let variables = self.variables.iter().map(|(name, value)| (name.clone(), value.clone()));
        for (title, rows) in [
            ("system", rows(&report, SYSTEM)),
            ("devices", devices),
            ("folders", self.folders.iter().map(folder).collect()),
            ("window", rows(&report, WINDOW)),
            ("environment", variables.collect()),
        ] {
            if !rows.is_empty() {
                let table = without_home(&Table::named([], rows).plain(&[]));
                write!(f, "\n\n{title}\n  {}", table.trim_end().replace('\n', "\n  "))?;
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

fn word(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

fn rows(value: &Value, labels: Labels) -> Vec<(String, String)> {
    let row = |(label, field): &(&str, &str)| {
        Some((label.to_string(), field_text(field, value.pointer(field)?)?))
    };
    labels.iter().filter_map(row).collect()
}

/// Returns the rows of a device: its name next to its id, then its fields without a label.
fn device(device: &Value) -> Vec<(String, String)> {
    let name = format!("{} ({})", word(&device["name"]), word(&device["kind"]));
    let fields = rows(device, DEVICE).into_iter();
    let fields = fields.map(|(label, text)| (String::new(), format!("{label}: {text}")));
    std::iter::once((word(&device["id"]), name)).chain(fields).collect()
}

fn field_text(field: &str, value: &Value) -> Option<String> {
    let size = |size: &Value| bytes(size.as_u64().unwrap_or_default());
    Some(match value {
        Value::Null => return None,
        Value::Number(count) if field.ends_with("_bytes") => match count.as_u64() {
            Some(bytes @ ..1_048_576) => format!("{} KiB", bytes >> 10),
            _ => size(value),
        },
        Value::Array(values) if values.is_empty() => "none".into(),
        Value::Array(values) => {
            let texts = values.iter().filter_map(|value| field_text(field, value));
            let mut texts: Vec<String> = texts.collect();
            texts.dedup();
            texts.join(if field.ends_with("_sizes") { " to " } else { ", " })
        }
        // The memory of a machine or a device.
        Value::Object(memory) if memory.contains_key("total") => {
            let [free, total] = ["free", "total"].map(|part| size(&value[part]));
            format!("{free} free of {total} ({})", word(&value["source"]))
        }
        Value::Object(check) if check.contains_key("works") => {
            let state = match (value["works"] == true, field) {
                (true, _) => "",
                // No problem: a run on one device needs none.
                (false, "/mpi") => "none: ",
                (false, _) => "missing: ",
            };
            format!("{state}{}", word(&value["detail"]))
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    })
}

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
    use serde_json::json;

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
            multiprocessors: Some(28),
            matrices: vec!["16x16x16 F16, sums in F32".into()],
        };
        let device = json!({
            "id": "vulkan:0",
            "name": "NVIDIA GeForce RTX 3060",
            "kind": DeviceKind::Discrete,
            "driver": "NVIDIA 570.86",
            "pci": "0000:01:00.0",
            "memory": { "total": 12u64 << 30, "free": 11u64 << 30, "source": "the driver" },
            "health": "41 °C, 17 W",
            "dtypes": ["float32", "float16"],
            "matrices": 16,
            "max_binding_bytes": 2u64 << 30,
            "adapter": adapter,
        });
        let rows = super::device(&device);
        assert_eq!(rows[0], ("vulkan:0".into(), "NVIDIA GeForce RTX 3060 (discrete)".into()));
        assert!(rows[1..].iter().all(|(label, _)| label.is_empty()));
        let lines: Vec<&str> = rows[1..].iter().map(|(_, line)| line.as_str()).collect();
        assert_eq!(
            lines,
            [
                "driver: NVIDIA 570.86",
                "PCI address: 0000:01:00.0",
                "PCI ids: 10de:2504",
                "memory: 11.00 GiB free of 12.00 GiB (the driver)",
                "health: 41 °C, 17 W",
                "dtypes: float32, float16",
                "side of matrices: 16",
                "largest binding: 2.00 GiB",
                "largest buffer: 4.00 GiB",
                "storage buffers: 64",
                "invocations in a workgroup: 1024",
                "memory of a workgroup: 48 KiB",
                "subgroups: 32",
                "cooperative matrices: 16x16x16 F16, sums in F32",
            ]
        );
    }
}
