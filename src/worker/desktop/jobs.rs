//! The requests that a worker answers in its own process: text, measurements, kernel tests.

use super::answer::answer;
use super::listing::select;
use super::pipe::send_to_owner;
use super::proof::{Proven, prove};
use super::room::watch_device;
use super::signals;
use super::watch::{Watched, watch};
use crate::bench;
use crate::config::Config;
use crate::gpu::{self, DeviceError, OtherPrograms};
use crate::ops::{OpsMode, SelfTest};
use crate::plan::{self, Work};
use crate::protocol::{
    BenchmarkRow, Exit, Failure, FromWorker, KernelProgress, KernelTests, Reply, Request,
    SelfTestOptions,
};
use crate::runs;
use crate::worker::sampling;

fn reply(reply: Reply) {
    send_to_owner(&FromWorker::Reply(reply));
}

pub(super) fn serve_request(request: Request, say: fn(&str)) {
    let job = request.job();
    let fail = move |failure: &Failure| reply(Reply::failed(job, failure.clone()));
    let answered = match request {
        Request::Sample(request) => {
            let open = async || {
                let warn = |warning: Failure| say(&format!("warning: {}", warning.text));
                let device = select(request.device.parse()?, warn)?.open_float32()?;
                watch(&device, Watched::Command, fail);
                Ok::<_, Failure>(device)
            };
            pollster::block_on(sampling::sample(&request, open, &|| false, &reply))
        }
        Request::WatchDevice { choice } => watch_device(&choice),
        Request::TestKernels(tests) => return test_kernels(&tests),
        Request::Measure { config, device, implementation } => {
            let mode = OpsMode::of(implementation).with_products(config.cublas);
            measure(&config, &device, mode, say, fail)
                .map(|row| reply(Reply::Measured { row: Box::new(row) }))
        }
        request => return answer(request, &mut |given| reply(given)),
    };
    if let Err(failure) = answered {
        fail(&failure);
    }
}

/// Measures the speed of training steps with the best plan. `fail` reports a failure of the device.
fn measure(
    config: &Config,
    device: &str,
    mode: OpsMode,
    say: fn(&str),
    fail: impl FnOnce(&Failure) + Send + 'static,
) -> Result<BenchmarkRow, Failure> {
    // Whoever asks has selected the device.
    let selected = gpu::select(device.parse()?)?;
    let Proven { device: mut selected, mode, warnings, .. } =
        prove(selected, mode, config, SelfTestOptions::default(), &|_| {})?;
    for text in warnings {
        say(&format!("warning: {text}"));
    }
    let planned = mode.for_run(config.dtype, &selected.info)?;
    let profile = runs::device_profile(&selected.info, planned);
    selected.driver = runs::driver_traits(&selected.info, planned, config);
    let (limits, _) = profile.limits(config.vram_budget, config.dtype);
    let forecast = plan::plan(config, config.vocab_size, &limits, profile.speed.as_ref())?;
    let (device, mode) = mode.open(config.dtype, selected)?;
    watch(&device, Watched::Command, fail);
    gpu::size_pages(&device.device, forecast.page_bytes());
    let mut others = OtherPrograms::default();
    let row = bench::benchmark_row(&device, config, &forecast.plan, mode)?;
    let tokens = config.global_batch() as f64 * f64::from(config.block_size.get());
    let work = Work::update(config, config.vocab_size, &forecast.plan);
    let point = work.point(tokens / row.tokens_per_s).with_others(others.share());
    runs::remember_speed(&device.info, planned, &[point]);
    Ok(row)
}

/// Runs the checks, and reports before and after each.
fn test_kernels(tests: &KernelTests) {
    let report = |progress| reply(Reply::Kernels { progress });
    // A panic is a result of the test, and not a bug of wgpt.
    std::panic::set_hook(Box::new(move |panic| {
        let text = panic.payload_as_str().unwrap_or("a panic");
        let text = text.lines().next().unwrap_or_default();
        report(KernelProgress::Failed(Failure::new(text, "")));
        signals::exit(Exit::Panic as i32);
    }));
    report(match run_checks(tests, report) {
        Ok(()) => KernelProgress::Done,
        Err(error) => KernelProgress::Failed(error.into()),
    });
}

fn run_checks(tests: &KernelTests, report: fn(KernelProgress)) -> Result<(), DeviceError> {
    let device = gpu::select(tests.device.parse()?)?.open(tests.precision)?;
    watch(&device, Watched::Command, move |failure| {
        report(KernelProgress::Failed(failure.clone()));
    });
    let mode = OpsMode::of(tests.implementation);
    let mut mode = mode.in_precision(tests.precision).on(device.info.kind);
    mode.cublas = tests.cublas;
    let test = SelfTest::new(&device, mode, tests.shapes);
    for check in &SelfTest::checks()[tests.first.min(SelfTest::checks().len())..] {
        report(KernelProgress::Testing(check.name.into()));
        for result in pollster::block_on(test.run(check))? {
            report(KernelProgress::Tested(result));
        }
    }
    Ok(())
}
