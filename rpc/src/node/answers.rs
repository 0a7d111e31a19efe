//! Sending what a request came to: values in place, bytes, or a status where neither can leave.

use std::panic::{AssertUnwindSafe, catch_unwind};

use gimmal_engine::{
    Head, Io, SendError,
    transport::{ConnId, Loan, Port},
};

use super::{request::Unsent, serving::Answered, tasks::discard};
use crate::{
    codec::EncodeError,
    frame::{Flags, Kind, RESPONSE_BYTES, ResponseHead},
    id::CallId,
    status::{Code, DETAILS_BYTES_MAX, Fate, Status},
    task::BoxTask,
};

/// Most bytes of a status message on the wire.
pub(super) const MESSAGE_BYTES_MAX: usize = 512;

pub(super) fn clip(text: &str) -> &str {
    clip_to(text, MESSAGE_BYTES_MAX)
}

/// As much of a refusal's text as is kept while it waits for room: what any status has, and of a mismatch no types.
pub(super) fn short(text: &str) -> String {
    clip(text.split_once('\0').map_or(text, |(spelled, _)| spelled)).to_owned()
}

fn clip_to(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Sends a response whose payload is there already, behind a block of metadata.
pub(super) fn send_bytes<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    response: ResponseHead,
    (metadata, payload): (&[u8], &[u8]),
) -> Result<(), SendError> {
    let head = Head { kind: response.kind(metadata), aux: id.aux() };
    io.send(conn, head, RESPONSE_BYTES + metadata.len() + payload.len(), |body| {
        let (front, place) = response.put(metadata, body)?;
        place[..payload.len()].copy_from_slice(payload); // counted
        Some(front + payload.len())
    })
}

/// Sends a refusal, with as much of its text as a message holds.
pub(super) fn send_refusal<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    head: ResponseHead,
    text: &str,
) -> Result<(), SendError> {
    let room = io.body_bytes_max(conn).saturating_sub(RESPONSE_BYTES);
    // What tells of a mismatch is bounded by its maker, and goes whole where it fits.
    let is_whole = head == ResponseHead::Mismatch && text.len() <= room;
    let text = if is_whole { text } else { clip_to(text, MESSAGE_BYTES_MAX.min(room)) };
    send_bytes(io, conn, id, head, (&[], text.as_bytes()))
}

/// Whether a response left; [`Unsent::Never`] has the status that goes in its place.
pub(super) type Sent = Result<(), Unsent<Status>>;

pub(super) fn too_large(limit: usize) -> Status {
    let message = format!("the answer is above the limit of {limit} bytes; return it as a loan");
    Status::new(Code::ResourceExhausted, message)
}

/// Sends an answer behind a block of metadata, in place where it is a value.
pub(super) fn send_answer<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    metadata: &[u8],
    answered: &mut Answered,
) -> Sent {
    match answered {
        Answered::Bytes(head, bytes) => {
            send_bytes(io, conn, id, *head, (metadata, bytes)).or_else(|error| unsent(error, None))
        }
        Answered::Task(task, loan) => send_value(io, conn, id, metadata, task, loan),
        Answered::Large(head, loan) => send_large(io, conn, id, *head, metadata, loan),
    }
}

/// Sends what a handler returned, with a loan. A function of its own: the way without one is short, and stands where it is called.
#[inline(never)]
fn send_lent<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    (response, metadata): (ResponseHead, &[u8]),
    task: &mut BoxTask,
    (bulk, loan): (Loan, &mut Option<Loan>),
    failure: &mut Option<String>,
) -> Result<(), SendError> {
    let fill = |body: &mut [u8]| {
        let (front, place) = response.put_head(metadata, body)?;
        Some(front + put_value(place, task, failure)?)
    };
    let head = Head { kind: Kind::Response.with(noted(metadata)), aux: id.aux() };
    io.send_with_loan(conn, head, bulk, RESPONSE_BYTES + metadata.len(), fill).map_err(|refused| {
        *loan = Some(refused.loan);
        refused.error
    })
}

