//! Send requests of a connection that are posted, and which of them are over with a completion.

use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    signalled: bool,
}

/// Send requests that are posted, in order.
///
/// Those that are not signalled are over with a later one that completes. A signalled one is over with its own completion
/// alone: on iWARP a SEND or a WRITE completes before an earlier READ, whose memory the device still writes then. For the
/// same reason the completion of a READ says nothing of others there.
#[derive(Debug, Default)]
pub(crate) struct Order {
    posted: VecDeque<Posted>,
    signalled: u32,
}

impl Order {
    pub(crate) fn push(&mut self, id: u64, signalled: bool) {
        self.posted.push_back(Posted { id, signalled });
        self.signalled += u32::from(signalled);
    }

    /// Whether one of them completes by itself.
    pub(crate) fn has_signalled(&self) -> bool {
        self.signalled > 0
    }

    /// `id` has completed. Tells `over` of those that are over with it, unless it completed `alone`.
    pub(crate) fn end(&mut self, id: u64, alone: bool, mut over: impl FnMut(u64)) {
        let Some(at) = self.posted.iter().position(|posted| posted.id == id) else { return };
        let done = self.posted.remove(at);
        self.signalled -= u32::from(done.is_some_and(|done| done.signalled));
        let mut next = 0;
        for _ in 0..if alone { 0 } else { at } {
            if self.posted.get(next).is_some_and(|posted| posted.signalled) {
                next += 1;
            } else if let Some(earlier) = self.posted.remove(next) {
                over(earlier.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(order: &mut Order, id: u64, alone: bool) -> Vec<u64> {
        let mut over = Vec::new();
        order.end(id, alone, |id| over.push(id));
        over
    }

    fn of(posted: &[(u64, bool)]) -> Order {
        let mut order = Order::default();
        posted.iter().for_each(|&(id, signalled)| order.push(id, signalled));
        order
    }

    #[test]
    fn what_is_not_signalled_is_over_with_the_next_completion() {
        let mut order = of(&[(0, false), (1, false), (2, true), (3, false), (4, true)]);
        assert_eq!(ended(&mut order, 2, false), [0, 1]);
        assert!(order.has_signalled());
        assert_eq!(ended(&mut order, 4, false), [3]);
        assert!(!order.has_signalled());
    }

    /// siw: the SEND behind a READ completes first. The READ is not over, and comes by itself.
    #[test]
    fn a_read_that_was_overtaken_is_not_over() {
        let mut order = of(&[(7, true), (8, false), (9, true), (10, false)]);
        assert_eq!(ended(&mut order, 9, false), [8], "not the READ");
        assert!(order.has_signalled());
        assert_eq!(ended(&mut order, 7, true), [], "what is behind it is on its way");
        assert!(!order.has_signalled());
        order.push(11, true);
        assert_eq!(ended(&mut order, 11, false), [10]);
    }

    #[test]
    fn a_read_that_completes_alone_leaves_what_is_before_it() {
        let mut order = of(&[(1, false), (2, true), (3, true)]);
        assert_eq!(ended(&mut order, 2, true), []);
        assert_eq!(ended(&mut order, 3, false), [1]);
        assert_eq!(ended(&mut order, 3, false), [], "what is not there ends nothing");
    }
}
