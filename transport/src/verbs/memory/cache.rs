//! Values by address and length, kept while they are used and, within limits, afterwards.
//!
//! ```text
//!  insert ─► in use ── end, the last one ──► idle ── beyond the limits: the longest idle go first ──► gone
//!              │  ◄────────── find ───────────┘  └── forget ──► gone
//!              └ forget ──► in use, found no more ── end, the last one ──► gone
//! ```
//! Pure: making values and dropping them, which takes long and may run a user's code, is the caller's, outside of any lock.

use std::collections::BTreeMap;

use crate::mem::{UserMemory, user_bytes::Place};

/// What may be kept, in use or not. What is in use is never taken away, and may be more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) bytes: u64,
    pub(crate) pieces: u64,
}

/// Values by address and length, kept while they are used and, within limits, afterwards.
#[derive(Debug)]
pub(crate) struct Cache<V> {
    limits: Limits,
    /// By their indexes, which stay while they are kept.
    table: Vec<Option<Entry<V>>>,
    vacant: Vec<u32>,
    /// Those that can be found.
    known: BTreeMap<Place, u32>,
    /// Those that nobody uses, by when that began.
    idle: BTreeMap<u64, u32>,
    clock: u64,
    counters: UserMemory,
}

#[derive(Debug)]
struct Entry<V> {
    place: Place,
    value: V,
    /// Loans of it.
    users: u64,
    idle_since: u64,
    is_forgotten: bool,
}

impl<V> Cache<V> {
    pub(crate) fn new(limits: Limits) -> Self {
        let (known, idle) = (BTreeMap::new(), BTreeMap::new());
        let counters = UserMemory::default();
        Self { limits, table: Vec::new(), vacant: Vec::new(), known, idle, clock: 0, counters }
    }

    /// What is at `place`, with one user more.
    pub(crate) fn find(&mut self, place: Place) -> Option<(u32, &V)> {
        let index = *self.known.get(&place)?;
        let entry = self.table[index as usize].as_mut()?;
        if entry.users == 0 {
            self.idle.remove(&entry.idle_since);
        }
        entry.users += 1;
        self.counters.hits += 1;
        Some((index, &entry.value))
    }

    /// Keeps `value` for its first user. Comes back with what had to go for it: perhaps `value` itself, when another was
    /// quicker, which is then used.
    pub(crate) fn insert(&mut self, place: Place, value: V) -> (u32, Vec<V>) {
        self.counters.misses += 1;
        if let Some((index, _)) = self.find(place) {
            self.counters.hits -= 1;
            return (index, vec![value]);
        }
        let entry = Some(Entry { place, value, users: 1, idle_since: 0, is_forgotten: false });
        let index = match self.vacant.pop() {
            Some(index) => {
                self.table[index as usize] = entry;
                index
            }
            None => {
                self.table.push(entry);
                u32::try_from(self.table.len() - 1).expect("fewer than 2^32 registrations")
            }
        };
        self.known.insert(place, index);
        self.counters.pieces += 1;
        self.counters.registered_bytes += place.1 as u64;
        (index, self.trim())
    }

    pub(crate) fn get(&self, index: u32) -> Option<&V> {
        Some(&self.table.get(index as usize)?.as_ref()?.value)
    }

    /// A user less of the one at `index`; what goes now.
    pub(crate) fn end(&mut self, index: u32) -> Vec<V> {
        let Some(Some(entry)) = self.table.get_mut(index as usize) else { return Vec::new() };
        entry.users = entry.users.saturating_sub(1);
        if entry.users > 0 {
            return Vec::new();
        }
        if entry.is_forgotten {
            return self.remove(index).into_iter().collect();
        }
        self.clock += 1;
        entry.idle_since = self.clock;
        self.idle.insert(self.clock, index);
        self.trim()
    }

    /// The one at `place` is found no more, and goes with its last user: now, if there is none.
    pub(crate) fn forget(&mut self, place: Place) -> Option<V> {
        let index = self.known.remove(&place)?;
        let entry = self.table[index as usize].as_mut()?;
        entry.is_forgotten = true;
        if entry.users > 0 { None } else { self.remove(index) }
    }

