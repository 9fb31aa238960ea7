//! MPI's messages. The library is opened at run time, so the program also runs without one.
//!
//! MPI is an interface in C. Each family of libraries has its own handles:
//!
//! - Open MPI 4 and 5 (`libmpi.so.40`): handles are addresses of objects that the library exports.
//! - MPICH from 3.1 on, and libraries with its binary interface, such as Intel's, MVAPICH2 and Cray's
//!   (`libmpi.so.12`, `libmpich.so.12`): handles are 32-bit integers with fixed values.
//!
//! Other libraries are refused by their version. wgpt only exchanges messages of bytes, which takes two
//! handles: the communicator of all processes, and the type of a byte.

#![allow(unsafe_code, reason = "MPI is a library in C")]

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::ptr;
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::launch::MPI_LIBRARY;
use super::ring::{Envelope, MESSAGE_BYTES, PeerTransport};
use super::{Abort, Group, Launch, RanksError};

/// The names of the libraries, for the linker of the system.
const OPEN_MPI: &[&str] =
    &[if cfg!(target_os = "macos") { "libmpi.40.dylib" } else { "libmpi.so.40" }];
const MPICH: &[&str] = if cfg!(target_os = "macos") {
    &["libmpi.12.dylib"]
} else {
    &["libmpi.so.12", "libmpich.so.12"]
};

/// Names by which libraries of MPICH's family describe themselves.
const OF_MPICH: [&str; 3] = ["MPICH", "Intel(R) MPI", "MVAPICH"];

/// A part of the file names of libraries with the interface of MPI 5, which has other handles.
const STANDARD_INTERFACE: &str = "mpi_abi";

/// `MPI_COMM_WORLD`, `MPI_BYTE` and `MPI_STATUS_IGNORE` of MPICH's family.
const MPICH_WORLD: c_int = 0x4400_0000;
const MPICH_BYTE: c_int = 0x4c00_010d;
const MPICH_NO_STATUS: usize = 1;

/// `MPI_THREAD_FUNNELED`: only the thread that opens the library calls it.
const FUNNELED: c_int = 1;

/// The longest version text is MPICH's, of 8192 bytes.
const VERSION_BYTES: usize = 1 << 14;

/// The tag of all messages: they arrive in the order in which they were sent.
const TAG: c_int = 0;

/// The time for which a rank that waits keeps its core: messages of a fast network take less.
const SPIN: Duration = Duration::from_millis(2);

/// The time between two looks after that.
const PAUSE: Duration = Duration::from_micros(50);

