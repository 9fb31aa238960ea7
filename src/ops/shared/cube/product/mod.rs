//! Matrix products with what follows them: on CUDA cuBLASLt's, if a run uses it, or wgpt's own, where its kernels
//! run, else cubek's.

use std::iter::zip;

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::DType;
use burn_cubecl::cubecl::prelude::TensorBinding;
use burn_cubecl::cubecl::std::tensor::launch::ViewArg;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{
    AvailableVectorSizes, MatmulGlobalElems, MatmulProblem, MatmulSetupError,
};
use cubek::matmul::multi_level::args::{
    ConcreteInputsFactory, ConcreteOutputFactory, InputArg, OutputArg, OutputRuntimeArg, TensorArgs,
};
use cubek::matmul::multi_level::components::global::memory::{GlobalLayout, GlobalLayoutLaunch};
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, Blueprint};
use cubek::matmul::multi_level::routines::batch::double_buffering::CyclicDoubleBufferingAlgorithm;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitAlgorithm;
use cubek::matmul::multi_level::{BatchMatmulRoutine, ExpandInfo, LaunchInfo, launch_kernel};
use cubek::matmul::routine::BlueprintStrategy;
use cubek::std::InputBinding;

use super::{CubeKernels, Gpu, elem};
use crate::config::Dtype;
use crate::gpu::name_launch;
use crate::ops::shared::kernels::contiguous;
#[cfg(feature = "cuda")]
use crate::plan::products::MULTIPROCESSORS;
use crate::plan::products::Tiling;

mod blueprint;
#[cfg(feature = "cuda")]
mod cublas;
#[cfg(feature = "cuda")]
mod cuda;
mod epilogue;
mod ranges;

use blueprint::Instruction;
pub(in crate::ops) use epilogue::Epilogue;
use epilogue::{EpilogueArgs, EpilogueOutputLaunch};

/// A product as it is launched. Rows or columns of both factors are contiguous.
struct Product<'a> {
    a: CubeTensor,
    b: CubeTensor,
    /// `[.., n]`, or one result for each range of k, `[ranges, m, n]`.
    y: &'a CubeTensor,
    tiling: Tiling,
    epilogue: Epilogue<'a>,
}

impl CubeKernels {
    /// Multiplies `a b` into a tensor of dtype `out`.
    pub fn product(
        &self,
        a: CubeTensor,
        b: CubeTensor,
        out: DType,
        epilogue: Epilogue,
    ) -> CubeTensor {
        let ([m, _], [_, n]) = (a.shape().dims::<2>(), b.shape().dims::<2>());
        let y = self.queue.empty_of([m, n], out);
        self.product_into(a, b, &y, epilogue);
        y
    }

    /// Multiplies `a` `[m, k]` and `b` `[k, n]` into `m` rows of `y` `[.., n]`, which is contiguous.
    /// Both factors have one dtype; sums are f32. In float32 no tensor cores are used: they would
    /// read 19 bits of each factor.
    pub fn product_into(&self, a: CubeTensor, b: CubeTensor, y: &CubeTensor, epilogue: Epilogue) {
        let ([m, k], [_, n]) = (a.shape().dims::<2>(), b.shape().dims::<2>());
        let tiling = self.tiling([m, n, k]);
        let [a, b] =
            [a, b].map(|it| if it.meta.strides().contains(&1) { it } else { contiguous(it) });
        #[cfg(feature = "cuda")]
        if cublas::multiply(self, &cublas::Product { a: &a, b: &b, y, tiling, epilogue }, None) {
            return;
        }
        if tiling.ranges == 1 {
            return self.multiply(&Product { a, b, y, tiling, epilogue });
        }
        let partial = self.queue.empty([tiling.ranges, m, n]);
        self.multiply(&Product { a, b, y: &partial, tiling, epilogue: Epilogue::default() });
        self.sum_ranges(&partial, y, epilogue);
    }

    fn tiling(&self, shape: [usize; 3]) -> Tiling {
        Tiling::of(shape, self.known_multiprocessors())
    }

    fn known_multiprocessors(&self) -> Option<usize> {
        let hardware = &self.queue.client.properties().hardware;
        hardware.num_streaming_multiprocessors.map(|count| count as usize)
    }

