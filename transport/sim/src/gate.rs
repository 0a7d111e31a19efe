//! The control side's handle on a port: loans, exposed memory, what is shared.

use std::sync::Arc;

use super::{
    bulk::Home,
    conn::{Life, Side},
    world::{Shared, World},
};
use gimmal_transport::{
    ConnId, Exposed, Gate, Loan, LoanError, PortError, SharedState, UserBytes, UserMemory,
    mem::{MemoryNode, NotNear, Words},
    parts::Copies,
};

/// The control side's handle on a [`SimPort`](super::SimPort).
#[derive(Clone, Debug)]
pub struct SimGate {
    pub(super) shared: Arc<Shared>,
    pub(super) port: u64,
    pub(super) copies: Arc<Copies>,
}

impl SimGate {
    pub(super) const fn port(&self) -> u64 {
        self.port
    }

    fn home(&self) -> Arc<Home> {
        Arc::new(Home(Arc::downgrade(&self.shared)))
    }

    /// Whose memory `bytes` for `conn` would be, if it may have them.
    fn admit(
        &self,
        world: &mut World,
        conn: ConnId,
        bytes: usize,
        step: &'static str,
    ) -> Result<(u64, Side), LoanError> {
        let port = world.ports.get(&self.port).ok_or(LoanError::Closed)?;
        let (bytes, limit) = (bytes as u64, port.config.bulk_bytes_max);
        if bytes > limit {
            return Err(LoanError::TooLarge { bytes, limit });
        }
        let (id, side) = *port.conns.get(&conn).ok_or(LoanError::Closed)?;
        world.setup(step)?;
        let open = world.conns.get(&id).is_some_and(|conn| conn.ends[side].life == Life::Open);
        if open { Ok((id, side)) } else { Err(LoanError::Closed) }
    }
}

impl Gate for SimGate {
    fn allocate(&self, conn: ConnId, bytes: usize) -> Result<Loan, LoanError> {
        let ticket = self.shared.with(|world| {
            let (id, side) = self.admit(world, conn, bytes, "ibv_reg_mr of a loan")?;
            let debit = world.count(id, side, bytes)?;
            Ok::<_, LoanError>(world.loan_made(id, side, debit))
        })?;
        let loan = Loan::anonymous_from(bytes, ticket, self.home()).map_err(|error| no_memory(&error))?;
        self.shared.with(|world| world.loan_lies_at(ticket, loan.as_ptr().addr()));
        Ok(loan)
    }

    fn lend(&self, conn: ConnId, bytes: &UserBytes) -> Result<Loan, LoanError> {
        Ok(self.copies.lend(self.allocate(conn, bytes.len())?, bytes))
    }

    fn user_memory(&self) -> UserMemory {
        self.copies.counters()
    }

    fn shared_receives(&self) -> Vec<SharedState> {
        self.shared.with(|world| {
            let Some(port) = world.ports.get(&self.port).filter(|port| port.common.all() > 0) else {
                return vec![];
            };
            let terms = |(id, side): &(u64, Side)| world.conns.get(id)?.ends[*side].negotiated.as_ref();
            let reserved = port.conns.values().filter_map(terms).map(|terms| terms.rx_arrivals).sum();
            vec![SharedState {
                device: "sim".to_owned(),
                slot_bytes: port.config.shared.slot_bytes,
                slots: reserved + port.common.all(),
                reserved,
                common: port.common.all(),
                common_free: port.common.free(),
                limit_events: 0,
            }]
        })
    }

    fn memory_node(&self) -> MemoryNode {
        MemoryNode::Anywhere { why: NotNear::Modelled }
    }

    fn expose(&self, conn: ConnId, bytes: usize) -> Result<Exposed, LoanError> {
        let words = Arc::new(Words::anonymous(bytes).map_err(|error| no_memory(&error))?);
        let key = self.shared.with(|world| {
            let (id, side) = self.admit(world, conn, bytes, "ibv_reg_mr of exposed memory")?;
            Ok::<_, LoanError>(world.expose(id, side, &words))
        })?;
        Ok(Exposed::new(words, key, self.home()))
    }
}

fn no_memory(error: &std::io::Error) -> LoanError {
    LoanError::Port(PortError::System { step: "mmap", errno: error.raw_os_error().unwrap_or(0) })
}
