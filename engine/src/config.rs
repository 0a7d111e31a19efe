//! What a worker is told, and the sums that make it true.

use std::fmt;

use gimmal_transport::{
    ConnectOptions, ListenOptions, PortConfig,
    frame::{FRAME_WORD_BYTES, span},
    key::KEYS_MAX,
};

use crate::{
    error::ConfigError,
    place::{Placed, Placement},
    proto::{
        ledger::hold_receives,
        window::{CONTROL_ARRIVALS, CONTROL_SPAN, NEXT_WORD},
        wire::CONTROL_BYTES,
    },
    worker::Idle,
};

/// How the engine runs. Every field has a section in `tuning.md`.
#[derive(Clone, PartialEq, Debug)]
pub struct Config {
    /// Sizes of ports and connections.
    pub port: PortConfig,
    /// How to connect.
    pub connect: ConnectOptions,
    /// How to listen.
    pub listen: ListenOptions,
    /// Poll threads of [`Workers`](crate::Workers), 1 to 256. Default 1.
    pub workers: usize,
    /// Which cores they run on. Default [`Placement::Free`]: not pinned.
    pub placement: Placement,
    /// What a worker does when a turn found nothing. Default [`Idle::Adaptive`](crate::Idle).
    pub idle: Idle,
    /// Events one poll may bring, 1 to 4096: bounds a turn. Default 64.
    pub batch: usize,
    /// Commands of other threads that wait for a worker, 1 to 2^20: calls and streams that start, connections that come. One more is
    /// refused, and did not run. Default 1024.
    pub inbox: usize,
    /// Accepted connections that may be in their handshake at once, 1 to 65,536; one more waits, at most until the
    /// oldest is late. Default 128.
    pub handshakes_max: usize,
    /// Connections that the workers of a listener may have at once, its own and others together; one more is refused.
    /// 0: as many as their ports hold (`port.connections` each). Default 0.
    pub accepted_max: usize,
    /// Within this time a peer that went silent is reported, ms: 0 (never) or 10 to 3,600,000. Default 5000.
    pub heartbeat_ms: u32,
    /// How much of a connection's receive ring, or of its receives, held frames may keep from the peer, percent: 0 (held
    /// frames are always copied) to 50. Default 25.
    pub hold_percent: u8,
    /// Whether the peer's credit is obeyed. Off only in the test that shows what credit is for.
    #[doc(hidden)]
    pub enforce_credit: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            port: PortConfig::default(),
            connect: ConnectOptions::default(),
            listen: ListenOptions::default(),
            workers: 1,
            placement: Placement::Free,
            idle: Idle::default(),
            batch: 64,
            inbox: 1024,
            handshakes_max: 128,
            accepted_max: 0,
            heartbeat_ms: 5000,
            hold_percent: 25,
            enforce_credit: true,
        }
    }
}

/// A configuration that was proved to work; the only thing the engine takes.
#[derive(Clone, PartialEq, Debug)]
pub struct Plan {
    config: Config,
    placed: Placed,
}

impl Config {
    /// Proves the sums.
    ///
    /// # Errors
    /// [`ConfigError`] names the first field that cannot be.
    #[doc(hidden)]
    pub fn validate(self) -> Result<Plan, ConfigError> {
        let field = |field, value: u64, rule| Err(ConfigError::Field { field, value, rule });
        if let Some((name, value, rule)) = self.port.flaw() {
            return field(name, value, rule);
        }
        if !(1..=256).contains(&self.workers) {
            return field("workers", self.workers as u64, "1 to 256");
        }
        if let Placement::Cores(cores) = &self.placement
            && cores.len() < self.workers
        {
            return field("placement", cores.len() as u64, "one core for each worker");
        }
        if !(1..=4096).contains(&self.batch) {
            return field("batch", self.batch as u64, "1 to 4096");
        }
        if !(1..=1 << 20).contains(&self.inbox) {
            return field("inbox", self.inbox as u64, "1 to 1,048,576");
        }
        if !(1..=1 << 16).contains(&self.handshakes_max) {
            return field("handshakes_max", self.handshakes_max as u64, "1 to 65,536");
        }
        if self.listen.keys.len() > KEYS_MAX {
            return field("listen.keys", self.listen.keys.len() as u64, "at most 8");
        }
        if let Some((field, value, rule)) = self.connect.flaw().or_else(|| self.listen.flaw()) {
            return Err(ConfigError::Time { field, value, rule });
        }
        if self.heartbeat_ms != 0 && !(10..=3_600_000).contains(&self.heartbeat_ms) {
            return field("heartbeat_ms", self.heartbeat_ms.into(), "0, or 10 to 3,600,000");
        }
        if self.hold_percent > 50 {
            return field("hold_percent", self.hold_percent.into(), "0 to 50");
        }
        let device = self.listen.device.as_ref().or(self.connect.device.as_ref());
        let placed = self.placement.place(self.workers, device.map(|choice| &*choice.device))?;
        Ok(Plan { config: self, placed })
    }
}

