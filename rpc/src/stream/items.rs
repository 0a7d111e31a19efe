//! Items in one buffer, and beside it those that have memory of their own; what they cost of a window.

use std::{collections::VecDeque, ops::Range};

use gimmal_engine::transport::Bulk;

use super::window::Ahead;

/// What an item costs of the window beside its bytes, so that empty items are bounded too.
pub(super) const ITEM_COST: usize = 64;
/// A buffer above this that was mostly empty shrinks.
const KEPT: usize = 64 << 10;

/// What `bytes` in so many items cost.
pub(super) fn cost(bytes: usize, items: usize) -> i64 {
    let cost = bytes.saturating_add(items.saturating_mul(ITEM_COST));
    i64::try_from(cost).unwrap_or(i64::MAX)
}

/// As much of a cost as a number of a message holds.
pub(super) fn clamp(cost: i64) -> u32 {
    u32::try_from(cost).unwrap_or(u32::MAX)
}

/// Memory of an item's own.
#[derive(Debug)]
pub(crate) enum Apart {
    /// To be sent: the peer brings it.
    Loan(Ahead),
    /// It came.
    Bulk(Bulk),
    /// It is on its way, known by this number, and has so many bytes.
    Coming(u64, usize),
}

impl Apart {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Loan(ahead) => ahead.bytes(),
            Self::Bulk(bulk) => bulk,
            Self::Coming(..) => &[],
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Coming(_, bytes) => *bytes,
            here => here.bytes().len(),
        }
    }
}

/// The length of an item that has memory of its own. No other item is so long.
const APART: usize = usize::MAX;

/// An item that was taken out.
#[derive(Debug)]
pub(super) enum Popped {
    /// Its bytes are here, until [`Items::clear`], or until another one is added to an empty buffer.
    Here(Range<usize>),
    Apart(Apart),
}

/// Bytes that were taken out with their memory.
#[derive(Debug)]
pub(super) enum Taken {
    /// They begin at this place.
    Copied(Vec<u8>, usize),
    Held(Bulk, usize),
}

/// What is to be taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    Items,
    Nothing,
    /// The first item is on its way.
    Coming,
    /// The first item never came, and nothing does.
    Lost,
}

/// Items one behind the other. A buffer that was emptied keeps its memory for the next ones.
#[derive(Default, Debug)]
pub(crate) struct Items {
    bytes: Vec<u8>,
    /// [`APART`] for those that lie apart.
    lens: VecDeque<usize>,
    /// Where the first item begins.
    at: usize,
    /// Made with the first of them.
    apart: Option<Box<Row>>,
}

/// Items that have memory of their own, in order.
#[derive(Default, Debug)]
struct Row {
    items: VecDeque<Apart>,
    /// What was taken of the first of them.
    at: usize,
    /// Of all of them, less that.
    bytes: usize,
    /// How many of them are on their way.
    coming: usize,
    /// See [`Look::Lost`].
    is_lost: bool,
}

impl Row {
    fn push(&mut self, item: Apart) {
        self.bytes += item.len();
        self.coming += usize::from(matches!(item, Apart::Coming(..)));
        self.items.push_back(item);
    }

    fn pop(&mut self) -> Option<Apart> {
        let item = self.items.pop_front()?;
        self.bytes -= item.len() - std::mem::take(&mut self.at);
        self.coming -= usize::from(matches!(item, Apart::Coming(..)));
        Some(item)
    }

    /// Of the first item, what was not taken.
    fn front(&self) -> &[u8] {
        self.items.front().map_or(&[], |item| &item.bytes()[self.at..])
    }

    fn position(&self, number: u64) -> Option<usize> {
        self.items.iter().position(|item| matches!(item, Apart::Coming(coming, _) if *coming == number))
    }

    fn clear(&mut self) {
        self.items.clear();
        (self.at, self.bytes, self.coming) = (0, 0, 0);
    }
}

impl Items {
    pub(super) fn is_empty(&self) -> bool {
        self.lens.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.lens.len()
    }

    /// What its items cost.
    pub(super) fn cost(&self) -> i64 {
        cost(self.bytes.len().saturating_sub(self.at) + self.apart_bytes(), self.lens.len())
    }

    fn apart_bytes(&self) -> usize {
        self.apart.as_ref().map_or(0, |row| row.bytes)
    }

    fn row(&mut self) -> &mut Row {
        self.apart.get_or_insert_default()
    }

    /// Whether no item has memory of its own.
    fn is_one_row(&self) -> bool {
        self.apart.as_ref().is_none_or(|row| row.items.is_empty())
    }

