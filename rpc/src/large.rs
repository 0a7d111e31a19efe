//! Values that a message does not hold: written once, into registered memory that the peer pulls.

use gimmal_engine::transport::{Loan, LoanError};

use crate::{codec::EncodeError, error::TransportError, frame::Flags, metadata, status::Fate};

/// Why a value was not written into registered memory.
#[derive(Debug)]
pub(crate) enum Unlent {
    /// It is above what may travel so.
    AboveMax,
    Encode(EncodeError),
    Memory(LoanError),
}

impl Unlent {
    /// As a request's end.
    pub(crate) fn of_request(self, max: usize) -> TransportError {
        match self {
            Self::AboveMax => TransportError::AboveMax { limit: max },
            Self::Encode(error) => TransportError::Encode(error),
            Self::Memory(error) => TransportError::Memory(error),
        }
    }
}

/// A request that a message does not hold, on a connection whose peer may not READ.
pub(crate) const fn no_reads() -> TransportError {
    let why = "the request is above a message, and cannot go as bulk: READs were negotiated away (depth 0)";
    TransportError::NoBulk { why, fate: Fate::NotRun }
}

/// Room beside metadata in a message with a loan.
const BESIDE: usize = 64;

/// Writes the metadata of a request that lies in `loan` to `body` as well, so that the server can judge the call before it brings the
/// loan. Metadata that is too long for a message, of which arguments may have `limit` bytes, is in the loan alone.
pub(crate) fn put_metadata(body: &mut Vec<u8>, flags: Flags, loan: &[u8], limit: usize) {
    body.clear();
    if flags.has(Flags::METADATA)
        && let Ok((_, behind)) = metadata::split(loan)
        && let block = &loan[..loan.len() - behind.len()]
        && block.len() + BESIDE <= limit
    {
        body.extend_from_slice(block); // metadata
    }
}

/// Writes a value that takes more than `above` and at most `max` bytes into memory from `allocate`; `bytes` is its
/// length, if it is known.
pub(crate) fn lend(
    bytes: Option<usize>,
    (above, max): (usize, usize),
    mut compose: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
    allocate: impl Fn(usize) -> Result<Loan, LoanError>,
) -> Result<Loan, Unlent> {
    let mut len = bytes.unwrap_or_else(|| above.saturating_mul(4).min(max));
    if len > max {
        return Err(Unlent::AboveMax);
    }
    loop {
        let mut loan = allocate(len).map_err(Unlent::Memory)?;
        match compose(&mut loan) {
            Ok(written) => return Ok(loan.truncate(written)),
            Err(EncodeError::Full) if len < max => len = len.saturating_mul(4).clamp(1, max),
            Err(EncodeError::Full) => return Err(Unlent::AboveMax),
            Err(error) => return Err(Unlent::Encode(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::codec::{Encode, Raw};

    fn lent(value: &[u8], bytes: Option<usize>, max: usize) -> (Result<Loan, Unlent>, Vec<usize>) {
        let asked = RefCell::new(Vec::new());
        let allocate = |bytes| {
            asked.borrow_mut().push(bytes);
            Ok(Loan::anonymous(bytes, 0).unwrap())
        };
        let loan = lend(bytes, (100, max), |out| Raw::encode(value, out), allocate);
        (loan, asked.into_inner())
    }

    #[test]
    fn a_known_length_is_written_once_and_an_unknown_one_grows() {
        let value = [5; 5000];
        let (loan, asked) = lent(&value, Some(5000), 9000);
        assert_eq!((&loan.unwrap()[..], asked), (&value[..], vec![5000]));
        let (loan, asked) = lent(&value, None, 9000);
        assert_eq!((&loan.unwrap()[..], asked), (&value[..], vec![400, 1600, 6400]));
        let (loan, asked) = lent(&value, Some(10), 5000);
        assert_eq!((loan.unwrap().len(), asked.last()), (5000, Some(&5000)));
    }

    #[test]
    fn a_value_above_the_limit_takes_no_memory_beyond_it() {
        let (loan, asked) = lent(&[5; 5000], Some(5000), 4999);
        assert!(matches!(loan, Err(Unlent::AboveMax)) && asked.is_empty());
        let (loan, asked) = lent(&[5; 5000], None, 4999);
        assert!(matches!(loan, Err(Unlent::AboveMax)) && asked == [400, 1600, 4999]);
    }
}
