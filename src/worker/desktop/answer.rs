//! The answers that need processes, drivers, a connection or the folders of the system.

use std::path::Path;
use std::time::{Duration, Instant};

use super::export::{export, ollama_commands};
use super::listing::{list_devices, select};
use crate::config::{Cublas, Dtype};
use crate::data::TokenizerChoice;
use crate::doctor::DoctorReport;
use crate::gpu::{self, DeviceInfo, Search};
use crate::hub::{self, Fetched, Offer};
use crate::ops::OpsMode;
use crate::protocol::{ExportFormat, Failure, Reply, Request};
use crate::report;
use crate::runs;
use crate::worker::answer;
use crate::worker::data_requests::prepare_files;

/// The time between two replies about a download.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);

/// Answers a request. `reply` takes the replies; a request that fails ends with [`Reply::Failed`].
pub(super) fn answer(request: Request, reply: &mut dyn FnMut(Reply)) {
    let job = request.job();
    match last_reply(request, reply) {
        Ok(last) => last.into_iter().for_each(reply),
        Err(failure) => reply(Reply::failed(job, failure)),
    }
}

fn last_reply(request: Request, reply: &mut dyn FnMut(Reply)) -> Result<Option<Reply>, Failure> {
    Ok(Some(match request {
        Request::Devices => {
            let listing = list_devices(Search::All);
            listing.obstacle().map(Reply::Obstacle).into_iter().for_each(&mut *reply);
            Reply::Devices { devices: listing.devices.iter().map(DeviceInfo::line).collect() }
        }
        Request::ListDevices { search, .. } => Reply::Listed { devices: gpu::list(search, &[]) },
        Request::Device { choice } => {
            // The list of devices has the warnings.
            let mut info = select(choice.parse()?, |_| {})?.info;
            let mut mode = OpsMode::AUTO.with_products(Cublas::Auto);
            runs::kernel_verdicts::avoid_faulty(&mut info, &mut mode, Dtype::Auto);
            let mode = mode.for_run(Dtype::Auto, &info)?;
            Reply::Device { device: runs::device_profile(&info, mode) }
        }
        Request::Doctor { front_end } => {
            let listing = list_devices(Search::All);
            let report = DoctorReport::gather(front_end, &listing.devices, listing.problems());
            Reply::Report { text: report.to_string() }
        }
        Request::Get { name, folder } => get(&name, &folder, reply)?,
        Request::Export { checkpoint, format, folder } => {
            let to = export(&checkpoint, format, folder)?;
            let is_for_ollama = format == ExportFormat::Ollama;
            let next = if is_for_ollama { ollama_commands(&to) } else { String::new() };
            Reply::Exported { to, next, zip: Vec::new() }
        }
        Request::Report { run } => {
            let page = run.join(report::REPORT_FILE);
            report::write(&page, &report::run_page(&report::RunRecord::read(&run)?))?;
            Reply::Reported { page }
        }
        Request::Remove { path } => {
            remove(&path)?;
            Reply::Removed { path }
        }
        request => return answer::answer(request, reply),
    }))
}

/// Fetches a data set or a model, and tokenizes a data set into a new folder below `folder`. Returns the last reply.
fn get(source: &str, folder: &Path, reply: &mut dyn FnMut(Reply)) -> Result<Reply, Failure> {
    let offer = Offer::of(source.parse()?)?;
    offer.check_room()?;
    let all = offer.bytes();
    let mut told: Option<Instant> = None;
    let fetched = offer.fetch(u64::MAX, &mut |_, done| {
        if told.is_none_or(|at| at.elapsed() >= PROGRESS_INTERVAL) {
            told = Some(Instant::now());
            reply(Reply::Fetching { name: source.into(), done, all });
        }
    })?;
    let (name, files) = match fetched {
        Fetched::Model { folder, .. } => {
            return Ok(Reply::Fetched { name: source.into(), folder });
        }
        Fetched::Texts { name, .. } => (name.short().to_string(), hub::texts(vec![source.into()])?),
        Fetched::File(path) | Fetched::HellaSwag(path) => {
            (path.file_stem().unwrap_or_default().to_string_lossy().into_owned(), vec![path])
        }
    };
    Ok(prepare_files(&files, &name, folder, TokenizerChoice::Auto, reply)?)
}

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
#[cfg(not(any(windows, target_os = "macos")))]
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Event, RequestKind, RunPhase, RunView, SavedCheckpoint};
    use crate::runs::json_line;

    fn replies(request: Request) -> Vec<Reply> {
        let mut replies = Vec::new();
        answer(request, &mut |reply| replies.push(reply));
        replies
    }

    #[test]
    fn a_run_is_read_with_paths_as_they_are_now() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("moved");
        let empty = replies(Request::ReadRun { run: run.clone(), view: RunView::Main });
        let [Reply::Run { progress, .. }] = &empty[..] else { panic!("{empty:?}") };
        assert_eq!(progress.state, RunPhase::Idle);

        std::fs::create_dir(&run).unwrap();
        let path = "elsewhere/checkpoints/00000010".into();
        let event = Event::Checkpoint(SavedCheckpoint { iter: 10, path, best: true });
        std::fs::write(run.join("events.jsonl"), json_line(&event) + "\n").unwrap();
        let read = replies(Request::ReadRun { run: run.clone(), view: RunView::Main });
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
        let failed = replies(Request::Remove { path: folder.path().to_path_buf() });
        assert!(
            matches!(&failed[..], [Reply::Failed { job: RequestKind::Other, text, .. }] if !text.is_empty()),
            "{failed:?}"
        );
    }
}
