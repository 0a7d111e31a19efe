//! The command line.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use gimmal_engine::{Cpus, transport::Address};

use crate::{
    against::Against,
    error::BenchError,
    plan::{Layer, Mode, ProviderName, ring_for},
    stream::Direction,
};

/// Latency and rate of gimmal's layers, beside the floors of the same two processes.
///
/// Times are round trips (RTT).
#[derive(Parser, Clone, PartialEq, Debug)]
#[command(name = "gimmal-bench", version, propagate_version = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Subcommand, Clone, PartialEq, Debug)]
pub enum Command {
    /// Round trip time of one call at a time.
    Lat(Run),
    /// The same of typed calls, through the codec: `lat --layer typed`.
    Rpc(Run),
    /// Calls per second with a window of them outstanding.
    Rate {
        /// How to measure.
        #[command(flatten)]
        run: Run,
        /// Calls outstanding.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
        /// Threads that call through one worker, each with such a window; more than one need --mode handoff.
        #[arg(short, long, default_value = "1", value_parser = clap::value_parser!(u64).range(1..=256))]
        threads: u64,
    },
    /// Loans that the other side pulls and reads: round trips, and bytes per second beside them.
    Bw {
        /// How to measure; the size is a loan's.
        #[command(flatten)]
        run: Run,
        /// Loans outstanding.
        #[arg(short = 'O', long, default_value = "1", value_parser = parse_count)]
        window: u64,
        /// What both sides touch of a loan.
        #[arg(long, value_enum, default_value_t = Touch::All)]
        touch: Touch,
    },
    /// Calls at given rates, due at random, timed from when they were due (open loop); finds the knee.
    Load {
        /// How to measure; the count is of a closed loop before.
        #[command(flatten)]
        run: Run,
        /// Calls outstanding in the closed loop before.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
        /// Calls per second to offer, one after the other [default: 10 % to 110 % of what the closed loop reached].
        #[arg(long, value_delimiter = ',', value_parser = parse_count)]
        rates: Vec<u64>,
        /// Seconds of each.
        #[arg(short = 'D', long, default_value = "2", value_parser = clap::value_parser!(u64).range(1..=86400))]
        seconds: u64,
    },
    /// Items and bytes per second of streaming methods, each way; times are from one item to the next.
    Stream {
        /// How to measure; the count is of items of each size, each way.
        #[command(flatten)]
        run: Run,
        /// Which way the items go.
        #[arg(long, value_enum, value_delimiter = ',', default_value = "down,up,both")]
        direction: Vec<Direction>,
    },
    /// Connections per second, and the time of each step of one.
    Conn(Run),
    /// What a call costs beside many connections, and what a connection costs.
    Scale {
        /// How to measure; the count is of each number of connections.
        #[command(flatten)]
        run: Run,
        /// How many connections, ascending.
        #[arg(long, value_delimiter = ',', default_value = "1,10,100,1000")]
        connections: Vec<usize>,
    },
    /// Verified calls for a given time, beside which the server may be restarted; the count is not used.
    Soak {
        /// How to measure; sizes take turns, call by call.
        #[command(flatten)]
        run: Run,
        /// Calls outstanding.
        #[arg(short = 'O', long, default_value = "32", value_parser = parse_count)]
        window: u64,
        /// How long: seconds, or with s, m or h behind.
        #[arg(short = 'D', long, default_value = "60s", value_parser = parse_duration)]
        duration: Duration,
        /// Kill the server this often, in the middle of calls, and start it again.
        #[arg(long, requires = "loopback", value_parser = parse_duration)]
        restart: Option<Duration>,
        /// Say how it goes this often, on standard error.
        #[arg(long, default_value = "10s", value_parser = parse_duration)]
        interval: Duration,
    },
    /// Whether records of several runs agree, state by state of the host; ends with 1 when they do not.
    Agree {
        /// Files of records of the same tests.
        #[arg(required = true, num_args = 2..)]
        files: Vec<PathBuf>,
        /// How far inline ratios over shared memory may lie from their middle, percent.
        #[arg(long, default_value = "15")]
        within: f64,
    },
    /// One page with plots from what --json printed; of two files, what changed.
    Report {
        /// Files of records; with two, the older one first.
        #[arg(required = true, num_args = 1..=2)]
        files: Vec<PathBuf>,
        /// The page.
        #[arg(short, long, default_value = "gimmal-bench.html")]
        output: PathBuf,
    },
    /// A file of runs, or quick, full, paper, regress.
    Suite(Suite),
    /// What records say about configuration and machine, and which section of tuning.md to read.
    Advise {
        /// Files of records.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Print RESULTS.md: tables in TOML and records of one machine, one heading per machine.
    Results {
        /// Files of tables (.toml) and of records.
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// The other side, for clients that are started elsewhere.
    Serve(Serve),
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
    #[arg(long, required_unless_present_any = ["loopback", "hosts"])]
    pub address: Option<Address>,
    /// Start the server on other hosts, by ssh: a file with a line for each, `HOST ADDRESS [PROGRAM]`. One after the other.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["loopback", "address"])]
    pub hosts: Option<PathBuf>,
    /// Bytes of one body, each way; k, m and g are powers of 1024. A list is measured one after the other, a range
    /// (64..4k) in powers of two.
    #[arg(short, long, default_value = "64", value_parser = parse_sizes)]
    pub size: Sizes,
    /// All sizes from 2 bytes to 8 MiB, in powers of two.
    #[arg(short, long, conflicts_with = "size")]
    pub all: bool,
    /// Calls to measure; k, m and g are powers of 1000.
    #[arg(short = 'n', long, default_value = "100k", value_parser = parse_count)]
    pub count: u64,
    /// Calls before, and after each turn of a program of others, which are not measured [default: a tenth of the count, at most 20k].
    #[arg(long, value_parser = parse_count)]
    pub warmup: Option<u64>,
    /// Pairs: programs of others have so many turns, between as many parts of the calls. A part is as many slices as it needs,
    /// in which floors, sockets and bare rings have their turns.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub pairs: u64,
    /// Start the server and connect so often, each time for a part of the calls: where memory lies differs from start to start,
    /// and all slices of one share it. Intervals take in the median of every start.
    #[arg(long, default_value = "1", requires = "loopback", value_parser = clap::value_parser!(u32).range(1..=100))]
    pub starts: u32,
    /// Between starts, ask on standard output for the next turn, and wait for it on standard input.
    #[arg(long, hide = true)]
    pub in_turns: bool,
    /// How long a slice of the test takes, milliseconds; whoever takes turns with it takes as long. The host may move the
    /// cores within tens of them.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(1..=60_000))]
    pub slice_ms: u32,
    /// End after so many seconds of slices, though calls are left: for machines whose load nobody knows.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    pub limit_s: Option<u32>,
    /// Whom to compare with, in turns with the test.
    #[arg(long, value_enum, value_delimiter = ',', requires = "loopback")]
    pub against: Vec<Against>,
    /// Cores of client and server [default: two cores of this process that are no hyper-threads of each other].
    #[arg(long, value_name = "A,B", value_parser = parse_cores)]
    pub cpus: Option<Cores>,
    /// Rings, bytes, a power of two; larger ones are taken where four bodies need them [default: 256k; 64k for conn, 16k for
    /// scale].
    #[arg(long, value_parser = parse_bytes)]
    pub ring: Option<usize>,
    /// Pieces in which the server pulls loans over verbs, bytes [default: 256k; beside other traffic 64k where a post moves the
    /// bytes itself, as rxe's does].
    #[arg(long, requires = "loopback", value_parser = parse_bytes)]
    pub piece: Option<usize>,
    /// Look at every byte of every answer; a wrong one ends the run.
    #[arg(long)]
    pub verify: bool,
    /// Let the server do nothing for so many milliseconds in every second.
    #[arg(long, default_value = "0", requires = "loopback", value_parser = clap::value_parser!(u32).range(0..1000))]
    pub stall: u32,
    /// Let the server turn a bit over in this echo, to see that it is noticed.
    #[arg(long, hide = true, requires = "loopback")]
    pub corrupt: Option<u64>,
    /// One JSON object on standard output instead of the table.
    #[arg(long)]
    pub json: bool,
    /// Comma-separated values instead of the table.
    #[arg(long, conflicts_with = "json")]
    pub csv: bool,
    /// The columns of another program instead of the table, for what reads those.
    #[arg(long, value_enum, conflicts_with_all = ["json", "csv"])]
    pub format: Option<Format>,
    /// Write the distribution here, for HdrHistogram's tools; of several sizes each gets its own file, FILE.BYTES.
    #[arg(long, value_name = "FILE")]
    pub hgrm: Option<PathBuf>,
}

/// Columns that people and their scripts know.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Format {
    /// perftest's: half round trips in microseconds; or mebibytes and millions of messages per second.
    Perftest,
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
            | Self::Serve(_) => None,
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

/// Which runs, and what becomes of them.
#[derive(Args, Clone, PartialEq, Debug)]
pub struct Suite {
    /// quick, full, paper, regress, or a TOML file.
    pub name: String,
    /// Put this behind every line, as in "--provider verbs --address rdma://10.0.0.1:0".
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub with: String,
    /// Keep the records here, one JSON object a line.
    #[arg(long)]
    pub save: Option<PathBuf>,
    /// Make a page of them.
    #[arg(long)]
    pub page: Option<PathBuf>,
    /// Records of an earlier time; the program ends with 1 when one was better.
    #[arg(long)]
    pub baseline: Option<PathBuf>,
    /// How much a ratio may be worse than in the baseline, percent.
    #[arg(long, default_value = "15")]
    pub tolerance: f64,
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
    /// Pieces in which loans are pulled over verbs, bytes [default: 256k; beside other traffic 64k where a post moves
    /// the bytes itself].
    #[arg(long, value_parser = parse_bytes)]
    pub piece: Option<usize>,
    /// Do nothing for so many milliseconds in every second, to see what a stall does to the callers.
    #[arg(long, default_value = "0", value_parser = clap::value_parser!(u32).range(0..1000))]
    pub stall: u32,
    /// Started by a client.
    #[arg(long, hide = true)]
    pub child: bool,
    /// End when standard input does, as it does when whoever started us goes away.
    #[arg(long)]
    pub tied: bool,
    /// The echo in which a bit is turned over.
    #[arg(long, hide = true)]
    pub corrupt: Option<u64>,
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
            "gimmal-bench lat --loopback --provider tcp",
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
