//! Updates of an optimizer whose states and master weights are in host memory.
//!
//! Everything crosses in [`pieces`] of 4 MiB: gradients are read, the CPU's AdamW updates the weights
//! and moments of a piece, and the new weights are uploaded, as half where the model stores half.
//! The next piece is being read while the CPU computes, so that an update takes about as long as the
//! slower of both. The weights on the device are written in place: besides two pieces of staging
//! memory and the piece that is uploaded, an update of AdamW allocates nothing.
//!
//! Muon needs matrix products, which the device computes: the momentum of one matrix after the other
//! is uploaded and read back. In f32 nothing else is: the device has the weights.

use std::iter::zip;
use std::mem::take;
use std::vec::IntoIter;

use burn::tensor::{DType, Device, Element, FloatDType, Tensor, TensorData};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use rayon::prelude::*;
use web_time::Instant;

use super::muon::{MatrixShares, Muon};
use super::state::pieces;
use super::{Optimizer, PartState, Rule, decays};
use crate::gpu::{self, Reading, Watchdog};
use crate::model::{FlatWeight, Gpt, put_weights, take_weights, values};
use crate::ops::{self, AdamW, Moments, OpsMode, WeightUpdate};

/// Elements that one task converts.
const CHUNK: usize = 16 * 1024;

const ONE: &str = "an update of one weight returns one";

impl Optimizer {
    /// Updates a model by states in host memory. Waits for the device.
    pub(super) async fn update_offloaded(
        &mut self,
        model: &mut Gpt,
        grads: Vec<Tensor<1>>,
        control: Tensor<1>,
        learning_rate: f64,
    ) {
        let dry = gpu::is_dry_run();
        let scalars = self.scalars(learning_rate);
        let muon = self.muon(learning_rate, control.clone());
        let Self { offload: Some(offload), parts, .. } = self else { return };
        let control: Vec<f32> =
            if dry { vec![1.0; 4] } else { values(control).await.iter().collect() };
        offload.watchdog.restart();
        let begun = Instant::now();
        let is_applied = control[1] != 0.0;
        if is_applied {
            let mut others = Vec::new();
            let mut matrices = Vec::new();
            for (part, grad) in parts.iter().zip(grads) {
                let of_rule = if part.rule == Rule::AdamW { &mut others } else { &mut matrices };
                of_rule.push(grad);
            }
            let host = Device::flex();
            let mut update = HostUpdate {
                scalars,
                muon,
                slices: (!dry).then(|| {
                    ReadAhead::new(others.into_iter().flat_map(sliced), &offload.watchdog)
                }),
                matrices: matrices.into_iter(),
                control: Tensor::from_floats(control.as_slice(), &host),
                host,
                watchdog: &offload.watchdog,
                dry,
            };
            let weights = zip(take_weights(model), parts);
            let updated = weights.map(|(weight, part)| update.apply(weight, part)).collect();
            put_weights(model, updated);
        }
        offload.spent += begun.elapsed();
    }
}

/// The change of every weight to its next value.
struct HostUpdate<'a> {
    scalars: AdamW,
    muon: Muon,
    /// The gradients that AdamW applies; `None` in a dry run, which reads nothing.
    slices: Option<ReadAhead<'a>>,
    /// The gradients that Muon applies.
    matrices: IntoIter<Tensor<1>>,
    /// In host memory.
    control: Tensor<1>,
    host: Device,
    watchdog: &'a Watchdog,
    /// True in a dry run, which uploads only the first piece of each part and reads nothing. Host memory
    /// that was never written stays untouched.
    dry: bool,
}

