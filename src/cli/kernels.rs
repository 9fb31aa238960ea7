//! `wgpt doctor --kernels`: compares every kernel of a device with the CPU's.

use serde::Serialize;
use serde_json::json;

use super::args::Global;
use super::find_model::select_device;
use crate::config::{Config, Cublas, Dtype};
use crate::gpu::DeviceKind;
use crate::ops::{KernelError, KernelShapes};
use crate::protocol::{Failure, KernelTests};
use crate::runs::kernel_verdicts;
use crate::worker::{TestEnd, Tested, test_kernels, time_limit};

/// A line of the table.
#[derive(Serialize)]
struct TestedKernel {
    dtype: Dtype,
    /// The library of the products; missing for wgpt's own kernels.
    #[serde(skip_serializing_if = "Option::is_none")]
    products: Option<&'static str>,
    kernel: String,
    /// The largest error and the allowed one, relative to the largest element; null if it computed
    /// values that are not finite, or ended in another way.
    error: Option<f64>,
    allowed: Option<f64>,
    /// `right`, or what is wrong.
    result: String,
}

/// Prints a row for each kernel as it is tested, or one JSON object at the end.
///
/// # Errors
/// If a kernel is not right.
pub(super) fn run(json: bool, global: &Global) -> Result<(), Failure> {
    let info = select_device(global)?.info;
    if info.kind == DeviceKind::Cpu {
        let text = "the CPU's kernels are the reference that others are compared with";
        return Err(Failure::usage(text, "name a GPU with --device; `wgpt devices` lists them"));
    }
    // A run tests them again, too: the driver may have been repaired.
    kernel_verdicts::forget(&info);
    let mut rows = Vec::new();
    let mut show = |row: TestedKernel| {
        if !json {
            output!("{}", line(&row));
        }
        rows.push(row);
    };
    if !json {
        output!("{} ({}), driver {}", info.name, info.id, info.driver);
    }
    let mode = global.ops()?;
    let limit = time_limit(&info, global.self_test().limit);
    let config = Config { bias: true, dropout: 0.1, ..Config::default() };
    let shapes = KernelShapes::from(&config);
    let dtypes = mode.abilities(&info).dtypes();
    let ways = dtypes.into_iter().flat_map(|dtype| Cublas::ALL.iter().map(move |it| (dtype, *it)));
    for (dtype, cublas) in ways {
        let mode = mode.with_products(cublas).for_run(dtype, &info)?;
        if cublas == Cublas::Auto && !mode.cublas {
            continue;
        }
        if !json {
            output!("\n{:<54} {:>8} {:>8}", mode.arithmetic(), "error", "allowed");
        }
        let mut tests = KernelTests::new(&info, mode, shapes);
        let products = mode.products().map(|library| library.name.as_str());
        let mut show = |row| show(TestedKernel { products, ..row });
        while let Some(first) = of_process(&tests, dtype, limit, &mut show)? {
            tests.first = first;
        }
    }
    let all = rows.len();
    let wrong = rows.iter().filter(|row| row.result != RIGHT).count();
    if json {
        let device = info.line();
        output!("{}", json!({ "device": device, "driver": info.driver, "kernels": rows }));
    }
    if wrong == 0 {
        return Ok(());
    }
    let text = format!("{wrong} of {all} kernels of {} failed the test", info.name);
    Err(Failure::new(text, "update the driver, and report this output; until then runs avoid them"))
}

const RIGHT: &str = "right";

/// Tests the kernels in a separate process. Returns the first check for the next process, if one
/// ended this one.
fn of_process(
    tests: &KernelTests,
    dtype: Dtype,
    limit: std::time::Duration,
    show: &mut dyn FnMut(TestedKernel),
) -> Result<Option<usize>, Failure> {
    let Tested { begun, check, end } = test_kernels(tests, limit, &mut |tested: &KernelError| {
        let KernelError { kernel, error, allowed } = tested.clone();
        let result = match (tested.is_right(), error) {
            (true, _) => RIGHT,
            (false, Some(_)) => "wrong",
            (false, None) => "not finite",
        };
        let (products, allowed, result) = (None, Some(allowed), result.into());
        show(TestedKernel { dtype, products, kernel, error, allowed, result });
    })?;
    let result = match end {
        TestEnd::Done => return Ok(None),
        TestEnd::Hung => format!("no answer within {} s", limit.as_secs()),
        TestEnd::Crashed => "the driver ended the process".into(),
        TestEnd::Failed(failure) => failure.text,
    };
    let (products, kernel) = (None, check);
    show(TestedKernel { dtype, products, kernel, error: None, allowed: None, result });
    Ok((begun > 0).then_some(tests.first + begun))
}

fn line(TestedKernel { kernel, error, allowed, result, .. }: &TestedKernel) -> String {
    let number = |value: &Option<f64>| value.map_or_else(String::new, |it| format!("{it:.1e}"));
    let result = if result == RIGHT { "" } else { result };
    format!("  {kernel:<52} {:>8} {:>8}  {result}", number(error), number(allowed))
        .trim_end()
        .to_string()
}
