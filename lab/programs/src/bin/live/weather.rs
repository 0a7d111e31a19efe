//! Calls while the network loses, delays and reorders packets both ways: each ends once, and the server's book agrees
//! with every fate.

use std::{collections::VecDeque, ops::Range, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Args;
use gimmal::{CallError, Client, Cx, Fate, Instant};

use crate::{
    fates::Fates,
    patience::{LEAD, Patience, ask, connect, first_number, later},
    tally::TallyClient,
};

/// Calls in flight to each server.
const WINDOW: usize = 32;
/// Calls that have numbers of their own in this process, to each server.
const CALLS_MAX: u64 = 1 << 30;
/// How much longer than asked for the first answer may take.
const ANSWERED_WITHIN: Duration = Duration::from_secs(20);

/// The network of the server's own host.
#[gimmal::service]
pub(crate) trait Weather {
    /// Treats what `netdev` sends as these arguments of netem say, from shortly after the answer on; none: as usual. Its
    /// packets have at most `mtu` bytes.
    async fn set(&self, cx: &Cx, netdev: String, netem: String, mtu: u32);
}

/// The service.
pub(crate) struct Sky;

impl Weather for Sky {
    async fn set(&self, _: &Cx, netdev: String, netem: String, mtu: u32) {
        later(move || treat(&netdev, &netem, mtu));
    }
}

fn treat(netdev: &str, netem: &str, mtu: u32) {
    let mtu = mtu.to_string();
    let how: Vec<&str> = match netem {
        "" => vec!["qdisc", "del", "dev", netdev, "root"],
        netem => ["qdisc", "replace", "dev", netdev, "root", "netem"]
            .into_iter()
            .chain(netem.split_whitespace())
            .collect(),
    };
    // Taking away what is not there fails, and harms nobody.
    let done = [("tc", how), ("ip", vec!["link", "set", "dev", netdev, "mtu", &mtu])]
        .map(|(program, arguments)| Command::new(program).args(arguments).output().map(|done| done.status));
    println!("{netdev}: netem {netem:?}, mtu {mtu}: {done:?}");
}

/// Packets of ours that netem dropped.
fn dropped(netdev: &str) -> Option<u64> {
    let shown = Command::new("tc").args(["-s", "qdisc", "show", "dev", netdev]).output().ok()?;
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    shown.split_once("dropped ")?.1.split(',').next()?.parse().ok()
}

/// The client.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// The servers: each is called at the same time as the others.
    #[arg(long = "address", required = true)]
    addresses: Vec<String>,
    /// The network device of both hosts.
    #[arg(long, default_value = "eth0")]
    netdev: String,
    /// Arguments of netem, as in "loss 10%".
    #[arg(long, default_value = "")]
    netem: String,
    /// Largest packet of both hosts, bytes [default: as it is].
    #[arg(long)]
    mtu: Option<u32>,
    /// Calls to make to each server.
    #[arg(long, default_value_t = CALLS_MAX)]
    calls: u64,
    /// No further call is made after this long, s.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    #[command(flatten)]
    patience: Patience,
}

/// Waits for a call's answer.
type Answer = Box<dyn FnOnce() -> Result<u64, CallError> + Send>;

/// One server, and what became of the calls to it.
struct Way<'a> {
    address: &'a str,
    client: Client,
    tally: TallyClient<Client>,
    fates: Fates,
    flying: VecDeque<(u64, Answer)>,
    numbers: Range<u64>,
}

impl<'a> Way<'a> {
    fn open(address: &'a str, first: u64, patience: &Patience) -> anyhow::Result<Self> {
        let client = connect(address, patience)?;
        Ok(Self {
            address,
            tally: TallyClient::new(client.clone()),
            client,
            fates: Fates::default(),
            flying: VecDeque::new(),
            numbers: first..first,
        })
    }

    /// Waits for the oldest call, and notes how it ended.
    fn end_one(&mut self) -> anyhow::Result<()> {
        let Some((number, answer)) = self.flying.pop_front() else { return Ok(()) };
        match answer() {
            Ok(echoed) => {
                ensure!(echoed == number, "call {number} got the answer of {echoed}");
                self.fates.answered.insert(number);
            }
            Err(error) => {
                if error.fate() == Fate::NotRun {
                    // Nobody is there at the moment.
                    std::thread::sleep(Duration::from_millis(5));
                }
                self.fates.failed(number, &error);
            }
        }
        Ok(())
    }

    /// Calls until there were enough, or the time is over and one was answered. The last are in flight.
    fn go(&mut self, calls: u64, until: Instant) -> anyhow::Result<()> {
        // A connection may be dead for seconds before any call is answered.
        let (latest, last) = (until + ANSWERED_WITHIN, self.numbers.start + calls);
        while self.numbers.end < last
            && (!until.has_passed() || (self.fates.answered.is_empty() && !latest.has_passed()))
        {
            let call = self.tally.add(self.numbers.end);
            self.flying.push_back((self.numbers.end, Box::new(move || call.wait())));
            self.numbers.end += 1;
            if self.flying.len() == WINDOW {
                self.end_one()?;
            }
        }
        Ok(())
    }

    /// Waits for the last calls, and compares all with the server's book.
    fn judge(&mut self) -> anyhow::Result<()> {
        while !self.flying.is_empty() {
            self.end_one()?;
        }
        let Self { address, client, tally, fates, numbers, .. } = self;
        let made = numbers.end - numbers.start;
        println!("{address}: {made} calls: {fates}; {} reconnects", client.reconnects());
        let ended = fates.answered.len() + fates.not_run.len() + fates.maybe_ran.len();
        ensure!(u64::try_from(ended) == Ok(made), "{ended} of {made} calls ended");
        ensure!(!fates.answered.is_empty(), "no call was answered");
        fates.agree(tally, numbers.clone())
    }
}

/// Calls through the weather, and compares.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    ensure!(options.calls <= CALLS_MAX, "at most {CALLS_MAX} calls have numbers");
    let firsts = (first_number()..).step_by(usize::try_from(CALLS_MAX)?);
    let ways = options.addresses.iter().zip(firsts);
    let mut ways: Vec<Way<'_>> = ways
        .map(|(address, first)| Way::open(address, first, &options.patience))
        .collect::<Result<_, _>>()?;
    let weather = WeatherClient::new(ways[0].client.clone());
    let set = |netem: &str, mtu| {
        ask(|| weather.set(options.netdev.clone(), netem.to_owned(), mtu).wait())?;
        std::thread::sleep(LEAD.saturating_mul(2));
        treat(&options.netdev, netem, mtu);
        anyhow::Ok(())
    };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", options.netdev))?.trim().parse()?;
    set(&options.netem, options.mtu.unwrap_or(mtu))?;
    let until = Instant::now() + Duration::from_secs(options.seconds);
    let gone = std::thread::scope(|scope| {
        let all: Vec<_> = ways.iter_mut().map(|way| scope.spawn(|| way.go(options.calls, until))).collect();
        all.into_iter().try_for_each(|way| way.join().expect("it does not panic"))
    });
    let dropped = dropped(&options.netdev);
    // This side first: the question has to arrive.
    treat(&options.netdev, "", mtu);
    set("", mtu)?;
    gone?;
    println!("{dropped:?} packets dropped");
    let is_lossy = options.netem.contains("loss");
    ensure!(!is_lossy || dropped.context("tc tells no drops")? > 0, "nothing was lost: not injected");
    ways.iter_mut().try_for_each(Way::judge)
}
