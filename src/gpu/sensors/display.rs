//! The GPUs that draw the desktop of Windows.

/// Returns true if a GPU of this name draws a part of the desktop; `None` on other systems.
#[cfg(not(windows))]
pub fn draws(_: &str) -> Option<bool> {
    None
}

#[cfg(windows)]
pub fn draws(name: &str) -> Option<bool> {
    Some(desktops().iter().any(|gpu| gpu == name))
}

/// Returns the names of the GPUs that draw the desktop.
#[cfg(windows)]
fn desktops() -> Vec<String> {
    use windows_sys::Win32::Graphics::Gdi::{
        DISPLAY_DEVICE_ATTACHED_TO_DESKTOP, DISPLAY_DEVICEW, EnumDisplayDevicesW,
    };

    let size = size_of::<DISPLAY_DEVICEW>() as u32;
    let mut names = Vec::new();
    for number in 0.. {
        let mut device = DISPLAY_DEVICEW { cb: size, ..Default::default() };
        #[allow(
            unsafe_code,
            reason = "the library has no safe function; it writes to `device` alone"
        )]
        // SAFETY: no name is given, and the pointer is to a value on the stack whose size is in it.
        let is_there =
            unsafe { EnumDisplayDevicesW(std::ptr::null(), number, &mut device, 0) } != 0;
        if !is_there {
            break;
        }
        if device.StateFlags & DISPLAY_DEVICE_ATTACHED_TO_DESKTOP != 0 {
            let text = String::from_utf16_lossy(&device.DeviceString);
            names.push(text.trim_end_matches('\0').to_string());
        }
    }
    names
}

#[cfg(all(test, windows))]
mod tests {
    use super::*;

    #[test]
    fn a_desktop_is_drawn_by_a_gpu() {
        let names = desktops();
        assert!(names.iter().all(|name| draws(name) == Some(true)), "{names:?}");
        assert_eq!(draws("an unknown GPU"), Some(false));
    }
}
