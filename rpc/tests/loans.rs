//! Loans that a call, or its answer, cannot take with it: each ends at once, by name, and nobody waits behind it.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use common::{address, config, sum};
use gimmal_rpc::{
    Bulk, CallError, CallOptions, Channel, Client, Code, Config, Cx, Fate, Instant, Loan, Server,
    TransportError, WithLoan,
    engine::{
        App, Head, Inline, Io, Message, RemoteBulk,
        transport::{Address, ConnId, ListenOptions, Port, Provider, any::Any},
    },
    frame::{BARE_RESPONSE, Flags, Kind, RequestHead, ResponseHead},
    id::CallId,
};

#[gimmal_rpc::service(crate = gimmal_rpc, codec = common::Chosen)]
trait Lender {
    /// Answers with the text it was given.
    async fn echo(&self, cx: &Cx, text: String) -> String;
    /// The sum of what is lent.
    async fn put(&self, cx: &Cx, name: Vec<u8>, bytes: Bulk) -> u64;
    /// So many bytes, and as many lent beside them.
    async fn beside(&self, cx: &Cx, bytes: u32, lent: u32) -> WithLoan<Vec<u8>>;
    /// What the test gave the server to lend.
    async fn given(&self, cx: &Cx) -> WithLoan<()>;
    /// 128 bytes.
    async fn lend(&self, cx: &Cx) -> WithLoan<()>;
    /// Nothing.
    async fn keep(&self, cx: &Cx, bytes: Bulk);
    /// Nothing, later.
    async fn later(&self, cx: &Cx, ms: u64);
}

#[derive(Default, Clone)]
struct Here(Arc<Mutex<Option<Loan>>>);

impl Lender for Here {
    async fn echo(&self, _: &Cx, text: String) -> String {
        text
    }

    async fn put(&self, _: &Cx, _: Vec<u8>, bytes: Bulk) -> u64 {
        sum(&bytes)
    }

    async fn beside(&self, cx: &Cx, bytes: u32, lent: u32) -> WithLoan<Vec<u8>> {
        let mut loan = cx.loan(lent as usize).unwrap();
        loan.fill(3);
        WithLoan::new(vec![7; bytes as usize], loan)
    }

    async fn given(&self, _: &Cx) -> WithLoan<()> {
        WithLoan::new((), self.0.lock().unwrap().take().unwrap())
    }

    async fn lend(&self, cx: &Cx) -> WithLoan<()> {
        WithLoan::new((), cx.loan(128).unwrap())
    }

    async fn keep(&self, _: &Cx, _: Bulk) {}

    async fn later(&self, _: &Cx, ms: u64) {
        common::sleep(ms).await;
    }
}

fn serve(scheme: &str) -> (Server, Here) {
    let here = Here::default();
    let builder = Server::builder().service(serve_lender(here.clone())).config(config());
    (builder.listen(&address(scheme, "lender")).unwrap(), here)
}

fn client(server: &Server, config: Config) -> LenderClient<Client> {
    LenderClient::new(Client::builder().config(config).connect(&server.address().to_string()).unwrap())
}

/// Far above what any call here takes: one that ends then was stuck.
fn patience() -> CallOptions {
    CallOptions::default().timeout(Duration::from_secs(20))
}

fn transport_error<T: std::fmt::Debug>(ended: Result<T, CallError>) -> TransportError {
    match ended {
        Err(CallError::Transport(error)) => error,
        other => panic!("{other:?}"),
    }
}

for_each_scheme! {
    a_value_that_no_message_holds_beside_a_loan_is_refused_at_once
    an_answer_that_can_never_leave_holds_up_no_other
    arguments_beside_a_loan_leave_or_are_refused_at_once
    arguments_beside_a_loan_are_refused_at_once_behind_a_full_window
    a_loan_of_another_client_ends_its_call_alone
    an_answer_with_a_loan_of_another_connection_is_a_status
}

