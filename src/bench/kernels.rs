//! Measures single ops, with burn's stock ops for comparison.

use burn::tensor::{Device, Distribution, FloatDType, Tensor};

use super::{OpRow, best_seconds, fraction};
use crate::gpu::{DeviceError, Peaks, stored};
use crate::ops::{AttentionShape, OpsMode};

pub(super) struct Bench<'a> {
    pub device: &'a Device,
    pub mode: OpsMode,
    /// True to measure burn's stock ops too, which compute in float32.
    pub compare: bool,
    pub peaks: Option<Peaks>,
}

pub(super) struct OpSizes {
    /// Rows of the matrix products.
    pub rows: usize,
    /// The width of the residual stream.
    pub c: usize,
    pub attention: AttentionShape,
    /// Rows and chunk of the loss.
    pub loss: [usize; 2],
    /// Rows of embedding, layer norm and dropout.
    pub norm_rows: usize,
    pub vocab: usize,
    /// Weights that AdamW updates.
    pub weights: usize,
}

impl OpSizes {
    /// The sizes for software renderers and weak integrated GPUs.
    pub const SMALL: Self = Self {
        rows: 768,
        c: 384,
        attention: AttentionShape { batch: 1, time: 512, heads: 8, kv_heads: 8, dropout: None },
        loss: [512, 64],
        norm_rows: 2048,
        vocab: 4096,
        weights: 4 << 20,
    };

    pub const GPT2: Self = Self {
        rows: 8192,
        c: 768,
        attention: AttentionShape { batch: 8, time: 1024, heads: 12, kv_heads: 12, dropout: None },
        loss: [2048, 512],
        norm_rows: 8192,
        vocab: 50_304,
        weights: 32 << 20,
    };
}

pub(super) type Case = fn(&Bench, &OpSizes) -> Result<OpRow, DeviceError>;

pub(super) struct Cost {
    pub size: String,
    /// Bytes of all operands, each read or written once.
    pub bytes: usize,
    pub operations: usize,
}

impl Bench<'_> {
    pub fn random<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), self.device)
    }

    /// Returns random activations, in the precision of the mode.
    pub fn activations(&self, shape: [usize; 2]) -> Tensor<2> {
        self.random(shape).cast(self.dtype())
    }

    /// Returns a random weight as products read it: a copy in half, where runs keep one.
    pub fn weight(&self, shape: [usize; 2]) -> Tensor<2> {
        let is_half = self.mode.precision.keeps_half_weights();
        self.random(shape).cast(if is_half { self.dtype() } else { FloatDType::F32 })
    }

    fn dtype(&self) -> FloatDType {
        stored(self.mode.precision.dtype()).into()
    }

    pub fn bytes(&self, elements: usize) -> usize {
        self.mode.precision.activation_bytes() as usize * elements
    }

    /// Returns the bytes of weights as products read them.
    pub fn weight_bytes(&self, elements: usize) -> usize {
        if self.mode.precision.keeps_half_weights() { 2 * elements } else { 4 * elements }
    }

    /// Returns a random leaf of burn's autodiff graph, for stock ops.
    pub fn leaf<const D: usize>(&self, shape: [usize; D]) -> Tensor<D> {
        let device = self.device.clone().autodiff();
        Tensor::random(shape, Distribution::Uniform(-1.0, 1.0), &device).require_grad()
    }

    /// Returns the row of an op from two functions that return seconds.
    pub fn row(
        &self,
        name: &'static str,
        cost: Cost,
        ours: impl FnOnce() -> Result<f64, DeviceError>,
        stock: impl FnOnce() -> Result<f64, DeviceError>,
    ) -> Result<OpRow, DeviceError> {
        let seconds = ours()?;
        let stock_ms = if self.compare { Some(stock()? * 1e3) } else { None };
        let bytes = cost.bytes as f64;
        let operations = cost.operations as f64;
        Ok(OpRow {
            name,
            size: cost.size,
            ms: seconds * 1e3,
            stock_ms,
            gb_per_s: bytes / seconds * 1e-9,
            gflop_per_s: operations / seconds * 1e-9,
            fraction: fraction(self.peaks, bytes, operations, seconds),
        })
    }

    pub fn forward<T, S>(
        &self,
        name: &'static str,
        cost: Cost,
        ours: impl Fn() -> T,
        stock: impl Fn() -> S,
    ) -> Result<OpRow, DeviceError> {
        let ours = || best_seconds(self.device, || (), |()| drop(ours()));
        let stock = || best_seconds(self.device, || (), |()| drop(stock()));
        self.row(name, cost, ours, stock)
    }

    /// Times the backward pass `ours`, and burn's backward pass of the op `stock` without its forward
    /// pass.
    pub fn backward<T>(
        &self,
        name: &'static str,
        cost: Cost,
        ours: impl Fn() -> T,
        stock: impl Fn() -> Tensor<2>,
    ) -> Result<OpRow, DeviceError> {
        let ours = || best_seconds(self.device, || (), |()| drop(ours()));
        let stock = || best_seconds(self.device, &stock, |output| drop(output.backward()));
        self.row(name, cost, ours, stock)
    }
}
