//! What a call may end with besides its own answer: a code, a message, and whether it ran.

use std::{borrow::Cow, fmt};

/// Whether the handler of a failed call ran. It decides what may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Fate {
    /// It did not run: never sent, or refused before the handler began. Safe to repeat.
    NotRun,
    /// It is not known: sent, and then the connection or the deadline ended. Repeat only idempotent methods.
    MaybeRan,
    /// It ran, and failed or ended without an answer that could be used. Do not repeat it.
    Ran,
}

impl Fate {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::NotRun => 0,
            Self::MaybeRan => 1,
            Self::Ran => 2,
        }
    }

    pub(crate) const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::NotRun,
            2 => Self::Ran,
            _ => Self::MaybeRan,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotRun => "not run",
            Self::MaybeRan => "may have run",
            Self::Ran => "ran",
        })
    }
}

/// Status codes, one to one with gRPC's, whose names and meanings they have (<https://grpc.io/docs/guides/status-codes/>).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "gRPC's names and meanings")]
pub enum Code {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

const CODES: [(Code, &str); 17] = [
    (Code::Ok, "ok"),
    (Code::Cancelled, "cancelled"),
    (Code::Unknown, "unknown"),
    (Code::InvalidArgument, "invalid argument"),
    (Code::DeadlineExceeded, "deadline exceeded"),
    (Code::NotFound, "not found"),
    (Code::AlreadyExists, "already exists"),
    (Code::PermissionDenied, "permission denied"),
    (Code::ResourceExhausted, "resource exhausted"),
    (Code::FailedPrecondition, "failed precondition"),
    (Code::Aborted, "aborted"),
    (Code::OutOfRange, "out of range"),
    (Code::Unimplemented, "unimplemented"),
    (Code::Internal, "internal"),
    (Code::Unavailable, "unavailable"),
    (Code::DataLoss, "data loss"),
    (Code::Unauthenticated, "unauthenticated"),
];

impl Code {
    /// Returns gRPC's number of the code, 0 to 16.
    #[must_use]
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the code with gRPC's `number`; [`Code::Unknown`] for one that is not known.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        CODES.get(usize::from(number)).map_or(Self::Unknown, |(code, _)| *code)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(CODES[usize::from(self.number())].1)
    }
}

/// Most bytes of a status's details; more do not travel.
pub const DETAILS_BYTES_MAX: usize = 2048;

/// How a call failed other than by its method's own error: a code, a message for people, details for programs, and the call's fate.
/// Raw methods, layers and gimmal itself answer with one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Status {
    code: Code,
    message: Cow<'static, str>,
    details: Vec<u8>,
    fate: Fate,
}

impl Status {
    /// Makes a status that a handler gives: its fate is [`Fate::Ran`].
    #[must_use]
    pub fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), fate: Fate::Ran }
    }

    /// Makes a status of a call that is refused before its handler is called: its fate is [`Fate::NotRun`].
    #[must_use]
    pub fn refused(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), details: Vec::new(), fate: Fate::NotRun }
    }

    /// Sets the fate, in place of the one it has.
    #[must_use]
    pub fn with_fate(mut self, fate: Fate) -> Self {
        self.fate = fate;
        self
    }

    /// Sets the details: bytes whose form both sides know. They do not travel, though the status does, if they are above 2048 bytes
    /// or than a message allows.
    #[must_use]
    pub fn with_details(mut self, details: impl Into<Vec<u8>>) -> Self {
        self.details = details.into();
        self
    }

    /// Returns the details, for programs; empty if there are none.
    #[must_use]
    pub fn details(&self) -> &[u8] {
        &self.details
    }

    /// Returns the code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Returns the message, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns whether the handler ran.
    #[must_use]
    pub const fn fate(&self) -> Fate {
        self.fate
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.code, self.message, self.fate)
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use gimmal_transport::testing::{BuilderCall, no_call_undoes_another};

    use super::*;

    #[test]
    fn no_part_of_a_status_undoes_another() {
        let calls: &[BuilderCall<Status>] = &[
            ("with_fate", |status| status.with_fate(Fate::MaybeRan)),
            ("with_details", |status| status.with_details("more")),
        ];
        no_call_undoes_another(|| Status::new(Code::Internal, "why"), calls, |status| format!("{status:?}"));
    }

    #[test]
    fn codes_have_grpc_numbers() {
        for (number, (code, _)) in (0u8..).zip(CODES) {
            assert_eq!((code.number(), Code::from_number(number)), (number, code));
        }
        assert_eq!(Code::Unauthenticated.number(), 16);
        assert_eq!(Code::from_number(17), Code::Unknown);
    }

    #[test]
    fn fates_round_trip_and_unknown_ones_promise_nothing() {
        for fate in [Fate::NotRun, Fate::MaybeRan, Fate::Ran] {
            assert_eq!(Fate::from_code(fate.code()), fate);
        }
        assert_eq!(Fate::from_code(77), Fate::MaybeRan);
    }
}
