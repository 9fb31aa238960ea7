//! Matrix products, which are cubek's, with what follows them.

use burn::backend::TensorMetadata;
use burn::backend::ops::FloatTensorOps;
use burn::tensor::{DType, FloatDType};
use burn_cubecl::CubeBackend;
use burn_cubecl::cubecl::prelude::TensorBinding;
use burn_cubecl::cubecl::std::tensor::launch::ViewArg;
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::definition::{
    AvailableVectorSizes, MatmulGlobalElems, MatmulProblem, MatmulSetupError, MatmulVectorSizes,
};
use cubek::matmul::multi_level::args::{
    ConcreteInputsFactory, ConcreteOutputFactory, InputArg, OutputArg, OutputRuntimeArg, TensorArgs,
};
use cubek::matmul::multi_level::components::global::memory::{GlobalLayout, GlobalLayoutLaunch};
use cubek::matmul::multi_level::definition::{BatchMatmulBlueprint, Blueprint};
use cubek::matmul::multi_level::routines::batch::double_buffering::CyclicDoubleBufferingAlgorithm;
use cubek::matmul::multi_level::routines::batch::simple_unit::SimpleUnitAlgorithm;
use cubek::matmul::multi_level::{BatchMatmulRoutine, ExpandInfo, LaunchInfo, launch_kernel};
use cubek::matmul::routine::{BlueprintStrategy, DeviceSettings};
use cubek::std::{InputBinding, MatrixLayout};

use super::{CubeKernels, elem};
use crate::config::Dtype;
use crate::ops::shared::kernels::contiguous;
use crate::plan::products::Tiling;

mod blueprint;
mod epilogue;
mod ranges;

use blueprint::Instruction;
pub(in crate::ops) use epilogue::Epilogue;
use epilogue::{EpilogueArgs, EpilogueOutputLaunch};

/// A product as it is launched.
struct Product<'a> {
    a: Factor,
    b: Factor,
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
        let multiprocessors = self.queue.client.properties().hardware.num_streaming_multiprocessors;
        let tiling = Tiling::of([m, n, k], multiprocessors.map(|count| count as usize));
        let (a, b) = (Factor::of(a), Factor::of(b));
        if tiling.ranges == 1 {
            return self.multiply(&Product { a, b, y, tiling, epilogue });
        }
        let partial = self.queue.empty([tiling.ranges, m, n]);
        self.multiply(&Product { a, b, y: &partial, tiling, epilogue: Epilogue::default() });
        self.sum_ranges(&partial, y, epilogue);
    }

    /// Launches a product with the first instruction that its device and its dtype have.
    fn multiply(&self, product: &Product) {
        let half = [Instruction::Mma, Instruction::Wmma, Instruction::Scalar];
        let instructions: &[Instruction] = match (self.dtype, product.a.tensor.dtype) {
            (_, DType::F16 | DType::BF16) => &half,
            (Dtype::Tf32, _) => &[Instruction::MmaTf32, Instruction::Scalar],
            _ => &half[2..],
        };
        let mut refused = Vec::new();
        for &instruction in instructions {
            let chosen = |problem: &MatmulProblem, device: &DeviceSettings| {
                let aligned = self.queue.client.properties().features.alignment;
                let tile = product.tiling.tile;
                let blueprint = instruction.blueprint(tile, problem, device.plane_dim, aligned);
                Ok(ExpandInfo { blueprint, dtypes: instruction.elements(problem) })
            };
            let launched = match instruction {
                Instruction::Scalar => product.launch::<SimpleUnitAlgorithm>(self, chosen),
                _ => product.launch::<CyclicDoubleBufferingAlgorithm>(self, chosen),
            };
            match launched {
                Ok(()) => return,
                Err(error) => refused.push(error),
            }
        }
        // What cubek infers runs on every device, in whatever workgroup memory there is.
        let inferred = |problem: &MatmulProblem, device: &DeviceSettings| {
            let strategy = BlueprintStrategy::<(), SimpleUnitAlgorithm>::default();
            <SimpleUnitAlgorithm as BatchMatmulRoutine<()>>::expand_blueprint(
                problem, device, &strategy,
            )
        };
        if let Err(error) = product.launch::<SimpleUnitAlgorithm>(self, inferred) {
            refused.push(error);
            panic!("no product of {:?}: {refused:?}", product.y.shape());
        }
    }

    /// Returns a weight in the dtype of its products. A copy, unless it is stored in that dtype.
    pub fn cast(&self, weight: CubeTensor, like: &CubeTensor) -> CubeTensor {
        match like.dtype {
            dtype if dtype == weight.dtype => weight,
            DType::BF16 => CubeBackend::float_cast(weight, FloatDType::BF16),
            DType::F16 => CubeBackend::float_cast(weight, FloatDType::F16),
            _ => CubeBackend::float_cast(weight, FloatDType::F32),
        }
    }
}