type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
type Init = unsafe extern "C" fn(*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
type Count<H> = unsafe extern "C" fn(H, *mut c_int) -> c_int;
type Isend<H> = unsafe extern "C" fn(*const c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Irecv<H> = unsafe extern "C" fn(*mut c_void, c_int, H, c_int, c_int, H, *mut H) -> c_int;
type Test<H> = unsafe extern "C" fn(*mut H, *mut c_int, *mut c_void) -> c_int;

struct Functions<H> {
    init: Init,
    rank: Count<H>,
    size: Count<H>,
    send: Isend<H>,
    receive: Irecv<H>,
    test: Test<H>,
    abort: unsafe extern "C" fn(H, c_int) -> c_int,
    finalize: unsafe extern "C" fn() -> c_int,
    world: H,
    byte: H,
    no_status: *mut c_void,
}

/// An open library. It stays open until the process ends: a library of MPI cannot be closed and opened
/// again.
struct Opened {
    library: ManuallyDrop<Library>,
    /// The name of its file.
    name: String,
    /// Its own description of its version.
    version: String,
}

/// Connects this process with those that were started with it.
pub(super) fn open(launch: &Launch, limit: Duration) -> Result<Group, RanksError> {
    let opened = Opened::find(launch.is_mpich)
        .map_err(|reason| RanksError::NoLibrary { size: launch.size, reason })?;
    if let Some((world, byte)) = opened.open_mpi_handles() {
        let functions = opened.functions(world, byte, ptr::null_mut())?;
        return connect(&opened, launch, functions, limit);
    }
    if opened.is_of_mpich() {
        let no_status = ptr::without_provenance_mut(MPICH_NO_STATUS);
        let functions = opened.functions(MPICH_WORLD, MPICH_BYTE, no_status)?;
        return connect(&opened, launch, functions, limit);
    }
    Err(RanksError::UnknownLibrary { name: opened.name, version: opened.version })
}

/// Returns the version and the file of the MPI library that a run on several ranks would open, else the
/// reason why it could not. `None` on a system where wgpt opens none.
pub(crate) fn library() -> Option<Result<String, String>> {
    Some(Opened::find(false).and_then(|opened| {
        let is_known = opened.open_mpi_handles().is_some() || opened.is_of_mpich();
        let version = opened.version.split_whitespace().collect::<Vec<_>>().join(" ");
        if is_known {
            Ok(format!("{version} ({})", opened.name))
        } else {
            Err(format!("{} is neither Open MPI nor of MPICH's family: {version}", opened.name))
        }
    }))
}

impl Opened {
    /// Opens the library that the user names, else one of the launcher's family, else another.
    ///
    /// # Errors
    /// With the names that were tried and the errors of the system.
    fn find(is_mpich: bool) -> Result<Self, String> {
        let named = std::env::var(MPI_LIBRARY).ok().filter(|name| !name.is_empty());
        let usual =
            if is_mpich { MPICH.iter().chain(OPEN_MPI) } else { OPEN_MPI.iter().chain(MPICH) };
        let names: Vec<String> = match named {
            Some(name) => vec![name],
            None => usual.map(|name| name.to_string()).collect(),
        };
        let mut reasons = Vec::new();
        for name in names {
            // SAFETY: opening a library runs its initialisers, which MPI libraries are made for. Open MPI's
            // plugins link to global symbols.
            match unsafe { Library::open(Some(&name), RTLD_NOW | RTLD_GLOBAL) } {
                Ok(library) => {
                    let version = version(&library);
                    return Ok(Self { library: ManuallyDrop::new(library), name, version });
                }
                Err(error) => reasons.push(error.to_string()),
            }
        }
        Err(reasons.join("; "))
    }

    /// Returns true for a library that has MPICH's handles.
    fn is_of_mpich(&self) -> bool {
        OF_MPICH.iter().any(|name| self.version.contains(name))
            && !self.name.contains(STANDARD_INTERFACE)
    }

    /// Returns Open MPI's communicator of all processes and its type of a byte; `None` if this is
    /// another library.
    fn open_mpi_handles(&self) -> Option<(*mut c_void, *mut c_void)> {
        // SAFETY: only the addresses of these objects are taken.
        let address = |name: &str| unsafe {
            Some(self.library.get::<*mut c_void>(name.as_bytes()).ok()?.into_raw())
        };
        Some((address("ompi_mpi_comm_world")?, address("ompi_mpi_byte")?))
    }

    /// Returns a function of the library.
    ///
    /// # Safety
    /// `F` must be the type of the function in this library.
    unsafe fn function<F: Copy>(&self, name: &'static str) -> Result<F, RanksError> {
        // SAFETY: as the caller promises.
        match unsafe { self.library.get::<F>(name.as_bytes()) } {
            Ok(function) => Ok(*function),
            Err(_) => Err(RanksError::UnknownLibrary {
                name: self.name.clone(),
                version: format!("it has no {name}"),
            }),
        }
    }

    /// Returns the functions of a library with these handles.
    fn functions<H: Copy>(
        &self,
        world: H,
        byte: H,
        no_status: *mut c_void,
    ) -> Result<Functions<H>, RanksError> {
        // SAFETY: the types are those of MPI's interface in C. Its handles are of type `H` in the library's
        // family, and its other arguments are the same in each.
        unsafe {
            Ok(Functions {
                init: self.function("MPI_Init_thread")?,
                rank: self.function("MPI_Comm_rank")?,
                size: self.function("MPI_Comm_size")?,
                send: self.function("MPI_Isend")?,
                receive: self.function("MPI_Irecv")?,
                test: self.function("MPI_Test")?,
                abort: self.function("MPI_Abort")?,
                finalize: self.function("MPI_Finalize")?,
                world,
                byte,
                no_status,
            })
        }
    }
}

/// Returns a library's description of its version, in one line.
fn version(library: &Library) -> String {
    let mut text = vec![0u8; VERSION_BYTES];
    let mut length: c_int = 0;
    // SAFETY: the function may be called before the library is initialised, and writes at most
    // `VERSION_BYTES`, a final zero included.
    let code = unsafe {
        match library.get::<Version>(b"MPI_Get_library_version") {
            Ok(get) => get(text.as_mut_ptr().cast(), &raw mut length),
            Err(_) => return "not an MPI 3 library".into(),
        }
    };
    let length = if code == 0 { usize::try_from(length).unwrap_or(0) } else { 0 };
    let text = String::from_utf8_lossy(&text[..length.min(text.len())]).into_owned();
    let end = text.find(['\n', '\r', '\0']).unwrap_or(text.len());
    text[..end].trim().to_string()
}

/// This process's connection to all others.
///
/// MPI may read and write the memory of a message until it is done with it, even after a time limit.
/// So that memory is never freed.
struct MpiTransport<H: 'static> {
    functions: Functions<H>,
    outgoing: &'static mut [u8],
    incoming: &'static mut [u8],
}

fn message_memory() -> &'static mut [u8] {
    vec![0; MESSAGE_BYTES].leak()
}

