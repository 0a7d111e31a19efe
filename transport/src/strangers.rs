//! The waiting room of a listener, for clients that are connected and have not proved their identity: their places, and the
//! time of a place.
//!
//! ```text
//!  backlog ─ accept ─► place ─ hello, proof ─► handed out
//!                        └─ its time is over, or a newer one needs the place ─► refused
//! ```
//! A source (a user, a host) has only some of the places, so that no silence of its own keeps others out.

use std::{collections::VecDeque, fmt::Debug, os::fd::OwnedFd, time::Duration};

use crate::{Hello, Instant, Key, RejectReason};

/// Clients that may be connected without having said hello, a descriptor each.
pub(crate) const PLACES: usize = 128;
/// Of them, those of one source where there may be several: half.
pub(crate) const PLACES_OF_ONE: usize = PLACES / 2;
/// A client that has not said hello for so long has had its chance, and goes for a newer one: 200 threads that share two cores
/// and connect at once get their turns within it.
pub(crate) const CHANCE: Duration = Duration::from_millis(100);
/// Between two looks at clients that wait, at most.
pub(crate) const LOOK: Duration = Duration::from_millis(50);
/// No more between two looks counts as a client's time: the rest is the listener's own absence.
const LOOK_MAX: Duration = Duration::from_millis(100);

/// A client that has not said hello, or has something to prove.
pub(crate) trait Stranger: Debug {
    /// Reads what the client sent, if anything. Returns its hello when that is good and a key was proved where one is asked
    /// for.
    ///
    /// # Errors
    /// It ends the client: the reason to tell it, or none when it is gone.
    fn read(&mut self, keys: &[Key]) -> Result<Option<Hello>, Option<RejectReason>>;

    /// Whether nothing was read of it, or said to it.
    fn is_silent(&self) -> bool;

    /// Readable when the client said something.
    fn socket(&self) -> &OwnedFd;

    /// The peer's name, for people.
    fn name(&self) -> String;

    /// Tells the client no.
    fn refuse(self, reason: RejectReason);
}

/// The strangers of a listener, the oldest first.
#[derive(Debug)]
pub(crate) struct Strangers<C, S> {
    waiting: VecDeque<Waiting<C, S>>,
    places_of_one: usize,
    /// The last look.
    seen: Instant,
}

#[derive(Debug)]
struct Waiting<C, S> {
    client: C,
    source: S,
    since: Instant,
    until: Instant,
    /// It was read, in vain.
    looked: bool,
}

impl<C, S> Waiting<C, S> {
    /// Whether it had its chance to say hello.
    fn is_late(&self, now: Instant) -> bool {
        self.looked && now - self.since >= CHANCE
    }
}

impl<C: Stranger, S: PartialEq> Strangers<C, S> {
    /// A room in which one source has at most `places_of_one`.
    pub(crate) fn new(places_of_one: usize, now: Instant) -> Self {
        Self { waiting: VecDeque::with_capacity(PLACES), places_of_one, seen: now }
    }

    /// The clients, the oldest first.
    pub(crate) fn clients(&self) -> impl Iterator<Item = &C> {
        self.waiting.iter().map(|waiting| &waiting.client)
    }

    /// Whether the next client may be accepted. If not, it waits in the backlog.
    pub(crate) fn is_open(&self, now: Instant) -> bool {
        !self.is_full() || self.waiting.front().is_some_and(|oldest| oldest.is_late(now))
    }

    /// Makes a place for a client of `source`, if the room is open; the client that goes for it.
    ///
    /// # Errors
    /// There is none: the source has all of its places, for clients that are not late.
    pub(crate) fn make_place(&mut self, source: &S, now: Instant) -> Result<Option<C>, ()> {
        let is_of_one = |other: &Waiting<C, S>| other.source == *source;
        if self.waiting.iter().filter(|other| is_of_one(other)).count() >= self.places_of_one {
            // Its oldest goes, if that had its chance: who is silent does not keep out who is not.
            let oldest = self.waiting.iter().position(is_of_one).ok_or(())?;
            return if self.waiting[oldest].is_late(now) { Ok(self.remove(oldest)) } else { Err(()) };
        }
        Ok(if self.is_full() { self.remove(0) } else { None })
    }

    /// Lets a client in, which waits until `until` at most.
    pub(crate) fn let_in(&mut self, client: C, source: S, now: Instant, until: Instant) {
        self.waiting.push_back(Waiting { client, source, since: now, until, looked: false });
    }

    /// Takes the oldest client that is silent and had its chance.
    pub(crate) fn take_silent(&mut self, now: Instant) -> Option<C> {
        let is_idle = |other: &Waiting<C, S>| other.client.is_silent() && other.is_late(now);
        self.waiting.iter().position(is_idle).and_then(|at| self.remove(at))
    }

