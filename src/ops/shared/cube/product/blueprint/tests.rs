use burn_cubecl::cubecl::ir::features::{Features, MmaConfig};
use burn_cubecl::cubecl::ir::{
    AddressType, DeviceIdentity, DeviceProperties, ElemType, HardwareProperties,
    MemoryDeviceProperties,
};
use burn_cubecl::cubecl::prelude::{Scalar, tf32};
use burn_cubecl::cubecl::profile::TimingMethod;
use cubek::matmul::definition::{MatmulGlobalElems, MatmulProblem, MatmulVectorSizes};
use cubek::matmul::multi_level::components::batch::{
    BatchMatmulFamily, PartitionedBatchMatmulFamily, RowMajorGlobalPartitionMatmul,
};
use cubek::matmul::multi_level::components::global::PlaneWriterFamily;
use cubek::matmul::multi_level::components::global::multi_stage::double_buffering::DoubleBufferingMatmulFamily;
use cubek::matmul::multi_level::components::global::read::sync_full_cyclic::SyncFullCyclicLoading;
use cubek::matmul::multi_level::components::global::read::sync_partial_cyclic::SyncPartialCyclicLoading;
use cubek::matmul::multi_level::components::stage::PlanePartitioner;
use cubek::matmul::multi_level::tile::RowMajorTilingOrder;
use cubek::std::MatrixLayout::{self, ColMajor, RowMajor};

use super::Instruction;
use crate::plan::products::{Tile, Tiling};

/// The kernels of products on tensor cores.
type Family = PartitionedBatchMatmulFamily<
    (),
    DoubleBufferingMatmulFamily<
        PlanePartitioner,
        (),
        SyncPartialCyclicLoading<RowMajorTilingOrder>,
        SyncPartialCyclicLoading<RowMajorTilingOrder>,
        SyncFullCyclicLoading<RowMajorTilingOrder>,
        PlaneWriterFamily,
    >,
    RowMajorGlobalPartitionMatmul,
>;

/// Returns the properties of a GPU of compute capability 8.0 that blueprints depend on.
fn gpu() -> DeviceProperties {
    let [f16, bf16, f32] =
        [half::f16::elem_type_native(), half::bf16::elem_type_native(), f32::elem_type_native()];
    let mut features = Features { alignment: true, ..Features::default() };
    features.matmul.ldmatrix.extend([f16, bf16]);
    for (a, k) in [(f16, 16), (bf16, 16), (tf32::elem_type_native(), 8)] {
        let shape = MmaConfig { a_type: a, b_type: a, cd_type: f32, m: 16, n: 8, k };
        features.matmul.mma.insert(shape);
    }
    let hardware = HardwareProperties {
        load_width: 128,
        vector_register_count: None,
        plane_size_min: 32,
        plane_size_max: 32,
        max_bindings: 32,
        max_shared_memory_size: 99 << 10,
        max_cube_count: (i32::MAX as u32, 65_535, 65_535),
        max_units_per_cube: 1024,
        max_cube_dim: (1024, 1024, 64),
        num_streaming_multiprocessors: Some(46),
        num_tensor_cores: None,
        min_tensor_cores_dim: None,
        num_cpu_cores: None,
        last_level_cache_size: None,
        max_vector_size: usize::MAX,
        cube_mma_reserved_shared_memory: 0,
    };
    let identity =
        DeviceIdentity { name: "a GPU".into(), fingerprint: "a GPU".into(), physical: None };
    let memory = MemoryDeviceProperties::new(u64::MAX, 512);
    DeviceProperties::new(features, memory, hardware, TimingMethod::Device, identity)
}

/// A product `[m, n, k]` of factors in these layouts.
type Shape = ([usize; 3], MatrixLayout, MatrixLayout);

/// Returns the products of a step of `n` tokens of a model of width `c`, with a vocabulary of `v`.
fn step(n: usize, c: usize, v: usize) -> Vec<Shape> {
    let chunk = n.min(1024);
    let linear = [(c, 3 * c), (c, c), (c, 4 * c), (4 * c, c)];
    let forward = linear.map(|(from, to)| ([n, to, from], RowMajor, RowMajor));
    let of_inputs = linear.map(|(from, to)| ([n, from, to], RowMajor, ColMajor));
    let of_weights = linear.map(|(from, to)| ([from, to, n], ColMajor, RowMajor));
    let head = [
        ([chunk, v, c], RowMajor, ColMajor),
        ([chunk, c, v], RowMajor, RowMajor),
        ([v, c, chunk], ColMajor, RowMajor),
    ];
    forward.into_iter().chain(of_inputs).chain(of_weights).chain(head).collect()
}

