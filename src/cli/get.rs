//! `wgpt get`: the only command that opens a connection.

use std::io::IsTerminal;

use super::activity::bar;
use super::args::{GetArgs, Global};
use super::next::after_get;
use super::terminal::{draws, unwrapped};
use crate::hub::{CatalogRow, Download, Offer, UNASKED, catalog};
use crate::protocol::Failure;
use crate::text::{bytes, bytes_of};
use crate::worker::signals;

pub(super) fn run(args: GetArgs, global: &Global) -> Result<(), Failure> {
    let Some(name) = args.name.filter(|_| !args.list) else {
        list();
        return Ok(());
    };
    let download: Download = name.parse()?;
    signals::listen(|signal| {
        message!("stopped: the same command continues from here");
        signals::exit(128 + signal);
    })?;
    let offer = Offer::of(download)?;
    let all = offer.bytes();
    let missing = offer.missing();
    if !global.quiet {
        let size = all.map_or_else(|| "size unknown".into(), bytes);
        let licence = offer.licence.as_deref().unwrap_or("unknown, see its page");
        message!("{}, {size}, licence: {licence}", offer.title());
        if let (Some(all), Some(missing)) = (all, missing)
            && missing < all
        {
            message!("{} of it is here already", bytes(all - missing));
        }
    }
    offer.check_room()?;
    if !args.yes && missing.is_some_and(|missing| missing > UNASKED) {
        confirm(missing.unwrap_or(0))?;
    }
    let template = match all {
        Some(_) => "[{bar:12}] {percent}%, {eta} left, {wide_msg}",
        None => "{spinner} {bytes_per_sec}, {wide_msg}",
    };
    let bar = bar(global.quiet, all.unwrap_or(0), template);
    let is_drawn = draws(&std::io::stderr());
    let mut current = String::new();
    let mut show = |file: &str, done: u64| {
        if current != file {
            current = file.to_string();
            if !is_drawn && !global.quiet {
                message!("fetching {file}");
            }
            // Bytes that were here before say nothing about the speed.
            bar.reset_eta();
        }
        bar.set_position(done);
        let amount = all.map_or_else(|| bytes(done), |all| bytes_of(done, all));
        bar.set_message(format!("{amount}, {file}"));
    };
    let most = if args.yes { u64::MAX } else { UNASKED };
    let fetched = offer.fetch(most, &mut show);
    bar.finish_and_clear();
    let fetched = fetched?;
    output!("{fetched}");
    if !global.quiet {
        unwrapped(&after_get(&fetched));
    }
    Ok(())
}

/// Asks whether to fetch this many bytes. It is an error if nobody can answer.
fn confirm(missing: u64) -> Result<(), Failure> {
    let size = bytes(missing);
    let hint = "add --yes to fetch it";
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::usage(format!("this fetches {size}, which needs your consent"), hint));
    }
    message!("fetch {size}? [y/N]");
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    if read.is_ok() && ["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
        return Ok(());
    }
    Err(Failure::usage("nothing was fetched", hint))
}

fn list() {
    for is_model in [false, true] {
        output!("{}", if is_model { "\nmodels" } else { "texts" });
        for row in catalog().filter(|row| row.is_model == is_model) {
            let CatalogRow { name, language, size, licence, good_for, .. } = row;
            output!("  {name}");
            output!("      {language}, {size}, {licence}; good for {good_for}");
        }
    }
}
