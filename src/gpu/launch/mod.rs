//! Launching kernels: those of `shaders/`, and what they share with the kernels in Rust.

#[cfg(feature = "cuda")]
pub mod cublas;
#[cfg(not(feature = "cuda"))]
#[path = "no_cublas.rs"]
pub mod cublas;
#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "wgpu")]
pub mod kernel;
#[cfg(all(any(feature = "wgpu", feature = "cuda"), not(target_arch = "wasm32")))]
mod observer;
#[cfg(any(not(any(feature = "wgpu", feature = "cuda")), target_arch = "wasm32"))]
#[path = "no_observer.rs"]
mod observer;
#[cfg(feature = "wgpu")]
mod params;
#[cfg(not(target_arch = "wasm32"))]
mod peaks;
#[cfg(any(feature = "wgpu", feature = "cuda"))]
pub mod queue;
#[cfg(feature = "wgpu")]
mod unroll;

pub use observer::*;
#[cfg(not(target_arch = "wasm32"))]
pub use peaks::*;
