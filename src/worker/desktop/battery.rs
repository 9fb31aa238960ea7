//! The power supply of a laptop.

use starship_battery::{Manager, State};

/// Returns true if the computer runs on its battery. A system that does not tell has a plug.
pub(super) fn in_use() -> bool {
    let batteries = Manager::new().and_then(|manager| manager.batteries());
    let Ok(batteries) = batteries else { return false };
    batteries.flatten().any(|battery| battery.state() == State::Discharging)
}
