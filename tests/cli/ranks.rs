//! Tests runs of several processes. Tests that need Open MPI's mpirun are ignored. `.ci/run` runs them
//! with `cargo test --release --test cli --test budget -- --ignored mpirun`.

use super::*;

/// A schedule that amplifies rounding little, so that losses can be compared closely.
const CALM: [&str; 2] = ["--learning_rate=1e-3", "--min_lr=1e-4"];

/// The time within which a job ends when one of its ranks is killed.
const END: Duration = Duration::from_secs(10);

/// mpirun's arguments: all traffic on the loopback, more ranks than cores, and none of the copies
/// between processes that a container forbids.
const LOCAL: [&str; 11] = [
    "--allow-run-as-root",
    "--oversubscribe",
    "--mca",
    "btl_tcp_if_include",
    "lo",
    "--mca",
    "oob_tcp_if_include",
    "lo",
    "--mca",
    "btl_vader_single_copy_mechanism",
    "none",
];

/// Returns a command that starts `ranks` processes of `wgpt train` with these arguments.
fn mpirun(folder: &Path, ranks: usize, args: &[&str]) -> Command {
    let mut command = started("mpirun", folder);
    command.args(LOCAL).args(["-np", &ranks.to_string(), env!("CARGO_BIN_EXE_wgpt")]);
    command.args(["train", "--json"]).args(args);
    command
}

