//! The caller's end of listening: a listener, and the requests that it hands out.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, sync_channel},
    },
    time::Duration,
};

use crate::{
    AcceptError, Address, DeviceChoice, Hello, Incoming, ListenError, ListenOptions, Listener, Refusal,
    RejectReason, Via,
    rejected::Rejected,
    verbs::control::{
        gate::VerbsGate,
        link::VerbsLink,
        mailbox::{self, Command, ControlHandle},
        naming::look_up,
        ports,
        request::{Listening, Request},
    },
};

/// How long dropping a listener waits for its address to be free.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// Addresses to listen on; `*`, `0.0.0.0` and `::` are those of both families. May look a name up.
pub(crate) fn listen_addresses(host: &str, port: u16) -> Result<Vec<SocketAddr>, ListenError> {
    if host == "*" || host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified()) {
        let any = [SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), (Ipv6Addr::UNSPECIFIED, port).into()];
        return Ok(any.to_vec());
    }
    look_up(host, port).map_err(|errno| ListenError::Address {
        address: format!("rdma://{host}:{port}"),
        why: format!("getaddrinfo: {}", crate::error::errno_text(errno)),
    })
}

/// Those of `asked` that the device has; all it has for a wildcard.
fn on_device(
    asked: &[SocketAddr],
    has: &[IpAddr],
    choice: &DeviceChoice,
) -> Result<Vec<SocketAddr>, ListenError> {
    let fits = |asked: IpAddr, has: IpAddr| {
        asked == has || (asked.is_unspecified() && (asked.is_ipv4() || has.is_ipv6()))
    };
    let mut found = Vec::new();
    for asked in asked {
        for &ip in has.iter().filter(|ip| fits(asked.ip(), **ip)) {
            let address = SocketAddr::new(ip, asked.port());
            if !found.contains(&address) {
                found.push(address);
            }
        }
    }
    if found.is_empty() {
        let address = asked.first().map_or_else(String::new, |asked| format!("rdma://{asked}"));
        return Err(ListenError::Address { address, why: format!("{choice} has {has:?}") });
    }
    Ok(found)
}

/// The passive side of the RDMA CM.
#[derive(Debug)]
pub struct VerbsListener {
    control: Arc<ControlHandle>,
    address: Address,
    ticket: u64,
    requests: Receiver<Request>,
    rejected: Arc<Rejected>,
}

impl VerbsListener {
    pub(crate) fn start(
        control: &Arc<ControlHandle>,
        (host, port): (&str, u16),
        service: Option<u16>,
        options: &ListenOptions,
    ) -> Result<Self, ListenError> {
        let mut addresses = listen_addresses(host, port)?;
        if let Some(choice) = &options.device {
            addresses = on_device(&addresses, &ports::addresses_of(choice)?, choice)?;
        }
        let (sender, requests) = sync_channel(usize::from(options.backlog.max(1)));
        let (ticket, rejected) = (control.ticket(), Arc::<Rejected>::default());
        let (options, counted) = (options.clone(), Arc::clone(&rejected));
        let listening = Listening { ticket, requests: sender, rejected: counted, options, service };
        let (reply, answer) = sync_channel(1);
        control.send(Command::Listen { addresses, listening, reply });
        let bound = answer.recv().map_err(|_| mailbox::gone())??;
        let via = Via { service, ..Via::default() };
        let address = Address::Rdma { host: host.to_owned(), port: bound, via };
        Ok(Self { control: Arc::clone(control), address, ticket, requests, rejected })
    }
}

impl Listener for VerbsListener {
    type Gate = VerbsGate;
    type Link = VerbsLink;
    type Incoming = VerbsIncoming;

    fn address(&self) -> Address {
        self.address.clone()
    }

