//! Compares the kernels of every device with the oracle.

use burn::tensor::{Device, FloatDType, Tensor, TensorData};
use wgpt::config::{Abilities, Dtype, Matrices, Precision};
use wgpt::gpu::{self, Backend, DeviceChoice, DeviceKind, DriverTraits};
use wgpt::ops::{self, Dropout, OpsMode};

use crate::case::{
    Case, long_cases, long_norm_cases, mask, noise, norm_cases, softmax, values, vector_cases,
};
use crate::check::{
    Outcome, VALUE, check_bits, check_half, check_half_weights, check_large, check_larger,
    check_matrices, check_overflow, check_small, check_whole, compare, head_cases, last_key_cases,
    run,
};
use crate::dequantize::check_dequantize;
use crate::layer_norm::check_layer_norms;
use crate::optimizer::{check_optimizer, optimize};

/// Opens all devices of a backend, at least one. Returns them and their kinds.
fn devices(backend: Backend) -> Vec<(Device, DeviceKind)> {
    let infos: Vec<_> =
        gpu::devices().into_iter().filter(|info| info.id.backend == backend).collect();
    assert!(
        !infos.is_empty(),
        "no {backend} device: install a driver, for Vulkan without a GPU mesa-vulkan-drivers"
    );
    let open = |info: gpu::DeviceInfo| {
        eprintln!("{}: {}", info.id, info.name);
        (gpu::open(DeviceChoice::Named(info.id)).unwrap().device, info.kind)
    };
    infos.into_iter().map(open).collect()
}

/// Returns true for SwiftShader, which compiles kernels anew for each shape and process, and takes most
/// of a test's time for that. It gets fewer shapes than Mesa's software adapter, which stores float16.
fn compiles_slowly(device: &Device, kind: DeviceKind) -> bool {
    kind == DeviceKind::Software && !gpu::dtypes(device).contains(&Dtype::Float16)
}

/// Compares every op in this mode with the oracle, in fewer shapes if `few`.
fn check_kernels(device: &Device, mode: OpsMode, few: bool) {
    let mut heads = head_cases();
    if few {
        // One size that the kernels support, and the size that they do not.
        heads.drain(1..heads.len() - 1);
    }
    check_kernels_with(heads, device, mode, few);
}

fn check_kernels_with(heads: Vec<Case>, device: &Device, mode: OpsMode, few: bool) {
    check_small(if few { 5 } else { 20 }, device, &[mode]);
    check_large(long_cases(130), device, mode);
    if !few {
        check_large(vector_cases(), device, mode);
    }
    check_large(last_key_cases(), device, mode);
    check_large(heads, device, mode);
    check_optimizer(device, mode);
    check_layer_norms(device, mode);
    check_dequantize(device, mode);
    let dropout = Dropout::new(0.3, 1, 2, 3, 4);
    let on_the_cpu = mask(dropout, 2, 999, &Device::flex(), OpsMode::AUTO);
    let on_the_device = mask(dropout, 2, 999, device, mode);
    assert_eq!(on_the_device, on_the_cpu, "{mode:?}: the mask differs from the CPU's");
    check_softmax(device, mode);
}

