//! The service's answers, on every platform.

use std::io::Cursor;
use std::path::Path;

use super::data_requests::{self as data, free_path};
#[cfg(not(target_arch = "wasm32"))]
use super::desktop::{export, list_devices, select};
use crate::config::{Config, Dtype, Layer, resolve};
#[cfg(any(target_arch = "wasm32", test))]
use crate::data::Dataset;
use crate::disk;
use crate::doctor::DoctorReport;
#[cfg(not(target_arch = "wasm32"))]
use crate::gpu::{self, DeviceInfo, Search};
use crate::ops::OpsMode;
use crate::protocol::{Destination, Failure, Progress, Reply, Request, StoredModel};
#[cfg(any(target_arch = "wasm32", test))]
use crate::protocol::{StorageUsage, StoredData};
#[cfg(not(target_arch = "wasm32"))]
use crate::report;
use crate::runs::{self, Introduction, Tail};
use crate::runs::{CHECKPOINTS_FOLDER, EVENTS_FILE, ModelSource, archive};

/// Answers a request. `reply` takes the replies, of which some requests have several; a request
/// that fails ends with [`Reply::Failed`].
pub(crate) fn answer(request: Request, reply: &mut dyn FnMut(Reply)) {
    let job = request.job();
    match last_reply(request, reply) {
        Ok(last) => last.into_iter().for_each(reply),
        Err(failure) => reply(Reply::failed(job, failure)),
    }
}

fn last_reply(request: Request, reply: &mut dyn FnMut(Reply)) -> Result<Option<Reply>, Failure> {
    Ok(Some(match request {
        #[cfg(not(target_arch = "wasm32"))]
        Request::Devices => {
            let listing = list_devices(Search::All);
            listing.obstacle().map(Reply::Obstacle).into_iter().for_each(&mut *reply);
            Reply::Devices { devices: listing.devices.iter().map(DeviceInfo::line).collect() }
        }
        #[cfg(not(target_arch = "wasm32"))]
        Request::ListDevices { search, .. } => Reply::Listed { devices: gpu::list(search, &[]) },
        #[cfg(not(target_arch = "wasm32"))]
        Request::Device { choice } => {
            // The list of devices has the warnings.
            let mut info = select(choice.parse()?, |_| {})?.info;
            let mut mode = OpsMode::AUTO;
            runs::kernel_verdicts::avoid_faulty(&mut info, &mut mode, Dtype::Auto);
            let mode = mode.for_run(Dtype::Auto, &info)?;
            Reply::Device { device: runs::device_profile(&info, mode) }
        }
        #[cfg(not(target_arch = "wasm32"))]
        Request::Doctor { front_end } => {
            let listing = list_devices(Search::All);
            let report = DoctorReport::gather(front_end, &listing.devices, listing.problems());
            Reply::Report { text: report.to_string() }
        }
        // The worker describes its one device by itself, once it is open.
        #[cfg(target_arch = "wasm32")]
        Request::Devices | Request::Device { .. } | Request::Doctor { .. } => return Ok(None),
        // A page requests none of these.
        #[cfg(target_arch = "wasm32")]
        Request::ListDevices { .. } | Request::Get { .. } | Request::Report { .. } => {
            return Ok(None);
        }
        Request::DescribeData { spec } => Reply::Data { data: data::describe(&spec), spec },
        Request::Prepare { texts, folder } => data::prepare(texts, &folder, reply)?,
        #[cfg(not(target_arch = "wasm32"))]
        Request::Get { name, folder } => data::get(&name, &folder, reply)?,
        Request::ListRuns { folder } => {
            Reply::Runs { runs: runs::list(&folder).unwrap_or_default(), folder }
        }
        Request::ReadRun { run, view } => {
            let (progress, tail) = read_run(&run)?;
            Reply::Run { run, view, progress: Box::new(progress), tail }
        }
        Request::Compare { runs } => match runs.each_ref().map(|run| runs::config(run)) {
            [Some(a), Some(b)] => Reply::Comparison { runs, configs: Box::new([a, b]) },
            _ => return Ok(None),
        },
        Request::DescribeModel { path } => {
            let has_chat = runs::has_chat(&path);
            let introduction = if has_chat { Introduction::of(&path) } else { Default::default() };
            Reply::Model { has_chat, introduction, path }
        }
        Request::Fork { checkpoint } => {
            Reply::Config { config: Box::new(config_of(&checkpoint)?), checkpoint }
        }
        Request::Export { checkpoint, to: Destination::Zip } => export_zip(&checkpoint)?,
        Request::Export { checkpoint, to } => {
            Reply::Exported { to: export(&checkpoint, to)?, zip: Vec::new() }
        }
        #[cfg(not(target_arch = "wasm32"))]
        Request::Report { run } => {
            let page = run.join(report::REPORT_FILE);
            report::write(&page, &report::run_page(&report::RunRecord::read(&run)?))?;
            Reply::Reported { page }
        }
        Request::Import { folder, name, zip } => {
            Reply::Imported { model: import(&free_path(&folder, &name, ""), zip)? }
        }
        Request::Describe { run, about } => {
            runs::describe(&run, &about).map_err(Failure::io("write", &run))?;
            Reply::Described
        }
        Request::Remove { path } => {
            remove(&path)?;
            Reply::Removed { path }
        }
        // A worker does these by itself.
        Request::Sample(_) | Request::StopSample => return Ok(None),
        Request::Measure { .. } | Request::TestKernels(_) | Request::StopGet => return Ok(None),
    }))
}

