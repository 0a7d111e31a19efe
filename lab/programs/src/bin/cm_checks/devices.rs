//! Several devices in one process: one listener over all of them, which one a connection goes through, and choosing.

use std::{net::IpAddr, process::Command, time::Duration};

use gimmal_transport::{
    Address, Batch, ConnId, ConnectError, ConnectOptions, Connecting, DevicePort, Event, Fabric, Incoming,
    Instant, ListenError, ListenOptions, Listener, Negotiated, Port, PortConfig, PortError, Provider, Time,
    verbs::Verbs,
};

use crate::rig::{Failure, Outcome, STEP, Site, ensure};

/// Two ports of one process, the server's and the client's, and all connections between them.
struct World {
    provider: Verbs,
    server: <Verbs as Provider>::Port,
    client: <Verbs as Provider>::Port,
    start: Instant,
    /// What the URLs to connect to choose.
    query: String,
}

/// A connection as both of its ends see it.
struct Ends {
    client: Negotiated,
    server: Negotiated,
}

impl World {
    fn new() -> Result<Self, Failure> {
        let provider = Verbs::new();
        let config = PortConfig { ring_bytes: 64 << 10, ..PortConfig::default() };
        let (server, client) = (provider.open_port(&config)?, provider.open_port(&config)?);
        Ok(Self { provider, server, client, start: Instant::now(), query: String::new() })
    }

    fn listen(
        &self,
        url: &str,
        device: Option<&str>,
    ) -> Result<(<Verbs as Provider>::Listener, u16), Failure> {
        let options =
            ListenOptions { device: device.map(str::parse).transpose()?, ..ListenOptions::default() };
        let listener = self.provider.listen(&url.parse()?, &options)?;
        let Address::Rdma { port, .. } = listener.address() else {
            return Err("not an rdma:// address".into());
        };
        Ok((listener, port))
    }

    /// Connects to `site`, and waits until both ends are open.
    fn connect(
        &mut self,
        listener: &mut <Verbs as Provider>::Listener,
        site: &Site,
        port: u16,
        options: &ConnectOptions,
    ) -> Result<Ends, Failure> {
        let address: Address = format!("rdma://{}:{port}{}", site.url_host(), self.query).parse()?;
        let mut connecting = self.provider.connect(&address, &self.client.gate(), options)?;
        let deadline = Instant::now() + STEP;
        let incoming = loop {
            if let Some(incoming) = listener.accept(Duration::from_millis(5))? {
                break incoming;
            }
            if let Some(outcome) = connecting.poll(Duration::ZERO) {
                return Err(outcome.err().map_or_else(|| "it connected to nobody".into(), Into::into));
            }
            ensure!(Instant::now() < deadline, "no request came");
        };
        let passive = incoming.accept(&self.server.gate())?;
        let active = connecting.poll(STEP).ok_or("no outcome")??;
        let now = Time::default().plus(self.start.elapsed());
        let ends = [self.server.adopt(passive, now)?, self.client.adopt(active, now)?];
        self.opened(ends)
    }

    fn opened(&mut self, [server, client]: [ConnId; 2]) -> Result<Ends, Failure> {
        let (mut batch, mut seen) = (Batch::new(16), [None, None]);
        let deadline = Instant::now() + STEP;
        while seen.iter().any(Option::is_none) {
            ensure!(Instant::now() < deadline, "a connection did not open");
            let now = Time::default().plus(self.start.elapsed());
            for (at, port, conn) in [(0, &mut self.server, server), (1, &mut self.client, client)] {
                port.poll(now, &mut batch);
                for event in batch.drain() {
                    match event {
                        Event::Opened { conn: opened, negotiated } if opened == conn => {
                            seen[at] = Some(Negotiated::clone(&negotiated));
                        }
                        Event::Closed { reason, .. } => return Err(reason.to_string().into()),
                        _ => {}
                    }
                }
                port.flush();
            }
        }
        let [Some(server), Some(client)] = seen else { return Err("not opened".into()) };
        Ok(Ends { client, server })
    }
}

/// The device port that both ends name, and what it must be for this site.
fn is_through(ends: &Ends, site: &Site) -> Result<DevicePort, Failure> {
    let (client, server) = (ends.client.port.clone(), ends.server.port.clone());
    ensure!(client == server, "{client:?} and {server:?}");
    let port = client.ok_or("no device port")?;
    let host: IpAddr = site.host.parse()?;
    let fabric = if site.iwarp { Fabric::Iwarp } else { Fabric::RoceV2 };
    ensure!(port.fabric == fabric && port.number == 1, "{port}");
    let gid = port.gid.map(|gid| gid.value);
    let mapped = match host {
        IpAddr::V4(host) => host.to_ipv6_mapped(),
        IpAddr::V6(host) => host,
    };
    ensure!(gid == (!site.iwarp).then_some(mapped), "{port} for {host}");
    for end in [&ends.client, &ends.server] {
        ensure!(end.to_string().contains(&fabric.to_string()), "not printed: {end}");
    }
    Ok(port)
}

