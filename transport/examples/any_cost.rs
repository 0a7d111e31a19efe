//! What `Any` costs over the bare shared-memory port, alone and beside an idle TCP connection: echoes between two ports
//! of one thread, in interleaved slices. `cargo run --release --example any_cost`. Prints the medians and their ratios.

use std::{error::Error, time::Duration};

use gimmal_transport::{
    Address, Any, AnyConfig, Batch, Chain, ConnId, ConnectOptions, Connecting, Credit, Event, Incoming,
    Instant, Limit, ListenOptions, Listener, Look, Port, PortConfig, Position, Provider, Staged, Tag, Time,
    shm::Shm,
};

const SLICES: usize = 1001;
const ECHOES: usize = 1_000;

/// Two ports of one thread with one connection.
struct Pair<P: Provider> {
    ports: [P::Port; 2],
    ids: [ConnId; 2],
    got: [u64; 2],
    batch: Batch,
    now: Time,
}

impl<P: Provider> Pair<P> {
    fn open(provider: &P, address: &Address) -> Result<Self, Box<dyn Error>> {
        let config = PortConfig::default();
        let ports = [provider.open_port(&config)?, provider.open_port(&config)?];
        let ids = [ConnId::new(0, 0); 2];
        let mut pair = Self { ports, ids, got: [0; 2], batch: Batch::new(16), now: Time(0) };
        pair.ids = pair.connect(provider, address)?;
        Ok(pair)
    }

    /// Another connection of the two.
    fn connect(&mut self, provider: &P, address: &Address) -> Result<[ConnId; 2], Box<dyn Error>> {
        let mut listener = provider.listen(address, &ListenOptions::default())?;
        let address = listener.address();
        let mut connecting = provider.connect(&address, &self.ports[0].gate(), &ConnectOptions::default())?;
        let wait = Duration::from_secs(5);
        let incoming = listener.accept(wait)?.ok_or("no request")?;
        let passive = incoming.accept(&self.ports[1].gate())?;
        let active = connecting.poll(wait).ok_or("no outcome")??;
        let ids = [self.ports[0].adopt(active, Time(0))?, self.ports[1].adopt(passive, Time(0))?];
        let mut opened = 0;
        while opened < 2 {
            for port in &mut self.ports {
                // A grant may have to be read first.
                let _ = port.next_run(Limit::Frames(1));
                port.poll(self.now, &mut self.batch);
                opened += self.batch.drain().filter(|event| matches!(event, Event::Opened { .. })).count();
            }
        }
        Ok(ids)
    }

    /// One frame from `side` to the other.
    fn one_way(&mut self, side: usize) -> Result<(), Box<dyn Error>> {
        let port = &mut self.ports[side];
        let staged = Staged { payload_bytes: 64, tag: Tag(0), chain: Chain::Begin };
        port.credit(self.ids[side]);
        port.compose(self.ids[side], 64, |room| {
            room.fill(1);
            Some(staged)
        })?;
        port.flush();
        let (other, id) = (1 - side, self.ids[1 - side]);
        loop {
            let Look::Run(mut run) = self.ports[other].next_run(Limit::Frames(64)) else { continue };
            let count = std::iter::from_fn(|| run.next_frame().map(|_| ())).count() as u64;
            let end = run.end();
            self.ports[other].end_run(&mut run, false);
            if count > 0 {
                self.got[other] += count;
                self.ports[other].return_credit(id, Credit { bytes: end, arrivals: 0 });
                return Ok(());
            }
        }
    }

    /// Nanoseconds an echo.
    fn slice(&mut self) -> Result<f64, Box<dyn Error>> {
        let started = Instant::now();
        for _ in 0..ECHOES {
            self.one_way(0)?;
            self.one_way(1)?;
        }
        let _ = Position(self.got[0]);
        Ok(started.elapsed().as_nanos() as f64 / ECHOES as f64)
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), Box<dyn Error>> {
    let place = |name: &str| Address::Shm {
        path: std::env::temp_dir().join(format!("any-cost-{}-{name}", std::process::id())),
    };
    let any = Any::with(AnyConfig { verbs: false, ..AnyConfig::default() });
    let mut bare = Pair::open(&Shm, &place("bare"))?;
    let mut wrapped = Pair::open(&any, &place("any"))?;
    let mut beside = Pair::open(&any, &place("beside"))?;
    beside.connect(&any, &"tcp://127.0.0.1:0".parse()?)?;
    let mut times = [const { Vec::new() }; 3];
    for slice in 0..SLICES {
        // Each begins as often as the others.
        for turn in 0..3 {
            let which = (slice + turn) % 3;
            let nanos = match which {
                0 => bare.slice()?,
                1 => wrapped.slice()?,
                _ => beside.slice()?,
            };
            times[which].push(nanos);
        }
    }
    let ratios = |over: usize, under: usize| {
        median(times[over].iter().zip(&times[under]).map(|(over, under)| over / under).collect())
    };
    let [bare, any, beside] = [0, 1, 2].map(|which: usize| median(times[which].clone()));
    println!("bare shm              {bare:.1} ns an echo");
    println!("any                   {any:.1} ns an echo, {:.4} of it", ratios(1, 0));
    println!("beside an idle tcp    {beside:.1} ns an echo, {:.4} of any", ratios(2, 1));
    Ok(())
}
