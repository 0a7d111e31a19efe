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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_and_each_shell_its_completions() {
        let folder = tempfile::tempdir().unwrap();
        let command = clap::Command::new("some").subcommand(clap::Command::new("thing"));
        write(command, folder.path()).unwrap();
        for name in ["some.1", "some-thing.1", "some.bash", "some.fish", "_some"] {
            assert!(folder.path().join(name).is_file(), "{name}");
        }
        assert!(!folder.path().join("some-help.1").exists(), "help is no command of ours");
    }
}
