//! Many clients of one host at once.

use super::*;
use crate::{ConnectError, Key, RejectReason, strangers::PLACES_OF_ONE, tcp::connecting::TcpConnecting};

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

/// How long a listener and its clients wait: a busy machine is not to end a handshake.
const PATIENCE: Duration = Duration::from_secs(60);

/// Clients have their places for longer than a test takes.
pub(super) fn patient() -> ListenOptions {
    ListenOptions { backlog: 256, handshake_timeout: PATIENCE, ..ListenOptions::default() }
}

/// So many clients of one host say hello before `listener` looks, and are let in or refused; why they were refused.
fn burst(
    listener: &mut TcpListener,
    options: &ConnectOptions,
    count: usize,
) -> (Vec<TcpLink>, Vec<ConnectError>) {
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(4096)).unwrap());
    let options = ConnectOptions { connect_timeout: PATIENCE, ..options.clone() };
    let mut clients = greeting(&listener.address(), &client, &options, count);
    let (mut accepted, mut connected, mut refused) = (Vec::new(), Vec::new(), Vec::new());
    let until = Instant::now() + PATIENCE;
    while !clients.is_empty() {
        if let Some(incoming) = listener.accept(Duration::from_millis(1)).unwrap() {
            accepted.push(incoming.accept(&server.gate()).unwrap());
        }
        clients.retain_mut(|client| match client.poll(Duration::ZERO) {
            None => true,
            Some(Ok(link)) => {
                connected.push(link);
                false
            }
            Some(Err(error)) => {
                refused.push(error);
                false
            }
        });
        assert!(Instant::now() < until, "{} of {count} were let in", accepted.len());
    }
    (connected, refused)
}

/// A server was away for a moment, and more clients of one host than have a place each wait with their hellos: a hello that is read
/// takes no place.
#[test]
fn clients_of_one_host_that_have_said_hello_are_all_let_in() {
    const CLIENTS: usize = 100;
    const { assert!(CLIENTS > PLACES_OF_ONE) };
    let mut listener = listen(&patient());
    let (connected, refused) = burst(&mut listener, &ConnectOptions::default(), CLIENTS);
    assert_eq!((connected.len(), refused.len(), listener.rejections().count()), (CLIENTS, 0, 0));
}

/// So many clients of one host connect whose handshakes take several messages: those that find no place are told so, and have one
/// when they try again.
pub(super) fn those_beyond_the_places_try_again(listener: &mut TcpListener, options: &ConnectOptions) {
    const CLIENTS: usize = 100;
    // Those that are refused in a round have places in the next one.
    const { assert!(CLIENTS > PLACES_OF_ONE && CLIENTS <= 2 * PLACES_OF_ONE) };
    let (connected, refused) = burst(listener, options, CLIENTS);
    for error in &refused {
        let is_typed = matches!(error, ConnectError::Rejected { reason: RejectReason::Overloaded, .. });
        assert!(is_typed, "{error}");
    }
    let rejections = listener.rejections();
    assert_eq!(rejections.count_of(RejectReason::Overloaded), refused.len() as u64);
    assert_eq!((rejections.count(), connected.len() + refused.len()), (refused.len() as u64, CLIENTS));
    assert!(refused.len() <= CLIENTS - PLACES_OF_ONE, "{} were refused", refused.len());
    let (again, refused) = burst(listener, options, refused.len());
    assert_eq!((connected.len() + again.len(), refused.len()), (CLIENTS, 0));
}

#[test]
fn clients_of_one_host_that_prove_a_key_are_let_in_when_they_try_again() {
    let key = Key::new(&[7; 32]).unwrap();
    let mut listener = listen(&ListenOptions { keys: vec![key.clone()], ..patient() });
    let options = ConnectOptions { key: Some(key), ..ConnectOptions::default() };
    those_beyond_the_places_try_again(&mut listener, &options);
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
    let incoming = listener.accept(PATIENCE).unwrap().expect("a client of another host");
    assert!(incoming.peer().contains("127.0.0.2"), "{}", incoming.peer());
    // Of the others each beyond the places was refused, or made one go that had its chance.
    assert_eq!(listener.rejections().count(), PLACES_OF_ONE as u64);
}
