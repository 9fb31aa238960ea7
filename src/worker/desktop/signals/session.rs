//! The end of a Windows session: a logout, a restart or a shutdown.
//!
//! The system tells it only to the windows of a program that has loaded user32.dll, as one with a graphics driver
//! has, and not to the handler of its console. So this waits on a thread, with a window that is never shown.

use std::cell::Cell;
use std::io;
use std::ptr::{null, null_mut};

use windows_sys::Win32::Foundation::{HWND, LPARAM, LRESULT, WPARAM};
use windows_sys::Win32::UI::WindowsAndMessaging::{
    CreateWindowExW, DefWindowProcW, DispatchMessageW, GWLP_WNDPROC, GetMessageW, MSG,
    SetWindowLongPtrW, WM_ENDSESSION, WM_QUERYENDSESSION,
};
use windows_sys::w;

thread_local! {
    /// Called by this thread's window when the session ends.
    static END: Cell<Option<Box<dyn FnOnce()>>> = const { Cell::new(None) };
}

/// Calls `end` when the session ends, on a thread. Then the system waits for the end of this process, for five
/// seconds by default.
pub(super) fn listen(end: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name("end of session".into()).spawn(move || {
        END.set(Some(Box::new(end)));
        wait();
    })?;
    Ok(())
}

/// Takes the messages of a window. Without a desktop, as for a service, there is none, and this returns.
#[expect(unsafe_code, reason = "windows and their messages are C functions")]
fn wait() {
    // SAFETY: the strings end with a zero, the null pointers stand for what a window need not have, and the
    // procedure has the type of one. A window of the class STATIC, which exists in every process, takes another
    // procedure. It must be a top-level one: one for messages alone does not hear of the session.
    unsafe {
        let window = CreateWindowExW(
            0,
            w!("STATIC"),
            w!("wgpt"),
            0,
            0,
            0,
            0,
            0,
            null_mut(),
            null_mut(),
            null_mut(),
            null(),
        );
        if window.is_null() {
            return;
        }
        SetWindowLongPtrW(window, GWLP_WNDPROC, procedure as *const () as isize);
        let mut message = MSG::default();
        while GetMessageW(&mut message, null_mut(), 0, 0) > 0 {
            DispatchMessageW(&message);
        }
    }
}

/// Answers a message to the window.
#[expect(unsafe_code, reason = "the system calls it")]
unsafe extern "system" fn procedure(
    window: HWND,
    message: u32,
    first: WPARAM,
    second: LPARAM,
) -> LRESULT {
    match message {
        WM_QUERYENDSESSION => 1,
        // Zero if another program has prevented the end.
        WM_ENDSESSION if first != 0 => {
            if let Some(end) = END.take() {
                end();
            }
            // The system ends this process as soon as this returns.
            loop {
                std::thread::park();
            }
        }
        // SAFETY: these are the arguments that the system passed in.
        _ => unsafe { DefWindowProcW(window, message, first, second) },
    }
}
