//! A peer that takes no turn, and so frees nothing that it is sent, while it makes calls and cancels them: nothing piles up.

use std::{sync::Arc, time::Duration};

use gimmal_engine::{
    Head, Inline,
    transport::{
        Address, ConnectOptions, Connecting as _, Incoming as _, Instant, ListenOptions, Listener as _,
        Provider as _,
    },
};

use super::{
    Conn, Node,
    world::{config, node},
};
use crate::{
    Cx, Stream,
    config::Config,
    frame::{Flags, Kind, RequestHead, ResponseHead},
    id::CallId,
    provider::Any,
    stats::Counters,
};

#[gimmal_macros::service(crate = crate)]
trait Hoard {
    async fn now(&self, cx: &Cx, number: u64) -> u64;
    /// Reads nothing.
    async fn take(&self, cx: &Cx, items: Stream<Vec<u8>>);
}

struct Hoarder;

impl Hoard for Hoarder {
    async fn now(&self, _: &Cx, number: u64) -> u64 {
        number
    }

    async fn take(&self, _: &Cx, items: Stream<Vec<u8>>) {
        let _items = items;
        std::future::pending().await
    }
}

const REQUEST: u16 = Kind::Request.with(Flags::NONE);
const CANCEL: u16 = Kind::Cancel.with(Flags::NONE);
const BULK: u16 = Kind::Item.with(Flags::BULK);
const NOW: usize = 0;
const TAKE: usize = 1;

/// A server, and a peer of it that takes no turn.
struct Pair {
    server: Inline<Any, Node>,
    client: Inline<Any, Node>,
    conn: gimmal_engine::transport::ConnId,
    served: Arc<Counters>,
    /// Of the call that was made last.
    slot: u32,
    generation: u32,
}

/// Calls `turn` until it is done.
fn until<T>(what: &str, mut turn: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(done) = turn() {
            return done;
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
    }
}

impl Pair {
    fn new(url: &str, ring_bytes: u32) -> Self {
        let mut config = Config { stream_window: 64 << 10, ..config(8) };
        config.engine.port.ring_bytes = ring_bytes;
        config.engine.heartbeat_ms = 600_000;
        let (any, address) = (Any::new(), url.parse::<Address>().unwrap());
        let (mut server, served) = node(&any, &config, vec![Arc::new(serve_hoard(Hoarder))]);
        let (mut client, _) = node(&any, &config, Vec::new());
        let mut listener = any.listen(&address, &ListenOptions::default()).unwrap();
        let gate = client.handle().gate().clone();
        let mut connecting = any.connect(&listener.address(), &gate, &ConnectOptions::default()).unwrap();
        let conn = until("they connect", || {
            if let Some(incoming) = listener.accept(Duration::ZERO).unwrap() {
                server.adopt(incoming.accept(server.handle().gate()).unwrap());
            }
            if let Some(link) = connecting.poll(Duration::ZERO) {
                client.adopt(link.unwrap());
            }
            server.turn();
            client.turn();
            let served = server.app_mut().conns.iter_mut().next().is_some();
            client.app_mut().conns.iter_mut().next().map(|(conn, _)| conn).filter(|_| served)
        });
        Self { server, client, conn, served, slot: 0, generation: 0 }
    }

    /// The server's side of it.
    fn conn(&mut self) -> &mut Conn {
        self.server.app_mut().conns.iter_mut().next().expect("it is not cut off").1
    }

    fn send(&mut self, kind: u16, body: &[u8]) {
        let Self { server, client, conn, .. } = self;
        let head = Head { kind, aux: CallId { slot: self.slot, generation: self.generation }.aux() };
        until("the server reads", || {
            let fill = |out: &mut [u8]| {
                out[..body.len()].copy_from_slice(body);
                Some(body.len())
            };
            let sent = client.with(|_, io| io.send(*conn, head, body.len(), fill));
            server.turn();
            sent.ok()
        });
    }

