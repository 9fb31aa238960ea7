//! Products by cuBLASLt, NVIDIA's library, if the user has it: on the stream on which cubecl launches its own
//! kernels, and without memory that the plan of a run does not have.
//!
//! The library multiplies matrices whose columns are contiguous, so it gets the transposes: `y = a b` with
//! contiguous rows is `y^T = b^T a^T` with contiguous columns.
//!
//! It chooses an algorithm for each kind of product once, by a model of the GPU and not by a measurement. On one
//! GPU, the same version computes the same bits.

#![allow(unsafe_code, reason = "cuBLASLt is a library in C")]

mod library;
mod search;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, PoisonError};

use burn::backend::BackTrace;
use burn::tensor::DType;
use burn_cubecl::cubecl::prelude::KernelId;
use burn_cubecl::cubecl::server::ServerError;
use cudarc::driver::sys;

use super::cuda::{Bindings, Pointer};
use super::queue::Queue;
use library::{Algorithm, Functions, Heuristic, Object};
pub use library::{Library, library, obstacle};

/// Every tensor begins at a multiple of this many bytes, and so does every row.
pub const ALIGNMENT: usize = 16;

/// A factor of a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Factor {
    /// The factor's first axis is contiguous, not its second.
    pub transposed: bool,
    /// The elements between the starts of two rows in memory.
    pub stride: usize,
}

/// What the library does besides the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fused {
    Nothing,
    /// Adds a bias `[n]` of the dtype of the output.
    Bias,
    /// Multiplies by the derivative of GELU, in its tanh form, at a tensor like the output.
    GeluDerivative,
    /// Writes sums over the rows of `b` too, `[n]`, in the dtype of the output.
    ColumnSums,
}

/// A kind of product, `[m, k]` by `[k, n]`: everything on which the algorithm depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProductKind {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    pub a: Factor,
    pub b: Factor,
    /// Of both factors. Tensor cores read 19 bits of an f32.
    pub dtype: DType,
    /// f32, or that of the factors.
    pub out: DType,
    pub fused: Fused,
    /// The memory to work in, in bytes.
    pub workspace: usize,
}

/// The tensors of a product.
pub struct Operands<'a> {
    pub a: Pointer<'a>,
    pub b: Pointer<'a>,
    /// A tensor to add, like the output.
    pub addend: Pointer<'a>,
    pub y: Pointer<'a>,
    /// Adds what the output holds, and no `addend`.
    pub accumulate: bool,
    /// The tensor of [`Fused`].
    pub fused: Pointer<'a>,
    pub workspace: Pointer<'a>,
}

/// A kind of product with the algorithm that the library has chosen.
pub struct PreparedProduct {
    library: &'static Functions,
    handle: Object,
    operation: Object,
    /// Of the left factor, the right one and the output, as the library sees them.
    layouts: [Object; 3],
    algorithm: Algorithm,
    kind: ProductKind,
}

// SAFETY: the library's objects belong to no thread. Only the thread of their device uses them.
unsafe impl Send for PreparedProduct {}
// SAFETY: as above.
unsafe impl Sync for PreparedProduct {}

/// An error of the library, by its number.
struct Status(c_int);

fn check(status: c_int) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

/// Values of `cublasLtMatmulDescAttributes_t`.
mod operation {
    pub const TRANSPOSE_LEFT: i32 = 3;
    pub const TRANSPOSE_RIGHT: i32 = 4;
    pub const EPILOGUE: i32 = 7;
    pub const BIAS_POINTER: i32 = 8;
    pub const AUXILIARY_POINTER: i32 = 11;
    pub const AUXILIARY_STRIDE: i32 = 12;
}

/// Values of `cublasLtMatmulPreferenceAttributes_t`.
mod preference {
    pub const WORKSPACE: i32 = 1;
    pub const REDUCTIONS: i32 = 3;
    /// Of the left factor, the right one, the addend and the output.
    pub const ALIGNMENTS: [i32; 4] = [5, 6, 7, 8];
}

/// `CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE`, besides none: ranges of k are added in f32, in a fixed order.
const IN_ORDER: u32 = 2;

/// An address for the algorithm's choice, which needs one but reads nothing there.
const SOMEWHERE: u64 = 1 << 20;

impl Fused {
    /// Returns the value of `cublasLtEpilogue_t`.
    fn epilogue(self) -> u32 {
        match self {
            Fused::Nothing => 1,
            Fused::Bias => 4,
            Fused::GeluDerivative => 192,
            // Of the library's left factor, which is ours on the right.
            Fused::ColumnSums => 256,
        }
    }

