//! A harness for providers that live in real time.

use super::harness::{Harness, Knock};
use gimmal_transport::{Address, ConnectError, Instant, PortConfig, Provider, Refusal, Time};

/// Looks at what no port sees.
type Checker = Box<dyn FnMut() -> Result<(), Box<dyn std::error::Error>>>;

/// Speaks foreign bytes to an address; `None` when it cannot.
type Knocker = Box<dyn Fn(&Address, &[u8]) -> Option<Knock>>;

/// One provider for both sides; `address` makes a new address from a number.
pub struct RealTime<P> {
    name: String,
    provider: P,
    address: Box<dyn Fn(u32) -> Address>,
    wrong: Address,
    config: Option<PortConfig>,
    knocker: Option<Knocker>,
    checker: Option<Checker>,
    number: u32,
    started: Instant,
}

impl<P: Provider> RealTime<P> {
    /// `provider` on addresses that `address` makes; `wrong` is one of another provider.
    pub fn new(name: &str, provider: P, address: impl Fn(u32) -> Address + 'static, wrong: Address) -> Self {
        let (config, knocker, checker) = (None, None, None);
        let started = Instant::now();
        Self {
            name: name.to_owned(),
            provider,
            address: Box::new(address),
            wrong,
            config,
            knocker,
            checker,
            number: 0,
            started,
        }
    }

    /// Ports of this configuration.
    #[must_use]
    pub fn with_config(mut self, config: PortConfig) -> Self {
        self.config = Some(config);
        self
    }

    /// After each case `checker` looks at what no port sees: device counters, what is left behind.
    #[must_use]
    pub fn with_check(
        mut self,
        checker: impl FnMut() -> Result<(), Box<dyn std::error::Error>> + 'static,
    ) -> Self {
        self.checker = Some(Box::new(checker));
        self
    }

    /// Foreign bytes are spoken by `knocker`.
    #[must_use]
    pub fn with_knocker(mut self, knocker: impl Fn(&Address, &[u8]) -> Option<Knock> + 'static) -> Self {
        self.knocker = Some(Box::new(knocker));
        self
    }
}

impl<P> std::fmt::Debug for RealTime<P> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RealTime").field("name", &self.name).finish_non_exhaustive()
    }
}

impl<P: Provider> Harness<P> for RealTime<P> {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn provider(&mut self, _side: usize) -> P {
        self.provider.clone()
    }

    fn address(&mut self) -> Address {
        self.number += 1;
        (self.address)(self.number)
    }

    fn wrong_address(&self) -> Address {
        self.wrong.clone()
    }

    fn config(&self) -> PortConfig {
        self.config.clone().unwrap_or_else(super::harness::middle_config)
    }

    fn now(&mut self) -> Time {
        Time::default().plus(self.started.elapsed())
    }

    fn step(&mut self) {
        std::thread::yield_now();
    }

    fn can_knock(&self) -> bool {
        self.knocker.is_some()
    }

    fn knock(&mut self, address: &Address, private_data: &[u8]) -> Option<Knock> {
        self.knocker.as_ref().and_then(|knocker| knocker(address, private_data))
    }

    fn check(&mut self) -> Result<(), Box<dyn std::error::Error>> {
        self.checker.as_mut().map_or(Ok(()), |checker| checker())
    }
}

/// Says `private_data` to the socket behind a `shm://` or `mem://` address, and reads the answer as a reject.
#[must_use]
pub fn knock_on_socket(address: &Address, private_data: &[u8]) -> Option<Knock> {
    use rustix::net::{RecvFlags, SendFlags};
    let socket = gimmal_transport::shm::dial(address).ok()?;
    rustix::net::send(&socket, private_data, SendFlags::NOSIGNAL).ok()?;
    let address = address.to_string();
    Some(Box::new(move || {
        let mut answer = [0; 256];
        match rustix::net::recv(&socket, &mut answer[..], RecvFlags::DONTWAIT) {
            Err(rustix::io::Errno::AGAIN) => None,
            Ok((len, _)) if len > 0 => {
                Some(Refusal::decode(&answer[..len]).map(|refusal| ConnectError::Rejected {
                    address: address.clone(),
                    reason: refusal.reason(),
                    data: refusal.into_data(),
                }))
            }
            _ => Some(None),
        }
    }))
}

/// Says `private_data` to the listener behind a `tcp://` address, and reads the answer as a reject.
#[must_use]
pub fn knock_on_tcp(address: &Address, private_data: &[u8]) -> Option<Knock> {
    use std::io::{ErrorKind, Read, Write};
    let Address::Tcp { host, port, .. } = address else { return None };
    let mut socket = std::net::TcpStream::connect((host.as_str(), *port)).ok()?;
    socket.write_all(private_data).ok()?;
    socket.set_nonblocking(true).ok()?;
    let (address, mut answer) = (address.to_string(), Vec::new());
    Some(Box::new(move || {
        let mut bytes = [0; 256];
        match socket.read(&mut bytes) {
            Ok(len) if len > 0 => {
                answer.extend_from_slice(&bytes[..len]);
                None
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            _ => Some(refusal(&address, &answer)),
        }
    }))
}

/// The refusal that a listener at `address` answered with, if that is one.
#[must_use]
pub fn refusal(address: &str, answer: &[u8]) -> Option<ConnectError> {
    Refusal::decode(answer).map(|refusal| ConnectError::Rejected {
        address: address.to_owned(),
        reason: refusal.reason(),
        data: refusal.into_data(),
    })
}
