//! The server: echoes, and does its half of the floors when the client's file is there.

use std::{io::Write as _, os::fd::AsFd, time::Duration};

use gimmal::local::LocalServer;
use gimmal_engine::{
    Acceptor, Idle, Inline,
    transport::{Address, Instant, ListenOptions, Provider},
    worker::thread::pin_to,
};
use rustix::process::Signal;

use crate::{
    against::sockets::Stream,
    clock::Relax,
    echo::Echo,
    environment::raise_descriptors,
    error::BenchError,
    floors::{FloorServer, Phase},
    inline,
    plan::{Layer, Mode, Plan, engine_config},
    service,
};

/// Empty turns between two looks at the phase.
const LOOKS: u32 = 64;
/// The longest sleep while nothing is measured.
const NAP: Duration = Duration::from_millis(1);

/// From one stall to the next.
const STALLS: Duration = Duration::from_secs(1);

/// How to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// Where to listen.
    pub address: Address,
    /// Our receive ring, bytes.
    pub ring_bytes: u32,
    /// In which loans are pulled, bytes; none: as the engine does by itself.
    pub piece_bytes: Option<u32>,
    /// Standard input is the client's file: do its floors, end when it says so or dies, serve nobody else.
    pub is_child: bool,
    /// End when standard input does.
    pub is_tied: bool,
    /// Sleep as soon as there is nothing to do.
    pub is_asleep: bool,
    /// Sockets of the client to connect to, as in `tcp:127.0.0.1:4711`.
    pub beside: Vec<String>,
    /// How long to do nothing in every second.
    pub stall: Duration,
    /// The number of the echo in which a bit is turned over.
    pub corrupt: Option<u64>,
}

/// Serves until the client that started us ends it; for ever when nobody did.
///
/// # Errors
/// See [`BenchError`].
pub fn serve<P: Provider>(provider: &P, options: &ServeOptions) -> Result<(), BenchError> {
    let mut floors = None;
    if options.is_child {
        die_with_parent()?;
        raise_descriptors();
        floors = Some(FloorServer::attach(std::io::stdin().as_fd())?);
    }
    if options.is_tied {
        end_with_input()?;
    }
    let beside = options.beside.iter().map(|place| Stream::connect(place)).collect::<Result<_, _>>()?;
    let idle = if options.is_asleep { Idle::Event } else { Idle::default() };
    let mut config = engine_config(0, options.ring_bytes, idle);
    if let Some(bytes) = options.piece_bytes {
        (config.port.bulk_piece_bytes, config.port.bulk_piece_in_post_bytes) = (bytes, bytes);
    }
    let plan = config.validate()?;
    let inline = Inline::new(provider, &plan, Echo::corrupting(options.corrupt))?;
    let listener = provider.listen(&options.address, &ListenOptions::default())?;
    let acceptor = Acceptor::spawn(listener, vec![inline.handle()])?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", acceptor.address())
        .and_then(|()| out.flush())
        .map_err(BenchError::system("saying where we listen"))?;
    let staller = Staller::new(options.stall);
    let mut host = Host { inline, acceptor, rpc: None, ring_bytes: options.ring_bytes, beside, staller };
    match floors {
        None => host.serve_all(),
        Some(mut floors) => {
            host.serve_parent(&mut floors)?;
            host.inline.close(Duration::from_secs(1));
            Ok(())
        }
    }
}

/// Ends this process when standard input ends: the starting process closed it, or is gone.
fn end_with_input() -> Result<(), BenchError> {
    let wait = || {
        // However it ends, nobody is there any more.
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        std::process::exit(0);
    };
    let spawned = std::thread::Builder::new().name("input".to_owned()).spawn(wait);
    spawned.map(drop).map_err(BenchError::system("starting a thread"))
}

/// The parent process is gone: end too.
fn die_with_parent() -> Result<(), BenchError> {
    let parent = rustix::process::getppid();
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))
        .map_err(BenchError::system("PR_SET_PDEATHSIG"))?;
    // It may have died before we asked.
    if parent == rustix::process::getppid() {
        return Ok(());
    }
    Err(BenchError::Server("lost the one that started it".to_owned()))
}

/// The one thread of the server and what it turns.
struct Host<P: Provider> {
    /// Takes plans, and echoes for the engine layer.
    inline: Inline<P, Echo>,
    acceptor: Acceptor,
    /// While a plan of the RPC layer is served.
    rpc: Option<LocalServer>,
    ring_bytes: u32,
    /// Sockets that the engine is compared with.
    beside: Vec<Stream>,
    staller: Staller,
}

/// Once a second, does nothing for a time: what a collector of garbage, or a busy neighbour, does to a server.
#[derive(Debug)]
struct Staller {
    stall: Duration,
    next: Instant,
    looks: u32,
}

impl Staller {
    fn new(stall: Duration) -> Self {
        Self { stall, next: Instant::now() + STALLS, looks: 0 }
    }

    #[inline]
    fn stall(&mut self) {
        if self.stall.is_zero() {
            return;
        }
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(LOOKS) && Instant::now() >= self.next {
            std::thread::sleep(self.stall);
            self.next = self.next + STALLS;
        }
    }
}

