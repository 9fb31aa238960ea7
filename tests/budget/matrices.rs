//! Tests the kernels that a driver gets from a run on cooperative matrices.

use super::*;

/// The losses are the same whether kernels compute the numbers of their subgroups or read them.
#[test]
#[ignore = "needs an adapter with cooperative matrices: scripts/lavapipe.sh"]
fn matrices_reach_the_driver_without_data_races() {
    let learning = ["--dtype=float16", "--warmup_iters=0", "--learning_rate=0.01"];
    let args = [small_run(), learning.map(String::from).to_vec()].concat();
    let losses = |faults: &[(&str, &str)]| {
        let run = Run::new(&args, faults);
        assert!(run.output.status.success(), "{}", run.stderr());
        let [matrices, unmarked] =
            ["matrices", "unmarked"].map(|count| run.counted[count].as_u64().unwrap());
        println!("{faults:?}: {matrices} modules with matrices, {unmarked} unmarked");
        assert!(matrices > 5 && unmarked == 0, "{}", run.counted);
        recovery::losses(&run)
    };
    // lavapipe's subgroups have 8 invocations.
    let of_one_size = losses(&[]);
    let of_any_size = losses(&[("FAULT_SUBGROUP", "4")]);
    assert_eq!(of_one_size.len(), of_any_size.len());
    for ((iter, one), (_, any)) in of_one_size.into_iter().zip(of_any_size) {
        assert!((one - any).abs() < 1e-3 * one, "{iter}: {one}, {any}");
    }
}