fn a_value_that_no_message_holds_beside_a_loan_is_refused_at_once(scheme: &str) {
    let (server, _) = serve(scheme);
    let client = client(&server, config()).with_options(patience());
    let frame = client.channel().negotiated().unwrap().frame_bytes_max;
    for bytes in [frame, 2 * frame] {
        let error = client.beside(bytes, 10).wait().unwrap_err();
        let status = error.status().expect("a status");
        assert_eq!((status.code(), status.fate()), (Code::ResourceExhausted, Fate::Ran), "{status}");
    }
    // A frame less its word, the heads of engine, offer and answer, and a length.
    let fits = frame - 8 - 8 - 32 - 8 - 3;
    let pulled = client.beside(fits, 10).wait().unwrap();
    assert_eq!((pulled.value.len(), &pulled[..]), (fits as usize, &[3; 10][..]));
    for more in 1..40 {
        let code = client.beside(fits + more, 10).wait().unwrap_err().status().map(|status| status.code());
        assert_eq!(code, Some(Code::ResourceExhausted), "{more} more");
    }
}

fn an_answer_that_can_never_leave_holds_up_no_other(scheme: &str) {
    let (server, _) = serve(scheme);
    let client = client(&server, config());
    let stuck = client.clone().with_options(CallOptions::default().timeout(None)).beside(100_000, 10);
    let others = client.clone().with_options(patience());
    let text = "x".repeat(client.channel().negotiated().unwrap().frame_bytes_max as usize - 100);
    for _ in 0..5 {
        let calls: Vec<_> = (0..40).map(|_| others.echo(text.clone())).collect();
        calls.into_iter().for_each(|call| assert_eq!(call.wait().unwrap().len(), text.len()));
    }
    assert_eq!(stuck.wait().unwrap_err().status().map(|status| status.code()), Some(Code::ResourceExhausted));
}

/// Arguments so many bytes below what a message without a loan holds.
fn name_below(client: &LenderClient<Client>, less: usize) -> Vec<u8> {
    let frame = client.channel().negotiated().unwrap().frame_bytes_max as usize;
    // Its word, the heads of engine and request, and a length.
    vec![1; frame - 8 - 8 - 16 - 3 - less]
}

/// Where a loan takes the place of so many bytes.
const OFFER_BYTES: usize = 32;

fn arguments_beside_a_loan_leave_or_are_refused_at_once(scheme: &str) {
    let (server, _) = serve(scheme);
    let inline = LenderClient::new(
        Client::builder().config(config()).connect_local(&server.address().to_string()).unwrap(),
    );
    let client = client(&server, config()).with_options(patience());
    check_arguments(&client, |less| name_below(&client, less));
    check_arguments(&inline.with_options(patience()), |less| name_below(&client, less));
}

fn check_arguments<C: Channel>(client: &LenderClient<C>, name_below: impl Fn(usize) -> Vec<u8>) {
    for less in [0, 1, 2, 15, 16, 30, 31, 32, 33, 40] {
        let mut loan = client.channel().loan(10).unwrap();
        loan.fill(5);
        let call = client.put(name_below(less), loan);
        assert_eq!(client.echo("beside".to_owned()).wait().unwrap(), "beside", "held up by {less}");
        let ended = call.wait();
        if less < OFFER_BYTES {
            let error = transport_error(ended);
            assert!(matches!(error, TransportError::TooLarge { .. }), "{less} below: {error}");
            assert_eq!(error.fate(), Fate::NotRun);
        } else {
            assert_eq!(ended.unwrap(), 50, "{less} below");
        }
    }
}

fn arguments_beside_a_loan_are_refused_at_once_behind_a_full_window(scheme: &str) {
    let (server, _) = serve(scheme);
    let client = client(&server, Config { window: 1, ..config() }).with_options(patience());
    let first = client.later(300);
    let loan = client.channel().loan(10).unwrap();
    let refused = client.put(name_below(&client, 0), loan);
    let loan = client.channel().loan(10).unwrap();
    let waits = client.put(name_below(&client, OFFER_BYTES), loan);
    assert!(matches!(transport_error(refused.wait()), TransportError::TooLarge { .. }));
    first.wait().unwrap();
    waits.wait().unwrap();
}

