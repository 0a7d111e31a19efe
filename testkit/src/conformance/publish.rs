//! Clause 2: what was committed arrives byte for byte, at its position, on the path that was negotiated.

use super::{
    bench::Bench,
    case::{ANY, Case, Needs},
    outcome::{Outcome, ensure},
    rig::pattern,
};
use gimmal_transport::{
    Chain, Port, Position, Provider, Tag,
    frame::{FRAME_WORD_BYTES, span},
};

const RING: Needs = Needs { ring: true, ..ANY };
const ARRIVALS: Needs = Needs { arrivals: true, ..ANY };

pub(super) fn cases<P: Provider>() -> Vec<Case<P>> {
    vec![
        Case { name: "publish_every_small_size", needs: ANY, run: every_small_size },
        Case { name: "publish_sizes_around_the_largest", needs: ANY, run: around_the_largest },
        Case { name: "publish_tag_travels", needs: ANY, run: tag_travels },
        Case { name: "publish_frame_ends_at_its_position", needs: RING, run: ends_at_its_position },
        Case { name: "publish_wraps_around_the_ring", needs: ANY, run: wraps },
        Case { name: "publish_chain_is_frames_in_order", needs: ANY, run: chain_is_frames },
        Case { name: "publish_largest_chain", needs: ANY, run: largest_chain },
        Case { name: "publish_both_directions_at_once", needs: ANY, run: both_directions },
        Case { name: "publish_takes_the_negotiated_path", needs: ARRIVALS, run: negotiated_path },
    ]
}

fn every_small_size<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for bytes in 0..=130 {
        let payload = pattern(bytes, bytes);
        bench.send(&mut rig, &mut duo, bytes % 2, &payload, Tag(0))?;
        bench.expect(&mut rig, &mut duo, 1 - bytes % 2, &payload, Tag(0))?;
    }
    Ok(())
}

fn around_the_largest<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let most = duo.terms[0].frame_bytes_max as usize - FRAME_WORD_BYTES;
    for round in 0..3 {
        for bytes in (most - 18..=most).step_by(3) {
            let payload = pattern(bytes + round, bytes);
            bench.send(&mut rig, &mut duo, 0, &payload, Tag(0))?;
            bench.expect(&mut rig, &mut duo, 1, &payload, Tag(0))?;
        }
    }
    Ok(())
}

fn tag_travels<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for tag in [0, 1, 0x8000_0000, 0x1234_5678, u32::MAX] {
        bench.send(&mut rig, &mut duo, 1, &[], Tag(tag))?;
        bench.expect(&mut rig, &mut duo, 0, &[], Tag(tag))?;
    }
    Ok(())
}

fn ends_at_its_position<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let mut expected = Position(0);
    for bytes in [0, 8, 9, 24, 25, 300] {
        bench.send(&mut rig, &mut duo, 0, &pattern(0, bytes), Tag(0))?;
        expected = expected.plus(span(bytes) as u64);
        let frame = bench.frame(&mut rig, &duo, 1)?;
        ensure!(frame.end() == expected, "a frame of {bytes} ends at {:?}, not {expected:?}", frame.end());
        duo.release(&mut rig, 1, frame);
    }
    Ok(())
}

fn wraps<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let ring = u64::from(duo.terms[0].tx_ring_bytes);
    let most = duo.terms[0].frame_bytes_max as usize - FRAME_WORD_BYTES;
    let mut round = 0;
    while duo.flows[0].sent.0 < 5 * ring {
        let payload = pattern(round, (round * 977) % (most + 1));
        bench.send(&mut rig, &mut duo, 0, &payload, Tag(0))?;
        bench.expect(&mut rig, &mut duo, 1, &payload, Tag(0))?;
        round += 1;
    }
    Ok(())
}

/// Commits frames of `bytes` as one chain, until it is as long as it may be or has `count`; returns how many.
fn one_chain<P: Provider>(
    bench: &mut Bench<'_, P>,
    rig: &mut super::rig::Rig<P>,
    duo: &mut super::rig::Duo,
    bytes: usize,
    count: usize,
) -> Outcome<usize> {
    bench.wait("credit", |now| {
        rig.poll(now);
        duo.commit(rig, 0, &pattern(0, bytes), Tag(0), Chain::Begin)
    })?;
    let mut frames = 1;
    while frames < count && duo.may_extend(0, bytes) {
        let tag = Tag(u32::try_from(frames)?);
        if duo.commit(rig, 0, &pattern(frames, bytes), tag, Chain::Extend)?.is_none() {
            break;
        }
        frames += 1;
    }
    rig.ports[0].flush();
    Ok(frames)
}

fn chain_is_frames<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for bytes in [0, 8, 33, 100] {
        let frames = one_chain(bench, &mut rig, &mut duo, bytes, 12)?;
        ensure!(frames == 12, "a chain of 12 frames of {bytes} bytes stopped at {frames}");
        for frame in 0..frames {
            bench.expect(&mut rig, &mut duo, 1, &pattern(frame, bytes), Tag(u32::try_from(frame)?))?;
        }
    }
    Ok(())
}

fn largest_chain<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for _ in 0..8 {
        let frames = one_chain(bench, &mut rig, &mut duo, 56, usize::MAX)?;
        let fit = duo.terms[0].chain_bytes_max as usize / 64;
        ensure!(frames == fit, "{frames} frames of 64 bytes in a chain, {fit} would fit");
        for frame in 0..frames {
            bench.expect(&mut rig, &mut duo, 1, &pattern(frame, 56), Tag(u32::try_from(frame)?))?;
        }
    }
    Ok(())
}

fn both_directions<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    for round in 0..50 {
        for side in 0..2 {
            bench.send(&mut rig, &mut duo, side, &pattern(round + side, 200), Tag(0))?;
        }
        for side in 0..2 {
            bench.expect(&mut rig, &mut duo, 1 - side, &pattern(round + side, 200), Tag(0))?;
        }
    }
    Ok(())
}

fn negotiated_path<P: Provider>(bench: &mut Bench<'_, P>) -> Outcome {
    let (mut rig, mut duo) = bench.open()?;
    let before = [rig.ports[0].counters(duo.ids[0]), rig.ports[1].counters(duo.ids[1])];
    for round in 0..10 {
        bench.send(&mut rig, &mut duo, 0, &pattern(round, 64), Tag(0))?;
        bench.expect(&mut rig, &mut duo, 1, &pattern(round, 64), Tag(0))?;
    }
    let (tx, rx) = (rig.ports[0].counters(duo.ids[0]), rig.ports[1].counters(duo.ids[1]));
    let with_imm = (tx.write_imms - before[0].write_imms, rx.receives_with_imm - before[1].receives_with_imm);
    let plain = (tx.sends - before[0].sends, rx.receives - before[1].receives);
    let expected = match duo.terms[0].path {
        gimmal_transport::DataPath::Ring => ((10, 10), (0, 0)),
        gimmal_transport::DataPath::SendRecv => ((0, 0), (10, 10)),
    };
    ensure!((with_imm, plain) == expected, "write-with-immediate {with_imm:?}, send/recv {plain:?}");
    Ok(())
}
