//! Gives `wgpt.exe` its icon, version and manifest. Does nothing for other systems.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=assets/windows");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("windows") {
        windows_resources();
    }
}

/// Compiles the resources: by `rc.exe` of the Windows SDK, or by `windres` of mingw. The tests of the
/// library have none.
fn windows_resources() {
    let mut resources = winresource::WindowsResource::new();
    resources
        .set_icon("assets/windows/wgpt.ico")
        .set_manifest_file("assets/windows/wgpt.manifest")
        .set("ProductName", "wgpt")
        .set("FileDescription", "wgpt: train GPT-2 on your graphics card")
        .set("OriginalFilename", "wgpt.exe")
        .set("LegalCopyright", "MIT or Apache-2.0");
    if let Err(error) = resources.compile_for("wgpt") {
        panic!(
            "wgpt.exe gets no icon, version and manifest: {error}; install the Windows SDK, or \
             binutils-mingw-w64-x86-64 for a cross build"
        );
    }
}