    /// Returns the attribute with the address of the tensor.
    fn pointer(self) -> Option<i32> {
        match self {
            Fused::Nothing => None,
            Fused::Bias | Fused::ColumnSums => Some(operation::BIAS_POINTER),
            Fused::GeluDerivative => Some(operation::AUXILIARY_POINTER),
        }
    }
}

/// Returns the value of `cudaDataType_t`.
fn data_type(dtype: DType) -> c_int {
    match dtype {
        DType::BF16 => 14,
        DType::F16 => 2,
        _ => 0,
    }
}

/// `CUDA_R_32F`, the type of alpha and beta.
const FLOAT32: c_int = 0;

/// Returns the value of `cublasComputeType_t`: sums in f32, of f32 in tf32.
fn compute_type(dtype: DType) -> c_int {
    match dtype {
        DType::F32 => 77,
        _ => 68,
    }
}

impl PreparedProduct {
    /// Chooses an algorithm, on the thread of the device.
    ///
    /// # Errors
    /// If the library does not compute such a product.
    fn new(functions: &'static Functions, device: u16, kind: ProductKind) -> Result<Self, Status> {
        let ProductKind { m, n, k, a, b, dtype, out, fused, workspace } = kind;
        let handle = handle(functions, device)?;
        let created = |create: &dyn Fn(*mut Object) -> c_int| {
            let mut object = null_mut();
            check(create(&raw mut object)).map(|()| object)
        };
        // SAFETY: the library writes an object to the place of each, and copies the values of attributes, which
        // have the sizes that it expects.
        unsafe {
            let operation =
                created(&|to| (functions.create_operation)(to, compute_type(dtype), FLOAT32))?;
            let set = |attribute, value: &u32| {
                check((functions.set_operation)(
                    operation,
                    attribute,
                    (&raw const *value).cast(),
                    4,
                ))
            };
            // The library sees transposes, so a factor with contiguous rows is one without a transposition.
            set(operation::TRANSPOSE_LEFT, &b.transposed.into())?;
            set(operation::TRANSPOSE_RIGHT, &a.transposed.into())?;
            set(operation::EPILOGUE, &fused.epilogue())?;
            if fused == Fused::GeluDerivative {
                let stride = n as i64;
                let value = (&raw const stride).cast();
                check((functions.set_operation)(operation, operation::AUXILIARY_STRIDE, value, 8))?;
            }
            let layout = |dtype, [rows, columns]: [usize; 2], stride: usize| {
                let [rows, columns] = [rows, columns].map(|count| count as u64);
                created(&|to| {
                    (functions.create_layout)(to, data_type(dtype), rows, columns, stride as i64)
                })
            };
            let left = layout(dtype, if b.transposed { [k, n] } else { [n, k] }, b.stride)?;
            let right = layout(dtype, if a.transposed { [m, k] } else { [k, m] }, a.stride)?;
            let output = layout(out, [n, m], n)?;
            let layouts = [left, right, output];
            let algorithm = Algorithm::NONE;
            let unset = Self { library: functions, handle, operation, layouts, algorithm, kind };
            unset.point_to(SOMEWHERE)?;
            let algorithm = unset.choose(workspace)?;
            Ok(Self { algorithm, ..unset })
        }
    }

    /// Sets the address of the tensor of what is fused.
    fn point_to(&self, address: u64) -> Result<(), Status> {
        let Some(attribute) = self.kind.fused.pointer() else { return Ok(()) };
        let value = (&raw const address).cast();
        // SAFETY: the library copies an address, of 8 bytes.
        check(unsafe { (self.library.set_operation)(self.operation, attribute, value, 8) })
    }