/// Compares the softmax of scores as in sampling, some of them masked.
fn check_softmax(device: &Device, mode: OpsMode) {
    const WIDTH: usize = 300;
    let mut scores = noise(1, 3 * WIDTH);
    scores.iter_mut().for_each(|score| *score = (*score * 30.0).round());
    scores[WIDTH..WIDTH + 10].fill(-1e30);
    let tensor = Tensor::<2>::from_data(TensorData::new(scores.clone(), [3, WIDTH]), device);
    let probabilities = values(ops::softmax(tensor, mode));
    for (row, probabilities) in scores.chunks(WIDTH).zip(probabilities.chunks(WIDTH)) {
        let truth = softmax(row.iter().map(|&score| f64::from(score)).collect());
        compare(&format!("{mode:?} softmax"), probabilities, &truth, VALUE).unwrap();
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_the_oracle() {
    for (device, kind) in devices(Backend::Vulkan) {
        for mode in [OpsMode::AUTO.on(kind), OpsMode::WIDE] {
            check_kernels(&device, mode, compiles_slowly(&device, kind));
        }
    }
}

/// Who shares a row differs from device to device: a workgroup, a subgroup or several.
#[cfg(feature = "wgpu")]
#[test]
fn norms_match_the_reference_and_are_deterministic() {
    for (device, kind) in devices(Backend::Vulkan) {
        let half = gpu::dtypes(&device).contains(&Dtype::Float16).then(f16_storage);
        let precisions = [Precision::FLOAT32].into_iter().chain(half);
        let modes = [OpsMode::AUTO.on(kind), OpsMode::WIDE];
        for mode in precisions.flat_map(|precision| modes.map(|mode| mode.in_precision(precision)))
        {
            check_larger(norm_cases(), &device, mode);
            check_larger(long_norm_cases(), &device, mode);
            let all = || {
                let of_case = |case| {
                    let Outcome { value, grads } = run(&case, &device, mode);
                    [value].into_iter().chain(grads).flatten().map(f32::to_bits)
                };
                long_norm_cases().into_iter().flat_map(of_case).collect::<Vec<u32>>()
            };
            assert!(all() == all(), "{mode:?}: a second run differs");
        }
    }
}

/// The kernels for CUDA, tested without an NVIDIA GPU.
#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_the_oracle_with_cube_kernels() {
    for (device, kind) in devices(Backend::Vulkan) {
        check_kernels(&device, OpsMode::CUBE, compiles_slowly(&device, kind));
    }
}

/// Opens all Vulkan adapters that store f16, at least one. Returns them and their kinds.
#[cfg(feature = "wgpu")]
fn f16_devices() -> Vec<(Device, DeviceKind)> {
    let mut capable = devices(Backend::Vulkan);
    capable.retain(|(device, _)| gpu::dtypes(device).contains(&Dtype::Float16));
    assert!(!capable.is_empty(), "no adapter computes in f16: Mesa's lavapipe does");
    capable
}

/// Returns the precision of f16 that is multiplied in f32.
#[cfg(feature = "wgpu")]
fn f16_storage() -> Precision {
    let abilities = Abilities { float16: true, ..Abilities::default() };
    abilities.precision(Dtype::Float16).expect("float16 is among the abilities")
}

/// The kernels for CUDA in half precision. They run in f16, because few adapters compute in bfloat16.
#[cfg(feature = "wgpu")]
#[test]
fn f16_adapters_match_the_oracle_in_half_precision_with_cube_kernels() {
    for (device, _) in f16_devices() {
        let mode = OpsMode::CUBE.in_precision(f16_storage());
        check_half(&device, mode);
        check_half_weights(&device, mode, FloatDType::F16);
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn f16_adapters_match_the_oracle_in_half_precision() {
    for (device, kind) in f16_devices() {
        for mode in [OpsMode::AUTO.on(kind), OpsMode::WIDE] {
            let mode = mode.in_precision(f16_storage());
            check_half(&device, mode);
            check_half_weights(&device, mode, FloatDType::F16);
            check_overflow(&device, mode);
        }
        // As on DirectX, where the kernels compute the overflow.
        let clamping = DriverTraits { clamps_float16: true, ..DriverTraits::UNKNOWN };
        let mode = OpsMode::AUTO.on(kind).in_precision(f16_storage()).for_driver(clamping);
        check_half(&device, mode);
        check_half_weights(&device, mode, FloatDType::F16);
        check_overflow(&device, mode);
    }
}

/// Runs `check` on each adapter with cooperative matrices, in each size that it has. Mesa's lavapipe
/// has the larger size but does not list it.
#[cfg(feature = "wgpu")]
fn with_matrices(check: impl Fn(&Device, DeviceKind, OpsMode)) {
    let mut checked = 0;
    let vulkan = gpu::devices().into_iter().filter(|info| info.id.backend == Backend::Vulkan);
    for info in vulkan {
        let Some(listed) = info.abilities.matrices else { continue };
        let selected = gpu::select(DeviceChoice::Named(info.id)).unwrap();
        let precision = info.abilities.precision(Dtype::Float16).unwrap();
        let device = selected.open(precision).unwrap().device;
        let sixteen = (info.kind == DeviceKind::Software).then_some(Matrices::Sixteen);
        eprintln!("{}: {}, {listed:?}", info.id, info.name);
        for matrices in [listed].into_iter().chain(sixteen) {
            let abilities = Abilities { matrices: Some(matrices), ..info.abilities };
            let precision = abilities.precision(Dtype::Float16).unwrap();
            check(&device, info.kind, OpsMode::AUTO.on(info.kind).in_precision(precision));
        }
        checked += 1;
    }
    assert!(checked > 0, "no Vulkan adapter has cooperative matrices of float16");
}

#[cfg(feature = "wgpu")]
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn cooperative_matrices_match_the_oracle() {
    with_matrices(|device, kind, mode| match kind {
        DeviceKind::Software => check_matrices(device, mode),
        _ => {
            check_half(device, mode);
            check_whole(device, mode);
        }
    });
}

#[cfg(feature = "wgpu")]
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn tiles_of_cooperative_matrices_change_no_bit() {
    with_matrices(|device, _, mode| check_bits(device, mode));
}

#[cfg(feature = "wgpu")]
#[test]
#[ignore = "takes many minutes on the adapter of scripts/lavapipe.sh, which compiles slowly"]
fn every_case_on_cooperative_tiles_matches_the_oracle() {
    with_matrices(|device, _, mode| check_half(device, mode));
}

/// Compares the kernels of every NVIDIA GPU in `dtype` with the oracle.
#[cfg(feature = "cuda")]
fn check_cuda(dtype: Dtype) {
    for (device, _) in devices(Backend::Cuda) {
        assert!(gpu::dtypes(&device).contains(&dtype), "{dtype:?}");
        if dtype == Dtype::Float32 {
            let mut heads = head_cases();
            // Where the kernels do not support a size, burn rounds the factors of its products to tf32.
            heads.pop();
            check_kernels_with(heads, &device, OpsMode::AUTO, false);
            continue;
        }
        let abilities =
            Abilities { tf32: true, bfloat16: true, float16: true, ..Abilities::default() };
        let precision = abilities.precision(dtype).expect("all are among the abilities");
        let mode = OpsMode::AUTO.in_precision(precision);
        check_half(&device, mode);
        match dtype {
            Dtype::Bfloat16 => check_half_weights(&device, mode, FloatDType::BF16),
            Dtype::Float16 => check_half_weights(&device, mode, FloatDType::F16),
            _ => {}
        }
    }
}

// One test for each dtype, because compiling takes most of the time.

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_cuda_card_matches_the_oracle_in_float32() {
    check_cuda(Dtype::Float32);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_cuda_card_matches_the_oracle_in_tf32() {
    check_cuda(Dtype::Tf32);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_cuda_card_matches_the_oracle_in_bfloat16() {
    check_cuda(Dtype::Bfloat16);
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA GPU"]
fn every_cuda_card_matches_the_oracle_in_float16() {
    check_cuda(Dtype::Float16);
}

/// The measured speed of a device, which changes from run to run, decides how large dispatches are.
#[cfg(feature = "wgpu")]
#[test]
fn the_size_of_dispatches_changes_no_bit() {
    let small = DriverTraits { operations: 1 << 14, ..DriverTraits::UNKNOWN };
    let fast = |(device, kind): &(Device, DeviceKind)| !compiles_slowly(device, *kind);
    for (device, kind) in devices(Backend::Vulkan).into_iter().filter(fast) {
        for mode in [OpsMode::AUTO.on(kind), OpsMode::WIDE, OpsMode::CUBE] {
            for case in long_cases(130) {
                let all = |mode| {
                    let Outcome { value, grads } = run(&case, &device, mode);
                    [value].into_iter().chain(grads).flatten().map(f32::to_bits).collect::<Vec<_>>()
                };
                assert_eq!(all(mode.for_driver(small)), all(mode), "{mode:?} {case:?}");
            }
        }
    }
}

/// The order of every sum is fixed.
#[cfg(feature = "wgpu")]
#[test]
fn cube_kernels_are_deterministic() {
    for (device, _) in devices(Backend::Vulkan) {
        let all = || {
            let cases = long_cases(130).into_iter().chain(vector_cases());
            let ops = cases.flat_map(|case| {
                let Outcome { value, grads } = run(&case, &device, OpsMode::CUBE);
                [value].into_iter().chain(grads)
            });
            let all = ops.chain(optimize(100_000, &device, OpsMode::CUBE));
            all.map(|x| x.into_iter().map(f32::to_bits).collect()).collect::<Vec<Vec<u32>>>()
        };
        assert!(all() == all(), "a second run differs");
    }
}
