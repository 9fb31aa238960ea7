//! The inputs of the checks: the same values on the tested device and, rounded alike, for the comparison.

use std::sync::Arc;

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use super::KernelShapes;
use crate::config::Precision;
use crate::gpu::{DriverTraits, stored};
use crate::ops::{Dropout, OpsMode};

/// Makes inputs on a device, in the dtypes that a run in `precision` stores them in.
pub(super) struct TestInputs {
    device: Device,
    pub mode: OpsMode,
    /// Of the tested run.
    pub precision: Precision,
    pub shapes: KernelShapes,
    /// True to round values to those dtypes but compute in float32.
    is_exact: bool,
}

impl TestInputs {
    /// Returns inputs in the precision of `mode`.
    pub fn tested(device: Device, mode: OpsMode, shapes: KernelShapes) -> Self {
        Self { device, mode, precision: mode.precision, shapes, is_exact: false }
    }

    /// Returns the same inputs as on a GPU of this many multiprocessors, which decide on the size of tiles.
    pub fn with_multiprocessors(&self, multiprocessors: Option<usize>) -> Self {
        let driver = DriverTraits { multiprocessors, ..self.mode.driver };
        Self { device: self.device.clone(), mode: self.mode.for_driver(driver), ..*self }
    }

    /// Returns the inputs of what is expected from a run in `precision`: by the CPU's loops, and in a
    /// browser, which has none, by tensor operations on the same `device`.
    pub fn expected(device: &Device, precision: Precision, shapes: KernelShapes) -> Self {
        #[cfg(not(target_arch = "wasm32"))]
        let (_, device, mode) = (device, Device::flex(), OpsMode::AUTO);
        #[cfg(target_arch = "wasm32")]
        let (device, mode) = (device.clone(), OpsMode::REFERENCE);
        Self { device, mode, precision, shapes, is_exact: true }
    }

    /// Returns an activation, which is in half precision in a run in half precision.
    pub fn activation(&self, seed: u64, shape: [usize; 2]) -> Tensor<2> {
        self.tensor(noise(seed, shape.iter().product()), shape, stored(self.precision.dtype()))
    }

    /// Returns a weight as products multiply it.
    pub fn matrix(&self, seed: u64, shape: [usize; 2]) -> Tensor<2> {
        let half = self.precision.keeps_half_weights();
        let dtype = if half { stored(self.precision.dtype()) } else { DType::F32 };
        self.tensor(noise(seed, shape.iter().product()), shape, dtype)
    }

    /// Returns a weight as the optimizer updates it.
    pub fn weight(&self, seed: u64, shape: [usize; 2]) -> Tensor<2> {
        self.tensor(noise(seed, shape.iter().product()), shape, DType::F32)
    }

    pub fn vector(&self, seed: u64, len: usize) -> Tensor<1> {
        self.tensor(noise(seed, len), [len], DType::F32)
    }

    /// Returns a bias, if the model has biases.
    pub fn bias(&self, seed: u64, len: usize) -> Option<Tensor<1>> {
        self.shapes.bias.then(|| self.vector(seed, len))
    }

    pub fn values(&self, values: &[f32]) -> Tensor<1> {
        self.tensor(values.to_vec(), [values.len()], DType::F32)
    }

    /// Returns a vector of values that are not negative.
    pub fn positive(&self, seed: u64, len: usize) -> Tensor<1> {
        self.tensor(noise(seed, len).into_iter().map(f32::abs).collect(), [len], DType::F32)
    }

    /// Returns `values` as the optimizer's copy in half precision, rounded on either side.
    pub fn half_copy(&self, seed: u64, len: usize) -> Option<Tensor<1>> {
        let dtype = stored(self.precision.dtype());
        let data = TensorData::new(noise(seed, len), [len]).convert_dtype(dtype);
        let has_copies = self.precision.keeps_half_weights();
        has_copies.then(|| Tensor::from_data(data, (&self.device, dtype)))
    }

    pub fn zeros(&self, shape: [usize; 2]) -> Tensor<2> {
        Tensor::zeros(shape, (&self.device, DType::F32))
    }

    /// Returns words of any bits.
    pub fn words(&self, seed: u64, shape: [usize; 2]) -> Tensor<2, Int> {
        let len = shape.iter().product();
        let words: Vec<i32> =
            noise(seed, len).into_iter().map(|x| x.to_bits().rotate_left(9) as i32).collect();
        let words = TensorData::new(words, [len]);
        Tensor::<1, Int>::from_data(words, (&self.device, DType::I32)).reshape(shape)
    }

    /// Returns the mask of a run with dropout.
    pub fn dropout(&self) -> Dropout {
        Dropout::new(0.2, 1, 2, 3, 4)
    }

    fn tensor<const D: usize>(
        &self,
        values: Vec<f32>,
        shape: [usize; D],
        dtype: DType,
    ) -> Tensor<D> {
        // Flat, because an upload with rows pads them on CUDA, and the tensors of a run have no padding.
        let len = values.len();
        let data = TensorData::new(values, [len]).convert_dtype(dtype);
        let dtype = if self.is_exact { DType::F32 } else { dtype };
        Tensor::<1>::from_data(data, (&self.device, dtype)).reshape(shape)
    }
}

/// Returns `len` numbers between -1 and 1, the same for the same seed.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    // Knuth's MMIX generator. Its upper bits are random enough.
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

/// Returns `count` ids below `limit` in a mixed order, with repetitions if `count` is larger.
pub(super) fn ids(count: usize, limit: usize) -> Arc<[u32]> {
    (0..count).map(|i| ((i * i + 7 * i) % limit) as u32).collect()
}
