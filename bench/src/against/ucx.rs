//! `ucx_perftest`: active messages, over posix shared memory or verbs. Its latency is one way.

use std::time::Duration;

use super::{
    Contender, Goal, Quantity, Setting,
    program::{PairSpec, Ready, Spec, free_port},
};
use crate::{error::BenchError, floors::Floors};

/// The program.
pub(crate) const PROGRAM: &str = "ucx_perftest";
/// The port it takes when it is not told one.
const PORT: u16 = 13337;
/// Where it comes from.
pub(crate) const PACKAGE: &str = "ucx-utils";

/// Which of its transports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    /// Shared memory.
    Posix,
    /// Verbs on this device.
    Verbs {
        /// As in `rxe0`.
        device: String,
        /// Of the server.
        host: String,
        /// The number of the device's address that it must take.
        gid: Option<usize>,
    },
}

/// Active messages of UCP.
#[derive(Debug)]
pub(crate) struct Ucx {
    /// What for.
    pub(crate) setting: Setting,
    /// How.
    pub(crate) transport: Transport,
}

impl Ucx {
    fn test(&self) -> &'static str {
        if self.setting.goal == Goal::Latency { "ucp_am_lat" } else { "ucp_am_bw" }
    }

    fn pair(&self, port: u16, count: u64) -> PairSpec {
        let Setting { bytes, window, client_core, server_core, .. } = &self.setting;
        let port = port.to_string();
        let (host, tls, device) = match &self.transport {
            Transport::Posix => ("127.0.0.1", "posix,self", None),
            // Without datagrams the two cannot meet.
            Transport::Verbs { device, host, .. } => {
                (&**host, "rc_verbs,ud_verbs,self", Some(format!("{device}:1")))
            }
        };
        let mut env = vec![("UCX_TLS", tls.to_owned()), ("UCX_LOG_LEVEL", "error".to_owned())];
        env.extend(device.map(|device| ("UCX_NET_DEVICES", device)));
        if let Transport::Verbs { gid: Some(gid), .. } = &self.transport {
            env.push(("UCX_IB_GID_INDEX", gid.to_string()));
        }
        let warm = (count / 10).max(1).to_string();
        let mut args: Vec<String> = [
            host,
            "-p",
            &port,
            "-t",
            self.test(),
            "-s",
            &bytes.to_string(),
            "-n",
            &count.to_string(),
            "-w",
            &warm,
        ]
        .map(str::to_owned)
        .into();
        args.extend(["-f", "-v"].map(str::to_owned));
        if self.setting.goal != Goal::Latency {
            args.extend(["-O".to_owned(), window.to_string()]);
        }
        PairSpec {
            server: Spec {
                program: PROGRAM.into(),
                args: vec!["-p".to_owned(), port],
                env: env.clone(),
                core: *server_core,
            },
            client: Spec { program: PROGRAM.into(), args, env, core: *client_core },
            ready: Ready::Says("Waiting for connection"),
            limit: Duration::from_secs(60),
        }
    }
}

/// The values under the header of its comma-separated output, by the header's names.
#[must_use]
pub(crate) fn parse(said: &str, name: &str) -> Option<f64> {
    let mut lines = said.lines().skip_while(|line| !line.starts_with("iterations,"));
    let at = lines.next()?.split(',').position(|column| column.trim() == name)?;
    // Progress lines may come first; the last whole one counts, and it is the only one with -f.
    let last = lines
        .map(str::trim_start)
        .filter(|line| line.starts_with(|first: char| first.is_ascii_digit()))
        .last()?;
    last.split(',').nth(at)?.trim().parse().ok()
}

impl Contender for Ucx {
    fn name(&self) -> String {
        let over = if self.transport == Transport::Posix { "posix" } else { "rc_verbs" };
        format!("{PROGRAM} {}, {over}", self.test())
    }

    fn label(&self) -> &'static str {
        match self.setting.goal {
            Goal::Latency => "RTT p50, twice its one-way latency",
            Goal::Rate => "one-way messages per second",
            Goal::Bandwidth => "bytes per second, one way",
        }
    }

    fn quantity(&self) -> Quantity {
        match self.setting.goal {
            Goal::Latency => Quantity::RoundTrip,
            Goal::Rate => Quantity::PerSecond,
            Goal::Bandwidth => Quantity::Bytes,
        }
    }

    fn commands(&self, count: u64) -> Vec<String> {
        self.pair(PORT, count).lines()
    }

    #[expect(clippy::cast_precision_loss, reason = "sizes far below 2^53")]
    fn slice(&mut self, floors: &mut Floors, count: u64) -> Result<f64, BenchError> {
        floors.rest()?;
        let pair = self.pair(free_port()?, count);
        match self.setting.goal {
            Goal::Latency => pair.run(|said| Some(parse(said, "50.0_percentile_lat")? * 2e3)),
            Goal::Rate => pair.run(|said| parse(said, "overall_mr")),
            Goal::Bandwidth => pair.run(|said| Some(parse(said, "overall_mr")? * self.setting.bytes as f64)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAT: &str = include_str!("../samples/ucp_am_lat.txt");
    const BW: &str = include_str!("../samples/ucp_am_bw.txt");

    #[test]
    fn latency_and_rate_are_found_by_their_headers() {
        assert_eq!(parse(LAT, "50.0_percentile_lat"), Some(0.190));
        // Few iterations are set to the right.
        let few = "iterations,50.0_percentile_lat,avg_lat\n 500,55.500,72.515\n";
        assert_eq!(parse(few, "50.0_percentile_lat"), Some(55.5));
        assert_eq!(parse(BW, "overall_mr"), Some(347_962.0));
        assert_eq!(parse("iterations,overall_mr\n", "overall_mr"), None);
        assert_eq!(parse("Waiting for connection...\n", "overall_mr"), None);
    }

    #[test]
    fn the_pair_says_the_same_port_and_transport() {
        let setting =
            Setting { goal: Goal::Rate, bytes: 64, window: 32, client_core: 0, server_core: 1, host: None };
        let pair = Ucx { setting: setting.clone(), transport: Transport::Posix }.pair(4711, 1000);
        let line = pair.client.args.join(" ");
        assert_eq!(line, "127.0.0.1 -p 4711 -t ucp_am_bw -s 64 -n 1000 -w 100 -f -v -O 32");
        assert_eq!(pair.server.args.join(" "), "-p 4711");
        assert_eq!((pair.client.core, pair.server.core), (0, 1));
        assert_eq!(pair.client.env[0], ("UCX_TLS", "posix,self".to_owned()));
        let (device, host) = ("rxe0".to_owned(), "10.77.1.1".to_owned());
        let verbs = Ucx { transport: Transport::Verbs { device, host, gid: Some(2) }, setting };
        let line = &verbs.commands(10)[0];
        assert!(
            line.contains("UCX_NET_DEVICES=rxe0:1 UCX_IB_GID_INDEX=2 taskset -c 1 ucx_perftest -p"),
            "{line}"
        );
    }
}
