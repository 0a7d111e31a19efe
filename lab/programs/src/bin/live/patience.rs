//! How a client connects and asks while the network or the server comes and goes.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use gimmal::{Client, Config, Instant, Reconnect};

/// From an answer to the harm, so that the answer is not lost with it.
pub(crate) const LEAD: Duration = Duration::from_millis(200);

/// Acts on a thread of its own, a lead from now.
pub(crate) fn later(act: impl FnOnce() + Send + 'static) {
    std::thread::spawn(move || {
        std::thread::sleep(LEAD);
        act();
    });
}

/// How long silence and a lost packet are borne.
#[derive(Debug, Clone, Args)]
pub(crate) struct Patience {
    /// `heartbeat_ms`.
    #[arg(long, default_value_t = 1000)]
    pub(crate) heartbeat_ms: u32,
    /// ACK timeout exponent; the device gives up after about 8 times that.
    #[arg(long)]
    ack_timeout: Option<u8>,
}

impl Patience {
    /// When a death should be reported; the host lives on for the lead.
    pub(crate) fn wanted(&self) -> Duration {
        Duration::from_millis(self.heartbeat_ms.into()).saturating_add(LEAD)
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        config.engine.heartbeat_ms = self.heartbeat_ms;
        if self.ack_timeout.is_some() {
            config.engine.connect.ack_timeout = self.ack_timeout;
            config.engine.listen.ack_timeout = self.ack_timeout;
        }
        config.deadline = Duration::from_secs(30);
        config.reconnect = Some(Reconnect {
            max: Duration::from_millis(400),
            attempt: Duration::from_secs(1),
            ..Reconnect::default()
        });
        config
    }
}

/// An answer to what may be asked twice: a stall ends an impatient connection, too.
pub(crate) fn ask<T, E: std::fmt::Debug>(question: impl Fn() -> Result<T, E>) -> anyhow::Result<T> {
    let started = Instant::now();
    loop {
        match question() {
            Ok(answer) => return Ok(answer),
            Err(error) => ensure!(started.elapsed() < Duration::from_secs(30), "{error:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Where this process begins to number its calls: the server remembers those of earlier ones.
pub(crate) fn first_number() -> u64 {
    u64::from(std::process::id()) << 32
}

/// Connects; the server may be starting.
pub(crate) fn connect(address: &str, patience: &Patience) -> anyhow::Result<Client> {
    let started = Instant::now();
    loop {
        match Client::builder().config(patience.config()).connect(address) {
            Ok(client) => return Ok(client),
            Err(error) if started.elapsed() > Duration::from_secs(30) => {
                return Err(error).with_context(|| format!("connecting to {address}"));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}
