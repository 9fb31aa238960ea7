//! `wgpt man`: the manual pages that packages install.

use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use super::args::Arguments;
use crate::protocol::Failure;
use crate::version::VERSION;

/// Runs `wgpt man`: writes a page for wgpt and one for each of its commands.
pub(super) fn run(folder: &Path) -> Result<(), Failure> {
    std::fs::create_dir_all(folder).map_err(Failure::file(folder))?;
    for (name, page) in pages().map_err(Failure::file(folder))? {
        let file = folder.join(name);
        std::fs::write(&file, page).map_err(Failure::file(&file))?;
    }
    Ok(())
}

/// Returns the pages with the names of their files.
fn pages() -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    let mut pages = Vec::new();
    collect(&command, &mut pages)?;
    Ok(pages)
}

fn collect(command: &Command, pages: &mut Vec<(String, Vec<u8>)>) -> io::Result<()> {
    let man = Man::new(command.clone()).source(format!("wgpt {VERSION}")).manual("wgpt");
    pages.push((man.get_filename(), page(command, &man)?));
    visible(command).try_for_each(|command| collect(command, pages))
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set())
}

/// Returns a page. clap_mangen would join the lines of examples into a paragraph.
fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if visible(command).next().is_some() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(examples) = command.get_after_help() {
        let examples = examples.to_string();
        let mut lines = examples.lines();
        let title = lines.next().unwrap_or_default().trim_end_matches(':').to_uppercase();
        let mut section = Roff::new();
        section.control("SH", [title.as_str()]).control("nf", []);
        for line in lines {
            section.text([roman(line)]);
        }
        section.control("fi", []).to_writer(&mut page)?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_page_with_its_examples() {
        let pages = pages().unwrap();
        let text = |name: &str| {
            let page = pages.iter().find(|(file, _)| file == name);
            String::from_utf8(page.unwrap_or_else(|| panic!("no {name}")).1.clone()).unwrap()
        };
        let whole = text("wgpt.1");
        assert!(whole.contains(&format!("wgpt {VERSION}")) && whole.contains("wgpt\\-train(1)"));
        let train = text("wgpt-train.1");
        for part in [".SH NAME", ".SH SYNOPSIS", ".SH OPTIONS", "n_layer", ".SH EXAMPLES\n.nf\n"] {
            assert!(train.contains(part), "no {part}:\n{train}");
        }
        assert!(text("wgpt-config-show.1").contains(".SH NAME"));
        assert!(!pages.iter().any(|(name, _)| name.contains("worker")), "wgpt worker is hidden");
        assert!(!train.contains('\u{1b}') && !train.contains("no\\-supervise"));
    }
}
