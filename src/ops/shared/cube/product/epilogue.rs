//! The epilogue of a product, in the kernel of the product: cubek writes its results through a view,
//! and this one changes each value on its way.

use burn_cubecl::cubecl;
use burn_cubecl::cubecl::prelude::barrier::Barrier;
use burn_cubecl::cubecl::prelude::*;
use burn_cubecl::cubecl::std::tensor::{
    View, ViewMut, ViewMutExpand, ViewOperations, ViewOperationsExpand, ViewOperationsMut,
    ViewOperationsMutExpand,
};
use burn_cubecl::tensor::CubeTensor;
use cubek::matmul::multi_level::args::{BatchedCoords, MatmulArgs, TensorArgs, TensorOutput};
use cubek::matmul::multi_level::components::global::memory::GlobalLayoutConfig;

use crate::config::Gelu;
use crate::ops::shared::cube::gelu::gelu_derivative;

/// What is done to the sums of a product before they are stored, in this order, in f32.
#[derive(Clone, Copy, Default)]
pub(in crate::ops) struct Epilogue<'a> {
    /// Multiplies by the derivative of GELU at this tensor `[m, n]`.
    pub derivative: Option<(Gelu, &'a CubeTensor)>,
    /// Adds this bias `[n]`, f32.
    pub bias: Option<&'a CubeTensor>,
    /// Adds this tensor `[m, n]`.
    pub residual: Option<&'a CubeTensor>,
    /// Adds what the output holds.
    pub accumulate: bool,
    /// The row of the output that the first of the product is.
    pub first_row: usize,
}

impl Epilogue<'_> {
    pub fn is_exact(&self) -> bool {
        self.derivative.is_some_and(|(form, _)| form == Gelu::Erf)
    }
}

/// cubek's arguments of a product, with an output that runs the epilogue.
#[derive(Clone)]
pub(super) struct EpilogueArgs;

/// The output of a product and what its epilogue reads.
#[derive(CubeType, CubeLaunch, Clone)]
#[expand(derive(Clone))]
#[allow(dead_code, reason = "only their expansions are read")]
pub(super) struct EpilogueOutput<E: CubePrimitive> {
    pub output: TensorOutput<E>,
    pub factor: ComptimeOption<View<'static, E, BatchedCoords>>,
    pub bias: ComptimeOption<Box<[f32]>>,
    pub residual: ComptimeOption<View<'static, E, BatchedCoords>>,
    pub first: usize,
    #[cube(comptime)]
    pub exact: bool,
    #[cube(comptime)]
    pub accumulate: bool,
}

type Plain = TensorArgs<()>;

#[cube]
impl MatmulArgs for EpilogueArgs {
    type Input<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive> =
        <Plain as MatmulArgs>::Input<Lhs, Rhs, E>;
    type Output<E: CubePrimitive> = EpilogueOutput<E>;
    type Config = ();
    /// cubek's own state, and the output again.
    type State<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive> =
        (<Plain as MatmulArgs>::State<Lhs, Rhs, E>, EpilogueOutput<E>);

    fn init_state<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        input: &Self::Input<Lhs, Rhs, E>,
        output: &mut Self::Output<E>,
        config: Self::Config,
        #[comptime] lhs_layout_config: GlobalLayoutConfig,
        #[comptime] rhs_layout_config: GlobalLayoutConfig,
        #[comptime] out_layout_config: GlobalLayoutConfig,
    ) -> Self::State<Lhs, Rhs, E> {
        let kept = output.clone();
        let tensors = Plain::init_state::<Lhs, Rhs, E>(
            input,
            &mut output.output,
            config,
            lhs_layout_config,
            rhs_layout_config,
            out_layout_config,
        );
        (tensors, kept)
    }

    fn view_lhs<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
    ) -> View<'_, Lhs, BatchedCoords> {
        Plain::view_lhs::<Lhs, Rhs, E>(&state.0)
    }

    fn batch_lhs<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
        batch: usize,
    ) -> usize {
        Plain::batch_lhs::<Lhs, Rhs, E>(&state.0, batch)
    }

    fn view_rhs<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
    ) -> View<'_, Rhs, BatchedCoords> {
        Plain::view_rhs::<Lhs, Rhs, E>(&state.0)
    }

    fn batch_rhs<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
        batch: usize,
    ) -> usize {
        Plain::batch_rhs::<Lhs, Rhs, E>(&state.0, batch)
    }

    fn view_acc<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
    ) -> ComptimeOption<View<'_, E, BatchedCoords>> {
        Plain::view_acc::<Lhs, Rhs, E>(&state.0)
    }

    fn batch_acc<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
        batch: usize,
    ) -> usize {
        Plain::batch_acc::<Lhs, Rhs, E>(&state.0, batch)
    }

    fn view_out<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
    ) -> ViewMut<'_, E, BatchedCoords> {
        let out = Plain::view_out::<Lhs, Rhs, E>(&state.0);
        epilogued::<E>(out, state.1.clone())
    }

    fn batch_out<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        state: &Self::State<Lhs, Rhs, E>,
        batch: usize,
    ) -> usize {
        Plain::batch_out::<Lhs, Rhs, E>(&state.0, batch)
    }

    fn runtime_config<Lhs: CubePrimitive, Rhs: CubePrimitive, E: CubePrimitive>(
        _state: &Self::State<Lhs, Rhs, E>,
    ) -> Self::Config {
    }
}