    #[cfg(feature = "cuda")]
    fn multiprocessors(&self) -> usize {
        self.known_multiprocessors().unwrap_or(MULTIPROCESSORS)
    }

    /// Multiplies `a` `[m, k]` and `b` `[k, n]` into an f32 tensor `[m, n]`, and sums `b` over its rows: the
    /// gradients of a weight and a bias. Returns `None` where that is not one kernel.
    #[cfg(feature = "cuda")]
    pub fn product_and_sums(
        &self,
        a: &CubeTensor,
        b: &CubeTensor,
    ) -> Option<(CubeTensor, CubeTensor)> {
        let ([m, k], [_, n]) = (a.shape().dims::<2>(), b.shape().dims::<2>());
        let tiling = self.tiling([m, n, k]);
        if self.cublas {
            let (y, sums) = (self.queue.empty([m, n]), self.queue.empty([n]));
            let epilogue = Epilogue::default();
            let product = cublas::Product { a, b, y: &y, tiling, epilogue };
            return cublas::multiply(self, &product, Some(&sums)).then_some((y, sums));
        }
        let Tiling { ranges, .. } = tiling;
        let products = self.queue.empty(if ranges == 1 { vec![m, n] } else { vec![ranges, m, n] });
        let sums = self.queue.empty([ranges * n]);
        let epilogue = Epilogue::default();
        let [a, b] = [a, b].map(CubeTensor::clone);
        let product = Product { a, b, y: &products, tiling, epilogue };
        if !cuda::multiply(self, &product, Some(&sums)) {
            return None;
        }
        if ranges == 1 {
            return Some((products, sums));
        }
        let y = self.queue.empty([m, n]);
        self.sum_ranges(&products, &y, epilogue);
        Some((y, self.column_sums(&sums, ranges, n)))
    }

    /// Launches a product with the first instruction that its device and its dtype have.
    fn multiply(&self, product: &Product) {
        #[cfg(feature = "cuda")]
        if cuda::multiply(self, product, None) {
            return;
        }
        let half = [Instruction::Mma, Instruction::Wmma, Instruction::Scalar];
        let instructions: &[Instruction] = match (self.dtype, product.a.dtype) {
            (_, DType::F16 | DType::BF16) => &half,
            (Dtype::Tf32, _) => &[Instruction::MmaTf32, Instruction::Scalar],
            _ => &half[2..],
        };
        let mut refused = Vec::new();
        // What cubek infers runs on every device, in whatever workgroup memory there is.
        for instruction in instructions.iter().copied().map(Some).chain([None]) {
            let launched = match instruction {
                Some(Instruction::Scalar) | None => {
                    product.launch::<SimpleUnitAlgorithm>(self, instruction)
                }
                _ => product.launch::<CyclicDoubleBufferingAlgorithm>(self, instruction),
            };
            let Err(error) = launched else { return };
            refused.push(error);
        }
        panic!("no product of {:?}: {refused:?}", product.y.shape());
    }

    /// Returns a weight in the dtype of its products. A copy, unless it is stored in that dtype.
    pub fn cast(&self, weight: CubeTensor, like: &CubeTensor) -> CubeTensor {
        if weight.dtype == like.dtype {
            return weight;
        }
        Gpu::float_cast(weight, like.dtype.into())
    }
}

/// Returns a factor; over several ranges of k, which is `axis`, one matrix for each.
fn binding(factor: &CubeTensor, axis: usize, ranges: usize) -> TensorBinding {
    let mut binding = factor.clone().binding();
    if ranges > 1 {
        let [mut shape, strides] = [binding.shape.to_vec(), binding.strides.to_vec()];
        shape[axis] /= ranges;
        let between = shape[axis] * strides[axis];
        binding.shape = [ranges, shape[0], shape[1]].into();
        binding.strides = [between, strides[0], strides[1]][..].into();
    }
    binding
}

