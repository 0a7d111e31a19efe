//! Both sides in this process: the passive one on a thread of its own.

use std::{
    net::{IpAddr, SocketAddr},
    thread,
    time::Duration,
};

use gimmal_rdma::cm::{
    AcceptParam, Answering, CmError, ConnectParam, Connection, DialOptions, Draft, Endpoint, Listener,
    PortSpace, QpPlan, Request, Target, dial,
};

pub(crate) type Failure = Box<dyn std::error::Error + Send + Sync>;
/// `Some`: why it cannot be run here.
pub(crate) type Outcome = Result<Option<String>, Failure>;

/// A check and its name.
pub(crate) type Check = (&'static str, fn(&Site) -> Outcome);

/// For each step.
pub(crate) const STEP: Duration = Duration::from_secs(10);

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+).into());
        }
    };
}
pub(crate) use ensure;

/// Where the checks run.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) host: String,
    /// A name of several addresses.
    pub(crate) name: Option<String>,
    /// An address that never answers.
    pub(crate) silent: Option<String>,
    pub(crate) iwarp: bool,
}

impl Site {
    pub(crate) fn new(host: &str) -> Self {
        let mut site = Self { host: host.to_owned(), name: None, silent: None, iwarp: false };
        // The device tells: an id that is resolved to itself.
        let probe = Draft::new(PortSpace::Tcp).and_then(|draft| {
            let address = site.address(9).map_err(|_| CmError::Closed)?;
            draft.resolve(None, address, STEP)?.resolve_route(STEP)?.endpoint(QpPlan::default())
        });
        match probe {
            Ok(endpoint) => site.iwarp = endpoint.is_iwarp(),
            Err(error) => eprintln!("no device at {host}: {error}"),
        }
        site
    }

    pub(crate) fn address(&self, port: u16) -> Result<SocketAddr, Failure> {
        Ok(SocketAddr::new(self.host.parse::<IpAddr>()?, port))
    }

    /// The host as it stands in a URL.
    pub(crate) fn url_host(&self) -> String {
        if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() }
    }

    pub(crate) fn listen(&self) -> Result<(Listener, Target), Failure> {
        let listener = Draft::new(PortSpace::Tcp)?.listen(self.address(0)?, 64)?;
        let address = listener.address().ok_or("the listener has no address")?;
        ensure!(address.port() != 0, "no port was chosen");
        Ok((listener, Target::at(address)))
    }
}

/// How the two sides of a pair are made.
pub(crate) struct Plan {
    pub(crate) connect: ConnectParam,
    pub(crate) accept: AcceptParam,
    pub(crate) options: DialOptions,
    pub(crate) plan: QpPlan,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            connect: ConnectParam::default(),
            accept: AcceptParam::default(),
            options: DialOptions { timeout: STEP, ..DialOptions::default() },
            plan: QpPlan::default(),
        }
    }
}

/// A connection, and what was prepared on it.
pub(crate) type Side<C> = (Connection, C);
/// How the dial ended, and what the answer came to.
pub(crate) type Met<C, T> = (Result<Side<C>, CmError>, T);

/// Waits for one request.
pub(crate) fn request(listener: &mut Listener) -> Result<Request, Failure> {
    Ok(listener.request(STEP)?.ok_or("no request came")?)
}

/// Dials `target` on this thread, while another answers the request.
pub(crate) fn meet<T: Send, C>(
    listener: &mut Listener,
    target: &Target,
    plan: &Plan,
    prepare: impl FnMut(&mut Endpoint) -> Result<C, CmError>,
    answer: impl FnOnce(Request) -> Result<T, Failure> + Send,
) -> Result<Met<C, T>, Failure> {
    thread::scope(|scope| {
        let server = scope.spawn(move || answer(request(listener)?));
        let client = dial(std::slice::from_ref(target), &plan.options, &plan.connect, prepare);
        let answered = server.join().map_err(|_| "the passive side panicked")?;
        match answered {
            Ok(answered) => Ok((client, answered)),
            Err(error) => match client {
                Err(why) => Err(format!("passive: {error}; active: {why}").into()),
                Ok(_) => Err(error),
            },
        }
    })
}

/// A connected pair: (active, passive), with what `prepare` made on each side.
pub(crate) fn pair<C: Send>(
    listener: &mut Listener,
    target: &Target,
    plan: &Plan,
    prepare: impl Fn(&mut Endpoint) -> Result<C, CmError> + Sync,
) -> Result<(Side<C>, Side<C>), Failure> {
    let (client, server) = meet(listener, target, plan, &prepare, |request| {
        let mut answering: Answering = request.endpoint(plan.plan)?;
        let prepared = prepare(&mut answering)?;
        Ok((answering.accept(&plan.accept, STEP)?, prepared))
    })?;
    Ok((client?, server))
}
