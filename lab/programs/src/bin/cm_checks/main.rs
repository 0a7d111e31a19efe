//! The raw CM and our own connects against a real device: `cm_checks GROUP HOST [HOST ...]`.
//!
//! HOST is an address of an RDMA device of this machine. Groups: `all` is everything that needs nothing else;
//! `names HOST NAME` connects to a name whose addresses are HOST and, before it, one without a device;
//! `devices RXE SIW` has one listener over two devices, and chooses between them;
//! `silent HOST SILENT` connects to an address that never answers, `unreachable HOST SILENT` until the kernel gives up;
//! `removal HOST DEVICE` deletes the device of HOST, `unused HOST DEVICE OTHER` when only that of OTHER is in use,
//! `refused HOST DEVICE` when nothing on it came about;
//! `failover HOST BOND` switches the bond of HOST to its other port;
//! `packets HOST PEER` looks at packets to the example `server` at PEER; `reads HOST` counts READs in flight by time, and
//! needs a path that takes 200 ms each way (`tc qdisc add dev lo root netem delay 200ms`).
//! Ends with `N passed, N failed, N skipped`.

mod data;
mod depths;
mod devices;
mod effects;
mod ends;
mod events;
mod failover;
mod options;
mod packets;
mod private_data;
mod reads;
mod refusals;
mod resolve;
mod rig;
mod silent;
mod work;

use std::process::ExitCode;

use rig::{Check, Outcome, Site};

