//! Takes the place of `portal.rs` in builds without the window, and on other systems than Linux.

pub(super) fn version() -> Result<String, String> {
    Err("only Linux has it".into())
}