/// What an idle connection that shares its receives has beside them, bytes: its halves of port and engine, its share of lists.
/// `engine/examples/sharing.rs` measures what a process grows by, all of it together.
const IDLE_TABLES: u64 = 6 << 10;

/// Bytes that a connection receives into: a ring, or its mirror in shared memory, or slots over send/recv with one for the goodbye.
fn receive_bytes(port: &PortConfig) -> u64 {
    let slots = (u64::from(port.arrivals) + 1) * u64::from(port.slot_bytes) + FRAME_WORD_BYTES as u64;
    slots.max(port.ring_bytes.into())
}

/// Bytes that one peer can make a port keep: the ring that we send from, what we receive into, loans that it does not read, and
/// its bulk that we pulled.
fn peer_bytes(port: &PortConfig) -> u64 {
    let ring = u64::from(port.peer_ring_bytes_max.max(port.ring_bytes));
    port.loan_bytes_max.saturating_add(ring + receive_bytes(port))
}

/// A quarter of the smallest ring holds the largest control burst beside a frame.
const _: () = assert!(CONTROL_SPAN + NEXT_WORD + span(CONTROL_BYTES) as u64 <= 4096 / 4);

impl Plan {
    /// The configuration it was made from.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// One for each worker; empty: not pinned.
    pub(crate) fn cores(&self) -> &[usize] {
        &self.placed.cores
    }

