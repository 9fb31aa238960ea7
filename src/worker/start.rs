//! Starts a run: resolves its settings, prefers what is recorded, and limits its plan.

use std::io::ErrorKind;
use std::path::Path;

use crate::config::{Config, InitFrom, Layer, resolve};
use crate::disk;
use crate::ops::OpsMode;
use crate::protocol::{Failure, RunSettings, StartRun};
use crate::runs::{self, CONFIG_FILE, has_checkpoint};
use crate::train::TrainRequest;

impl StartRun {
    /// Replaces typed settings by the resolved configuration. Returns the warnings about them.
    pub fn resolve(&mut self) -> Result<Vec<String>, Failure> {
        let RunSettings::Typed(source) = &self.settings else { return Ok(Vec::new()) };
        let resolved = source.clone().resolve(Vec::new(), None)?;
        let plans_schedule = !resolved.sets_length();
        let config = Box::new(resolved.config);
        self.settings = RunSettings::Resolved { config, plans_schedule };
        Ok(resolved.warnings)
    }

    /// Returns the configuration of the run: the resolved one, or that of its folder if it has one.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn config(&self) -> Option<Config> {
        match &self.settings {
            RunSettings::Resolved { config, .. } => Some(Config::clone(config)),
            _ => runs::config(&self.run),
        }
    }

    /// Returns the request to train in this process, and the warnings about its settings.
    pub fn into_request(mut self) -> Result<(TrainRequest, Vec<String>), Failure> {
        let warnings = self.resolve()?;
        // A former worker has written its configuration before its first checkpoint.
        let continues = self.is_restart && has_checkpoint(&self.run);
        let (config, plans_schedule) = match self.settings {
            RunSettings::Resolved { config, .. } if continues => {
                // `eval_only` is for one start of the run and is not recorded.
                let eval_only = config.eval_only;
                (Config { eval_only, ..recorded(&self.run)? }, false)
            }
            RunSettings::Resolved { config, plans_schedule } => (*config, plans_schedule),
            RunSettings::Recorded | RunSettings::Typed(_) => (recorded(&self.run)?, false),
        };
        if cfg!(target_arch = "wasm32") && config.may_stand_by() {
            let text = "hours and priority=background: a web page cannot wait for them";
            return Err(Failure::usage(text, "leave them out, or use wgpt on the desktop"));
        }
        let resume = self.resume || continues || config.init_from == InitFrom::Resume;
        let request = TrainRequest {
            run: self.run,
            resume,
            mode: OpsMode::of(self.implementation).with_products(config.cublas),
            config,
            plans_schedule,
            // A worker that was restarted has recorded its decay.
            decay: self.decay.filter(|_| !self.is_restart),
            elapsed: self.elapsed,
            shares: self.shares,
            max_plan: self.max_plan,
            makes_way: self.makes_way,
            has_made_way: self.has_made_way,
        };
        Ok((request, warnings))
    }
}

/// Reads the configuration that a run has recorded.
fn recorded(run: &Path) -> Result<Config, Failure> {
    let path = run.join(CONFIG_FILE);
    let text = match disk::read_own_text(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(Failure::no_checkpoint(run));
        }
        text => text.map_err(Failure::io("read", &path))?,
    };
    Ok(resolve(vec![Layer::toml(&path.display().to_string(), &text)?])?.config)
}