    /// The clients are looked at. What one said while the listener was away, or the whole process was stopped, is read only now, and
    /// its answer is not there yet: so that was not its time.
    fn look(&mut self, now: Instant) {
        let seen = std::mem::replace(&mut self.seen, now);
        if now - seen <= LOOK_MAX {
            return;
        }
        for waiting in &mut self.waiting {
            let away = (now - seen.max(waiting.since)).saturating_sub(LOOK_MAX);
            waiting.until = waiting.until + away;
        }
    }

    /// Reads the clients in turn. Returns the first whose hello is good. Those that are to be told no before it are given to
    /// `refuse`, and those that have gone are dropped.
    pub(crate) fn first_hello(
        &mut self,
        keys: &[Key],
        now: Instant,
        mut refuse: impl FnMut(C, RejectReason),
    ) -> Option<(C, Hello)> {
        self.look(now);
        let mut at = 0;
        while let Some(waiting) = self.waiting.get_mut(at) {
            let outcome = match waiting.client.read(keys) {
                Ok(None) if waiting.until <= now => Err(Some(RejectReason::Overloaded)),
                Ok(None) => {
                    waiting.looked = true;
                    at += 1;
                    continue;
                }
                Ok(Some(hello)) => Ok(hello),
                Err(reason) => Err(reason),
            };
            let client = self.remove(at)?;
            match outcome {
                Ok(hello) => return Some((client, hello)),
                Err(Some(reason)) => refuse(client, reason),
                Err(None) => {}
            }
        }
        None
    }

