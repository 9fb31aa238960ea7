//! The memory of devices: what the pools hold, and reads of tensors.

mod amounts;
mod dtype;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod pools;
#[cfg(not(any(feature = "wgpu", feature = "cuda")))]
#[path = "no_pools.rs"]
mod pools;
mod read;

pub(crate) use amounts::GrantedMemory;
pub use amounts::{Memory, ReportedMemory};
pub(crate) use dtype::stored;
pub use pools::*;
#[cfg(not(target_arch = "wasm32"))]
pub use read::wait;
pub(crate) use read::{Reading, begin_read, is_done};
