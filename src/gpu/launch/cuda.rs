//! Launches wgpt's own CUDA kernels, of `shaders/cuda`, on the stream on which cubecl launches its own.
//!
//! cubecl has a thread for each device, which calls the driver. A closure that is posted to it runs in
//! order with the launches that were posted before and after. The closure borrows the memory of its
//! tensors, and a failure marks what it would have written, as those of cubecl's own launches do.

use std::any::TypeId;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::io::Read as _;
use std::ptr::null_mut;
use std::sync::{LazyLock, Mutex, PoisonError};

use burn::backend::BackTrace;
use burn::tensor::StreamId;
use burn_cubecl::cubecl::cuda::CudaRuntime;
use burn_cubecl::cubecl::device_handle::DeviceHandle;
use burn_cubecl::cubecl::dry_run::launch_mode;
use burn_cubecl::cubecl::features::MmaConfig;
use burn_cubecl::cubecl::ir::{ElemType, FloatKind};
use burn_cubecl::cubecl::prelude::KernelId;
use burn_cubecl::cubecl::server::{BufferBinding, ServerError};
use burn_cubecl::tensor::CubeTensor;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::{ExecuteScope, WriteScoped};
use cudarc::driver::result::DriverError;
use cudarc::driver::sys;

use super::observer::observe_launch;
use super::queue::Queue;

pub(super) type Server = <CudaRuntime as Runtime>::Server;

/// The instruction of every kernel here, which GPUs from compute capability 8.0 on have.
const AMPERE: MmaConfig = {
    let bfloat16 = ElemType::Float(FloatKind::BF16);
    let float32 = ElemType::Float(FloatKind::F32);
    MmaConfig { a_type: bfloat16, b_type: bfloat16, cd_type: float32, m: 16, n: 8, k: 16 }
};

/// The PTX of all kernels. `scripts/cuda-kernels.py` makes it.
static ARCHIVE: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/cuda/kernels.ptx.zst"));

/// The kernels by their names, like `product.bf16.nn.128x128`.
static KERNELS: LazyLock<HashMap<&'static str, Kernel>> = LazyLock::new(|| {
    let mut text = String::new();
    let mut decoder = zstd::Decoder::new(ARCHIVE).expect("a decoder needs only memory");
    decoder.read_to_string(&mut text).expect("scripts/cuda-kernels.py checks it");
    kernels(text.leak())
});

/// A kernel in PTX, which drivers compile.
struct Kernel {
    /// The name of the only entry of `ptx`.
    entry: &'static str,
    /// The text behind the mark of its first line.
    ptx: &'static str,
    threads: u32,
    /// The shared memory of a workgroup, in bytes.
    shared: u32,
}

/// Marks the first line of each kernel: `//// NAME threads=256 shared=98304`.
const MARK: &str = "//// ";