#[derive(CubeType, Clone)]
#[expand(derive(Clone))]
#[allow(dead_code, reason = "only their expansions are read")]
struct Epilogued<'a, E: CubePrimitive> {
    out: ViewMut<'a, E, BatchedCoords>,
    epilogue: EpilogueOutput<E>,
}

/// Returns the view `out`, through which values go to the epilogue.
#[cube]
#[allow(unused_variables, reason = "only their expansion reads them")]
fn epilogued<'a, E: CubePrimitive>(
    out: ViewMut<'a, E, BatchedCoords>,
    epilogue: EpilogueOutput<E>,
) -> ViewMut<'a, E, BatchedCoords> {
    intrinsic!(|scope| ViewMutExpand::new(scope, EpiloguedExpand { out, epilogue }))
}

#[cube]
impl<'a, E: CubePrimitive> Epilogued<'a, E> {
    /// Runs the epilogue on a vector of sums of one row, and stores it.
    #[allow(dead_code, reason = "only its expansion is called")]
    fn store(&self, position: BatchedCoords, value: E) {
        // In cubek's views, the number of a matrix is the offset of its first element.
        let (offset, row, column) = position;
        let place = (offset + self.epilogue.first, row, column);
        if self.out.is_in_bounds(place) {
            let out = self.out;
            let lanes = out.vector_size().comptime();
            let mut sum = Vector::<f32, E::Size>::cast_from(value);
            #[comptime]
            if let ComptimeOption::Some(at) = &self.epilogue.factor {
                let at = Vector::<f32, E::Size>::cast_from(at.read(position));
                #[unroll]
                for lane in 0..lanes {
                    let slope = gelu_derivative(at.extract(lane), self.epilogue.exact);
                    sum.insert(lane, sum.extract(lane) * slope);
                }
            }
            #[comptime]
            if let ComptimeOption::Some(bias) = &self.epilogue.bias {
                #[unroll]
                for lane in 0..lanes {
                    sum.insert(lane, sum.extract(lane) + bias[column as usize + lane]);
                }
            }
            #[comptime]
            if let ComptimeOption::Some(residual) = &self.epilogue.residual {
                sum += Vector::<f32, E::Size>::cast_from(residual.read(position));
            }
            if comptime!(self.epilogue.accumulate) {
                sum += Vector::<f32, E::Size>::cast_from(out.read(place));
            }
            out.write(place, E::cast_from(sum));
        }
    }
}

/// Passes methods on to the view.
macro_rules! of_view {
    ($($method:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {$(
        fn $method(&self, scope: &Scope, $($argument: $type),*) -> $result {
            self.out.$method(scope, $($argument),*)
        }
    )+};
}

impl<E: CubePrimitive> Vectorized for Epilogued<'_, E> {}
impl<E: CubePrimitive> VectorizedExpand for EpiloguedExpand<'_, E> {
    of_view! { __expand_vector_size_method() -> VectorSize; }
}

type Position = <BatchedCoords as CubeType>::ExpandType;

/// cubek only writes outputs, and asks for their shape.
impl<E: CubePrimitive> ViewOperations<E, BatchedCoords> for Epilogued<'_, E> {}
impl<E: CubePrimitive> ViewOperationsExpand<E, BatchedCoords> for EpiloguedExpand<'_, E> {
    of_view! {
        __expand_read_method(position: Position) -> E::ExpandType;
        __expand_read_checked_method(position: Position) -> E::ExpandType;
        __expand_read_masked_method(position: Position, value: E::ExpandType) -> E::ExpandType;
        __expand_read_unchecked_method(position: Position) -> E::ExpandType;
        __expand_shape_method() -> Position;
        __expand_is_in_bounds_method(position: Position) -> NativeExpand<bool>;
    }

    fn __expand_as_linear_slice_method(
        &self,
        _scope: &Scope,
        _position: Position,
        _size: Position,
    ) -> &SliceExpand<E> {
        unreachable!("the output of a product is no slice")
    }

    fn __expand_tensor_map_load_method(
        &self,
        _scope: &Scope,
        _barrier: &NativeExpand<Barrier>,
        _shared_memory: &mut SliceExpand<E>,
        _position: Position,
    ) {
        unreachable!("the output of a product is no tensor map")
    }
}

impl<E: CubePrimitive> ViewOperationsMut<E, BatchedCoords> for Epilogued<'_, E> {}
impl<E: CubePrimitive> ViewOperationsMutExpand<E, BatchedCoords> for EpiloguedExpand<'_, E> {
    fn __expand_write_method(&self, scope: &Scope, position: Position, value: E::ExpandType) {
        self.clone().__expand_store_method(scope, position, value);
    }

    fn __expand_write_checked_method(
        &self,
        scope: &Scope,
        position: Position,
        value: E::ExpandType,
    ) {
        self.clone().__expand_store_method(scope, position, value);
    }

    fn __expand_as_linear_slice_mut_method(
        &self,
        _scope: &Scope,
        _position: Position,
        _size: Position,
    ) -> &mut SliceExpand<E> {
        unreachable!("the output of a product is no slice")
    }

    fn __expand_tensor_map_store_method(
        &self,
        _scope: &Scope,
        _shared_memory: &SliceExpand<E>,
        _position: Position,
    ) {
        unreachable!("the output of a product is no tensor map")
    }
}