    /// When the next client is late for somebody, or out of time.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        let chance = self.waiting.front().filter(|_| self.is_full()).map(|oldest| oldest.since + CHANCE);
        self.waiting.iter().map(|waiting| waiting.until).chain(chance).min()
    }

    /// Whether all places are taken.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= PLACES
    }

    fn remove(&mut self, at: usize) -> Option<C> {
        self.waiting.remove(at).map(|waiting| waiting.client)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIME: Duration = Duration::from_secs(2);

    /// A client that says something, or nothing.
    #[derive(Debug)]
    struct Client {
        number: usize,
        says: Says,
    }

    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Says {
        Nothing,
        Hello,
        Nonsense,
    }

    impl Stranger for Client {
        fn read(&mut self, _: &[Key]) -> Result<Option<Hello>, Option<RejectReason>> {
            match self.says {
                Says::Nothing => Ok(None),
                Says::Hello => Ok(Some(hello())),
                Says::Nonsense => Err(Some(RejectReason::NotOurs)),
            }
        }

        fn is_silent(&self) -> bool {
            self.says == Says::Nothing
        }

        fn socket(&self) -> &OwnedFd {
            unreachable!("nobody waits for it")
        }

        fn name(&self) -> String {
            self.number.to_string()
        }

        fn refuse(self, _: RejectReason) {}
    }

    fn hello() -> Hello {
        Hello {
            features: crate::hello::Feature::RING,
            ring_bytes: 4096,
            slot_bytes: 0,
            arrivals: 0,
            responder_resources: 0,
            initiator_depth: 0,
            lane: 0,
            service: 0,
            nonce: 1,
        }
    }

    /// A room in virtual time, of users 'a', 'b', and so on.
    struct Room {
        strangers: Strangers<Client, char>,
        now: Instant,
        /// Those that came, and those that were refused, by number.
        count: usize,
        refused: Vec<usize>,
    }

    impl Room {
        fn new() -> Self {
            let now = Instant::now();
            Self { strangers: Strangers::new(PLACES_OF_ONE, now), now, count: 0, refused: Vec::new() }
        }

        fn wait(&mut self, span: Duration) {
            self.now = self.now + span;
        }

        /// Looks for `span`, and finds no hello.
        fn looks(&mut self, span: Duration) {
            let end = self.now + span;
            while self.now < end {
                self.wait(LOOK.min(end - self.now));
                assert_eq!(self.read(), None);
            }
        }

        /// Reads those that are there; who is handed out.
        fn read(&mut self) -> Option<usize> {
            let Self { strangers, now, refused, .. } = self;
            let found = strangers.first_hello(&[], *now, |client, _| refused.push(client.number));
            found.map(|(client, _)| client.number)
        }

        /// One that `says` something comes in from `source`; whether it has a place.
        fn comes(&mut self, source: char, says: Says) -> bool {
            let number = self.count;
            self.count += 1;
            let place =
                self.strangers.is_open(self.now).then(|| self.strangers.make_place(&source, self.now));
            let Some(Ok(gone)) = place else { return false };
            self.refused.extend(gone.map(|client| client.number));
            self.strangers.let_in(Client { number, says }, source, self.now, self.now + TIME);
            true
        }
    }

    #[test]
    fn a_good_hello_is_found_behind_others_and_frees_its_place() {
        let mut room = Room::new();
        for says in [Says::Nothing, Says::Nonsense, Says::Nothing, Says::Hello, Says::Nonsense, Says::Hello] {
            assert!(room.comes('a', says));
        }
        assert_eq!((room.read(), &room.refused[..]), (Some(3), &[1][..]));
        assert_eq!((room.read(), &room.refused[..]), (Some(5), &[1, 4][..]));
        assert_eq!((room.read(), room.strangers.clients().count()), (None, 2));
        // Its time is over, whoever else is there.
        assert_eq!(room.strangers.next_turn(), Some(room.now + TIME));
        room.looks(TIME);
        assert_eq!(&room.refused[..], [1, 4, 0, 2]);
    }

    /// R40: our own absence is not the client's silence.
    #[test]
    fn r40_a_client_has_its_time_although_the_listener_was_away() {
        let mut room = Room::new();
        assert!(room.comes('a', Says::Nothing));
        let mut left = TIME;
        // Before it was read once, and later.
        for _ in 0..3 {
            room.wait(TIME.saturating_mul(2));
            assert_eq!((room.read(), room.refused.len()), (None, 0));
            left = left.saturating_sub(LOOK_MAX);
            assert_eq!(room.strangers.next_turn(), Some(room.now + left));
            room.looks(LOOK);
            left = left.saturating_sub(LOOK);
        }
        // What was before somebody came is no absence to it.
        room.wait(TIME);
        assert!(room.comes('a', Says::Nothing));
        room.looks(LOOK);
        left = left.saturating_sub(LOOK_MAX);
        room.looks(left.saturating_sub(LOOK));
        assert_eq!(room.refused, []);
        room.looks(LOOK);
        assert_eq!(room.refused, [0]);
        let left = TIME.saturating_sub(left).saturating_sub(LOOK);
        room.looks(left.saturating_sub(LOOK));
        assert_eq!(room.refused, [0]);
        room.looks(LOOK);
        assert_eq!(room.refused, [0, 1]);
    }

    /// A machine on which each look is late gives nobody a place for ever.
    #[test]
    fn late_looks_end_a_silence_too() {
        let mut room = Room::new();
        assert!(room.comes('a', Says::Nothing));
        for look in 0..TIME.as_millis() / LOOK_MAX.as_millis() {
            assert_eq!(room.refused, [], "{look}");
            room.wait(TIME);
            assert_eq!(room.read(), None);
        }
        assert_eq!(room.refused, [0]);
    }

    #[test]
    fn a_source_has_its_places_and_makes_room_for_itself_alone() {
        let mut room = Room::new();
        assert!(room.comes('b', Says::Nothing));
        (0..PLACES_OF_ONE).for_each(|_| assert!(room.comes('a', Says::Nothing)));
        // Nobody had a chance yet: nobody was read, and then it was too soon.
        room.wait(CHANCE);
        assert!(!room.comes('a', Says::Hello));
        assert_eq!(room.read(), None);
        assert!(room.comes('a', Says::Hello));
        assert_eq!((room.read(), &room.refused[..]), (Some(PLACES_OF_ONE + 2), &[1][..]));
        assert!(room.comes('b', Says::Nothing));
    }

    #[test]
    fn in_a_full_room_the_oldest_goes_if_it_is_late() {
        let mut room = Room::new();
        for number in 0..PLACES {
            assert!(room.comes(if number % 2 == 0 { 'a' } else { 'b' }, Says::Nothing));
        }
        assert_eq!((room.read(), room.strangers.next_turn()), (None, Some(room.now + CHANCE)));
        assert!(!room.comes('c', Says::Hello), "it stays in the backlog");
        room.wait(CHANCE);
        assert!(room.comes('c', Says::Hello));
        assert_eq!((room.read(), &room.refused[..]), (Some(PLACES + 1), &[0][..]));
    }

    #[test]
    fn a_lack_takes_the_oldest_that_is_silent() {
        let mut room = Room::new();
        for says in [Says::Nonsense, Says::Nothing, Says::Nothing] {
            assert!(room.comes('a', says));
        }
        assert!(room.strangers.take_silent(room.now).is_none());
        room.wait(CHANCE);
        assert!(room.strangers.take_silent(room.now).is_none(), "nobody was read");
        assert_eq!(room.read(), None);
        assert_eq!(room.strangers.take_silent(room.now).map(|client| client.number), Some(1));
    }
}
