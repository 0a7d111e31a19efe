//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use gimmal_engine::{Cpus, transport::Address};

use crate::{
    against::Against,
    error::BenchError,
    plan::{Layer, Mode, ProviderName, ring_for},
};

/// Which way the items go.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Direction {
    /// From the server.
    Down,
    /// To the server, which adds them up.
    Up,
    /// To the server and back.
    Both,
}

/// Ends the long help of every command.
const EXIT_CODES: &str = "\
Exit codes:
  0   The command succeeded.
  1   A run broke off, an answer was wrong, a baseline was better, or runs disagree.
  2   The command line, a suite or a record is wrong.
  69  A server, a core or a provider is not available.";

/// Measures latency, rate and bandwidth of gimmal's layers beside baselines in the same two processes.
///
/// Times are round trips (RTT).
#[derive(Parser, Clone, PartialEq, Debug)]
#[command(
    name = "gimmal-bench",
    version,
    propagate_version = true,
    args_override_self = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum Command {
    /// Round trips, one call at a time.
    Lat(Run),
    /// Round trips of typed calls, through the codec. Short for `lat --layer typed`.
    Rpc(Run),
    /// Calls per second with a window of calls in flight.
    Rate {
        /// How to measure.
        #[command(flatten)]
        run: Run,
        /// Calls in flight.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
        /// Threads that call through one worker, each with its own window. More than one need --mode handoff.
        #[arg(short, long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..=256))]
        threads: u64,
    },
    /// Loans that the other side fetches and reads: round trips and bytes per second.
    Bw {
        /// How to measure. The size is that of a loan.
        #[command(flatten)]
        run: Run,
        /// Loans in flight.
        #[arg(short = 'O', long, default_value = "1", value_parser = parse_count)]
        window: u64,
        /// The part of a loan that both sides touch.
        #[arg(long, value_enum, default_value_t = Touch::All)]
        touch: Touch,
    },
    /// Calls at given rates, timed from when they were due (open loop). Finds the knee.
    Load {
        /// How to measure. The count is that of the closed loop before.
        #[command(flatten)]
        run: Run,
        /// Calls in flight in the closed loop before.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
        /// Calls per second to offer, one rate after the other [default: 10 % to 110 % of the closed loop's rate].
        #[arg(long, value_delimiter = ',', value_parser = parse_count)]
        rates: Vec<u64>,
        /// Seconds per rate.
        #[arg(short = 'D', long, default_value = "2", value_parser = clap::value_parser!(u64).range(1..=86400))]
        seconds: u64,
    },
    /// Items and bytes per second of streaming methods. Times are between two items.
    Stream {
        /// How to measure. The count is of items, for each size and direction.
        #[command(flatten)]
        run: Run,
        /// Direction of the items.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "down,up,both")]
        direction: Vec<Direction>,
    },
    /// Connections per second, and the time of each step.
    Conn(Run),
    /// Cost of a call beside many idle connections, and cost of a connection.
    Scale {
        /// How to measure. The count applies to each number of connections.
        #[command(flatten)]
        run: Run,
        /// Numbers of connections, ascending.
        #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
        connections: Vec<usize>,
    },
    /// Verified calls for a given time, with optional restarts of the server. The count is not used.
    Soak {
        /// How to measure. Sizes take turns, call by call.
        #[command(flatten)]
        run: Run,
        /// Calls in flight.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
        /// Duration in seconds, or with a suffix s, m or h.
        #[arg(short = 'D', long, default_value = "60s", value_parser = parse_duration)]
        duration: Duration,
        /// Kill the server this often, during calls, and start it again.
        #[arg(long, requires = "loopback", value_parser = parse_duration)]
        restart: Option<Duration>,
        /// Report progress this often, on standard error.
        #[arg(long, default_value = "10s", value_parser = parse_duration)]
        interval: Duration,
    },
    /// Compares records of several runs for each core placement.
    Agree {
        /// Files of records of the same tests.
        #[arg(required = true, num_args = 2..)]
        files: Vec<PathBuf>,
        /// Percent that inline ratios over shared memory may differ from their middle.
        #[arg(long, value_name = "PERCENT", default_value = "15")]
        within: f64,
        /// Print one JSON object a line for each comparison instead of the table.
        #[arg(long)]
        json: bool,
    },
    /// Makes one page with plots and tables from records (--json). Compares two files.
    Report {
        /// Files of records. Of two, the older one first.
        #[arg(required = true, num_args = 1..=2)]
        files: Vec<PathBuf>,
        /// File of the page to write.
        #[arg(short, long, default_value = "gimmal-bench.html")]
        output: PathBuf,
    },
    /// Runs a file of command lines, or a built-in suite: quick, full, paper, tcp, regress.
    Suite(Suite),
    /// Says what records show about configuration and machine, and which section of tuning.md to read.
    Advise {
        /// Files of records.
        #[arg(required = true)]
        files: Vec<PathBuf>,
        /// Print one JSON object a line for each record instead of text.
        #[arg(long)]
        json: bool,
    },
    /// Prints RESULTS.md from tables (TOML) and records, with one heading per machine.
    Results {
        /// Files of tables (.toml) and of records.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Serves clients that are started elsewhere.
    Serve(Serve),
    /// Writes the manual pages and the completions of shells to a folder.
    #[command(hide = true)]
    Pages {
        /// The folder.
        folder: PathBuf,
    },
}

/// What of a loan is written and read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Touch {
    /// The first word.
    Header,
    /// Every byte.
    All,
}

