//! What is to be measured: the client makes it, and its first message tells the server.

use std::fmt;

use clap::ValueEnum;
use gimmal_engine::{Config, Head, Idle, Plan as EnginePlan};
use serde::{Deserialize, Serialize};

use crate::error::BenchError;

/// How the bytes travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProviderName {
    /// Shared memory between two processes of one host.
    Shm,
    /// TCP sockets.
    Tcp,
    /// The RDMA CM and verbs.
    Verbs,
}

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Messages of the engine.
    Engine,
    /// Calls of a raw method.
    Rpc,
    /// Raw calls without a handle for each, told apart by tags. Inline.
    Pipeline,
    /// Calls of a typed method, through the codec.
    Typed,
}

/// The kind of client.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The calling thread; nobody sleeps.
    Inline,
    /// The calling thread, and both sides sleep as soon as they have nothing to do.
    Asleep,
    /// A worker on a thread of its own; who has nothing to do sleeps in the end.
    Handoff,
}

macro_rules! named {
    ($($type:ident { $($variant:ident = $name:literal),+ })+) => {$(
        impl $type {
            /// Its name, as on the command line.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    )+};
}

named! {
    ProviderName { Shm = "shm", Tcp = "tcp", Verbs = "verbs" }
    Layer { Engine = "engine", Rpc = "rpc", Pipeline = "pipeline", Typed = "typed" }
    Mode { Inline = "inline", Asleep = "asleep", Handoff = "handoff" }
}

impl Mode {
    /// How a side without a worker thread waits.
    pub(crate) const fn idle(self) -> Idle {
        match self {
            Self::Asleep => Idle::Event,
            Self::Inline | Self::Handoff => Idle::Spin,
        }
    }
}

/// The first message.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// What is measured.
    pub layer: Layer,
    /// The kind of client.
    pub mode: Mode,
    /// Bytes of one body, each way.
    pub bytes: usize,
    /// Calls outstanding, of all threads.
    pub window: usize,
    /// Threads that call, handed off.
    pub threads: usize,
    /// Bytes of one loan, for what is measured with loans.
    #[serde(default)]
    pub block: usize,
    /// Whether every byte of an answer is looked at.
    #[serde(default)]
    pub verify: bool,
    /// Whether more connections come while it is measured.
    #[serde(default)]
    pub keeps_accepting: bool,
    /// The client's core.
    pub client_core: usize,
    /// The server's core.
    pub server_core: usize,
    /// Whether both are on one host, so that the cores mean the same machine.
    pub same_host: bool,
}

/// A plan, or the answer to it: [`ACCEPTED`] and where its layer is served, or why not.
pub const PLAN: u16 = 1;
/// What the answer to a good plan begins with.
pub const ACCEPTED: char = '+';
/// To be sent back.
pub const ECHO: u16 = 2;
/// With a loan, of which the first word is read; answered with [`READ`].
pub const TOUCH: u16 = 3;
/// With a loan, of which every byte is read; answered with [`READ`].
pub const WHOLE: u16 = 4;
/// What was read: the sum in eight bytes.
pub const READ: u16 = 5;

/// What the server answered: where the plan's layer is served (empty: on this connection).
///
/// # Errors
/// [`BenchError::Refused`].
pub fn parse_answer(answer: &[u8]) -> Result<String, BenchError> {
    let text = String::from_utf8_lossy(answer);
    match text.strip_prefix(ACCEPTED) {
        Some(url) => Ok(url.to_owned()),
        None => Err(BenchError::Refused(text.into_owned())),
    }
}

/// The header of a message of `kind` with `aux`.
#[must_use]
pub const fn head(kind: u16, aux: u64) -> Head {
    Head { kind, aux }
}

/// The engine's configuration for bodies of `bytes`, with rings of at least `ring_bytes` (0: the default).
#[must_use]
pub fn engine_config(bytes: usize, ring_bytes: u32, idle: Idle) -> Config {
    let mut config = Config { idle, ..Config::default() };
    let least = if ring_bytes == 0 { config.port.ring_bytes } else { ring_bytes };
    config.port.ring_bytes = ring_for(bytes, least);
    // Between its slices a side does not turn, and is not dead.
    config.port.attended = false;
    // The other end is this program too, whose bodies may be large.
    config.port.peer_ring_bytes_max = 1 << 31;
    config.port.slot_bytes = config.port.slot_bytes.min(config.port.ring_bytes / 4);
    config
}

/// Validates the engine's configuration for bodies of `bytes`.
///
/// # Errors
/// [`BenchError::Config`].
pub fn engine_plan(bytes: usize, ring_bytes: u32, idle: Idle) -> Result<EnginePlan, BenchError> {
    Ok(engine_config(bytes, ring_bytes, idle).validate()?)
}

/// The ring whose frames hold a body of `bytes`: four times that and the headers, at least `least` bytes.
#[must_use]
pub fn ring_for(bytes: usize, least: u32) -> u32 {
    let needed = bytes.saturating_add(64).saturating_mul(4);
    u32::try_from(needed).ok().and_then(u32::checked_next_power_of_two).unwrap_or(1 << 31).max(least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_hold_four_frames() {
        assert_eq!(ring_for(64, 256 << 10), 256 << 10);
        assert_eq!(ring_for(64 << 10, 256 << 10), 512 << 10);
        assert_eq!(engine_config(64, 0, Idle::Spin).port.ring_bytes, 256 << 10);
        assert_eq!(engine_config(64, 16 << 10, Idle::Spin).port.ring_bytes, 16 << 10);
        assert!(engine_plan(64, 16 << 10, Idle::Spin).is_ok());
        assert!(engine_plan(1 << 20, 0, Idle::Spin).is_ok());
        assert_eq!(engine_plan(1 << 40, 0, Idle::Spin).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn a_plan_survives_the_wire() {
        let plan = Plan {
            layer: Layer::Engine,
            mode: Mode::Handoff,
            bytes: 64,
            window: 1,
            threads: 1,
            block: 0,
            verify: false,
            keeps_accepting: false,
            client_core: 0,
            server_core: 1,
            same_host: true,
        };
        let text = serde_json::to_vec(&plan).unwrap();
        assert_eq!(serde_json::from_slice::<Plan>(&text).unwrap(), plan);
    }
}
