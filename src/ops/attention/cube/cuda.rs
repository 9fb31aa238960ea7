//! Attention by `shaders/cuda/attention.cu`, where the device runs it: bfloat16 and float16, with heads of
//! the sizes that it is compiled for.

use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::{AttentionBackwardInputs, AttentionShape, scale};
use crate::gpu::cuda::{Arguments, Pointer, is_aligned};
use crate::ops::shared::cube::{CubeKernels, Gpu};
use crate::ops::shared::kernels::contiguous;

const SIZES: [usize; 5] = [32, 64, 80, 96, 128];

/// The positions that a workgroup owns.
const ROWS: usize = 64;

/// The variant of the kernels for one shape.
pub(super) struct Kernels<'a> {
    kernels: &'a CubeKernels,
    shape: AttentionShape,
    size: usize,
    /// The end of their names.
    variant: String,
}

impl<'a> Kernels<'a> {
    /// Returns `None` if they do not compute this shape on this device.
    pub fn of(kernels: &'a CubeKernels, qkv: &CubeTensor, shape: AttentionShape) -> Option<Self> {
        let dtype = match qkv.dtype {
            DType::BF16 => "bf16",
            DType::F16 => "f16",
            _ => return None,
        };
        let size = shape.size(qkv.meta.shape()[1]);
        if !kernels.queue.runs_ptx() || !SIZES.contains(&size) {
            return None;
        }
        let dropout = if shape.dropout.is_some() { ".dropout" } else { "" };
        Some(Self { kernels, shape, size, variant: format!("{dtype}.{size}{dropout}") })
    }

    pub fn forward(&self, qkv: CubeTensor) -> (CubeTensor, CubeTensor) {
        let Self { kernels: CubeKernels { queue, .. }, shape, size, .. } = *self;
        let qkv = aligned(qkv);
        let out = queue.empty_of([qkv.meta.shape()[0], shape.heads * size], qkv.dtype);
        let log_sum_exp = queue.empty([shape.batch, shape.heads, shape.time]);
        let pointers = [Pointer::Read(&qkv), Pointer::Write(&out), Pointer::Write(&log_sum_exp)];
        self.launch("attend", shape.heads, &pointers);
        (out, log_sum_exp)
    }

    pub fn backward(&self, inputs: AttentionBackwardInputs<Gpu>) -> CubeTensor {
        let Self { kernels: CubeKernels { queue, .. }, .. } = *self;
        let AttentionBackwardInputs { dout, qkv, out, log_sum_exp, shape } = inputs;
        let [dout, qkv, out, log_sum_exp] = [dout, qkv, out, log_sum_exp].map(aligned);
        let delta = queue.empty(log_sum_exp.meta.shape().clone());
        let dqkv = queue.empty_of(qkv.meta.shape().clone(), qkv.dtype);
        let pointers = [
            Pointer::Read(&qkv),
            Pointer::Read(&out),
            Pointer::Read(&dout),
            Pointer::Read(&log_sum_exp),
            Pointer::Write(&delta),
            Pointer::Write(&dqkv),
        ];
        self.launch("backward_queries", shape.heads, &pointers);
        let pointers = [
            Pointer::Read(&qkv),
            Pointer::Read(&dout),
            Pointer::Read(&log_sum_exp),
            Pointer::Read(&delta),
            Pointer::Write(&dqkv),
        ];
        self.launch("backward_keys", shape.kv_heads, &pointers);
        dqkv
    }

    /// Launches a pass with `pass_heads` heads.
    fn launch(&self, kernel: &str, pass_heads: usize, pointers: &[Pointer]) {
        let AttentionShape { time, heads, kv_heads, dropout, .. } = self.shape;
        let no_mask = ([0; 4], 1.0);
        let (mask, kept_scale) = dropout.map_or(no_mask, |it| (it.words(), it.scale()));
        let operations = self.kernels.queue.driver.operations;
        for (first, pairs) in self.shape.dispatches(self.size, pass_heads, operations) {
            let shape = [time, heads, kv_heads, first].map(|value| value as u32);
            let scale = [scale(self.size).to_bits()];
            let values = [&shape[..], &scale, &mask, &[kept_scale.to_bits()]].concat();
            let arguments = Arguments { pointers, values: &values };
            let name = format!("{kernel}.{}", self.variant);
            self.kernels.queue.launch_ptx(&name, [time.div_ceil(ROWS), pairs], arguments);
        }
    }
}

/// Returns a tensor in row-major order that begins at a multiple of 16 bytes, as the kernels read them.
fn aligned(tensor: CubeTensor) -> CubeTensor {
    let tensor = contiguous(tensor);
    if is_aligned(&tensor) { tensor } else { tensor.copy() }
}

#[cfg(test)]
mod tests {
    use super::SIZES;
    use crate::gpu::cuda::has_kernel;

    #[test]
    fn every_pass_has_a_kernel() {
        for kernel in ["attend", "backward_queries", "backward_keys"] {
            for variant in ["bf16", "f16"] {
                for size in SIZES {
                    for dropout in ["", ".dropout"] {
                        let name = format!("{kernel}.{variant}.{size}{dropout}");
                        assert!(has_kernel(&name), "{name}");
                    }
                }
            }
        }
    }
}
