//! The two sides of a case: end points, and a thread that answers look-ups.

use std::{
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use gimmal_rdma::datagram::{
    AnswerData, Datagram, DatagramConfig, DatagramEvent, LookUpData, LookUpRequest, Peer,
};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;

/// More than anything here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(8);
/// Long enough that a message that is to come has come.
pub(crate) const QUIET: Duration = Duration::from_millis(150);

pub(crate) const SMALL: DatagramConfig =
    DatagramConfig { receives: 64, sends: 32, requests: 16, qkey: gimmal_rdma::datagram::Qkey::UDP };

pub(crate) fn open(address: IpAddr) -> Result<Datagram, Failure> {
    Ok(Datagram::bind(SocketAddr::new(address, 0), &SMALL)?)
}

/// Fails with a text.
pub(crate) fn ensure(holds: bool, what: impl std::fmt::Display) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(what.to_string().into()) }
}

/// What to do with a look-up.
pub(crate) enum Verdict {
    Accept(AnswerData),
    Reject(AnswerData),
    /// Keep it and say nothing.
    Nothing,
}

/// A thread that answers look-ups.
pub(crate) struct Answering {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Datagram, Failure>>,
}

impl Answering {
    pub(crate) fn start(
        mut endpoint: Datagram,
        mut verdict: impl FnMut(&LookUpRequest) -> Verdict + Send + 'static,
    ) -> Result<Self, Failure> {
        let address = endpoint.listen(0, 16)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let mut silent = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                match endpoint.event()? {
                    Some(DatagramEvent::Request(request)) => match verdict(&request) {
                        Verdict::Accept(data) => endpoint.accept(request, &data)?,
                        Verdict::Reject(data) => endpoint.reject(request, &data)?,
                        Verdict::Nothing => silent.push(request),
                    },
                    Some(other) => return Err(format!("{other:?}").into()),
                    None => {
                        endpoint.wait(Duration::from_millis(20))?;
                    }
                }
            }
            Ok(endpoint)
        });
        Ok(Self { address, stop, thread })
    }

    /// Ends the thread and gives its end point back.
    pub(crate) fn end(self) -> Result<Datagram, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "the answering thread panicked")?
    }
}

/// Two end points, and the way from the first to the second.
pub(crate) fn pair(address: IpAddr, config: &DatagramConfig) -> Result<(Datagram, Datagram, Peer), Failure> {
    let mut a = open(address)?;
    let b = Datagram::bind(SocketAddr::new(address, 0), config)?;
    let answering = Answering::start(b, |_| Verdict::Accept(AnswerData::EMPTY))?;
    let peer = a.look_up(answering.address, &LookUpData::EMPTY, LIMIT)?;
    Ok((a, answering.end()?, peer))
}

/// Receives until `count` messages came, or fails.
pub(crate) fn take(endpoint: &mut Datagram, count: usize) -> Result<Vec<Vec<u8>>, Failure> {
    let deadline = Instant::now() + LIMIT;
    let mut messages = Vec::new();
    while messages.len() < count {
        let came = endpoint.receive(|received| messages.push(received.message.to_vec()))?;
        if came == 0 {
            ensure(Instant::now() < deadline, format!("{} of {count} messages came", messages.len()))?;
            endpoint.wait(Duration::from_millis(50))?;
        }
    }
    Ok(messages)
}

/// Waits a little and counts what is there.
pub(crate) fn count_after_quiet(endpoint: &mut Datagram) -> Result<usize, Failure> {
    std::thread::sleep(QUIET);
    let mut count = 0;
    while endpoint.receive(|_| count += 1)? > 0 {}
    Ok(count)
}
