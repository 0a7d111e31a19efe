//! The command line.

use clap::{Args, Parser, Subcommand};
use gimmal_engine::{Cpus, transport::Address};

use crate::{
    error::BenchError,
    plan::{Layer, Mode, ProviderName},
};

/// Latency and rate of gimmal's layers, beside the floors of the same two processes.
///
/// Times are round trips (RTT).
#[derive(Parser, Clone, PartialEq, Eq, Debug)]
#[command(name = "gimmal-bench", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// Round trip time of one call at a time.
    Lat(Run),
    /// Calls per second with a window of them outstanding.
    Rate {
        /// How to measure.
        #[command(flatten)]
        run: Run,
        /// Calls outstanding.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
    },
    /// The other side, for clients that are started elsewhere.
    Serve(Serve),
}

/// How to measure.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// How the bytes travel.
    #[arg(long, value_enum, default_value_t = ProviderName::Shm)]
    pub provider: ProviderName,
    /// What is measured.
    #[arg(long, value_enum, default_value_t = Layer::Engine)]
    pub layer: Layer,
    /// Who runs the caller's turns.
    #[arg(long, value_enum, default_value_t = Mode::Inline)]
    pub mode: Mode,
    /// Start the server too, on a private address; with floors.
    #[arg(long)]
    pub loopback: bool,
    /// The server, as `serve` printed it; with --loopback where to start it.
    #[arg(long, required_unless_present = "loopback")]
    pub address: Option<Address>,
    /// Bytes of one body, each way; k, m and g are powers of 1024.
    #[arg(short, long, default_value = "64", value_parser = parse_bytes)]
    pub size: usize,
    /// Calls to measure; k, m and g are powers of 1000.
    #[arg(short = 'n', long, default_value = "100k", value_parser = parse_count)]
    pub count: u64,
    /// Calls before, which are not measured [default: a tenth of the count, at most 20k].
    #[arg(long, value_parser = parse_count)]
    pub warmup: Option<u64>,
    /// Cores of client and server [default: two cores of this process that are no hyper-threads of each other].
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub cpus: Option<Cores>,
    /// One JSON object on standard output instead of the table.
    #[arg(long)]
    pub json: bool,
}

/// How to serve.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Serve {
    /// Where to listen: shm://name, shm:///path or rdma://host:port.
    #[arg(long)]
    pub address: Address,
    /// How the bytes travel [default: what the address says].
    #[arg(long, value_enum)]
    pub provider: Option<ProviderName>,
    /// Receive ring, bytes; a body may have a quarter of it.
    #[arg(long, default_value = "256k", value_parser = parse_bytes)]
    pub ring: usize,
    /// Started by a client.
    #[arg(long, hide = true)]
    pub child: bool,
}

/// Where client and server run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cores {
    /// The client's.
    pub client: usize,
    /// The server's.
    pub server: usize,
}

impl Cores {
    /// What was asked for, or two whole cores of this process.
    ///
    /// # Errors
    /// [`BenchError::Core`] when one of them is not ours to use.
    pub fn choose(asked: Option<Self>) -> Result<Self, BenchError> {
        let set = rustix::thread::sched_getaffinity(None).map_err(BenchError::system("sched_getaffinity"))?;
        let allowed: Vec<usize> =
            (0..rustix::thread::CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        let Some(cores) = asked else {
            // Hyper-threads of one core would share what is measured; on a machine that shows nothing, the first two.
            let spread =
                Cpus::read().and_then(|cpus| cpus.spread(2.min(allowed.len()), None)).unwrap_or(allowed);
            let first = spread.first().copied().unwrap_or(0);
            return Ok(Self { client: first, server: spread.get(1).copied().unwrap_or(first) });
        };
        match [cores.client, cores.server].into_iter().find(|core| !allowed.contains(core)) {
            None => Ok(cores),
            Some(core) => {
                let allowed: Vec<String> = allowed.iter().map(ToString::to_string).collect();
                Err(BenchError::Core { core, allowed: allowed.join(",") })
            }
        }
    }
}

fn parse_scaled(text: &str, thousand: u64) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, factor) = match lower.char_indices().next_back() {
        Some((at, 'k')) => (&lower[..at], thousand),
        Some((at, 'm')) => (&lower[..at], thousand.pow(2)),
        Some((at, 'g')) => (&lower[..at], thousand.pow(3)),
        _ => (&*lower, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "a number, with k, m or g behind it or not".to_owned())?;
    number.checked_mul(factor).ok_or_else(|| "too large".to_owned())
}

fn parse_bytes(text: &str) -> Result<usize, String> {
    let bytes = parse_scaled(text, 1024)?;
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= 1 << 30).ok_or_else(|| "at most 1g".to_owned())
}

fn parse_count(text: &str) -> Result<u64, String> {
    match parse_scaled(text, 1000)? {
        0 => Err("at least 1".to_owned()),
        count => Ok(count),
    }
}

fn parse_cores(text: &str) -> Result<Cores, String> {
    let core = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is no core's number"));
    let (client, server) = text.split_once(',').ok_or("two cores, as in 0,1")?;
    Ok(Cores { client: core(client)?, server: core(server)? })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_are_binary_and_counts_decimal() {
        assert_eq!(
            (parse_bytes("64"), parse_bytes("4k"), parse_bytes("1M")),
            (Ok(64), Ok(4096), Ok(1 << 20))
        );
        assert_eq!((parse_count("20000"), parse_count("1m")), (Ok(20_000), Ok(1_000_000)));
        for bad in ["", "k", "-1", "1.5k", "2g", "99999999999g"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
        assert!(parse_count("0").is_err());
    }

    #[test]
    fn a_whole_line() {
        let line = "gimmal-bench rate --provider shm --layer engine --loopback -s 4k -n 10k -O 8 --mode handoff \
                    --cpus 1,0 --json --warmup 5";
        let Command::Rate { run, window } = parse(line).unwrap().command else { panic!("rate") };
        assert_eq!((window, run.size, run.count, run.warmup), (8, 4096, 10_000, Some(5)));
        assert_eq!(run.cpus, Some(Cores { client: 1, server: 0 }));
        assert_eq!((run.mode, run.json, run.loopback, run.address), (Mode::Handoff, true, true, None));
    }

    #[test]
    fn bad_lines_are_refused() {
        for line in [
            "gimmal-bench lat",
            "gimmal-bench lat --loopback --cpus 1",
            "gimmal-bench lat --loopback --provider tcp",
            "gimmal-bench lat --address tcp://x",
            "gimmal-bench serve",
            "gimmal-bench rate --loopback -O 0",
        ] {
            assert_eq!(parse(line).unwrap_err().exit_code(), 2, "{line}");
        }
    }

    #[test]
    fn cores_that_are_not_there_are_named() {
        let error = Cores::choose(Some(Cores { client: 0, server: 1000 })).unwrap_err();
        assert!(error.to_string().starts_with("core 1000 is not available"), "{error}");
        assert_eq!(error.exit_code(), 69);
    }
}
