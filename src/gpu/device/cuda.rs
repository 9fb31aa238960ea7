//! NVIDIA GPUs through burn's CUDA backend.

use std::ffi::CStr;

use burn::tensor::Device;
use burn_cubecl::CubeDevice;
use cudarc::driver::{result, sys};

use crate::config::{Abilities, Dtype};
use crate::gpu::memory::has_tensor_cores;
use crate::plan::{Backend, DeviceKind};
use crate::protocol::DeviceId;
use crate::protocol::DeviceInfo;

/// The library that opens CUDA. It comes with NVIDIA's driver.
const LIBRARY: &str = if cfg!(windows) { "nvcuda.dll" } else { "libcuda.so.1" };

/// The file in which Linux names the loaded NVIDIA driver.
const LOADED: &str = "/proc/driver/nvidia/version";

/// Explains to the user why no CUDA device is available.
pub fn absence() -> String {
    let loaded = std::fs::read_to_string(LOADED).ok();
    match loaded.as_deref().and_then(version) {
        Some(version) => format!(
            "NVIDIA's driver {version} is loaded, but CUDA finds no GPU: {LIBRARY} is missing or has \
             another version"
        ),
        None => format!("no NVIDIA driver found ({LIBRARY}), or no GPU that it supports"),
    }
}

/// Returns the driver's version, like 570.86.10, from the text of `LOADED`.
fn version(loaded: &str) -> Option<&str> {
    let mut words = loaded.lines().next()?.split_whitespace();
    words.find(|word| word.contains('.') && word.starts_with(|c: char| c.is_ascii_digit()))
}

/// Lists the GPUs that the CUDA driver reports, without opening them: a context takes 150 to 450 MB of a
/// GPU's memory until the process ends.
pub fn devices() -> Vec<DeviceInfo> {
    // burn's own list would also open the devices of the other APIs, whose drivers print messages. This
    // looks for the driver's library and counts its GPUs.
    let count = (0..).take_while(|&index| CubeDevice::cuda(index).is_ok()).count();
    (0..count).filter_map(|index| describe(index).ok()).collect()
}

/// Asks the driver about a GPU. Its library must exist.
#[allow(unsafe_code, reason = "queries of the driver that cudarc has as unsafe functions only")]
fn describe(index: usize) -> Result<DeviceInfo, result::DriverError> {
    result::init()?;
    let device = result::device::get(index as i32)?;
    let name = result::device::get_name(device).unwrap_or_else(|_| "NVIDIA GPU".into());
    let capability = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR;
    let mut address = [0_u8; 32];
    // SAFETY: cudarc asks for a device that `get` returned, and CUDA for room for the number of bytes that
    // it is given with the address. Neither call keeps a pointer.
    let (major, has_address) = unsafe {
        let length = address.len() as i32;
        let found = sys::cuDeviceGetPCIBusId(address.as_mut_ptr().cast(), length, device);
        (result::device::get_attribute(device, capability)?, found.result().is_ok())
    };
    let address = CStr::from_bytes_until_nul(&address).ok().and_then(|text| text.to_str().ok());
    Ok(DeviceInfo {
        id: DeviceId { backend: Backend::Cuda, index },
        name,
        kind: DeviceKind::Discrete,
        driver: "CUDA".into(),
        max_binding: None,
        // In Vulkan's form, under which the driver reports free memory.
        pci: address.filter(|_| has_address).map(str::to_ascii_lowercase),
        // cubecl's kernels store all of them on every GPU, but for tf32.
        abilities: Abilities {
            tf32: major >= 8,
            bfloat16: true,
            float16: true,
            ..Abilities::default()
        },
        adapter: None,
    })
}

/// Returns a warning if this NVIDIA GPU has no tensor cores for `dtype`, which slows products down.
pub fn without_tensor_cores(info: &DeviceInfo, dtype: Dtype) -> Option<String> {
    let DeviceInfo { id, name, .. } = info;
    if id.backend != Backend::Cuda || dtype == Dtype::Float32 {
        return None;
    }
    let without = !has_tensor_cores(&Device::cuda(id.index), dtype);
    without.then(|| {
        format!(
            "{name} ({id}) has no tensor cores for {dtype}: matrix products are several times slower \
             without them"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_read() {
        let loaded = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12 \
                      19:39:15 UTC 2024\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n";
        assert_eq!(version(loaded), Some("535.183.01"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.10  Release\n";
        assert_eq!(version(open), Some("570.86.10"));
        assert_eq!(version(""), None);
    }
}
