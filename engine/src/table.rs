//! Connections by [`ConnId`], and which of them want attention before the turn ends.

use gimmal_transport::{ConnId, Pulled};

/// Slots by index, without hashing. The two top bits of an index name the provider's pool: here they are the lowest.
#[derive(Debug)]
pub(crate) struct ConnTable<T> {
    /// Each on its own: a table that grows moves no connection.
    entries: Vec<Option<Box<Entry<T>>>>,
    active: Vec<ConnId>,
    len: usize,
    /// Number of the turn, or of what else ends with a flush.
    pub(crate) turn: u64,
    /// A connection was closed while its messages are handed out: no more of them.
    pub(crate) cut: bool,
    /// Frames of a run were accounted for before its end.
    pub(crate) accounted: bool,
    /// Pulls that were over at once: of which connection, and their slots.
    pub(crate) brought: Vec<(ConnId, u64, Pulled)>,
}

#[derive(Debug)]
struct Entry<T> {
    generation: u32,
    active: bool,
    value: T,
}

#[inline]
fn place(conn: ConnId) -> usize {
    conn.index().rotate_left(ConnId::POOL_BITS) as usize
}

impl<T> ConnTable<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Vec::new(),
            active: Vec::new(),
            len: 0,
            turn: 0,
            cut: false,
            accounted: false,
            brought: Vec::new(),
        }
    }

    pub(crate) fn insert(&mut self, conn: ConnId, value: T) {
        let index = place(conn);
        if self.entries.len() <= index {
            self.entries.resize_with(index + 1, || None);
        }
        let entry = Box::new(Entry { generation: conn.generation(), active: false, value });
        if self.entries[index].replace(entry).is_none() {
            self.len += 1;
        }
        self.active.reserve(self.len);
    }

    #[inline]
    fn entry(&mut self, conn: ConnId) -> Option<&mut Entry<T>> {
        let entry = self.entries.get_mut(place(conn))?.as_deref_mut()?;
        (entry.generation == conn.generation()).then_some(entry)
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&T> {
        let entry = self.entries.get(place(conn))?.as_deref()?;
        (entry.generation == conn.generation()).then_some(&entry.value)
    }

    /// The connection, which will be settled before the turn ends.
    #[inline]
    pub(crate) fn touch(&mut self, conn: ConnId) -> Option<&mut T> {
        // Not by `entry`: the list is touched while it is borrowed.
        let entry = self.entries.get_mut(place(conn))?.as_deref_mut()?;
        if entry.generation != conn.generation() {
            return None;
        }
        if !std::mem::replace(&mut entry.active, true) {
            self.active.push(conn);
        }
        Some(&mut entry.value)
    }

    pub(crate) fn remove(&mut self, conn: ConnId) -> Option<T> {
        self.entry(conn)?;
        self.len -= 1;
        self.entries[place(conn)].take().map(|entry| entry.value)
    }

    /// The `index`th of those touched since they were last settled.
    #[inline]
    pub(crate) fn active(&self, index: usize) -> Option<ConnId> {
        self.active.get(index).copied()
    }

    /// Settles the `index`th: it leaves the list unless `settle` says that it is still active; another may take its
    /// place. `None` when the connection is gone: it has left the list.
    #[inline]
    pub(crate) fn settle<R>(&mut self, index: usize, settle: impl FnOnce(&mut T) -> (R, bool)) -> Option<R> {
        let conn = *self.active.get(index)?;
        let entry = self.entries.get_mut(place(conn)).and_then(Option::as_deref_mut);
        let Some(entry) = entry.filter(|entry| entry.generation == conn.generation()) else {
            self.active.swap_remove(index);
            return None;
        };
        let (result, still) = settle(&mut entry.value);
        if !still {
            entry.active = false;
            self.active.swap_remove(index);
        }
        Some(result)
    }

    #[inline]
    pub(crate) fn peek(&mut self, conn: ConnId) -> Option<&mut T> {
        self.entry(conn).map(|entry| &mut entry.value)
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Names all of them in `ids`.
    pub(crate) fn list(&self, ids: &mut Vec<ConnId>) {
        ids.extend((0u32..).zip(&self.entries).filter_map(|(place, entry)| {
            entry.as_ref().map(|entry| ConnId::new(place.rotate_right(ConnId::POOL_BITS), entry.generation))
        }));
    }

    pub(crate) fn ids(&self) -> Vec<ConnId> {
        let mut ids = Vec::new();
        self.list(&mut ids);
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_ids_and_pools_are_kept_apart() {
        let mut table = ConnTable::new();
        let (low, high) = (ConnId::new(3, 1), ConnId::new(1 << 30 | 3, 1));
        table.insert(low, 'a');
        table.insert(high, 'b');
        assert_eq!((table.get(low), table.get(high), table.len()), (Some(&'a'), Some(&'b'), 2));
        assert_eq!(table.get(ConnId::new(3, 2)), None);
        table.touch(low);
        table.touch(low);
        assert_eq!((table.active(0), table.active(1)), (Some(low), None));
        assert_eq!(table.settle(0, |value| (*value, true)), Some('a'));
        assert_eq!(table.active(0), Some(low));
        assert_eq!(table.settle(0, |value| (*value, false)), Some('a'));
        assert_eq!(table.active(0), None);
        assert_eq!(table.remove(low), Some('a'));
        assert!(table.touch(low).is_none());
        table.touch(high);
        table.insert(ConnId::new(1 << 30 | 3, 2), 'c');
        assert_eq!(
            (table.settle(0, |_| ((), true)), table.active(0)),
            (None, None),
            "gone, and off the list"
        );
        assert_eq!(table.ids(), vec![ConnId::new(1 << 30 | 3, 2)]);
    }
}