/// Trains on this many ranks. Returns the events of rank 0, the only rank that prints.
fn train_on(folder: &Path, ranks: usize, run: &str, more: &[&str]) -> Vec<Value> {
    let run = format!("--run={run}");
    let args = [&[run.as_str()], TINY, &CALM, more].concat();
    let output = mpirun(folder, ranks, &args).output().expect("mpirun starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    events(&text(&output.stdout))
}

fn resume_on(folder: &Path, ranks: usize, run: &str, more: &[&str]) -> Vec<Value> {
    let run = format!("--run={run}");
    let args = [&["--resume", "--device=cpu", run.as_str()], more].concat();
    let output = mpirun(folder, ranks, &args).output().expect("mpirun starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    events(&text(&output.stdout))
}

fn assert_close(found: &[Value], expected: &[Value]) {
    let (found, expected) = (losses(found), losses(expected));
    assert!(!found.is_empty());
    for (iter, loss) in &found {
        let number = |loss: &String| loss.parse::<f64>().unwrap();
        let (found, expected) = (number(loss), number(&expected[iter]));
        assert!((found / expected - 1.0).abs() < 1e-5, "{iter}: {found} for {expected}");
    }
}

/// Returns the child of a process whose environment has this entry.
fn child_of(parent: &str, entry: &str) -> String {
    let parent = format!("PPid:\t{parent}\n");
    let is_child = |folder: &PathBuf| {
        let status = fs::read_to_string(folder.join("status")).unwrap_or_default();
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        let mut entries = environment.split(|&byte| byte == 0);
        status.contains(&parent) && entries.any(|found| found == entry.as_bytes())
    };
    let found = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).find(is_child);
    let found = found.unwrap_or_else(|| panic!("no process with {entry}"));
    found.file_name().unwrap().to_string_lossy().into_owned()
}

fn process_of_rank(mpirun: &str, rank: usize) -> String {
    child_of(mpirun, &format!("OMPI_COMM_WORLD_RANK={rank}"))
}

fn signal(process: &str, signal: &str) {
    assert!(kill(process, signal), "{signal} {process}");
}

/// Returns true if the process was still running.
fn kill(process: &str, signal: &str) -> bool {
    let kill = Command::new("kill").args([signal, process]).stderr(Stdio::null()).status();
    kill.unwrap().success()
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_gives_the_losses_of_one_process() {
    let folder = temporary();
    let alone = train(folder.path(), "alone", &CALM);
    for ranks in [1, 2, 4] {
        let run = format!("r{ranks}");
        let events = train_on(folder.path(), ranks, &run, &[]);
        assert_eq!(losses(&events).len(), 40, "{ranks} ranks");
        assert_close(&events, &alone);
        let times = named(&events, "step").filter(|step| step["network_ms"].is_number()).count();
        assert_eq!(times, if ranks == 1 { 0 } else { 40 });
        let start = named(&events, "start").next().unwrap();
        let shares = start["ranks"].as_array().map(Vec::len);
        let parts = named(&events, "step").next().unwrap()["ranks"].as_array().map(Vec::len);
        assert_eq!(parts, shares);
        assert_eq!(shares, if ranks == 1 { None } else { Some(ranks) }, "{start}");
    }
    let again = train_on(folder.path(), 4, "again", &[]);
    let kept = fs::read_to_string(folder.path().join("r4/events.jsonl")).unwrap();
    let kept: Vec<Value> = kept.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(losses(&again), losses(&kept), "the same ranks, the same bits");
    assert!(folder.path().join("r4/ranks/3.log").exists());
}

/// Both ranks on one software renderer.
#[cfg(feature = "wgpu")]
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_gives_the_losses_of_one_process_on_vulkan() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let more = [device.as_str(), "--dtype=float32", "--max_iters=8", "--sample_tokens=0"];
    // `TINY` ends with its device.
    let args = [&TINY[..TINY.len() - 1], &CALM, &more].concat();
    let alone =
        events(&ok(folder.path(), &[&["train", "--json", "--run=alone"], &args[..]].concat()));
    let output = mpirun(folder.path(), 2, &[&["--run=r"], &args[..]].concat()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = events(&text(&output.stdout));
    assert_eq!(losses(&events).len(), 8);
    assert_close(&events, &alone);
    let start = named(&events, "start").next().unwrap();
    assert_eq!(start["device"]["backend"], "vulkan");
}

/// Ranks that share one software renderer, in float16, each with a part of the optimizer's state.
#[cfg(feature = "wgpu")]
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_keep_their_float16_weights_alike() {
    let folder = temporary();
    let device = vulkan(folder.path());
    let half = [device.as_str(), "--dtype=float16", "--max_iters=6", "--sample_tokens=0"];
    let train = |run: &str, more: &[&str]| {
        let run = format!("--run={run}");
        let tiny = &TINY[..TINY.len() - 1];
        let args = [&[run.as_str()], tiny, &CALM, &half, more].concat();
        let output = mpirun(folder.path(), 2, &args).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        events(&text(&output.stdout))
    };
    let whole = train("whole", &["--shard_optimizer=false"]);
    assert_eq!(losses(&train("sharded", &["--shard_optimizer=true"])), losses(&whole));
}

/// More gradients than are summed at once, and more weights than are staged at once.
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_sum_a_large_model_in_parts() {
    let folder = temporary();
    let large = ["--n_embd=320", "--n_layer=4", "--max_iters=3", "--sample_tokens=0"];
    let alone = train(folder.path(), "alone", &[&CALM[..], &large].concat());
    for (run, sharded) in [("r", "--shard_optimizer=false"), ("s", "--shard_optimizer=true")] {
        let events = train_on(folder.path(), 2, run, &[&large[..], &[sharded]].concat());
        assert_eq!(losses(&events).len(), 3);
        assert_close(&events, &alone);
    }
}

/// The sizes of the model are in files that rank 0 alone may have.
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_begin_with_the_weights_of_another_run() {
    let folder = temporary();
    let first = train(folder.path(), "first", &["--max_iters=20"]);
    let own = ["--init_from=first", "--max_iters=3", "--sample_tokens=0"];
    let alone = train(folder.path(), "alone", &[&CALM[..], &own].concat());
    let events = train_on(folder.path(), 2, "r", &own);
    assert_close(&events, &alone);
    let [before, after] =
        [&first, &events].map(|events| losses(events)[&0].parse::<f64>().unwrap());
    assert!(after < before - 0.5, "{after} after {before}: these are not the weights of the run");
}

/// Only rank 0 has the base and the adapter. A resume on another number of ranks continues it.
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_train_one_adapter() {
    let folder = temporary();
    train(folder.path(), "first", &["--max_iters=20"]);
    let own = ["--init_from=first", "--lora_rank=2", "--max_iters=6", "--sample_tokens=0"];
    let alone = train(folder.path(), "alone", &[&CALM[..], &own].concat());
    let events = train_on(folder.path(), 2, "r", &[&own[..], &["--eval_interval=3"]].concat());
    assert_close(&events, &alone);
    let more = ["--max_iters=8", "--eval_interval=4"];
    let [alone, ranks] = [(1, "alone"), (3, "r")].map(|(ranks, run)| {
        let seen = resume_on(folder.path(), ranks, run, &more);
        assert_eq!(losses(&seen).len(), 2);
        seen
    });
    assert_close(&ranks, &alone);
}

/// mpirun forwards a Ctrl-C as SIGTERM after a while, and kills the remaining processes after the same
/// time again. Meanwhile it reads nothing that its processes print.
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_stops_with_a_checkpoint() {
    let folder = temporary();
    for (first, then) in [("-INT", None), ("-TERM", None), ("-INT", Some("-TERM"))] {
        let run = format!("r{first}{}", then.is_some());
        let flag = format!("--run={run}");
        // A rank that writes to a full pipe waits, and does not stop. So few lines may be printed while
        // mpirun reads nothing, on a fast machine too.
        let rarely = ["--log_interval=100000", "--eval_interval=1000"];
        let args = [&[flag.as_str()], TINY, &CALM, &ENDLESS, &rarely].concat();
        let mut command = mpirun(folder.path(), 2, &args);
        command.env("OMPI_MCA_odls_base_sigkill_timeout", "4").stdout(Stdio::null());
        let mut job = command.spawn().unwrap();
        let run = folder.path().join(&run);
        wait_for(&run.join("checkpoints/00001000/state.json"), &mut job);
        let id = job.id().to_string();
        match then {
            None => signal(&id, first),
            Some(then) => {
                // Some launchers signal their processes themselves.
                let ranks = [0, 1].map(|rank| process_of_rank(&id, rank));
                ranks.iter().for_each(|rank| signal(rank, first));
                for rank in &ranks {
                    kill(rank, then);
                }
            }
        }
        let signalled = Instant::now();
        job.wait().unwrap();
        assert!(signalled.elapsed() < END, "{:?}", signalled.elapsed());
        let recorded = fs::read_to_string(run.join("events.jsonl")).unwrap();
        let done: Value = serde_json::from_str(recorded.lines().last().unwrap()).unwrap();
        assert_eq!((&done["event"], &done["reason"]), (&"done".into(), &"stopped".into()));
        let name = format!("checkpoints/{:08}/state.json", done["iter"].as_u64().unwrap());
        assert!(run.join(&name).exists(), "{name}");
    }
}

/// As a scheduler or a person may send it, who sees the process of one rank.
#[test]
#[ignore = "needs Open MPI"]
fn mpirun_signal_to_one_rank_stops_all() {
    let folder = temporary();
    let rarely = ["--log_interval=100000", "--eval_interval=1000"];
    let args = [&["--run=r"], TINY, &CALM, &ENDLESS, &rarely].concat();
    let mut job = mpirun(folder.path(), 2, &args).stdout(Stdio::null()).spawn().unwrap();
    wait_for(&folder.path().join("r/checkpoints/00001000/state.json"), &mut job);
    signal(&process_of_rank(&job.id().to_string(), 1), "-TERM");
    job.wait().unwrap();
    let recorded = fs::read_to_string(folder.path().join("r/events.jsonl")).unwrap();
    let done: Value = serde_json::from_str(recorded.lines().last().unwrap()).unwrap();
    assert_eq!((&done["event"], &done["reason"]), (&"done".into(), &"stopped".into()));

    let launched = ["launch", "--ranks=2", "--mpirun=true", "--run=n"];
    let output = wgpt(folder.path()).args(launched).args(TINY).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("started no rank"), "{said}");
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_continue_a_run_of_another_number() {
    let folder = temporary();
    let alone = train(folder.path(), "alone", &CALM);
    let first = train_on(folder.path(), 4, "r", &["--max_iters=10"]);
    assert_close(&first, &alone);
    let args = ["train", "--json", "--resume", "--run=r", "--max_iters=20", "--device=cpu"];
    assert_close(&events(&ok(folder.path(), &args)), &alone);
    assert_close(&resume_on(folder.path(), 2, "r", &["--max_iters=30"]), &alone);
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ends_a_job_whose_rank_is_killed_and_it_continues() {
    let folder = temporary();
    let expected = losses(&train_on(folder.path(), 3, "undisturbed", &["--max_iters=30"]));
    for rank in 0..3 {
        let run = format!("killed{rank}");
        let flag = format!("--run={run}");
        let args = [&[flag.as_str()], TINY, &CALM, &ENDLESS].concat();
        let mut job = mpirun(folder.path(), 3, &args).stdout(Stdio::null()).spawn().unwrap();
        let state = folder.path().join(&run).join("checkpoints/00000010/state.json");
        wait_for(&state, &mut job);
        signal(&process_of_rank(&job.id().to_string(), rank), "-KILL");
        let killed = Instant::now();
        let status = job.wait().unwrap();
        assert!(!status.success() && killed.elapsed() < END, "{:?}", killed.elapsed());
        // It continues from its first checkpoint, whatever it wrote after that.
        let checkpoints = folder.path().join(&run).join("checkpoints");
        for entry in fs::read_dir(&checkpoints).unwrap().flatten() {
            if entry.file_name() != "00000010" {
                fs::remove_dir_all(entry.path()).unwrap();
            }
        }
        let resumed = losses(&resume_on(folder.path(), 3, &run, &["--max_iters=30"]));
        assert_eq!(resumed.len(), 20, "rank {rank}");
        assert!(resumed.iter().all(|(iter, loss)| expected[iter] == *loss), "rank {rank}");
    }
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_names_a_rank_that_hangs() {
    let folder = temporary();
    let args = [&["--run=r", "--rank-limit=5"], TINY, &CALM, &ENDLESS].concat();
    let mut command = mpirun(folder.path(), 2, &args);
    let mut job = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&folder.path().join("r/checkpoints/00000010/state.json"), &mut job);
    signal(&process_of_rank(&job.id().to_string(), 1), "-STOP");
    let stopped = Instant::now();
    let output = job.wait_with_output().unwrap();
    assert!(!output.status.success() && stopped.elapsed() < 2 * END, "{:?}", stopped.elapsed());
    let said = text(&output.stderr);
    assert!(said.contains("error: rank 0 of 2"), "{said}");
    assert!(said.contains("rank 1 has not answered for 5 s"), "{said}");
}

/// Starts `wgpt launch` with an open stdin, whose end would stop the run.
fn launch(folder: &Path, args: &[&str]) -> Child {
    let pipe = Stdio::piped;
    wgpt(folder).args(args).stdin(pipe()).stdout(pipe()).spawn().unwrap()
}

/// Returns the events of a launch that finishes its run after it starts a second time.
fn started_twice(mut launch: Child) -> Vec<Value> {
    let stdin = launch.stdin.take();
    let output = launch.wait_with_output().unwrap();
    drop(stdin);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let events = events(&text(&output.stdout));
    assert_eq!(events.last().unwrap()["reason"], "finished");
    assert_eq!(named(&events, "start").count(), 2);
    events
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_is_started_again_by_launch() {
    let folder = temporary();
    let expected = losses(&train_on(folder.path(), 2, "undisturbed", &["--max_iters=600"]));
    let mpi = LOCAL.map(|arg| format!("--mpi={arg}"));
    let mpi: Vec<&str> = mpi.iter().map(String::as_str).collect();
    let own = ["launch", "-np", "2", "--json", "--run=r", "--keep_checkpoints=1000000"];
    let args = [&own, &mpi[..], TINY, &CALM, &["--max_iters=600"]].concat();
    let mut launch = launch(folder.path(), &args);
    wait_for(&folder.path().join("r/checkpoints/00000010/state.json"), &mut launch);
    let job = child_of(&launch.id().to_string(), &format!("HOME={}", isolated::HOME));
    signal(&process_of_rank(&job, 1), "-KILL");
    let events = started_twice(launch);
    assert_eq!(losses(&events), expected);
}

/// Open MPI's mpirun itself listens on every address, whatever it is told. Its ranks do not.
#[test]
#[ignore = "needs Open MPI and strace"]
fn mpirun_ranks_of_one_machine_open_no_port() {
    let folder = temporary();
    let log = folder.path().join("strace.txt");
    let plain = wgpt(folder.path());
    let mut command = started("strace", folder.path());
    command.args(["-f", "-o"]).arg(&log);
    command.args(["-e", "trace=execve,bind,sendto,connect"]).arg(plain.get_program());
    let mpi = ["--mpi=--allow-run-as-root", "--mpi=--oversubscribe"];
    command.args(["launch", "-n", "2", "--run=r"]).args(mpi).args(TINY);
    let output = command.output().expect("strace starts");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let log = fs::read_to_string(log).unwrap();
    let process = |line: &str| line.split(' ').next().unwrap().to_string();
    let is_elsewhere = |line: &&str| {
        let is_loopback = line.contains("\"127.") || line.contains("\"::1\"");
        line.contains("sa_family=AF_INET") && !is_loopback
    };
    // It was asked for its version before.
    let starts = |line: &&str| line.contains("/mpirun\", [\"mpirun\", \"-np\"");
    let launcher = log.lines().find(|line| starts(line) && line.ends_with("= 0"));
    let launcher = process(launcher.expect("mpirun was started"));
    let opened: Vec<&str> = log.lines().filter(is_elsewhere).collect();
    let others: Vec<_> = opened.iter().filter(|line| process(line) != launcher).collect();
    assert!(others.is_empty(), "not of mpirun, {launcher}: {others:#?}");
    assert!(!opened.is_empty(), "the test sees no socket: {log}");
}

#[test]
#[ignore = "needs Open MPI"]
fn mpirun_ranks_of_different_runs_are_refused() {
    let folder = temporary();
    let args = [&["--run=r"], TINY].concat();
    for (flag, wanted) in [
        ("--learning_rate=0.5", "has learning_rate = 0.5, rank 0 has 0.01"),
        ("--share=1,2", "has share = [1.0,2.0], rank 0 has []"),
    ] {
        let mut command = mpirun(folder.path(), 1, &args);
        command.args([":", "-np", "1", env!("CARGO_BIN_EXE_wgpt"), "train", "--json"]).args(&args);
        let output = command.arg(flag).output().unwrap();
        assert!(!output.status.success());
        let said = text(&output.stderr);
        assert!(said.contains(wanted), "{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{said}");
        assert!(!folder.path().join("r").exists());
    }
}

/// Sets a launcher's variables without a launcher.
#[cfg(unix)]
#[test]
fn ranks_without_mpi_end_with_one_line() {
    let folder = temporary();
    let args = [&["train", "--run=r"], TINY].concat();
    let started_as = |library: &str| {
        let mut command = wgpt(folder.path());
        command.env("OMPI_COMM_WORLD_RANK", "1").env("OMPI_COMM_WORLD_SIZE", "2");
        command.env("WGPT_MPI_LIBRARY", library).args(&args).output().unwrap()
    };
    for (library, wanted) in [
        ("/nowhere/libmpi.so", "no MPI library can be opened"),
        // This can be any library that is not MPI's.
        ("libm.so.6", "an MPI library that wgpt does not know"),
    ] {
        if library == "libm.so.6" && !cfg!(target_os = "linux") {
            continue;
        }
        let output = started_as(library);
        assert_eq!(output.status.code(), Some(2));
        let said = text(&output.stderr);
        assert!(said.starts_with("error: rank 1 of 2") && said.contains(wanted), "{said}");
        assert_eq!(said.lines().count(), 2, "an error and a hint: {said}");
    }
    assert!(!folder.path().join("r").exists());
}

#[test]
fn bad_launches_are_refused() {
    let folder = temporary();
    for (args, wanted) in [
        (&["launch", "-n", "2", "--hostfile=nowhere"][..], "no such hostfile"),
        (&["launch", "-n", "2", "--mpirun=nowhere"][..], "cannot start nowhere"),
        (&["launch", "-np", "0"][..], "0 is not in"),
        (&["train", "--share=2,1"][..], "2 numbers for 1 ranks"),
        (&["train", "--share=2,x"][..], "a number above 0 for each rank"),
    ] {
        let output = run(folder.path(), &[args, TINY].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(wanted), "{args:?}: {said}");
    }
}

/// Stands in for mpirun: starts one process, and kills the first one after a checkpoint.
#[cfg(unix)]
const LAUNCHER: &str = r#"#!/bin/sh
echo "$OMPI_MCA_btl_tcp_eager_limit" > limit
shift 2
if [ -e again ]; then exec "$@"; fi
touch again
exec 3<&0
"$@" <&3 &
while [ ! -e r/checkpoints/00000010/state.json ]; do sleep 0.05; done
kill -9 $!
exit 137
"#;

#[cfg(unix)]
#[test]
fn a_job_is_started_again_when_a_process_is_killed() {
    use std::os::unix::fs::PermissionsExt;
    let folder = temporary();
    let long = ["--max_iters=300", "--keep_checkpoints=1000000"];
    let expected = losses(&train(folder.path(), "undisturbed", &long));
    let script = folder.path().join("launcher");
    fs::write(&script, LAUNCHER).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let own = ["launch", "-np", "1", "--mpirun=./launcher", "--json", "--run=r"];
    let args = [&own, TINY, &long].concat();
    let events = started_twice(launch(folder.path(), &args));
    assert_eq!(named(&events, "waiting").count(), 1);
    assert_eq!(losses(&events), expected);
    let limit = fs::read_to_string(folder.path().join("limit")).unwrap();
    assert!(limit.trim().parse::<u64>().unwrap() > 1 << 20, "messages of Open MPI: {limit}");
}

/// Open MPI's own text about root has fourteen lines. Its launcher is a script here.
#[cfg(target_os = "linux")]
#[test]
fn launching_as_root_says_in_one_line_what_open_mpi_wants() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let launcher = folder.path().join("mpirun");
    fs::write(&launcher, "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'\nexit 9\n").unwrap();
    fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
    let mpirun = format!("--mpirun={}", launcher.display());
    let output =
        run(folder.path(), &["launch", "-n", "2", &mpirun, "--preset=demo", "--device=cpu"]);
    let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
    let stderr = text(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(stderr.contains("Open MPI refuses to run as root"), is_root, "{stderr}");
    assert_eq!(stderr.contains("add --mpi=--allow-run-as-root"), is_root, "{stderr}");
}
