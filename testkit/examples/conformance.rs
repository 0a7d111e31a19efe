//! Runs the conformance suite on one provider:
//! `conformance --provider sim|shm|tcp|verbs [--address rdma://HOST:0] [--only NAME] [--any] [--shared both|listener|client]
//! [--passed N]`, which fails unless exactly N cases hold.
//!
//! `--shared`: who of the two shares its receives (`Receives::Shared`).
//!
//! Prints a line for each case and the count last; exits with 1 when a case failed and with 2 when it could not run.

use std::{error::Error, io::Write, process::ExitCode};

use gimmal_sim::SimConfig;
use gimmal_testkit::conformance::{RealTime, Report, VirtualTime, knock_on_socket, knock_on_tcp, run_some};
use gimmal_transport::{Address, Any, AnyConfig, shm::Shm, tcp::Tcp};
#[cfg(feature = "verbs")]
use gimmal_transport::{
    ConnectError, ConnectOptions, ListenError, ListenOptions, PortConfig, PortError, Provider, Receives,
    verbs::{VerbsConnecting, VerbsGate, VerbsLink, VerbsListener, VerbsPort},
};

struct Arguments {
    provider: String,
    address: Option<Address>,
    only: String,
    /// Cases that must hold, no more and no fewer.
    passed: Option<usize>,
    /// Through `Any`, in place of the provider itself.
    any: bool,
    /// Whether the client and the listener share receives.
    shared: [bool; 2],
}

