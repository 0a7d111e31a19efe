//! A client whose answer could not be sent with its descriptor is told so without one.

use super::*;
use crate::{AcceptError, RejectReason};

/// The kernel says this of too many descriptors in flight, and of too little memory.
#[test]
fn a_client_is_told_of_a_shortage_when_its_segment_is_passed() {
    for errno in [Errno::TOOMANYREFS, Errno::NOBUFS, Errno::NOMEM, Errno::AGAIN] {
        let (_folder, address) = place();
        let mut listener = listen(&address);
        let (server, client) = (Shm.open_port(&config(4096)).unwrap(), Shm.open_port(&config(4096)).unwrap());
        let mut connecting = connect(&address, &client.gate()).unwrap();
        let incoming = listener.accept(30 * SECOND).unwrap().expect("a client is there");
        socket::fail_next(errno);
        let error = incoming.accept(&server.gate()).unwrap_err();
        assert!(matches!(error, AcceptError::Port(_)), "{error}");
        let error = connecting.poll(30 * SECOND).expect("an answer").unwrap_err();
        let reason = RejectReason::Overloaded;
        assert_eq!(error, ConnectError::Rejected { address: address.to_string(), reason, data: Vec::new() });
    }
}
