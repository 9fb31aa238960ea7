//! The requests that a worker answers in its own process: text, measurements, kernel tests.

use super::answer::answer;
use super::listing::select;
use super::self_test::{self, Proven, prove};
use super::serve::send;
use super::watch::{Watched, watch};
use crate::bench;
use crate::config::Config;
use crate::gpu;
use crate::ops::OpsMode;
use crate::plan::{self, Work};
use crate::protocol::{BenchmarkRow, Failure, FromWorker, Reply, Request, SelfTestOptions};
use crate::runs;
use crate::worker::sampling;

pub(super) fn serve_request(request: Request, say: fn(&str)) {
    let job = request.job();
    let reply = |reply| send(&FromWorker::Reply(reply));
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
        Request::TestKernels(tests) => return self_test::answer(&tests),
        Request::Measure { config, device, implementation } => {
            measure(&config, &device, OpsMode::of(implementation), say, fail)
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
    let Proven { device: mut selected, mode, warning, .. } =
        prove(selected, mode, config, SelfTestOptions::default(), &|_| {})?;
    if let Some(text) = warning {
        say(&format!("warning: {text}"));
    }
    let planned = mode.for_run(config.dtype, &selected.info)?;
    let profile = runs::device_profile(&selected.info, planned);
    selected.driver = runs::driver_traits(&selected.info, planned);
    let (limits, _) = profile.limits(config.vram_budget, config.dtype);
    let forecast = plan::plan(config, config.vocab_size, &limits, profile.speed.as_ref())?;
    let (device, mode) = mode.open(config.dtype, selected)?;
    watch(&device, Watched::Command, fail);
    gpu::size_pages(&device.device, forecast.page_bytes());
    let row = bench::benchmark_row(&device, config, &forecast.plan, mode)?;
    let tokens = config.global_batch() as f64 * f64::from(config.block_size.get());
    let work = Work::update(config, config.vocab_size, &forecast.plan);
    runs::remember_speed(&device.info, planned, &[work.point(tokens / row.tokens_per_s)]);
    Ok(row)
}
