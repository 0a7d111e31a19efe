//! The port's echo beside a bare ring, in the same two pinned processes, in interleaved slices.
//!
//! `cargo test -p gimmal-transport --release measure_ -- --ignored --nocapture`

use rustix::thread::{CpuSet, sched_setaffinity};

use super::{super::segment::Segment, kill::again, *};
use crate::{
    FrameWord, Instant,
    frame::span,
    mem::Region,
    sync::{
        atomic::Ordering,
        publish::{observe, publish},
    },
    testing::process::role,
};

const PAYLOAD: usize = 64;
/// Short, so that many fall between two visits of the scheduler; the tenth percentile is what is compared.
const SLICES: usize = 3000;
const ECHOES: u64 = 512;
const WINDOW: u64 = 32;
const RING: u32 = 256 << 10;

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).unwrap();
}

/// Bare segments: no port, no credit, no checks.
struct Bare {
    link: ShmLink,
    peer: Segment<Region>,
    at: u64,
    /// Not a constant, as it is none for the port.
    bytes: usize,
}

impl Bare {
    fn new(mut link: ShmLink, peer: Option<Segment<Region>>) -> Self {
        let peer = peer.or_else(|| link.peer.take()).unwrap();
        Self { link, peer, at: 0, bytes: std::hint::black_box(PAYLOAD) }
    }

    #[inline]
    fn wait(&self, payload: &mut [u8; PAYLOAD]) {
        let bits = loop {
            match observe(self.peer.word(self.at)) {
                0 => std::hint::spin_loop(),
                bits => break bits,
            }
        };
        let bytes = (bits & 0xff) as usize - 8;
        let from = self.peer.payload(self.at);
        // SAFETY: published by the peer, inside the ring, and not written again before the next lap.
        unsafe { from.as_ptr().copy_to_nonoverlapping(payload.as_mut_ptr(), bytes) };
    }

    #[inline]
    fn send(&self, at: u64, payload: &[u8; PAYLOAD]) {
        let own = &self.link.end.own;
        own.word(at + span(self.bytes) as u64).store(0, Ordering::Relaxed);
        let to = own.payload(at);
        // SAFETY: our own ring, at a place that the peer has left a lap ago.
        unsafe { to.as_ptr().copy_from_nonoverlapping(payload.as_ptr(), self.bytes) };
        publish(own.word(at), FrameWord::new(self.bytes, Tag(0)).bits());
    }

    fn client(&mut self, count: u64) {
        let mut payload = [7; PAYLOAD];
        for _ in 0..count {
            self.send(self.at, &payload);
            self.wait(&mut payload);
            self.at += span(self.bytes) as u64;
        }
    }

    fn server(&mut self, count: u64) {
        let mut payload = [0; PAYLOAD];
        for _ in 0..count {
            self.wait(&mut payload);
            self.send(self.at, &payload);
            self.at += span(self.bytes) as u64;
        }
    }

    fn window_client(&mut self, count: u64) {
        let mut payload = [7; PAYLOAD];
        let mut sent = self.at;
        let end = self.at + count * span(self.bytes) as u64;
        while self.at < end {
            while sent < end && sent < self.at + WINDOW * span(self.bytes) as u64 {
                self.send(sent, &payload);
                sent += span(self.bytes) as u64;
            }
            self.wait(&mut payload);
            self.at += span(self.bytes) as u64;
        }
    }
}

impl Side {
    fn echo_server(&mut self, count: u64) {
        let mut done = 0;
        while done < count {
            for event in testing::poll(&mut self.port, Time(0), &mut self.batch) {
                let Came::Frame { conn, frame } = event else { panic!("{event:?}") };
                stage(&mut self.port, conn, &frame, 0).unwrap();
                let end = frame.end();
                self.port.release(conn, frame);
                done += 1;
                if done.is_multiple_of(256) {
                    self.port.return_credit(conn, Credit { bytes: end, arrivals: 0 });
                }
            }
            self.port.flush();
        }
    }

    fn echo_client(&mut self, count: u64, window: u64) {
        let payload = [7; PAYLOAD];
        let (mut sent, mut done) = (0, 0);
        while done < count {
            while sent < count && sent - done < window {
                self.commit(&payload, 0);
                sent += 1;
            }
            self.port.flush();
            for event in testing::poll(&mut self.port, Time(0), &mut self.batch) {
                let Came::Frame { conn, frame } = event else { panic!("{event:?}") };
                let end = frame.end();
                assert_eq!(frame[0], 7);
                self.port.release(conn, frame);
                done += 1;
                if done.is_multiple_of(256) {
                    self.port.return_credit(conn, Credit { bytes: end, arrivals: 0 });
                }
            }
        }
    }
}

