//! Products by cuBLASLt, where a run uses it: bfloat16, float16 and tf32.

use burn::backend::TensorMetadata;
use burn::tensor::DType;
use burn_cubecl::tensor::CubeTensor;

use super::Epilogue;
use super::cuda::Layout;
use crate::config::{Dtype, Gelu};
use crate::gpu::cublas::{ALIGNMENT, Factor, Fused, Operands, ProductKind};
use crate::gpu::cuda::{Pointer, is_aligned};
use crate::gpu::name_launch;
use crate::ops::shared::cube::CubeKernels;
use crate::plan::products::Tiling;

/// A product `a b` into `y`, in any number of ranges of k.
#[derive(Clone, Copy)]
pub(super) struct Product<'a> {
    pub a: &'a CubeTensor,
    pub b: &'a CubeTensor,
    pub y: &'a CubeTensor,
    /// The tiling of the other kernels: its partial products are the memory that the library works in.
    pub tiling: Tiling,
    pub epilogue: Epilogue<'a>,
}

/// Launches a product, and the sums over the rows of `b` if `column_sums` is a tensor for them, `[n]`. Returns
/// false, and launches nothing, if the library does not compute this product.
pub(super) fn multiply(
    kernels: &CubeKernels,
    product: &Product,
    column_sums: Option<&CubeTensor>,
) -> bool {
    kernels.cublas && try_multiply(kernels, product, column_sums).is_some()
}

fn try_multiply(
    kernels: &CubeKernels,
    product: &Product,
    column_sums: Option<&CubeTensor>,
) -> Option<()> {
    let Product { a, b, y, tiling, epilogue } = *product;
    let dtype = match (a.dtype, kernels.dtype) {
        (DType::BF16 | DType::F16, _) | (DType::F32, Dtype::Tf32) => a.dtype,
        _ => return None,
    };
    let ([m, k], [_, n]) = (a.shape().dims::<2>(), b.shape().dims::<2>());
    let Epilogue { derivative, bias, residual, accumulate, first_row } = epilogue;
    let like_output = |tensor: &CubeTensor| tensor.dtype == y.dtype && is_aligned(tensor);
    let fits = (n * y.dtype.size()).is_multiple_of(ALIGNMENT)
        && is_aligned(y)
        && [DType::F32, dtype].contains(&y.dtype)
        && bias.is_none_or(is_aligned)
        && residual.is_none_or(like_output)
        && !(accumulate && residual.is_some());
    let fused = match (derivative, bias, column_sums) {
        _ if !fits => return None,
        (None, None, None) => Fused::Nothing,
        (None, Some(_), None) => Fused::Bias,
        (None, None, Some(_)) => Fused::ColumnSums,
        // The library adds before it multiplies by the derivative, which it reads 16 bytes at a time.
        (Some((Gelu::Tanh, x)), None, None)
            if like_output(x) && n.is_multiple_of(8) && !accumulate && residual.is_none() =>
        {
            Fused::GeluDerivative
        }
        _ => return None,
    };
    let factor = |tensor| {
        Layout::of(tensor).map(|Layout { transposed, stride }| Factor { transposed, stride })
    };
    let workspace = if tiling.ranges == 1 { 0 } else { tiling.ranges * m * n };
    let prepared = kernels.queue.prepare_cublas(ProductKind {
        m,
        n,
        k,
        a: factor(a)?,
        b: factor(b)?,
        dtype,
        out: y.dtype,
        fused,
        workspace: workspace * DType::F32.size(),
    })?;
    let workspace = (workspace > 0).then(|| kernels.queue.empty([workspace]));
    // The library adds a bias of the dtype of its output. Only the forward pass adds one, and its peak lies
    // below the backward pass's by more than a row.
    let bias = bias.map(|bias| kernels.cast(bias.clone(), y));
    name_launch(|| format!("product {m}x{n}, {k} terms, cuBLASLt"));
    let read = Pointer::read_if;
    let written = |tensor: Option<_>| tensor.map_or(Pointer::Null, Pointer::Write);
    kernels.queue.launch_cublas(
        prepared,
        Operands {
            a: Pointer::Read(a),
            b: Pointer::Read(b),
            addend: read(residual),
            y: Pointer::WriteFrom(y, first_row * n),
            accumulate,
            fused: match fused {
                Fused::Nothing => Pointer::Null,
                Fused::Bias => read(bias.as_ref()),
                Fused::GeluDerivative => read(derivative.map(|(_, x)| x)),
                Fused::ColumnSums => written(column_sums),
            },
            workspace: written(workspace.as_ref()),
        },
    );
    Some(())
}

