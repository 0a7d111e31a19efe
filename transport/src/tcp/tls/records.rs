//! One step of the state machine, and the bytes that it takes from memory and gives to it.

use rustls::{
    Error,
    unbuffered::{ConnectionState, EncodeError, UnbufferedStatus},
};

use crate::tcp::socket::{PIECES, Piece};

/// Most plaintext of one record (RFC 8446, section 5.1).
const RECORD_BYTES: usize = 16 << 10;
/// Room for what a record has beside its plaintext, and for an update of the keys before it.
const BESIDE_BYTES: usize = 512;

/// What is said, when the state machine lets us.
#[derive(Clone, Copy)]
pub(super) enum Say<'a> {
    Nothing,
    Bytes(&'a [u8]),
    Close,
}

/// What a step did.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// What was to be said is sealed.
    Said,
    /// Something was opened, or something of TLS's own was sealed.
    Moved,
    /// More has to come first.
    Blocked,
    /// The peer says no more.
    Closed,
}

/// Does what `status` asks for, or says `say`. Returns how many bytes of the input are used up.
pub(super) fn advance<Data>(
    status: UnbufferedStatus<'_, '_, Data>,
    say: Say<'_>,
    output: &mut Vec<u8>,
    take: &mut impl FnMut(&[u8]),
) -> (usize, Result<Step, Error>) {
    let UnbufferedStatus { mut discard, state } = status;
    let at = output.len();
    let state = match state {
        Ok(state) => state,
        Err(error) => return (discard, Err(error)),
    };
    let step = match state {
        ConnectionState::ReadTraffic(mut traffic) => loop {
            match traffic.next_record() {
                None => break Ok(Step::Moved),
                Some(Err(error)) => break Err(error),
                Some(Ok(record)) => {
                    discard += record.discard;
                    take(record.payload);
                }
            }
        },
        ConnectionState::EncodeTlsData(mut data) => {
            // The first try says how large it is.
            if let Err(EncodeError::InsufficientSize(short)) = data.encode(&mut []) {
                output.resize(at + short.required_size, 0);
                let written = data.encode(&mut output[at..]).unwrap_or(0);
                output.truncate(at + written);
            }
            Ok(Step::Moved)
        }
        // It is in the output, which keeps its order.
        ConnectionState::TransmitTlsData(data) => {
            data.done();
            Ok(Step::Moved)
        }
        ConnectionState::BlockedHandshake => Ok(Step::Blocked),
        ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::Closed),
        ConnectionState::WriteTraffic(mut traffic) => {
            let bytes = match say {
                Say::Nothing => return (discard, Ok(Step::Blocked)),
                Say::Bytes(bytes) => bytes,
                Say::Close => &[],
            };
            output.resize(at + bytes.len() + BESIDE_BYTES, 0);
            let written = match say {
                Say::Close => traffic.queue_close_notify(&mut output[at..]),
                _ => traffic.encrypt(bytes, &mut output[at..]),
            };
            output.truncate(at + written.as_ref().map_or(0, |written| *written));
            written.map(|_| Step::Said).map_err(|_| Error::EncryptError)
        }
        // 0-RTT is off, and a state that this version does not know is none that it can be in.
        _ => Err(Error::General("a state of TLS that has no place here".to_owned())),
    };
    (discard, step)
}

/// Copies at most a record's worth of `pieces`, from the byte `skip` on, to the end of `plain`.
///
/// # Safety
/// The pieces are mapped.
pub(super) unsafe fn gather(pieces: &[Piece; PIECES], mut skip: usize, plain: &mut Vec<u8>) {
    for piece in pieces {
        let from = skip.min(piece.bytes);
        skip -= from;
        let bytes = (piece.bytes - from).min(RECORD_BYTES - plain.len());
        let at = plain.len();
        plain.resize(at + bytes, 0);
        // SAFETY: `from` is within the piece.
        let from = unsafe { piece.at.add(from) };
        // SAFETY: both have as many bytes, and a vector of ours is no piece.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), plain[at..].as_mut_ptr(), bytes) };
    }
}

/// Where opened bytes go.
pub(super) struct Sink {
    pub(super) pieces: [Piece; PIECES],
    pub(super) taken: usize,
}

impl Sink {
    pub(super) fn is_full(&self) -> bool {
        self.pieces.iter().all(|piece| piece.bytes == 0)
    }

    /// Takes as much of `bytes` as there is room for; how much.
    pub(super) fn put(&mut self, bytes: &[u8]) -> usize {
        let mut put = 0;
        for piece in &mut self.pieces {
            let from = &bytes[put..];
            let count = from.len().min(piece.bytes);
            // SAFETY: the piece is writable and ours alone, by the promise of the caller of `Session::receive`.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), piece.at.as_ptr(), count) };
            // SAFETY: within the piece.
            piece.at = unsafe { piece.at.add(count) };
            piece.bytes -= count;
            put += count;
        }
        self.taken += put;
        put
    }
}
