//! The target that the window was built for.

/// True for the window of a page.
pub const IS_PAGE: bool = cfg!(target_arch = "wasm32");
