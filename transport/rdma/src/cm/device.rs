//! The device of a connection.

use std::sync::Arc;

use crate::{
    cm::{
        error::{CmError, above, call},
        params::DeviceDepths,
    },
    id::{
        cm_id::{CmId, IdOption},
        event::CmEvent,
    },
    verbs::context::{Context, DeviceLimits},
};

/// The device that an id is bound to.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    pub(crate) limits: DeviceLimits,
}

impl Device {
    pub(crate) fn of(id: &CmId) -> Result<Self, CmError> {
        let unbound = CmError::Unsupported { what: "the device", why: "the id is bound to none" };
        let context = id.context()?.ok_or(unbound)?;
        let limits = context.query()?;
        Ok(Self { context, limits })
    }

    pub(crate) fn depths(&self) -> DeviceDepths {
        DeviceDepths {
            responder_resources: self.limits.responder_resources,
            initiator_depth: self.limits.initiator_depth,
        }
    }

    /// Sets how long the queue pair of `id` waits for an ACK.
    pub(crate) fn set_ack_timeout(&self, id: &CmId, exponent: u8) -> Result<(), CmError> {
        if self.limits.iwarp {
            return Err(CmError::Unsupported { what: "an ACK timeout", why: "iWARP has TCP's" });
        }
        if exponent > 31 {
            return Err(above("ack_timeout", exponent.into(), 31));
        }
        id.set(IdOption::AckTimeout(exponent)).map_err(call("rdma_set_option(ACK_TIMEOUT)"))
    }

    /// What the CM's event says that the peer gives, as (responder_resources, initiator_depth).
    pub(crate) fn granted_by(&self, event: &CmEvent) -> (u8, u8) {
        let said = (event.responder_resources, event.initiator_depth);
        // siw's event has the two the other way round.
        if self.limits.iwarp { (said.1, said.0) } else { said }
    }
}