/// How to measure.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// Provider to measure over.
    #[arg(long, value_enum, default_value_t = ProviderName::Shm)]
    pub provider: ProviderName,
    /// Layer to measure.
    #[arg(long, value_enum, default_value_t = Layer::Engine)]
    pub layer: Layer,
    /// Kind of client.
    #[arg(long, value_enum, default_value_t = Mode::Inline)]
    pub mode: Mode,
    /// Also start the server, on a private address. Needed for baselines.
    #[arg(long)]
    pub loopback: bool,
    /// Address of the server as `serve` prints it. With --loopback, where to start the server.
    #[arg(long, required_unless_present_any = ["loopback", "hosts"])]
    pub address: Option<Address>,
    /// Start the server on the hosts of this file by ssh, one after the other.
    ///
    /// Its lines are HOST ADDRESS, and PROGRAM behind them where it has another place there.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["loopback", "address"])]
    pub hosts: Option<PathBuf>,
    /// Bytes of one body, each way; k, m and g are powers of 1024.
    ///
    /// A list (64,4k) and a range of powers of two (64..4k) are measured one after the other.
    #[arg(short, long, default_value = "64", value_parser = parse_sizes)]
    pub size: Sizes,
    /// All sizes from 2 bytes to 8 MiB, in powers of two.
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Calls to measure; k, m and g are powers of 1000.
    #[arg(short = 'n', long, default_value = "100k", value_parser = parse_count)]
    pub count: u64,
    /// Unmeasured calls at the start and after each turn of another program [default: a tenth of the count, at most 20k].
    #[arg(long, value_parser = parse_count)]
    pub warmup: Option<u64>,
    /// Turns of other programs, between as many parts of the calls. Baselines have theirs inside each part.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub pairs: u64,
    /// Starts of the server and the connection, each for a part of the calls. Memory placement differs between them.
    #[arg(long, default_value = "1", requires = "loopback", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub starts: u32,
    /// Between starts, ask on standard output for the next turn, and wait for it on standard input.
    #[arg(long, hide = true)]
    pub in_turns: bool,
    /// Milliseconds of a slice. A host may move virtual cores within tens of milliseconds.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub slice_ms: u32,
    /// End after this many seconds of slices, even if calls are left.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub limit_s: Option<u32>,
    /// Programs to compare with, in turns with the test.
    #[arg(long, value_enum, value_delimiter = ',', requires = "loopback")]
    pub against: Vec<Against>,
    /// Cores of client and server [default: two physical cores of this process].
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub cpus: Option<Cores>,
    /// Bytes of a ring, a power of two; raised if four bodies need more [default: 256k; 64k for conn, 16k for scale].
    #[arg(long, value_parser = parse_bytes)]
    pub ring: Option<usize>,
    /// Bytes of one READ over verbs [default: 256k; 64k beside other traffic on rxe, whose posts move the bytes].
    #[arg(long, requires = "loopback", value_parser = parse_bytes)]
    pub piece: Option<usize>,
    /// Verify every byte of every answer. A wrong one ends the run.
    #[arg(long)]
    pub verify: bool,
    /// Let the server pause for this many milliseconds in every second.
    #[arg(long, default_value = "0", requires = "loopback", value_parser = clap::value_parser!(u32).range(0..1000))]
    pub stall: u32,
    /// Let the server flip a bit in this echo, to test that it is noticed.
    #[arg(long, hide = true, requires = "loopback")]
    pub corrupt: Option<u64>,
    /// Print one JSON object a line for each size instead of the table; bench/schema.json describes it.
    #[arg(long)]
    pub json: bool,
    /// Print comma-separated values instead of the table.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// Print the columns of another program instead of the table.
    #[arg(long, value_enum, conflicts_with_all = ["json", "csv"])]
    pub format: Option<Format>,
    /// Write the distribution to this file, for HdrHistogram's tools. Several sizes get files FILE.BYTES.
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
}

