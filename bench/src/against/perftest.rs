//! perftest: `ib_send_lat`, `ib_write_lat`, `ib_send_bw`, `ib_read_bw`, through the RDMA CM. It prints half round
//! trips.

use std::time::Duration;

use super::{
    Contender, Quantity, Setting,
    program::{PairSpec, Ready, Spec, free_port},
    row_of_numbers,
};
use crate::{error::BenchError, floors::Floors};

/// The port it takes when it is not told one.
const PORT: u16 = 18515;
/// Where it comes from.
pub(crate) const PACKAGE: &str = "perftest";
/// What its reads have when it is not told: the pieces in which a loan is pulled where a post moves the bytes.
pub(crate) const PIECE_BYTES: usize = 64 << 10;
/// Its megabyte.
const MIB: f64 = 1_048_576.0;

/// Its programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Operation {
    /// Sends, one at a time.
    SendLat,
    /// Writes that the other side looks for in its memory, one at a time.
    WriteLat,
    /// Sends, a window of them, one way.
    SendBw,
    /// Reads, a window of them.
    ReadBw,
    /// The bytes of a loan, in READs of [`PIECE_BYTES`].
    ReadPieces,
}

impl Operation {
    /// The program.
    #[must_use]
    pub(crate) const fn program(self) -> &'static str {
        match self {
            Self::SendLat => "ib_send_lat",
            Self::WriteLat => "ib_write_lat",
            Self::SendBw => "ib_send_bw",
            Self::ReadBw | Self::ReadPieces => "ib_read_bw",
        }
    }

    const fn is_latency(self) -> bool {
        matches!(self, Self::SendLat | Self::WriteLat)
    }
}

/// One of its programs.
#[derive(Debug)]
pub(crate) struct Perftest {
    /// What for; with a host.
    pub(crate) setting: Setting,
    /// Which.
    pub(crate) operation: Operation,
}

impl Perftest {
    fn pair(&self, port: u16, count: u64) -> PairSpec {
        let Setting { bytes, window, client_core, server_core, host, .. } = &self.setting;
        let (bytes, pieces) = match self.operation {
            Operation::ReadPieces => (PIECE_BYTES, bytes / PIECE_BYTES),
            _ => (*bytes, 1),
        };
        let (window, count) = (window * pieces, count * pieces as u64);
        // Below 5 it refuses; its reads of large blocks take long.
        let count = count.max(5);
        let mut common: Vec<String> =
            ["-R", "-F", "-p", &port.to_string(), "-s", &bytes.to_string(), "-n", &count.to_string()]
                .map(str::to_owned)
                .into();
        if !self.operation.is_latency() {
            common.extend(["-t".to_owned(), window.to_string()]);
        }
        let mut client = common.clone();
        client.extend(host.clone());
        let spec = |args, core| Spec { program: self.operation.program().into(), args, env: vec![], core };
        PairSpec {
            server: spec(common, *server_core),
            client: spec(client, *client_core),
            // It says that it waits just before it listens.
            ready: Ready::Listens(port),
            limit: Duration::from_secs(90),
        }
    }
}

/// Its one row of results, below the header.
fn results(said: &str) -> Option<Vec<f64>> {
    said.lines().skip_while(|line| !line.contains("#bytes")).find_map(|line| row_of_numbers(line, 5))
}

/// The typical half of a round trip, microseconds.
#[must_use]
pub(crate) fn parse_latency(said: &str) -> Option<f64> {
    results(said).filter(|row| row.len() >= 9)?.get(4).copied()
}

/// Mean bytes per second and millions of messages per second.
#[must_use]
pub(crate) fn parse_bandwidth(said: &str) -> Option<(f64, f64)> {
    match *results(said)? {
        [_, _, _, average, rate] => Some((average * MIB, rate)),
        _ => None,
    }
}

impl Contender for Perftest {
    fn name(&self) -> String {
        match self.operation {
            Operation::ReadPieces => format!("{} -s {PIECE_BYTES}", self.operation.program()),
            _ => self.operation.program().to_owned(),
        }
    }

    fn label(&self) -> &'static str {
        match self.operation {
            Operation::SendLat | Operation::WriteLat => "RTT p50, twice its t_typical",
            Operation::SendBw => "one-way messages per second",
            Operation::ReadBw | Operation::ReadPieces => "bytes per second",
        }
    }

    fn quantity(&self) -> Quantity {
        match self.operation {
            Operation::SendLat | Operation::WriteLat => Quantity::RoundTrip,
            Operation::SendBw => Quantity::PerSecond,
            Operation::ReadBw | Operation::ReadPieces => Quantity::Bytes,
        }
    }

    fn commands(&self, count: u64) -> Vec<String> {
        self.pair(PORT, count).lines()
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.rest()?;
        let pair = self.pair(free_port()?, count);
        match self.operation {
            Operation::SendLat | Operation::WriteLat => pair.run(|said| Some(parse_latency(said)? * 2e3)),
            Operation::SendBw => pair.run(|said| Some(parse_bandwidth(said)?.1 * 1e6)),
            Operation::ReadBw | Operation::ReadPieces => pair.run(|said| Some(parse_bandwidth(said)?.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_typical_half_is_found_behind_warnings() {
        let warned = include_str!("../samples/ib_send_lat.txt")
            .replace("\n 64 ", "\nConflicting CPU frequency values detected: 3101.0 != 1599.0.\n 64 ");
        assert_eq!(parse_latency(&warned), Some(6016.01));
        assert_eq!(parse_latency(include_str!("../samples/ib_send_lat.txt")), Some(6016.01));
        assert_eq!(parse_latency(include_str!("../samples/ib_read_bw.txt")), None);
    }

    #[test]
    fn its_megabytes_are_binary() {
        let found = parse_bandwidth(include_str!("../samples/ib_read_bw.txt"));
        assert_eq!(found, Some((4.74 * 1_048_576.0, 0.000_076)));
        assert_eq!(parse_bandwidth(include_str!("../samples/ib_send_lat.txt")), None);
        assert_eq!(parse_bandwidth(" #bytes #iterations\n"), None);
    }

    #[test]
    fn both_sides_get_the_same_options() {
        let setting = Setting {
            goal: super::super::Goal::Rate,
            bytes: 64,
            window: 32,
            client_core: 0,
            server_core: 1,
            host: Some("10.77.1.1".to_owned()),
        };
        let pair = Perftest { setting: setting.clone(), operation: Operation::SendBw }.pair(4711, 2);
        assert_eq!(pair.server.args.join(" "), "-R -F -p 4711 -s 64 -n 5 -t 32");
        assert_eq!(pair.client.args.join(" "), "-R -F -p 4711 -s 64 -n 5 -t 32 10.77.1.1");
        let setting = Setting { bytes: 1 << 20, window: 4, ..setting };
        let pieces = Perftest { setting, operation: Operation::ReadPieces };
        assert_eq!(pieces.pair(4711, 9).server.args.join(" "), "-R -F -p 4711 -s 65536 -n 144 -t 64");
        assert_eq!(pieces.name(), "ib_read_bw -s 65536");
    }
}
