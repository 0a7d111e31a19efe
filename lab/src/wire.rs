//! The wire of a guest's network card, which the guest can ask to have pulled out and put back: it writes `down` or `up`
//! into `$GIMMAL_LAB_WIRE`. The card then has no carrier and the RDMA port on it is down, while the addresses and
//! routes stay, as with a pulled cable. Only QEMU can do that; it is told through its control socket (QMP).

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};

/// The guest's wish, in its `ctl/`.
pub(crate) const WISH: &str = "wire";
/// QEMU's control socket, in the guest's folder.
pub(crate) const SOCKET: &str = "qmp";
/// QEMU's name of the wire.
pub(crate) const NETDEV: &str = "net";

const LIMIT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Down,
    Up,
}

/// The wire of one guest.
#[derive(Debug)]
pub(crate) struct Wire {
    folder: PathBuf,
    state: State,
}

impl Wire {
    /// Of the guest that works in `folder`.
    pub(crate) fn new(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), state: State::Up }
    }

    /// Does what the guest asked for since the last time.
    pub(crate) fn follow(&mut self) -> Result<()> {
        let Some(wish) =
            fs::read_to_string(self.folder.join("ctl").join(WISH)).ok().and_then(|text| wish(&text))
        else {
            return Ok(());
        };
        if wish != self.state {
            let mut socket =
                UnixStream::connect(self.folder.join(SOCKET)).context("QEMU's control socket")?;
            socket.set_read_timeout(Some(LIMIT))?;
            socket.write_all(commands(wish).as_bytes())?;
            answers(BufReader::new(socket))?;
            self.state = wish;
        }
        Ok(())
    }
}

/// A file that is being written may be empty.
fn wish(text: &str) -> Option<State> {
    match text.trim() {
        "down" => Some(State::Down),
        "up" => Some(State::Up),
        _ => None,
    }
}

fn commands(wish: State) -> String {
    format!(
        "{{\"execute\":\"qmp_capabilities\"}}\n\
         {{\"execute\":\"set_link\",\"arguments\":{{\"name\":\"{NETDEV}\",\"up\":{}}}}}\n",
        wish == State::Up
    )
}

/// One for each command; greeting and events come between them.
fn answers(lines: impl BufRead) -> Result<()> {
    let mut done = 0;
    for line in lines.lines() {
        let line = line.context("QEMU does not answer")?;
        ensure!(!line.starts_with("{\"error\""), "QEMU refused to change the link: {line}");
        done += usize::from(line.starts_with("{\"return\""));
        if done == 2 {
            return Ok(());
        }
    }
    anyhow::bail!("QEMU hung up after {done} of 2 answers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_wishes_count() {
        assert_eq!(wish("down\n"), Some(State::Down));
        assert_eq!(wish("up"), Some(State::Up));
        for other in ["", "do", "{\"execute\":\"quit\"}"] {
            assert_eq!(wish(other), None, "{other:?}");
        }
    }

    #[test]
    fn every_command_is_answered() {
        assert_eq!(commands(State::Down).lines().count(), 2);
        let greeting = "{\"QMP\": {}}\r\n{\"return\": {}}\r\n{\"event\": \"NIC_RX_FILTER_CHANGED\"}\r\n";
        assert!(answers(format!("{greeting}{{\"return\": {{}}}}\r\n").as_bytes()).is_ok());
        assert!(answers(greeting.as_bytes()).is_err());
        assert!(answers(format!("{greeting}{{\"error\": {{\"desc\": \"x\"}}}}\r\n").as_bytes()).is_err());
    }
}
