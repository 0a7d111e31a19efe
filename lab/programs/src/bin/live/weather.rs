//! Calls while the network loses, delays and reorders packets both ways: each ends once, and the server's book agrees
//! with every fate.

use std::{collections::VecDeque, process::Command, time::Duration};

use anyhow::{Context as _, ensure};
use clap::Args;
use gimmal::{CallError, Cx, Fate, Instant};

use crate::{
    fates::Fates,
    patience::{LEAD, Patience, ask, connect, first_number, later},
    tally::TallyClient,
};

/// Calls in flight.
const WINDOW: usize = 32;
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
    /// The server.
    #[arg(long)]
    address: String,
    /// The network device of both hosts.
    #[arg(long, default_value = "eth0")]
    netdev: String,
    /// Arguments of netem, as in "loss 10%".
    #[arg(long, default_value = "")]
    netem: String,
    /// Largest packet of both hosts, bytes [default: as it is].
    #[arg(long)]
    mtu: Option<u32>,
    /// Calls to make.
    #[arg(long, default_value_t = u64::MAX >> 33)]
    calls: u64,
    /// No further call is made after this long, s.
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    #[command(flatten)]
    patience: Patience,
}

/// Notes how a call ended.
fn end(fates: &mut Fates, number: u64, outcome: Result<u64, CallError>) -> anyhow::Result<()> {
    match outcome {
        Ok(echoed) => {
            ensure!(echoed == number, "call {number} got the answer of {echoed}");
            fates.answered.insert(number);
        }
        Err(error) => {
            if error.fate() == Fate::NotRun {
                // Nobody is there at the moment.
                std::thread::sleep(Duration::from_millis(5));
            }
            fates.failed(number, &error);
        }
    }
    Ok(())
}

/// Calls through the weather, and compares.
pub(crate) fn run(options: &Options) -> anyhow::Result<()> {
    let (address, patience) = (&options.address, &options.patience);
    let client = connect(address, patience)?;
    let (tally, weather) = (TallyClient::new(client.clone()), WeatherClient::new(client.clone()));
    let set = |netem: &str, mtu| {
        ask(|| weather.set(options.netdev.clone(), netem.to_owned(), mtu).wait())?;
        std::thread::sleep(LEAD.saturating_mul(2));
        treat(&options.netdev, netem, mtu);
        anyhow::Ok(())
    };
    let mtu = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", options.netdev))?.trim().parse()?;
    set(&options.netem, options.mtu.unwrap_or(mtu))?;
    let (first, until) = (first_number(), Instant::now() + Duration::from_secs(options.seconds));
    // A connection may be dead for seconds before any call is answered.
    let latest = until + ANSWERED_WITHIN;
    let (mut fates, mut flying, mut next) = (Fates::default(), VecDeque::new(), first);
    let goes_on = |fates: &Fates| !until.has_passed() || (fates.answered.is_empty() && !latest.has_passed());
    while next < first + options.calls && goes_on(&fates) {
        flying.push_back((next, tally.add(next)));
        next += 1;
        if flying.len() == WINDOW
            && let Some((number, call)) = flying.pop_front()
        {
            end(&mut fates, number, call.wait())?;
        }
    }
    let dropped = dropped(&options.netdev);
    // This side first: the question has to arrive.
    treat(&options.netdev, "", mtu);
    for (number, call) in flying {
        end(&mut fates, number, call.wait())?;
    }
    set("", mtu)?;
    let (made, reconnects) = (next - first, client.reconnects());
    println!("{made} calls: {fates}; {reconnects} reconnects; {dropped:?} packets dropped");
    let ended = fates.answered.len() + fates.not_run.len() + fates.maybe_ran.len();
    ensure!(u64::try_from(ended) == Ok(made), "{ended} of {made} calls ended");
    ensure!(!fates.answered.is_empty(), "no call was answered");
    let is_lossy = options.netem.contains("loss");
    ensure!(!is_lossy || dropped.context("tc tells no drops")? > 0, "nothing was lost: not injected");
    fates.agree(&tally, first..next)
}