/// Connects this process with the others by the functions of a library.
fn connect<H: Copy + 'static>(
    opened: &Opened,
    launch: &Launch,
    functions: Functions<H>,
    limit: Duration,
) -> Result<Group, RanksError> {
    let mut provided = 0;
    let mut rank = 0;
    let mut size = 0;
    // SAFETY: MPI allows null for the arguments of the program. This is the only call: the program
    // connects its ranks once. The other two follow it.
    let codes = unsafe {
        [
            (functions.init)(ptr::null_mut(), ptr::null_mut(), FUNNELED, &raw mut provided),
            (functions.rank)(functions.world, &raw mut rank),
            (functions.size)(functions.world, &raw mut size),
        ]
    };
    codes.into_iter().try_for_each(|code| check("start", code))?;
    let size = size as usize;
    if size != launch.size {
        return Err(RanksError::NotConnected {
            library: opened.version.clone(),
            launched: launch.size,
            connected: size,
        });
    }
    let transport =
        MpiTransport { functions, outgoing: message_memory(), incoming: message_memory() };
    Ok(Group::of(transport, rank as usize, size, limit))
}

impl<H: Copy + 'static> MpiTransport<H> {
    fn begin_send(&mut self, Envelope { rank, bytes }: Envelope) -> Result<H, RanksError> {
        let Functions { send, world, byte, .. } = self.functions;
        let mut request = byte;
        let from = self.outgoing[..bytes].as_ptr().cast();
        // SAFETY: the memory is never freed, and not written before the request is done.
        let code = unsafe {
            send(from, bytes as c_int, byte, rank as c_int, TAG, world, &raw mut request)
        };
        check("send a message", code).map(|()| request)
    }

    fn begin_receive(&mut self, Envelope { rank, bytes }: Envelope) -> Result<H, RanksError> {
        let Functions { receive, world, byte, .. } = self.functions;
        let mut request = byte;
        let into = self.incoming[..bytes].as_mut_ptr().cast();
        // SAFETY: the memory is never freed, and not used before the request is done.
        let code = unsafe {
            receive(into, bytes as c_int, byte, rank as c_int, TAG, world, &raw mut request)
        };
        check("receive a message", code).map(|()| request)
    }

    fn wait(
        &self,
        mut request: H,
        rank: usize,
        begun: Instant,
        limit: Duration,
    ) -> Result<(), RanksError> {
        loop {
            let mut done = 0;
            // SAFETY: the request was begun, and is not done: the loop ends with it.
            let code = unsafe {
                (self.functions.test)(&raw mut request, &raw mut done, self.functions.no_status)
            };
            check("exchange a message", code)?;
            let waited = begun.elapsed();
            if done != 0 {
                return Ok(());
            }
            if waited >= limit {
                return Err(RanksError::Silent { rank, seconds: waited.as_secs() });
            }
            if waited < SPIN { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
        }
    }

    fn try_exchange(
        &mut self,
        send: Option<Envelope>,
        receive: Option<Envelope>,
        limit: Duration,
    ) -> Result<(), RanksError> {
        let begun = Instant::now();
        // Receive first: a message that has already arrived then goes to its place at once.
        let receiving = receive.map(|message| self.begin_receive(message)).transpose()?;
        let sending = send.map(|message| self.begin_send(message)).transpose()?;
        // While we wait for one, MPI works on both.
        for (request, message) in receiving.zip(receive).into_iter().chain(sending.zip(send)) {
            self.wait(request, message.rank, begun, limit)?;
        }
        Ok(())
    }
}

impl<H: Copy + 'static> PeerTransport for MpiTransport<H> {
    fn outgoing(&mut self) -> &mut [u8] {
        self.outgoing
    }

    fn exchange(
        &mut self,
        send: Option<Envelope>,
        receive: Option<Envelope>,
        limit: Duration,
    ) -> Result<&[u8], RanksError> {
        if let Err(error) = self.try_exchange(send, receive, limit) {
            // MPI may still use the former memory.
            self.outgoing = message_memory();
            self.incoming = message_memory();
            return Err(error);
        }
        Ok(&self.incoming[..receive.map_or(0, |message| message.bytes)])
    }

    fn finish(&mut self) {
        // SAFETY: every message has arrived, and no other function is called from here on.
        unsafe { (self.functions.finalize)() };
    }

    fn abort(&self) -> Abort {
        let Functions { abort, world, .. } = self.functions;
        Box::new(move |code| {
            // SAFETY: MPI is initialised, and was not finalised: only a rank that fails calls this.
            unsafe { abort(world, c_int::from(code)) };
        })
    }
}

fn check(action: &'static str, code: c_int) -> Result<(), RanksError> {
    if code == 0 { Ok(()) } else { Err(RanksError::Failed { action, code }) }
}
