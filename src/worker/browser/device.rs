//! The device that the browser offers, or the obstacle to training.

use js_sys::Reflect;
use wasm_bindgen::prelude::JsValue;

use crate::config::Precision;
use crate::gpu::{self, Backend, DeviceError, DeviceId, OpenDevice};
use crate::protocol::{Obstacle, Topic};

/// Opens the device. The error is the obstacle, if the browser offers none.
pub(super) async fn open() -> Result<OpenDevice, Obstacle> {
    if !is_truthy(&["isSecureContext"]) {
        return Err(Obstacle::new(
            Topic::Device,
            "browsers do not let a page use the graphics card over plain HTTP",
            "open the page over HTTPS, or from this machine as http://localhost",
        ));
    }
    if !is_truthy(&["navigator", "gpu"]) {
        return Err(Obstacle::new(
            Topic::Device,
            "this browser has no WebGPU",
            "use Chrome, Edge, Firefox or Safari from 2026 or later, or wgpt on the desktop",
        ));
    }
    let Some(found) = gpu::select_in_browser().await else {
        return Err(Obstacle::new(
            Topic::Device,
            "the browser supports WebGPU, but offers no graphics adapter",
            "update the graphics driver; on Linux start Chrome with --enable-unsafe-webgpu \
             --enable-features=Vulkan; chrome://gpu shows the reason",
        ));
    };
    // Browsers have no cooperative matrices: the device is the same for each precision.
    found.open_async(Precision::FLOAT32).await.map_err(|error| {
        let hint = match error {
            DeviceError::TooSmall { .. } => {
                "use another browser or machine, or wgpt on the desktop"
            }
            _ => "update the graphics driver; chrome://gpu shows more",
        };
        Obstacle::new(Topic::Device, error.to_string(), hint)
    })
}

/// The obstacle of a device that computes in software.
pub(super) fn software_obstacle() -> Obstacle {
    let text = "the browser computes on the CPU: training works, slowly";
    let hint =
        "use a machine with a graphics card; on Linux, Chrome needs --enable-features=Vulkan";
    Obstacle::new(Topic::SoftwareAdapter, text, hint)
}

/// The error of a run without a device because of an obstacle.
pub(super) fn unavailable(obstacle: &Obstacle) -> DeviceError {
    let id = DeviceId { backend: Backend::WebGpu, index: 0 };
    DeviceError::Open { id, name: "WebGPU".into(), reason: obstacle.text.clone() }
}

/// Returns true if a property of the global object, or of one of its properties, is set.
fn is_truthy(path: &[&str]) -> bool {
    let property = path.iter().fold(js_sys::global().into(), |object: JsValue, name| {
        Reflect::get(&object, &JsValue::from_str(name)).unwrap_or(JsValue::UNDEFINED)
    });
    property.is_truthy()
}
