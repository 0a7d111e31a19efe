//! What belongs to a connection, by its id: no hashing, a stale id finds nothing.

use gimmal_engine::transport::ConnId;

/// Slots by index; the two top bits of an index name the provider's pool.
#[derive(Debug)]
pub(crate) struct ConnMap<T> {
    pools: [Vec<Option<(u32, T)>>; ConnId::POOLS],
}

#[inline]
const fn place(conn: ConnId) -> (usize, usize) {
    (conn.pool(), conn.place() as usize)
}

impl<T> ConnMap<T> {
    pub(crate) fn new() -> Self {
        Self { pools: [const { Vec::new() }; ConnId::POOLS] }
    }

    pub(crate) fn insert(&mut self, conn: ConnId, value: T) {
        let (pool, index) = place(conn);
        let pool = &mut self.pools[pool];
        if pool.len() <= index {
            pool.resize_with(index + 1, || None);
        }
        pool[index] = Some((conn.generation(), value));
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut T> {
        let (pool, index) = place(conn);
        let (generation, value) = self.pools[pool].get_mut(index)?.as_mut()?;
        (*generation == conn.generation()).then_some(value)
    }

    pub(crate) fn remove(&mut self, conn: ConnId) -> Option<T> {
        self.get_mut(conn)?;
        let (pool, index) = place(conn);
        self.pools[pool][index].take().map(|(_, value)| value)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (ConnId, &mut T)> {
        self.pools.iter_mut().enumerate().flat_map(|(pool, slots)| {
            (0u32..).zip(slots).filter_map(move |(index, slot)| {
                let (generation, value) = slot.as_mut()?;
                Some((ConnId::new(index, *generation).in_pool(pool), value))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stale_ids_find_nothing() {
        let mut map = ConnMap::new();
        let (low, high) = (ConnId::new(2, 1), ConnId::new(2 << 30 | 2, 5));
        map.insert(low, 'a');
        map.insert(high, 'b');
        assert_eq!(map.get_mut(ConnId::new(2, 2)), None);
        assert_eq!(map.iter_mut().map(|(conn, _)| conn).collect::<Vec<_>>(), [low, high]);
        assert_eq!((map.remove(low), map.remove(low)), (Some('a'), None));
        assert_eq!(map.get_mut(high), Some(&mut 'b'));
    }
}
