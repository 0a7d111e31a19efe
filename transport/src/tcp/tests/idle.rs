//! Many connections of which few move: what each keeps, and what they cost the others.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::{
    super::{live::Live, table::REST_AFTER},
    *,
};
use crate::Wait;

/// As many connections as are asked for, if this process may have so many descriptors and mappings: each end has four.
fn connections() -> u32 {
    let wanted = std::env::var("GIMMAL_IDLE_CONNECTIONS").map_or(1000, |wanted| wanted.parse().unwrap());
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most = limit.maximum.map_or(u32::MAX, |most| u32::try_from(most).unwrap_or(u32::MAX));
    let mappings =
        std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap().trim().parse::<u32>().unwrap();
    wanted.min(most.saturating_sub(200) / 2).min(mappings.saturating_sub(2000) / 8)
}

pub(super) fn lives(side: &Side) -> impl Iterator<Item = &Live> {
    side.port.table.slots.iter().filter_map(|slot| slot.live.as_deref())
}

fn resident(side: &Side) -> usize {
    lives(side).map(|live| live.rx.resident() + live.out.resident()).sum()
}

/// Polls both, and gives the frames that arrived back; how many each got.
fn turn(sides: &mut [Side; 2]) -> [usize; 2] {
    turn_at(sides, |side| Time::default().plus(side.started.elapsed()))
}

fn turn_at(sides: &mut [Side; 2], now: impl Fn(&Side) -> Time) -> [usize; 2] {
    sides.each_mut().map(|side| {
        let (now, mut frames) = (now(side), 0);
        for came in testing::poll(&mut side.port, now, &mut side.batch) {
            if let Came::Frame { conn, frame } = came {
                let end = frame.end();
                side.port.release(conn, frame);
                side.port.return_credit(conn, Credit { bytes: end, arrivals: 0 });
                frames += 1;
            }
        }
        side.port.flush();
        frames
    })
}

#[test]
fn idle_connections_keep_no_pages_and_cost_no_looks() {
    let count = connections();
    let mut listener = listen(&ListenOptions { backlog: 64, ..patient_listen() });
    let config = PortConfig { connections: count, ..config(64 << 10) };
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config).unwrap());
    let (accepted, made) = links(&mut listener, &server, &client);
    let mut sides = [Side::adopt(server, accepted), Side::adopt(client, made)];
    for _ in 1..count {
        let (accepted, made) = links(&mut listener, &sides[0].port, &sides[1].port);
        sides[0].port.adopt(accepted, Time(0)).unwrap();
        sides[1].port.adopt(made, Time(0)).unwrap();
    }
    let until = Instant::now() + Duration::from_secs(60);
    // Time stands still until all have used a part of their rings, so that none rests before the last.
    let early = |sides: &mut [Side; 2]| turn_at(sides, |_| Time(0));
    let is_open = |side: &Side| lives(side).all(|live| live.is_open() && live.is_told);
    while !sides.iter().all(is_open) {
        early(&mut sides);
        assert!(Instant::now() < until, "not all are open");
    }
    let all: Vec<ConnId> = lives(&sides[1]).map(|live| live.id).collect();
    assert_eq!(all.len() as u32, count);
    for conn in &all {
        sides[1].conn = *conn;
        sides[1].stage(&[7; 9000], 1).unwrap();
        sides[1].port.flush();
    }
    let mut got = 0;
    while got < all.len() {
        got += early(&mut sides)[0];
        assert!(Instant::now() < until, "{got} of {count} frames came");
    }
    let used = resident(&sides[0]) + resident(&sides[1]);
    assert!(used >= all.len() * 2 * 9000, "{used} bytes of pages");
    let since = Instant::now();
    sides.iter_mut().for_each(|side| side.started = since);
    let looked_at = |sides: &[Side; 2]| sides.iter().map(|side| side.port.table.active.len()).max();
    while resident(&sides[0]) + resident(&sides[1]) > 4 * (64 << 10) || looked_at(&sides) > Some(1) {
        turn(&mut sides);
        let left = resident(&sides[0]) + resident(&sides[1]);
        assert!(Instant::now() < until, "{left} bytes are left, and {:?} are looked at", looked_at(&sides));
    }
    assert!(since.elapsed() >= REST_AFTER, "pages went after {:?}", since.elapsed());
    println!(
        "{count} connections: {used} bytes of rings in use, then none; {} bytes each",
        size_of::<Live>()
    );
    assert!(size_of::<Live>() <= 1024, "{} bytes for each connection", size_of::<Live>());
    // One of them moves: it is found at once, and its ring is as it was.
    sides[1].conn = all[all.len() / 2];
    sides[1].stage(b"still here", 2).unwrap();
    sides[1].port.flush();
    assert!(
        !sides[0].port.arm() || {
            sides[0].port.disarm();
            true
        }
    );
    let came: Vec<_> = (0..2).flat_map(|_| sides[0].poll()).collect();
    assert!(matches!(&came[..], [Came::Frame { frame, .. }] if **frame == *b"still here"), "{came:?}");
}

/// No look is in vain where nobody looks: time tells.
#[test]
fn a_lone_connection_of_a_port_that_sleeps_gives_its_pages_back_and_then_wakes_nobody() {
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(64 << 10)).unwrap());
    let (accepted, made) = links(&mut listener, &server, &client);
    let mut sides = [Side::adopt(server, accepted), Side::adopt(client, made)];
    sides.iter_mut().for_each(Side::opened);
    let until = Instant::now() + Duration::from_secs(30);
    sides[1].stage(&[7; 9000], 1).unwrap();
    sides[1].port.flush();
    while turn(&mut sides)[0] == 0 {
        assert!(Instant::now() < until, "no frame came");
    }
    assert!(sides.iter().all(|side| resident(side) >= 9000));
    while !sides.iter_mut().all(|side| side.port.arm() && side.port.deadline() == Time::NEVER) {
        std::thread::sleep(Duration::from_millis(10));
        turn(&mut sides);
        assert!(Instant::now() < until, "{:?} bytes are left", sides.each_ref().map(resident));
    }
    assert_eq!(sides.each_ref().map(resident), [0, 0]);
}

/// An owner that is busy when a connection may rest polls, and does not sleep: its deadline moves on all the same.
#[test]
fn a_poll_meets_the_deadline_of_a_connection_that_moves() {
    let mut listener = listen(&patient_listen());
    let [server, client] = [(); 2].map(|()| Tcp.open_port(&config(64 << 10)).unwrap());
    let (accepted, made) = links(&mut listener, &server, &client);
    let mut sides = [Side::adopt(server, accepted), Side::adopt(client, made)];
    sides.iter_mut().for_each(Side::opened);
    let until = Instant::now() + Duration::from_secs(30);
    let due = loop {
        let moves = Instant::now();
        sides[1].stage(&[7; 9000], 1).unwrap();
        while turn(&mut sides)[0] == 0 {
            assert!(Instant::now() < until, "no frame came");
        }
        assert!(sides[0].port.arm(), "nothing is there");
        sides[0].port.disarm();
        sides[0].poll();
        let due = sides[0].port.deadline();
        if due < Time::NEVER {
            break due;
        }
        // Held up for longer, it rests already.
        assert!(moves.elapsed() >= REST_AFTER, "it may rest later");
    };
    let (mut batch, later) = (Batch::new(64), due.plus(Duration::from_nanos(1)));
    sides[0].port.poll(later, &mut batch);
    assert!(sides[0].port.deadline() > later, "{:?} has passed", sides[0].port.deadline());
}
