//! The devices of this machine: their descriptions, the choice of the one that a run uses, and opening it.

#[cfg(feature = "wgpu")]
mod adapter;
#[cfg(not(feature = "wgpu"))]
#[path = "no_adapter.rs"]
mod adapter;
mod choice;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(all(not(feature = "cuda"), not(target_arch = "wasm32")))]
#[path = "no_cuda.rs"]
mod cuda;
mod driver;
mod info;
#[cfg(not(target_arch = "wasm32"))]
mod list;
mod select;
#[cfg(not(target_arch = "wasm32"))]
mod threads;

pub use choice::DeviceChoice;
pub use driver::DriverTraits;
pub use select::{OpenDevice, SelectedDevice};

#[cfg(not(target_arch = "wasm32"))]
mod desktop {
    pub(crate) use super::adapter::{Adapter, granted_memory, memory_adapter};
    pub(crate) use super::cuda::without_tensor_cores;
    pub use super::list::{best, devices, open, select, select_for_rank, why_no_cuda};
    pub(crate) use super::list::{choose, list, select_without};
    pub(crate) use super::threads::start_compute_threads;
}
#[cfg(not(target_arch = "wasm32"))]
pub use desktop::*;

#[cfg(all(feature = "gui", not(target_arch = "wasm32")))]
pub(crate) use adapter::apis;
#[cfg(all(feature = "wgpu", any(windows, target_os = "linux", target_os = "freebsd")))]
pub use adapter::spirv_memory_model;
#[cfg(all(feature = "wgpu", target_arch = "wasm32"))]
pub use select::select_in_browser;
