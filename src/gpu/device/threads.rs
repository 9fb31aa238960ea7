//! The threads that compute on the CPU: those of rayon's pool, which the library `gemm` uses, too, and the
//! thread that trains.
//!
//! They treat denormals (numbers below 1e-38) as zero. Some processors take over a hundred cycles for an
//! instruction that reads or writes a denormal, and the gradients of a run that diverges have many.

use std::error::Error;

use rayon::ThreadPoolBuilder;

/// Starts the threads, and makes this thread one of them. Otherwise it would hand each of a step's hundreds
/// of loops to another thread and wait for it, which takes two context switches.
pub fn compute_on_this_thread() {
    flush_denormals();
    // As the only one, it would make other threads wait until it computes.
    let several = std::thread::available_parallelism().is_ok_and(|threads| threads.get() > 1);
    let threads = compute_threads();
    let threads = if several { threads.use_current_thread() } else { threads };
    start(threads);
}

/// Starts the threads if they don't exist yet, for a thread that leaves the computing to them.
pub fn start_compute_threads() {
    start(compute_threads());
}

/// Starts the threads unless they already exist, which is no error.
///
/// # Panics
/// As the standard library does, if the system refuses a thread. Each later loop would panic with less to say.
fn start(threads: ThreadPoolBuilder) {
    if let Err(error) = threads.build_global()
        && let Some(reason) = error.source()
    {
        panic!("failed to spawn thread: {reason}");
    }
}

/// The most threads, whatever `RAYON_NUM_THREADS` says: each takes memory, and a system has an end of them.
const MOST: usize = 1024;

pub(super) fn compute_threads() -> ThreadPoolBuilder {
    let asked = std::env::var("RAYON_NUM_THREADS").ok().and_then(|number| number.parse().ok());
    // 0 is rayon's word for as many as there are cores, or as the variable says.
    let threads = asked.filter(|threads: &usize| *threads > MOST).map_or(0, |_| MOST);
    ThreadPoolBuilder::new().num_threads(threads).start_handler(|_| flush_denormals())
}

/// Makes this thread read and write denormals as zero.
#[allow(unsafe_code, reason = "only assembly reaches the register that controls floating point")]
fn flush_denormals() {
    // SAFETY: only the calling thread's control register changes, and there only the bits for denormals.
    // Rust assumes that they are not set, so an expression of constants may still be a denormal. No
    // rounding and no exception changes.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        // MXCSR: FTZ is bit 15, DAZ is bit 6.
        let mut control = 0_u32;
        std::arch::asm!(
            "stmxcsr [{at}]",
            "or dword ptr [{at}], 0x8040",
            "ldmxcsr [{at}]",
            at = in(reg) &raw mut control,
            options(nostack),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        // FPCR: FZ is bit 24.
        std::arch::asm!(
            "mrs {control}, fpcr",
            "orr {control}, {control}, #0x1000000",
            "msr fpcr, {control}",
            control = out(reg) _,
            options(nomem, nostack),
        );
    }
}
