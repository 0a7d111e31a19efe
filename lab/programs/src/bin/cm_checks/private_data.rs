//! Private data: every length arrives, and one byte above the limit goes nowhere.

use std::time::Duration;

use gimmal_rdma::{
    DeviceError,
    cm::{AcceptData, CmError, ConnectData, QpPlan, RejectData, dial},
};

use crate::rig::{Failure, Outcome, Plan, Site, ensure, meet, pair};

/// Bytes that are never 0, so that padding cannot be taken for them.
fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at % 251 + 1).unwrap_or(1)).collect()
}

/// What should have arrived: on InfiniBand and RoCE the whole field, padded; on iWARP exactly what was sent.
fn arrived(site: &Site, seen: &[u8], sent: &[u8], limit: usize) -> Result<(), Failure> {
    let mut wanted = sent.to_vec();
    if !site.iwarp {
        wanted.resize(limit, 0);
    }
    ensure!(seen == wanted, "of {} bytes {} arrived: {seen:?}", sent.len(), seen.len());
    Ok(())
}

/// 0 to 56 bytes with the request, 0 to 148 with its reject.
pub(crate) fn request_and_reject(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    for len in 0..=148 {
        let (said, answered) = (pattern(len % 57), pattern(len));
        let mut plan = Plan::default();
        plan.connect.private_data = ConnectData::new(&said)?;
        let reply = RejectData::new(&answered)?;
        let (client, ()) = meet(
            &mut listener,
            &target,
            &plan,
            |_| Ok(()),
            |request| {
                arrived(site, request.event().private(), &said, 56)?;
                Ok(request.reject(&reply)?)
            },
        )?;
        match client {
            Err(CmError::Rejected { rejection }) => {
                ensure!(rejection.is_by_consumer(), "{rejection}");
                arrived(site, &rejection.private_data, &answered, 148)?;
            }
            other => return Err(format!("with {len} bytes: {other:?}").into()),
        }
    }
    Ok(None)
}

/// 0 to 196 bytes with the accept.
pub(crate) fn accept(site: &Site) -> Outcome {
    let (mut listener, target) = site.listen()?;
    for len in 0..=196 {
        let (said, answered) = (pattern(len % 57), pattern(len));
        let mut plan = Plan {
            plan: QpPlan { send_entries: 1, recv_entries: 1, ..QpPlan::default() },
            ..Plan::default()
        };
        plan.options.plan = plan.plan;
        plan.connect.private_data = ConnectData::new(&said)?;
        plan.accept.private_data = AcceptData::new(&answered)?;
        let ((client, ()), (server, ())) = pair(&mut listener, &target, &plan, |_| Ok(()))?;
        arrived(site, client.private_data(), &answered, 196)?;
        arrived(site, server.private_data(), &said, 56)?;
    }
    Ok(None)
}

/// Each side's limit, by type; and `ai_connect` data together with ours.
pub(crate) fn too_many(site: &Site) -> Outcome {
    let over = |result: Result<usize, CmError>, limit: u64| match result {
        Err(CmError::Device(DeviceError::Limit { value, limit: seen, .. })) => {
            seen == limit && value == limit + 1
        }
        _ => false,
    };
    ensure!(
        over(ConnectData::new(&pattern(57)).map(|_| 0).map_err(CmError::from), 56),
        "57 bytes on connect"
    );
    ensure!(
        over(AcceptData::new(&pattern(197)).map(|_| 0).map_err(CmError::from), 196),
        "197 bytes on accept"
    );
    ensure!(
        over(RejectData::new(&pattern(149)).map(|_| 0).map_err(CmError::from), 148),
        "149 bytes on reject"
    );
    // Together with what a resolver put before it: no request may reach the listener.
    let (mut listener, mut target) = site.listen()?;
    target.connect_data = pattern(17);
    let mut plan = Plan::default();
    plan.connect.private_data = ConnectData::new(&pattern(40))?;
    let refused = dial(&[target], &plan.options, &plan.connect, |_| Ok(()));
    ensure!(over(refused.map(|_| 0), 56), "17 + 40 bytes on connect");
    ensure!(listener.request(Duration::from_millis(200))?.is_none(), "a packet was sent");
    Ok(None)
}
