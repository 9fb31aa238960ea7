//! The facts that a page of the browser build knows.

use serde_json::json;

use super::{DoctorReport, build, device};
use crate::gpu::DeviceInfo;

impl DoctorReport {
    pub fn of_page(browser: String, device_info: Option<&DeviceInfo>) -> Self {
        Self {
            build: build(),
            system: json!({ "os": browser, "threads": 1 }),
            devices: device_info.into_iter().map(device).collect(),
            ..Self::default()
        }
        .with_problems(device_info.map_or(&[], std::slice::from_ref))
    }
}