    /// Connections of all workers.
    fn connections(&self) -> u64 {
        let all = self.config.workers as u64 * u64::from(self.config.port.connections);
        let most = self.config.accepted_max as u64;
        if most == 0 { all } else { all.min(most) }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let port = &self.config.port;
        let arrivals = u64::from(port.arrivals);
        writeln!(
            f,
            "ring               {} bytes = frames {} + control {CONTROL_SPAN} + next word {NEXT_WORD}",
            port.ring_bytes,
            u64::from(port.ring_bytes) - CONTROL_SPAN - NEXT_WORD
        )?;
        writeln!(f, "frame              at most {} bytes = ring / 4", port.ring_bytes / 4)?;
        writeln!(
            f,
            "receives           {arrivals} = chains {} + control {CONTROL_ARRIVALS}",
            arrivals - CONTROL_ARRIVALS
        )?;
        writeln!(
            f,
            "credit             rides at {} bytes or {} receives owed, goes alone at {} or {}",
            port.ring_bytes / 4,
            arrivals.div_ceil(4),
            port.ring_bytes / 2,
            arrivals.div_ceil(2)
        )?;
        let hold_percent = self.config.hold_percent;
        writeln!(
            f,
            "held frames        at most {} bytes of the ring, or {} receives, then copied",
            u64::from(port.ring_bytes) * u64::from(hold_percent) / 100,
            hold_receives(arrivals, hold_percent)
        )?;
        writeln!(f, "sends              {}, one signal in {}", port.sends, port.signal_interval)?;
        let shared = &port.shared;
        let slots = u64::from(shared.guaranteed) + CONTROL_ARRIVALS + 1;
        writeln!(
            f,
            "shared receives    {slots} of {} bytes for each connection = data {} + control {CONTROL_ARRIVALS} + goodbye 1; \
             {} to {} in common for each completion queue, data at most {}",
            shared.slot_bytes, shared.guaranteed, shared.common, shared.common_max, shared.most
        )?;
        writeln!(
            f,
            "shared, idle       {} bytes for each connection = receives {} + tables at most {IDLE_TABLES}",
            slots * u64::from(shared.slot_bytes) + IDLE_TABLES,
            slots * u64::from(shared.slot_bytes)
        )?;
        let peer_ring = port.peer_ring_bytes_max.max(port.ring_bytes);
        writeln!(
            f,
            "one peer           at most {} bytes = the ring to it {} + ring or slots from it {} + loans {}",
            peer_bytes(port),
            peer_ring,
            receive_bytes(port),
            port.loan_bytes_max
        )?;
        writeln!(
            f,
            "all peers          at most {} bytes = {} connections on {} workers, while each has all of that",
            peer_bytes(port).saturating_mul(self.connections()),
            self.connections(),
            self.config.workers
        )?;
        let pages = if port.huge_pages { "huge pages where the system has them" } else { "normal pages" };
        writeln!(f, "bulk               on {pages}; what came of it is in Gate::memory")?;
        writeln!(
            f,
            "user memory        at most {} bytes in {} pieces stay registered, for each worker and device",
            port.user_bytes_max, port.user_pieces_max
        )?;
        write!(f, "workers            {} on {}", self.config.workers, self.placed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_default_is_valid_and_prints_its_sums() {
        let plan = Config::default().validate().unwrap();
        assert!(plan.to_string().contains("receives           64 = chains 62 + control 2"));
        assert!(
            plan.to_string().contains("held frames        at most 65536 bytes of the ring, or 16 receives")
        );
        assert!(plan.to_string().contains("at most 67108864 bytes in 256 pieces stay registered"));
        let one = "one peer           at most 4300226568 bytes = the ring to it 4194304 + ring or slots from it 1064968 + loans 4294967296";
        assert!(plan.to_string().contains(one), "{plan}");
    }

    #[test]
    fn a_plan_shows_the_cores_that_were_chosen() {
        let plan = Config { placement: Placement::Auto, ..Config::default() }.validate().unwrap();
        let [core] = plan.cores() else { panic!("{:?}", plan.cores()) };
        let line = format!("workers            1 on cores [{core}], chosen");
        assert!(plan.to_string().contains(&line), "{plan}");
        let many =
            Config { workers: 256, placement: Placement::Cores((0..256).collect()), ..Config::default() };
        assert_eq!(many.validate().unwrap().cores().len(), 256);
    }

    #[test]
    fn bad_fields_are_named() {
        type Change = fn(&mut Config);
        let changes: [(Change, &str); 19] = [
            (|c| c.connect.connect_timeout = Duration::ZERO, "connect.connect_timeout is 0ns"),
            (|c| c.connect.handshake_timeout = Duration::from_nanos(1), "connect.handshake_timeout is 1ns"),
            (
                |c| c.listen.handshake_timeout = Duration::from_micros(999),
                "listen.handshake_timeout is 999µs",
            ),
            (|c| c.port.ring_bytes = 5000, "port.ring_bytes is 5000"),
            (|c| c.port.slot_bytes = 17, "port.slot_bytes is 17"),
            (|c| c.port.arrivals = 3, "port.arrivals is 3"),
            (|c| c.port.signal_interval = 100, "port.signal_interval is 100"),
            (|c| c.port.bulk_piece_bytes = 0, "port.bulk_piece_bytes is 0"),
            (|c| c.port.bulk_piece_in_post_bytes = 0, "port.bulk_piece_in_post_bytes is 0"),
            (|c| c.port.loan_bytes_max = 0, "port.loan_bytes_max is 0"),
            (|c| c.port.user_pieces_max = (1 << 20) + 1, "port.user_pieces_max is 1048577"),
            (|c| c.workers = 0, "workers is 0"),
            (
                |c| {
                    c.workers = 2;
                    c.placement = Placement::Cores(vec![0])
                },
                "placement is 1",
            ),
            (|c| c.batch = 0, "batch is 0"),
            (|c| c.inbox = 0, "inbox is 0"),
            (|c| c.inbox = usize::MAX, "inbox is"),
            (|c| c.handshakes_max = 0, "handshakes_max is 0"),
            (|c| c.heartbeat_ms = 9, "heartbeat_ms is 9"),
            (|c| c.hold_percent = 51, "hold_percent is 51"),
        ];
        for (change, message) in changes {
            let mut config = Config::default();
            change(&mut config);
            assert!(config.validate().unwrap_err().to_string().starts_with(message));
        }
    }
}
