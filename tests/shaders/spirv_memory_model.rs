//! Checks the SPIR-V that Vulkan's drivers get for kernels with cooperative matrices.

use std::collections::{BTreeSet, HashMap};

use naga::back::spv;
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ValidationFlags, Validator};
use spirv::{Capability, MemoryAccess, MemorySemantics, Op, Scope, StorageClass};
use wgpt::gpu::spirv_memory_model::{instructions, with_memory_model};
use wgpt::ops::kernel_variants;

/// Returns the words that wgpu makes of a kernel on a driver of Vulkan 1.3, without the checks and the
/// zeros in workgroup memory that cubecl asks it to leave out.
fn to_spirv(source: &str) -> Vec<u32> {
    let module = naga::front::wgsl::parse_str(source).expect("a valid variant");
    let capabilities = Capabilities::SUBGROUP
        | Capabilities::SUBGROUP_BARRIER
        | Capabilities::SHADER_FLOAT16
        | Capabilities::COOPERATIVE_MATRIX;
    let mut validator = Validator::new(ValidationFlags::all(), capabilities);
    let info = validator.validate(&module).expect("a valid variant");
    let unchecked = BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        lang_version: (1, 6),
        bounds_check_policies: BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    spv::write_vec(&module, &info, &options, None).expect("a module of SPIR-V")
}

/// What a module does with memory that several invocations access.
#[derive(Default)]
struct Exchanges {
    accesses: usize,
    of_matrices: usize,
    barriers: usize,
    of_subgroups: usize,
    /// Accesses that are private, barriers that exchange nothing, and what this check does not know.
    faults: Vec<String>,
}

impl Exchanges {
    fn of(module: &[u32]) -> Self {
        let mut found = Self::default();
        let (mut classes, mut constants) = (HashMap::new(), HashMap::new());
        for (op, operands) in instructions(module) {
            match (op, operands) {
                (Op::TypePointer, &[id, class, _]) => {
                    classes.insert(id, class);
                }
                (Op::Constant, &[_, id, value]) => {
                    constants.insert(id, value);
                }
                (Op::Load, [_, _, pointer, access @ ..])
                | (Op::Store, [pointer, _, access @ ..])
                | (Op::CooperativeMatrixLoadKHR, [_, _, pointer, _, _, access @ ..])
                | (Op::CooperativeMatrixStoreKHR, [pointer, _, _, _, access @ ..]) => {
                    found.access(op, classes.get(pointer), access.first());
                }
                (Op::ControlBarrier, [_, scope, semantics]) => {
                    found.barrier(constants.get(scope), constants.get(semantics));
                }
                (Op::MemoryBarrier | Op::CopyMemory, _) => found.faults.push(format!("{op:?}")),
                // A pointer has the class of its type.
                (Op::FunctionParameter | Op::Variable | Op::AccessChain, [ty, id, ..]) => {
                    if let Some(&class) = classes.get(ty) {
                        classes.insert(*id, class);
                    }
                }
                _ => {}
            }
        }
        found
    }

    fn access(&mut self, op: Op, class: Option<&u32>, access: Option<&u32>) {
        let is = |other: StorageClass| class == Some(&(other as u32));
        let of_one = [StorageClass::Function, StorageClass::Input, StorageClass::Uniform];
        if of_one.into_iter().any(is) {
            return;
        }
        self.accesses += 1;
        self.of_matrices += usize::from(!matches!(op, Op::Load | Op::Store));
        let marked =
            access.is_some_and(|bits| bits & MemoryAccess::NON_PRIVATE_POINTER.bits() != 0);
        if !marked || !(is(StorageClass::Workgroup) || is(StorageClass::StorageBuffer)) {
            self.faults.push(format!("{op:?} of {class:?} with {access:?}"));
        }
    }

    fn barrier(&mut self, scope: Option<&u32>, semantics: Option<&u32>) {
        self.barriers += 1;
        let of_subgroup = scope == Some(&(Scope::Subgroup as u32));
        self.of_subgroups += usize::from(of_subgroup);
        let expected = MemorySemantics::ACQUIRE_RELEASE
            | MemorySemantics::WORKGROUP_MEMORY
            | MemorySemantics::MAKE_AVAILABLE
            | MemorySemantics::MAKE_VISIBLE;
        let known = of_subgroup || scope == Some(&(Scope::Workgroup as u32));
        if !known || semantics != Some(&expected.bits()) {
            self.faults.push(format!("a barrier of {scope:?} with {semantics:?}"));
        }
    }
}

fn uses_subgroups(module: &[u32]) -> bool {
    instructions(module).any(|(op, operands)| {
        op == Op::Capability && operands == [Capability::GroupNonUniform as u32]
    })
}

#[test]
fn kernels_with_matrices_have_no_data_race() {
    let (mut failures, mut seen) = (Vec::new(), BTreeSet::new());
    let mut sum = Exchanges::default();
    for spec in kernel_variants().into_iter().filter(|spec| spec.matrices.is_some()) {
        let source = spec.source();
        if !seen.insert(source.clone()) {
            continue;
        }
        let module = to_spirv(&source);
        let Exchanges { accesses, of_matrices, barriers, of_subgroups, faults } =
            Exchanges::of(&module);
        // naga marks nothing. If it does one day, `spirv_memory_model` can go.
        assert_eq!(faults.len(), accesses + barriers, "{}: {faults:?}", spec.shader.name);
        assert!(of_matrices > 0, "{}", spec.shader.name);
        let marked = with_memory_model(&module);
        let found = Exchanges::of(&marked);
        let same = [found.accesses, found.of_matrices, found.barriers];
        assert_eq!(same, [accesses, of_matrices, barriers], "{}", spec.shader.name);
        assert_eq!(with_memory_model(&marked), marked, "{}: marked twice", spec.shader.name);
        failures.extend(found.faults.iter().map(|fault| format!("{}: {fault}", spec.shader.name)));
        // A driver of NVIDIA, whose subgroups have one size, crashes on this capability.
        if spec.subgroup.is_some() && uses_subgroups(&marked) {
            failures.push(format!("{}: GroupNonUniform", spec.shader.name));
        }
        sum.accesses += accesses;
        sum.barriers += barriers;
        sum.of_subgroups += of_subgroups;
    }
    println!("{} variants, {} accesses, {} barriers", seen.len(), sum.accesses, sum.barriers);
    assert!(sum.accesses > 10_000 && sum.barriers > 1_000 && sum.of_subgroups > 100);
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn other_kernels_stay_as_they_are() {
    for spec in kernel_variants().into_iter().filter(|spec| spec.matrices.is_none()).step_by(10) {
        let module = to_spirv(&spec.source());
        assert!(with_memory_model(&module) == module, "{}", spec.shader.name);
    }
}
