//! What a worker does for a request: texts, model folders, measurements.

use std::path::{Path, PathBuf};

use super::listing::select;
use super::self_test::{self, Proven, prove};
use super::serve::send;
use super::watch::{Watched, watch};
use crate::bench::{self, BenchmarkRow};
use crate::config::Config;
use crate::data::{TOKENIZER_FILE, Tokenizer};
use crate::disk;
use crate::gpu::{self, DeviceChoice};
use crate::model::{has_weights, parameters};
use crate::ops::OpsMode;
use crate::plan::{self, Work};
use crate::protocol::{Failure, FromWorker, Reply, Request, SelfTestOptions};
use crate::report::write_model_card;
use crate::runs::{self, ModelSource, checkpoint};
use crate::train::TrainError;
use crate::worker::answer::{answer, name_of};
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
                Ok::<_, TrainError>(device)
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

/// Writes a model into `folder` if it is empty, else into a new one below it. Returns that folder.
pub(in crate::worker) fn export_folder(
    checkpoint: &Path,
    folder: PathBuf,
) -> Result<PathBuf, Failure> {
    let empty = disk::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none());
    let name = format!("model-{}", name_of(checkpoint));
    let out = if empty { folder } else { folder.join(name) };
    let source = ModelSource::open(checkpoint)?;
    let tokenizer = source.tokenizer.as_ref();
    write_model_folder(&source, tokenizer, &out)?;
    write_model_card(&source, tokenizer, &out)
        .map_err(|failure| Failure { hint: "give another folder".into(), ..failure })?;
    Ok(out)
}

/// Writes a model as a Hugging Face folder, which must have no model yet.
pub(crate) fn write_model_folder(
    source: &ModelSource,
    tokenizer: Option<&Tokenizer>,
    output: &Path,
) -> Result<(), Failure> {
    if has_weights(output) {
        let text = format!("{}: this folder already has a model", output.display());
        return Err(Failure::usage(text, "give another folder"));
    }
    let cpu: DeviceChoice = "cpu".parse()?;
    let model = source.model(&gpu::open(cpu)?.device)?;
    disk::create_dir_all(output).map_err(TrainError::io("create", output))?;
    let written =
        checkpoint::write_model(output, model.architecture(), parameters(&model), tokenizer);
    pollster::block_on(written)?;
    // One that wgpt cannot use is the model's nevertheless; without it, GPT-2's would be assumed.
    let own = source.path.join(TOKENIZER_FILE);
    if tokenizer.is_none() && own.exists() {
        let file = disk::read(&own).map_err(TrainError::io("read", &own))?;
        let to = output.join(TOKENIZER_FILE);
        disk::write(&to, file).map_err(TrainError::io("write", &to))?;
    }
    Ok(())
}
