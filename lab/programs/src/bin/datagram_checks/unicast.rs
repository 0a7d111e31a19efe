//! Cases of one end point talking to another.

use std::{
    net::{IpAddr, SocketAddr},
    sync::mpsc,
    time::{Duration, Instant},
};

use gimmal_rdma::datagram::{
    ANSWER_DATA_BYTES, AnswerData, Datagram, DatagramConfig, LOOK_UP_DATA_BYTES, LookUpData, LookUpError,
    Qkey, SidrStatus,
};

use crate::side::{Answering, Failure, LIMIT, SMALL, Verdict, count_after_quiet, ensure, open, pair, take};

/// Bytes that are different for each length and place.
fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| u8::try_from((at * 7 + bytes * 13) % 251).unwrap_or(0) | 1).collect()
}

fn padded(bytes: usize, limit: usize) -> Vec<u8> {
    let mut data = pattern(bytes);
    data.resize(limit, 0);
    data
}

pub(crate) fn private_data_of_every_length(address: IpAddr) -> Result<(), Failure> {
    let (sender, arrived) = mpsc::channel();
    let mut count = 0;
    let answering = Answering::start(open(address)?, move |request| {
        let _ = sender.send((request.data().to_vec(), request.from()));
        let answer = AnswerData::new(&pattern(count % (ANSWER_DATA_BYTES + 1))).unwrap_or_default();
        count += 1;
        Verdict::Accept(answer)
    })?;
    let mut asking = open(address)?;
    for bytes in 0..=LOOK_UP_DATA_BYTES {
        let data = LookUpData::new(&pattern(bytes))?;
        let peer = asking.look_up(answering.address, &data, LIMIT)?;
        let (given, from) = arrived.recv_timeout(LIMIT)?;
        ensure(given == padded(bytes, LOOK_UP_DATA_BYTES), format!("{bytes} bytes arrived as {given:?}"))?;
        ensure(from.is_some_and(|from| from.ip() == address), format!("asked by {from:?}"))?;
        let answer = bytes % (ANSWER_DATA_BYTES + 1);
        ensure(
            peer.data() == padded(answer, ANSWER_DATA_BYTES),
            format!("an answer of {answer} bytes: {peer:?}"),
        )?;
        ensure(peer.qkey() == Qkey::UDP, format!("{peer:?}"))?;
    }
    ensure(LookUpData::new(&[1; LOOK_UP_DATA_BYTES + 1]).is_err(), "181 bytes")?;
    ensure(AnswerData::new(&[1; ANSWER_DATA_BYTES + 1]).is_err(), "137 bytes")?;
    answering.end()?;
    Ok(())
}

pub(crate) fn a_reject_carries_data(address: IpAddr) -> Result<(), Failure> {
    let mut lengths = (0..=ANSWER_DATA_BYTES).step_by(17);
    let answering = Answering::start(open(address)?, move |_| {
        let bytes = lengths.next().unwrap_or(0);
        Verdict::Reject(AnswerData::new(&pattern(bytes)).unwrap_or_default())
    })?;
    let mut asking = open(address)?;
    for bytes in (0..=ANSWER_DATA_BYTES).step_by(17) {
        match asking.look_up(answering.address, &LookUpData::EMPTY, LIMIT) {
            Err(LookUpError::Refused { status: SidrStatus::Rejected, data, .. }) => {
                ensure(data.bytes() == padded(bytes, ANSWER_DATA_BYTES), format!("{bytes} bytes: {data:?}"))?;
            }
            other => return Err(format!("{other:?}").into()),
        }
    }
    answering.end()?;
    Ok(())
}

pub(crate) fn messages_to_the_exact_mtu(address: IpAddr) -> Result<(), Failure> {
    let (mut a, mut b, peer) = pair(address, &SMALL)?;
    let mtu = a.info().message_bytes_max;
    ensure(mtu.is_power_of_two() && mtu >= 256, format!("a path MTU of {mtu}"))?;
    let mut lengths = vec![0, 1, 2, 3, 4, 5, 39, 40, 41, 64, 255, 256, 1000, mtu - 1, mtu];
    lengths.extend((0..=mtu).step_by(97));
    for bytes in lengths {
        let message = pattern(bytes);
        a.send(&peer, &message)?;
        let came = take(&mut b, 1)?;
        ensure(came == [message], format!("{bytes} bytes came back as {} bytes", came[0].len()))?;
    }
    Ok(())
}

pub(crate) fn who_sent_it(address: IpAddr) -> Result<(), Failure> {
    let (mut a, mut b, peer) = pair(address, &SMALL)?;
    ensure(peer.qp() == b.info().qp && peer.gid().ip() == address, format!("{peer:?}"))?;
    a.send_with(&peer, 3, Some(0xdead_beef), |place| place.copy_from_slice(b"who"))?;
    let mut source = None;
    let deadline = Instant::now() + LIMIT;
    while source.is_none() && Instant::now() < deadline {
        b.wait(Duration::from_millis(50))?;
        b.receive(|received| source = Some((received.source, received.imm)))?;
    }
    let (source, imm) = source.ok_or("nothing came")?;
    ensure(imm == Some(0xdead_beef), format!("{imm:x?}"))?;
    ensure(source.qp == a.info().qp, format!("{source:?}"))?;
    let grh = source.grh().ok_or("no header")?;
    ensure(grh.source.ip() == address && grh.destination.ip() == address, format!("{grh:?}"))?;
    let back = b.reply_to(&source)?;
    ensure(back.qp() == a.info().qp && back.gid().ip() == address, format!("{back:?}"))?;
    b.send(&back, b"you")?;
    ensure(take(&mut a, 1)? == [b"you"], "another answer")?;
    let (sent, received) = (a.close(LIMIT).sent, b.close(LIMIT).received);
    ensure((sent, received) == (1, 1), format!("{sent} sent, {received} received"))
}

pub(crate) fn another_queue_key(address: IpAddr) -> Result<(), Failure> {
    let key = Qkey(0x0bad_cafe);
    let (mut a, mut b, peer) = pair(address, &DatagramConfig { qkey: key, ..SMALL })?;
    a.send(&peer, b"with the key of the port space")?;
    ensure(count_after_quiet(&mut b)? == 0, "a message with another key was delivered")?;
    a.send(&peer.with_qkey(key), b"with its own")?;
    ensure(take(&mut b, 1)? == [b"with its own"], "not delivered")?;
    let refused =
        Datagram::bind(SocketAddr::new(address, 0), &DatagramConfig { qkey: Qkey(1 << 31), ..SMALL });
    ensure(refused.is_err(), "a privileged key")
}

pub(crate) fn no_allocation_for_a_message(address: IpAddr) -> Result<(), Failure> {
    let (mut a, mut b, peer) = pair(address, &SMALL)?;
    let mut came = 0;
    let mut result = Ok(());
    let allocated = allocation_counter::measure(|| {
        let deadline = Instant::now() + LIMIT;
        for sent in 1..=500 {
            if let Err(error) = a.send_with(&peer, 200, Some(sent), |place| place.fill(7)) {
                result = Err(error);
                return;
            }
            while came < sent && Instant::now() < deadline {
                let _ = b.receive(|received| came = received.imm.unwrap_or(0));
            }
        }
    });
    result?;
    ensure(came == 500, format!("the last message was {came}"))?;
    ensure(allocated.count_total == 0, format!("{} allocations", allocated.count_total))
}
