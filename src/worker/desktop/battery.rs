//! The power supply of a laptop.

use starship_battery::{Manager, State};

/// Returns true if the computer runs on its battery, which may be nearly empty. A system that does not tell is plugged in.
pub(super) fn in_use() -> bool {
    let batteries = Manager::new().and_then(|manager| manager.batteries());
    let Ok(batteries) = batteries else { return false };
    let mut states = batteries.flatten().map(|battery| battery.state());
    states.any(|state| matches!(state, State::Discharging | State::Empty))
}