/// Sends what a handler returned, behind a block of metadata.
#[inline]
pub(super) fn send_value<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    metadata: &[u8],
    task: &mut BoxTask,
    loan: &mut Option<Loan>,
) -> Sent {
    let mut failure = None;
    let response = if task.as_mut().is_error() { ResponseHead::App } else { ResponseHead::Ok };
    let least = RESPONSE_BYTES + metadata.len();
    // A closure for each way, as for requests.
    let sent = match loan.take().filter(|loan| !loan.is_empty()) {
        None => {
            let head = Head { kind: response.kind(metadata), aux: id.aux() };
            io.send(conn, head, least, |body| {
                let (front, place) = response.put(metadata, body)?;
                Some(front + put_value(place, task, &mut failure)?)
            })
        }
        Some(bulk) => send_lent(io, conn, id, (response, metadata), task, (bulk, loan), &mut failure),
    };
    sent.or_else(|error| unsent(error, failure))
}

const fn noted(metadata: &[u8]) -> Flags {
    if metadata.is_empty() { Flags::NONE } else { Flags::METADATA }
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
    let instead = |code, why: String| Err(Unsent::Never(Status::new(code, why)));
    match (error, failure) {
        (SendError::Closed, _) => Ok(()),
        (_, Some(why)) => instead(Code::Internal, format!("the answer: {why}")),
        (SendError::TooLarge { limit, .. }, None) => {
            Err(Unsent::TooLarge(limit.saturating_sub(RESPONSE_BYTES)))
        }
        (SendError::NoBulk, None) => {
            let why = "the answer's bulk cannot be offered: initiator_depth was negotiated to 0";
            instead(Code::FailedPrecondition, why.to_owned())
        }
        (error @ SendError::TooManyLoans { .. }, None) => {
            instead(Code::ResourceExhausted, format!("the answer has a loan: {error}"))
        }
        (error @ SendError::Foreign, None) => {
            instead(Code::FailedPrecondition, format!("the answer has a loan: {error}"))
        }
        (_, None) => Err(Unsent::Blocked),
    }
}

/// Offers an answer that lies in a loan.
#[cold]
fn send_large<P: Port>(
    io: &mut Io<'_, P>,
    conn: ConnId,
    id: CallId,
    response: ResponseHead,
    metadata: &[u8],
    loan: &mut Option<Loan>,
) -> Sent {
    let Some(bulk) = loan.take() else { return Ok(()) };
    let head = Head { kind: Kind::Response.with(noted(metadata).and(Flags::LARGE)), aux: id.aux() };
    let sent = io.send_with_loan(conn, head, bulk, RESPONSE_BYTES + metadata.len(), |body| {
        response.put_head(metadata, body).map(|(bytes, _)| bytes)
    });
    sent.or_else(|refused| {
        *loan = Some(refused.loan);
        unsent(refused.error, None).map_err(|unsent| match unsent {
            // It is the loan that is: of a peer, or a device, that takes less.
            Unsent::TooLarge(limit) => Unsent::Never(too_large(limit)),
            unsent => unsent,
        })
    })
}

pub(super) fn status_answer(status: &Status) -> Answered {
    Answered::Bytes(ResponseHead::of(status), status_bytes(status))
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

/// Makes a status of its parts.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_that_waits_keeps_as_much_of_its_text_as_leaves() {
        let wide = format!("call(Wide) -> Wide [postcard]\0{}", "schema ".repeat(1000));
        assert_eq!(short(&wide), "call(Wide) -> Wide [postcard]");
        let cut = short(&"é".repeat(5000));
        assert_eq!((cut.len(), cut.capacity()), (MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX));
        assert_eq!(short("few"), "few");
    }

    #[test]
    fn a_refusal_is_cut_to_what_a_message_holds() {
        let text = "é".repeat(400);
        assert_eq!(clip(&text).len(), MESSAGE_BYTES_MAX);
        for (most, left) in [(101, 100), (1, 0), (0, 0), (usize::MAX, 800)] {
            assert_eq!(clip_to(&text, most).len(), left);
        }
    }
}
