//! The waiting room of a listener, for clients that are connected and have not proved their identity: their places, and the
//! time of a place.
//!
//! ```text
//!  backlog ─ accept ─► place ─ hello, proof ─► handed out
//!                        └─ its time is over, or a newer one needs the place ─► refused
//! ```
//! A source (a user, a host) has only some of the places, so that it keeps no others out. The source of a client is known once
//! it is accepted, so one client may be beyond the places. The others wait in the backlog until it has a place. A client that is
//! silent and had its chance makes room for it; a handshake that proceeds is waited for.
//!
//! After the time of a handshake the backlog has waited for long enough. For as long again, a source beyond its places is refused
//! at once, and a client that had its chance makes room whatever it said.

use std::{collections::VecDeque, fmt::Debug, os::fd::OwnedFd, time::Duration};

use crate::{Hello, Instant, Key, RejectReason};

/// Clients that may be connected without having said hello, a descriptor each; and one more, for which the others wait.
pub(crate) const PLACES: usize = 128;
/// Of them, those of one source where there may be several: half.
pub(crate) const PLACES_OF_ONE: usize = PLACES / 2;
/// A client that has said nothing for so long has had its chance, and goes for a newer one: 200 threads that share two cores
/// and connect at once get their turns within it.
pub(crate) const CHANCE: Duration = Duration::from_millis(100);
/// For so long handshakes that proceed may keep others waiting, where their time has no such limit.
const PATIENCE_MAX: Duration = Duration::from_secs(60);

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
    /// The time of a place.
    time: Duration,
    /// When clients began to wait in the backlog for a place.
    crowded: Option<Instant>,
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

/// The places that the newest client is beyond.
#[derive(Debug)]
enum Beyond<'a, S> {
    /// Those of its source.
    One(&'a S),
    /// All places.
    All,
}

impl<S: PartialEq> Beyond<'_, S> {
    /// Whether `other` has one of these places.
    fn has<C>(&self, other: &Waiting<C, S>) -> bool {
        match self {
            Self::One(source) => other.source == **source,
            Self::All => true,
        }
    }
}

impl<C: Stranger, S: PartialEq> Waiting<C, S> {
    /// When it has had its chance.
    fn chance(&self) -> Instant {
        self.since + CHANCE
    }

    /// Whether it goes for another client from then on.
    fn may_go(&self, is_patient: bool) -> bool {
        self.looked && (self.client.is_silent() || !is_patient)
    }
}

impl<C: Stranger, S: PartialEq> Strangers<C, S> {
    /// A room in which one source has at most `places_of_one`, and each client its place for `time`.
    pub(crate) fn new(places_of_one: usize, time: Duration) -> Self {
        Self { waiting: VecDeque::with_capacity(PLACES + 1), places_of_one, time, crowded: None }
    }

    /// The clients, the oldest first.
    pub(crate) fn clients(&self) -> impl Iterator<Item = &C> {
        self.waiting.iter().map(|waiting| &waiting.client)
    }

    /// Whether the next client may be accepted. If not, it waits in the backlog.
    pub(crate) fn is_open(&self) -> bool {
        self.beyond().is_none()
    }

    /// Lets a client in, if the room is open.
    pub(crate) fn let_in(&mut self, client: C, source: S, now: Instant) {
        self.waiting.push_back(Waiting { client, source, since: now, until: now + self.time, looked: false });
    }

    /// Takes the client that goes, if one is beyond the places: the oldest that may, or the newest itself. While there is none,
    /// the backlog waits.
    pub(crate) fn take_beyond(&mut self, now: Instant) -> Option<C> {
        let (beyond, is_patient) = (self.beyond()?, self.is_patient(now));
        let of_one = matches!(beyond, Beyond::One(_));
        let newest = (of_one && !is_patient).then(|| self.waiting.len() - 1);
        let goes = |other: &Waiting<C, S>| other.may_go(is_patient) && other.chance() <= now;
        if let Some(at) = self.waiting.iter().position(|other| beyond.has(other) && goes(other)).or(newest) {
            return self.remove(at);
        }
        if is_patient && self.impatient().is_none_or(|(_, end)| end <= now) {
            self.crowded = Some(now);
        }
        None
    }

