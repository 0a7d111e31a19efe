//! The files and names that a side of TLS chose.

use std::path::PathBuf;

/// What was chosen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Choice {
    pub(crate) certificate: Option<Pair>,
    pub(crate) authorities: Vec<PathBuf>,
    pub(crate) server_name: Option<String>,
    pub(crate) allowed: Vec<String>,
}

/// The files of a certificate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pair {
    pub(crate) chain: PathBuf,
    pub(crate) key: PathBuf,
}