fn server_side(mut listener: ShmListener) {
    let port = Shm.open_port(&config(RING)).unwrap();
    let gate = port.gate();
    let link = listener.accept(SECOND.saturating_mul(30)).unwrap().unwrap().accept(&gate).unwrap();
    let mut side = Side::adopt(port, link);
    side.opened();
    let link = listener.accept(SECOND.saturating_mul(30)).unwrap().unwrap().accept(&gate).unwrap();
    // The grant, read by hand.
    while !readable(&link.end.socket, SECOND) {}
    let fd = socket::receive(&link.end.socket).unwrap().fd.unwrap();
    let peer = Segment::attach(fd.as_fd(), RING).unwrap();
    let mut bare = Bare::new(link, Some(peer));
    for _ in 0..SLICES {
        bare.server(ECHOES);
        side.echo_server(ECHOES);
        bare.server(ECHOES);
        side.echo_server(ECHOES);
    }
}

#[test]
#[ignore = "the other process of another test"]
fn child_measured() {
    let Some(path) = role() else { return };
    pin(1);
    server_side(listen(&Address::Shm { path: path.into() }));
}

#[test]
#[ignore = "a measurement, for a release build and a quiet machine"]
fn measure_echo() {
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let mut child = again("shm::tests::measure::child_measured", path.to_str().unwrap());
    pin(0);
    let mut side = kill::connect_when_there(&address, RING);
    let gate = side.port.gate();
    let link = connect(&address, &gate).unwrap().poll(30 * SECOND).unwrap().unwrap();
    let mut bare = Bare::new(link, None);
    let mut times: [Vec<f64>; 4] = Default::default();
    for _ in 0..SLICES {
        let mut timed = |index: usize, run: &mut dyn FnMut()| {
            let started = Instant::now();
            run();
            times[index].push(started.elapsed().as_nanos() as f64 / ECHOES as f64);
        };
        timed(0, &mut || bare.client(ECHOES));
        timed(1, &mut || side.echo_client(ECHOES, 1));
        timed(2, &mut || bare.window_client(ECHOES));
        timed(3, &mut || side.echo_client(ECHOES, WINDOW));
    }
    assert!(child.wait().unwrap().success());
    let parts = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        (times[times.len() / 50], times[times.len() / 10], times[times.len() / 2])
    };
    println!("{PAYLOAD} B echo, ns: 2 %, 10 % and median of {SLICES} slices of {ECHOES}");
    let mut tenths = [0.0; 4];
    for (index, name) in
        ["bare, window 1", "port, window 1", "bare, window 32", "port, window 32"].iter().enumerate()
    {
        let (least, tenth, middle) = parts(&mut times[index]);
        tenths[index] = tenth;
        println!("{name:16} {least:7.1} {tenth:7.1} {middle:7.1}");
    }
    println!("port/bare {:.2}, window 32 {:.2}", tenths[1] / tenths[0], tenths[3] / tenths[2]);
    // An empty poll.
    let started = Instant::now();
    for _ in 0..1_000_000 {
        side.port.poll(Time(0), &mut side.batch);
    }
    println!("an empty poll {:.2} ns", started.elapsed().as_nanos() as f64 / 1e6);
}

fn send_and_receive(client: &mut Side, server: &mut Side, batch: usize) {
    for _ in 0..batch {
        client.commit(&[7; PAYLOAD], 0);
    }
    client.port.flush();
    let (mut end, mut received) = (Position(0), 0);
    while received < batch {
        for event in testing::poll(&mut server.port, Time(0), &mut server.batch) {
            let Came::Frame { conn, frame } = event else { unreachable!() };
            end = frame.end();
            received += 1;
            server.port.release(conn, frame);
        }
    }
    server.port.return_credit(server.conn, Credit { bytes: end, arrivals: 0 });
}

/// What the port costs without anybody else: both ends on this thread, warm in its cache.
#[test]
#[ignore = "a measurement, for a release build and a quiet machine"]
fn measure_cost() {
    println!("Event {} B, RxFrame {} B", size_of::<crate::Event>(), size_of::<RxFrame>());
    let (mut server, mut client) = pair(RING);
    for batch in [1, 8, 32] {
        let mut slices = Vec::new();
        for _ in 0..3000 {
            let started = Instant::now();
            for _ in 0..512 / batch {
                send_and_receive(&mut client, &mut server, batch);
            }
            slices.push(started.elapsed().as_nanos() as f64 / 512.0);
        }
        slices.sort_by(f64::total_cmp);
        let (least, median) = (slices[30], slices[1500]);
        println!(
            "batches of {batch:2}: {least:5.1} ns a frame, sent, received and given back ({median:.1} median)"
        );
    }
    let started = Instant::now();
    for _ in 0..1_000_000 {
        server.port.poll(Time(0), &mut server.batch);
    }
    println!("an empty poll {:.2} ns", started.elapsed().as_nanos() as f64 / 1e6);
    let started = Instant::now();
    for _ in 0..1_000_000 {
        std::hint::black_box(Instant::now());
    }
    println!("a clock reading {:.2} ns", started.elapsed().as_nanos() as f64 / 1e6);
}
