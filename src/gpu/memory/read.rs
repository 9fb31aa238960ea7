//! Reads tensors from a device while the host works, and waits for a device.

use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

#[cfg(not(target_arch = "wasm32"))]
use burn::tensor::Device;
use burn::tensor::{Tensor, TensorData};

use crate::gpu::error::DeviceError;

/// A read that has begun. It returns the elements of a tensor when it is ready.
pub(crate) type Reading = Pin<Box<dyn Future<Output = Result<TensorData, DeviceError>>>>;

/// Begins to read `tensor` `[elements]`. The device copies it to staging memory when it has finished
/// the earlier work, without further calls. The elements stay there, mapped, until they are dropped.
/// burn's own reads begin only when the elements are first used, and then block the thread.
pub(crate) fn begin_read(tensor: Tensor<1>) -> Reading {
    let mut reading = read(tensor);
    // The first poll queues the copy.
    is_done(&mut reading);
    reading
}

/// Returns true if a read is ready, and with it all work that was queued before it. Does not wait.
pub(crate) fn is_done(reading: &mut Reading) -> bool {
    let polled = reading.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(elements) = polled else { return false };
    *reading = Box::pin(ready(elements));
    true
}

fn read(tensor: Tensor<1>) -> Reading {
    #[cfg(any(feature = "wgpu", feature = "cuda"))]
    if let Ok(tensor) = tensor.clone().try_into_primitive::<burn_cubecl::CubeBackend>() {
        return read_from_gpu(burn_cubecl::kernel::into_contiguous(tensor));
    }
    Box::pin(async move {
        let elements = tensor.into_data_async().await;
        elements.map_err(DeviceError::stopped)
    })
}

#[cfg(any(feature = "wgpu", feature = "cuda"))]
fn read_from_gpu(tensor: burn_cubecl::tensor::CubeTensor) -> Reading {
    use burn_cubecl::cubecl::server::CopyDescriptor;

    Box::pin(async move {
        let shape = tensor.meta.shape().clone();
        let strides = tensor.meta.strides().clone();
        let dtype = tensor.dtype;
        let binding = tensor.handle.binding();
        let from = CopyDescriptor::new(binding, shape.clone(), strides, dtype.size());
        let read = tensor.client.read_one_tensor_async(from).await;
        let elements = read.map_err(DeviceError::stopped)?;
        Ok(TensorData::from_bytes(elements, shape, dtype))
    })
}

/// Waits until the device has finished all queued work.
#[cfg(not(target_arch = "wasm32"))]
pub fn wait(device: &Device) -> Result<(), DeviceError> {
    device.sync().map_err(|error| {
        DeviceError::from_message("the device", &error.to_string())
            .unwrap_or_else(|| DeviceError::stopped(error))
    })
}