fn kernels(archive: &'static str) -> HashMap<&'static str, Kernel> {
    archive.split(MARK).filter_map(kernel).collect()
}

fn kernel(ptx: &'static str) -> Option<(&'static str, Kernel)> {
    let (name, sizes) = ptx.lines().next()?.split_once(' ')?;
    let size = |key: &str| {
        let value = sizes.split(' ').find_map(|it| it.strip_prefix(key)?.strip_prefix('='));
        value?.parse().ok()
    };
    let (_, entry) = ptx.split_once(".entry ")?;
    let (entry, _) = entry.split_once('(')?;
    Some((name, Kernel { entry, ptx, threads: size("threads")?, shared: size("shared")? }))
}

#[cfg(test)]
pub fn has_kernel(name: &str) -> bool {
    KERNELS.contains_key(name)
}

/// A pointer of a kernel's parameters.
pub enum Pointer<'a> {
    Null,
    Read(&'a CubeTensor),
    Write(&'a CubeTensor),
    /// Writes a tensor from this element on.
    WriteFrom(&'a CubeTensor, usize),
}

impl<'a> Pointer<'a> {
    pub fn read_if(tensor: Option<&'a CubeTensor>) -> Self {
        tensor.map_or(Pointer::Null, Pointer::Read)
    }
}

/// Returns true if a tensor begins at a multiple of 16 bytes, which kernels move at once.
pub fn is_aligned(tensor: &CubeTensor) -> bool {
    tensor.handle.offset_start.unwrap_or(0).is_multiple_of(16)
}

/// What a launch binds: its pointers, and the 32-bit values that follow them in the kernel's parameters.
pub struct Arguments<'a> {
    pub pointers: &'a [Pointer<'a>],
    pub values: &'a [u32],
}

/// The memory that a launch reads and writes, as the thread of the device gets it.
pub(super) struct Bindings {
    stream: StreamId,
    /// The memory of each pointer, and an offset in bytes.
    pointers: Vec<Option<(BufferBinding, u64)>>,
    read: Vec<BufferBinding>,
    written: Vec<BufferBinding>,
}

impl Bindings {
    pub fn of(pointers: &[Pointer]) -> Self {
        let binding = |tensor: &CubeTensor| tensor.handle.clone().binding();
        let (mut read, mut written) = (Vec::new(), Vec::new());
        let pointers = pointers.iter().map(|pointer| {
            let (tensor, first, list) = match pointer {
                Pointer::Null => return None,
                Pointer::Read(tensor) => (tensor, 0, &mut read),
                Pointer::Write(tensor) => (tensor, 0, &mut written),
                Pointer::WriteFrom(tensor, first) => (tensor, *first, &mut written),
            };
            let offset = first * tensor.dtype.size();
            list.push(binding(tensor));
            Some((binding(tensor), offset as u64))
        });
        Self { stream: StreamId::current(), pointers: pointers.collect(), read, written }
    }

    /// Calls `launch` with cubecl's stream and the address of each pointer, in order with cubecl's own
    /// launches. What a failure would have written is marked as the result of `kernel` that failed.
    pub fn launch(
        self,
        server: &mut Server,
        kernel: KernelId,
        launch: impl FnOnce(sys::CUstream, Vec<u64>) -> Result<(), ServerError>,
    ) {
        let (stream, read, written) = (self.stream, self.read.clone(), self.written.clone());
        ExecuteScope::launching(server, kernel, stream, read.iter(), written).execute(|server| {
            let (queue, addresses) = self.resolve(server)?;
            launch(queue, addresses)
        });
    }

    /// Returns the stream and the address of each pointer, which is 0 for `Null`.
    fn resolve(&self, server: &mut Server) -> Result<(sys::CUstream, Vec<u64>), ServerError> {
        let all = self.read.iter().chain(&self.written);
        let mut streams = server.write_streams().resolve(self.stream, all)?;
        let mut addresses = Vec::with_capacity(self.pointers.len());
        for pointer in &self.pointers {
            let Some((binding, offset)) = pointer else {
                addresses.push(0);
                continue;
            };
            let BufferBinding { memory, offset_start, offset_end, stream, .. } = binding;
            let owner = &mut streams.get(stream).memory_management_gpu;
            let resource = owner
                .get_resource(memory.clone(), *offset_start, *offset_end)
                .map_err(ServerError::Io)?;
            addresses.push(resource.ptr + offset);
        }
        Ok((streams.current().sys, addresses))
    }
}

/// A launch as the thread of the device gets it.
struct Launch {
    name: &'static str,
    kernel: &'static Kernel,
    grid: [u32; 2],
    device: u16,
    values: Vec<u32>,
}

impl Queue {
    pub fn is_cuda(&self) -> bool {
        self.client.service_id().service == TypeId::of::<Server>()
    }

    /// Returns true if the device runs all kernels of `shaders/cuda`: CUDA with compute capability 8.0. With less,
    /// it runs those without matrices.
    pub fn runs_ptx(&self) -> bool {
        self.is_cuda() && self.client.properties().features.matmul.mma.contains(&AMPERE)
    }

    /// Queues a kernel on `grid` workgroups, which may write to the tensors of its `Write` pointers alone.
    /// Tensors are bound as they are: the values say how their rows lie. Does not wait.
    ///
    /// # Panics
    /// If there is no kernel of that name, which a test of every name rules out.
    pub fn launch_ptx(&self, name: &str, [x, y]: [usize; 2], arguments: Arguments) {
        let Some((&name, kernel)) = KERNELS.get_key_value(name) else {
            panic!("no CUDA kernel is called {name}");
        };
        let launch = Launch {
            name,
            kernel,
            grid: [x as u32, y as u32],
            device: self.device_number(),
            values: arguments.values.to_vec(),
        };
        let bindings = Bindings::of(arguments.pointers);
        self.post(kernel_name(name), move |server, skipped| launch.run(server, bindings, skipped));
    }

    pub(super) fn device_number(&self) -> u16 {
        self.client.service_id().device.index_id
    }

    /// Returns the thread of the device.
    pub(super) fn thread(&self) -> DeviceHandle<Server> {
        DeviceHandle::new(self.client.service_id().device)
    }

    /// Posts a launch to the thread of the device, which tells `task` if it shall only prepare.
    pub(super) fn post(
        &self,
        kernel: &'static str,
        task: impl FnOnce(&mut Server, bool) + Send + 'static,
    ) {
        let handle = self.thread();
        let skipped = launch_mode().is_skipped();
        observe_launch(&self.client, kernel, skipped, move |wait| {
            let task = move |server: &mut Server| task(server, skipped);
            match wait {
                // A closure for a measurement of the launch: the device's thread must have it before the end.
                true => drop(handle.submit_blocking(task)),
                false => handle.submit(task),
            }
        });
    }
}

/// The kernel's name without its variant.
fn kernel_name(name: &'static str) -> &'static str {
    name.split('.').next().unwrap_or(name)
}

impl Launch {
    fn run(self, server: &mut Server, bindings: Bindings, skipped: bool) {
        if skipped {
            // Compiled, as kernels are in a dry run; a failure is told when it is launched.
            let _ = self.function();
            return;
        }
        let id = KernelId::new::<Self>().info(self.name);
        bindings.launch(server, id, |queue, addresses| self.queue(queue, addresses));
    }

    #[allow(unsafe_code, reason = "a launch by the driver")]
    fn queue(&self, queue: sys::CUstream, mut parameters: Vec<u64>) -> Result<(), ServerError> {
        // One struct: the pointers, then the values, in units of 8 bytes.
        let values = self.values.chunks(2);
        parameters.extend(
            values.map(|it| u64::from(it[0]) | it.get(1).map_or(0, |&high| u64::from(high) << 32)),
        );
        let function = self.function().map_err(|error| self.error(error))?;
        let mut pointer_to_parameters = parameters.as_mut_ptr().cast::<c_void>();
        let ([x, y], Kernel { threads, shared, .. }) = (self.grid, self.kernel);
        // SAFETY: the function is of a module that is never unloaded, the stream is cubecl's own, and the one
        // parameter of each kernel is a struct of these pointers and values, which CUDA copies now.
        let launched = unsafe {
            sys::cuLaunchKernel(
                function,
                x,
                y,
                1,
                *threads,
                1,
                1,
                *shared,
                queue,
                &raw mut pointer_to_parameters,
                null_mut(),
            )
        };
        launched.result().map_err(|error| self.error(error))
    }

    fn error(&self, error: DriverError) -> ServerError {
        let reason = format!("the kernel {} could not be launched: {error:?}", self.name);
        ServerError::Generic { reason, backtrace: BackTrace::capture() }
    }

    /// Returns the compiled kernel. The first time the driver compiles it, or finds it in its cache.
    #[allow(unsafe_code, reason = "the driver loads the module")]
    fn function(&self) -> Result<sys::CUfunction, DriverError> {
        /// Addresses of functions, by the device and the kernel's name.
        static LOADED: Mutex<Vec<(u16, &'static str, usize)>> = Mutex::new(Vec::new());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = loaded.iter();
        if let Some(it) = known.find(|it| it.0 == self.device && std::ptr::eq(it.1, self.name)) {
            return Ok(it.2 as sys::CUfunction);
        }
        let Kernel { entry, ptx, shared, .. } = *self.kernel;
        let [ptx, entry] = [format!("{MARK}{ptx}"), entry.to_string()]
            .map(|text| CString::new(text).expect("PTX is text without zeros"));
        let (mut module, mut function) = (null_mut(), null_mut());
        let most_shared =
            sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        // SAFETY: the device's context is current on its thread. Both texts end with a zero, and CUDA writes
        // to the two places and keeps no pointer.
        unsafe {
            sys::cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()).result()?;
            sys::cuModuleGetFunction(&raw mut function, module, entry.as_ptr()).result()?;
            sys::cuFuncSetAttribute(function, most_shared, shared as i32).result()?;
        }
        loaded.push((self.device, self.name, function as usize));
        Ok(function)
    }
}
