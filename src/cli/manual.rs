//! Shell completions and manual pages, both made of the command line's own definition.

use std::io::Write;
use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Command};
use clap_complete::Shell;
use rullama_train::files;

use super::show;

/// For which shell.
#[derive(Args)]
pub struct CompletionsArgs {
    /// The shell that is to read them.
    shell: Shell,
}

/// Where to.
#[derive(Args)]
pub struct ManArgs {
    /// Write one page a command into this folder, such as ~/.local/share/man/man1; unset, the program's own goes to stdout.
    dir: Option<PathBuf>,
}

/// Prints what a shell reads to complete our commands.
pub fn completions(mut command: Command, args: &CompletionsArgs) {
    let (name, mut script) = (command.get_name().to_string(), Vec::new());
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    // Where nobody reads it any more, there is nobody to tell.
    let _ = std::io::stdout().write_all(&script);
}

/// Prints the manual page, or writes that of every command.
pub fn man(mut command: Command, args: &ManArgs) -> Result<()> {
    command.build();
    let Some(dir) = &args.dir else {
        let _ = std::io::stdout().write_all(&page(command)?);
        return Ok(());
    };
    files::check_folder(dir)?;
    let verbs: Vec<Command> = command.get_subcommands().filter(|v| v.get_name() != "help").cloned().collect();
    let mut pages = Vec::new();
    for page_of in std::iter::once(command).chain(verbs) {
        let name = page_of.get_display_name().unwrap_or(page_of.get_name()).to_string();
        pages.push((format!("{name}.1"), page(page_of)?));
    }
    let pages: Vec<(&str, &[u8])> = pages.iter().map(|(name, page)| (name.as_str(), &page[..])).collect();
    files::write_folder(dir, &pages)?;
    show::line("written", format_args!("{} into {}", show::count(pages.len(), "page"), dir.display()));
    Ok(())
}

fn page(command: Command) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