#[cfg(test)]
mod tests {
    use std::iter::zip;

    use burn::tensor::{Device, Tensor, TensorData};

    use super::*;
    use crate::gpu::cublas::library;
    use crate::gpu::queue::Queue;
    use crate::ops::shared::cube::Gpu;
    use crate::plan::products::Tile;

    /// The sizes of a product whose rows start at multiples of 16 bytes, however it is transposed.
    const SIZES: [usize; 3] = [48, 40, 64];

    /// The row of the output that is the first one of the product.
    const FIRST_ROW: usize = 8;

    #[derive(Clone, Copy, Debug, Default)]
    struct Case {
        derivative: bool,
        bias: bool,
        residual: bool,
        accumulate: bool,
        column_sums: bool,
        ranges: usize,
    }

    impl Case {
        fn all() -> Vec<Self> {
            let plain = Case { ranges: 1, ..Case::default() };
            vec![
                plain,
                Case { ranges: 4, ..plain },
                Case { bias: true, ..plain },
                Case { residual: true, ..plain },
                Case { bias: true, residual: true, ..plain },
                Case { accumulate: true, ..plain },
                Case { accumulate: true, ranges: 4, ..plain },
                Case { derivative: true, ..plain },
                Case { column_sums: true, ..plain },
                Case { column_sums: true, ranges: 4, ..plain },
            ]
        }
    }

    /// A matrix on the device, and its rounded values in row-major order.
    struct Matrix {
        tensor: CubeTensor,
        values: Vec<f64>,
    }

    fn read(data: TensorData) -> Vec<f64> {
        let data = data.convert_dtype(DType::F32).try_into_vec::<f32>().unwrap();
        data.into_iter().map(f64::from).collect()
    }

    fn matrix(device: &Device, seed: usize, shape: [usize; 2], dtype: DType) -> Matrix {
        let noise = |i: usize| ((i * i + 37 * i + 101 * seed) % 193) as f32 / 96.0 - 1.0;
        let values = (0..shape[0] * shape[1]).map(noise).collect();
        // Flat, because an upload with rows pads them.
        let data = TensorData::new::<f32, _>(values, [shape[0] * shape[1]]).convert_dtype(dtype);
        let values = read(data.clone());
        let tensor = Tensor::<1>::from_data(data, (device, dtype)).reshape(shape);
        Matrix { tensor: tensor.try_into_primitive::<Gpu>().unwrap(), values }
    }

    /// Returns a factor whose first axis is contiguous if it is `transposed`.
    fn factor(
        device: &Device,
        seed: usize,
        [rows, columns]: [usize; 2],
        dtype: DType,
        transposed: bool,
    ) -> Matrix {
        if !transposed {
            return matrix(device, seed, [rows, columns], dtype);
        }
        let Matrix { tensor, values } = matrix(device, seed, [columns, rows], dtype);
        let values =
            (0..rows * columns).map(|i| values[i % columns * rows + i / columns]).collect();
        use burn::backend::ops::FloatTensorOps as _;
        Matrix { tensor: Gpu::float_transpose(tensor), values }
    }

    fn gelu_derivative(x: f64) -> f64 {
        let scale = (2.0 / std::f64::consts::PI).sqrt();
        let t = (scale * (x + 0.044_715 * x.powi(3))).tanh();
        0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * scale * (1.0 + 3.0 * 0.044_715 * x * x)
    }

