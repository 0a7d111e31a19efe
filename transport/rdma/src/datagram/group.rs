//! Multicast: joining a group, leaving it, losing it.

use std::{
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use super::{
    endpoint::Datagram,
    error::JoinError,
    multicast::{Joined, OwnMembership, Place},
    peer::Peer,
    way::{Way, with_scope},
};
use crate::{
    id::{
        event::{CmEvent, EventKind},
        membership::Membership,
    },
    wait::Deadline,
};

/// `ENOTSUPP` of the kernel, which has no name outside: IPv6 groups on RoCE v2.
const NOT_SUPPORTED: i32 = 524;

/// A group this end point joined. Leave it with [`Datagram::leave`], or drop the end point.
#[derive(Debug)]
pub struct Group {
    number: u32,
    address: IpAddr,
    membership: Membership,
    peer: Peer,
}

impl Group {
    /// Where its messages go.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// What we are in it.
    #[must_use]
    pub fn membership(&self) -> Membership {
        self.membership
    }
}

impl Datagram {
    /// Joins `group`, waiting at most `timeout`; the zero address is a group that InfiniBand's subnet administrator chooses. From then on its messages arrive (unless send-only), and
    /// [`Group::peer`] is where to send.
    ///
    /// Linux's CM refuses IPv6 groups on RoCE v2 (errno 524). Then the end point joins by itself: membership by a
    /// socket, attachment by `ibv_attach_mcast(3)`, and an address handle of its own; such a group never reports a
    /// loss.
    ///
    /// # Errors
    /// See [`JoinError`].
    pub fn join(
        &mut self,
        group: IpAddr,
        membership: Membership,
        timeout: Duration,
    ) -> Result<Group, JoinError> {
        let not_a_group = |why| JoinError::NotAGroup { group, why };
        if !group.is_multicast() && !group.is_unspecified() {
            return Err(not_a_group("not a multicast address"));
        }
        if group.is_ipv4() != self.local.is_ipv4() {
            return Err(not_a_group("the end point has an address of the other family"));
        }
        if self.gone {
            return Err(JoinError::DeviceGone);
        }
        let address = with_scope(SocketAddr::new(group, 0), self.local);
        if self.groups.iter().any(|joined| joined.address.ip() == group) {
            return Err(JoinError::Twice { group });
        }
        self.next_group = self.next_group.wrapping_add(1);
        let number = self.next_group;
        match membership.join(&self.id, address, number) {
            Ok(()) => {}
            Err(NOT_SUPPORTED) if group.is_ipv6() => return self.join_alone(number, address, membership),
            Err(errno) => {
                return Err(JoinError::Refused { group, step: "rdma_join_multicast", status: -errno });
            }
        }
        self.groups.push(Joined { number, address, own: None });
        let peer = self.joined(number, group, timeout).inspect_err(|_| self.leave_quietly(number))?;
        Ok(Group { number, address: group, membership, peer })
    }

    fn joined(&mut self, number: u32, group: IpAddr, timeout: Duration) -> Result<Peer, JoinError> {
        let is_mine = |event: &CmEvent| {
            let multicast = matches!(event.kind, EventKind::MulticastJoin | EventKind::MulticastError);
            multicast && event.join == number as usize
        };
        let event = self.await_event(Deadline::after(timeout), is_mine)?;
        let given_up = if self.gone { JoinError::DeviceGone } else { JoinError::Timeout { group, timeout } };
        let event = event.ok_or(given_up)?;
        match (event.kind, Way::of(&event)) {
            (EventKind::MulticastJoin, Some(way)) if event.status == 0 => {
                Ok(Peer::new(&self.pd, &way, None)?)
            }
            (kind, _) => Err(JoinError::Refused { group, step: kind.name(), status: event.status }),
        }
    }

    fn join_alone(
        &mut self,
        number: u32,
        address: SocketAddr,
        membership: Membership,
    ) -> Result<Group, JoinError> {
        let group = address.ip();
        let (own, way) = {
            let place = Place {
                local: self.local.ip(),
                device: &self.context.name(),
                port: self.port_number,
                qp: self.queue.qp(),
            };
            OwnMembership::join(&place, address, membership)?
        };
        self.groups.push(Joined { number, address, own: Some(own) });
        let peer = Peer::new(&self.pd, &way, None).inspect_err(|_| self.leave_quietly(number))?;
        Ok(Group { number, address: group, membership, peer })
    }

    /// Leaves: when this returns, no further message of the group is delivered; some that came before may still be
    /// in the ring. Sends on their way are not called back.
    ///
    /// # Errors
    /// The group is not joined, because it was lost or is another end point's; or the CM refused.
    pub fn leave(&mut self, group: Group) -> Result<(), JoinError> {
        let address = group.address;
        let at = self.groups.iter().position(|joined| joined.number == group.number);
        let joined =
            at.map(|at| self.groups.swap_remove(at)).ok_or(JoinError::NotJoined { group: address })?;
        self.depart(&joined).map_err(|errno| {
            let step = "rdma_leave_multicast";
            JoinError::Refused { group: address, step, status: -errno }
        })
    }

    fn depart(&self, joined: &Joined) -> Result<(), i32> {
        match &joined.own {
            Some(own) => own.leave(self.queue.qp()),
            None => Membership::leave(&self.id, joined.address),
        }
    }

    fn leave_quietly(&mut self, number: u32) {
        if let Some(at) = self.groups.iter().position(|joined| joined.number == number) {
            let joined = self.groups.swap_remove(at);
            if let Err(errno) = self.depart(&joined) {
                // Nothing to leave is what is left of a join that failed.
                let expected = errno == libc::EINVAL || errno == libc::EADDRNOTAVAIL;
                if !expected {
                    tracing::warn!(errno, group = %joined.address.ip(), "rdma_leave_multicast failed");
                }
            }
        }
    }

    /// The group of a MULTICAST_ERROR; it is left here, so that it can be joined again.
    pub(super) fn lose_group(&mut self, number: usize) -> Option<IpAddr> {
        let lost = self.groups.iter().find(|joined| joined.number as usize == number)?;
        let (number, address) = (lost.number, lost.address.ip());
        self.leave_quietly(number);
        Some(address)
    }

    /// Before the queue pair can be destroyed.
    pub(super) fn leave_all(&mut self) {
        while let Some(joined) = self.groups.last() {
            self.leave_quietly(joined.number);
        }
    }
}
