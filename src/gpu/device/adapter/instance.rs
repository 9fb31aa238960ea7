//! wgpu instances that do not connect to the window system.
//!
//! Training needs no window, and containers, cron jobs and ssh sessions have none.

use std::path::Path;

use wgpu::{Backends, Instance, InstanceDescriptor, InstanceFlags};

use crate::disk;

/// Creates the instances that list the adapters of `backends`. None of them connects to X11 or Wayland.
pub fn instances(backends: Backends) -> Vec<Instance> {
    let mut instances = Vec::new();
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    if backends.contains(Backends::VULKAN) {
        instances.extend(vulkan_without_surfaces());
    }
    #[cfg(any(target_os = "linux", target_os = "freebsd"))]
    let backends = backends.difference(Backends::VULKAN);
    if !backends.is_empty() {
        let mut backend_options = wgpu::BackendOptions::default();
        backend_options.dx12.shader_compiler = shader_compiler();
        instances.push(Instance::new(InstanceDescriptor {
            backends,
            // No validation layers, and no warnings from drivers that are merely installed.
            flags: InstanceFlags::empty(),
            backend_options,
            // Without a display handle, OpenGL goes through EGL's surfaceless platform.
            ..InstanceDescriptor::new_without_display_handle()
        }));
    }
    instances
}

/// Returns the compiler for kernels on DirectX 12. This is DXC if it is linked in (feature `static-dxc`)
/// or in the folder of the program. Otherwise it is FXC, which every Windows has, and which knows
/// neither float16 nor subgroups.
///
/// wgpu's own search would also load a library from the working folder, where anyone may have put it.
#[allow(clippy::disallowed_methods, reason = "looks next to the program, and does not start it")]
fn shader_compiler() -> wgpu::Dx12Compiler {
    if cfg!(all(feature = "static-dxc", windows, target_env = "msvc", target_arch = "x86_64")) {
        return wgpu::Dx12Compiler::StaticDxc;
    }
    let next_to_program = || Some(std::env::current_exe().ok()?.with_file_name("dxcompiler.dll"));
    let library = next_to_program().filter(|path| cfg!(windows) && disk::is_file(path));
    match library.as_deref().and_then(Path::to_str) {
        Some(path) => wgpu::Dx12Compiler::DynamicDxc { dxc_path: path.to_string() },
        None => wgpu::Dx12Compiler::Fxc,
    }
}

/// Creates a Vulkan instance without the extensions for X11 and Wayland; `None` without a Vulkan loader.
///
/// wgpu enables them even if nothing is drawn. Mesa's device-select layer then connects to
/// the compositor each time devices are listed, and libwayland prints `error: XDG_RUNTIME_DIR is
/// invalid or not set in the environment` without a desktop session.
#[cfg(any(target_os = "linux", target_os = "freebsd"))]
#[allow(
    unsafe_code,
    reason = "wgpu creates an instance with other extensions only through wgpu-hal"
)]
fn vulkan_without_surfaces() -> Option<Instance> {
    use wgpu::hal::{InstanceDescriptor, vulkan};

    const SURFACES: [&std::ffi::CStr; 3] =
        [c"VK_KHR_xlib_surface", c"VK_KHR_xcb_surface", c"VK_KHR_wayland_surface"];
    let descriptor = InstanceDescriptor {
        name: "wgpt",
        flags: InstanceFlags::empty(),
        memory_budget_thresholds: Default::default(),
        backend_options: Default::default(),
        telemetry: None,
        display: None,
    };
    // SAFETY: wgpu-hal asks that the callback remove nothing it relies on. It does not rely on these
    // three: it leaves each of them out by itself where the loader lacks it, and reads them only to
    // create a surface, which nothing here does. `VK_KHR_surface`, which the device extension
    // `VK_KHR_swapchain` needs, stays. The instance is valid, and wgpu becomes its only owner.
    unsafe {
        let instance = vulkan::Instance::init_with_callback(
            &descriptor,
            Some(Box::new(|args| args.extensions.retain(|name| !SURFACES.contains(name)))),
        );
        Some(Instance::from_hal::<vulkan::Api>(instance.ok()?))
    }
}
