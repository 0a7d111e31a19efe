//! Why a handler ended without an answer, and what its caller is told.

use std::any::Any;

use crate::{
    method::Method,
    runtime::HasEnded,
    status::{Code, Fate},
};

/// Why a handler ended without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    Panicked,
    /// It panicked, because it used tokio where that does not work: what to do.
    Misplaced(&'static str),
    /// The server's runtime has ended.
    RuntimeEnded,
}

/// What tokio says where it is used in the wrong place, and what to do. Tokio reports it in no other way.
const REMEDIES: [(&str, &str); 6] = [
    (
        "must be called from the context of a Tokio 1.x runtime",
        "it uses tokio, and its server has no runtime; give it one with ServerBuilder::runtime",
    ),
    (
        "IO is disabled",
        "it uses a socket, and the runtime of its server has no I/O; build the runtime with enable_io",
    ),
    (
        "timers are disabled",
        "it uses a timer, and the runtime of its server has no timers; build the runtime with enable_time",
    ),
    (
        "`spawn_local` called from outside",
        "it uses spawn_local, which works under tokio::serve_until in a LocalSet or LocalRuntime only; use spawn, or serve there",
    ),
    (
        "can call blocking only when running on the multi-threaded runtime",
        "it uses block_in_place, which works on the threads of a multi-thread runtime only; await spawn_blocking",
    ),
    (
        "Cannot start a runtime from within a runtime",
        "it blocks on a future on a thread that a runtime uses; await the future",
    ),
];

impl Failure {
    /// The failure behind a panic.
    pub(crate) fn of(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let words = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or_default();
        if panic.is::<HasEnded>() || words.contains("Tokio 1.x context was found, but it is being shutdown") {
            return Self::RuntimeEnded;
        }
        let remedy = REMEDIES.iter().find(|(tokio, _)| words.contains(tokio));
        remedy.map_or(Self::Panicked, |(_, remedy)| Self::Misplaced(remedy))
    }

    pub(crate) const fn is_panic(self) -> bool {
        !matches!(self, Self::RuntimeEnded)
    }

    /// What the caller of `method` is told.
    pub(crate) fn status(self, method: &Method) -> (Code, Fate, String) {
        match self {
            Self::Panicked => (Code::Internal, Fate::Ran, format!("the handler of {method} panicked")),
            Self::Misplaced(remedy) => {
                (Code::Internal, Fate::Ran, format!("the handler of {method} panicked: {remedy}"))
            }
            Self::RuntimeEnded => {
                (Code::Unavailable, Fate::MaybeRan, "the runtime of the server has ended".to_owned())
            }
        }
    }
}