fn a_loan_of_another_client_ends_its_call_alone(scheme: &str) {
    let (server, _) = serve(scheme);
    let other = client(&server, config());
    let inline = LenderClient::new(
        Client::builder().config(config()).connect_local(&server.address().to_string()).unwrap(),
    );
    check_foreign(&client(&server, config()).with_options(patience()), &other);
    check_foreign(&inline.with_options(patience()), &other);
    assert_eq!(other.echo("other".to_owned()).wait().unwrap(), "other");
}

fn check_foreign<C: Channel>(client: &LenderClient<C>, other: &LenderClient<Client>) {
    for bytes in [1, 100, 1 << 20] {
        let put = client.put(vec![1], other.channel().loan(bytes).unwrap());
        assert_eq!(client.echo("beside".to_owned()).wait().unwrap(), "beside");
        let error = transport_error(put.wait());
        assert_eq!((&error, error.fate()), (&TransportError::ForeignLoan, Fate::NotRun));
    }
    let mut own = client.channel().loan(10).unwrap();
    own.fill(1);
    assert_eq!(client.put(vec![1], own).wait().unwrap(), 10);
}

fn an_answer_with_a_loan_of_another_connection_is_a_status(scheme: &str) {
    let (server, here) = serve(scheme);
    let client = client(&server, config()).with_options(patience());
    for _ in 0..3 {
        *here.0.lock().unwrap() = Some(client.channel().loan(100).unwrap());
        let given = client.given();
        assert_eq!(client.echo("beside".to_owned()).wait().unwrap(), "beside");
        let error = given.wait().unwrap_err();
        let status = error.status().expect("a status");
        assert_eq!((status.code(), status.fate()), (Code::FailedPrecondition, Fate::Ran), "{status}");
    }
    assert_eq!(client.beside(1, 10).wait().unwrap().value, [7]);
}

/// One end that speaks the engine's protocol, and keeps every loan that it is offered until it is told to drop one.
#[derive(Default)]
struct Keeper {
    kept: VecDeque<RemoteBulk>,
    /// Requests that wait for room for their answers.
    unanswered: VecDeque<u64>,
    answers: Vec<(u64, bool, ResponseHead)>,
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keeper({} kept)", self.kept.len())
    }
}

impl Keeper {
    fn answer<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        while let Some(&aux) = self.unanswered.front() {
            if io.send(conn, Head { kind: BARE_RESPONSE, aux }, 0, |_| Some(0)).is_err() {
                return;
            }
            self.unanswered.pop_front();
        }
    }
}

impl App for Keeper {
    type Command = ();

    fn message<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId, message: Message<'_>) {
        let (head, has_loan) = (message.head, message.bulk.is_some());
        self.kept.extend(message.bulk);
        match Kind::parse(head.kind).unwrap() {
            (Kind::Response, Flags::NONE) => {
                self.answers.push((head.aux, has_loan, ResponseHead::parse(message.body).unwrap().0));
            }
            (Kind::Request, Flags::NONE) => {
                if !has_loan {
                    io.decline(conn, self.kept.pop_front().unwrap());
                }
                self.unanswered.push_back(head.aux);
                self.answer(io, conn);
            }
            _ => {}
        }
    }

    fn writable<P: Port>(&mut self, io: &mut Io<'_, P>, conn: ConnId) {
        self.answer(io, conn);
    }
}

const LOANS_MAX: u64 = 65_536;
/// Calls that are made together.
const AT_ONCE: u32 = 256;

