//! From the command line to the report.

use gimmal_engine::{
    transport::{Address, Provider},
    worker::thread::pin_to,
};

use crate::{
    args::{Cli, Command, Cores, Run, Serve},
    child::Server,
    clock::Relax,
    error::BenchError,
    floors::{Floors, Phase},
    handoff::HandoffTarget,
    inline::InlineTarget,
    measure::{Measured, measure},
    plan::{Layer, Mode, Plan, ProviderName, ring_for},
    report::Report,
    rpc,
    serve::{ServeOptions, serve},
    target::{Target, body},
};

/// Does what the command line says.
///
/// # Errors
/// See [`BenchError`].
pub fn run(cli: Cli) -> Result<(), BenchError> {
    match cli.command {
        Command::Lat(run) => print(&run, &client(&run, 1)?),
        Command::Rate { run, window } => {
            let window = usize::try_from(window).ok().filter(|window| *window <= 1 << 20);
            let window = window.ok_or_else(|| BenchError::Arguments("-O: at most 1m".to_owned()))?;
            print(&run, &client(&run, window)?)
        }
        Command::Serve(serve) => server(&serve),
    }
}

fn print(run: &Run, report: &Report) -> Result<(), BenchError> {
    if let Some(warning) = report.warning() {
        eprintln!("gimmal-bench: {warning}");
    }
    if run.json {
        let text = serde_json::to_string(report);
        println!("{}", text.map_err(|error| BenchError::system("printing")(error))?);
    } else {
        println!("{report}");
    }
    Ok(())
}

/// Something that is done for whichever provider is asked for.
trait With {
    type Output;
    fn with<P: Provider>(self, provider: P) -> Result<Self::Output, BenchError>;
}

fn with_provider<W: With>(name: ProviderName, with: W) -> Result<W::Output, BenchError> {
    match name {
        #[cfg(feature = "shm")]
        ProviderName::Shm => with.with(gimmal_transport::shm::Shm),
        #[cfg(feature = "verbs")]
        ProviderName::Verbs => with.with(gimmal_transport::verbs::Verbs::new()),
        #[allow(unreachable_patterns)] // unless every provider is in this build
        name => Err(BenchError::NotBuilt { provider: name.name() }),
    }
}

/// Whether the provider is in this build.
struct IsBuilt;

impl With for IsBuilt {
    type Output = ();

    fn with<P: Provider>(self, _: P) -> Result<(), BenchError> {
        Ok(())
    }
}

struct Connect<'a> {
    address: &'a Address,
    plan: &'a Plan,
    ring_bytes: u32,
}

impl With for Connect<'_> {
    type Output = Box<dyn Target>;

    fn with<P: Provider>(self, provider: P) -> Result<Box<dyn Target>, BenchError> {
        let Self { address, plan, ring_bytes } = self;
        Ok(match (plan.layer, plan.mode) {
            (Layer::Engine, Mode::Inline) => {
                Box::new(InlineTarget::connect(&provider, address, plan, ring_bytes)?)
            }
            (Layer::Engine, Mode::Handoff) => {
                Box::new(HandoffTarget::connect(&provider, address, plan, ring_bytes)?)
            }
            (Layer::Rpc, _) => rpc::connect(&provider, address, plan, ring_bytes)?,
        })
    }
}

struct Listen(ServeOptions);

impl With for Listen {
    type Output = ();

    fn with<P: Provider>(self, provider: P) -> Result<(), BenchError> {
        serve(&provider, &self.0)
    }
}

/// Whether this process and one at `address` are on one host for sure.
fn is_same_host(address: Option<&Address>) -> bool {
    matches!(address, Some(Address::Shm { .. } | Address::Mem { .. }))
}

