//! Connections that the CM reports as down, until what their peers sent before is handled.

use crate::ConnId;

/// Connections that are down, the oldest first, each with the completions that the port had taken when it was told.
///
/// What a peer sent before it went is in the queue by then. It is handled when no completion is left. On a port that always has
/// more, it is handled after as many completions as its queues hold.
#[derive(Debug, Default)]
pub(crate) struct Down {
    conns: Vec<(ConnId, u64)>,
    taken: u64,
}

impl Down {
    pub(crate) fn push(&mut self, conn: ConnId) {
        self.conns.push((conn, self.taken));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.conns.is_empty()
    }

    /// So many completions were taken from a queue.
    #[inline]
    pub(crate) fn took(&mut self, completions: usize) {
        self.taken += completions as u64;
    }

    /// No completion is left.
    pub(crate) fn take_all(&mut self) -> Vec<ConnId> {
        self.conns.drain(..).map(|(conn, _)| conn).collect()
    }

    /// Those behind whose report more completions were taken than all queues `hold`.
    #[cold]
    pub(crate) fn take_late(&mut self, hold: u64) -> Vec<ConnId> {
        let late = self.conns.iter().take_while(|(_, since)| self.taken - since > hold).count();
        self.conns.drain(..late).map(|(conn, _)| conn).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn on_a_busy_port_it_is_closed_behind_what_the_queues_held() {
        let [first, second] = [1, 2].map(|index| ConnId::new(index, 0));
        let mut down = Down::default();
        down.took(1000);
        down.push(first);
        down.took(100);
        assert_eq!(down.take_late(100), [], "the last one may be its goodbye, and is not handled yet");
        down.push(second);
        down.took(1);
        assert_eq!(down.take_late(100), [first]);
        assert_eq!(down.take_late(100), []);
        down.took(100);
        assert_eq!(down.take_late(100), [second]);
        assert!(down.is_empty());
        down.push(first);
        assert_eq!(down.take_all(), [first]);
    }
}
