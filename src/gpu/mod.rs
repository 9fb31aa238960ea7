//! Devices: listing them, selecting the one that a run uses, opening it, launching kernels on it and
//! watching it.
//!
//! `error` and `watchdog` are below all, then come `memory`, `device`, `launch` and `sensors`. Only
//! this module and `ops` name wgpu or cubecl.

mod device;
mod error;
mod launch;
mod memory;
#[cfg(not(target_arch = "wasm32"))]
mod sensors;
#[cfg(target_arch = "wasm32")]
#[path = "no_sensors.rs"]
mod sensors;
mod watchdog;

pub use crate::plan::{Backend, DeviceKind};
#[cfg(not(target_arch = "wasm32"))]
pub(crate) use crate::protocol::Search;
pub use crate::protocol::{AdapterReport, DeviceId, DeviceInfo};
pub use device::*;
pub use error::DeviceError;
pub use launch::*;
pub use memory::*;
pub(crate) use sensors::*;
pub use watchdog::{AllowedSilence, Watchdog};
