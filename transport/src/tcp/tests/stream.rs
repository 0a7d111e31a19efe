//! Frames and records cut anywhere, each way.

use super::*;

/// Takes all frames that are there, and gives their bytes back.
fn take(side: &mut Side, frames: &mut Vec<(Vec<u8>, u32)>) {
    while let Look::Run(mut run) = side.port.next_run(Limit::Frames(64)) {
        while let Some(lent) = run.next_frame() {
            frames.push((lent.payload().to_vec(), lent.tag().0));
        }
        side.port.end_run(&mut run, false);
        let credit = Credit { bytes: run.end(), arrivals: 0 };
        side.port.return_credit(side.conn, credit);
    }
    side.port.poll(Time(1), &mut side.batch);
    let event = side.batch.drain().next();
    assert!(event.is_none(), "{event:?}");
}

/// A stream of frames with records between them, handed over in pieces of every length: each frame arrives once, in order.
#[test]
fn frames_are_received_whatever_the_pieces() {
    for piece in (1..70).chain([255, 4000, 9999]) {
        let (mut side, mut client) = open(4096);
        let (mut stream, mut sent) = (Vec::new(), Vec::new());
        for number in 0..40_u32 {
            let payload = vec![number as u8; number as usize * 7 % 300];
            stream.extend(frame(&payload, number));
            if number % 3 == 0 {
                stream.extend(Record::Credit { position: 0 }.encode());
            }
            sent.push((payload, number));
        }
        let (mut frames, mut at) = (Vec::new(), 0);
        let until = Instant::now() + Duration::from_secs(20);
        while frames.len() < sent.len() {
            // As an honest client: no more than the ring has room for.
            if at < stream.len() {
                let end = stream.len().min(at + piece);
                client.write_all(&stream[at..end]).unwrap();
                at = end;
            }
            take(&mut side, &mut frames);
            assert!(Instant::now() < until, "pieces of {piece}: {} frames", frames.len());
        }
        assert_eq!(frames, sent, "pieces of {piece}");
    }
}

/// Records cost what they are long: what lies behind many of them is moved once, not behind each.
#[test]
fn what_lies_behind_records_is_moved_once() {
    use super::super::{receive::MOVED, record::Ask};
    let (mut side, mut client) = open(64 << 10);
    let (what, body) = Ask::Pull { key: 1, at: 0, len: 8 }.encode();
    let ask = [&Record::Ask { id: 0, what }.encode()[..], &body].concat();
    let records = [ask.repeat(200), Record::Credit { position: 0 }.encode().repeat(900)].concat();
    let (frames, mut got) = ((0..8).map(|number| (vec![7; 100], number)).collect::<Vec<_>>(), Vec::new());
    let behind: Vec<u8> = frames.iter().flat_map(|(payload, number)| frame(payload, *number)).collect();
    client.write_all(&[&records[..], &behind].concat()).unwrap();
    let (before, until) = (MOVED.get(), Instant::now() + Duration::from_secs(30));
    while got.len() < frames.len() {
        take(&mut side, &mut got);
        assert!(Instant::now() < until, "{} frames", got.len());
    }
    assert_eq!(got, frames);
    // Once for each call that received, of which there are a few however the kernel cuts it.
    let moved = MOVED.get() - before;
    assert!(
        moved <= 8 * records.len() as u64,
        "{moved} bytes were moved behind {} of records",
        records.len()
    );
}

/// A peer that reads a few bytes at a time sees the frames as they were written: whatever the kernel takes of each call.
#[test]
fn frames_are_sent_whatever_the_kernel_takes() {
    let (mut side, mut client) = open(64 << 10);
    rustix::net::sockopt::set_socket_recv_buffer_size(&client, 4096).unwrap();
    client.set_nonblocking(true).unwrap();
    let (mut expected, mut got, mut number) = (Vec::new(), Vec::new(), 0_u32);
    let mut bytes = vec![0; 7000];
    let until = Instant::now() + Duration::from_secs(30);
    // A receiver of 4 KiB takes so much in some seconds.
    let volume = 256 << 10;
    while got.len() < volume {
        while expected.len() < volume {
            let payload = vec![number as u8; (number as usize * 131) % 9000];
            if side.stage(&payload, number).is_err() {
                break;
            }
            expected.extend(frame(&payload, number));
            number += 1;
        }
        side.port.flush();
        side.poll();
        let room = 1 + got.len() % bytes.len();
        if let Ok(read) = client.read(&mut bytes[..room]) {
            got.extend_from_slice(&bytes[..read]);
            // All frames that are whole are given back.
            let credit = whole(&got);
            client.write_all(&Record::Credit { position: credit }.encode()).unwrap();
        }
        assert!(Instant::now() < until, "{} of {volume} bytes", got.len());
    }
    let bytes = got.len();
    assert!(same_but_padding(&got, &expected[..bytes]), "the stream differs");
}

/// Where the last whole frame of a stream ends.
fn whole(stream: &[u8]) -> u64 {
    let mut at = 0;
    while let Some(word) = stream.get(at..at + 8) {
        let word = FrameWord::parse(u64::from_le_bytes(word.try_into().unwrap()), 1 << 20).unwrap().unwrap();
        let end = at + span(word.payload_bytes());
        if end > stream.len() {
            break;
        }
        at = end;
    }
    at as u64
}

