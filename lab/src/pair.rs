//! Two guests on one wire, one command in each.
//!
//! Both commands start when the guests can reach each other. A guest whose command is done stays until the other's is
//! too. When one command fails, the other has a short time to notice.

use std::{fs, path::Path, thread, time::Duration};

use anyhow::Result;
use gimmal_transport::Instant;

use crate::{
    fabric::Role,
    follow::Sink,
    guest::{Guest, POLL, Sinks},
    run::{self, Limits},
    signals,
    spec::Spec,
    verdict::{self, Verdict},
};

/// What a peer gets after its partner has failed.
const GRACE: Duration = Duration::from_secs(10);

/// Boots both and judges both, in the order a, b.
pub(crate) fn pair(
    specs: [&Spec; 2],
    out: Option<&Path>,
    limits: &Limits,
    quiet: bool,
) -> Result<[Verdict; 2]> {
    let cache = run::prepare(specs[0].fabrics)?;
    let folder = run::temporary()?;
    let mut guests = Vec::new();
    for (spec, role) in specs.into_iter().zip([Role::A, Role::B]) {
        let own = folder.path().join(role.name());
        fs::create_dir(&own)?;
        let out = out.map(|out| out.join(role.name()));
        let out = run::out_folder(out.as_deref(), &own)?;
        let sinks = match quiet {
            true => Sinks { stdout: Sink::Nowhere, stderr: Sink::Nowhere, prefix: "" },
            false => Sinks { stdout: Sink::Stdout, stderr: Sink::Stderr, prefix: prefix(role) },
        };
        guests.push(Guest::start(spec, &cache, &own, &out, sinks)?);
    }
    let late = wait(&mut guests, limits.timeout)?;
    let failed = guests.iter().find_map(|guest| guest.exit().filter(|code| *code != 0));
    let mut verdicts = Vec::new();
    for mut guest in guests {
        verdicts.push(match guest.exit() {
            None if late => verdict::timeout(&guest.stop(), limits.timeout.as_secs()),
            None if guest.is_running()? => verdict::left_alone(&guest.stop(), failed),
            None => verdict::of(&guest.stop(), limits.allow_kernel_warnings),
            Some(_) => verdict::of(&guest.finish()?, limits.allow_kernel_warnings),
        });
    }
    let [a, b] = verdicts.try_into().unwrap_or_else(|_| unreachable!("two guests were started"));
    Ok([a, b])
}

/// Waits until both are done, one has failed for [`GRACE`], or the time is over: then returns true.
fn wait(guests: &mut [Guest], timeout: Duration) -> Result<bool> {
    let end = Instant::now() + timeout;
    let mut grace_end = None;
    loop {
        if let Some(signal) = signals::seen() {
            return Err(signal.into());
        }
        let mut done = 0;
        for guest in guests.iter_mut() {
            let exit = guest.exit();
            // What its command left running may ask, too.
            if guest.is_running()? {
                guest.follow_wire()?;
            }
            if exit.is_some() || !guest.is_running()? {
                done += 1;
                if exit != Some(0) {
                    grace_end.get_or_insert_with(|| Instant::now() + GRACE);
                }
            }
        }
        let now = Instant::now();
        if done == guests.len() || grace_end.is_some_and(|grace_end| now >= grace_end) {
            for guest in guests.iter() {
                guest.release()?;
            }
            return Ok(false);
        }
        if now >= end {
            return Ok(true);
        }
        thread::sleep(POLL);
    }
}

fn prefix(role: Role) -> &'static str {
    match role {
        Role::A => "a| ",
        Role::B => "b| ",
    }
}
