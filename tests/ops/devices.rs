//! The kernels of every device.

use burn::tensor::{Device, Tensor, TensorData};
use wgpt::config::Dtype;
use wgpt::gpu::{self, Backend, DeviceChoice, Kind};
use wgpt::ops::{self, Dropout, OpsMode};

use crate::case::{mask, noise, softmax, values};
use crate::check::{
    Outcome, VALUE, check_half, check_large, check_small, compare, head_cases, long_cases, run,
};
use crate::optimizer::{check_optimizer, optimize};

/// The devices of a backend, at least one, and their kinds.
fn devices(backend: Backend) -> Vec<(Device, Kind)> {
    let infos: Vec<_> =
        gpu::devices().into_iter().filter(|info| info.id.backend == backend).collect();
    assert!(
        !infos.is_empty(),
        "no {backend} device: install a driver; for Vulkan, mesa-vulkan-drivers has one in software"
    );
    let open = |info: gpu::DeviceInfo| {
        eprintln!("{}: {}", info.id, info.name);
        (gpu::open(DeviceChoice::Named(info.id)).unwrap().device, info.kind)
    };
    infos.into_iter().map(open).collect()
}

/// Compares every op in this mode with the oracle.
fn check_kernels(device: &Device, mode: OpsMode) {
    check_small(20, device, &[mode]);
    check_large(long_cases(130), device, mode);
    check_large(head_cases(), device, mode);
    check_optimizer(device, mode);
    let dropout = Dropout::new(0.3, 1, 2, 3, 4);
    let on_the_cpu = mask(dropout, 2, 999, &Device::flex(), OpsMode::AUTO);
    let there = mask(dropout, 2, 999, device, mode);
    assert_eq!(there, on_the_cpu, "{mode:?}: the mask differs from the CPU's");
    check_softmax(device, mode);
}

/// Scores as sampling has them, masked ones among them.
fn check_softmax(device: &Device, mode: OpsMode) {
    const WIDTH: usize = 300;
    let mut scores = noise(1, 3 * WIDTH);
    scores.iter_mut().for_each(|score| *score = (*score * 30.0).round());
    scores[WIDTH..WIDTH + 10].fill(-1e30);
    let there = Tensor::<2>::from_data(TensorData::new(scores.clone(), [3, WIDTH]), device);
    let there = values(ops::softmax(there, mode));
    for (row, there) in scores.chunks(WIDTH).zip(there.chunks(WIDTH)) {
        let truth = softmax(row.iter().map(|&score| f64::from(score)).collect());
        compare(&format!("{mode:?} softmax"), there, &truth, VALUE).unwrap();
    }
}

#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_the_oracle() {
    for (device, kind) in devices(Backend::Vulkan) {
        for mode in [OpsMode::AUTO.on(kind), OpsMode::WIDE] {
            check_kernels(&device, mode);
        }
    }
}

/// The kernels for CUDA, where there may be no such card.
#[cfg(feature = "wgpu")]
#[test]
fn every_vulkan_adapter_matches_the_oracle_with_cube_kernels() {
    for (device, _) in devices(Backend::Vulkan) {
        check_kernels(&device, OpsMode::CUBE);
    }
}

/// The kernels in half precision, where there may be no bfloat16: in f16, on adapters that have it.
#[cfg(feature = "wgpu")]
#[test]
fn half_precision_matches_the_oracle_where_an_adapter_has_it() {
    let dtype = Dtype::Float16;
    let able: Vec<_> = devices(Backend::Vulkan)
        .into_iter()
        .filter(|(device, _)| gpu::dtypes(device).contains(&dtype))
        .collect();
    assert!(!able.is_empty(), "no adapter computes in f16: Mesa's lavapipe does");
    for (device, _) in able {
        check_half(&device, OpsMode::CUBE.in_dtype(dtype));
    }
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn every_cuda_card_matches_the_oracle() {
    for (device, _) in devices(Backend::Cuda) {
        check_kernels(&device, OpsMode::AUTO);
        for dtype in [Dtype::Tf32, Dtype::Bfloat16] {
            assert!(gpu::dtypes(&device).contains(&dtype), "{dtype:?}");
            check_half(&device, OpsMode::AUTO.in_dtype(dtype));
        }
    }
}

/// No sum's order is left to chance.
#[cfg(feature = "wgpu")]
#[test]
fn cube_kernels_give_the_same_bits_again() {
    for (device, _) in devices(Backend::Vulkan) {
        let all = || {
            let ops = long_cases(130).into_iter().flat_map(|case| {
                let Outcome { value, grads } = run(&case, &device, OpsMode::CUBE);
                [value].into_iter().chain(grads)
            });
            let all = ops.chain(optimize(100_000, &device, OpsMode::CUBE));
            all.map(|x| x.into_iter().map(f32::to_bits).collect()).collect::<Vec<Vec<u32>>>()
        };
        assert!(all() == all(), "a second run gives other bits");
    }
}