    /// All that nobody uses.
    pub(crate) fn clear(&mut self) -> Vec<V> {
        self.evict(|_, _| true)
    }

    /// Nothing is kept after its use any more. What nobody uses goes now.
    pub(crate) fn close(&mut self) -> Vec<V> {
        self.limits = Limits { bytes: 0, pieces: 0 };
        self.known.clear();
        for entry in self.table.iter_mut().flatten() {
            entry.is_forgotten = true;
        }
        self.clear()
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.table.iter_mut().flatten().map(|entry| &mut entry.value)
    }

    pub(crate) fn counters(&self) -> UserMemory {
        self.counters
    }

    /// Makes room, as far as it can be had.
    fn trim(&mut self) -> Vec<V> {
        self.evict(|counters, limits| {
            counters.registered_bytes > limits.bytes || counters.pieces > limits.pieces
        })
    }

    fn evict(&mut self, goes_on: impl Fn(&UserMemory, &Limits) -> bool) -> Vec<V> {
        let mut gone = Vec::new();
        while goes_on(&self.counters, &self.limits)
            && let Some((_, index)) = self.idle.pop_first()
        {
            self.counters.evictions += 1;
            gone.extend(self.remove(index));
        }
        gone
    }

    fn remove(&mut self, index: u32) -> Option<V> {
        let entry = self.table.get_mut(index as usize)?.take()?;
        if !entry.is_forgotten {
            self.known.remove(&entry.place);
        }
        self.idle.remove(&entry.idle_since);
        self.vacant.push(index);
        self.counters.pieces -= 1;
        self.counters.registered_bytes -= entry.place.1 as u64;
        Some(entry.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Place = (0x1000, 100);
    const B: Place = (0x2000, 50);
    const C: Place = (0x3000, 60);

    fn cache(bytes: u64, pieces: u64) -> Cache<&'static str> {
        Cache::new(Limits { bytes, pieces })
    }

    #[test]
    fn a_second_user_finds_what_the_first_one_left() {
        let mut cache = cache(1000, 10);
        let (index, gone) = cache.insert(A, "a");
        assert!(gone.is_empty());
        assert_eq!(cache.find(A), Some((index, &"a")), "while it is used");
        assert!(cache.end(index).is_empty() && cache.end(index).is_empty());
        assert_eq!(cache.find(A), Some((index, &"a")), "and afterwards");
        assert_eq!(cache.find((A.0, A.1 - 1)), None, "another length is another place");
        let counters = cache.counters();
        assert_eq!((counters.hits, counters.misses), (2, 1));
        assert_eq!((counters.pieces, counters.registered_bytes), (1, 100));
    }

    #[test]
    fn the_longest_idle_go_first_and_only_for_room() {
        let mut cache = cache(200, 10);
        let (a, _) = cache.insert(A, "a");
        let (b, _) = cache.insert(B, "b");
        assert!(cache.end(b).is_empty() && cache.end(a).is_empty());
        let (c, gone) = cache.insert(C, "c");
        assert_eq!(gone, ["b"], "210 bytes are too many, and b is idle for longest");
        assert!(cache.end(c).is_empty());
        assert_eq!(cache.find(A).map(|(index, _)| index), Some(a));
        assert_eq!(cache.insert(B, "b").1, ["c"], "a is in use again");
        assert_eq!(cache.counters().evictions, 2);
    }

    #[test]
    fn pieces_have_a_limit_of_their_own() {
        let mut cache = cache(1 << 20, 1);
        let (a, _) = cache.insert(A, "a");
        assert!(cache.end(a).is_empty());
        assert_eq!(cache.insert(B, "b").1, ["a"]);
    }

    #[test]
    fn what_is_in_use_stays_above_the_limits_and_goes_when_it_ends() {
        let mut cache = cache(0, 0);
        let (a, gone) = cache.insert(A, "a");
        assert!(gone.is_empty());
        let (b, gone) = cache.insert(B, "b");
        assert!(gone.is_empty());
        assert_eq!(cache.counters().registered_bytes, 150);
        assert_eq!((cache.end(a), cache.end(b)), (vec!["a"], vec!["b"]));
        assert_eq!((cache.counters().pieces, cache.counters().registered_bytes), (0, 0));
        assert_eq!(cache.find(A), None);
    }

    #[test]
    fn who_was_slower_uses_the_quickers() {
        let mut cache = cache(1000, 10);
        let first = cache.insert(A, "a");
        assert_eq!(cache.insert(A, "again"), (first.0, vec!["again"]));
        assert_eq!((cache.counters().hits, cache.counters().misses), (0, 2));
        assert!(cache.end(first.0).is_empty());
        assert_eq!(cache.forget(A), None, "one of the two is left");
        assert_eq!(cache.end(first.0), ["a"]);
    }

    #[test]
    fn forgotten_ones_go_with_their_last_user_and_make_place_at_once() {
        let mut cache = cache(1000, 10);
        let (old, _) = cache.insert(A, "old");
        assert_eq!(cache.forget(A), None);
        assert!(cache.find(A).is_none() && cache.forget(A).is_none());
        let (new, _) = cache.insert(A, "new");
        assert_ne!(old, new);
        assert_eq!(cache.end(old), ["old"]);
        assert_eq!(cache.find(A), Some((new, &"new")), "the old one took nothing of the new one along");
        assert!(cache.end(new).is_empty() && cache.end(new).is_empty());
        assert_eq!(cache.forget(A), Some("new"));
        assert_eq!((cache.counters().pieces, cache.counters().evictions), (0, 0));
    }

    #[test]
    fn after_the_end_nothing_is_kept() {
        let mut cache = cache(1000, 10);
        let (a, _) = cache.insert(A, "a");
        let (b, _) = cache.insert(B, "b");
        assert!(cache.end(b).is_empty());
        assert_eq!(cache.close(), ["b"]);
        assert_eq!(cache.values_mut().count(), 1);
        assert_eq!(cache.get(a), Some(&"a"));
        assert_eq!(cache.find(A), None);
        assert_eq!(cache.end(a), ["a"]);
        assert!(cache.end(a).is_empty(), "a late end names nothing");
        let (c, _) = cache.insert(C, "c");
        assert_eq!(cache.end(c), ["c"]);
    }

    /// Against a plain list: users, forgetting and both limits, by seeds.
    #[test]
    fn random_uses_lose_and_leak_nothing() {
        for seed in 1..200_u64 {
            let mut word = seed;
            let mut random = |below: u64| {
                word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (word >> 33) % below
            };
            let limits = Limits { bytes: random(600), pieces: random(6) };
            let mut cache = Cache::new(limits);
            let (mut users, mut made, mut gone) = (Vec::new(), 0_u64, 0_usize);
            for _ in 0..300 {
                let place = (0x1000 * (1 + usize::try_from(random(8)).unwrap()), 100);
                match random(5) {
                    0 | 1 => match cache.find(place).map(|(index, _)| index) {
                        Some(index) => users.push(index),
                        None => {
                            made += 1;
                            let (index, out) = cache.insert(place, made);
                            gone += out.len();
                            users.push(index);
                        }
                    },
                    2 | 3 if !users.is_empty() => {
                        let index = users.swap_remove(usize::try_from(random(users.len() as u64)).unwrap());
                        assert!(cache.get(index).is_some(), "seed {seed}: in use, and gone");
                        gone += cache.end(index).len();
                    }
                    _ => gone += usize::from(cache.forget(place).is_some()),
                }
                let counters = cache.counters();
                assert_eq!(counters.pieces, made - gone as u64, "seed {seed}");
                assert_eq!(counters.registered_bytes, 100 * counters.pieces, "seed {seed}");
                let in_use: std::collections::BTreeSet<_> = users.iter().collect();
                let idle = counters.pieces - in_use.len() as u64;
                let within = counters.pieces <= limits.pieces && counters.registered_bytes <= limits.bytes;
                assert!(idle == 0 || within, "seed {seed}: {idle} idle beyond {limits:?}");
            }
            gone += cache.close().len();
            gone += users.drain(..).map(|index| cache.end(index).len()).sum::<usize>();
            assert_eq!((made, cache.counters().pieces), (gone as u64, 0), "seed {seed}");
        }
    }
}
