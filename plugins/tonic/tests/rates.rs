//! Rates of tonic's stubs over gimmal and over tonic's own transport, in turns, over the same medium: shared memory beside a unix socket,
//! and TCP beside TCP. Two processes. A cell fails where gimmal is slower with 95 % certainty.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    io::{self, BufRead as _, BufReader, Read as _},
    path::{Path, PathBuf},
    pin::Pin,
    process::Stdio,
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use common::{DemoServer, Note, Seen, demo::demo_client::DemoClient, listen, numbered, url};
use gimmal::Instant;
use gimmal_testkit::child::{ChildGuard, this_program};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tonic::{
    codegen::http::Uri,
    transport::{self, Endpoint, server::TcpIncoming},
};

/// Set in the process of the servers: the folder of the unix socket.
const SERVES: &str = "GIMMAL_RATES_SERVE";
/// Pairs of slices of a cell. Of so many sorted ratios, the second and the last but one enclose the true median in 96 of 100 cases.
const PAIRS: usize = 9;
/// Cells whose pairs are made in turns, so that what disturbs the machine for a while disturbs few pairs of each.
const TOGETHER: usize = 6;
const SLICE: Duration = Duration::from_millis(100);
/// Notes of a stream.
const NOTES: u32 = 8;

#[derive(Clone, Copy)]
struct Cell {
    medium: &'static str,
    kind: Kind,
    bytes: usize,
    in_flight: usize,
    connections: usize,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Unary,
    Stream,
}
use Kind::{Stream, Unary};

const fn cell(medium: &'static str, kind: Kind, bytes: usize, in_flight: usize, connections: usize) -> Cell {
    Cell { medium, kind, bytes, in_flight, connections }
}

/// Those of every run.
const FEW: [Cell; 6] = [
    cell("shm", Unary, 64, 1, 1),
    cell("shm", Stream, 64, 64, 1),
    cell("shm", Unary, 8 << 10, 64, 64),
    cell("tcp", Stream, 64, 1, 1),
    cell("tcp", Unary, 64, 512, 64),
    cell("tcp", Unary, 8 << 10, 64, 1),
];

fn all() -> impl Iterator<Item = Cell> {
    let sizes = [(64, 1), (64, 64), (64, 512), (8 << 10, 1), (8 << 10, 64), (8 << 10, 512)];
    ["shm", "tcp"].into_iter().flat_map(move |medium| {
        [Unary, Stream].into_iter().flat_map(move |kind| {
            [1, 64].into_iter().flat_map(move |connections| {
                sizes.map(|(bytes, in_flight)| cell(medium, kind, bytes, in_flight, connections))
            })
        })
    })
}

/// A client of one of the transports.
trait Caller: Clone + Send + 'static {
    fn call(&mut self, cell: Cell, data: Bytes) -> impl Future<Output = ()> + Send;
}

macro_rules! caller {
    ($($channel:ty),*) => {$(
        impl Caller for DemoClient<$channel> {
            async fn call(&mut self, cell: Cell, data: Bytes) {
                let asked = Note { data, ..numbered("echo", NOTES) };
                if cell.kind == Unary {
                    assert_eq!(self.unary(asked).await.unwrap().into_inner().data.len(), cell.bytes);
                    return;
                }
                let mut down = self.down(asked).await.unwrap().into_inner();
                for at in 0..NOTES {
                    assert_eq!(down.message().await.unwrap().unwrap().count, at);
                }
                assert_eq!(down.message().await.unwrap(), None);
            }
        }
    )*};
}
caller!(gimmal_tonic::Channel, transport::Channel);

/// Calls that end in a slice.
async fn calls<C: Caller>(clients: &[C], cell: Cell) -> u32 {
    let (end, data) = (Instant::now() + SLICE, Bytes::from(vec![7; cell.bytes]));
    let callers: Vec<_> = (0..cell.in_flight)
        .map(|caller| {
            let (mut client, data) = (clients[caller % clients.len()].clone(), data.clone());
            tokio::spawn(async move {
                let mut calls = 0;
                while !end.has_passed() {
                    client.call(cell, data.clone()).await;
                    calls += 1;
                }
                calls
            })
        })
        .collect();
    let mut calls = 0;
    for caller in callers {
        calls += tokio::time::timeout(Duration::from_secs(60), caller).await.unwrap().unwrap();
    }
    calls
}

/// A cell that is measured.
struct Measured {
    name: String,
    cell: Cell,
    ours: Vec<DemoClient<gimmal_tonic::Channel>>,
    theirs: Vec<DemoClient<transport::Channel>>,
    ratios: Vec<f64>,
    /// Calls a second of ours in the last slice.
    rate: f64,
}

impl Measured {
    async fn new(name: String, cell: Cell, urls: &Urls) -> Self {
        let (url, other) =
            if cell.medium == "tcp" { (&urls.tcp, &urls.tonic) } else { (&urls.shm, &urls.socket) };
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..cell.connections {
            ours.push(DemoClient::new(gimmal_tonic::connect(url).await.unwrap()));
            theirs.push(DemoClient::new(connect(other).await));
        }
        let (_, _) = (calls(&ours, cell).await, calls(&theirs, cell).await);
        Self { name, cell, ours, theirs, ratios: Vec::new(), rate: 0.0 }
    }

