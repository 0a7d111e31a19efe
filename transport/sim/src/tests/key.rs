//! A shared key over slow and broken worlds: open on both sides and proved, or closed on both sides with a name.

use super::*;
use gimmal_transport::Key;

/// Every step of connecting.
const STEPS: [Step; 6] =
    [Step::Resolve, Step::Request, Step::Accept, Step::Reply, Step::Grant(1), Step::Grant(2)];

struct Keyed {
    two: Two,
    listener: SimListener,
    address: Address,
}

impl Keyed {
    fn new(config: SimConfig) -> Self {
        let two = Two::new(config, &PortConfig::default());
        let address = Address::from_str("mem://keyed").unwrap();
        let options = ListenOptions { keys: vec![key()], ..ListenOptions::default() };
        let listener = two.sim.listen(&address, &options).unwrap();
        Self { two, listener, address }
    }

    /// How the attempt ended at the client, and the connection at each side that got as far as one.
    fn connect(&mut self) -> (Result<(), ConnectError>, [Option<Came>; 2]) {
        let gate = self.two.ports[0].gate();
        let options = ConnectOptions { key: Some(key()), ..ConnectOptions::default() };
        let started = self.two.sim.connect(&self.address, &gate, &options);
        let (mut outcome, mut conns, mut last) = (None, [None; 2], [const { None }; 2]);
        let mut quiet = 0;
        let mut connecting = match started {
            Ok(connecting) => connecting,
            Err(error) => return (Err(error), last),
        };
        for _ in 0..10_000 {
            if let Some(incoming) = self.listener.accept(NOW).unwrap()
                && let Ok(link) = incoming.accept(&self.two.ports[1].gate())
            {
                conns[1] = Some(self.two.ports[1].adopt(link, self.two.sim.now()).unwrap());
            }
            if let Some(ended) = connecting.poll(NOW) {
                outcome = Some(ended.map(|link| {
                    conns[0] = Some(self.two.ports[0].adopt(link, self.two.sim.now()).unwrap());
                }));
            }
            self.two.turn();
            for (side, last) in last.iter_mut().enumerate() {
                let events = self.two.events[side].drain(..);
                let says = |event: &Came| matches!(event, Came::Opened { .. } | Came::Closed { .. });
                // A `Closed` behind an `Opened` is the later word.
                *last = events.filter(says).last().or_else(|| last.take());
            }
            // What one side's poll brought about, the other side's next poll sees.
            let over = outcome.is_some() && self.two.sim.next_at() == Time::NEVER;
            quiet = if over { quiet + 1 } else { 0 };
            if let Some(outcome) = outcome.take_if(|_| quiet > 4) {
                return (outcome, last);
            }
        }
        panic!("it neither came to stand nor ended: {outcome:?} {last:?}");
    }
}

fn key() -> Key {
    Key::new(&[1; 32]).unwrap()
}

fn reason(event: Option<&Came>) -> CloseReason {
    match event {
        Some(Came::Closed { reason, .. }) => reason.clone(),
        other => panic!("not closed: {other:?}"),
    }
}

#[test]
fn a_forged_proof_is_named_by_whoever_was_to_believe_it() {
    let mut world = Keyed::new(faulty(Step::Reply, FaultKind::Forged));
    let (outcome, ends) = world.connect();
    assert_eq!(outcome, Err(ConnectError::Unproven { address: "mem://keyed".to_owned() }));
    // The client said no more, so the server was told nothing.
    assert_eq!(reason(ends[1].as_ref()), CloseReason::Peer);
    for (grant, doubter) in [(1, 1), (2, 0)] {
        let mut world = Keyed::new(faulty(Step::Grant(grant), FaultKind::Forged));
        let (outcome, ends) = world.connect();
        assert_eq!(outcome, Ok(()), "the other side proved itself before");
        assert_eq!(reason(ends[doubter].as_ref()), CloseReason::Authentication);
        assert_eq!(reason(ends[1 - doubter].as_ref()), CloseReason::Peer);
    }
}

#[test]
fn a_thousand_worlds_open_on_both_sides_or_on_none() {
    let mut opened = 0;
    for seed in 0..1000 {
        let mut config = slow(seed);
        let at = usize::try_from(seed).unwrap();
        if let Some(step) = STEPS.get(at % (STEPS.len() + 1)) {
            let kinds = [FaultKind::Forged, FaultKind::Lost, FaultKind::Refuse];
            config.faults = vec![Fault::at(*step, kinds[at / 7 % kinds.len()])];
        }
        let mut world = Keyed::new(config);
        let (outcome, ends) = world.connect();
        let open = ends
            .iter()
            .filter(|end| matches!(end, Some(Came::Opened { negotiated, .. }) if negotiated.authenticated));
        match open.count() {
            2 => opened += 1,
            0 => {
                let named =
                    outcome.is_err() || ends.iter().any(|end| matches!(end, Some(Came::Closed { .. })));
                assert!(named, "seed {seed}: {outcome:?} {ends:?}");
            }
            _ => panic!("seed {seed}: one side is open: {outcome:?} {ends:?}"),
        }
        assert!(world.two.sim.findings().misuses.is_empty(), "seed {seed}");
    }
    assert!((140..400).contains(&opened), "{opened} of 1000 had no fault");
}
