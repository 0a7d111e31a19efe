//! One stream of `iperf3`: bytes that the kernel moves over TCP while nobody looks at them.

use std::time::Duration;

use super::{
    Contender, Goal, Quantity, Setting,
    program::{PairSpec, Ready, Spec, free_port, is_installed},
};
use crate::{error::BenchError, floors::Floors};

/// The program.
pub(crate) const PROGRAM: &str = "iperf3";
/// Where it comes from.
pub(crate) const PACKAGE: &str = "iperf3";
/// The port it takes when it is not told one.
const PORT: u16 = 5201;
/// Bytes of a slice, at least: less tells of its start only.
const BYTES_MIN: u64 = 256 << 20;

/// Its stream.
#[derive(Debug)]
pub struct Iperf3 {
    /// What for.
    pub(crate) setting: Setting,
}

impl Iperf3 {
    /// Over loopback, its two processes on these cores.
    ///
    /// # Errors
    /// Why it cannot take part, for people.
    pub fn for_cores(client_core: usize, server_core: usize) -> Result<Self, String> {
        if !is_installed(PROGRAM) {
            return Err(format!("{PROGRAM} is not installed; try: apt-get install {PACKAGE}"));
        }
        let goal = Goal::Bandwidth;
        Ok(Self { setting: Setting { goal, bytes: 1, window: 1, client_core, server_core, host: None } })
    }

    /// Sends this many bytes, or more, and returns how many the receiver got in a second.
    ///
    /// # Errors
    /// Why there is no number.
    pub fn bytes_per_second(&self, bytes: u64) -> Result<f64, BenchError> {
        self.pair(free_port()?, bytes).run(parse)
    }

    fn pair(&self, port: u16, count: u64) -> PairSpec {
        let Setting { bytes, client_core, server_core, host, .. } = &self.setting;
        let host = host.as_deref().unwrap_or("127.0.0.1");
        let total = count.saturating_mul(*bytes as u64).max(BYTES_MIN).to_string();
        let port_text = port.to_string();
        let spec = |args: &[&str], core| Spec {
            program: PROGRAM.into(),
            args: args.iter().map(|argument| (*argument).to_owned()).collect(),
            env: Vec::new(),
            core,
        };
        PairSpec {
            server: spec(&["-s", "-1", "-p", &port_text], *server_core),
            client: spec(&["-c", host, "-p", &port_text, "-n", &total, "-f", "m"], *client_core),
            ready: Ready::Listens(port),
            limit: Duration::from_secs(60),
        }
    }
}

/// Bytes per second that the receiver counted, of what the client prints in megabits.
fn parse(said: &str) -> Option<f64> {
    let line = said.lines().find(|line| line.trim_end().ends_with("receiver"))?;
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = words.iter().position(|word| *word == "Mbits/sec")?;
    Some(words.get(at.checked_sub(1)?)?.parse::<f64>().ok()? * 125e3)
}

impl Contender for Iperf3 {
    fn name(&self) -> String {
        format!("{PROGRAM}, one stream")
    }

    fn label(&self) -> &'static str {
        "bytes per second, one way"
    }

    fn quantity(&self) -> Quantity {
        Quantity::Bytes
    }

    fn commands(&self, count: u64) -> Vec<String> {
        self.pair(PORT, count).lines()
    }

    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.rest()?;
        self.pair(free_port()?, count).run(parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender() -> Iperf3 {
        let goal = Goal::Bandwidth;
        let setting = Setting { goal, bytes: 1 << 20, window: 4, client_core: 0, server_core: 0, host: None };
        Iperf3 { setting }
    }

    #[test]
    fn the_receivers_rate_is_found() {
        let said = "[ ID] Interval           Transfer     Bitrate         Retr\n\
            [  5]   0.00-1.00   sec  3230 MBytes  27088 Mbits/sec    0             sender\n\
            [  5]   0.00-1.00   sec  3229 MBytes  27000 Mbits/sec                  receiver\n";
        assert_eq!(parse(said), Some(3.375e9));
        assert_eq!(parse("iperf3: error - unable to connect to server: Connection refused"), None);
        let lines = contender().commands(1000);
        assert!(lines[1].ends_with("iperf3 -c 127.0.0.1 -p 5201 -n 1048576000 -f m"), "{lines:?}");
    }

    #[test]
    fn a_stream_is_measured_where_the_program_is_installed() {
        if !is_installed(PROGRAM) {
            return gimmal_testkit::skip("iperf3 is not installed");
        }
        let rate = contender().pair(free_port().unwrap(), 1).run(parse).unwrap();
        assert!(rate > 1e6, "{rate} bytes per second");
    }
}
