//! The use of the CPUs by other programs while something is measured.

use std::time::Instant;

use sysinfo::{CpuRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// Watches the CPUs from its creation on.
pub struct OtherPrograms {
    /// `None` if the system does not tell.
    system: Option<(System, Pid)>,
    since: Instant,
    /// The milliseconds that this process had spent on all CPUs by then.
    own: u64,
}

impl Default for OtherPrograms {
    fn default() -> Self {
        let system = System::new().ok().zip(sysinfo::get_current_pid().ok());
        let mut new = Self { system, since: Instant::now(), own: 0 };
        new.share();
        new
    }
}

impl OtherPrograms {
    /// Returns the share of all CPUs that other programs have used since the last call, 0 if the system does not
    /// tell.
    pub fn share(&mut self) -> f64 {
        let Some((system, pid)) = &mut self.system else { return 0.0 };
        let cpu_time = ProcessRefreshKind::nothing().with_cpu();
        system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_usage());
        system.refresh_processes_specifics(ProcessesToUpdate::Some(&[*pid]), false, cpu_time);
        let took = std::mem::replace(&mut self.since, Instant::now()).elapsed();
        let now = system.process(*pid).map_or(0, |process| process.accumulated_cpu_time());
        let own = now.saturating_sub(std::mem::replace(&mut self.own, now));
        let possible = took.as_secs_f64() * 1e3 * system.cpus().len() as f64;
        others(f64::from(system.global_cpu_usage()) / 100.0, own as f64 / possible.max(1.0))
    }
}

/// Returns what is left of the share in use without this process's own.
fn others(used: f64, own: f64) -> f64 {
    (used - own).clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_this_process_does_not_count() {
        assert_eq!(others(0.75, 0.5), 0.25);
        assert_eq!(others(0.49, 0.5), 0.0);
        let mut programs = OtherPrograms::default();
        let before = programs.own;
        let start = Instant::now();
        // The system counts in steps of 10 ms.
        while programs.own < before + 50 {
            assert!(start.elapsed().as_secs() < 60, "{} ms", programs.own);
            std::hint::black_box((0..1_000_000u64).sum::<u64>());
            assert!((0.0..=1.0).contains(&programs.share()));
        }
    }
}