    /// Offers items of a byte, as soon as there is credit.
    fn offer(&mut self, items: usize) {
        let slot = self.slot;
        until("the call has credit", || {
            self.server.turn();
            let lanes = self.conn().serving.slot(slot)?.lanes.as_ref();
            lanes.filter(|lanes| lanes.is_granted()).map(|_| ())
        });
        let Self { server, client, conn, .. } = self;
        let head = Head { kind: BULK, aux: CallId { slot, generation: self.generation }.aux() };
        for _ in 0..items {
            let mut loan = Some(client.handle().allocate(*conn, 1).unwrap());
            until("the server reads", || {
                let lent = loan.take()?;
                let sent = client.with(|_, io| io.send_with_loan(*conn, head, lent, 0, |_| Some(0)));
                server.turn();
                sent.map_err(|refused| loan = Some(refused.loan)).ok()
            });
        }
    }

    /// Makes a call.
    fn request(&mut self, method: usize, arguments: &[u8]) {
        self.request_as(method, __hoard_methods()[method].signature_hash, arguments);
    }

    fn request_as(&mut self, method: usize, signature: u32, arguments: &[u8]) {
        self.generation += 1;
        let method = __hoard_methods()[method].id;
        let head = RequestHead { method, signature, deadline_us: 0, window: 0 };
        self.send(REQUEST, &[&head.encode()[..], arguments].concat());
    }

    fn cancel(&mut self) {
        self.send(CANCEL, &[]);
    }
}

fn mem(name: &str) -> String {
    format!("mem://hoard-{name}-{}", std::process::id())
}

#[test]
fn answers_that_are_cancelled_before_they_leave_do_not_pile_up() {
    let mut pair = Pair::new(&mem("answers"), 16 << 10);
    for _ in 0..5000 {
        pair.request(NOW, &[1]);
        pair.cancel();
    }
    let waiting = pair.conn().serving.answers_waiting();
    assert!((1..200).contains(&waiting), "{waiting} answers wait");
}

#[test]
fn calls_that_are_cancelled_before_their_credit_leaves_do_not_pile_up() {
    let mut pair = Pair::new(&mem("credit"), 16 << 10);
    for _ in 0..5000 {
        pair.request(TAKE, &[]);
        pair.cancel();
    }
    let behind = pair.conn().behind.len();
    assert!((1..200).contains(&behind), "{behind} calls wait");
}

#[test]
fn refusals_wait_without_the_types_that_they_tell_of() {
    let mut pair = Pair::new(&mem("types"), 16 << 10);
    for _ in 0..2000 {
        pair.request_as(NOW, 1, &[1]);
    }
    let (_, head, text) = pair.conn().serving.first_refusal().expect("some wait");
    assert_eq!((head, &text[..]), (&ResponseHead::Mismatch, "now(u64) -> u64 [postcard]"));
}

/// The peer leaves every READ unanswered, so that the first call's items wait for room and are read when they come.
#[test]
fn items_that_nobody_reads_any_more_do_not_pile_up() {
    let mut pair = Pair::new("tcp://127.0.0.1:0", 1 << 20);
    pair.slot = 2;
    pair.request(TAKE, &[]);
    pair.offer(400);
    until("its items wait", || {
        pair.server.turn();
        (pair.conn().bringing.waiting.len() > 100).then_some(())
    });
    let first = pair.conn().bringing.waiting.len();
    pair.slot = 3;
    for _ in 0..20 {
        pair.request(TAKE, &[]);
        pair.offer(100);
        pair.cancel();
    }
    until("every call has ended", || {
        pair.server.turn();
        (pair.served.serving.get() == 1).then_some(())
    });
    let waiting = pair.conn().bringing.waiting.len();
    assert!(
        (first..first + 500).contains(&waiting),
        "{waiting} items wait, {first} of them of the first call"
    );
}
