//! Checks every variant of every kernel in `shaders/`: it parses, validates, respects the limits that
//! WebGPU guarantees, and becomes HLSL for DirectX 12 and MSL for Metal. Every file is part of a kernel.
//! `spirv_memory_model` checks the SPIR-V of kernels with cooperative matrices.

#![cfg(feature = "wgpu")]

#[cfg(any(windows, target_os = "linux", target_os = "freebsd"))]
#[path = "shaders/spirv_memory_model.rs"]
mod spirv_memory_model;

use std::collections::{BTreeSet, HashMap};
use std::path::Path;

use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, FunctionInfo, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Block, Expression, Function, Handle, ScalarKind, ShaderStage};
use naga::{Statement, Type, TypeInner};
use wgpt::config::Matrices;
use wgpt::gpu::kernel::{ParamType, Spec};
use wgpt::gpu::spirv_memory_model::with_memory_model;
use wgpt::ops::kernel_variants;

#[test]
fn every_variant_is_valid() {
    let mut failures = Vec::new();
    let mut seen = BTreeSet::new();
    let (mut by_key, mut by_name) = (HashMap::new(), HashMap::new());
    for spec in kernel_variants() {
        let source = spec.source();
        let others = [
            by_key.insert(spec.clone(), source.clone()),
            by_name.insert(spec.name(), source.clone()),
        ];
        if others.into_iter().flatten().any(|other| other != source) {
            failures.push(format!("{}: another kernel has its key or its name", spec.name()));
        }
        if !seen.insert(source.clone()) {
            continue;
        }
        let of_header = |line: &&str| line.starts_with("const") || line.starts_with("alias");
        let header = source.lines().take(20).filter(of_header);
        let variant = format!("{} {}", spec.shader.name, header.collect::<Vec<_>>().join(" "));
        let module = match naga::front::wgsl::parse_str(&source) {
            Ok(module) => module,
            Err(error) => {
                failures.push(format!("{variant}\n{}", error.emit_to_string(&source)));
                continue;
            }
        };
        // Kernels use nothing beyond WebGPU except subgroup operations, shader-f16 and cooperative
        // matrices, which only devices with more workgroup memory have.
        let mut capabilities = Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16;
        let mut most_memory = 16_384;
        if spec.matrices.is_some() {
            capabilities |= Capabilities::COOPERATIVE_MATRIX | Capabilities::SUBGROUP_BARRIER;
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
        if entry.name != "main" || entry.workgroup_size != [spec.workgroup, 1, 1] {
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
        let params = module.global_variables.iter().map(|(_, variable)| variable);
        let params = params.filter(|variable| variable.space == naga::AddressSpace::Uniform);
        let declared = params.map(|variable| fields(&module, variable.ty, "", 0));
        let written = laid_out(spec.shader.params, "", &mut 0);
        if declared.flatten().collect::<Vec<_>>() != written {
            failures.push(format!("{variant}: the parameters are not {written:?}"));
        }
        let workgroup_memory = workgroup_memory(&module);
        if workgroup_memory > most_memory {
            failures.push(format!("{variant}: {workgroup_memory} bytes of workgroup memory"));
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n\n"));
}

/// Returns the bytes of workgroup memory that a valid module declares.
fn workgroup_memory(module: &naga::Module) -> u32 {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("a valid module has a layout");
    let variables = module.global_variables.iter().map(|(_, variable)| variable);
    let shared = variables.filter(|variable| variable.space == naga::AddressSpace::WorkGroup);
    shared.map(|variable| layouter[variable.ty].size).sum()
}

/// A field of a kernel's parameters: its path, its offset in bytes and its type.
type Field = (String, u32, ScalarKind);

/// Returns the fields that a source declares.
fn fields(module: &naga::Module, ty: Handle<Type>, path: &str, offset: u32) -> Vec<Field> {
    match &module.types[ty].inner {
        TypeInner::Scalar(scalar) => vec![(path.to_string(), offset, scalar.kind)],
        TypeInner::Struct { members, .. } => {
            let of_member = |member: &naga::StructMember| {
                let path = format!("{path}.{}", member.name.as_deref().unwrap_or_default());
                fields(module, member.ty, &path, offset + member.offset)
            };
            members.iter().flat_map(of_member).collect()
        }
        TypeInner::Array { base, stride: 16, .. } => {
            fields(module, *base, &format!("{path}[]"), offset)
        }
        other => panic!("{path} is no parameter: {other:?}"),
    }
}

/// Returns the fields that the program writes, the first at `offset`. Sets `offset` to the end of the
/// last.
fn laid_out(ty: ParamType, path: &str, offset: &mut u32) -> Vec<Field> {
    let scalar = |kind, offset: &mut u32| {
        *offset += 4;
        vec![(path.to_string(), *offset - 4, kind)]
    };
    let (members, path) = match ty {
        ParamType::U32 => return scalar(ScalarKind::Uint, offset),
        ParamType::F32 => return scalar(ScalarKind::Float, offset),
        ParamType::Struct(members) => (members, path.to_string()),
        ParamType::Array(members) => (members, format!("{path}[]")),
    };
    *offset = offset.next_multiple_of(16);
    let of_member =
        |&(name, ty): &(&str, ParamType)| laid_out(ty, &format!("{path}.{name}"), offset);
    members.iter().flat_map(of_member).collect()
}

/// Writes the kernels that GPUs run in a preset's training, as wgpu hands them to a Vulkan driver, into the
/// folder KERNELS: `NAME.spv`, and `kernels.tsv` with the workgroup memory of each. For
/// scripts/gpu-compilers.sh, which must refuse the last two.
#[test]
#[ignore = "writes files"]
fn spirv_of_gpus_is_written() {
    let folder = std::env::var("KERNELS").expect("the variable KERNELS names a folder");
    let variants = kernel_variants();
    let packed = variants.iter().filter(|spec| spec.pack == 4).map(|spec| spec.shader.name);
    let packed: BTreeSet<&str> = packed.collect();
    // Rows of all presets are multiples of four. Smaller workgroups are for software.
    let is_used = |spec: &&Spec| {
        (spec.pack == 4 || !packed.contains(spec.shader.name))
            && spec.workgroup >= 32
            && spec.matrices != Some(Matrices::Eight)
    };
    let used = variants.iter().filter(is_used).map(|spec| (spec.name(), spec.source()));
    let gathers = include_str!("../scripts/gpu-compilers/gathers.wgsl").to_string();
    let refused = [("spills".to_string(), spilling()), ("gathers".to_string(), gathers)];
    let (mut index, mut seen) = (String::new(), BTreeSet::new());
    for (name, source) in used.chain(refused) {
        if !seen.insert(source.clone()) {
            continue;
        }
        let module = naga::front::wgsl::parse_str(&source).expect("a valid variant");
        let words = to_spirv(&module).unwrap_or_else(|error| panic!("{name}: {error}"));
        // A driver gets them with the accesses to memory marked.
        let words = with_memory_model(&words);
        let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
        let file = Path::new(&folder).join(format!("{name}.spv"));
        assert!(!file.exists(), "two variants have the name {name}");
        std::fs::write(file, bytes).expect("a folder");
        index += &format!("{name}\t{}\n", workgroup_memory(&module));
    }
    std::fs::write(Path::new(&folder).join("kernels.tsv"), index).expect("a folder");
    println!("{} kernels", seen.len());
}

/// Returns a kernel that needs more values at once than any GPU has registers.
fn spilling() -> String {
    let (mut loads, mut stores) = (String::new(), String::new());
    for i in 0..300 {
        loads += &format!("let v{i} = x[{i}u * 64u + lane]; sum += v{i};\n");
        stores += &format!("x[{i}u * 64u + lane] = v{i} * sum;\n");
    }
    format!(
        "@group(0) @binding(0) var<storage, read_write> x: array<f32>;\n\
         @compute @workgroup_size(64) fn main(@builtin(local_invocation_index) lane: u32) {{\n\
         var sum = 0.0;\n{loads}{stores}}}"
    )
}

/// Translates a kernel with the options of wgpu's Vulkan backend for a kernel without runtime checks.
fn to_spirv(module: &naga::Module) -> Result<Vec<u32>, String> {
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(module);
    let info = info.map_err(|error| error.to_string())?;
    let bindings = module.global_variables.iter().filter_map(|(_, variable)| variable.binding);
    let in_set = |naga::ResourceBinding { group: descriptor_set, binding }| spv::BindingInfo {
        descriptor_set,
        binding,
        binding_array_size: None,
    };
    let options = spv::Options {
        lang_version: (1, 6),
        flags: spv::WriterFlags::LABEL_VARYINGS | spv::WriterFlags::FORCE_POINT_SIZE,
        fake_missing_bindings: false,
        binding_map: bindings.map(|of| (of, in_set(of))).collect(),
        bounds_check_policies: BoundsCheckPolicies {
            index: BoundsCheckPolicy::Unchecked,
            buffer: BoundsCheckPolicy::Unchecked,
            image_load: BoundsCheckPolicy::Unchecked,
            binding_array: BoundsCheckPolicy::Unchecked,
        },
        // cubecl does not ask for it.
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        use_storage_input_output_16: false,
        ..Default::default()
    };
    let entry = spv::PipelineOptions {
        shader_stage: naga::ShaderStage::Compute,
        entry_point: "main".into(),
    };
    spv::write_vec(module, &info, &options, Some(&entry)).map_err(|error| error.to_string())
}

#[test]
fn every_file_is_part_of_a_kernel() {
    let sources: Vec<String> = kernel_variants().iter().map(|spec| spec.source()).collect();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // scripts/cuda-kernels.py checks the kernels in CUDA C++.
        if path.is_dir() {
            continue;
        }
        assert_eq!(path.extension().and_then(|e| e.to_str()), Some("wgsl"), "{}", path.display());
        // Unrolled loops differ from the text of the file, but the first line does not.
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.lines().next().unwrap();
        assert!(sources.iter().any(|source| source.contains(first)), "{}", path.display());
    }
}

/// Returns the lines that decide which positions an attention kernel takes: its first, and the loop over
/// the other side.
fn positions(name: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("shaders/{name}.wgsl"));
    let text = std::fs::read_to_string(path).unwrap();
    let decides = |line: &&str| {
        ["let first ", "let end ", "for (var begin"].iter().any(|part| line.starts_with(part))
    };
    text.lines().map(str::trim).filter(decides).map(str::to_string).collect()
}

/// Few adapters run the kernels on cooperative matrices. The blocked kernels, which `tests/ops` compares
/// with the oracle on every adapter, take the same positions.
#[test]
fn cooperative_attention_takes_the_positions_of_blocked_attention() {
    for pass in ["forward", "backward_queries", "backward_keys"] {
        let [blocked, cooperative] =
            ["blocked", "cooperative"].map(|form| positions(&format!("attention_{form}_{pass}")));
        assert!(blocked.len() >= 2, "{pass}: {blocked:?}");
        assert_eq!(cooperative, blocked, "{pass}");
    }
}

/// Returns the variants with their sources, each source once.
fn sources(specs: impl Iterator<Item = Spec>) -> Vec<(Spec, String)> {
    let mut seen = BTreeSet::new();
    let with_source = specs.map(|spec| (spec.source(), spec));
    let new = with_source.filter(|(source, _)| seen.insert(source.clone()));
    new.map(|(source, spec)| (spec, source)).collect()
}

/// Returns the variants that browsers and DirectX may run: without cooperative matrices, and with
/// their own overflow of float16.
fn with_overflow() -> Vec<(Spec, String)> {
    let without_matrices = kernel_variants().into_iter().filter(|spec| spec.matrices.is_none());
    sources(without_matrices.map(|spec| spec.overflowing(true)))
}

/// All kernels except the ones with cooperative matrices, which HLSL lacks and its adapters do not
/// list. A device with DXC has float16 and subgroups, a device with FXC has neither.
#[test]
fn every_variant_becomes_hlsl() {
    let (mut failures, mut of_fxc) = (Vec::new(), 0);
    let variants = with_overflow();
    for (spec, source) in &variants {
        let module = naga::front::wgsl::parse_str(source).expect("a valid variant");
        let valid = |capabilities| {
            Validator::new(ValidationFlags::all(), capabilities).validate(&module).ok()
        };
        let for_dxc = valid(Capabilities::SUBGROUP | Capabilities::SHADER_FLOAT16);
        let info = for_dxc.expect("a valid variant");
        let mut models = vec![hlsl::ShaderModel::V6_2];
        if valid(Capabilities::empty()).is_some() {
            of_fxc += 1;
            models.push(hlsl::ShaderModel::V5_1);
            failures.extend(
                refused_by_fxc(&module, &info).map(|what| format!("{}: {what}", spec.shader.name)),
            );
        }
        for shader_model in models {
            // cubecl asks for kernels without checks of indices and loops. wgpu's default has these
            // checks.
            for checked in [false, true] {
                let options = hlsl::Options {
                    shader_model,
                    restrict_indexing: checked,
                    force_loop_bounding: checked,
                    ..Default::default()
                };
                if let Err(error) = to_hlsl(&module, &info, &options) {
                    failures.push(format!("{}, {shader_model:?}: {error}", spec.shader.name));
                }
            }
        }
    }
    println!("{} variants, {of_fxc} of them for FXC too", variants.len());
    assert!(of_fxc > 100, "most kernels need neither float16 nor subgroups");
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

fn to_hlsl(
    module: &naga::Module,
    info: &ModuleInfo,
    options: &hlsl::Options,
) -> Result<String, String> {
    let (mut text, pipeline) = (String::new(), hlsl::PipelineOptions::default());
    let written = hlsl::Writer::new(&mut text, options, &pipeline).write(module, info, None);
    let names = written.map_err(|error| error.to_string())?.entry_point_names;
    for name in names {
        name.map_err(|error| error.to_string())?;
    }
    if !text.contains("[numthreads(") {
        return Err("it has no entry point".into());
    }
    Ok(text)
}

/// Finds stores that naga writes and FXC refuses (error X3500): to an element of a vector or a matrix
/// in registers, by an index that is not constant.
fn refused_by_fxc(module: &naga::Module, info: &ModuleInfo) -> Option<String> {
    let entries = module.entry_points.iter().enumerate();
    let entries = entries.map(|(index, entry)| (&entry.function, info.get_entry_point(index)));
    let functions = module.functions.iter().map(|(handle, function)| (function, &info[handle]));
    let of_one = |(function, info): (&Function, &FunctionInfo)| {
        let is_refused = |pointer| is_element_by_index(module, function, info, pointer);
        let name = function.name.as_deref().unwrap_or("main");
        stores(&function.body).into_iter().any(is_refused).then(|| name.to_string())
    };
    let found: Vec<String> = entries.chain(functions).filter_map(of_one).collect();
    (!found.is_empty()).then(|| format!("stores by index in {}", found.join(", ")))
}

fn is_element_by_index(
    module: &naga::Module,
    function: &Function,
    info: &FunctionInfo,
    mut pointer: Handle<Expression>,
) -> bool {
    loop {
        let is_element = match info[pointer].ty.inner_with(&module.types) {
            TypeInner::ValuePointer { space, .. } => {
                !matches!(space, naga::AddressSpace::Storage { .. })
            }
            _ => false,
        };
        pointer = match function.expressions[pointer] {
            Expression::Access { .. } if is_element => return true,
            Expression::Access { base, .. } | Expression::AccessIndex { base, .. } => base,
            _ => return false,
        };
    }
}

/// Returns the pointers that a block stores to.
fn stores(block: &Block) -> Vec<Handle<Expression>> {
    let mut found = Vec::new();
    for statement in block {
        match statement {
            Statement::Store { pointer, .. } => found.push(*pointer),
            Statement::Block(inner) => found.extend(stores(inner)),
            Statement::If { accept, reject, .. } => {
                found.extend(stores(accept));
                found.extend(stores(reject));
            }
            Statement::Loop { body, continuing, .. } => {
                found.extend(stores(body));
                found.extend(stores(continuing));
            }
            Statement::Switch { cases, .. } => {
                found.extend(cases.iter().flat_map(|case| stores(&case.body)));
            }
            _ => {}
        }
    }
    found
}

/// The workgroup memory of Apple's GPUs, in bytes.
const METAL_MEMORY: u32 = 32_768;

/// The buffers that a kernel binds on Metal.
const METAL_BUFFERS: usize = 31;

/// All kernels except the ones with matrices of 16 x 16, which Metal lacks.
#[test]
fn every_variant_becomes_msl() {
    let (mut failures, mut most) = (Vec::new(), 0);
    let of_metal = |spec: &Spec| spec.matrices != Some(Matrices::Sixteen);
    let variants = sources(kernel_variants().into_iter().filter(of_metal));
    for (spec, source) in &variants {
        let module = naga::front::wgsl::parse_str(source).expect("a valid variant");
        let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module);
        let info = info.expect("a valid variant");
        match to_msl(&module, &info) {
            Ok(memory) => most = most.max(memory),
            Err(error) => failures.push(format!("{}: {error}", spec.shader.name)),
        }
    }
    println!("{} variants, up to {most} bytes of workgroup memory", variants.len());
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

/// Makes MSL with the options of wgpu's Metal backend, for a kernel without checks as cubecl asks for.
/// Returns the bytes of workgroup memory that wgpu requests for it.
fn to_msl(module: &naga::Module, info: &ModuleInfo) -> Result<u32, String> {
    let variables = || module.global_variables.iter();
    // Buffers have numbers in the order of their bindings. One more has the lengths of their arrays.
    let mut bound: Vec<_> =
        variables().filter_map(|(_, it)| Some((it.binding?, it.space))).collect();
    bound.sort_by_key(|(binding, _)| binding.binding);
    if bound.len() + 1 > METAL_BUFFERS {
        return Err(format!("{} buffers", bound.len() + 1));
    }
    let target = |(slot, &(binding, space)): (usize, &(_, AddressSpace))| {
        let (buffer, mutable) = (Some(slot as u8), space != AddressSpace::Uniform);
        (binding, msl::BindTarget { buffer, mutable, ..Default::default() })
    };
    let resources = msl::EntryPointResources {
        resources: bound.iter().enumerate().map(target).collect(),
        sizes_buffer: Some(bound.len() as u8),
        immediates_buffer: None,
    };
    let options = msl::Options {
        // macOS 12.
        lang_version: (2, 4),
        per_entry_point_map: [("main".to_string(), resources)].into(),
        fake_missing_bindings: false,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let entry_point = Some((ShaderStage::Compute, "main".to_string()));
    let pipeline = msl::PipelineOptions { entry_point, ..Default::default() };
    let written = msl::write_string(module, info, &options, &pipeline);
    let (_, names) = written.map_err(|error| error.to_string())?;
    for name in names.entry_point_names {
        name.map_err(|error| error.to_string())?;
    }
    // wgpu rounds each variable up.
    let uses = info.get_entry_point(0);
    let memory = variables()
        .filter(|(handle, it)| it.space == AddressSpace::WorkGroup && !uses[*handle].is_empty())
        .map(|(_, it)| module.types[it.ty].inner.size(module.to_ctx()).next_multiple_of(16));
    let memory: u32 = memory.sum();
    if memory > METAL_MEMORY {
        return Err(format!("{memory} bytes of workgroup memory, Metal has {METAL_MEMORY}"));
    }
    Ok(memory)
}

#[test]
fn too_much_workgroup_memory_for_metal_is_found() {
    let memory = |elements: u32| {
        let source = format!(
            "var<workgroup> a: array<f32, {elements}>; var<workgroup> b: array<f32, 4095>;\n\
             var<workgroup> unused: array<f32, 4096>;\n\
             @compute @workgroup_size(1) fn main() {{ a[0] = b[0]; }}"
        );
        let module = naga::front::wgsl::parse_str(&source).unwrap();
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::empty());
        let info = validator.validate(&module).unwrap();
        to_msl(&module, &info)
    };
    assert_eq!(memory(4096), Ok(METAL_MEMORY));
    let error = memory(4097).unwrap_err();
    assert!(error.starts_with("32784 bytes"), "{error}");
}

/// Writes the kernels for tests/web/kernels.test.mjs.
#[test]
fn kernels_are_written_for_the_test_in_a_browser() {
    let kernel = |(spec, source): &(Spec, String)| serde_json::json!({ "name": spec.shader.name, "source": source });
    let kernels: Vec<_> = with_overflow().iter().map(kernel).collect();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    std::fs::create_dir_all(folder).unwrap();
    std::fs::write(folder.join("kernels.json"), serde_json::to_vec(&kernels).unwrap()).unwrap();
}

/// Conversions to float16 are named, so that [`Spec::overflowing`] reaches all of them. Kernels with
/// cooperative matrices also stage their factors; DirectX and browsers have none of these kernels.
#[test]
fn every_value_is_stored_as_float16_by_a_function_of_the_header() {
    let mut converting = BTreeSet::new();
    for (spec, source) in with_overflow() {
        let module = naga::front::wgsl::parse_str(&source).expect("a valid variant");
        let entries = module.entry_points.iter().map(|entry| &entry.function);
        for function in entries.chain(module.functions.iter().map(|(_, function)| function)) {
            let name = function.name.as_deref().unwrap_or("main");
            let to_half = |(_, it): (_, &Expression)| {
                matches!(it, Expression::As { kind: ScalarKind::Float, convert: Some(2), .. })
            };
            if function.expressions.iter().any(to_half) {
                converting.insert(name.to_string());
                assert!(name.starts_with("to_"), "{} of {}\n{source}", name, spec.shader.name);
            }
        }
    }
    assert!(converting.len() > 2, "{converting:?}");
}

#[test]
fn a_store_by_index_is_found() {
    let refused = |body: &str| {
        let source = format!(
            "@group(0) @binding(0) var<storage, read_write> out: array<vec4<f32>>;\n\
             @compute @workgroup_size(1) fn main() {{ var v = vec4<f32>(); var i = 1u;\n\
             var m = mat2x2<f32>(); var a = array<vec4<f32>, 2>(); {body} out[i] = v + a[0]; }}"
        );
        let module = naga::front::wgsl::parse_str(&source).unwrap();
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::empty());
        let info = validator.validate(&module).unwrap();
        refused_by_fxc(&module, &info).is_some()
    };
    for body in ["v[i] = 1.0;", "a[0][i] = 1.0;", "m[i] = vec2<f32>();", "m[i].x = 1.0;"] {
        assert!(refused(body), "{body}");
        assert!(refused(&format!("loop {{ if i > 2u {{ {body} }} break; }}")), "{body}");
    }
    for body in ["", "v.x = 1.0;", "a[i] = v;", "a[i].y = 1.0;", "out[i][i] = 2.0;"] {
        assert!(!refused(body), "{body}");
    }
}
