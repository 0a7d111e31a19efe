//! Sending what a request came to: values in place, bytes, or a status where neither can leave.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gimmal_engine::{
    Head, Io, SendError,
    transport::{ConnId, Loan, Port},
};

use super::{serving::Answered, tasks::discard};
use crate::{
    codec::EncodeError,
    frame::{Kind, Outcome, RESPONSE_BYTES},
    id::CallId,
    status::{Code, DETAILS_BYTES_MAX, Fate, Status},
    task::BoxTask,
};

/// Most bytes of a status message on the wire.
const MESSAGE_BYTES_MAX: usize = 512;

pub(super) fn answer_head(id: CallId, kind: Kind) -> Head {
    Head { kind: kind.code(), aux: id.aux() }
}

pub(super) fn clip(text: &str) -> &str {
    let mut end = text.len().min(MESSAGE_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Sends an outcome with a payload that is there already.
pub(super) fn send_bytes<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    outcome: Outcome,
    payload: &[u8],
) -> Result<(), SendError> {
    io.send(conn, answer_head(id, outcome.kind()), RESPONSE_BYTES + payload.len(), |body| {
        let (front, place) = outcome.put(body)?;
        place[..payload.len()].copy_from_slice(payload); // counted
        Some(front + payload.len())
    })
}

/// How sending an answer went.
pub(super) enum Sent {
    Left,
    Blocked,
    /// A message holds so many bytes, and it is more.
    TooLarge(usize),
    /// It can never leave; this goes in its place.
    Instead(Status),
}

pub(super) fn too_large(limit: usize) -> Status {
    let message = format!("the answer is above the limit of {limit} bytes; return it as a loan");
    Status::new(Code::ResourceExhausted, message)
}

/// Sends an answer, in place where it is a value.
pub(super) fn send_answer<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    answered: &mut Answered,
) -> Sent {
    match answered {
        Answered::Bytes(outcome, bytes) => match send_bytes(io, conn, id, *outcome, bytes) {
            Ok(()) => Sent::Left,
            Err(error) => unsent(error, None),
        },
        Answered::Task(task, loan) => send_value(io, conn, id, task, loan),
        Answered::Large(outcome, loan) => send_large(io, conn, id, *outcome, loan),
    }
}

/// Sends what a handler returned.
#[inline]
pub(super) fn send_value<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    task: &mut BoxTask,
    loan: &mut Option<Loan>,
) -> Sent {
    let mut failure = None;
    let outcome = if task.as_mut().is_error() { Outcome::App } else { Outcome::Ok };
    // A closure for each way, as for requests.
    let sent = match loan.take().filter(|loan| !loan.is_empty()) {
        None => io.send(conn, answer_head(id, outcome.kind()), RESPONSE_BYTES, |body| {
            let (front, place) = outcome.put(body)?;
            Some(front + put_value(place, task, &mut failure)?)
        }),
        Some(bulk) => {
            let fill = |body: &mut [u8]| {
                let (front, place) = body.split_first_chunk_mut()?;
                *front = outcome.encode();
                Some(RESPONSE_BYTES + put_value(place, task, &mut failure)?)
            };
            let head = answer_head(id, Kind::Response);
            io.send_with_loan(conn, head, bulk, RESPONSE_BYTES, fill).map_err(|refused| {
                *loan = Some(refused.loan);
                refused.error
            })
        }
    };
    match sent {
        Ok(()) => Sent::Left,
        Err(error) => unsent(error, failure),
    }
}

/// Writes the value; `None` when there is too little room, or it cannot be written.
#[inline(always)]
fn put_value(place: &mut [u8], task: &mut BoxTask, failure: &mut Option<String>) -> Option<usize> {
    match catch_unwind(AssertUnwindSafe(|| task.as_mut().encode(place))) {
        Ok(Ok(bytes)) => return Some(bytes),
        Ok(Err(EncodeError::Full)) => {}
        Ok(Err(error)) => *failure = Some(error.to_string()),
        Err(_) => *failure = Some("encoding it panicked".to_owned()),
    }
    None
}

#[cold]
fn unsent(error: SendError, failure: Option<String>) -> Sent {
    match (error, failure) {
        (SendError::Closed, _) => Sent::Left,
        (_, Some(why)) => Sent::Instead(Status::new(Code::Internal, format!("the answer: {why}"))),
        (SendError::TooLarge { limit, .. }, None) => Sent::TooLarge(limit.saturating_sub(RESPONSE_BYTES)),
        (SendError::NoBulk, None) => {
            let why = "the answer's bulk cannot be offered: initiator_depth was negotiated to 0";
            Sent::Instead(Status::new(Code::FailedPrecondition, why))
        }
        (error @ SendError::TooManyLoans { .. }, None) => {
            Sent::Instead(Status::new(Code::ResourceExhausted, format!("the answer has a loan: {error}")))
        }
        (error @ SendError::Foreign, None) => {
            Sent::Instead(Status::new(Code::FailedPrecondition, format!("the answer has a loan: {error}")))
        }
        (_, None) => Sent::Blocked,
    }
}

/// Offers an answer that lies in a loan.
#[cold]
fn send_large<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    outcome: Outcome,
    loan: &mut Option<Loan>,
) -> Sent {
    let Some(bulk) = loan.take() else { return Sent::Left };
    let head = answer_head(id, Kind::LargeResponse);
    let sent = io.send_with_loan(conn, head, bulk, RESPONSE_BYTES, |body| {
        body[..RESPONSE_BYTES].copy_from_slice(&outcome.encode());
        Some(RESPONSE_BYTES)
    });
    match sent {
        Ok(()) => Sent::Left,
        Err(refused) => {
            *loan = Some(refused.loan);
            match unsent(refused.error, None) {
                // It is the loan that is: of a peer, or a device, that takes less.
                Sent::TooLarge(limit) => Sent::Instead(too_large(limit)),
                sent => sent,
            }
        }
    }
}

pub(super) fn status_answer(status: &Status) -> Answered {
    let outcome = Outcome::Status { code: status.code(), fate: status.fate() };
    Answered::Bytes(outcome, status_bytes(status))
}

/// A message, and details behind a zero, which no message has.
pub(super) fn status_bytes(status: &Status) -> Vec<u8> {
    let mut bytes = clip(status.message()).replace('\0', " ").into_bytes();
    if (1..=DETAILS_BYTES_MAX).contains(&status.details().len()) {
        bytes.push(0);
        bytes.extend_from_slice(status.details()); // a status
    }
    bytes
}

/// The same, taken apart.
pub(super) fn status_of(code: Code, fate: Fate, bytes: &[u8]) -> Status {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let message = String::from_utf8_lossy(parts.next().unwrap_or_default()).into_owned();
    Status::new(code, message).with_fate(fate).with_details(parts.next().unwrap_or_default())
}

/// Values of a handler may panic when they are dropped.
pub(super) fn drop_answered(answered: Answered) {
    if let Answered::Task(task, loan) = answered {
        discard(task);
        drop(loan);
    }
}