/// Columns that people and their scripts know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// perftest's: half round trips in microseconds; or mebibytes and millions of messages per second.
    Perftest,
}

impl Cli {
    /// Reads the command line of this process; an error or help ends it.
    #[must_use]
    pub fn read() -> Self {
        Self::from_arg_matches(&command_line().get_matches()).unwrap_or_else(|error| error.exit())
    }
}

/// The command line with the exit codes below the long help of every command.
pub(crate) fn command_line() -> clap::Command {
    Cli::command().after_long_help(EXIT_CODES).mut_subcommands(|command| command.after_long_help(EXIT_CODES))
}

impl Command {
    /// How to measure, of those that do.
    pub(crate) fn run_mut(&mut self) -> Option<&mut Run> {
        match self {
            Self::Lat(run)
            | Self::Rpc(run)
            | Self::Conn(run)
            | Self::Rate { run, .. }
            | Self::Bw { run, .. }
            | Self::Load { run, .. }
            | Self::Stream { run, .. }
            | Self::Scale { run, .. }
            | Self::Soak { run, .. } => Some(run),
            Self::Agree { .. }
            | Self::Report { .. }
            | Self::Suite(_)
            | Self::Advise { .. }
            | Self::Results { .. }
            | Self::Serve(_)
            | Self::Pages { .. } => None,
        }
    }
}

impl Run {
    /// What to measure, one after the other.
    #[must_use]
    pub fn sizes(&self) -> Vec<usize> {
        if self.all { (1..=23).map(|power| 1 << power).collect() } else { self.size.0.clone() }
    }

    /// The rings for bodies of `bytes`.
    pub(crate) fn ring_for(&self, bytes: usize, default: u32) -> u32 {
        ring_for(bytes, self.ring.map_or(default, |ring| u32::try_from(ring).unwrap_or(1 << 30)))
    }

    /// Where the distribution of a size goes.
    #[must_use]
    pub fn hgrm_of(&self, bytes: usize) -> Option<PathBuf> {
        let path = self.hgrm.as_ref()?;
        if self.sizes().len() == 1 {
            return Some(path.clone());
        }
        let mut name = path.clone().into_os_string();
        name.push(format!(".{bytes}"));
        Some(name.into())
    }
}

/// Which runs to make, and where results go.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Suite {
    /// Suite to run: quick, full, paper, tcp, regress, or a TOML file.
    pub name: String,
    /// Append these options to every line. The last of two equal options holds.
    ///
    /// For example: --with "--provider verbs --address rdma://10.0.0.1:0"
    #[arg(
        long,
        value_name = "OPTIONS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub with: String,
    /// Write the records to this file, one JSON object per line.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a page with plots and tables to this file.
    #[arg(long, value_name = "FILE")]
    pub page: Option<PathBuf>,
    /// Compare with the records in this file. The exit code is 1 if one of them was better.
    #[arg(long, value_name = "FILE")]
    pub baseline: Option<PathBuf>,
    /// Percent by which a ratio may be worse than in the baseline.
    #[arg(long, value_name = "PERCENT", default_value = "15")]
    pub tolerance: f64,
    /// Print the records, one JSON object a line, instead of the table.
    #[arg(long, conflicts_with = "baseline")]
    pub json: bool,
}

/// How to serve.
#[derive(Args, Clone, PartialEq, Eq, Debug)]
pub struct Serve {
    /// Address to serve: shm://name, shm:///path or rdma://host:port.
    #[arg(long)]
    pub address: Address,
    /// Provider to serve over [default: that of the address].
    #[arg(long, value_enum)]
    pub provider: Option<ProviderName>,
    /// Bytes of the receive ring. A body may have a quarter of it.
    #[arg(long, default_value = "256k", value_parser = parse_bytes)]
    pub ring: usize,
    /// Bytes of one READ over verbs [default: 256k; 64k beside other traffic on rxe].
    #[arg(long, value_parser = parse_bytes)]
    pub piece: Option<usize>,
    /// Pause for this many milliseconds in every second, to see what a stall does to callers.
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u32).range(0..1000))]
    pub stall: u32,
    /// Started by a client.
    #[arg(long, hide = true)]
    pub child: bool,
    /// End when standard input ends, as it does when the parent process ends.
    #[arg(long)]
    pub tied: bool,
    /// The echo in which to flip a bit.
    #[arg(long, hide = true)]
    pub corrupt: Option<u64>,
    /// Sleep as soon as there is nothing to do.
    #[arg(long)]
    pub asleep: bool,
    /// Sockets of that client.
    #[arg(long, hide = true)]
    pub beside: Vec<String>,
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