    /// Whether so much of it was copied, or lies apart, that nothing is to be added.
    pub(super) fn is_above(&self, copied: i64, apart: usize) -> bool {
        self.apart_bytes() >= apart || self.room(copied) == 0
    }

    /// How many bytes may be added until what was copied costs so much.
    pub(super) fn room(&self, copied: i64) -> usize {
        let has = cost(self.bytes.len().saturating_sub(self.at), self.lens.len());
        usize::try_from(copied - has).unwrap_or(0)
    }

    /// Adds an item.
    pub(super) fn push(&mut self, item: &[u8]) {
        self.bytes.extend_from_slice(item); // an item
        self.lens.push_back(item.len());
    }

    /// Adds an item that has memory of its own.
    pub(super) fn push_apart(&mut self, item: Apart) {
        self.row().push(item);
        self.lens.push_back(APART);
    }

    /// Adds the first item of `other`.
    pub(super) fn push_first_of(&mut self, other: &mut Self) {
        match other.pop() {
            Some(Popped::Here(range)) => self.push(other.bytes(range)),
            Some(Popped::Apart(item)) => self.push_apart(item),
            None => {}
        }
    }

    /// Puts an item before all others, where it was taken out.
    pub(super) fn put_back(&mut self, item: Apart) {
        let row = self.row();
        row.bytes += item.len();
        row.items.push_front(item);
        self.lens.push_front(APART);
    }

    /// Puts one item in the place of all, which `write` writes over the bytes.
    pub(super) fn put<E>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<(), E> {
        self.clear();
        write(&mut self.bytes)?;
        self.lens.push_back(self.bytes.len());
        Ok(())
    }

