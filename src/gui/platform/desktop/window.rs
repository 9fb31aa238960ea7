//! Opening the window.

use std::cell::Cell;
use std::rc::Rc;

use eframe::egui;
use winit::event_loop::ControlFlow;

use super::display::{APP, FIRST_COMMANDS, cannot_open, connect, reason};
use crate::disk;
use crate::gpu::{Backend, Search, apis};
use crate::gui::options::WindowOptions;
use crate::protocol::Failure;
use crate::worker::list_devices;

const DRIVER: &str = "install the driver of the graphics card, or a software renderer (on Debian and \
                      Ubuntu: mesa-vulkan-drivers); `wgpt train` trains without a window";

/// The icon of the window: `web/icon.svg`, 128 x 128. On Windows, the program file has another icon.
const ICON: &[u8] = include_bytes!("../../../../assets/icon.png");

/// The size of the first window and its smallest size, in points.
const SIZE: [f32; 2] = [1360.0, 860.0];
const MIN_SIZE: [f32; 2] = [900.0, 600.0];

/// Opens a window that shows the app that `create` returns, until it is closed.
pub fn open<A: eframe::App + 'static>(
    options: WindowOptions,
    create: impl FnOnce(&eframe::CreationContext<'_>, WindowOptions) -> A + 'static,
) -> Result<(), Failure> {
    // Built here and not by eframe, because wgpt exits with an error message if the display is missing.
    let event_loop = connect()?;
    event_loop.set_control_flow(ControlFlow::Wait);
    // An icon that does not decode becomes egui's own.
    let icon = eframe::icon_data::from_png_bytes(ICON).unwrap_or_default();
    let viewport = egui::ViewportBuilder::default()
        .with_title("wgpt")
        .with_app_id(APP)
        .with_icon(icon)
        .with_inner_size(SIZE)
        .with_min_inner_size(MIN_SIZE)
        .with_drag_and_drop(true);
    // A screenshot looks the same on every machine: it takes nothing from earlier windows.
    let persist = options.screenshot.is_none();
    // eframe stores the places of panels even so.
    let unused = std::env::temp_dir().join(format!("wgpt-screenshot-{}.ron", std::process::id()));
    let mut native = eframe::NativeOptions {
        viewport,
        persist_window: persist,
        persistence_path: (!persist).then(|| unused.clone()),
        ..Default::default()
    };
    // The window loads drivers to draw, and one that crashes would end it.
    leave_out(&mut native, &list_devices(Search::All).without());
    // eframe only logs that it cannot draw to the display, and returns as if the window had been closed.
    let has_drawn = Rc::new(Cell::new(false));
    let draws = has_drawn.clone();
    let creator: eframe::AppCreator<'_> = Box::new(move |creation| {
        draws.set(true);
        Ok(Box::new(create(creation, options)))
    });
    let mut window = eframe::create_native(APP, native, creator, &event_loop);
    let run = event_loop.run_app(&mut window);
    let _ = disk::remove_file(&unused);
    run.map_err(|error| cannot_open(&reason(&error), FIRST_COMMANDS))?;
    if has_drawn.get() {
        return Ok(());
    }
    Err(cannot_open("no graphics driver can draw to this display", DRIVER))
}

/// Keeps a window from the graphics APIs of `backends`, to draw with others.
fn leave_out(native: &mut eframe::NativeOptions, backends: &[Backend]) {
    if let eframe::egui_wgpu::WgpuSetup::CreateNew(setup) = &mut native.wgpu_options.wgpu_setup {
        setup.instance_descriptor.backends.remove(apis(backends));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_icon_decodes() {
        assert_eq!(eframe::icon_data::from_png_bytes(ICON).unwrap().width, 128);
    }

    #[test]
    fn a_window_does_not_draw_with_a_driver_that_crashes() {
        let [vulkan, gl] = [Backend::Vulkan, Backend::Gl].map(|backend| apis(&[backend]));
        let backends = |crashed: &[Backend]| {
            let mut native = eframe::NativeOptions::default();
            *backends_of(&mut native) = vulkan | gl;
            leave_out(&mut native, crashed);
            *backends_of(&mut native)
        };
        assert_eq!(backends(&[]), vulkan | gl);
        assert_eq!(backends(&[Backend::Vulkan]), gl);
    }

    /// Returns the APIs that a window may draw with. Without a change, `WGPU_BACKEND` decides.
    fn backends_of(native: &mut eframe::NativeOptions) -> &mut eframe::wgpu::Backends {
        match &mut native.wgpu_options.wgpu_setup {
            eframe::egui_wgpu::WgpuSetup::CreateNew(setup) => {
                &mut setup.instance_descriptor.backends
            }
            other => panic!("{other:?}"),
        }
    }
}
