//! Checks every variant of every kernel in `shaders/`: it parses, validates, and respects the
//! limits that WebGPU guarantees. Every file is part of a kernel.

#![cfg(feature = "wgpu")]

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use wgpt::ops::kernel_variants;

#[test]
fn every_variant_is_valid() {
    let mut failures = Vec::new();
    let (mut seen, mut by_key) = (BTreeSet::new(), HashMap::new());
    for spec in kernel_variants() {
        let source = spec.source();
        let other = by_key.insert(spec.clone(), source.clone());
        if other.is_some_and(|other| other != source) {
            failures.push(format!("{}: another kernel has its key", spec.name()));
        }
        if !seen.insert(source.clone()) {
            continue;
        }
        let of_header = |line: &&str| line.starts_with("const") || line.starts_with("alias");
        let header = source.lines().take(20).filter(of_header);
        let variant = format!("{} {}", spec.name(), header.collect::<Vec<_>>().join(" "));
        let module = match naga::front::wgsl::parse_str(&source) {
            Ok(module) => module,
            Err(error) => {
                failures.push(format!("{variant}\n{}", error.emit_to_string(&source)));
                continue;
            }
        };
        // Nothing beyond WebGPU but subgroup operations, shader-f16 and cooperative matrices, which
        // only devices with more workgroup memory have.
        let mut capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16;
        let mut most_memory = 16_384;
        if spec.matrices().is_some() {
            capabilities |= Capabilities::COOPERATIVE_MATRIX;
            most_memory = 32_768;
        }
        if source.contains("// repeat") || source.contains("// end") {
            failures.push(format!("{variant}: a part is marked, but not repeated"));
        }
        if source.contains("// unroll") {
            failures.push(format!("{variant}: a loop is marked, but not of the form to unroll"));
        }
        if let Err(error) = Validator::new(ValidationFlags::all(), capabilities).validate(&module) {
            failures.push(format!("{variant}\n{}", error.emit_to_string(&source)));
            continue;
        }
        let entry = &module.entry_points[0];
        if entry.name != "main" || entry.workgroup_size != [spec.workgroup(), 1, 1] {
            failures.push(format!("{variant}: {} {:?}", entry.name, entry.workgroup_size));
        }
        let storage = module
            .global_variables
            .iter()
            .filter(|(_, variable)| matches!(variable.space, naga::AddressSpace::Storage { .. }));
        if storage.count() > 8 {
            failures
                .push(format!("{variant}: more than the 8 storage buffers that WebGPU guarantees"));
        }
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).expect("a valid module has a layout");
        let workgroup_memory: u32 = module
            .global_variables
            .iter()
            .filter(|(_, variable)| variable.space == naga::AddressSpace::WorkGroup)
            .map(|(_, variable)| layouter[variable.ty].size)
            .sum();
        if workgroup_memory > most_memory {
            failures.push(format!("{variant}: {workgroup_memory} bytes of workgroup memory"));
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
}

#[test]
fn every_file_is_part_of_a_kernel() {
    let sources: Vec<String> = kernel_variants().iter().map(|spec| spec.source()).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(path.extension().and_then(|e| e.to_str()), Some("wgsl"), "{}", path.display());
        // Unrolled loops differ from their text, the description does not.
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap();
        assert!(sources.iter().any(|source| source.contains(first)), "{}", path.display());
    }
}
