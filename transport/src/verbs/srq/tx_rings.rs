//! Transmit rings of connections that share receives: lent to connections with something to send, spare otherwise.

use crate::{
    ConnId, PortError, Refused,
    verbs::{
        data::{port::VerbsPort, table::open_in},
        memory::rings::{End, Room, Shape},
    },
};

/// Spare rings kept here; more are kept by the control side, or freed.
const SPARE_RINGS: usize = 64;

/// No memory for it: as if the device's queue were full.
fn no_ring(error: PortError) -> Refused {
    tracing::debug!(%error, "no transmit ring to lend");
    Refused::Full
}

impl VerbsPort {
    /// Lends `conn` a transmit ring of this shape.
    #[cold]
    pub(crate) fn lend_ring(&mut self, conn: ConnId, shape: Shape) -> Result<(), Refused> {
        let (open, _) = open_in(&mut self.slots, conn)?;
        let pd = &open.lane.as_ref().ok_or(Refused::Closed)?.holdings.device.pd;
        let fits = |room: &Room| {
            room.shape == shape && room.registration.as_ref().is_some_and(|known| known.is_of(pd))
        };
        let mut room = match self.spare.iter().rposition(fits) {
            Some(at) => self.spare.swap_remove(at),
            None => self.gate.shared.rings.take(shape, End::Transmit).map_err(no_ring)?,
        };
        let lkey = room.registered(pd).map_err(no_ring)?.lkey();
        open.tx.lend_ring(room, lkey);
        Ok(())
    }

    /// Everything that lay in the ring that a connection was lent has left.
    pub(crate) fn take_idle_ring(&mut self, index: usize) {
        let Some(conn) = self.slots[index].conn.as_deref_mut() else { return };
        let Some(room) = conn.tx.take_idle_ring() else { return };
        if self.spare.len() < SPARE_RINGS {
            self.spare.push(room);
        } else {
            // SAFETY: all work in it has completed, and nothing points into it.
            unsafe { self.gate.shared.give_back(room) };
        }
    }

    /// A completion queue has lost its last connection: nothing of its device is kept.
    pub(crate) fn give_back_rings(&mut self) {
        let spare = self.spare.drain(..);
        // SAFETY: what is spare was given back when all work in it had completed.
        spare.for_each(|room| unsafe { self.gate.shared.give_back(room) });
    }
}
