//! Proves a device's kernels before a run relies on them.
//!
//! A separate process runs them, because a driver may compute wrongly, hang, or end the process that
//! compiles a kernel. It reports which kernels it is about to run, so we know the reason if it hangs or
//! ends. A run takes the fastest way to compute with correct kernels. The verdicts are kept, so the next
//! run starts at once.

use std::process::{Child, ChildStdin};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use super::pipe::worker;
use super::request::start;
use crate::config::{Config, GPT2_VOCABULARY};
use crate::gpu::{DeviceError, DeviceInfo, DeviceKind, SelectedDevice, without_tensor_cores};
use crate::ops::{Implementation, KernelError, KernelShapes, OpsMode};
use crate::plan::{Plan, Work};
use crate::protocol::{
    Cause, Failure, KernelProgress, KernelTests, Reply, Request, SelfTestOptions,
};
use crate::runs::kernel_verdicts::{self, KernelVerdict};
use crate::runs::known_speed;

/// The time that the kernels of one check may take, up to six. Drivers compile one in at most a few
/// seconds, but software renderers take up to a minute for one with cooperative matrices.
const LIMIT: Duration = Duration::from_secs(120);
const SOFTWARE_LIMIT: Duration = Duration::from_secs(300);

/// The time that a process may take to exit after its last message. Drivers write their caches then.
const EXIT_TIME: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(50);

/// A device, and a way to compute on it with correct kernels.
pub(crate) struct Proven {
    /// Without the abilities that cannot be trusted.
    pub device: SelectedDevice,
    pub mode: OpsMode,
    pub warnings: Vec<String>,
    pub suspect: Option<Suspect>,
}

/// Kernels that have crashed a former worker of a run that now trains without them.
pub(crate) struct Suspect {
    info: DeviceInfo,
    mode: OpsMode,
    shapes: KernelShapes,
}

impl Suspect {
    /// Keeps the verdict for later runs.
    pub fn remember_crash(self) {
        kernel_verdicts::remember(&self.info, self.mode, self.shapes, &crash_in_training());
    }
}

fn crash_in_training() -> KernelVerdict {
    KernelVerdict::Crashed { kernel: "a training step".into() }
}

/// Chooses the fastest way to compute a run of `config` on a device: `mode`, or a slower one if its kernels
/// are wrong, hang or end the process. Calls `say` before it tests kernels without a known verdict.
///
/// # Errors
/// If no way works in the dtype of the run.
pub(crate) fn prove(
    mut device: SelectedDevice,
    mut mode: OpsMode,
    config: &Config,
    options: SelfTestOptions,
    say: &dyn Fn(&str),
) -> Result<Proven, DeviceError> {
    let listed = device.info.clone();
    let dtype = config.dtype;
    let shapes = KernelShapes::from(config);
    let fastest = mode.for_run(dtype, &listed);
    // Another implementation is chosen to compare it. A device without the dtype is refused later.
    let Some(fastest) = fastest.ok().filter(|_| mode.implementation == Implementation::Auto) else {
        return Ok(Proven { device, mode, warnings: Vec::new(), suspect: None });
    };
    let mut warnings = Vec::from_iter(mode.unusable_products(fastest.precision, &listed));
    let avoids = options.avoids_matrices && fastest.precision.matrices().is_some();
    if (options.skip && !avoids) || listed.kind == DeviceKind::Cpu {
        warnings.extend(without_tensor_cores(&listed, fastest.precision.dtype()));
        return Ok(Proven { device, mode, warnings, suspect: None });
    }
    let mut run = fastest;
    let mut fault = None;
    loop {
        let found = if avoids && run == fastest {
            crash_in_training()
        } else {
            verdict(&device.info, run, shapes, options, say)
        };
        if found == KernelVerdict::Right {
            break;
        }
        let Some(slower) = mode.slower(dtype, &mut device.info) else {
            let DeviceInfo { id, name, .. } = listed;
            let dtype = run.precision.dtype();
            let reason = found.to_string();
            return Err(DeviceError::Untrusted { id, name, dtype, reason });
        };
        mode = slower;
        run = slower.for_run(dtype, &device.info)?;
        fault.get_or_insert(found);
    }
    warnings.extend(match fault {
        Some(fault) => Some(warning(&listed, config, &fault, [fastest, run])),
        None => without_tensor_cores(&device.info, run.precision.dtype()),
    });
    let suspect = avoids.then_some(Suspect { info: listed, mode: fastest, shapes });
    Ok(Proven { device, mode, warnings, suspect })
}

