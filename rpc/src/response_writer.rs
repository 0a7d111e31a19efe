//! Where a raw method writes its answer: the transmit ring, as long as there is room in it; or, when it leaves behind others in one
//! message, where that is put together.

use gimmal_engine::transport::copy;

use crate::{
    codec::{Encode, compose_into_with},
    frame::ResponseHead,
    output::Output,
    status::{Code, Status},
};

/// The answer of a raw method, written in place. What finds no room in the ring goes on in memory of its own and
/// is copied once when there is room.
#[derive(Debug)]
pub struct ResponseWriter<'a> {
    place: &'a mut [u8],
    len: usize,
    spill: Option<Vec<u8>>,
    /// It is the method's error, and lies in `spill`.
    is_error: bool,
}

impl<'a> ResponseWriter<'a> {
    /// Makes an empty answer that is written to `place`.
    #[inline]
    pub fn new(place: &'a mut [u8]) -> Self {
        Self { place, len: 0, spill: None, is_error: false }
    }

    /// Returns the next `bytes` of the answer, to be filled: what is left as it was goes to the caller, and may be of an earlier
    /// answer. An answer above [`Config::message_bytes_max`](crate::Config::message_bytes_max) ends its call with an error.
    #[inline]
    pub fn reserve(&mut self, bytes: usize) -> &mut [u8] {
        let (start, end) = (self.len, self.len + bytes);
        if self.spill.is_some() || end > self.place.len() {
            return self.reserve_beside(bytes);
        }
        self.len = end;
        &mut self.place[start..end]
    }

    #[cold]
    fn reserve_beside(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.len + bytes;
        let (place, len) = (&*self.place, self.len);
        let spill = self.spill.get_or_insert_with(|| place[..len].to_vec());
        let start = spill.len();
        spill.resize(start + bytes, 0);
        self.len = end;
        &mut spill[start..]
    }

    /// Appends a copy of `bytes`.
    #[inline]
    pub fn write(&mut self, bytes: &[u8]) {
        copy(bytes, self.reserve(bytes.len()));
    }

    /// Appends `value` as `C` writes it.
    ///
    /// # Errors
    /// A status for the caller, when the codec cannot write the value: return it from the method.
    pub fn encode<C: Encode<T>, T: ?Sized>(&mut self, value: &T) -> Result<(), Status> {
        if self.spill.is_none()
            && let Some(room) = self.place.get_mut(self.len..)
            && let Ok(written) = C::encode(value, room)
        {
            self.len += written;
            return Ok(());
        }
        let mut bytes = Vec::new();
        crate::codec::compose_into(&mut bytes, usize::MAX / 8, &crate::codec::Encoded::<C, T>::new(value))
            .map_err(|error| Status::new(Code::Internal, error.to_string()))?;
        self.write(&bytes);
        Ok(())
    }

    /// Writes what a method returned, as `C` writes it.
    ///
    /// # Errors
    /// A status for the caller, when the value cannot be written.
    #[inline]
    pub(crate) fn put<C, O: Output<C>>(&mut self, output: &O) -> Result<(), Status> {
        if !output.is_error()
            && let Ok(written) = output.encode(self.place)
        {
            self.len = written;
            return Ok(());
        }
        self.put_beside(output)
    }

    #[cold]
    fn put_beside<C, O: Output<C>>(&mut self, output: &O) -> Result<(), Status> {
        let mut bytes = Vec::new();
        compose_into_with(&mut bytes, usize::MAX / 8, |out| output.encode(out))
            .map_err(|error| Status::new(Code::Internal, format!("the answer: {error}")))?;
        (self.len, self.is_error) = (bytes.len(), output.is_error());
        self.spill = Some(bytes);
        Ok(())
    }

    /// Returns how many bytes were written so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing was written.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is in place, or what had to go elsewhere.
    #[inline]
    pub(crate) fn finish(self) -> Result<usize, (ResponseHead, Vec<u8>)> {
        match self.spill {
            None => Ok(self.len),
            Some(spill) => Err((if self.is_error { ResponseHead::App } else { ResponseHead::Ok }, spill)),
        }
    }
}

/// What a raw method may return: `()`, or a `Result` with a [`Status`] in place of the answer.
pub trait RawOutcome {
    /// Returns whether the answer that was written counts.
    ///
    /// # Errors
    /// The status that goes in place of the answer.
    fn outcome(self) -> Result<(), Status>;
}

impl RawOutcome for () {
    #[inline]
    fn outcome(self) -> Result<(), Status> {
        Ok(())
    }
}

impl RawOutcome for Result<(), Status> {
    #[inline]
    fn outcome(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Postcard;

    #[test]
    fn an_answer_stays_in_place_while_it_fits_and_moves_whole_when_not() {
        let mut place = [0; 8];
        let mut answer = ResponseWriter::new(&mut place);
        answer.write(b"1234");
        answer.reserve(4).copy_from_slice(b"5678");
        assert_eq!((answer.len(), answer.finish()), (8, Ok(8)));
        assert_eq!(&place, b"12345678");
        let mut answer = ResponseWriter::new(&mut place);
        answer.write(b"1234");
        answer.write(b"56789");
        answer.write(b"0");
        assert_eq!((answer.len(), answer.finish()), (10, Err((ResponseHead::Ok, b"1234567890".to_vec()))));
    }

    #[test]
    fn values_are_encoded_in_place_or_beside() {
        let mut place = [0; 4];
        let mut answer = ResponseWriter::new(&mut place);
        answer.encode::<Postcard, _>("abc").unwrap();
        assert_eq!(answer.finish(), Ok(4));
        let mut answer = ResponseWriter::new(&mut place);
        answer.encode::<Postcard, _>("abcd").unwrap();
        assert_eq!(answer.finish(), Err((ResponseHead::Ok, b"\x04abcd".to_vec())));
    }
}
