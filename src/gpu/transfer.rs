//! Reads tensors from a device while the host works.

use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use burn::tensor::{Tensor, TensorData};

use super::DeviceError;

/// A read that has begun. It returns the elements of a tensor when it is ready.
pub(crate) type Reading = Pin<Box<dyn Future<Output = Result<TensorData, DeviceError>>>>;

/// Begins to read `tensor` `[elements]`. The device copies it to staging memory when it has finished
/// the earlier work, without further calls. The elements stay there, mapped, until they are dropped.
/// burn's own reads begin only when the elements are first used, and then block the thread.
pub(crate) fn begin_read(tensor: Tensor<1>) -> Reading {
    let mut reading = read(tensor);
    // The first poll queues the copy.
    match reading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(elements) => Box::pin(ready(elements)),
        Poll::Pending => reading,
    }
}

/// Returns true if a read is ready, and with it all work that was queued before it. Does not wait.
pub(crate) fn is_done(reading: &mut Reading) -> bool {
    match reading.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(elements) => {
            *reading = Box::pin(ready(elements));
            true
        }
        Poll::Pending => false,
    }
}

fn read(tensor: Tensor<1>) -> Reading {
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if let Ok(tensor) = tensor.clone().try_into_primitive::<burn_cubecl::CubeBackend>() {
        return cube::read(tensor);
    }
    Box::pin(async move {
        let elements = tensor.into_data_async().await;
        elements.map_err(|error| DeviceError::Stopped { reason: error.to_string() })
    })
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
mod cube {
    use burn::tensor::TensorData;
    use burn_cubecl::cubecl::server::{CopyDescriptor, ServerError};
    use burn_cubecl::kernel::into_contiguous;
    use burn_cubecl::tensor::CubeTensor;

    use super::{DeviceError, Reading};

    pub fn read(tensor: CubeTensor) -> Reading {
        let CubeTensor { client, handle, meta, dtype, .. } = into_contiguous(tensor);
        Box::pin(async move {
            let (shape, strides) = (meta.shape().clone(), meta.strides().clone());
            let from = CopyDescriptor::new(handle.binding(), shape.clone(), strides, dtype.size());
            let read = client.read_one_tensor_async(from).await;
            let stopped = |error: ServerError| DeviceError::Stopped { reason: error.to_string() };
            Ok(TensorData::from_bytes(read.map_err(stopped)?, shape, dtype))
        })
    }
}