fn problem(([m, n, k], a, b): Shape, factor: ElemType, ranges: usize) -> MatmulProblem {
    let batches = || if ranges > 1 { vec![ranges] } else { Vec::new() };
    // The gradient of a weight is stored in f32.
    let single = a == ColMajor || ranges > 1;
    let out = if single { f32::elem_type_native() } else { factor };
    let elems = MatmulGlobalElems { lhs: factor, rhs: factor, out };
    let (left, right, address) = (batches().into(), batches().into(), AddressType::default());
    let k = k / ranges;
    MatmulProblem::from_parameters(m, n, k, left, right, a, b, RowMajor, None, None, elems, address)
}

/// cubek accepts what is chosen for each product of a step on tensor cores, without a device: its
/// loaders, its writer and the sizes of its tiles. What is chosen without them runs on all devices.
#[test]
fn cubek_accepts_the_blueprints_of_a_step() {
    let gpu = gpu();
    let models =
        [(4096, 768, 50_304), (4096, 1024, 50_304), (1024, 1600, 50_304), (16_384, 384, 128)];
    let instructions = [
        (Instruction::Mma, half::bf16::elem_type_native()),
        (Instruction::Mma, half::f16::elem_type_native()),
        (Instruction::MmaTf32, f32::elem_type_native()),
        (Instruction::Wmma, half::f16::elem_type_native()),
    ];
    for (instruction, factor) in instructions {
        for (n, c, v) in models {
            for shape in step(n, c, v) {
                for processors in [28, 46, 132] {
                    let Tiling { tile, ranges } = Tiling::of(shape.0, Some(processors));
                    let problem = problem(shape, factor, ranges);
                    let blueprint = instruction.blueprint(tile, &problem, 32, true);
                    let elems = instruction.elements(&problem);
                    let out = problem.global_dtypes.out.size();
                    let lanes = 16 / factor.size();
                    let vectors = MatmulVectorSizes { lhs: lanes, rhs: lanes, out: 16 / out };
                    let refused = Family::expand_config(&gpu, &blueprint, &elems, &vectors).err();
                    let what = format!("{instruction:?} {:?} {tile:?} x {ranges}", shape.0);
                    assert!(refused.is_none(), "{what}: {refused:?}");
                    // Only the width of GPT-2 XL is no multiple of 128.
                    let checked = [blueprint.check_m_bounds, blueprint.check_n_bounds];
                    assert!(c == 1600 || checked == [false; 2], "{what}: {checked:?}");
                    assert!(!blueprint.check_k_bounds, "{what}");
                }
            }
        }
    }
}

/// Two workgroups fit in the 64 KiB of Turing, eight subgroups or 256 invocations make one, and
/// both tiles have the size that the plan counts.
#[test]
fn tiles_have_their_size_and_fit() {
    for instruction in
        [Instruction::Mma, Instruction::MmaTf32, Instruction::Wmma, Instruction::Scalar]
    {
        for tile in [Tile::Large, Tile::Small] {
            let scheme = instruction.scheme(tile);
            let sides = [scheme.elements_per_stage_along_m(), scheme.elements_per_stage_along_n()];
            assert_eq!(sides, [tile.side() as u32; 2], "{instruction:?} {tile:?}");
            let bytes =
                if matches!(instruction, Instruction::Mma | Instruction::Wmma) { 2 } else { 4 };
            let stages = instruction.stages()
                * (sides[0] + sides[1])
                * scheme.elements_per_stage_along_k()
                * bytes;
            assert!(stages <= 32 << 10, "{instruction:?} {tile:?}: {stages}");
            let parts = u32::from(scheme.stage_size.m) * u32::from(scheme.stage_size.n);
            let most = if instruction == Instruction::Scalar { 256 } else { 8 };
            assert!(parts <= most, "{instruction:?} {tile:?}: {parts}");
        }
    }
}
