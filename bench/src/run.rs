//! From the command line to the report.

use std::path::PathBuf;

use gimmal_engine::transport::Address;

use crate::{
    advise,
    against::Goal,
    agree,
    args::{Cli, Command, Cores, Format, Run, Serve, Touch, command_line},
    beside,
    client::measure_job,
    csv,
    error::BenchError,
    hosts, html, load, many, out, pages,
    plan::{Layer, Mode, ProviderName},
    report::Report,
    results,
    serve::ServeOptions,
    session::Job,
    soak::{self, Chaos},
    stream, suite,
};

/// Does what the command line says.
///
/// # Errors
/// See [`BenchError`].
pub fn run(mut cli: Cli) -> Result<(), BenchError> {
    if let Some(hosts) = cli.command.run_mut().and_then(|run| run.hosts.take()) {
        return hosts::each(&hosts, &cli.command, |command| run(Cli { command }));
    }
    match cli.command {
        Command::Lat(run) => each_size(&run, &Job::new("lat", Goal::Latency, 1)),
        Command::Rpc(run) => {
            each_size(&Run { layer: Layer::Typed, ..run }, &Job::new("lat", Goal::Latency, 1))
        }
        Command::Rate { run, window, threads } => {
            if threads > 1 && run.mode != Mode::Handoff {
                let why = "-t: calls of several threads are handed off: --mode handoff";
                return Err(BenchError::Arguments(why.to_owned()));
            }
            let job = Job::new("rate", Goal::Rate, window_of(window.saturating_mul(threads))?);
            each_size(&run, &Job { threads: usize::try_from(threads).unwrap_or(1), ..job })
        }
        Command::Bw { run, window, touch } => {
            let job = Job::new("bw", Goal::Bandwidth, window_of(window)?);
            each_size(&run, &Job { is_whole: touch == Touch::All, ..job })
        }
        Command::Load { run, window, rates, seconds } => {
            finish(&run, load::sweep(&run, window_of(window)?, &rates, seconds)?, true)
        }
        Command::Stream { run, direction } => finish(&run, stream::streams(&run, &direction)?, true),
        Command::Conn(run) => finish(&run, many::connections(&run)?, true),
        Command::Scale { run, connections } => finish(&run, many::scale(&run, &connections)?, true),
        Command::Soak { run, window, duration, restart, interval } => {
            let chaos = Chaos { duration, restart, interval };
            finish(&run, soak::soak(&run, window_of(window)?, &chaos)?, true)
        }
        Command::Agree { files, within, json } => {
            let wrong = agree::tell(&read_all(&files)?, within, json)?;
            let (number, what) = (wrong.len(), wrong.join("\n  "));
            if number == 0 { Ok(()) } else { Err(BenchError::Suite { number, what }) }
        }
        Command::Report { files, output } => {
            let runs = read_all(&files)?;
            std::fs::write(&output, html::page(&runs)?).map_err(BenchError::system("writing the page"))?;
            eprintln!("gimmal-bench: {} written", output.display());
            Ok(())
        }
        Command::Suite(suite) => suite::run(&suite),
        Command::Advise { files, json } => {
            let records = read_all(&files)?.concat();
            if json { records.iter().try_for_each(advise::print) } else { out::text(advise::tell(&records)) }
        }
        Command::Results { files } => out::text(results::page(&files)?),
        Command::Serve(serve) => server(&serve),
        Command::Pages { folder } => {
            pages::write(command_line(), &folder).map_err(BenchError::system("writing the pages"))
        }
    }
}

fn read_all(files: &[PathBuf]) -> Result<Vec<Vec<Report>>, BenchError> {
    files.iter().map(|path| html::read(path)).collect()
}

fn window_of(window: u64) -> Result<usize, BenchError> {
    let window = usize::try_from(window).ok().filter(|window| *window <= 1 << 20);
    window.ok_or_else(|| BenchError::Arguments("-O: at most 1m".to_owned()))
}

/// Measures one size after the other.
fn each_size(run: &Run, job: &Job) -> Result<(), BenchError> {
    // Once: the first run pins this thread, and from then on it sees one core only.
    let cores = Cores::choose(run.cpus)?;
    for (number, bytes) in run.sizes().iter().enumerate() {
        let job = Job { bytes: *bytes, ..*job };
        finish(run, measure_job(run, &job, cores)?, number == 0)?;
    }
    Ok(())
}

/// Prints what was measured; an error when it broke off.
fn finish(
    run: &Run,
    (report, ended): (Report, Option<BenchError>),
    is_first: bool,
) -> Result<(), BenchError> {
    print(run, &report, is_first)?;
    ended.map_or(Ok(()), Err)
}

/// Prints a report as the command line says.
///
/// # Errors
/// [`BenchError::System`].
pub(crate) fn print(run: &Run, report: &Report, is_first: bool) -> Result<(), BenchError> {
    if run.json || run.csv || run.format.is_some() {
        // Of several sizes, what concerns all is told once.
        let common = report.warnings.iter().filter(|_| is_first);
        for warning in report.warning().iter().chain(common) {
            eprintln!("gimmal-bench: {warning}");
        }
    }
    if run.json {
        out::json(report)
    } else if run.csv {
        out::text(csv::lines(report, is_first))
    } else if run.format == Some(Format::Perftest) {
        out::text(csv::perftest(report, is_first))
    } else {
        out::line(format_args!("{}{report}", if is_first { "" } else { "\n" }))
    }
}

fn server(arguments: &Serve) -> Result<(), BenchError> {
    let provider = match (&arguments.provider, &arguments.address) {
        (Some(provider), _) => *provider,
        (None, Address::Shm { .. }) => ProviderName::Shm,
        (None, Address::Rdma { .. }) => ProviderName::Verbs,
        (None, Address::Tcp { .. }) => ProviderName::Tcp,
        (None, other) => {
            return Err(BenchError::Arguments(format!("{other}: serve on shm://, tcp:// or rdma://")));
        }
    };
    let ring_bytes = u32::try_from(arguments.ring).ok().and_then(u32::checked_next_power_of_two);
    let ring_bytes = ring_bytes.ok_or_else(|| BenchError::Arguments("--ring: at most 1g".to_owned()))?;
    let options = ServeOptions {
        address: arguments.address.clone(),
        ring_bytes,
        piece_bytes: arguments.piece.and_then(|bytes| u32::try_from(bytes).ok()),
        is_child: arguments.child,
        is_tied: arguments.tied,
        is_asleep: arguments.asleep,
        beside: arguments.beside.clone(),
        stall: std::time::Duration::from_millis(arguments.stall.into()),
        corrupt: arguments.corrupt,
    };
    beside::listen(provider, options)
}
