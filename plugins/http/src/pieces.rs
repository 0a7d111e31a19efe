//! The data of a body, in the pieces in which it came.

use bytes::Bytes;

/// Pieces of data. Most bodies have one, for which nothing is allocated.
#[derive(Debug, Default)]
pub(crate) struct Pieces {
    pub(crate) first: Bytes,
    pub(crate) more: Vec<Bytes>,
}

impl Pieces {
    pub(crate) fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.more.is_empty() {
            self.first = data;
        } else {
            self.more.push(data);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.more)
    }
}

impl FromIterator<Bytes> for Pieces {
    fn from_iter<I: IntoIterator<Item = Bytes>>(data: I) -> Self {
        let mut pieces = Self::default();
        data.into_iter().for_each(|data| pieces.push(data));
        pieces
    }
}