/// Returns the known verdict, or else tests the kernels. They count as right if the test failed for a reason
/// that the run will also meet and report: the device cannot be opened or has no memory left.
fn verdict(
    info: &DeviceInfo,
    mode: OpsMode,
    shapes: KernelShapes,
    options: SelfTestOptions,
    say: &dyn Fn(&str),
) -> KernelVerdict {
    if options.skip {
        return KernelVerdict::Right;
    }
    if let Some(known) = kernel_verdicts::known(info, mode, shapes) {
        return known;
    }
    let dtype = mode.precision.dtype();
    let by = mode.products().map_or_else(String::new, |it| format!(" by {}", it.name));
    say(&format!("testing the kernels of {} in {dtype}{by}, once for each driver", info.name));
    let mut wrong = None;
    let tests = KernelTests::new(info, mode, shapes);
    let mut test = || {
        test_kernels(&tests, time_limit(info, options.limit), &mut |result| {
            if !result.is_right() {
                wrong.get_or_insert_with(|| result.clone());
            }
        })
    };
    let mut tested = test();
    if let Ok(Tested { begun: 1.., end: TestEnd::Failed(_), .. }) = tested {
        // A device may be lost once for another reason than the kernel, but not twice.
        tested = test();
    }
    let Ok(Tested { begun, check: kernel, end }) = tested else { return KernelVerdict::Right };
    let verdict = match (wrong, end) {
        (Some(error), _) => KernelVerdict::Wrong(error),
        (None, TestEnd::Done) => KernelVerdict::Right,
        (None, TestEnd::Hung) => KernelVerdict::Hung { kernel },
        (None, TestEnd::Crashed) => KernelVerdict::Crashed { kernel },
        (None, TestEnd::Failed(Failure { text: reason, cause, .. })) => {
            // Some drivers list cooperative matrices and then refuse to open.
            let is_refused = begun == 0;
            let is_common = is_refused && mode.precision.matrices().is_none();
            if is_common || cause == Some(Cause::OutOfMemory) {
                return KernelVerdict::Right;
            }
            let verdict = KernelVerdict::Failed { kernel, reason };
            if is_refused {
                // The device may be away for a moment.
                return verdict;
            }
            verdict
        }
    };
    kernel_verdicts::remember(info, mode, shapes, &verdict);
    verdict
}

/// Returns the time that one check may take on a device: `seconds`, if they are given.
pub(crate) fn time_limit(info: &DeviceInfo, seconds: Option<u64>) -> Duration {
    let usual = if info.kind == DeviceKind::Software { SOFTWARE_LIMIT } else { LIMIT };
    seconds.map_or(usual, Duration::from_secs)
}

/// Describes what is wrong with the kernels of `fastest`, how the run computes instead, and at what cost.
fn warning(
    info: &DeviceInfo,
    config: &Config,
    fault: &KernelVerdict,
    [fastest, run]: [OpsMode; 2],
) -> String {
    let DeviceInfo { id, name, driver, .. } = info;
    let (way, cost) = if run.implementation == Implementation::Reference {
        ("by tensor operations", "many times slower and needs more memory than planned".into())
    } else if fastest.cublas && run.precision == fastest.precision {
        ("without cuBLASLt", "slower".into())
    } else {
        let vocab = if config.vocab_size == 0 { GPT2_VOCABULARY } else { config.vocab_size };
        let work = Work::update(config, vocab, &Plan::new(config, vocab));
        let seconds = |mode| known_speed(info, mode).map(|speed| speed.seconds(work));
        let ratio = seconds(run).zip(seconds(fastest)).map(|(slow, fast)| slow / fast);
        let ratio = ratio.filter(|ratio| *ratio > 1.0);
        let cost = ratio.map(|ratio| format!("about {ratio:.1} times slower"));
        ("without matrix units", cost.unwrap_or_else(|| "slower".into()))
    };
    format!(
        "{name} ({id}, driver {driver}): {fault}; computing in {} {way}, which is {cost}. `wgpt doctor \
         --kernels` tests all kernels again",
        run.precision.dtype()
    )
}

/// The outcome of a process that tests kernels.
pub(crate) struct Tested {
    /// The checks that have begun.
    pub begun: usize,
    /// The last check.
    pub check: String,
    pub end: TestEnd,
}

