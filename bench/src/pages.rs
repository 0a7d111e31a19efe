//! The manual pages of the program and the completions of the shells, as packages want them: made of the command line.

use std::{fs, io, path::Path};

use clap_complete::{Shell, generate_to};

/// Writes them to `folder`.
pub(crate) fn write(mut command: clap::Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let name = command.get_name().to_owned();
    // First: making completions adds the command `help`, which needs no page.
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), folder)?;
    for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
        generate_to(shell, &mut command, &name, folder)?;
    }
    Ok(())
}
