//! `gimmal-bench`: the command line.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use gimmal_bench::{args::Cli, error::BenchError, leave, run};

fn main() -> ExitCode {
    let cli = Cli::read();
    let filter = tracing_subscriber::EnvFilter::try_from_env("GIMMAL_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt()
        .log_internal_errors(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .init();
    let outcome = leave::on_signals().map_err(BenchError::signals).and_then(|()| run::run(cli));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is_unread() => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gimmal-bench: {error}");
            error.exit_code().into()
        }
    }
}