    async fn pair(&mut self) {
        let ours = calls(&self.ours, self.cell).await;
        let theirs = calls(&self.theirs, self.cell).await;
        self.ratios.push(f64::from(ours) / f64::from(theirs));
        self.rate = f64::from(ours) / SLICE.as_secs_f64();
    }

    /// What it came to, and whether gimmal is slower.
    fn verdict(&mut self) -> (String, bool) {
        self.ratios.sort_by(f64::total_cmp);
        let (low, median, high) = (self.ratios[1], self.ratios[PAIRS / 2], self.ratios[PAIRS - 2]);
        let Self { name, rate, .. } = self;
        (format!("{name}: {rate:.0} calls/s, {median:.2} of tonic's ({low:.2}-{high:.2})"), high < 1.0)
    }
}

/// tonic's own channel, to an address or to a path.
async fn connect(to: &str) -> transport::Channel {
    match to.strip_prefix("http://") {
        Some(_) => Endpoint::from_shared(to.to_owned()).unwrap().tcp_nodelay(true).connect().await.unwrap(),
        None => {
            Endpoint::from_static("http://socket").connect_with_connector(Socket(to.into())).await.unwrap()
        }
    }
}

#[derive(Clone)]
struct Socket(PathBuf);

impl tower_service::Service<Uri> for Socket {
    type Response = TokioIo<UnixStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let path = self.0.clone();
        Box::pin(async move { UnixStream::connect(path).await.map(TokioIo::new) })
    }
}

struct Accepting(UnixListener);

impl tokio_stream::Stream for Accepting {
    type Item = io::Result<UnixStream>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_accept(context).map(|accepted| Some(accepted.map(|(stream, _)| stream)))
    }
}

/// Where the servers are.
struct Urls {
    shm: String,
    tcp: String,
    socket: String,
    tonic: String,
}

/// The servers' process: it says where they are, and ends when its input does.
async fn serve(folder: &Path) {
    let seen = Seen::default();
    let ours = ["shm", "tcp"].map(|scheme| listen(&url(scheme), &seen));
    let path = folder.join("socket");
    let socket = Accepting(UnixListener::bind(&path).unwrap());
    let port = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap().with_nodelay(Some(true));
    let address = port.local_addr().unwrap();
    let server = || transport::Server::builder().add_service(DemoServer::new(seen.clone()));
    tokio::spawn(server().serve_with_incoming(socket));
    tokio::spawn(server().serve_with_incoming(port));
    let urls = [ours[0].address().to_string(), ours[1].address().to_string(), path.display().to_string()];
    println!("\n{}\nhttp://{address}", urls.join("\n"));
    tokio::task::spawn_blocking(|| io::stdin().read_to_end(&mut Vec::new())).await.unwrap().unwrap();
}

/// Not a test by itself: the process of the servers.
#[test]
#[ignore = "the servers of the other tests"]
fn servers() {
    if let Some(folder) = std::env::var_os(SERVES) {
        runtime().block_on(serve(Path::new(&folder)));
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn name(cell: Cell) -> String {
    let Cell { medium, kind, bytes, in_flight, connections } = cell;
    format!("{medium} {kind:?}, {bytes} B, {in_flight} in flight, {connections} connections")
}

fn judge(cells: impl Iterator<Item = Cell>) {
    let folder = tempfile::tempdir().unwrap();
    let mut command = this_program().unwrap();
    command.args(["--ignored", "--exact", "--nocapture", "servers"]).env(SERVES, folder.path());
    let mut child = ChildGuard::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped())).unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let shm = lines.find(|line| line.starts_with("shm://")).unwrap();
    let mut next = || lines.next().unwrap();
    let urls = Urls { shm, tcp: next(), socket: next(), tonic: next() };
    // A part of a cell's name: the others are left out.
    let wanted = std::env::var("GIMMAL_RATES").unwrap_or_default();
    let mut slower = Vec::new();
    runtime().block_on(async {
        let cells: Vec<_> =
            cells.map(|cell| (name(cell), cell)).filter(|(name, _)| name.contains(&wanted)).collect();
        assert!(!cells.is_empty(), "no cell is called so");
        for group in cells.chunks(TOGETHER) {
            let mut running = Vec::new();
            for (name, cell) in group {
                running.push(Measured::new(name.clone(), *cell, &urls).await);
            }
            for _ in 0..PAIRS {
                for measured in &mut running {
                    measured.pair().await;
                }
            }
            for measured in &mut running {
                let (line, is_slower) = measured.verdict();
                println!("{line}");
                slower.extend(is_slower.then_some(line));
            }
        }
    });
    assert!(slower.is_empty(), "slower than tonic's own transport: {slower:#?}");
}

#[test]
#[ignore = "times: for speed alone"]
fn rates_of_a_few_cells_are_not_below_tonics() {
    judge(FEW.into_iter());
}

#[test]
#[ignore = "times: for speed alone, and long"]
fn rates_of_all_cells_are_not_below_tonics() {
    judge(all());
}