    /// Returns the largest error relative to the largest value, or `None` if the library refuses the product.
    fn error(
        device: &Device,
        dtype: Dtype,
        stored: DType,
        out: DType,
        transposed: [bool; 2],
        case: Case,
    ) -> Option<f64> {
        let [m, n, k] = SIZES;
        let a = factor(device, 1, [m, k], stored, transposed[0]);
        let b = factor(device, 2, [k, n], stored, transposed[1]);
        let y = matrix(device, 3, [m + 2 * FIRST_ROW, n], out);
        let [residual, x] = [4, 5].map(|seed| matrix(device, seed, [m, n], out));
        // In the dtype of the output, so that no kernel has to cast it.
        let bias = matrix(device, 6, [1, n], out);
        let sums = matrix(device, 7, [1, n], out);
        let kernels = CubeKernels { queue: Queue::of(&a.tensor), dtype, cublas: true };
        let product = Product {
            a: &a.tensor,
            b: &b.tensor,
            y: &y.tensor,
            tiling: Tiling { tile: Tile::Small, ranges: case.ranges },
            epilogue: Epilogue {
                derivative: case.derivative.then_some((Gelu::Tanh, &x.tensor)),
                bias: case.bias.then_some(&bias.tensor),
                residual: case.residual.then_some(&residual.tensor),
                accumulate: case.accumulate,
                first_row: FIRST_ROW,
            },
        };
        let launched = multiply(&kernels, &product, case.column_sums.then_some(&sums.tensor));
        let got = read(Tensor::<2>::from_primitive::<Gpu>(y.tensor).into_data());
        let got_sums = read(Tensor::<2>::from_primitive::<Gpu>(sums.tensor).into_data());
        let mut want = y.values;
        for (i, want) in want[FIRST_ROW * n..][..m * n].iter_mut().enumerate() {
            let (row, column) = (i / n, i % n);
            let mut sum: f64 =
                (0..k).map(|j| a.values[row * k + j] * b.values[j * n + column]).sum();
            if case.derivative {
                sum *= gelu_derivative(x.values[i]);
            }
            if case.bias {
                sum += bias.values[column];
            }
            if case.residual {
                sum += residual.values[i];
            }
            *want = if case.accumulate { *want + sum } else { sum };
        }
        let want_sums: Vec<f64> = if case.column_sums {
            (0..n).map(|column| (0..k).map(|j| b.values[j * n + column]).sum()).collect()
        } else {
            sums.values
        };
        let largest = |got: &[f64], want: &[f64]| {
            let scale = want.iter().fold(0.0_f64, |most, x| most.max(x.abs()));
            zip(got, want).fold(0.0_f64, |most, (got, want)| most.max((got - want).abs())) / scale
        };
        launched.then(|| largest(&got, &want).max(largest(&got_sums, &want_sums)))
    }

    /// `scripts/cuda-check.sh` runs it with a library that multiplies on the CPU.
    #[test]
    #[ignore = "needs an NVIDIA GPU and cuBLASLt"]
    fn every_product_of_cublas_matches_the_oracle() {
        let device = Device::cuda(0);
        let name = &library().expect("cuBLASLt").name;
        let mut wrong = Vec::new();
        for (dtype, stored, allowed) in [
            (Dtype::Bfloat16, DType::BF16, 1e-2),
            (Dtype::Float16, DType::F16, 2e-3),
            (Dtype::Tf32, DType::F32, 2e-3),
        ] {
            let outputs =
                if stored == DType::F32 { vec![stored] } else { vec![stored, DType::F32] };
            for out in outputs {
                for transposed in [[false; 2], [false, true], [true, false], [true; 2]] {
                    for case in Case::all() {
                        let product = format!("{dtype} to {out:?}, {transposed:?}, {case:?}");
                        match error(&device, dtype, stored, out, transposed, case) {
                            None => eprintln!("{name} refuses {product}"),
                            Some(error) if error <= allowed => {}
                            Some(error) => wrong.push(format!("{product}: {error:.1e}")),
                        }
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
    }
}
