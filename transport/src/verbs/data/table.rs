//! The connections of a port by their ids, and lists of connections with work to do.

use std::sync::Arc;

use gimmal_rdma::verbs::Cq;

use crate::{ConnId, PortCounters, Refused, verbs::data::conn::Conn};

/// One place in the table.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    pub(crate) conn: Option<Box<Conn>>,
    /// The last connection here, whose counters stay.
    pub(crate) last: Option<ConnId>,
    pub(crate) counters: PortCounters,
    /// The completion queue of the connection.
    pub(crate) cq: Option<Arc<Cq>>,
}

/// Returns the connection `id`, if its slot still has it.
#[inline]
pub(crate) fn conn_in(slots: &mut [Slot], id: ConnId) -> Option<&mut Conn> {
    let conn = slots.get_mut(id.index() as usize)?.conn.as_deref_mut()?;
    (conn.id == id).then_some(conn)
}

/// Returns the connection `id` with its counters, if frames may travel on it.
#[inline]
pub(crate) fn open_in(slots: &mut [Slot], id: ConnId) -> Result<(&mut Conn, &mut PortCounters), Refused> {
    match slots.get_mut(id.index() as usize) {
        Some(Slot { conn: Some(conn), counters, .. }) => {
            if (conn.id == id) & conn.is_open() {
                Ok((conn, counters))
            } else {
                Err(conn.refusal(id))
            }
        }
        _ => Err(Refused::Closed),
    }
}

/// Connections with receives to post, and whether one has so many that its peer could miss them.
#[derive(Debug)]
pub(crate) struct Owing {
    pub(crate) conns: Vec<usize>,
    pub(crate) are_many: bool,
}

impl Owing {
    /// Adds the connection at `index`, if it has receives to post and is not listed.
    #[inline]
    pub(crate) fn note(&mut self, index: usize, conn: &mut Conn) {
        if conn.rx.owes() && !std::mem::replace(&mut conn.is_owing, true) {
            self.conns.push(index);
        }
        self.are_many |= conn.rx.owes_many();
    }
}

/// Adds `index` to `list`, unless it is there.
pub(crate) fn list_once(list: &mut Vec<usize>, index: usize) {
    if !list.contains(&index) {
        list.push(index);
    }
}
