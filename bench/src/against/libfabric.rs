//! `fi_pingpong` of libfabric. A transfer is half of a round trip.

use std::time::Duration;

use super::{
    Contender, Quantity, Setting,
    program::{PairSpec, Ready, STARTING, Spec, free_port},
};
use crate::{error::BenchError, floors::Floors};

/// The program.
pub(crate) const PROGRAM: &str = "fi_pingpong";
/// Where it comes from.
pub(crate) const PACKAGE: &str = "libfabric-bin";

/// Its ping-pong.
#[derive(Debug)]
pub(crate) struct PingPong {
    /// What for.
    pub(crate) setting: Setting,
    /// `shm` or `verbs`.
    pub(crate) provider: &'static str,
    /// Whether it worked once: a provider that cannot work here waits for ever instead of saying so.
    is_proven: bool,
}

/// What it is tried with before it is trusted with a slice.
const TRIAL: u64 = 10;
/// For the trial, beside what its server takes to start.
const TRIAL_LIMIT: Duration = Duration::from_secs(2);
/// The port it takes when it is not told one.
const PORT: u16 = 47592;

impl PingPong {
    /// Not tried yet.
    pub(crate) const fn new(setting: Setting, provider: &'static str) -> Self {
        Self { setting, provider, is_proven: false }
    }

    fn pair(&self, port: u16, count: u64) -> PairSpec {
        let Setting { bytes, client_core, server_core, host, .. } = &self.setting;
        let number = port.to_string();
        let endpoint = if self.provider == "verbs" { "msg" } else { "rdm" };
        let count = count.to_string();
        let bytes = bytes.to_string();
        // Both count for themselves: a server that is told less than its client leaves it waiting for ever.
        let common = ["-p", self.provider, "-e", endpoint, "-I", &count, "-S", &bytes];
        let host = host.as_deref().unwrap_or("127.0.0.1");
        let server = ["-B", &number].into_iter();
        let client = ["-P", &number, host].into_iter();
        let spec = |args: Vec<&str>, core| Spec {
            program: PROGRAM.into(),
            args: args.into_iter().map(str::to_owned).collect(),
            env: vec![("FI_LOG_LEVEL", "warn".to_owned())],
            core,
        };
        PairSpec {
            server: spec(common.into_iter().chain(server).collect(), *server_core),
            client: spec(common.into_iter().chain(client).collect(), *client_core),
            ready: Ready::Listens(port),
            limit: Duration::from_secs(60),
        }
    }
}

/// Microseconds of a transfer of `bytes`.
#[must_use]
pub(crate) fn parse(said: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.contains("usec/xfer"));
    let at = lines.next()?.split_whitespace().position(|column| column == "usec/xfer")?;
    lines.find_map(|line| super::column(line, at).filter(|_| line.split_whitespace().count() > at))
}

impl Contender for PingPong {
    fn name(&self) -> String {
        format!("{PROGRAM}, {}", self.provider)
    }

    fn label(&self) -> &'static str {
        "RTT mean, twice its usec/xfer"
    }

    fn quantity(&self) -> Quantity {
        Quantity::RoundTrip
    }

    fn commands(&self, count: u64) -> Vec<String> {
        self.pair(PORT, count).lines()
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.rest()?;
        let find = |said: &str| Some(parse(said)? * 2e3);
        if !self.is_proven {
            let mut trial = self.pair(free_port()?, TRIAL);
            trial.limit = STARTING.saturating_add(TRIAL_LIMIT);
            trial.run(find)?;
            self.is_proven = true;
        }
        self.pair(free_port()?, count).run(find)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_count_the_same() {
        let setting = Setting {
            goal: super::super::Goal::Latency,
            bytes: 64,
            window: 1,
            client_core: 0,
            server_core: 1,
            host: None,
        };
        let lines = PingPong::new(setting, "shm").commands(500);
        assert!(
            lines[0].ends_with("taskset -c 1 fi_pingpong -p shm -e rdm -I 500 -S 64 -B 47592"),
            "{lines:?}"
        );
        assert!(lines[1].ends_with("fi_pingpong -p shm -e rdm -I 500 -S 64 -P 47592 127.0.0.1"), "{lines:?}");
    }

    #[test]
    fn a_transfer_is_found() {
        assert_eq!(parse(include_str!("../samples/fi_pingpong.txt")), Some(1.75));
        assert_eq!(
            parse("bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec\n"),
            None
        );
        assert_eq!(parse("fi_getinfo: -61"), None);
    }
}