/// Protection domains that our control thread made on a device: one for each of the two ports. The kernel names the
/// thread, and there is one program of ours at a time.
fn domains(device: &str) -> Result<usize, Failure> {
    let output = Command::new("rdma").args(["resource", "show", "pd", "dev", device]).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter(|line| line.contains("comm gimmal-control")).count())
}

/// One listener on all addresses, two clients on each device, all on the same two ports.
pub(crate) fn one_listener(sites: &[Site]) -> Outcome {
    let wildcard = if sites.iter().all(|site| site.host.contains(':')) { "[::]" } else { "0.0.0.0" };
    let mut world = World::new()?;
    let (mut listener, port) = world.listen(&format!("rdma://{wildcard}:0"), None)?;
    let mut names = Vec::new();
    for site in sites.iter().chain(sites) {
        let ends = world.connect(&mut listener, site, port, &ConnectOptions::default())?;
        let through = is_through(&ends, site)?;
        println!("        {through}");
        names.push(through.device);
    }
    for device in &names[..sites.len()] {
        let domains = domains(device)?;
        ensure!(domains == 2, "{domains} protection domains on {device}, one for each port is 2");
    }
    names.sort();
    names.dedup();
    ensure!(names.len() == sites.len(), "all through {names:?}");
    Ok(None)
}

fn device_of(site: &Site) -> &'static str {
    if site.iwarp { "siw0" } else { "rxe0" }
}

/// A listener on one device is not reached through the other. The option chooses it, or the URL.
pub(crate) fn listen_on_one(sites: &[Site]) -> Outcome {
    for (site, by_url) in sites.iter().flat_map(|site| [(site, false), (site, true)]) {
        let mut world = World::new()?;
        let device = device_of(site);
        let (mut listener, port) = match by_url {
            false => world.listen("rdma://*:0", Some(device))?,
            true => world.listen(&format!("rdma://*:0?device={device}"), Some("mlx5_9"))?,
        };
        for from in sites {
            let outcome = world.connect(&mut listener, from, port, &ConnectOptions::default());
            match outcome {
                Ok(ends) if device_of(from) == device_of(site) => drop(is_through(&ends, from)?),
                Err(error) if device_of(from) != device_of(site) => {
                    ensure!(
                        matches!(error.downcast_ref(), Some(ConnectError::NobodyListens { .. })),
                        "{error}"
                    );
                }
                Ok(_) => return Err(format!("reached through {}", device_of(from)).into()),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// A connect through a device, or from an address, goes there or says why not.
pub(crate) fn connect_through_one(sites: &[Site]) -> Outcome {
    let mut world = World::new()?;
    let (mut listener, port) = world.listen("rdma://0.0.0.0:0", None)?;
    for site in sites {
        let through = ConnectOptions { device: Some(device_of(site).parse()?), ..ConnectOptions::default() };
        is_through(&world.connect(&mut listener, site, port, &through)?, site)?;
        let from = ConnectOptions { source: Some(site.host.parse()?), ..ConnectOptions::default() };
        is_through(&world.connect(&mut listener, site, port, &from)?, site)?;
        world.query = format!("?device={}&source={}", device_of(site), site.host);
        let elsewhere = ConnectOptions { source: Some([10, 99, 9, 9].into()), ..ConnectOptions::default() };
        is_through(&world.connect(&mut listener, site, port, &elsewhere)?, site)?;
        world.query.clear();
        let foreign = ConnectOptions { source: Some([10, 99, 9, 9].into()), ..through.clone() };
        let refused =
            world.connect(&mut listener, site, port, &foreign).err().ok_or("from a foreign address")?;
        ensure!(refused.to_string().contains(&site.host), "{refused}");
    }
    Ok(None)
}

/// What is not there is said, with what is.
pub(crate) fn wrong_name(sites: &[Site]) -> Outcome {
    let world = World::new()?;
    let named = |error: &PortError| {
        let text = error.to_string();
        matches!(error, PortError::NoSuchDevice { .. })
            && text.contains("mlx5_9")
            && sites.iter().all(|site| text.contains(&format!("{}:1", device_of(site))))
    };
    let options = ListenOptions { device: Some("mlx5_9".parse()?), ..ListenOptions::default() };
    let error = world.provider.listen(&"rdma://*:0".parse()?, &options).err().ok_or("it listens")?;
    ensure!(matches!(&error, ListenError::Port(error) if named(error)), "{error}");
    let options = ConnectOptions { device: Some("mlx5_9".parse()?), ..ConnectOptions::default() };
    let address: Address = format!("rdma://{}:1", sites[0].url_host()).parse()?;
    let error =
        world.provider.connect(&address, &world.client.gate(), &options).err().ok_or("it connects")?;
    ensure!(matches!(&error, ConnectError::Port(error) if named(error)), "{error}");
    println!("        {error}");
    let options = ListenOptions { device: Some(device_of(&sites[0]).parse()?), ..ListenOptions::default() };
    let other: Address = format!("rdma://{}:0", sites[1].url_host()).parse()?;
    let error = world.provider.listen(&other, &options).err().ok_or("it listens on the other device")?;
    ensure!(error.to_string().contains(&sites[0].host), "{error}");
    Ok(None)
}