impl<P: Provider> Host<P> {
    /// Serves one client after another.
    fn serve_all(&mut self) -> ! {
        loop {
            self.answer_plan();
            match self.inline.app().plan().map(|plan| plan.mode) {
                None => {
                    self.rpc = None;
                    self.inline.idle(NAP.saturating_mul(100));
                }
                Some(Mode::Inline) => {
                    if self.turn() == 0 {
                        std::hint::spin_loop();
                    }
                }
                Some(Mode::Handoff | Mode::Asleep) => self.nap(NAP),
            }
        }
    }

    /// One turn of everything.
    fn turn(&mut self) -> usize {
        self.staller.stall();
        self.inline.turn() + self.rpc.as_mut().map_or(0, LocalServer::turn)
    }

    /// A turn of everything; sleeps a little when there was nothing to do.
    fn nap(&mut self, limit: Duration) {
        self.staller.stall();
        match &mut self.rpc {
            None => self.inline.idle(limit),
            Some(rpc) => self.inline.turn() + rpc.idle(limit),
        };
    }

    /// Answers a plan that was asked for; pins this thread, as the client wants it.
    fn answer_plan(&mut self) {
        let Some(plan) = self.inline.app().asked().cloned() else { return };
        let taken = self.take(&plan);
        self.inline.with(|app, io| match &taken {
            Ok(url) => app.accept(io, url),
            Err(error) => app.refuse(io, &error.to_string()),
        });
    }

    fn take(&mut self, plan: &Plan) -> Result<String, BenchError> {
        if plan.same_host {
            pin_to(plan.server_core)?;
        }
        self.rpc = None;
        if plan.layer == Layer::Engine {
            return Ok(String::new());
        }
        let server = service::serve(self.acceptor.address(), plan, self.ring_bytes)?;
        let url = server.address().to_string();
        self.rpc = Some(server);
        Ok(url)
    }

    /// Does what the client's phase word says.
    fn serve_parent(&mut self, floors: &mut FloorServer) -> Result<(), BenchError> {
        let mut plan: Option<Plan> = None;
        loop {
            let (phase, word) = floors.phase();
            self.answer_plan();
            if plan.is_none() && self.inline.app().plan().is_some() {
                plan = self.inline.app().plan().cloned();
            }
            floors.answer(word);
            match (phase, &plan) {
                (Phase::End, _) => return Ok(()),
                (_, None) => self.nap(NAP),
                (Phase::Idle, Some(_)) => self.nap(NAP.saturating_mul(2)),
                // A look at a device each millisecond would be part of what they measure.
                (Phase::Rest, Some(_)) => std::thread::sleep(NAP.saturating_mul(20)),
                (Phase::Line, Some(plan)) => floors.line(word, relax(plan)),
                (Phase::Frame, Some(plan)) => floors.frame(word, plan.bytes, plan.window, relax(plan))?,
                (Phase::Ring, Some(plan)) => floors.ring(word, plan.bytes, plan.window, relax(plan))?,
                (Phase::Block, Some(plan)) => floors.block(word, plan.block, relax(plan))?,
                (Phase::Test, Some(plan)) => self.test(floors, word, plan, plan.mode),
                (Phase::Spin, Some(plan)) => self.test(floors, word, plan, Mode::Inline),
                // The rest are sockets.
                (phase, Some(plan)) => {
                    let relax = (plan.mode == Mode::Inline).then(|| relax(plan));
                    let stream = self.beside.iter_mut().find(|stream| stream.phase() == phase);
                    let stream = stream.ok_or(BenchError::Wrong("no such socket"))?;
                    let go_on = || floors.is_still(word);
                    match plan.block {
                        0 => stream.echo(plan.bytes, relax, go_on)?,
                        bytes => stream.read_blocks(bytes, relax, go_on)?,
                    }
                }
            }
        }
    }

    /// Echoes until the client wants something else.
    fn test(&mut self, floors: &FloorServer, word: u64, plan: &Plan, mode: Mode) {
        if !plan.keeps_accepting {
            // One client is all there will be; a thread that waits for more would be measured with us.
            self.acceptor.stop();
        }
        let go_on = || floors.is_still(word);
        let Self { inline, staller, .. } = self;
        match (mode, &mut self.rpc) {
            (Mode::Inline, None) => spin(relax(plan), || inline.turn(), go_on, staller),
            (Mode::Inline, Some(rpc)) => spin(relax(plan), || rpc.turn(), go_on, staller),
            (Mode::Handoff | Mode::Asleep, None) => {
                while go_on() {
                    staller.stall();
                    inline.idle(inline::NAP);
                }
            }
            (Mode::Handoff | Mode::Asleep, Some(rpc)) => rpc.run_until(inline::NAP, || !go_on()),
        }
    }
}

/// Turns without ever sleeping, until `go_on`, which is asked now and then, says no.
#[inline]
fn spin(relax: Relax, mut turn: impl FnMut() -> usize, go_on: impl Fn() -> bool, staller: &mut Staller) {
    let mut empty = 0u32;
    loop {
        staller.stall();
        if turn() > 0 {
            continue;
        }
        empty = empty.wrapping_add(1);
        if empty.is_multiple_of(LOOKS) && !go_on() {
            return;
        }
        // A turn is a pause by itself.
        if relax == Relax::Yield {
            relax.relax();
        }
    }
}

fn relax(plan: &Plan) -> Relax {
    Relax::for_cores(plan.client_core, plan.server_core)
}
