//! Matrix products, which are cubek's.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{MatmulElems, MatmulGlobalElems};
use cubek::matmul::launch::launch_ref;
use cubek::matmul::multi_level;
use cubek::matmul::strategy::Strategy;
use cubek::std::InputBinding;

use super::{CubeKernels, elem};
use crate::config::Dtype;

impl CubeKernels {
    /// Multiplies `a b` into a tensor of dtype `out`. Both factors have one dtype; sums are f32. In
    /// float32 no tensor cores are used: they would read 19 bits of each factor.
    pub fn product(&self, a: CubeTensor, b: CubeTensor, out: DType) -> CubeTensor {
        let ([m, _], [_, n]) = (a.shape().dims::<2>(), b.shape().dims::<2>());
        let y = self.queue.empty_of([m, n], out);
        let elems = MatmulGlobalElems { lhs: elem(&a), rhs: elem(&b), out: elem(&y) };
        let [a, b] = [a, b].map(|x| InputBinding::new(x.clone().binding(), elem(&x)));
        let unit = multi_level::Strategy::SimpleUnit(Default::default());
        let mut strategies = vec![unit];
        if self.dtype != Dtype::Float32 {
            strategies.insert(0, multi_level::Strategy::SimpleCyclicCmma(Default::default()));
        }
        let mut refused = Vec::new();
        for strategy in strategies {
            let mut elems = MatmulElems::from_globals(&elems);
            let (a, b, y_) = (a.clone(), b.clone(), y.clone().binding());
            match launch_ref(&Strategy::MultiLevel(strategy), self.client(), a, b, y_, &mut elems) {
                Ok(()) => return y,
                Err(error) => refused.push(error),
            }
        }
        // `SimpleUnit` runs on every device.
        panic!("no product of {:?}: {refused:?}", y.shape());
    }

    /// A weight in the dtype of its products. A copy, unless it is stored in that dtype.
    pub fn cast(&self, weight: CubeTensor, like: &CubeTensor) -> CubeTensor {
        match like.dtype {
            dtype if dtype == weight.dtype => weight,
            DType::BF16 => CubeBackend::float_cast(weight, FloatDType::BF16),
            DType::F16 => CubeBackend::float_cast(weight, FloatDType::F16),
            _ => CubeBackend::float_cast(weight, FloatDType::F32),
        }
    }
}
