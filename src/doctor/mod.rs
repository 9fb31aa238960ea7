//! Gathers the facts for a bug report: this build, the machine, its devices, the folders of wgpt, and
//! problems with a hint at each.
//!
//! [`DoctorReport`] is plain data. `wgpt doctor` and the window's help show its text, and `--json`
//! prints the same fields. It has no file's content and no setting of a run.

#[cfg_attr(target_arch = "wasm32", path = "page.rs")]
mod machine;
mod problem;
mod text;

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Value, json};

use crate::gpu::{self, DeviceInfo};
pub(crate) use crate::protocol::{FeatureCheck, FrontEnd};
use crate::version;
pub(crate) use problem::Problem;

#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct DoctorReport {
    pub build: Value,
    pub system: Value,
    /// The devices of the machine, the CPU last.
    pub devices: Vec<Value>,
    /// The device that `--device=auto` selects, and the reason.
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

/// From what works, or the reason why nothing does.
impl From<Result<String, String>> for FeatureCheck {
    fn from(result: Result<String, String>) -> Self {
        let works = result.is_ok();
        let (Ok(detail) | Err(detail)) = result;
        Self { works, detail }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Folder {
    /// The kind of files: runs, settings, speeds.
    pub purpose: &'static str,
    /// Parts that are not Unicode are replaced.
    pub path: String,
    pub exists: bool,
    /// The reason why no file can be created there; `None` if one can. A folder that does not exist
    /// is created with the first file, in the nearest folder above that does.
    pub error: Option<String>,
}

impl DoctorReport {
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