fn main() -> ExitCode {
    match arguments().and_then(|arguments| Ok((run(&arguments)?, arguments.passed))) {
        Ok((report, wanted)) => {
            println!("{report}");
            let is_other = wanted.is_some_and(|wanted| wanted != report.passed());
            if is_other {
                eprintln!("conformance: another number of cases must hold: {wanted:?}");
            }
            ExitCode::from(u8::from(report.failed() > 0 || is_other))
        }
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Result<Arguments, Box<dyn Error>> {
    let mut given = Arguments {
        provider: "sim".to_owned(),
        address: None,
        only: String::new(),
        passed: None,
        any: false,
        shared: [false; 2],
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        match word.as_str() {
            "--provider" => given.provider = value()?,
            "--address" => given.address = Some(value()?.parse()?),
            "--only" => given.only = value()?,
            "--passed" => given.passed = Some(value()?.parse()?),
            "--any" => given.any = true,
            "--shared" => {
                given.shared = match value()?.as_str() {
                    "both" => [true, true],
                    "listener" => [false, true],
                    "client" => [true, false],
                    other => return Err(format!("--shared {other}? both, listener or client").into()),
                };
            }
            _ => {
                return Err(format!(
                    "{word}? use --provider sim|shm|verbs, --address URL, --only NAME, --passed N, --any, --shared WHO"
                )
                .into());
            }
        }
    }
    Ok(given)
}

fn run(given: &Arguments) -> Result<Report, Box<dyn Error>> {
    match given.provider.as_str() {
        "sim" => Ok(run_some(&mut VirtualTime::new("roce", SimConfig::default()), &given.only, watch)),
        "shm" => on_shm(given),
        "tcp" => Ok(on_tcp(given)),
        #[cfg(feature = "verbs")]
        "verbs" => on_verbs(given),
        other => Err(format!("{other} is not compiled in: build with the cargo feature of that name").into()),
    }
}

/// Says what runs, so that a hang has a name.
fn watch(name: &'static str) {
    let mut errors = std::io::stderr();
    let _ = writeln!(errors, "running {name}");
}

fn on_shm(given: &Arguments) -> Result<Report, Box<dyn Error>> {
    let base = match &given.address {
        Some(Address::Shm { path }) => path.clone(),
        Some(other) => return Err(format!("{other} is no shm:// address").into()),
        None => std::env::temp_dir().join(format!("gimmal-conformance-{}", std::process::id())),
    };
    let address = move |number: u32| {
        let mut path = base.clone().into_os_string();
        path.push(format!(".{number}"));
        Address::Shm { path: path.into() }
    };
    let wrong = "rdma://127.0.0.1:1".parse()?;
    if given.any {
        let any = Any::with(AnyConfig { verbs: false, tcp: false, ..AnyConfig::default() });
        let mut harness = RealTime::new("any/shm", any, address, wrong).with_knocker(knock_on_socket);
        return Ok(run_some(&mut harness, &given.only, watch));
    }
    let mut harness = RealTime::new("shm", Shm, address, wrong).with_knocker(knock_on_socket);
    Ok(run_some(&mut harness, &given.only, watch))
}

fn on_tcp(given: &Arguments) -> Report {
    let host = match &given.address {
        Some(Address::Tcp { host, .. }) => host.clone(),
        _ => "127.0.0.1".to_owned(),
    };
    let address = move |_| Address::Tcp { host: host.clone(), port: 0, tls: false };
    let wrong = Address::Mem { name: "wrong".to_owned() };
    if given.any {
        let any = Any::with(AnyConfig { shm: false, verbs: false, ..AnyConfig::default() });
        let mut harness = RealTime::new("any/tcp", any, address, wrong).with_knocker(knock_on_tcp);
        return run_some(&mut harness, &given.only, watch);
    }
    let mut harness = RealTime::new("tcp", Tcp, address, wrong).with_knocker(knock_on_tcp);
    run_some(&mut harness, &given.only, watch)
}

#[cfg(feature = "verbs")]
fn on_verbs(given: &Arguments) -> Result<Report, Box<dyn Error>> {
    use gimmal_transport::verbs::Verbs;
    let Some(Address::Rdma { host, .. }) = given.address.clone() else {
        return Err("give --address rdma://HOST:0, an address of an RDMA device of this machine".into());
    };
    let name = format!("verbs/{host}");
    let address =
        move |_| Address::Rdma { host: host.clone(), port: 0, via: gimmal_transport::Via::default() };
    let wrong = Address::Mem { name: "wrong".to_owned() };
    if given.any {
        let any = Any::with(AnyConfig { shm: false, tcp: false, ..AnyConfig::default() });
        return Ok(watched(RealTime::new(&format!("any/{name}"), any, address, wrong), &given.only));
    }
    let whose = |shared| if shared { Receives::Shared } else { Receives::Own };
    let [client, listener] = given.shared.map(whose);
    let name = match given.shared {
        [false, false] => name,
        [true, true] => format!("{name}, shared receives"),
        [true, false] => format!("{name}, shared receives of the client"),
        [false, true] => format!("{name}, shared receives of the listener"),
    };
    let verbs = Sharing { verbs: Verbs::new(), client, listener };
    Ok(watched(RealTime::new(&name, verbs, address, wrong), &given.only))
}

/// Verbs whose every connection has its receives where this says.
#[cfg(feature = "verbs")]
#[derive(Clone, Debug)]
struct Sharing {
    verbs: gimmal_transport::verbs::Verbs,
    client: Receives,
    listener: Receives,
}

#[cfg(feature = "verbs")]
impl Provider for Sharing {
    type Port = VerbsPort;
    type Gate = VerbsGate;
    type Link = VerbsLink;
    type Listener = VerbsListener;
    type Connecting = VerbsConnecting;

    fn open_port(&self, config: &PortConfig) -> Result<VerbsPort, PortError> {
        self.verbs.open_port(config)
    }

    fn listen(&self, address: &Address, options: &ListenOptions) -> Result<VerbsListener, ListenError> {
        self.verbs.listen(address, &ListenOptions { receives: self.listener, ..options.clone() })
    }

    fn connect(
        &self,
        address: &Address,
        gate: &VerbsGate,
        options: &ConnectOptions,
    ) -> Result<VerbsConnecting, ConnectError> {
        let options = ConnectOptions { receives: self.client, ..options.clone() };
        self.verbs.connect(address, gate, &options)
    }
}

/// Runs the suite and looks at the devices' RNR counters after each case.
#[cfg(feature = "verbs")]
fn watched<P: Provider>(harness: RealTime<P>, only: &str) -> Report {
    let mut seen = rnr_sum();
    let mut harness = harness.with_knocker(gimmal_testkit::conformance::knock_on_cm).with_check(move || {
        let (before, after) = (seen, rnr_sum());
        seen = after;
        if before == after {
            Ok(())
        } else {
            Err(format!("RNR counters went from {before} to {after}").into())
        }
    });
    run_some(&mut harness, only, watch)
}

/// The RNR counters of all devices that have some.
#[cfg(feature = "verbs")]
fn rnr_sum() -> u64 {
    let devices = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
    let counters = devices
        .filter_map(|device| gimmal_rdma::device::rnr_counters(&device.file_name().to_string_lossy()).ok());
    counters.map(|counters| counters.received + counters.sent).sum()
}
