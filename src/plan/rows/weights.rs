//! The memory of weights and optimizer state, which live for the whole run.
//!
//! With the optimizer in host memory, AdamW's master weights and two moments are on the host only.
//! Gradients are copied to the host and new weights to the device, in pieces. Muon computes on the device,
//! so its momentum crosses the bus both ways, one matrix after the other. In f32 the device's weights are
//! the master weights of its matrices; in half precision their master weights cross the bus too.

use super::dimensions::Dimensions;
use super::op_memory::OpMemory;
use crate::config::{Dtype, QUANTIZED_BLOCK};

use crate::plan::sharding::largest_part;
use crate::plan::{Class, Limits, MAX_SHARDS, Plan, Row, STAGED_ELEMENTS};

/// The largest piece that crosses the bus at once, in bytes of f32.
const PIECE: u64 = 4 * STAGED_ELEMENTS as u64;

/// Pieces on the device: two in staging memory on their way to the host, one on its way back and its copy.
const DEVICE_PIECES: u64 = 4;

/// Pieces on the host: the device's in mapped memory, and AdamW's gradient, weight and moments.
const HOST_PIECES: u64 = 2 * DEVICE_PIECES;

pub(super) struct WeightMemory<'a> {
    model: Dimensions<'a>,
    ops: OpMemory,
    /// The most bytes that the device binds.
    largest_tensor: u64,
    is_offloaded: bool,
    /// Weights whose state is on this rank: all, or those of the largest shard.
    muon: u64,
    adamw: u64,
}

impl<'a> WeightMemory<'a> {
    pub fn new(model: Dimensions<'a>, ops: OpMemory, limits: &Limits, plan: &Plan) -> Self {
        let [muon, adamw] = if limits.shards_optimizer() {
            largest_part(model.config, model.vocab, limits.optimizer_shards as usize)
        } else {
            let muon = model.config.muon_weights();
            [muon, model.parameters - muon]
        };
        let of_adapter = model.adapter.map_or(u64::MAX, |adapter| adapter.largest);
        let largest_tensor = limits.largest_tensor.unwrap_or(u64::MAX).min(of_adapter);
        Self { model, ops, largest_tensor, is_offloaded: plan.offload_optimizer, muon, adamw }
    }

    /// Returns true if matrices and embeddings are in half precision alone: master weights are on the host, or an
    /// adapter is trained instead.
    pub fn are_half(&self) -> bool {
        (self.is_offloaded || self.model.adapter.is_some()) && self.ops.precision.is_half()
    }

    /// The copy of a weight that a product makes in the dtype of activations, if it does.
    pub fn cast(&self, name: &str, elements: u64) -> Row {
        let precision = self.ops.precision;
        let is_cast = self.ops.are_unfused()
            && precision.is_half()
            && !precision.keeps_half_weights()
            && !self.are_half();
        self.ops.row(name, Class::Workspace, if is_cast { elements } else { 0 })
    }

    /// Returns the size of the embedding in f32, in bytes. An embedding that is larger than the device
    /// binds is split; then this is the size of a shard.
    pub fn embedding_shard(&self) -> u64 {
        let embedding = 4 * self.model.embedding();
        embedding.div_ceil(embedding.div_ceil(self.largest_tensor).clamp(1, MAX_SHARDS as u64))
    }

    /// Returns the sizes of the largest tensors of the embedding and of a matrix, in bytes. Gradients are f32, but an
    /// adapter leaves half weights as they are. A sample decodes weights in 8 bits to f32 and, where each product casts
    /// its weight, so are halves.
    pub fn largest(&self) -> [u64; 2] {
        let (shard, matrix) = (self.embedding_shard(), 4 * self.model.largest_matrix());
        if !self.are_half() || self.model.adapter.is_none() {
            return [shard, matrix];
        }
        let is_wide = self.ops.are_unfused() || self.model.quantized() > 0;
        [shard / 2, if is_wide { matrix } else { matrix / 2 }]
    }

    /// Lists what the device holds. With an offloaded optimizer these are the weights and pieces on their
    /// way; in half precision all weights with two dimensions are half.
    pub fn on_device(&self) -> Vec<Row> {
        let Dimensions { parameters, matrices, adapter, .. } = self.model;
        let wide = matrices + self.model.embeddings();
        let of_weight = if self.are_half() { 2 } else { 4 };
        let quantized = self.model.quantized();
        let of_scale = if self.ops.precision.dtype() == Dtype::Float16 { 2 } else { 4 };
        let in_blocks = quantized + quantized / QUANTIZED_BLOCK as u64 * of_scale;
        let on_host = if self.has_host_table() { self.model.embedding() } else { 0 };
        let wide_bytes = of_weight * (wide - quantized - on_host);
        let bytes = in_blocks + wide_bytes + 4 * (parameters - wide);
        if let Some(adapter) = adapter {
            return vec![
                Row::new("parameters of the base", Class::Weights, bytes),
                Row::f32("adapter", Class::Weights, adapter.weights + adapter.masks),
                Row::f32("AdamW moments", Class::Optimizer, 2 * adapter.weights),
            ];
        }
        if self.is_offloaded {
            return vec![
                Row::new("parameters", Class::Weights, bytes),
                Row::new("staging", Class::Slack, DEVICE_PIECES * self.piece()),
            ];
        }
        let has_copies = self.ops.precision.keeps_half_weights();
        let copied = if has_copies { matrices + self.model.embedding() } else { 0 };
        vec![
            Row::f32("parameters", Class::Weights, parameters),
            self.ops.row("half copies of weight matrices", Class::Weights, copied),
            Row::f32("AdamW moments", Class::Optimizer, 2 * self.adamw),
            Row::f32("Muon momentum", Class::Optimizer, self.muon),
        ]
    }

    /// Returns true if the token embedding is not on the device, but in host memory.
    fn has_host_table(&self) -> bool {
        !self.ops.are_cpu() && self.model.adapter.is_some_and(|adapter| adapter.is_on_host)
    }

    pub fn on_host(&self) -> Vec<Row> {
        if self.has_host_table() {
            let of_weight = if self.are_half() { 2 } else { 4 };
            let bytes = of_weight * self.model.embedding();
            return vec![Row::new("token embedding", Class::Weights, bytes)];
        }
        if !self.is_offloaded {
            return Vec::new();
        }
        let masters = if self.are_half() { self.model.parameters } else { self.adamw };
        let mut rows = vec![
            Row::f32("master weights", Class::Weights, masters),
            Row::f32("AdamW moments", Class::Optimizer, 2 * self.adamw),
            Row::f32("Muon momentum", Class::Optimizer, self.muon),
            Row::new("staging", Class::Slack, HOST_PIECES * self.piece()),
        ];
        rows.retain(|row| row.bytes > 0);
        rows
    }

    fn piece(&self) -> u64 {
        PIECE.min(self.embedding_shard().max(4 * self.model.largest_matrix()))
    }
}
