//! From the command line to the report.

use gimmal_engine::transport::Address;

use crate::{
    advise,
    against::Goal,
    args::{Cli, Command, Cores, Format, Run, Serve, Touch},
    client::{Job, measure_job},
    csv,
    error::BenchError,
    html, load, many,
    plan::ProviderName,
    provider,
    report::Report,
    serve::ServeOptions,
    stream, suite,
};

/// Does what the command line says.
///
/// # Errors
/// See [`BenchError`].
pub fn run(cli: Cli) -> Result<(), BenchError> {
    match cli.command {
        Command::Lat(run) => each_size(&run, "lat", Goal::Latency, 1, false),
        Command::Rate { run, window } => each_size(&run, "rate", Goal::Rate, window_of(window)?, false),
        Command::Bw { run, window, touch } => {
            each_size(&run, "bw", Goal::Bandwidth, window_of(window)?, touch == Touch::All)
        }
        Command::Load { run, window, rates, seconds } => {
            finish(&run, load::sweep(&run, window_of(window)?, &rates, seconds)?, true)
        }
        Command::Stream { run, direction } => finish(&run, stream::streams(&run, &direction)?, true),
        Command::Conn(run) => finish(&run, many::connections(&run)?, true),
        Command::Scale { run, connections } => finish(&run, many::scale(&run, &connections)?, true),
        Command::Report { files, output } => {
            let runs = files.iter().map(|path| html::read(path)).collect::<Result<Vec<_>, _>>()?;
            std::fs::write(&output, html::page(&runs)?).map_err(BenchError::system("writing the page"))?;
            eprintln!("gimmal-bench: {} written", output.display());
            Ok(())
        }
        Command::Suite(suite) => suite::run(&suite),
        Command::Advise { files } => {
            let runs = files.iter().map(|path| html::read(path)).collect::<Result<Vec<_>, _>>()?;
            print!("{}", advise::tell(&runs.concat()));
            Ok(())
        }
        Command::Serve(serve) => server(&serve),
    }
}

fn window_of(window: u64) -> Result<usize, BenchError> {
    let window = usize::try_from(window).ok().filter(|window| *window <= 1 << 20);
    window.ok_or_else(|| BenchError::Arguments("-O: at most 1m".to_owned()))
}

/// Measures one size after the other.
fn each_size(
    run: &Run,
    test: &'static str,
    goal: Goal,
    window: usize,
    is_whole: bool,
) -> Result<(), BenchError> {
    // Once: the first run pins this thread, and from then on it sees one core only.
    let cores = Cores::choose(run.cpus)?;
    for (number, bytes) in run.sizes().iter().enumerate() {
        let job = Job { test, goal, bytes: *bytes, window, is_whole };
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
        let text = serde_json::to_string(report);
        println!("{}", text.map_err(|error| BenchError::system("printing")(error))?);
    } else if run.csv {
        print!("{}", csv::lines(report, is_first));
    } else if run.format == Some(Format::Perftest) {
        print!("{}", csv::perftest(report, is_first));
    } else {
        println!("{}{report}", if is_first { "" } else { "\n" });
    }
    Ok(())
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
    let options = ServeOptions {
        address: arguments.address.clone(),
        ring_bytes,
        is_child: arguments.child,
        beside: arguments.beside.clone(),
        stall: std::time::Duration::from_millis(arguments.stall.into()),
        corrupt: arguments.corrupt,
    };
    provider::listen(provider, options)
}