    /// Adds bytes to the last item.
    pub(super) fn extend(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes); // a piece of an item
        match self.lens.back_mut() {
            Some(len) if *len != APART => *len += bytes.len(),
            _ => self.lens.push_back(bytes.len()),
        }
    }

    /// The first item.
    pub(super) fn front(&self) -> Option<&[u8]> {
        match *self.lens.front()? {
            APART => self.apart.as_ref().map(|row| row.front()),
            len => Some(&self.bytes[self.at..self.at + len]),
        }
    }

    /// Whether the first item is a loan, all of it.
    pub(super) fn is_loan(&self) -> bool {
        let is_loan = |row: &Row| row.at == 0 && matches!(row.items.front(), Some(Apart::Loan(_)));
        self.lens.front() == Some(&APART) && self.apart.as_deref().is_some_and(is_loan)
    }

    /// Takes the first item out.
    pub(super) fn pop(&mut self) -> Option<Popped> {
        let len = self.lens.pop_front()?;
        if len == APART {
            return self.row().pop().map(Popped::Apart);
        }
        self.at += len;
        Some(Popped::Here(self.at - len..self.at))
    }

    /// Takes the first `bytes` of the first item out, and the item when that was all of it.
    pub(super) fn consume(&mut self, bytes: usize) {
        let Some(len) = self.lens.front_mut() else { return };
        if *len == APART {
            let row = self.row();
            let left = row.front().len();
            let bytes = bytes.min(left);
            row.at += bytes;
            row.bytes -= bytes;
            if bytes == left {
                drop(self.pop());
            }
            return;
        }
        let bytes = bytes.min(*len);
        *len -= bytes;
        self.at += bytes;
        if *len == 0 {
            self.lens.pop_front();
        }
    }

    /// Takes the first `bytes` out, of one item or several, and every empty one before the next. Returns what that costs.
    pub(super) fn skip(&mut self, mut bytes: usize) -> i64 {
        let before = self.cost();
        while let Some(len) = self.front().map(<[u8]>::len)
            && (bytes > 0 || len == 0)
        {
            let taken = bytes.min(len);
            self.consume(taken);
            bytes -= taken;
        }
        before - self.cost()
    }

    /// The bytes of the first items, as far as they lie in a row: all of them, if none has memory of its own.
    pub(super) fn rest(&self) -> &[u8] {
        match self.lens.front() {
            None => &[],
            Some(&APART) => self.front().unwrap_or_default(),
            Some(_) if self.is_one_row() => &self.bytes[self.at..],
            Some(_) => {
                let row = self.lens.iter().take_while(|len| **len != APART).sum::<usize>();
                &self.bytes[self.at..self.at + row]
            }
        }
    }

    /// Takes what [`Items::rest`] is out with its memory, and gets as much for the next items. Returns what it costs, too.
    pub(super) fn take(&mut self) -> (Taken, i64) {
        let cost = self.cost();
        if self.is_one_row() {
            let apart = self.apart.take();
            let next = Self { bytes: Vec::with_capacity(self.bytes.len()), apart, ..Self::default() };
            let Self { bytes, at, lens, .. } = std::mem::replace(self, next);
            return (
                if lens.is_empty() { Taken::Copied(Vec::new(), 0) } else { Taken::Copied(bytes, at) },
                cost,
            );
        }
        if self.lens.front() == Some(&APART) {
            let at = self.row().at;
            let taken = match self.pop() {
                Some(Popped::Apart(Apart::Bulk(bulk))) => Taken::Held(bulk, at),
                Some(Popped::Apart(item)) => Taken::Copied(item.bytes().to_vec(), at), // never of a reader
                _ => Taken::Copied(Vec::new(), 0),
            };
            return (taken, cost - self.cost());
        }
        let row = self.rest().to_vec(); // small items before a large one
        self.skip(row.len());
        (Taken::Copied(row, 0), cost - self.cost())
    }

    pub(super) fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.bytes[range]
    }

    /// Exchanges the items for those of `own`, which is empty, as far as they are here.
    pub(super) fn give(&mut self, own: &mut Self) -> Look {
        if self.lens.is_empty() {
            return if self.is_lost() { Look::Lost } else { Look::Nothing };
        }
        if self.apart.as_ref().is_none_or(|row| row.coming == 0) {
            let is_lost = self.is_lost();
            std::mem::swap(self, own);
            if is_lost {
                own.row().is_lost = false;
                self.row().is_lost = true;
            }
            return Look::Items;
        }
        while !self.is_coming() {
            own.push_first_of(self);
        }
        if self.at > self.bytes.len() / 2 {
            self.bytes.drain(..std::mem::take(&mut self.at));
        }
        if own.is_empty() { Look::Coming } else { Look::Items }
    }

    /// Whether the first item is on its way.
    fn is_coming(&self) -> bool {
        let is_coming = |row: &Row| matches!(row.items.front(), Some(Apart::Coming(..)));
        self.lens.front() == Some(&APART) && self.apart.as_deref().is_some_and(is_coming)
    }

    /// The item `number` came. Whether it is the first.
    pub(super) fn came(&mut self, number: u64, bulk: Bulk) -> bool {
        let row = self.row();
        // Nobody wants it any more if it is not here.
        let Some(at) = row.position(number) else { return false };
        row.bytes += bulk.len();
        row.bytes -= std::mem::replace(&mut row.items[at], Apart::Bulk(bulk)).len();
        row.coming -= 1;
        at == 0 && self.lens.front() == Some(&APART)
    }

    /// The item `number` never comes: nothing behind it is given to anybody. Whether it was here.
    pub(super) fn lose(&mut self, number: u64) -> bool {
        let row = self.row();
        let Some(at) = row.position(number) else { return false };
        for item in row.items.drain(at..) {
            row.bytes -= item.len();
            row.coming -= usize::from(matches!(item, Apart::Coming(..)));
        }
        row.is_lost = true;
        let mut places = self.lens.iter().enumerate().filter(|(_, len)| **len == APART);
        let place = places.nth(at).map_or(0, |(place, _)| place);
        self.lens.truncate(place);
        let here = self.lens.iter().filter(|len| **len != APART).sum::<usize>();
        self.bytes.truncate(self.at + here);
        true
    }

    pub(super) fn is_lost(&self) -> bool {
        self.apart.as_ref().is_some_and(|row| row.is_lost)
    }

    /// Forgets everything, and gives memory back that was hardly used.
    pub(super) fn clear(&mut self) {
        let used = self.bytes.len();
        self.bytes.clear();
        self.lens.clear();
        self.at = 0;
        if let Some(row) = &mut self.apart {
            row.clear();
        }
        let has = self.bytes.capacity();
        if has > KEPT && used < has / 8 {
            self.bytes.shrink_to(has / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use gimmal_engine::transport::Loan;

    use super::*;
    use crate::stream::Budget;

    #[test]
    fn items_come_out_as_they_went_in() {
        let mut items = Items::default();
        for item in [&b"one"[..], b"", b"three"] {
            items.push(item);
        }
        assert_eq!((items.len(), items.cost()), (3, 8 + 3 * 64));
        assert_eq!(items.front(), Some(&b"one"[..]));
        let mut pop = || match items.pop() {
            Some(Popped::Here(range)) => items.bytes(range).to_vec(),
            other => panic!("{other:?}"),
        };
        assert_eq!((pop(), pop()), (b"one".to_vec(), Vec::new()));
        items.consume(2);
        assert_eq!((items.front(), items.cost()), (Some(&b"ree"[..]), 3 + 64));
        items.extend(b"!");
        assert_eq!(items.front(), Some(&b"ree!"[..]));
        items.consume(9);
        assert!(items.is_empty() && items.front().is_none() && items.pop().is_none());
        assert_eq!(items.cost(), 0);
        let put = items.put(|bytes| bytes.try_reserve(3).map(|()| bytes.extend(b"new")));
        assert_eq!((put, items.len(), items.front()), (Ok(()), 1, Some(&b"new"[..])));
    }

    #[test]
    fn bytes_come_out_without_bounds() {
        let mut items = Items::default();
        for item in [&b""[..], b"one", b"", b"", b"three"] {
            items.push(item);
        }
        assert_eq!(items.rest(), b"onethree");
        assert_eq!((items.skip(4), items.len(), items.rest()), (4 + 4 * 64, 1, &b"hree"[..]));
        items.push(b"!");
        let (taken, cost) = items.take();
        let rest = |taken| match taken {
            Taken::Copied(bytes, at) => bytes[at..].to_vec(),
            Taken::Held(bulk, at) => bulk[at..].to_vec(),
        };
        assert_eq!((rest(taken), cost, items.is_empty()), (b"hree!".to_vec(), 5 + 2 * 64, true));
        assert_eq!((rest(items.take().0), items.cost()), (Vec::new(), 0));
    }

    #[test]
    fn bytes_in_memory_of_their_own_come_out_between_the_others() {
        let loan = |bytes: &[u8]| {
            let mut loan = Loan::anonymous(bytes.len(), 0).unwrap();
            loan.copy_from_slice(bytes);
            loan
        };
        let mut items = Items::default();
        items.push(b"one");
        items.push(b"two");
        items.push_apart(Apart::Coming(1, 5));
        items.push_apart(Apart::Coming(2, 4));
        items.extend(b"last");
        assert_eq!((items.len(), items.cost()), (5, 19 + 5 * 64));
        assert!(!items.came(2, Bulk::own(loan(b"four"))));
        let mut own = Items::default();
        assert_eq!((items.give(&mut own), own.rest()), (Look::Items, &b"onetwo"[..]));
        own.clear();
        assert_eq!(items.give(&mut own), Look::Coming);
        assert!(items.came(1, Bulk::own(loan(b"three"))));
        assert_eq!((items.give(&mut own), items.is_empty()), (Look::Items, true));
        assert_eq!(own.rest(), b"three");
        assert_eq!((own.skip(2), own.rest()), (2, &b"ree"[..]));
        assert_eq!(own.skip(4), 4 + 64);
        let held = own.take();
        assert!(matches!(held, (Taken::Held(bulk, 1), 67) if *bulk == *b"four"));
        assert_eq!(own.rest(), b"last");
        let budget = Budget::new(0, 4, 0);
        assert!(Ahead::new(&budget, 5, || Some(loan(b"above"))).is_none());
        own.push_apart(Apart::Loan(Ahead::new(&budget, 4, || Some(loan(b"more"))).unwrap()));
        assert!(Ahead::new(&budget, 1, || Some(loan(b"1"))).is_none());
        assert_eq!(own.rest(), b"last");
        assert!(matches!(own.take(), (Taken::Copied(bytes, 0), 68) if bytes == b"last"));
        assert!(own.is_loan());
        own.consume(1);
        assert!(!own.is_loan() && own.front() == Some(b"ore") && own.cost() == 67);
        own.clear();
        assert_eq!((own.cost(), own.len()), (0, 0));
        assert!(Ahead::new(&budget, 4, || Some(loan(b"more"))).is_some());
    }

    #[test]
    fn what_is_behind_a_lost_item_is_gone() {
        let mut items = Items::default();
        items.push(b"one");
        items.push_apart(Apart::Coming(1, 5));
        items.push(b"two");
        items.push_apart(Apart::Coming(2, 5));
        assert!(items.lose(1) && !items.lose(2) && items.is_lost());
        assert_eq!((items.len(), items.cost()), (1, 3 + 64));
        let mut own = Items::default();
        assert_eq!((items.give(&mut own), own.rest()), (Look::Items, &b"one"[..]));
        own.clear();
        assert_eq!(items.give(&mut own), Look::Lost);
    }

    #[test]
    fn memory_that_is_hardly_used_goes_back() {
        let mut items = Items::default();
        items.push(&vec![0; 1 << 20]);
        items.clear();
        let full = items.bytes.capacity();
        assert!(full >= 1 << 20, "used as a whole");
        for _ in 0..10 {
            items.push(&[1]);
            items.clear();
        }
        assert!(items.bytes.capacity() <= KEPT);
    }
}
