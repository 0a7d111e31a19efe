//! What is made for a port lies on the memory node of the thread that opened the port.
//!
//! `nodes OWNER OTHER URL…`, on a machine of two nodes: ports are opened on the processor OWNER; everything else,
//! connects and
//! loans too, is done on the processor OTHER, of another node. Ends with 1 when a page lies elsewhere.

use std::{process::ExitCode, time::Duration};

use gimmal_transport::{
    Address, Any, Batch, ConnId, ConnectOptions, Connecting, Event, Gate, Incoming, Instant, ListenOptions,
    Listener, MemoryNode, Port, PortConfig, Provider, Time,
    any::{AnyGate, AnyLink, AnyPort},
};
use rustix::thread::{CpuSet, sched_setaffinity};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LIMIT: Duration = Duration::from_secs(10);
const BYTES: usize = 4 << 20;

fn pin(cpu: usize) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// Runs on a thread of its own, on `cpu`.
fn on<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpu)?;
            work()
        });
        thread.join().map_err(|_| "it panicked")?
    })
}

fn join(any: &Any, url: &Address, gates: &[AnyGate; 2]) -> Result<[AnyLink; 2], Failure> {
    let mut listener = any.listen(url, &ListenOptions::default())?;
    let mut connecting = any.connect(&listener.address(), &gates[0], &ConnectOptions::default())?;
    let (mut active, mut passive, start) = (None, None, Instant::now());
    while start.elapsed() < LIMIT {
        if let Some(incoming) = listener.accept(Duration::from_millis(1))? {
            passive = Some(incoming.accept(&gates[1])?);
        }
        if let Some(link) = connecting.poll(Duration::from_millis(1)) {
            active = Some(link?);
        }
        if let (Some(_), Some(_)) = (&active, &passive) {
            break;
        }
    }
    Ok([active.ok_or("no outcome")?, passive.ok_or("no request")?])
}

/// Both ends, open.
fn open(ports: &mut [AnyPort; 2], links: [AnyLink; 2]) -> Result<[ConnId; 2], Failure> {
    let (start, mut batch, mut open) = (Instant::now(), Batch::new(64), 0);
    let now = || Time::default().plus(start.elapsed());
    let [active, passive] = links;
    let ids = [ports[0].adopt(active, now())?, ports[1].adopt(passive, now())?];
    while open < 2 {
        for port in &mut *ports {
            port.poll(now(), &mut batch);
            open += batch.drain().filter(|event| matches!(event, Event::Opened { .. })).count();
            port.flush();
        }
        if start.elapsed() > LIMIT {
            return Err("it did not open".into());
        }
    }
    Ok(ids)
}

/// Pages by node of the mappings that `is_meant`, by their first address and their line of `numa_maps(5)`.
fn pages(is_meant: impl Fn(usize, &str) -> bool) -> Result<Vec<(String, Vec<u32>)>, Failure> {
    let maps = std::fs::read_to_string("/proc/self/numa_maps")?;
    let mapping = |line: &str| {
        let start = usize::from_str_radix(line.split(' ').next()?, 16).ok()?;
        let nodes =
            line.split(' ').filter_map(|word| word.strip_prefix('N')?.split_once('=')?.0.parse().ok());
        is_meant(start, line).then(|| (line.to_owned(), nodes.collect()))
    };
    Ok(maps.lines().filter_map(mapping).collect())
}

/// The mapping with the largest address that is not above `address`.
fn pages_at(address: usize) -> Result<(String, Vec<u32>), Failure> {
    let below = pages(|start, _| start <= address)?;
    Ok(below.into_iter().last().ok_or("nothing is mapped there")?)
}

fn check(owner: usize, other: usize, url: &Address) -> Result<(), Failure> {
    let any = Any::new();
    let config = PortConfig { huge_pages: false, ..PortConfig::default() };
    // The provider's own threads run where its first port is opened.
    let first = on(other, || Ok(any.open_port(&config)?.gate()))?;
    pin(owner)?;
    let mut ports = [any.open_port(&config)?, any.open_port(&config)?];
    let gates = [ports[0].gate(), ports[1].gate()];
    let MemoryNode::Near { node } = gates[0].memory_node() else {
        return Err(gates[0].memory_node().to_string().into());
    };
    let plain = on(other, || Ok(vec![1_u8; BYTES]))?;
    let links = on(other, || join(&any, url, &gates))?;
    let ids = open(&mut ports, links)?;
    let loan = on(other, || Ok(gates[0].allocate(ids[0], BYTES)?))?;
    let exposed = on(other, || Ok(gates[0].expose(ids[0], BYTES)?))?;
    let (line, nodes) = pages_at(plain.as_ptr().addr())?;
    if nodes.contains(&node) || nodes.is_empty() {
        return Err(format!("OTHER is no other node: {line}").into());
    }
    let mut seen = pages(|_, line| line.contains("gimmal-"))?;
    seen.push(pages_at(loan.as_ptr().addr())?);
    for (line, nodes) in &seen {
        if nodes[..] != [node] {
            return Err(format!("not on node {node}: {line}").into());
        }
    }
    drop((exposed, first));
    println!("{url}: {} mappings on {}", seen.len(), gates[0].memory_node());
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let run = || -> Result<(), Failure> {
        let [owner, other, urls @ ..] = &words[..] else { return Err("nodes OWNER OTHER URL…".into()) };
        for url in urls {
            check(owner.parse()?, other.parse()?, &url.parse()?)?;
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nodes: {error}");
            ExitCode::FAILURE
        }
    }
}