/// One over several devices.
type Across = (&'static str, fn(&[Site]) -> Outcome);

const DEVICES: &[Across] = &[
    ("one listener over all devices", devices::one_listener),
    ("a listener on one device of several", devices::listen_on_one),
    ("a connect through one device of several", devices::connect_through_one),
    ("a device that is not there", devices::wrong_name),
];

const ALL: &[Check] = &[
    ("r6 private data of every length, on request and reject", private_data::request_and_reject),
    ("r6 private data of every length, on accept", private_data::accept),
    ("r7 one byte too many is refused before any packet", private_data::too_many),
    ("r9 depths 0, 1, 3, 16, 128, 255 on both sides", depths::granted),
    ("depths of a queue pair of our own making", depths::own_queue_pair),
    ("depths in Negotiated, asked, offered, granted", depths::negotiated),
    ("r9 bulk never has more READs than were granted", depths::bulk_keeps_the_depth),
    ("r9 an initiator_depth of 0 turns READs off", reads::none),
    ("r1 nobody listens", refusals::nobody_listens),
    ("reject with each of our reasons", refusals::our_reasons),
    ("a reject of the consumer's, raw", refusals::raw),
    ("a dropped request", refusals::dropped),
    ("r4 r5 r8 other versions, foreign and absurd hellos", refusals::other_version),
    ("every target is tried in order", resolve::in_order),
    ("connect data comes first", resolve::connect_data),
    ("addresses and ports", resolve::addresses),
    ("AF_IB, service records, path records", resolve::not_here),
    ("options where they are legal", options::legal),
    ("an ACK timeout is in force", options::ack_timeout),
    ("REUSEADDR and AFONLY", options::binding),
    ("a port behind TIME_WAIT is free", options::time_wait),
    ("backlog", options::backlog),
    ("posted memory is not touched", work::posted_memory),
    ("a wrong key is an error in words", work::wrong_key),
    ("a completion has a deadline", work::deadline),
    ("scatter and gather", data::pieces),
    ("immediates", data::immediates),
    ("inline bytes are free at once", data::inline),
    ("selective signalling", data::signalling),
    ("atomics", data::atomics),
    ("a wait on descriptors, and the events of a connection", data::descriptors),
    ("shared receives", data::shared),
    ("all shared receives complete on one connection", data::shared_alone),
    ("a READ that a SEND overtakes", reads::overtaken),
    ("flow control, retries, GIDs and numbers are exchanged", effects::exchanged),
    ("a type of service is in force", effects::type_of_service),
    ("a type of service on the packets of iWARP", packets::of_iwarp),
    ("REUSEADDR is needed for an address that is held", effects::reuse),
    ("RNR retries are counted", effects::rnr_retries),
    ("retransmissions are counted and timed", effects::retransmissions),
    ("ECE options are exchanged", effects::ece),
    ("data before the last message establishes", effects::notify),
    ("steps that fail say by which event", effects::errors_by_name),
    ("what is not served is refused by name", effects::refused_by_name),
    ("end points in one call", ends::create_ep),
    ("ids without a channel", ends::without_channel),
    ("devices without an id", ends::contexts),
    ("a queue pair by the extended call", ends::extended),
    ("what an older library lacks is refused by name", ends::newer),
    ("hints alone, datagrams, services by name", ends::questions),
    ("an id without a queue pair joins a group", ends::join),
    ("a queue pair that cannot be made ready", events::connect_error),
];

fn run(checks: &[Check], site: &Site, sums: &mut [u32; 3]) {
    for (name, check) in checks {
        tell(name, &site.host, check(site), sums);
    }
}

fn tell(name: &str, host: &str, outcome: Outcome, sums: &mut [u32; 3]) {
    match outcome {
        Ok(None) => {
            sums[0] += 1;
            println!("ok      {name} ({host})");
        }
        Ok(Some(reason)) => {
            sums[2] += 1;
            println!("SKIP    {name} ({host}): {reason}");
        }
        Err(error) => {
            sums[1] += 1;
            println!("FAILED  {name} ({host}): {error}");
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((group, hosts)) = words.split_first().filter(|(_, hosts)| !hosts.is_empty()) else {
        eprintln!(
            "cm_checks all|devices|names|silent|unreachable|removal|unused|refused|failover|packets|reads HOST [HOST ...]"
        );
        return ExitCode::FAILURE;
    };
    let mut sums = [0; 3];
    let only = std::env::var("CM_CHECKS_ONLY").unwrap_or_default();
    match group.as_str() {
        "all" => {
            let chosen: Vec<Check> = ALL.iter().filter(|(name, _)| name.contains(&only)).copied().collect();
            for host in hosts {
                run(&chosen, &Site::new(host), &mut sums);
            }
        }
        "silent" => {
            let site = Site { silent: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(silent::CHECKS, &site, &mut sums);
        }
        "unreachable" => {
            let site = Site { silent: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(&[("the kernel gives up on a silent host", events::unreachable)], &site, &mut sums);
        }
        "packets" => {
            let site = Site { silent: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(&[("a type of service on the packets of RoCE", packets::of_roce)], &site, &mut sums);
        }
        "removal" => {
            let site = Site { name: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(&[("a device deleted under a connection", events::removal)], &site, &mut sums);
        }
        "unused" => {
            let (name, silent) = (hosts.get(1).cloned(), hosts.get(2).cloned());
            let site = Site { name, silent, ..Site::new(&hosts[0]) };
            run(&[("a device that nobody uses is let go", events::unused)], &site, &mut sums);
        }
        "refused" => {
            let site = Site { name: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(
                &[("a device on which every connection failed is let go", refusals::lets_go)],
                &site,
                &mut sums,
            );
        }
        "failover" => {
            let site = Site { name: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(failover::CHECKS, &site, &mut sums);
        }
        "devices" => {
            let sites: Vec<_> = hosts.iter().map(|host| Site::new(host)).collect();
            for (name, check) in DEVICES {
                tell(name, &hosts.join(" "), check(&sites), &mut sums);
            }
        }
        "names" => {
            let site = Site { name: hosts.get(1).cloned(), ..Site::new(&hosts[0]) };
            run(&[("a name with several addresses", resolve::several)], &site, &mut sums);
        }
        "reads" => {
            run(&[("r9 N READs in flight, never N+1", reads::in_flight)], &Site::new(&hosts[0]), &mut sums)
        }
        other => eprintln!("no group {other}"),
    }
    let [passed, failed, skipped] = sums;
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
