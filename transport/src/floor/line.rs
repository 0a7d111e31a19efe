//! The line floor: a number goes there in one word and comes back in another.

use std::rc::Rc;

use super::{Area, Side, wait};
use crate::sync::publish::{observe, publish};

/// One end of the bounce.
#[derive(Debug)]
pub struct Line {
    area: Rc<Area>,
    last: u64,
}

impl Line {
    /// This process's end.
    #[must_use]
    pub fn new(area: &Rc<Area>) -> Self {
        Self { area: Rc::clone(area), last: 0 }
    }

    /// The caller's half: there and back. False when `go_on` said no before the answer came.
    #[inline]
    pub fn call(&mut self, go_on: impl FnMut() -> bool) -> bool {
        debug_assert_eq!(self.area.side(), Side::Caller);
        self.last += 1;
        let (sent, area) = (self.last, &*self.area);
        publish(area.ping(), sent);
        wait(|| (observe(area.pong()) == sent).then_some(()), go_on).is_some()
    }

    /// The echo's half: echoes until `go_on` returns false.
    pub fn echo(&mut self, mut go_on: impl FnMut() -> bool) {
        debug_assert_eq!(self.area.side(), Side::Echo);
        let area = &*self.area;
        let mut last = self.last;
        let look = |last| {
            let seen = observe(area.ping());
            (seen != last).then_some(seen)
        };
        while let Some(seen) = wait(|| look(last), &mut go_on) {
            last = seen;
            publish(area.pong(), seen);
        }
        self.last = last;
    }
}
