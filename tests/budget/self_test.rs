//! Tests that a run avoids kernels that a driver compiles wrongly, hangs in, or does not survive.

use super::*;
use crate::recovery::losses;

/// The flags of a run that tests its kernels.
fn testing_run() -> Vec<String> {
    small_run().into_iter().filter(|flag| flag != NO_SELF_TEST).collect()
}

fn warnings(run: &Run) -> Vec<String> {
    let warnings = run.events.iter().filter(|event| event["event"] == "warning");
    warnings.map(|event| event["text"].as_str().unwrap().to_string()).collect()
}

/// Trains with a fault in kernels: `args` has the run, `way` the words of the warning about them. Checks
/// that it warns once and has the losses of `expected`, and that a second run knows the verdict.
fn check_avoided(args: &[String], fault: (&str, &str), expected: &Run, way: &[&str]) {
    assert!(expected.output.status.success(), "{}", expected.stderr());
    let cache = tempfile::tempdir().expect("a temporary folder");
    // A version of wgpt that had other kernels.
    let verdicts = cache.path().join("wgpt/kernels.json");
    std::fs::create_dir(cache.path().join("wgpt")).unwrap();
    std::fs::write(&verdicts, r#"{"a GPU, wgpt 0.0.1": "right"}"#).unwrap();
    for (number, is_tested) in [(1, true), (2, false)] {
        let start = Instant::now();
        let run = Run::with_cache(args, &[fault], cache.path());
        println!("{fault:?}, run {number}: {:?}", start.elapsed());
        assert!(run.output.status.success(), "{fault:?}\n{}", run.stderr());
        assert_eq!(losses(&run), losses(expected), "{fault:?}");
        assert_eq!(run.stderr().contains("testing the kernels"), is_tested, "{}", run.stderr());
        let warnings = warnings(&run);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        for word in way.iter().chain(&["driver", "`wgpt doctor --kernels`"]) {
            assert!(warnings[0].contains(word), "{fault:?}: no {word} in {}", warnings[0]);
        }
        assert!(!run.stderr().contains("panicked"), "{}", run.stderr());
    }
    let kept = std::fs::read_to_string(&verdicts).unwrap();
    assert!(kept.contains("llvmpipe") && !kept.contains("a GPU"), "{kept}");
    // A plan knows it, too.
    let planned = program(cache.path()).args(["plan", "--device=vulkan:0"]).args(args).output();
    let told = String::from_utf8_lossy(&planned.unwrap().stderr).into_owned();
    assert!(told.contains("so a run avoids these kernels"), "{told}");
}

#[test]
fn kernels_that_fail_are_replaced_by_tensor_operations() {
    let args = [testing_run(), vec!["--self-test-limit=40".to_string()]].concat();
    let right = Run::new(&args, &[]);
    assert_eq!(warnings(&right), [""; 0], "all kernels are right");
    let reference = [small_run(), vec!["--ops=reference".to_string()]].concat();
    let reference = Run::new(&reference, &[]);
    assert_ne!(losses(&reference), losses(&right), "the kernels round in another way");
    std::thread::scope(|scope| {
        for (fault, words) in [
            ("FAULT_WRONG_IN", "attention is off by"),
            ("FAULT_CRASH_IN", "the driver crashes in attention"),
            ("FAULT_HANG_IN", "the driver hangs in attention"),
        ] {
            let (args, reference) = (&args, &reference);
            scope.spawn(move || {
                let way = [words, "by tensor operations", "many times slower"];
                check_avoided(args, (fault, "attention"), reference, &way);
            });
        }
    });
    // A device that is lost once says nothing of its kernels.
    let lost = Run::new(&args, &[("FAULT_LOSE_SUBMIT", "2"), ("FAULT_ONCE", "lost")]);
    assert_eq!(losses(&lost), losses(&right), "{}", lost.stderr());
    assert_eq!(warnings(&lost), [""; 0]);
    assert!(lost.stderr().contains("testing the kernels"), "{}", lost.stderr());
    // Without a test the run trusts its kernels.
    let trusting = Run::new(&small_run(), &[("FAULT_WRONG_IN", "attention")]);
    assert_eq!(warnings(&trusting), [""; 0]);
    assert_ne!(losses(&trusting), losses(&right));
}

/// A device without memory says nothing of its kernels: neither is a verdict kept, nor are they blamed.
#[test]
fn kernels_that_cannot_be_tested_count_as_right() {
    for (refused, code, words) in [("1+", 4, "could not open"), ("2+", 5, "ran out of memory")] {
        let cache = tempfile::tempdir().expect("a temporary folder");
        let run = Run::with_cache(&testing_run(), &[("FAULT_REFUSE", refused)], cache.path());
        let said = run.stderr();
        assert_eq!(run.output.status.code(), Some(code), "{said}");
        assert!(said.contains("testing the kernels") && said.contains(words), "{said}");
        assert!(!said.contains("wgpt doctor"), "{said}");
        let folder = std::fs::read_dir(cache.path().join("wgpt")).into_iter().flatten().flatten();
        let kept: Vec<_> = folder.map(|file| file.file_name()).collect();
        assert!(!kept.iter().any(|name| name == "kernels.json"), "{kept:?}");
    }
}

/// A dtype that was asked for is kept: without cooperative matrices it is computed in tiles.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn matrices_that_fail_are_replaced_by_tiles() {
    // Software renderers compile larger heads for minutes.
    let half = ["--dtype=float16", "--n_head=4"].map(String::from).to_vec();
    let (args, trusting) = ([testing_run(), half.clone()].concat(), [small_run(), half].concat());
    let tiles = Run::new(&trusting, &[("FAULT_HIDE", "VK_KHR_cooperative_matrix")]);
    assert_ne!(losses(&tiles), losses(&Run::new(&trusting, &[])), "matrices round in another way");
    for (fault, words) in
        [("FAULT_WRONG_IN", "linear is off by"), ("FAULT_CRASH_IN", "the driver crashes in linear")]
    {
        let way = [words, "float16 without matrix units"];
        check_avoided(&args, (fault, "cooperative"), &tiles, &way);
    }
}
