//! A token embedding in host memory.

use std::sync::Arc;

use burn::tensor::{DType, Device, Element, Tensor, TensorData};
use half::{bf16, f16};

/// The embedding of a base that is not trained, and whose head is another table: a step needs only the rows of its
/// tokens on the device.
#[derive(Clone, Debug)]
pub(super) struct HostTable {
    rows: Arc<TensorData>,
    width: usize,
    device: Device,
}

impl HostTable {
    /// Keeps `values` `[rows, width]` in the dtype that the device would have them in.
    pub fn new(values: Vec<f32>, shape: [usize; 2], dtype: DType, device: &Device) -> Self {
        let rows = TensorData::new(values, shape).convert_dtype(dtype);
        Self { rows: Arc::new(rows), width: shape[1], device: device.clone() }
    }

    /// Returns the rows of `tokens` on the device, `[tokens, width]`.
    pub fn look_up(&self, tokens: &[u32]) -> Tensor<2> {
        let dtype = self.rows.dtype();
        let rows = match dtype {
            DType::F16 => self.gather::<f16>(tokens),
            DType::BF16 => self.gather::<bf16>(tokens),
            _ => self.gather::<f32>(tokens),
        };
        Tensor::from_data(rows, (&self.device, dtype))
    }

    fn gather<E: Element>(&self, tokens: &[u32]) -> TensorData {
        let values = self.rows.as_slice::<E>().expect("it is of this dtype");
        let rows =
            tokens.iter().flat_map(|token| &values[*token as usize * self.width..][..self.width]);
        TensorData::new(rows.copied().collect::<Vec<E>>(), [tokens.len(), self.width])
    }
}