/// Reads what a run has recorded, and where its record ends. A run without a record has only begun.
fn read_run(run: &Path) -> Result<(Progress, Tail), Failure> {
    let (mut progress, tail) = match runs::follow(run) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            (Progress::default(), Tail::open(run, true))
        }
        read => read.map_err(Failure::io("read", &run.join(EVENTS_FILE)))?,
    };
    // A run that was started from another folder recorded paths relative to that.
    for checkpoint in &mut progress.checkpoints {
        if let Some(name) = checkpoint.path.file_name() {
            checkpoint.path = run.join(CHECKPOINTS_FOLDER).join(name);
        }
    }
    Ok((progress, tail))
}

/// The configuration of the run that a checkpoint belongs to, else one with the model's shapes.
fn config_of(checkpoint: &Path) -> Result<Config, Failure> {
    if let Some(config) = checkpoint.ancestors().take(3).find_map(runs::config) {
        return Ok(config);
    }
    let settings = runs::settings(&ModelSource::open(checkpoint)?.architecture);
    let settings = settings.into_iter().map(|(key, value)| (key.to_string(), value));
    Ok(resolve(vec![Layer::flags(settings)?])?.config)
}

/// Packs a model in memory.
fn export_zip(checkpoint: &Path) -> Result<Reply, Failure> {
    let source = ModelSource::open(checkpoint)?;
    let mut zip = Cursor::new(Vec::new());
    archive::pack(&source.path, &mut zip)?;
    let iteration = source.state.map(|state| format!("-{}", state.iteration));
    let file = format!("{}{}.zip", name_of(checkpoint), iteration.unwrap_or_default());
    Ok(Reply::Exported { to: file.into(), zip: zip.into_inner() })
}

#[cfg(target_arch = "wasm32")]
fn export(_: &Path, _: Destination) -> Result<std::path::PathBuf, Failure> {
    Err(Failure::new("a page cannot write into folders", "export a zip"))
}

/// Unpacks a model into `folder`, which is removed again if the zip has no model.
fn import(folder: &Path, zip: Vec<u8>) -> Result<StoredModel, Failure> {
    let unpacked =
        archive::unpack(Cursor::new(zip), folder, folder).and_then(|()| stored_model(folder));
    if unpacked.is_err() {
        // The error of the import is the one to report.
        let _ = disk::remove_dir_all(folder);
    }
    unpacked
}

#[cfg(not(target_arch = "wasm32"))]
fn remove(path: &Path) -> Result<(), Failure> {
    let name = path.display();
    if !runs::is_run(path) {
        return Err(Failure::new(format!("{name} is not a run"), "list the runs again"));
    }
    if runs::is_training(path) {
        return Err(Failure::new(format!("{name} is training"), "stop it first"));
    }
    move_to_trash(path).map_err(|error| {
        let text = format!("{name} could not be moved to the trash: {error}");
        Failure::new(text, "remove the folder in a file manager")
    })
}

#[cfg(all(feature = "gui", any(windows, target_os = "macos")))]
fn move_to_trash(path: &Path) -> Result<(), String> {
    trash::delete(path).map_err(|error| error.to_string())
}

/// Without the window, nothing asks for it.
#[cfg(all(not(feature = "gui"), any(windows, target_os = "macos")))]
fn move_to_trash(_: &Path) -> Result<(), String> {
    Err("this build has no window".into())
}

/// Runs `gio trash`, which comes with every desktop that has GLib.
#[cfg(not(any(windows, target_os = "macos", target_arch = "wasm32")))]
fn move_to_trash(path: &Path) -> Result<(), String> {
    let output = std::process::Command::new("gio").arg("trash").arg(path).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(String::from_utf8_lossy(&output.stderr).trim().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("`gio` is not installed".into())
        }
        Err(error) => Err(format!("`gio` did not start: {error}")),
    }
}

