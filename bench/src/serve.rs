//! The server: echoes, and does its half of the floors when the client's file is there.

use std::{io::Write as _, os::fd::AsFd, time::Duration};

use gimmal_engine::{
    Acceptor, Idle, Inline,
    transport::{Address, ListenOptions, Provider},
};
use rustix::process::Signal;

use crate::{
    clock::Relax,
    echo::Echo,
    error::BenchError,
    floors::{FloorServer, Phase},
    plan::{Mode, Plan, engine_plan},
};

/// Empty turns between two looks at the phase.
const LOOKS: u32 = 64;
/// The longest sleep while nothing is measured, and of a worker in hand-off mode.
const NAP: Duration = Duration::from_millis(1);

/// How to serve.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServeOptions {
    /// Where to listen.
    pub address: Address,
    /// Our receive ring, bytes.
    pub ring_bytes: u32,
    /// Standard input is the client's file: do its floors, end when it says so or dies, serve nobody else.
    pub is_child: bool,
}

/// Serves until the client that started us ends it; for ever when nobody did.
///
/// # Errors
/// See [`BenchError`].
pub fn serve<P: Provider>(provider: &P, options: &ServeOptions) -> Result<(), BenchError> {
    let mut floors = None;
    if options.is_child {
        die_with_parent()?;
        floors = Some(FloorServer::attach(std::io::stdin().as_fd())?);
    }
    let plan = engine_plan(0, options.ring_bytes, Idle::default())?;
    let mut inline = Inline::new(provider, &plan, Echo::default())?;
    let listener = provider.listen(&options.address, &ListenOptions::default())?;
    let mut acceptor = Acceptor::spawn(listener, vec![inline.handle()])?;
    let mut out = std::io::stdout();
    writeln!(out, "{}", acceptor.address())
        .and_then(|()| out.flush())
        .map_err(BenchError::system("saying where we listen"))?;
    match floors {
        None => serve_all(&mut inline),
        Some(mut floors) => {
            serve_parent(&mut inline, &mut acceptor, &mut floors)?;
            inline.close(Duration::from_secs(1));
            Ok(())
        }
    }
}

/// Whoever started us is gone: so are we.
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

/// Serves one client after another.
fn serve_all<P: Provider>(inline: &mut Inline<P, Echo>) -> ! {
    loop {
        match inline.app().plan().map(|plan| plan.mode) {
            Some(Mode::Inline) => {
                if inline.turn() == 0 {
                    std::hint::spin_loop();
                }
            }
            Some(Mode::Handoff) | None => {
                inline.idle(NAP * 100);
            }
        }
    }
}

/// Does what the client's phase word says.
fn serve_parent<P: Provider>(
    inline: &mut Inline<P, Echo>,
    acceptor: &mut Acceptor,
    floors: &mut FloorServer,
) -> Result<(), BenchError> {
    let mut plan: Option<Plan> = None;
    loop {
        let (phase, word) = floors.phase();
        if plan.is_none() && inline.app().plan().is_some() {
            plan = inline.app().plan().cloned();
            // One client is all there will be; a thread that waits for more would be measured with us.
            acceptor.stop();
        }
        floors.answer(word);
        match (phase, &plan) {
            (Phase::End, _) => return Ok(()),
            (Phase::Idle, _) | (_, None) => {
                inline.idle(NAP);
            }
            (Phase::Line, Some(plan)) => floors.line(word, relax(plan)),
            (Phase::Frame, Some(plan)) => floors.frame(word, plan.bytes, relax(plan))?,
            (Phase::Test, Some(plan)) => test(inline, floors, word, plan),
        }
    }
}

fn relax(plan: &Plan) -> Relax {
    Relax::for_cores(plan.client_core, plan.server_core)
}

/// Echoes until the client wants something else.
fn test<P: Provider>(inline: &mut Inline<P, Echo>, floors: &FloorServer, word: u64, plan: &Plan) {
    let relax = relax(plan);
    match plan.mode {
        Mode::Inline => {
            let mut empty = 0u32;
            loop {
                if inline.turn() > 0 {
                    continue;
                }
                empty = empty.wrapping_add(1);
                if empty.is_multiple_of(LOOKS) && !floors.is_still(word) {
                    return;
                }
                relax.relax();
            }
        }
        Mode::Handoff => {
            while floors.is_still(word) {
                inline.idle(NAP);
            }
        }
    }
}
