//! One-sided operations end once, whatever happens, and an addition is made as often as it is told.

use super::*;
use gimmal_transport::{AccessError, Accessed, LoanError, OneSided, PortError};

const OPERATIONS: u64 = 24;

/// Starts operations of every kind.
fn start(two: &mut Two, active: ConnId, remote: gimmal_transport::Remote) {
    for token in 0..OPERATIONS {
        let mut loan = two.ports[0].gate().allocate(active, 16).unwrap();
        loan.fill(9);
        let op = match token % 3 {
            0 => OneSided::FetchAdd { at: 0, add: 1 },
            1 => OneSided::Write { at: 16 + token, from: loan },
            _ => OneSided::Read { at: 8, into: loan },
        };
        two.ports[0].access(active, remote, op, token).unwrap();
    }
}

/// What became of them, and that nothing comes after the end of the connection.
fn ends(two: &mut Two, active: ConnId, is_silent: bool) -> Vec<(u64, Result<Accessed, AccessError>)> {
    let (mut ended, mut is_closed) = (Vec::new(), false);
    for turn in 0..400 {
        two.turn();
        for event in std::mem::take(&mut two.events[0]) {
            assert!(!is_closed, "{event:?} after the end");
            match event {
                Came::Accessed { token, result, .. } => ended.push((token, result)),
                Came::Closed { .. } => is_closed = true,
                _ => {}
            }
        }
        if is_silent && turn == 200 {
            let now = two.sim.now();
            two.ports[0].close(active, CloseReason::Local, now);
        }
    }
    ended
}

#[test]
fn operations_end_once_whatever_happens() {
    let kinds = [
        None,
        Some(FaultKind::Lost),
        Some(FaultKind::Work(12)),
        Some(FaultKind::DeviceRemoved),
        Some(FaultKind::Silent),
        Some(FaultKind::Flipped),
    ];
    for seed in 0..600 {
        let kind = kinds[usize::try_from(seed).unwrap() % kinds.len()];
        let faults =
            kind.map(|kind| Fault::at(Step::Bulk(1 + seed % OPERATIONS), kind)).into_iter().collect();
        let mut two = Two::new(SimConfig { faults, ..slow(seed) }, &PortConfig::default());
        let [active, passive] = two.open();
        let exposed = two.ports[1].gate().expose(passive, 64).unwrap();
        let remote = two.ports[1].show(passive, &exposed).unwrap();
        start(&mut two, active, remote);
        let ended = ends(&mut two, active, kind == Some(FaultKind::Silent));
        let mut tokens: Vec<u64> = ended.iter().map(|(token, _)| *token).collect();
        tokens.sort_unstable();
        assert!(tokens.iter().copied().eq(0..OPERATIONS), "seed {seed}, {kind:?}: {tokens:?}");
        let words = ended.iter().filter_map(|(_, result)| match result {
            Ok(Accessed::Word(word)) => Some(*word),
            _ => None,
        });
        let added: Vec<u64> = words.collect();
        assert!(added.iter().copied().eq(0..added.len() as u64), "seed {seed}, {kind:?}: {added:?}");
        assert_eq!(exposed.load(0), Ok(added.len() as u64), "seed {seed}, {kind:?}");
        let is_whole = matches!(kind, None | Some(FaultKind::Flipped));
        assert_eq!(ended.iter().all(|(_, result)| result.is_ok()), is_whole, "seed {seed}, {kind:?}");
        drop(ended);
        assert_eq!(two.sim.findings().misuses, vec![], "seed {seed}, {kind:?}");
    }
}

/// Neither port nor world waits for loans that are in flight.
#[test]
fn a_dropped_port_gives_up_what_is_under_way() {
    let mut two = Two::new(slow(5), &PortConfig::default());
    let [active, passive] = two.open();
    let exposed = two.ports[1].gate().expose(passive, 64).unwrap();
    let remote = two.ports[1].show(passive, &exposed).unwrap();
    start(&mut two, active, remote);
    two.turn();
    let Two { sim, ports, .. } = two;
    drop(ports);
    assert_eq!(sim.findings().misuses, vec![]);
    drop(sim);
    drop(exposed);
}

#[test]
fn memory_that_cannot_be_had_is_an_error_with_its_step() {
    let port = PortConfig { bulk_bytes_max: 4096, ..PortConfig::default() };
    let expose = |failing_setup, bytes| {
        let mut two = Two::new(SimConfig { failing_setup, ..slow(6) }, &port);
        let [_, passive] = two.open();
        let setups = two.sim.findings().setups;
        (two.ports[1].gate().expose(passive, bytes).map(|_| ()), setups)
    };
    let (too_large, setups) = expose(0, 4097);
    assert_eq!(too_large, Err(LoanError::TooLarge { bytes: 4097, limit: 4096 }));
    let failed = expose(setups + 1, 64).0.unwrap_err();
    assert!(
        matches!(failed, LoanError::Port(PortError::System { step, .. }) if step.contains("exposed")),
        "{failed}"
    );
}