fn client(run: &Run, window: usize) -> Result<Report, BenchError> {
    with_provider(run.provider, IsBuilt)?;
    let cores = Cores::choose(run.cpus)?;
    let plan = Plan {
        layer: run.layer,
        mode: run.mode,
        bytes: run.size,
        window,
        client_core: cores.client,
        server_core: cores.server,
        same_host: run.loopback || is_same_host(run.address.as_ref()),
    };
    let ring_bytes = ring_for(run.size, 256 << 10);
    let mut loopback = None;
    if run.loopback {
        let relax = Relax::for_cores(cores.client, cores.server);
        let (floors, fd) = Floors::create(body(run.size), relax)?;
        loopback = Some((floors, Server::start(run.provider, run.address.as_ref(), ring_bytes, fd)?));
    }
    let address = match (&loopback, &run.address) {
        (Some((_, server)), _) => server.address().clone(),
        (None, Some(address)) => address.clone(),
        (None, None) => return Err(BenchError::Arguments("--address or --loopback".to_owned())),
    };
    pin_to(cores.client)?;
    let mut target = with_provider(run.provider, Connect { address: &address, plan: &plan, ring_bytes })?;
    let warmup = run.warmup.unwrap_or_else(|| (run.count / 10).clamp(1, 20_000));
    let measured = match &mut loopback {
        Some((floors, server)) => {
            server.connected();
            measure(&mut *target, Some(floors), run.count, warmup, run.json)?
        }
        None => measure(&mut *target, None, run.count, warmup, run.json)?,
    };
    if let Some((floors, _)) = &mut loopback {
        // It answers our goodbye while it waits.
        floors.announce(Phase::Idle)?;
    }
    target.close();
    if let Some((mut floors, server)) = loopback {
        floors.announce(Phase::End)?;
        server.end()?;
    }
    Ok(report(run, &plan, &measured))
}

fn report(run: &Run, plan: &Plan, measured: &Measured) -> Report {
    let Measured { test, floors } = measured;
    let frame_ns = floors.as_ref().map(|floors| floors.frame.all().fine_median_ns());
    let ratio = frame_ns.filter(|frame| *frame > 0.0).map(|frame| {
        if plan.window == 1 { test.fine_median_ns() / frame } else { test.per_second() * frame / 1e9 }
    });
    let drift = floors.as_ref().map(|floors| floors.line.drift_pct().max(floors.frame.drift_pct()));
    Report {
        provider: run.provider.name(),
        layer: plan.layer.name(),
        mode: plan.mode.name(),
        bytes: plan.bytes,
        window: plan.window,
        count: test.count(),
        p50_ns: test.quantile_ns(0.5),
        p99_ns: test.quantile_ns(0.99),
        p999_ns: test.quantile_ns(0.999),
        max_ns: test.max_ns(),
        calls_per_s: test.per_second(),
        line_floor_p50_ns: floors.as_ref().map(|floors| floors.line.all().quantile_ns(0.5)),
        frame_floor_p50_ns: floors.as_ref().map(|floors| floors.frame.all().quantile_ns(0.5)),
        ratio_to_frame_floor: ratio,
        floor_drift_pct: drift,
        cpus: [plan.client_core, plan.server_core],
        commit: env!("GIMMAL_COMMIT"),
    }
}

fn server(arguments: &Serve) -> Result<(), BenchError> {
    let provider = match (&arguments.provider, &arguments.address) {
        (Some(provider), _) => *provider,
        (None, Address::Shm { .. }) => ProviderName::Shm,
        (None, Address::Rdma { .. }) => ProviderName::Verbs,
        (None, other) => {
            return Err(BenchError::Arguments(format!("{other}: serve on shm:// or rdma://")));
        }
    };
    let ring_bytes = u32::try_from(arguments.ring).ok().and_then(u32::checked_next_power_of_two);
    let ring_bytes = ring_bytes.ok_or_else(|| BenchError::Arguments("--ring: at most 1g".to_owned()))?;
    let options = ServeOptions { address: arguments.address.clone(), ring_bytes, is_child: arguments.child };
    with_provider(provider, Listen(options))
}
