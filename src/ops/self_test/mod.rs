//! Runs the ops on a device and compares them with the CPU's, before a run relies on them.
//!
//! Drivers compile kernels wrongly, hang in them, or crash while they compile them. The shapes here are
//! small, but have several tiles and a ragged last one, so that a kernel that is wrong at an edge, or
//! that races, is noticed. A caller that runs one check at a time knows which kernels were running when
//! its process died.

mod checks;
mod inputs;

use burn::tensor::{DType, Tensor, TensorData, Transaction};

use super::OpsMode;
use crate::config::Dtype;
use crate::gpu::{DeviceError, OpenDevice};
use crate::protocol::{KernelError, KernelShapes};
use inputs::TestInputs;

/// A few ops on one shape, and their outputs.
pub struct KernelCheck {
    pub name: &'static str,
    run: fn(&TestInputs) -> Vec<KernelOutput>,
}

/// A tensor that a kernel computed, flat, under the kernel's name.
struct KernelOutput {
    kernel: String,
    values: Tensor<1>,
}

impl KernelOutput {
    fn new<const D: usize>(kernel: impl Into<String>, tensor: Tensor<D>) -> Self {
        let elements = tensor.shape().num_elements();
        Self { kernel: kernel.into(), values: tensor.reshape([elements]) }
    }
}

/// The checks of one device in one mode.
pub struct SelfTest {
    tested: TestInputs,
    expected: TestInputs,
    allowed: f64,
}

impl SelfTest {
    pub fn new(device: &OpenDevice, mode: OpsMode, shapes: KernelShapes) -> Self {
        Self {
            tested: TestInputs::tested(device.device.clone(), mode, shapes),
            expected: TestInputs::expected(&device.device, mode.precision, shapes),
            allowed: allowed(mode.precision.dtype()),
        }
    }

    pub fn checks() -> &'static [KernelCheck] {
        checks::ALL
    }

    /// Returns the error of each kernel of a check. Does not block this thread.
    ///
    /// # Errors
    /// If the device fails.
    pub async fn run(&self, check: &KernelCheck) -> Result<Vec<KernelError>, DeviceError> {
        // The device computes while the CPU does.
        let [tested, expected] = [(check.run)(&self.tested), (check.run)(&self.expected)];
        let kernels: Vec<_> = tested.iter().map(|output| output.kernel.clone()).collect();
        let [got, want] = [read(tested).await?, read(expected).await?];
        let errors =
            kernels.into_iter().zip(std::iter::zip(got, want)).map(|(kernel, (got, want))| {
                let error = largest_error(&got, &want);
                KernelError { kernel, error, allowed: self.allowed }
            });
        Ok(errors.collect())
    }
}

/// Returns the allowed error of products and reductions in a dtype, relative to the largest element.
/// float16 has 11 bits and bfloat16 8, and tensor cores read 11 bits of a float32. Each is several times
/// what correct kernels reach, because drivers may round exp, tanh and divisions as they like.
fn allowed(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::Auto | Dtype::Float32 => 5e-4,
        Dtype::Tf32 | Dtype::Float16 => 1e-2,
        Dtype::Bfloat16 => 5e-2,
    }
}

/// Reads all outputs at once, because each read waits for the device.
async fn read(outputs: Vec<KernelOutput>) -> Result<Vec<Vec<f32>>, DeviceError> {
    let stopped = |reason: String| DeviceError::Stopped { reason };
    let all = outputs.into_iter().fold(Transaction::default(), |all, x| all.register(x.values));
    let read = all.execute_async().await.map_err(|error| stopped(error.to_string()))?;
    let floats = |data: TensorData| data.convert_dtype(DType::F32).try_into_vec();
    read.into_iter().map(|data| floats(data).map_err(|error| stopped(error.to_string()))).collect()
}

