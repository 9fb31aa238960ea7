use wgpt::bench::TrainingStep;
use wgpt::config::{self, Layer};
use wgpt::gpu;
use wgpt::ops::OpsMode;
fn main() {
    let device = gpu::open("vulkan:0".parse().unwrap()).unwrap().device;
    let args: Vec<String> = std::env::args().skip(1).collect();
    for spec in args {
        // preset,key=value,...
        let mut parts = spec.split(',');
        let preset = parts.next().unwrap();
        let flags: Vec<(String, String)> = parts
            .map(|p| {
                let (k, v) = p.split_once('=').unwrap();
                (k.to_string(), v.to_string())
            })
            .collect();
        let c = config::resolve(vec![Layer::preset(preset).unwrap(), Layer::flags(flags).unwrap()])
            .unwrap()
            .config;
        let m0 = gpu::memory(&device).unwrap();
        let f = wgpt::plan::plan(
            &c,
            50257,
            &wgpt::plan::Limits { budget: None, largest_tensor: Some(128 << 20), pools: true },
        )
        .unwrap();
        println!(
            "predicted {:.1} slack {:.1} largest {:.1}",
            f.predicted_bytes as f64 / 1048576.,
            f.class(wgpt::plan::Class::Slack) as f64 / 1048576.,
            f.largest_tensor as f64 / 1048576.
        );
        gpu::size_pages(&device, f.largest_tensor);
        let mut step = TrainingStep::planned(&device, &c, &f.plan, OpsMode::Auto);
        let m1 = gpu::memory(&device).unwrap();
        let (_, p1) = gpu::dry_run(&device, || step.step());
        let m2 = gpu::memory(&device).unwrap();
        let (_, p2) = gpu::dry_run(&device, || step.step());
        let m3 = gpu::memory(&device).unwrap();
        let mib = |b: u64| b as f64 / 1048576.0;
        println!(
            "{spec}: start {:.1}/{:.1} static {:.1}/{:.1} peak {:.1} reserved {:.1}; second peak {:.1} reserved {:.1} ratio {:.3}",
            mib(m0.in_use),
            mib(m0.reserved),
            mib(m1.in_use),
            mib(m1.reserved),
            mib(p1),
            mib(m2.reserved),
            mib(p2),
            mib(m3.reserved),
            m3.reserved as f64 / p2 as f64
        );
        drop(step);
        gpu::release_unused(&device);
    }
}