#[test]
fn a_loan_beyond_the_limit_is_refused_until_the_server_drops_one() {
    let plan = config().engine.validate().unwrap();
    let provider = Any::new();
    let listener =
        provider.listen(&address("shm", "keeper").parse().unwrap(), &ListenOptions::default()).unwrap();
    let url = gimmal_rpc::engine::transport::Listener::address(&listener).to_string();
    let (done, is_done) = mpsc::channel::<()>();
    let server = std::thread::spawn(move || {
        let mut inline = Inline::new(&provider, &plan, Keeper::default()).unwrap();
        let _acceptor = gimmal_rpc::engine::Acceptor::spawn(listener, vec![inline.handle()]).unwrap();
        while is_done.try_recv() != Err(mpsc::TryRecvError::Disconnected) {
            inline.idle(Duration::from_millis(1));
        }
    });
    let config = Config { window: AT_ONCE as usize, ..config() };
    let client = LenderClient::new(Client::builder().config(config).connect(&url).unwrap());
    for _ in 0..LOANS_MAX / u64::from(AT_ONCE) {
        let calls: Vec<_> = (0..AT_ONCE).map(|_| client.keep(client.channel().loan(128).unwrap())).collect();
        calls.into_iter().for_each(|call| call.wait().unwrap());
    }
    for _ in 0..3 {
        let error = transport_error(client.keep(client.channel().loan(128).unwrap()).wait());
        assert_eq!(error, TransportError::TooManyLoans { limit: 65_536 });
        assert_eq!(error.fate(), Fate::NotRun);
    }
    // Calls without a loan go on; this one makes the server drop a loan.
    client.later(0).wait().unwrap();
    client.keep(client.channel().loan(128).unwrap()).wait().unwrap();
    assert!(client.keep(client.channel().loan(128).unwrap()).wait().is_err());
    drop((client, done));
    server.join().unwrap();
}

#[test]
fn an_answer_with_a_loan_beyond_the_limit_is_a_status_until_the_client_drops_one() {
    let (server, _) = serve("shm");
    let plan = config().engine.validate().unwrap();
    let mut inline = Inline::new(&Any::new(), &plan, Keeper::default()).unwrap();
    let (conn, _) = inline.connect(&server.address().to_string().parse::<Address>().unwrap()).unwrap();
    let methods = gimmal_rpc::Service::methods(&serve_lender(Here::default()));
    let method = methods.iter().find(|method| method.name == "lend").unwrap();
    let head = RequestHead { method: method.id, signature: method.signature_hash, deadline_us: 0, window: 0 };
    let mut generation = 0;
    let mut ask = |inline: &mut Inline<Any, Keeper>, calls: u32| {
        generation += 1;
        for slot in 0..calls {
            let aux = CallId { slot, generation }.aux();
            let body = head.encode();
            let fill = |out: &mut [u8]| {
                out[..body.len()].copy_from_slice(&body);
                Some(body.len())
            };
            inline
                .with(|_, io| {
                    io.send(conn, Head { kind: Kind::Request.with(Flags::NONE), aux }, body.len(), fill)
                })
                .unwrap();
        }
        let before = inline.app().answers.len();
        let started = Instant::now();
        while inline.app().answers.len() < before + calls as usize {
            assert!(started.elapsed() < Duration::from_secs(30), "they are not answered");
            inline.idle(Duration::from_millis(1));
        }
        let (_, has_loan, outcome) = *inline.app().answers.last().unwrap();
        (has_loan, outcome)
    };
    for _ in 0..LOANS_MAX / u64::from(AT_ONCE) {
        assert_eq!(ask(&mut inline, AT_ONCE), (true, ResponseHead::Ok));
    }
    assert_eq!(inline.app().kept.len() as u64, LOANS_MAX);
    let refused = ResponseHead::Status { code: Code::ResourceExhausted, fate: Fate::Ran };
    assert_eq!(ask(&mut inline, 3), (false, refused));
    inline.with(|app, io| io.decline(conn, app.kept.pop_front().unwrap()));
    assert_eq!(ask(&mut inline, 1), (true, ResponseHead::Ok));
    assert_eq!(ask(&mut inline, 1), (false, refused));
    assert_eq!(inline.app().kept.len() as u64, LOANS_MAX);
}