/// A factor of a product, whose rows or columns are contiguous.
struct Factor {
    tensor: CubeTensor,
    layout: MatrixLayout,
}

impl Factor {
    fn of(tensor: CubeTensor) -> Self {
        let [rows, columns] = [0, 1].map(|axis| tensor.meta.strides()[axis]);
        match (rows, columns) {
            (_, 1) => Self { tensor, layout: MatrixLayout::RowMajor },
            (1, _) => Self { tensor, layout: MatrixLayout::ColMajor },
            _ => Self { tensor: contiguous(tensor), layout: MatrixLayout::RowMajor },
        }
    }

    /// Returns the factor; over several ranges of k, which is `axis`, one matrix for each.
    fn binding(&self, axis: usize, ranges: usize) -> TensorBinding {
        let mut binding = self.tensor.clone().binding();
        if ranges > 1 {
            let [mut shape, strides] = [binding.shape.to_vec(), binding.strides.to_vec()];
            shape[axis] /= ranges;
            let between = shape[axis] * strides[axis];
            binding.shape = [ranges, shape[0], shape[1]].into();
            binding.strides = [between, strides[0], strides[1]][..].into();
        }
        binding
    }
}

impl Product<'_> {
    /// cubek's description of the product: `[a, b, y]` are the tensors.
    fn problem(&self, [a, b, y]: [&TensorBinding; 3]) -> MatmulProblem {
        let elems = [&self.a.tensor, &self.b.tensor, self.y].map(elem);
        let [lhs, rhs, out] = elems;
        let last = |shape: &[usize], from_end: usize| shape[shape.len() - from_end];
        let batches = |binding: &TensorBinding| binding.shape[..binding.shape.len() - 2].into();
        let address = [(a, lhs), (b, rhs), (y, out)]
            .map(|(binding, elem)| binding.required_address_type(elem.size()));
        let mut problem = MatmulProblem::from_parameters(
            last(&a.shape, 2),
            last(&b.shape, 1),
            last(&a.shape, 1),
            batches(a),
            batches(b),
            self.a.layout,
            self.b.layout,
            MatrixLayout::RowMajor,
            None,
            None,
            MatmulGlobalElems { lhs, rhs, out },
            address.into_iter().max().unwrap_or_default(),
        );
        problem.lhs_strides = a.strides.clone();
        problem.rhs_strides = b.strides.clone();
        problem.out_strides = y.strides.clone();
        problem
    }

    /// Returns the elements that each access of device memory moves.
    fn vectors(
        &self,
        kernels: &CubeKernels,
        problem: &MatmulProblem,
    ) -> Result<MatmulVectorSizes, MatmulSetupError> {
        let MatmulGlobalElems { lhs, rhs, out } = &problem.global_dtypes;
        let sizes = [lhs, rhs, out].map(|elem| elem.size());
        AvailableVectorSizes::from_type_sizes(&kernels.queue.client, sizes[0], sizes[1], sizes[2])
            .filter_lhs_with_tensor(&problem.lhs_strides, &problem.lhs_shape, problem.lhs_layout)
            .filter_rhs_with_tensor(&problem.rhs_strides, &problem.rhs_shape, problem.rhs_layout)
            .filter_out_with_tensor(&problem.out_strides, &problem.out_shape)
            .pick_max()
    }

    /// Launches the product as routine `A`, with the blueprint that `prepare` returns.
    ///
    /// # Errors
    /// If cubek or the device does not support it.
    fn launch<A>(
        &self,
        kernels: &CubeKernels,
        prepare: impl FnOnce(
            &MatmulProblem,
            &DeviceSettings,
        ) -> Result<ExpandInfo<BatchMatmulBlueprint>, MatmulSetupError>,
    ) -> Result<(), MatmulSetupError>
    where
        A: BatchMatmulRoutine<(), Blueprint = BatchMatmulBlueprint>,
    {
        let client = &kernels.queue.client;
        let ranges = self.tiling.ranges;
        let (a, b) = (self.a.binding(1, ranges), self.b.binding(0, ranges));
        let mut y = self.y.clone().binding();
        if ranges == 1 {
            y.shape = [a.shape[0], b.shape[1]].into();
        }
        let problem = self.problem([&a, &b, &y]);
        let device = A::device_settings(client, self.vectors(kernels, &problem)?);
        let prepared = prepare(&problem, &device)?;
        let info: LaunchInfo<BatchMatmulBlueprint> = A::prepare(&problem, &device, prepared)?;
        let LaunchInfo { blueprint, dtypes, vector_sizes, .. } = &info;

        let [a, b] = [(a, dtypes.lhs_global), (b, dtypes.rhs_global)]
            .map(|(binding, elem)| InputBinding::new(binding, elem));
        let input = <InputArg<TensorArgs> as ConcreteInputsFactory<A>>::create(
            a,
            b,
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
        launch_kernel::<EpilogueArgs, A>(client, input, output, (), info)
    }
}
