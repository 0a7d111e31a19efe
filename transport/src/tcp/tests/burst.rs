//! Many clients of one host at once.

use super::*;
use crate::{Key, strangers::PLACES_OF_ONE, tcp::connecting::TcpConnecting};

/// Clients of `listener` whose hellos are out.
pub(super) fn greeting(
    address: &Address,
    port: &TcpPort,
    options: &ConnectOptions,
    count: usize,
) -> Vec<TcpConnecting> {
    let until = Instant::now() + Duration::from_secs(60);
    let connect = |_| {
        let mut connecting = Tcp.connect(address, &port.gate(), options).unwrap();
        // A busy host may connect the socket only later.
        while connecting.step_name() == "connecting its socket" {
            assert!(connecting.poll(Duration::from_millis(1)).is_none(), "nobody has answered");
            assert!(Instant::now() < until, "the socket is not connected");
        }
        connecting
    };
    (0..count).map(connect).collect()
}

/// How a listener and its clients are given time.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn patient() -> ListenOptions {
    ListenOptions { backlog: 256, handshake_timeout: PATIENCE, ..ListenOptions::default() }
}

/// So many clients of one host connect before `listener` looks: it lets all of them in.
pub(super) fn all_are_let_in(listener: &mut TcpListener, options: &ConnectOptions, count: usize) {
    assert!(count > PLACES_OF_ONE);
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(4096)).unwrap());
    let options = ConnectOptions { connect_timeout: PATIENCE, ..options.clone() };
    let mut clients = greeting(&listener.address(), &client, &options, count);
    let until = Instant::now() + PATIENCE;
    let (mut accepted, mut connected) = (Vec::new(), Vec::new());
    while connected.len() < count {
        // The listener is faster than its clients: before one goes on, all of the backlog could have been accepted.
        for _ in 0..8 {
            while let Some(incoming) = listener.accept(Duration::from_millis(1)).unwrap() {
                accepted.push(incoming.accept(&server.gate()).unwrap());
            }
        }
        assert_eq!(listener.rejections().count(), 0, "after {} were let in", accepted.len());
        clients.retain_mut(|client| {
            let outcome = client.poll(Duration::ZERO);
            let waits = outcome.is_none();
            connected.extend(outcome.map(Result::unwrap));
            waits
        });
        assert!(Instant::now() < until, "{} of {count} were let in", accepted.len());
    }
}

/// A server was away for a moment, and more clients of one host than have a place each wait with their hellos: a hello that is read
/// takes no place.
#[test]
fn clients_of_one_host_that_have_said_hello_are_all_let_in() {
    all_are_let_in(&mut listen(&patient()), &ConnectOptions::default(), 100);
}

/// A proof takes another message each way, and its client a place meanwhile: the others wait in the backlog.
#[test]
fn clients_of_one_host_that_prove_a_key_are_all_let_in() {
    let key = Key::new(&[7; 32]).unwrap();
    let mut listener = listen(&ListenOptions { keys: vec![key.clone()], ..patient() });
    all_are_let_in(&mut listener, &ConnectOptions { key: Some(key), ..ConnectOptions::default() }, 200);
}

/// A client of another host has its turn although one has taken all of its places, and more, and says nothing.
#[test]
fn a_silent_host_keeps_no_client_of_another_host_out() {
    let mut listener = listen(&patient());
    let _silent = [(); 2 * PLACES_OF_ONE].map(|()| dial(&listener));
    let Address::Tcp { port, .. } = listener.address() else { panic!() };
    let other = crate::tcp::socket::open(&"127.0.0.2:0".parse().unwrap()).unwrap();
    rustix::net::bind(&other, &std::net::SocketAddrV4::new([127, 0, 0, 2].into(), 0)).unwrap();
    let to: std::net::SocketAddr = ([127, 0, 0, 1], port).into();
    assert!(matches!(crate::kernel::connect(&other, &to), Ok(()) | Err(rustix::io::Errno::INPROGRESS)));
    let mut other = TcpStream::from(other);
    other.set_nonblocking(false).unwrap();
    other.write_all(&hello(&config(4096), 1).encode()).unwrap();
    let started = Instant::now();
    let incoming = listener.accept(PATIENCE).unwrap().expect("a client of another host");
    assert!(incoming.peer().contains("127.0.0.2"), "{}", incoming.peer());
    println!("let in after {:?}", started.elapsed());
    // Each of the others beyond its places made one go that had its chance.
    assert_eq!(listener.rejections().count(), PLACES_OF_ONE as u64);
}