#[derive(Debug)]
pub(crate) enum TestEnd {
    /// Every check has run.
    Done,
    /// The device did not finish a check in time.
    Hung,
    Crashed,
    Failed(Failure),
}

impl KernelTests {
    pub fn new(info: &DeviceInfo, mode: OpsMode, shapes: KernelShapes) -> Self {
        let OpsMode { implementation, precision, cublas, .. } = mode;
        Self { device: info.id.to_string(), implementation, precision, cublas, shapes, first: 0 }
    }
}

/// Has a separate process run the checks. `take` gets the error of each kernel.
///
/// # Errors
/// If the process does not start.
pub(crate) fn test_kernels(
    tests: &KernelTests,
    limit: Duration,
    take: &mut dyn FnMut(&KernelError),
) -> Result<Tested, Failure> {
    let request = Request::TestKernels(tests.clone());
    let (mut child, input, mut replies) = start(worker(), request)?;
    let (sender, receiver) = channel();
    std::thread::spawn(move || replies.all(|reply| sender.send(reply).is_ok()));
    let mut begun = 0;
    let mut check = "the opening of the device".to_string();
    let end = loop {
        match receiver.recv_timeout(limit) {
            Ok(Reply::Kernels { progress }) => match progress {
                KernelProgress::Testing(name) => (begun, check) = (begun + 1, name),
                KernelProgress::Tested(result) => take(&result),
                KernelProgress::Failed(failure) => break TestEnd::Failed(failure),
                KernelProgress::Done => break TestEnd::Done,
            },
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                break TestEnd::Hung;
            }
            Err(RecvTimeoutError::Disconnected) if begun > 0 => break TestEnd::Crashed,
            Err(RecvTimeoutError::Disconnected) => {
                // A crash has no code on Unix, and on Windows one that wgpt does not use.
                let code = child.wait().ok().and_then(|status| status.code());
                break match code.filter(|code| (0..256).contains(code)) {
                    Some(code) => TestEnd::Failed(Failure::new(format!("exit code {code}"), "")),
                    None => TestEnd::Crashed,
                };
            }
        }
    };
    std::thread::spawn(move || wait(child, input));
    Ok(Tested { begun, check, end })
}

/// Waits for the end of a process, and kills it if the driver keeps it from exiting.
fn wait(mut child: Child, input: ChildStdin) {
    for _ in 0..EXIT_TIME.as_millis() / POLL.as_millis() {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(POLL),
            _ => return,
        }
    }
    drop(input);
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Abilities, Dtype, Matrices};

    #[test]
    fn a_warning_names_the_kernel_the_driver_and_the_cost() {
        let abilities =
            Abilities { float16: true, matrices: Some(Matrices::Sixteen), ..Abilities::default() };
        let mut info = DeviceInfo {
            name: "NVIDIA GeForce RTX 4070".into(),
            driver: "NVIDIA 595.58".into(),
            kind: DeviceKind::Discrete,
            abilities,
            ..DeviceInfo::cpu()
        };
        let listed = info.clone();
        let fastest = OpsMode::AUTO.for_run(Dtype::Auto, &info).unwrap();
        let kernel = KernelVerdict::Crashed { kernel: "attention".into() };
        let mut next = |mode: OpsMode| {
            let slower = mode.slower(Dtype::Auto, &mut info).unwrap();
            let run = slower.for_run(Dtype::Auto, &info).unwrap();
            (slower, warning(&listed, &Config::default(), &kernel, [fastest, run]))
        };
        let (tiles, text) = next(OpsMode::AUTO);
        for part in [
            "RTX 4070 (cpu, driver NVIDIA 595.58): the driver crashes in attention;",
            "in float32 without matrix units, which is about 2.2 times slower.",
        ] {
            assert!(text.contains(part), "no {part} in {text}");
        }
        let (_, text) = next(tiles);
        assert!(text.contains("by tensor operations, which is many times slower"), "{text}");
    }

    #[test]
    fn a_software_renderer_has_more_time() {
        let cpu = DeviceInfo::cpu();
        let software = DeviceInfo { kind: DeviceKind::Software, ..DeviceInfo::cpu() };
        assert!(time_limit(&software, None) > time_limit(&cpu, None));
        assert_eq!(time_limit(&software, Some(7)), Duration::from_secs(7));
    }
}