    fn choose(&self, workspace: usize) -> Result<Algorithm, Status> {
        let [left, right, output] = self.layouts;
        let mut preference = null_mut();
        let (mut found, mut count, reductions) = (Heuristic::NONE, 0, IN_ORDER);
        // SAFETY: as in `new`. The library writes at most one result, and how many.
        unsafe {
            check((self.library.create_preference)(&raw mut preference))?;
            let set = |attribute, value: *const c_void, size| {
                check((self.library.set_preference)(preference, attribute, value, size))
            };
            let chosen = set(preference::WORKSPACE, (&raw const workspace).cast(), 8)
                .and_then(|()| set(preference::REDUCTIONS, (&raw const reductions).cast(), 4))
                .and_then(|()| {
                    let alignment = ALIGNMENT as u32;
                    let mut all = preference::ALIGNMENTS.into_iter();
                    all.try_for_each(|of| set(of, (&raw const alignment).cast(), 4))
                })
                .and_then(|()| {
                    check((self.library.heuristic)(
                        self.handle,
                        self.operation,
                        left,
                        right,
                        output,
                        output,
                        preference,
                        1,
                        &raw mut found,
                        &raw mut count,
                    ))
                });
            (self.library.destroy_preference)(preference);
            chosen?;
        }
        check(if count == 1 { found.state } else { -1 })?;
        if found.workspace > workspace {
            return Err(Status(-1));
        }
        Ok(found.algorithm)
    }

    /// Queues the product: the addresses of [`Operands`], in order.
    fn multiply(
        &self,
        queue: sys::CUstream,
        addresses: &[u64],
        accumulate: bool,
    ) -> Result<(), Status> {
        let &[a, b, addend, y, fused, workspace] = addresses else { return Err(Status(-1)) };
        self.point_to(fused)?;
        let [left, right, output] = self.layouts;
        let alpha = 1.0_f32;
        let (beta, addend) = match (accumulate, addend) {
            (true, _) => (1.0_f32, y),
            (false, 0) => (0.0, y),
            (false, addend) => (1.0, addend),
        };
        let at = |address: u64| address as *mut c_void;
        // SAFETY: the layouts describe the tensors at these addresses, which live until the stream has computed
        // the product, and the workspace has the size that the algorithm was chosen for.
        check(unsafe {
            (self.library.multiply)(
                self.handle,
                self.operation,
                (&raw const alpha).cast(),
                at(b),
                left,
                at(a),
                right,
                (&raw const beta).cast(),
                at(addend),
                output,
                at(y),
                output,
                &raw const self.algorithm,
                at(workspace),
                self.kind.workspace,
                queue.cast(),
            )
        })
    }
}

/// Returns the library's handle of a device, whose thread this is.
fn handle(functions: &Functions, device: u16) -> Result<Object, Status> {
    /// Addresses of handles, which are never destroyed.
    static HANDLES: Mutex<Vec<(u16, usize)>> = Mutex::new(Vec::new());
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, handle)) = handles.iter().find(|(known, _)| *known == device) {
        return Ok(*handle as Object);
    }
    let mut handle = null_mut();
    // SAFETY: the context of the device is current on its thread, and the library writes one handle.
    check(unsafe { (functions.create)(&raw mut handle) })?;
    handles.push((device, handle as usize));
    Ok(handle)
}

/// The products of this process, by device: `None` if the library does not compute one.
type Prepared = HashMap<(u16, ProductKind), Option<Arc<PreparedProduct>>>;

impl Queue {
    /// Returns a product with its algorithm, if the library computes such products on this device. Asks the
    /// library once for each kind, and waits for it then.
    pub fn prepare_cublas(&self, kind: ProductKind) -> Option<Arc<PreparedProduct>> {
        static PREPARED: Mutex<Option<Prepared>> = Mutex::new(None);
        let library = library().filter(|_| self.is_cuda())?;
        let device = self.device_number();
        let mut all = PREPARED.lock().unwrap_or_else(PoisonError::into_inner);
        let prepared = all.get_or_insert_default().entry((device, kind)).or_insert_with(|| {
            let prepare = move |_: &mut _| PreparedProduct::new(&library.functions, device, kind);
            let prepared = self.thread().submit_blocking(prepare).ok()?;
            prepared.ok().map(Arc::new)
        });
        prepared.clone()
    }

    /// Queues a product, which may write to its `Write` pointers alone. Does not wait.
    pub fn launch_cublas(&self, product: Arc<PreparedProduct>, operands: Operands) {
        let Operands { a, b, addend, y, accumulate, fused, workspace } = operands;
        let bindings = Bindings::of(&[a, b, addend, y, fused, workspace]);
        self.post("cublas", move |server, skipped| {
            if skipped {
                return;
            }
            let id = KernelId::new::<PreparedProduct>();
            bindings.launch(server, id, |queue, addresses| {
                let queued = product.multiply(queue, &addresses, accumulate);
                queued.map_err(|Status(number)| {
                    let kind = &product.kind;
                    let reason = format!("cuBLASLt fails with status {number} in {kind:?}");
                    ServerError::Generic { reason, backtrace: BackTrace::capture() }
                })
            });
        });
    }
}