    /// The backlog is empty.
    pub(crate) fn all_are_in(&mut self, now: Instant) {
        if self.is_patient(now) {
            self.crowded = None;
        }
    }

    /// Takes the oldest client that is silent and had its chance.
    pub(crate) fn take_silent(&mut self, now: Instant) -> Option<C> {
        let goes = |other: &Waiting<C, S>| other.may_go(true) && other.chance() <= now;
        self.waiting.iter().position(goes).and_then(|at| self.remove(at))
    }

    /// Reads the clients in turn. Returns the first whose hello is good. Those that are to be told no before it are given to
    /// `refuse`, and those that have gone are dropped.
    pub(crate) fn first_hello(
        &mut self,
        keys: &[Key],
        now: Instant,
        mut refuse: impl FnMut(C, RejectReason),
    ) -> Option<(C, Hello)> {
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

    /// When the next client goes, or is out of time, if nobody says anything.
    pub(crate) fn next_turn(&self, now: Instant) -> Option<Instant> {
        let is_patient = self.is_patient(now);
        let beyond = self.beyond();
        let goes = |other: &&Waiting<C, S>| {
            beyond.as_ref().is_some_and(|beyond| beyond.has(other)) && other.may_go(is_patient)
        };
        let chances = self.waiting.iter().filter(goes).map(Waiting::chance);
        let patience = self.impatient().filter(|_| is_patient && beyond.is_some()).map(|(begin, _)| begin);
        self.waiting.iter().map(|waiting| waiting.until).chain(chances).chain(patience).min()
    }

    /// The places that the newest client is beyond, if it is.
    fn beyond(&self) -> Option<Beyond<'_, S>> {
        let newest = self.waiting.back()?;
        let of_one = self.waiting.iter().filter(|other| other.source == newest.source);
        if of_one.count() > self.places_of_one {
            return Some(Beyond::One(&newest.source));
        }
        (self.waiting.len() > PLACES).then_some(Beyond::All)
    }

    /// From when to when the backlog waits for no handshake.
    fn impatient(&self) -> Option<(Instant, Instant)> {
        let patience = self.time.min(PATIENCE_MAX);
        self.crowded.map(|since| (since + patience, since + patience.saturating_mul(2)))
    }

    /// Whether the backlog waits for handshakes that proceed.
    fn is_patient(&self, now: Instant) -> bool {
        self.impatient().is_none_or(|(begin, end)| now < begin || end <= now)
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
        /// It has begun.
        Some,
        Hello,
        Nonsense,
    }