    fn accept(&mut self, timeout: Duration) -> Result<Option<VerbsIncoming>, ListenError> {
        match self.requests.recv_timeout(timeout) {
            Ok(request) => {
                Ok(Some(VerbsIncoming { control: Arc::clone(&self.control), request, answered: false }))
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(mailbox::gone().into()),
        }
    }

    fn rejections(&self) -> &Arc<Rejected> {
        &self.rejected
    }
}

impl Drop for VerbsListener {
    fn drop(&mut self) {
        let (done, free) = sync_channel(1);
        // Nobody receives any more, so any receiver may stand here.
        let requests = std::mem::replace(&mut self.requests, sync_channel(0).1);
        if self.control.send(Command::Unlisten { ticket: self.ticket, requests, done }) {
            // Afterwards the address can be listened on again.
            let _ = free.recv_timeout(CLOSE_WAIT);
        }
    }
}

/// A request to connect over the RDMA CM.
#[derive(Debug)]
pub struct VerbsIncoming {
    control: Arc<ControlHandle>,
    request: Request,
    answered: bool,
}

impl Incoming for VerbsIncoming {
    type Gate = VerbsGate;
    type Link = VerbsLink;

    fn hello(&self) -> &Hello {
        &self.request.hello
    }

    fn peer(&self) -> String {
        self.request.peer.clone()
    }

    fn accept(self, gate: &VerbsGate) -> Result<VerbsLink, AcceptError> {
        let (reply, answer) = sync_channel(1);
        self.accept_then(gate, move |outcome| {
            // The other end waits below.
            let _ = reply.send(outcome);
        });
        answer.recv().map_err(|_| mailbox::gone())?
    }

    fn accept_then(
        mut self,
        gate: &VerbsGate,
        then: impl FnOnce(Result<VerbsLink, AcceptError>) + Send + 'static,
    ) {
        self.answered = true;
        let control = Arc::clone(&self.control);
        let then = move |outcome: Result<_, _>| then(outcome.map(|parts| VerbsLink::new(parts, &control)));
        let (handle, shared) = (self.request.handle, Arc::clone(&gate.shared));
        self.control.send(Command::Accept { handle, shared, then: Box::new(then) });
    }

    fn refuse(mut self, refusal: Refusal) {
        self.answered = true;
        self.control.send(Command::Reject { handle: self.request.handle, refusal });
    }
}

impl Drop for VerbsIncoming {
    fn drop(&mut self) {
        if !self.answered {
            let refusal = RejectReason::Overloaded.into();
            self.control.send(Command::Reject { handle: self.request.handle, refusal });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_wildcards_are_of_both_families() {
        let of = |host| listen_addresses(host, 7).unwrap();
        let both: Vec<SocketAddr> = vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()];
        assert_eq!((of("*"), of("0.0.0.0"), of("::")), (both.clone(), both.clone(), both));
        assert_eq!(of("127.0.0.1").len(), 1);
    }

    #[test]
    fn only_what_the_device_has_is_listened_on() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let has = [ip("10.0.0.1"), ip("10.0.0.2"), ip("fd00::1")];
        let choice: DeviceChoice = "rxe0".parse().unwrap();
        let on = |asked: &[&str]| {
            on_device(&asked.iter().map(|asked| at(asked)).collect::<Vec<_>>(), &has, &choice)
        };
        let all = vec![at("10.0.0.1:7"), at("10.0.0.2:7"), at("[fd00::1]:7")];
        assert_eq!(on(&["0.0.0.0:7"]), Ok(all.clone()));
        assert_eq!(on(&["0.0.0.0:7", "[::]:7"]), Ok(all));
        assert_eq!(on(&["[::]:7"]), Ok(vec![at("[fd00::1]:7")]));
        assert_eq!(on(&["10.0.0.2:7"]), Ok(vec![at("10.0.0.2:7")]));
        let error = on(&["10.0.9.9:7"]).unwrap_err().to_string();
        assert!(
            error.contains("10.0.9.9:7") && error.contains("rxe0 has") && error.contains("fd00::1"),
            "{error}"
        );
    }
}