/// Removes a run, data or a model from the browser's storage, which has neither trash nor file
/// manager.
#[cfg(target_arch = "wasm32")]
fn remove(path: &Path) -> Result<(), Failure> {
    disk::remove_dir_all(path).map_err(Failure::io("remove", path))
}

/// Lists the data and the models in a browser's storage, which are next to its runs.
#[cfg(any(target_arch = "wasm32", test))]
pub(super) fn stored(root: &Path, usage: StorageUsage) -> Reply {
    let folders = |name: &str| {
        let entries = disk::read_dir(root.join(name)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path())
    };
    let data = folders("data").filter_map(|path| {
        let spec = path.display().to_string();
        let name = Dataset::open(&spec, 1).ok()?.name;
        Some(StoredData { spec, name })
    });
    let models = folders("models").filter_map(|path| stored_model(&path).ok());
    Reply::Stored { data: data.collect(), models: models.collect(), usage }
}

fn stored_model(folder: &Path) -> Result<StoredModel, Failure> {
    let source = ModelSource::open(folder)?;
    Ok(StoredModel {
        path: folder.to_path_buf(),
        name: name_of(folder),
        architecture: source.architecture,
        has_tokenizer: source.tokenizer.is_some(),
    })
}

pub(super) fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Checkpoint, Event, Job, RunPhase, Texts, View};
    use crate::runs::json_line;

    fn replies(request: Request) -> Vec<Reply> {
        let mut replies = Vec::new();
        answer(request, &mut |reply| replies.push(reply));
        replies
    }

    #[test]
    fn prepared_data_is_stored_and_described() {
        let root = tempfile::tempdir().unwrap();
        let text = "The fox saw nine red baskets and went home.\n".repeat(200);
        let texts = Texts::Text { name: "foxes".into(), text };
        let prepare = Request::Prepare { texts, folder: root.path().join("data") };
        let Some(Reply::Prepared { spec, .. }) = replies(prepare).pop() else { panic!("no data") };
        let Reply::Stored { data, models, .. } = stored(root.path(), StorageUsage::default())
        else {
            panic!("no list")
        };
        assert_eq!((data[0].spec.as_str(), data[0].name.as_str()), (spec.as_str(), "foxes"));
        assert_eq!((data.len(), models.len()), (1, 0));
        let described = replies(Request::DescribeData { spec });
        assert!(matches!(&described[..], [Reply::Data { data: Ok(_), .. }]), "{described:?}");
    }

    #[test]
    fn a_run_is_read_with_paths_as_they_are_now() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("moved");
        let empty = replies(Request::ReadRun { run: run.clone(), view: View::Main });
        let [Reply::Run { progress, .. }] = &empty[..] else { panic!("{empty:?}") };
        assert_eq!(progress.state, RunPhase::Idle);

        std::fs::create_dir(&run).unwrap();
        let path = "elsewhere/checkpoints/00000010".into();
        let event = Event::Checkpoint(Checkpoint { iter: 10, path, best: true });
        std::fs::write(run.join("events.jsonl"), json_line(&event) + "\n").unwrap();
        let read = replies(Request::ReadRun { run: run.clone(), view: View::Main });
        let [Reply::Run { progress, .. }] = &read[..] else { panic!("{read:?}") };
        assert_eq!(progress.checkpoints[0].path, run.join("checkpoints/00000010"));
    }

    #[test]
    fn a_run_is_described_in_its_folder_and_never_removed_while_it_trains() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("first");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("events.jsonl"), "").unwrap();
        let about = runs::About { name: "Foxes".into(), note: "a try".into() };
        let described = replies(Request::Describe { run: run.clone(), about: about.clone() });
        assert!(matches!(described[..], [Reply::Described]), "{described:?}");
        assert_eq!(runs::list(folder.path()).unwrap()[0].about, about);

        let lock = std::fs::File::create(run.join("lock")).unwrap();
        lock.lock().unwrap();
        let refused = replies(Request::Remove { path: run.clone() });
        assert!(matches!(&refused[..], [Reply::Failed { hint, .. }] if hint == "stop it first"));
        assert!(run.exists());
    }

    #[test]
    fn what_fails_says_which_request_it_was() {
        let folder = tempfile::tempdir().unwrap();
        // Of a folder without a model.
        let mut zip = Cursor::new(Vec::new());
        archive::pack(folder.path(), &mut zip).unwrap();
        let import = Request::Import {
            folder: folder.path().to_path_buf(),
            name: "model".into(),
            zip: zip.into_inner(),
        };
        let remove = Request::Remove { path: folder.path().to_path_buf() };
        for (request, expected) in [(import, Job::Import), (remove, Job::Other)] {
            let failed = replies(request);
            assert!(
                matches!(&failed[..], [Reply::Failed { job, text, .. }] if *job == expected && !text.is_empty()),
                "{failed:?}"
            );
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