/// Returns the largest difference relative to the largest of `want`; `None` if `got` is not finite.
fn largest_error(got: &[f32], want: &[f32]) -> Option<f64> {
    /// A sum that cancels has the errors of its terms.
    const FLOOR: f32 = 0.1;
    let scale = want.iter().fold(FLOOR, |most, x| most.max(x.abs()));
    let off = |(got, want): (&f32, &f32)| f64::from((got - want).abs() / scale);
    let mut all = std::iter::zip(got, want).map(off);
    all.try_fold(0.0, |most: f64, off| off.is_finite().then(|| most.max(off)))
        .filter(|_| got.len() == want.len())
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::config::Gelu;
    use crate::gpu;
    use crate::protocol::Activation;

    fn gpt2() -> KernelShapes {
        KernelShapes {
            width: 24,
            heads: 2,
            kv_heads: 2,
            head_size: 12,
            activation: Gelu::Tanh.into(),
            head_norms: false,
            bias: true,
            dropout: true,
        }
    }

    fn qwen3() -> KernelShapes {
        let activation = Activation::SwiGlu;
        let of_heads = KernelShapes { heads: 4, head_size: 16, activation, ..gpt2() };
        KernelShapes { head_norms: true, bias: false, dropout: false, ..of_heads }
    }

    #[test]
    fn one_wrong_element_is_an_error() {
        let want = [0.5, -2.0, 0.0];
        assert_eq!(largest_error(&want, &want), Some(0.0));
        assert_eq!(largest_error(&[0.5, -2.0, 0.01], &want).map(|off| off > 4e-3), Some(true));
        // Small values have the errors of their terms.
        assert_eq!(largest_error(&[1e-6], &[0.0]).map(|off| off < 1e-4), Some(true));
        for bad in [f32::NAN, f32::INFINITY] {
            assert_eq!(largest_error(&[0.5, bad, 0.0], &want), None);
        }
        let error = |error| KernelError { kernel: "a".into(), error, allowed: 0.1 };
        let text = error(Some(1.0)).to_string();
        assert_eq!(text, "a is off by 100.00% of its largest value, 10% allowed");
        assert!(error(Some(0.1)).is_right());
        assert!(!error(Some(0.2)).is_right() && !error(None).is_right());
    }

    /// The CPU's ops against the reference, in each variant of the model.
    #[test]
    fn the_reference_passes_every_check() {
        let cpu = gpu::open("cpu".parse().unwrap()).unwrap();
        let (heads, head_size, activation) = (3, 13, Gelu::Erf.into());
        let odd = KernelShapes { width: 39, heads, kv_heads: 3, head_size, activation, ..gpt2() };
        let odd = KernelShapes { bias: false, dropout: false, ..odd };
        let llama = KernelShapes { head_norms: false, head_size: 6, ..qwen3() };
        for shapes in [gpt2(), odd, qwen3(), llama] {
            let test = SelfTest::new(&cpu, OpsMode::REFERENCE, shapes);
            for check in SelfTest::checks() {
                let errors = pollster::block_on(test.run(check)).unwrap();
                // Only dtypes with CUDA kernels have these.
                let is_of_half = check.name == "products of whole tiles";
                assert_eq!(errors.is_empty(), is_of_half, "{}", check.name);
                for error in errors {
                    assert!(error.is_right(), "{shapes}: {error:?}");
                }
            }
        }
    }

    #[test]
    fn the_cache_distinguishes_variants() {
        let key = |shapes: KernelShapes| shapes.to_string();
        assert_eq!(key(gpt2()), "width 24, 2 heads, tanh, bias, dropout");
        assert_eq!(key(qwen3()), "width 24, 4 heads of 16, 2 of keys, swiglu, head norms");
        for other in [
            KernelShapes { width: 48, ..gpt2() },
            KernelShapes { heads: 4, ..gpt2() },
            KernelShapes { activation: Gelu::Erf.into(), ..gpt2() },
            KernelShapes { bias: false, ..gpt2() },
            KernelShapes { dropout: false, ..gpt2() },
        ] {
            assert_ne!(key(other), key(gpt2()));
        }
    }
}
