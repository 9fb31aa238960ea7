//! A build without CUDA has none of its devices.

use crate::config::Dtype;
use crate::protocol::DeviceInfo;

pub fn devices() -> Vec<DeviceInfo> {
    Vec::new()
}

pub fn absence() -> String {
    String::new()
}

pub fn without_tensor_cores(_: &DeviceInfo, _: Dtype) -> Option<String> {
    None
}
