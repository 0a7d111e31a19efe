//! A whole connection to a peer and an orderly end: the proof that nothing is missing.

use std::time::Duration;

use gimmal_transport::{
    Address, Any, AnyConfig, Batch, CloseReason, ConnectOptions, Connecting, Event, Instant, Limit, Look,
    Port, PortConfig, Provider, Secured, Time,
};

/// How long an orderly close may take before we just go.
const CLOSE: Duration = Duration::from_secs(1);

/// Connects to `address`, exchanges grants, closes; says over what.
///
/// # Errors
/// Why not, in a sentence.
pub(crate) fn try_it(address: &Address, options: &ConnectOptions) -> Result<String, String> {
    let provider = Any::with(AnyConfig::for_addresses(std::slice::from_ref(address)));
    let mut port = provider.open_port(&PortConfig::default()).map_err(|error| error.to_string())?;
    let start = Instant::now();
    let now = || Time::default().plus(start.elapsed());
    let mut connecting =
        provider.connect(address, &port.gate(), options).map_err(|error| error.to_string())?;
    let link = loop {
        if let Some(outcome) = connecting.poll(Duration::from_millis(50)) {
            break outcome.map_err(|error| error.to_string())?;
        }
    };
    let conn = port.adopt(link, now()).map_err(|error| error.to_string())?;
    let mut batch = Batch::new(16);
    let mut opened = None;
    let mut limit = options.connect_timeout.saturating_add(options.handshake_timeout);
    while start.elapsed() < limit {
        while let Look::Run(mut run) = port.next_run(Limit::Frames(batch.room())) {
            while run.next_frame().is_some() {}
            port.end_run(&mut run, false);
        }
        port.poll(now(), &mut batch);
        for event in batch.drain() {
            match event {
                Event::Opened { negotiated, .. } => {
                    let through = negotiated.port.as_ref().map(ToString::to_string);
                    let through = through.unwrap_or_else(|| negotiated.device.clone());
                    let mut over = format!("{} on {through}; {}", negotiated.provider, negotiated.path);
                    if let Some(Secured { suite, peer: Some(peer), .. }) = &negotiated.secured {
                        over = format!("{over}; TLS 1.3 ({suite}), the peer is {peer}");
                    }
                    opened = Some(over);
                    port.close(conn, CloseReason::Local, now());
                    limit = start.elapsed().saturating_add(CLOSE);
                }
                Event::Closed { reason, .. } => return opened.ok_or_else(|| reason.to_string()),
                _ => {}
            }
        }
        port.flush();
        std::thread::sleep(Duration::from_millis(1));
    }
    opened.ok_or_else(|| format!("{address} connected and sent no grant within {limit:?}"))
}