/// Sizes to measure one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sizes(pub Vec<usize>);

fn parse_sizes(text: &str) -> Result<Sizes, String> {
    let mut sizes = Vec::new();
    for part in text.split(',') {
        match part.split_once("..") {
            None => sizes.push(parse_bytes(part)?),
            Some((from, to)) => {
                let (from, to) = (parse_bytes(from)?.max(1), parse_bytes(to)?);
                if from > to {
                    return Err(format!("{part}: the first is above the last"));
                }
                sizes.extend(
                    std::iter::successors(Some(from), |size| Some(size * 2)).take_while(|size| *size <= to),
                );
            }
        }
    }
    Ok(Sizes(sizes))
}

fn parse_count(text: &str) -> Result<u64, String> {
    match parse_scaled(text, 1000)? {
        0 => Err("at least 1".to_owned()),
        count => Ok(count),
    }
}

fn parse_duration(text: &str) -> Result<Duration, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, seconds) = match lower.char_indices().next_back() {
        Some((at, 's')) => (&lower[..at], 1),
        Some((at, 'm')) => (&lower[..at], 60),
        Some((at, 'h')) => (&lower[..at], 3600),
        _ => (&*lower, 1),
    };
    let number: u64 = digits.parse().map_err(|_| "seconds, or a number with s, m or h behind".to_owned())?;
    let seconds = number.checked_mul(seconds).filter(|seconds| (1..=30 * 86400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "1s to 720h".to_owned())
}

fn parse_cores(text: &str) -> Result<Cores, String> {
    let core = |text: &str| text.trim().parse().map_err(|_| format!("{text:?} is no core's number"));
    let (client, server) = text.split_once(',').ok_or("two cores, as in 0,1")?;
    Ok(Cores { client: core(client)?, server: core(server)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_command_line_is_consistent() {
        command_line().debug_assert();
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
    fn durations_have_units() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("15m", 900), ("8H", 28_800)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)));
        }
        for bad in ["", "h", "0", "1.5h", "1d", "721h", "99999999999999999999h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn lists_and_ranges_of_sizes() {
        assert_eq!(parse_sizes("64,4k,1m"), Ok(Sizes(vec![64, 4096, 1 << 20])));
        assert_eq!(parse_sizes("8,64..300"), Ok(Sizes(vec![8, 64, 128, 256])));
        for bad in ["", "64,", "4k..64", "64..", "64-128"] {
            assert!(parse_sizes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_whole_line() {
        let line = "gimmal-bench rate --provider shm --layer engine --loopback -s 4k -n 10k -O 8 --mode handoff \
                    --cpus 1,0 --json --warmup 5 --pairs 7 --against ucx,tcp,uds";
        let Command::Rate { run, window, threads: 1 } = parse(line).unwrap().command else { panic!("rate") };
        assert_eq!((window, run.size.0, run.count, run.warmup), (8, vec![4096], 10_000, Some(5)));
        assert_eq!((run.pairs, run.against), (7, vec![Against::Ucx, Against::Tcp, Against::Uds]));
        assert_eq!(run.cpus, Some(Cores { client: 1, server: 0 }));
        assert_eq!((run.mode, run.json, run.loopback, run.address), (Mode::Handoff, true, true, None));
    }

    #[test]
    fn bad_lines_are_refused() {
        for line in [
            "gimmal-bench lat",
            "gimmal-bench lat --loopback --cpus 1",
            "gimmal-bench lat --loopback --provider sctp",
            "gimmal-bench lat --address tcp://x",
            "gimmal-bench serve",
            "gimmal-bench rate --loopback -O 0",
            "gimmal-bench lat --address shm://x --against tcp",
            "gimmal-bench lat --loopback --against mpi",
            "gimmal-bench serve --address shm://x --stall 1000",
            "gimmal-bench soak --address shm://x --restart 1s",
            "gimmal-bench lat --loopback --hosts x",
            "gimmal-bench agree one.json",
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
