//! Many clients of one host at once.

use super::*;
use crate::{strangers::PLACES_OF_ONE, tcp::connecting::TcpConnecting};

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

/// A server was away for a moment, and more clients of one host than have a place each wait with their hellos: a hello that is read
/// takes no place.
#[test]
fn clients_of_one_host_that_have_said_hello_are_all_let_in() {
    const CLIENTS: usize = 100;
    const { assert!(CLIENTS > PLACES_OF_ONE) };
    let patience = Duration::from_secs(60);
    let options = ListenOptions { backlog: 256, handshake_timeout: patience, ..ListenOptions::default() };
    let mut listener = listen(&options);
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(4096)).unwrap());
    let options = ConnectOptions { connect_timeout: patience, ..ConnectOptions::default() };
    let clients = greeting(&listener.address(), &client, &options, CLIENTS);
    let until = Instant::now() + patience;
    let mut links = Vec::new();
    while links.len() < CLIENTS {
        if let Some(incoming) = listener.accept(Duration::from_millis(10)).unwrap() {
            links.push(incoming.accept(&server.gate()).unwrap());
        }
        assert_eq!(listener.rejections().count(), 0, "after {} were let in", links.len());
        assert!(Instant::now() < until, "{} of {CLIENTS} were let in", links.len());
    }
    for mut client in clients {
        client.poll(patience).expect("the server answered").unwrap();
    }
}