/// A record goes on where it stopped, however many left before it while others always waited, and frames are staged meanwhile.
#[test]
fn a_record_that_left_in_part_goes_on_before_frames() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    let (mut side, _client) = open(64 << 10);
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
    sockopt::set_socket_send_buffer_size(&ours, 4096).unwrap();
    let mut wire = super::super::wire::Wire::Plain(ours);
    let out = &mut side.port.table.slots[0].live.as_mut().unwrap().out;
    let (mut said, mut staged, mut got, mut bytes) = (0_u32, 0_u32, Vec::new(), vec![0; 1 << 20]);
    let until = Instant::now() + Duration::from_secs(60);
    // Answers of every length, so that the kernel's pieces end inside them, and some always wait.
    let answer = |id: u32| Record::Data { id, bytes: id % 29 };
    for round in 0..600 {
        while out.unsent_bytes() < 20_000 {
            assert!(out.say(answer(said), &vec![1; said as usize % 29]));
            said += 1;
        }
        out.send(&mut wire).unwrap();
        if round % 7 == 0 {
            out.place(8).unwrap().copy_from_slice(&[2; 8]);
            out.commit(8, Tag(staged));
            out.flush();
            staged += 1;
        }
        if let Ok(count) = rustix::io::read(&theirs, &mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
    }
    while !out.is_empty() {
        assert!(Instant::now() < until, "not all leaves");
        out.send(&mut wire).unwrap();
        if let Ok(count) = rustix::io::read(&theirs, &mut bytes) {
            got.extend_from_slice(&bytes[..count]);
        }
    }
    while let Ok(count @ 1..) = rustix::io::read(&theirs, &mut bytes) {
        got.extend_from_slice(&bytes[..count]);
    }
    let word = |at: usize| u64::from_le_bytes(got[at..at + 8].try_into().unwrap());
    let (mut at, mut records, mut frames) = (0, 0, 0);
    while at < got.len() {
        if word(at) & u64::from(u32::MAX) == 0 {
            assert_eq!(Record::decode(word(at), word(at + 8)), Ok(answer(records)), "at {at}");
            at += 16 + records as usize % 29;
            records += 1;
        } else {
            assert_eq!(got[at..at + 16], frame(&[2; 8], frames), "at {at}");
            at += 16;
            frames += 1;
        }
    }
    assert_eq!((records, frames), (said, staged));
}

fn same_but_padding(got: &[u8], expected: &[u8]) -> bool {
    let mut at = 0;
    while let Some(word) = expected.get(at..at + 8) {
        let word = FrameWord::parse(u64::from_le_bytes(word.try_into().unwrap()), 1 << 20).unwrap().unwrap();
        let end = (at + word.frame_bytes()).min(expected.len());
        if got[at..end] != expected[at..end] {
            return false;
        }
        at += span(word.payload_bytes());
    }
    true
}

/// A frame costs no allocation, at either end.
#[test]
fn a_message_allocates_nothing() {
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(64 << 10)).unwrap());
    let (accepted, connected) = links(&mut listener, &server, &client);
    let mut sides = [Side::adopt(server, accepted), Side::adopt(client, connected)];
    sides.iter_mut().for_each(Side::opened);
    let mut echo = |rounds: u32| {
        for round in 0..rounds {
            for from in 0..2 {
                sides[from].stage(&[7; 64], round).unwrap();
                sides[from].port.flush();
                let to = &mut sides[1 - from];
                let until = Instant::now() + LONG;
                let mut taken = 0;
                while taken == 0 {
                    if let Look::Run(mut run) = to.port.next_run(Limit::Frames(64)) {
                        while run.next_frame().is_some() {}
                        to.port.end_run(&mut run, false);
                        taken = run.taken();
                        to.port.return_credit(to.conn, Credit { bytes: run.end(), arrivals: 0 });
                    } else {
                        to.port.poll(Time(u64::from(round)), &mut to.batch);
                        assert!(Instant::now() < until, "no frame");
                    }
                }
            }
        }
    };
    echo(2000);
    let counted = allocation_counter::measure(|| echo(2000));
    assert_eq!(counted.count_total, 0, "{counted:?}");
}

/// A turn that takes frames and answers them costs one call to receive and one to send, however many they are.
#[test]
fn a_turn_that_moves_frames_makes_two_calls() {
    use super::super::socket::{CALLS, wait};
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(64 << 10)).unwrap());
    let (accepted, connected) = links(&mut listener, &server, &client);
    let socket = accepted.wire.socket().try_clone().unwrap();
    let (mut server, mut client) = (Side::adopt(server, accepted), Side::adopt(client, connected));
    server.opened();
    client.opened();
    for frames in [1usize, 32] {
        for round in 0..200 {
            for _ in 0..frames {
                client.stage(&[7; 64], 1).unwrap();
            }
            client.port.flush();
            // A kernel that is busy hands the frames over only after the call that sent them.
            wait(&socket, false, Instant::now() + SECOND);
            let before = CALLS.get();
            let mut taken = 0;
            // A look after one that emptied the socket makes no call.
            while taken < frames {
                while let Look::Run(mut run) = server.port.next_run(Limit::Frames(64)) {
                    while run.next_frame().is_some() {
                        taken += 1;
                    }
                    server.port.end_run(&mut run, false);
                    server.port.return_credit(server.conn, Credit { bytes: run.end(), arrivals: 0 });
                }
            }
            for _ in 0..taken {
                server.stage(&[8; 64], 2).unwrap();
            }
            server.port.flush();
            let calls = CALLS.get() - before;
            assert!(taken == frames && calls <= 2, "round {round}: {calls} calls for {taken} frames");
            let mut back = 0;
            while back < frames {
                if let Look::Run(mut run) = client.port.next_run(Limit::Frames(64)) {
                    while run.next_frame().is_some() {
                        back += 1;
                    }
                    client.port.end_run(&mut run, false);
                    client.port.return_credit(client.conn, Credit { bytes: run.end(), arrivals: 0 });
                } else {
                    client.port.poll(Time(round), &mut client.batch);
                }
            }
        }
    }
}