    impl Stranger for Client {
        fn read(&mut self, _: &[Key]) -> Result<Option<Hello>, Option<RejectReason>> {
            match self.says {
                Says::Nothing | Says::Some => Ok(None),
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

    /// A room in virtual time, of users 'a', 'b', and so on, whose clients come through a backlog.
    struct Room {
        strangers: Strangers<Client, char>,
        now: Instant,
        backlog: VecDeque<(char, Client)>,
        /// The clients that came, by number, and those of them that were refused, the latest last.
        count: usize,
        refused: Vec<usize>,
    }

    impl Room {
        fn new() -> Self {
            let strangers = Strangers::new(PLACES_OF_ONE, TIME);
            Self { strangers, now: Instant::now(), backlog: VecDeque::new(), count: 0, refused: Vec::new() }
        }

        /// `count` come from `source` and say something; the numbers from which on they are counted.
        fn come(&mut self, source: char, says: Says, count: usize) -> usize {
            let first = self.count;
            self.count += count;
            self.backlog.extend((first..self.count).map(|number| (source, Client { number, says })));
            first
        }

        /// What a listener does `span` later, as often as it has something to do. Returns the numbers of those that are handed out.
        fn turn(&mut self, span: Duration) -> Vec<usize> {
            let until = self.now + span;
            let mut out = Vec::new();
            loop {
                while let Some(number) = self.read() {
                    out.push(number);
                }
                self.make_room();
                while self.strangers.is_open() {
                    let Some((source, client)) = self.backlog.pop_front() else {
                        self.strangers.all_are_in(self.now);
                        break;
                    };
                    self.strangers.let_in(client, source, self.now);
                    self.make_room();
                }
                while let Some(number) = self.read() {
                    out.push(number);
                }
                let next = self.strangers.next_turn(self.now).unwrap_or(Instant::NEVER);
                if self.now == until {
                    return out;
                }
                assert!(next > self.now || self.strangers.is_open() && !self.backlog.is_empty(), "it spins");
                self.now = next.min(until);
            }
        }

        fn read(&mut self) -> Option<usize> {
            let Self { strangers, now, refused, .. } = self;
            let found = strangers.first_hello(&[], *now, |client, _| refused.push(client.number));
            found.map(|(client, _)| client.number)
        }

        fn make_room(&mut self) {
            while let Some(gone) = self.strangers.take_beyond(self.now) {
                self.refused.push(gone.number);
            }
        }

        fn inside(&self) -> usize {
            self.strangers.clients().count()
        }

        /// A client that has begun says the rest.
        fn says_hello(&mut self, number: usize) {
            let mut clients = self.strangers.waiting.iter_mut().map(|waiting| &mut waiting.client);
            clients.find(|client| client.number == number).unwrap().says = Says::Hello;
        }
    }

    const NOW: Duration = Duration::ZERO;

    #[test]
    fn a_good_hello_is_found_behind_others_and_frees_its_place() {
        let mut room = Room::new();
        for says in [Says::Nothing, Says::Nonsense, Says::Nothing, Says::Hello, Says::Nonsense, Says::Hello] {
            room.come('a', says, 1);
        }
        assert_eq!((room.turn(NOW), &room.refused[..], room.inside()), (vec![3, 5], &[1, 4][..], 2));
        // Its time is over, whoever else is there.
        assert_eq!(room.strangers.next_turn(room.now), Some(room.now + TIME));
        assert_eq!((room.turn(TIME), &room.refused[2..]), (vec![], &[0, 2][..]));
    }

    /// A silent client makes room for a newer one of its source, once it had its chance; and others wait no longer than that.
    #[test]
    fn a_silent_source_makes_room_for_itself_and_keeps_others_out_for_a_chance() {
        let mut room = Room::new();
        room.come('b', Says::Nothing, 1);
        let first = room.come('a', Says::Nothing, PLACES_OF_ONE + 3);
        let other = room.come('c', Says::Hello, 1);
        assert_eq!((room.turn(NOW), room.refused.len(), room.inside()), (vec![], 0, PLACES_OF_ONE + 2));
        assert_eq!(room.turn(CHANCE), [other]);
        assert_eq!(room.refused, [first, first + 1, first + 2]);
        assert!(room.strangers.crowded.is_none(), "all are in");
        let own = room.come('a', Says::Hello, 1);
        assert_eq!((room.turn(NOW), &room.refused[3..]), (vec![own], &[first + 3][..]));
    }

    /// The handshakes of a burst take time, and none of its clients is refused.
    #[test]
    fn clients_whose_handshakes_proceed_are_waited_for() {
        let mut room = Room::new();
        let first = room.come('a', Says::Some, 4 * PLACES_OF_ONE);
        let other = room.come('b', Says::Hello, 1);
        let mut out = Vec::new();
        for number in first..first + 4 * PLACES_OF_ONE {
            out.extend(room.turn(Duration::from_millis(1)));
            room.says_hello(number);
        }
        out.extend(room.turn(NOW));
        assert!(out.contains(&other) && room.refused.is_empty(), "{:?}", room.refused);
        assert_eq!((out.len(), room.inside()), (room.count, 0));
    }

    /// A source whose handshakes do not end keeps others waiting for the time of one, however many of its clients are before
    /// them. Then it is refused beyond its places for as long.
    #[test]
    fn handshakes_that_do_not_end_keep_others_waiting_for_the_time_of_one() {
        let mut room = Room::new();
        room.come('a', Says::Some, PLACES_OF_ONE);
        assert_eq!((room.turn(TIME / 2), room.inside()), (vec![], PLACES_OF_ONE));
        room.come('a', Says::Some, 100 * PLACES_OF_ONE);
        let other = room.come('b', Says::Hello, 1);
        assert_eq!(room.turn(TIME.saturating_sub(CHANCE)), []);
        assert_eq!((room.turn(CHANCE), room.backlog.len()), (vec![other], 0));
        // No other waits for them now, though the places are taken again.
        room.come('a', Says::Some, 10 * PLACES_OF_ONE);
        let other = room.come('b', Says::Hello, 1);
        assert_eq!((room.turn(NOW), room.inside()), (vec![other], PLACES_OF_ONE));
        room.turn(CHANCE);
        let (refused, other) = (room.refused.len(), room.come('a', Says::Hello, 1));
        assert_eq!(
            (room.turn(NOW), room.refused.len()),
            (vec![other], refused + 1),
            "the oldest had its chance"
        );
        // That is forgotten.
        room.turn(TIME);
        room.turn(TIME);
        room.come('a', Says::Some, PLACES_OF_ONE + 1);
        let other = room.come('b', Says::Hello, 1);
        let refused = room.refused.len();
        assert_eq!((room.turn(CHANCE), room.refused.len()), (vec![], refused));
        assert_eq!(room.turn(TIME), [other]);
    }

    /// Where all places are taken, a silent client makes room, whosever it is; one that has begun does not.
    #[test]
    fn a_full_room_is_waited_for() {
        let mut room = Room::new();
        let says = |number| if number < 2 { Says::Nothing } else { Says::Some };
        for number in 0..PLACES {
            room.come(if number % 2 == 0 { 'a' } else { 'b' }, says(number), 1);
        }
        let others = [0; 4].map(|_| room.come('c', Says::Some, 1));
        assert_eq!((room.turn(NOW), room.inside(), room.refused.len()), (vec![], PLACES + 1, 0));
        room.turn(CHANCE);
        assert_eq!((&room.refused[..], room.inside()), (&[0, 1][..], PLACES + 1));
        room.says_hello(others[2]);
        assert_eq!((room.turn(NOW), room.inside()), (vec![others[2]], PLACES + 1));
        room.says_hello(PLACES - 1);
        assert_eq!((room.turn(NOW), room.inside()), (vec![PLACES - 1], PLACES));
        // Nobody goes but for somebody.
        room.turn(TIME.saturating_sub(CHANCE.saturating_mul(2)));
        assert_eq!((room.refused.len(), room.inside()), (2, PLACES));
    }

    #[test]
    fn a_lack_takes_the_oldest_that_is_silent() {
        let mut room = Room::new();
        for says in [Says::Some, Says::Nothing, Says::Nothing] {
            room.come('a', says, 1);
        }
        room.turn(NOW);
        assert!(room.strangers.take_silent(room.now).is_none());
        room.turn(CHANCE);
        assert_eq!(room.strangers.take_silent(room.now).map(|client| client.number), Some(1));
    }

    #[test]
    fn patience_has_an_end_where_handshakes_have_none() {
        let mut room = Room::new();
        room.strangers.time = Duration::MAX;
        room.come('a', Says::Some, PLACES);
        let other = room.come('b', Says::Hello, 1);
        assert_eq!(room.turn(CHANCE), []);
        assert_eq!((room.turn(PATIENCE_MAX), room.inside()), (vec![other], PLACES_OF_ONE));
    }
}