impl Product<'_> {
    /// Launches the product as routine `A`, by an instruction or, without one, as cubek infers.
    ///
    /// # Errors
    /// If cubek or the device does not support it.
    fn launch<A>(
        &self,
        kernels: &CubeKernels,
        instruction: Option<Instruction>,
    ) -> Result<(), MatmulSetupError>
    where
        A: BatchMatmulRoutine<(), Blueprint = BatchMatmulBlueprint>,
    {
        let client = &kernels.queue.client;
        let Tiling { tile, ranges } = self.tiling;
        let a = binding(&self.a, 1, ranges);
        let b = binding(&self.b, 0, ranges);
        let mut y = self.y.clone().binding();
        if ranges == 1 {
            y.shape = [a.shape[0], b.shape[1]].into();
        }
        let problem = self.problem([&a, &b, &y])?;
        let MatmulGlobalElems { lhs, rhs, out } = &problem.global_dtypes;
        // The elements that each access of device memory moves.
        let vectors =
            AvailableVectorSizes::from_type_sizes(client, lhs.size(), rhs.size(), out.size())
                .filter_lhs_with_tensor(&a.strides, &a.shape, problem.lhs_layout)
                .filter_rhs_with_tensor(&b.strides, &b.shape, problem.rhs_layout)
                .filter_out_with_tensor(&y.strides, &y.shape)
                .pick_max()?;
        let device = A::device_settings(client, vectors);
        let expanded = match instruction {
            Some(instruction) => {
                let aligned = client.properties().features.alignment;
                let blueprint = instruction.blueprint(tile, &problem, device.plane_dim, aligned);
                ExpandInfo { blueprint, dtypes: instruction.elements(&problem) }
            }
            None => A::expand_blueprint(&problem, &device, &BlueprintStrategy::default())?,
        };
        let info: LaunchInfo<BatchMatmulBlueprint> = A::prepare(&problem, &device, expanded)?;
        let LaunchInfo { blueprint, dtypes, vector_sizes, .. } = &info;

        let input = <InputArg<TensorArgs> as ConcreteInputsFactory<A>>::create(
            InputBinding::new(a, dtypes.lhs_global),
            InputBinding::new(b, dtypes.rhs_global),
            blueprint,
            &problem,
            vector_sizes,
            dtypes,
        );
        let output = <OutputArg<TensorArgs> as ConcreteOutputFactory<A>>::create(
            y,
            blueprint,
            &problem,
            vector_sizes,
            dtypes,
        );
        // A tensor like the output, as the epilogue reads it.
        let view = |tensor: &CubeTensor| {
            let binding = tensor.clone().binding();
            let config = blueprint.out_global_layout_config();
            let layout = GlobalLayoutLaunch::from_handle(&binding, vector_sizes.out, config);
            ViewArg::new_tensor::<GlobalLayout>(binding.into_tensor_arg(), layout)
        };
        let Epilogue { derivative, bias, residual, accumulate, first_row } = self.epilogue;
        let output: OutputRuntimeArg<EpilogueArgs> = EpilogueOutputLaunch::new(
            output,
            derivative.map(|(_, x)| view(x)).into(),
            bias.map(|bias| kernels.argument(bias)).into(),
            residual.map(view).into(),
            first_row * problem.n,
            self.epilogue.is_exact(),
            accumulate,
        );
        let MatmulProblem { m, n, k, .. } = problem;
        name_launch(|| format!("product {m}x{n}, {ranges} x {k} terms, tile {}", tile.side()));
        launch_kernel::<EpilogueArgs, A>(client, input, output, (), info)
    }

    /// Returns cubek's description of the product: `[a, b, y]` are the tensors.
    fn problem(&self, tensors: [&TensorBinding; 3]) -> Result<MatmulProblem, MatmulSetupError> {
        let [lhs, rhs, out] = [&self.a, &self.b, self.y].map(elem);
        let address = zip(tensors, [lhs, rhs, out])
            .map(|(binding, elem)| binding.required_address_type(elem.size()));
        let address = address.max().unwrap_or_default();
        let elems = MatmulGlobalElems { lhs, rhs, out };
        let [a_shape, b_shape, y_shape] = tensors.map(|it| it.shape.clone());
        let [a_strides, b_strides, y_strides] = tensors.map(|it| it.strides.clone());
        MatmulProblem::from_shapes_and_strides(
            a_shape, b_shape, y_shape, a_strides, b_strides, y_strides, elems, address, None, None,
        )
    }
}
