//! Vulkan beyond wgpu: devices for kernels on cooperative matrices, memory and multiprocessors.

mod device;
mod query;
pub mod spirv_memory_model;

pub use device::request;
pub use query::{granted_memory, multiprocessors};
