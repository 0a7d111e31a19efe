//! A shared key and the allow-list, at the socket.

use super::{super::socket, skip, *};
use crate::{
    ConnectError, Key, RejectReason,
    allow::Allow,
    proof,
    testing::process::{ROLE, role},
};

fn key(byte: u8) -> Key {
    Key::new(&[byte; 32]).unwrap()
}

/// Somebody who recorded every packet of a good client: its proof is of the old challenge, and no segment is sent.
#[test]
fn a_recorded_proof_is_refused_before_any_segment() {
    let (_folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    let options = ListenOptions { keys: vec![key(1)], ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let mut hello = super::super::link::hello(&config(4096), 7);
    let recorded = proof::request(&mut hello, Some(&key(1)));
    // Through a listener of the same key, as the good client would.
    let session = proof::Session::passive(&key(1), &hello, &hello, [1; 16]);
    let old_proof = session.prove(proof::Label::ActiveGrant, &[]);
    let client = socket::open().unwrap();
    rustix::net::connect(&client, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
    socket::send(&client, &recorded).unwrap();
    assert!(listener.accept(Duration::from_millis(50)).unwrap().is_none(), "handed out before its proof");
    let packet = socket::receive(&client).unwrap();
    assert!(packet.challenge().is_some() && packet.fd.is_none());
    socket::send_proof(&client, &old_proof).unwrap();
    assert!(listener.accept(Duration::from_millis(50)).unwrap().is_none(), "handed out with an old proof");
    let packet = socket::receive(&client).unwrap();
    assert!(packet.fd.is_none(), "a segment was disclosed");
    assert_eq!(crate::hello::decode_reject(packet.bytes()), Some(RejectReason::Authentication));
    assert_eq!(
        (listener.rejections().count(), listener.rejections().last()),
        (1, Some(RejectReason::Authentication))
    );
}

/// A server that plays ours without the key learns nothing but a request.
#[test]
fn a_server_that_cannot_prove_itself_is_told_nothing() {
    for plays in 0..3 {
        let (_folder, address) = place();
        let Address::Shm { path } = &address else { panic!() };
        let server = socket::open().unwrap();
        rustix::net::bind(&server, &rustix::net::SocketAddrUnix::new(path).unwrap()).unwrap();
        rustix::net::listen(&server, 1).unwrap();
        let gate = Shm.open_port(&config(4096)).unwrap().gate();
        let options = ConnectOptions { key: Some(key(1)), ..patient_connect() };
        let mut connecting = Shm.connect(&address, &gate, &options).unwrap();
        let peer = rustix::net::accept(&server).unwrap();
        let request = socket::receive(&peer).unwrap();
        let (hello, _) = proof::admit(request.bytes(), &[key(1)]).unwrap();
        match plays {
            0 => socket::send(&peer, &hello.encode()).unwrap(),
            1 => socket::send_challenge(&peer, &[7; proof::CHALLENGE_BYTES]).unwrap(),
            _ => {
                let session = proof::Session::passive(&key(2), &hello, &hello, [1; 16]);
                socket::send_challenge(&peer, &session.challenge()).unwrap();
            }
        }
        let error = connecting.poll(30 * SECOND).expect("an outcome").unwrap_err();
        assert_eq!(error, ConnectError::Unproven { address: address.to_string() }, "server {plays}");
        assert!(
            socket::receive(&peer).is_ok_and(|packet| packet.is_end()) || socket::receive(&peer).is_err(),
            "it was told more"
        );
    }
}

#[test]
fn a_list_is_the_whole_list_on_both_sides() {
    let (_folder, address) = place();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let own = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let others = Allow::default().uid(own + 4242).gid(group + 4242);
    let options = ListenOptions { allow: others.clone(), ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let mut connecting = connect(&address, &gate).unwrap();
    assert!(listener.accept(Duration::from_millis(50)).unwrap().is_none());
    let error = connecting.poll(30 * SECOND).expect("an outcome").unwrap_err();
    assert!(
        matches!(error, ConnectError::Rejected { reason: RejectReason::NotAllowed { uid }, .. } if uid == own),
        "{error}"
    );
    assert!(error.to_string().contains(&format!("uid {own} is not on the server's allow-list")), "{error}");
    assert_eq!(listener.rejections().last(), Some(RejectReason::NotAllowed { uid: own }));
    drop(listener);
    // By its group, and the client asks too.
    let options = ListenOptions { allow: others.clone().gid(group), ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let _links = links(&mut listener, &gate, &gate);
    let options = ConnectOptions { allow: others, ..patient_connect() };
    let error = Shm.connect(&address, &gate, &options).unwrap_err();
    assert_eq!(error, ConnectError::NotAllowed { address: address.to_string(), uid: own });
}

/// A client of another user, where the list and the folder let it in.
#[test]
fn another_user_on_the_list_is_let_in() {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        return skip("only root can become another user");
    }
    let (folder, address) = place();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let options = ListenOptions { allow: Allow::default().uid(65534), ..patient_listen() };
    let mut listener = Shm.listen(&address, &options).unwrap();
    let gate = Shm.open_port(&config(4096)).unwrap().gate();
    let theirs = address.clone();
    let thread = std::thread::spawn(move || {
        let port = Shm.open_port(&config(4096)).unwrap();
        let nobody = rustix::thread::Uid::from_raw(65534);
        // This thread alone: the system call, not the C library's wrapper.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        // Its server is root's, which the default trusts.
        connect(&theirs, &port.gate())?.poll(30 * SECOND).expect("an outcome").map(drop)
    });
    let incoming = listener.accept(30 * SECOND).unwrap().expect("it is on the list");
    assert!(incoming.peer().ends_with("of uid 65534"), "{}", incoming.peer());
    let _link = incoming.accept(&gate).unwrap();
    thread.join().unwrap().unwrap();
}

#[test]
#[ignore = "the other process of another test"]
fn child_of_another_user_namespace() {
    let Some(path) = role() else { return };
    let options = ListenOptions { allow: Allow::default().uid(65534), ..patient_listen() };
    let mut listener = Shm.listen(&Address::Shm { path: path.into() }, &options).unwrap();
    assert!(listener.accept(30 * SECOND).unwrap().is_none(), "nobody is let in");
}

/// A user namespace has one number for all users that it does not map: who is on a list by that number is nobody.
#[test]
fn a_user_that_is_not_mapped_is_on_no_list() {
    use std::{os::unix::fs::PermissionsExt, process::Command};
    const INSIDE: [&str; 3] = ["--user", "--map-root-user", "--kill-child"];
    let may = Command::new("unshare").args(INSIDE).arg("true").output();
    if !rustix::process::geteuid().is_root() || !may.is_ok_and(|output| output.status.success()) {
        return skip("no user namespace, or not root");
    }
    let (folder, address) = place();
    let Address::Shm { path } = &address else { panic!() };
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut server = Command::new("unshare")
        .args(INSIDE)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "shm::tests::key::child_of_another_user_namespace", "--ignored", "--nocapture"])
        .env(ROLE, path)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let theirs = address.clone();
    let thread = std::thread::spawn(move || {
        let port = Shm.open_port(&config(4096)).unwrap();
        let user = rustix::thread::Uid::from_raw(4242);
        // This thread alone: the system call, not the C library's wrapper.
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        let until = Instant::now() + 30 * SECOND;
        loop {
            match connect(&theirs, &port.gate()) {
                Ok(mut connecting) => return connecting.poll(30 * SECOND).expect("an outcome").map(drop),
                Err(ConnectError::NobodyListens { .. } | ConnectError::Denied { .. })
                    if Instant::now() < until =>
                {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => return Err(error),
            }
        }
    });
    let error = thread.join().unwrap().unwrap_err();
    server.kill().unwrap();
    server.wait().unwrap();
    let reason = RejectReason::NotAllowed { uid: 65534 };
    assert!(matches!(&error, ConnectError::Rejected { reason: said, .. } if *said == reason), "{error}");
}