impl HostUpdate<'_> {
    fn apply(&mut self, weight: FlatWeight, part: &mut PartState) -> FlatWeight {
        let FlatWeight { value, half, shape } = weight;
        let value = match part.rule {
            Rule::Muon { matrices } => self.update_matrix(value, part, matrices, shape.dims()),
            Rule::AdamW => self.update_in_pieces(value, part, decays(shape.num_dims())),
        };
        FlatWeight { value, half, shape }
    }

    /// Updates the masters and moments of a part by AdamW, and `weight` `[elements]` on the device.
    fn update_in_pieces(
        &mut self,
        mut weight: Tensor<1>,
        part: &mut PartState,
        decays: bool,
    ) -> Tensor<1> {
        let [masters, m, v] = [&mut part.masters, &mut part.m, &mut part.v].map(take);
        let of_pieces = masters.into_iter().zip(m).zip(v).zip(pieces(weight.dims()[0]));
        for (((mut w, mut m), mut v), piece) in of_pieces {
            if let Some(grad) = self.slices.as_mut().and_then(ReadAhead::wait) {
                let grad = Tensor::from_data(grad, &self.host);
                let update =
                    WeightUpdate { w, half: None, grad, moments: Moments { m, v }, decays };
                let control = self.control.clone();
                let updated = ops::adamw(vec![update], control, self.scalars, OpsMode::AUTO);
                (w, _, Moments { m, v }) = updated.into_iter().next().expect(ONE);
            }
            if !self.dry || piece.start == 0 {
                let (kept, copy) = upload(w, weight.dtype(), &weight.device());
                weight = weight.slice_assign([piece], copy);
                w = kept;
            }
            part.masters.push(w);
            part.m.push(m);
            part.v.push(v);
        }
        weight
    }

    /// Updates the momentum of a part by Muon on the device, with its masters if there are any, and
    /// `weight` `[elements]`, which is `matrices` in `shape`.
    fn update_matrix(
        &mut self,
        weight: Tensor<1>,
        part: &mut PartState,
        matrices: MatrixShares,
        shape: [usize; 2],
    ) -> Tensor<1> {
        let Some(grad) = self.matrices.next() else { return weight };
        let device = weight.device();
        let stored = weight.dtype();
        let [elements] = weight.dims();
        let has_masters = !part.masters.is_empty();
        let weight = if has_masters {
            // Its memory is free for the master weight.
            drop(weight);
            self.assemble(&mut part.masters, elements, &device)
        } else {
            weight
        };
        let m = self.assemble(&mut part.m, elements, &device);
        let (weight, _, m) = self.muon.update(weight, None, grad, m, matrices, shape);
        self.replace(&mut part.m, m);
        if !has_masters {
            return weight;
        }
        let half = weight.clone().cast(FloatDType::from(stored));
        self.replace(&mut part.masters, weight);
        half
    }

    /// Uploads the pieces of a part as one tensor `[elements]` in f32.
    ///
    /// Waits for each piece: wgpu would keep the staging memory of all pieces until the device is
    /// next waited for, twice 40 MB at a matrix of GPT-2 XL.
    fn assemble(&self, parts: &mut Vec<Tensor<1>>, elements: usize, device: &Device) -> Tensor<1> {
        let mut whole = Tensor::empty([elements], device);
        for (mut part, piece) in take(parts).into_iter().zip(pieces(elements)) {
            if !self.dry || piece.start == 0 {
                let (unchanged, copy) = upload(part, DType::F32, device);
                whole = whole.slice_assign([piece], copy);
                part = unchanged;
            }
            if !self.dry {
                // A failure of the device shows at the next read.
                let _ = pollster::block_on(gpu::finish(device));
                self.watchdog.restart();
            }
            parts.push(part);
        }
        whole
    }

    /// Replaces pieces in host memory by the pieces of `new` `[elements]`.
    fn replace(&self, parts: &mut Vec<Tensor<1>>, new: Tensor<1>) {
        if self.dry {
            return;
        }
        parts.clear();
        let copied = |read: TensorData| {
            // Read memory is staging memory, which is to be free again.
            let copy = TensorData::new(f32s(&read).to_vec(), read.shape().clone());
            Tensor::from_data(copy, &self.host)
        };
        let mut read = ReadAhead::new(sliced(new), self.watchdog);
        parts.extend(std::iter::from_fn(|| read.wait()).map(copied));
    }
}

/// The [`pieces`] of a tensor on the device. One is a copy if it begins or ends where the device binds
/// no buffer.
fn sliced(tensor: Tensor<1>) -> impl Iterator<Item = Tensor<1>> {
    let [elements] = tensor.dims();
    pieces(elements).map(move |piece| tensor.clone().narrow(0, piece.start, piece.len()))
}

/// Reads tensors one after the other. The next one is on its way when one is returned.
struct ReadAhead<'a> {
    /// Made one by one, because the pieces of all gradients might be copies of all gradients.
    tensors: Box<dyn Iterator<Item = Tensor<1>>>,
    begun: Option<Reading>,
    watchdog: &'a Watchdog,
}

impl<'a> ReadAhead<'a> {
    fn new(mut tensors: impl Iterator<Item = Tensor<1>> + 'static, watchdog: &'a Watchdog) -> Self {
        let begun = tensors.next().map(gpu::begin_read);
        Self { tensors: Box::new(tensors), begun, watchdog }
    }

    /// Waits for the next tensor. It blocks this thread: a mapper of weights cannot wait in another way.
    ///
    /// # Panics
    /// If the device fails, as every read of a model does.
    fn wait(&mut self) -> Option<TensorData> {
        let read = pollster::block_on(self.begun.take()?).expect("the device still works");
        self.watchdog.restart();
        self.begun = self.tensors.next().map(gpu::begin_read);
        Some(read)
    }
}

/// Copies `piece`, which is f32 in host memory, to a tensor of `dtype` on `device`. Returns both.
fn upload(piece: Tensor<1>, dtype: DType, device: &Device) -> (Tensor<1>, Tensor<1>) {
    let host = piece.device();
    let data = piece.into_data();
    let values = f32s(&data);
    let shape = data.shape().clone();
    let copy = match dtype {
        DType::F16 => TensorData::new(narrowed::<f16>(values), shape),
        DType::BF16 => TensorData::new(narrowed::<bf16>(values), shape),
        _ => TensorData::new(values.to_vec(), shape),
    };
    (Tensor::from_data(data, &host), Tensor::from_data(copy, (device, dtype)))
}

fn f32s(data: &TensorData) -> &[f32] {
    data.as_slice().expect("gradients, states and master weights are f32")
}

fn narrowed<H>(values: &[f32]) -> Vec<H>
where
    H: Element,
    [H]: HalfFloatSliceExt,
{
    let mut half = vec![H::default(); values.len()];
    let chunks = half.par_chunks_mut(CHUNK).zip(values.par_chunks(CHUNK));
    chunks.for_each(|(half, values)| half.convert_from_f32_slice(values));
    half
}
