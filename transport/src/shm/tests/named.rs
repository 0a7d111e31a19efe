//! Names within this process: what conformance does not show.

use super::*;
use crate::{Allow, ListenError, RejectReason};

fn named(name: &str) -> Address {
    Address::Mem { name: format!("named-{name}") }
}

#[test]
fn a_name_has_one_listener_and_is_free_when_it_goes() {
    let address = named("one");
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let nobody =
        |error| matches!(error, ConnectError::NobodyListens { address } if address == "mem://named-one");
    assert!(nobody(connect(&address, &gate).unwrap_err()));
    let mut listener = listen(&address);
    let second = Shm.listen(&address, &patient_listen()).unwrap_err();
    assert_eq!(second, ListenError::InUse { address: address.to_string(), by: "this process".to_owned() });
    links(&mut listener, &gate, &gate);
    let mut waiting = connect(&address, &gate).unwrap();
    drop(listener);
    assert!(nobody(waiting.poll(30 * SECOND).unwrap().unwrap_err()), "a client that was not accepted");
    assert!(nobody(connect(&address, &gate).unwrap_err()));
    links(&mut listen(&address), &gate, &gate);
}

#[test]
fn a_full_backlog_of_a_name_is_waited_for() {
    let address = named("full");
    let options = ListenOptions { backlog: 2, ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let mut clients: Vec<_> = (0..5).map(|_| connect(&address, &gate).unwrap()).collect();
    assert!(clients[4].poll(Duration::from_millis(5)).is_none(), "it has no place yet");
    let mut accepted = Vec::new();
    while accepted.len() < clients.len() {
        for client in &mut clients {
            let _ = client.poll(Duration::ZERO);
        }
        accepted.extend(listener.accept(Duration::from_millis(5)).unwrap());
    }
    assert!(listener.accept(Duration::ZERO).unwrap().is_none());
}

/// An allow-list is about other processes: users' tests run with the configuration that their servers have.
#[test]
fn no_list_keeps_a_process_from_its_own_names() {
    let allow = Allow::default().uid(1);
    let address = named("list");
    let options = ListenOptions { allow: allow.clone(), ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let options = ConnectOptions { allow, ..patient_connect() };
    let mut connecting = Shm.connect(&address, &gate, &options).unwrap();
    listener.accept(30 * SECOND).unwrap().unwrap().reject(RejectReason::Overloaded);
    let rejected = connecting.poll(30 * SECOND).unwrap().unwrap_err();
    assert!(
        matches!(rejected, ConnectError::Rejected { reason: RejectReason::Overloaded, .. }),
        "{rejected}"
    );
}
