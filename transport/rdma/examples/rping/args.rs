//! rping's options.

use std::time::Duration;

use gimmal_rdma::cm::QpMaker;

use crate::Failure;

/// The options that were given.
#[derive(Debug)]
pub(crate) struct Args {
    /// `-s`
    pub(crate) server: bool,
    /// `-a`: where the server is, or which of its addresses listens.
    pub(crate) address: Option<String>,
    /// `-I`: connect from there.
    pub(crate) source: Option<String>,
    /// `-p`
    pub(crate) port: u16,
    /// `-C`: pings; without it until the other side ends.
    pub(crate) count: Option<u64>,
    /// `-S`: bytes of a ping.
    pub(crate) size: usize,
    /// `-V`: the client compares the echoes.
    pub(crate) validate: bool,
    /// `-v`: prints each ping.
    pub(crate) verbose: bool,
    /// `-q`: who makes the queue pair.
    pub(crate) maker: QpMaker,
    /// `-t`: milliseconds for each step.
    pub(crate) step: Duration,
}

/// Largest ping, as in rping.
pub(crate) const SIZE_MAX: usize = 64 << 10;
/// "rdma-ping-2147483647: " and its end, as in rping.
const SIZE_MIN: usize = 24;

impl Args {
    /// Reads the command line.
    ///
    /// # Errors
    /// Which option is wrong.
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut args = Self {
            server: false,
            address: None,
            source: None,
            port: 7174,
            count: None,
            size: 64,
            validate: false,
            verbose: false,
            maker: QpMaker::Cm,
            step: Duration::from_secs(10),
        };
        let mut client = false;
        let mut words = words;
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "-s" => args.server = true,
                "-c" => client = true,
                "-a" => args.address = Some(value()?),
                "-I" => args.source = Some(value()?),
                "-p" => args.port = value()?.parse()?,
                "-C" => args.count = Some(value()?.parse()?),
                "-S" => args.size = value()?.parse()?,
                "-V" => args.validate = true,
                "-v" => args.verbose = true,
                "-q" => args.maker = QpMaker::Us,
                "-t" => args.step = Duration::from_millis(value()?.parse()?),
                _ => return Err(format!("unknown option {word}").into()),
            }
        }
        if args.server == client {
            return Err("either -s or -c".into());
        }
        if !(SIZE_MIN..=SIZE_MAX).contains(&args.size) {
            return Err(format!("-S must be {SIZE_MIN} to {SIZE_MAX}").into());
        }
        Ok(args)
    }
}
