//! Datagrams against a real device, both sides in this process: `datagram_checks ADDRESS [ADDRESS ...]`.
//!
//! Each ADDRESS is one of an RDMA device of this machine. On a device without datagrams the refusal is checked and
//! the rest is SKIP. `datagram_checks --remove DEVICE ADDRESS` deletes that device under two end points instead. Ends
//! with `N passed, N failed, N skipped`, and a non-zero exit code when a case failed.
#![expect(
    clippy::disallowed_types,
    clippy::arithmetic_side_effects,
    reason = "no span here is longer than an hour"
)]

mod limits;
mod multicast;
mod removal;
mod side;
mod unicast;

use std::{
    net::{IpAddr, SocketAddr},
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use gimmal_rdma::datagram::{Datagram, DatagramConfig, OpenError};
use side::Failure;

type Case = (&'static str, fn(IpAddr) -> Result<(), Failure>);

const CASES: &[Case] = &[
    ("private data of every length, both ways", unicast::private_data_of_every_length),
    ("a reject carries data", unicast::a_reject_carries_data),
    ("messages of every size to the exact MTU", unicast::messages_to_the_exact_mtu),
    ("who sent it", unicast::who_sent_it),
    ("another queue key", unicast::another_queue_key),
    ("no allocation for a message", unicast::no_allocation_for_a_message),
    ("a message above the MTU is refused", limits::above_the_mtu),
    ("more messages than receives", limits::more_messages_than_receives),
    ("nobody listens", limits::nobody_listens),
    ("a silent listener ends at the deadline", limits::silent_listener),
    ("no such host ends at the deadline", limits::no_such_host),
    ("more look-ups than asked for", limits::more_look_ups_than_asked_for),
    ("somebody else's peer", limits::somebody_elses_peer),
    ("a port twice", limits::a_port_twice),
    ("dropped while messages fly", limits::dropped_while_messages_fly),
    ("a group with two subscribers", multicast::two_subscribers),
    ("leaving stops delivery", multicast::leaving_stops_delivery),
    ("send-only members receive nothing", multicast::send_only),
    ("what is no group of ours", multicast::no_group_of_ours),
    ("the zero address of a group", multicast::zero_address),
    ("a join that is given up", multicast::given_up),
    ("more members than the device attaches", multicast::more_members_than_attach),
    ("50 lives leave nothing behind", multicast::fifty_lives),
];

/// What the kernel holds for RDMA.
fn resources() -> String {
    match Command::new("rdma").args(["resource", "show"]).output() {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(_) => String::new(),
    }
}

fn nothing_left(before: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + Duration::from_secs(5);
    while resources() != before {
        if Instant::now() > deadline {
            return Err(format!("left on the devices:\n{}before:\n{before}", resources()).into());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, device, address] = &words[..]
        && flag == "--remove"
    {
        return match removal::removed_under_load(device, address) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                println!("FAILED  {device} removed: {error}");
                ExitCode::FAILURE
            }
        };
    }
    cases(&words)
}

fn cases(words: &[String]) -> ExitCode {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for word in words {
        let Ok(address) = word.parse::<IpAddr>() else {
            eprintln!("'{word}' is not an address");
            return ExitCode::FAILURE;
        };
        let why = match Datagram::bind(SocketAddr::new(address, 0), &DatagramConfig::default()) {
            Ok(_) => None,
            Err(error @ OpenError::NoDatagrams { .. }) => Some(error.to_string()),
            Err(error) => {
                println!("FAILED  {address}: {error}");
                failed += 1;
                continue;
            }
        };
        if let Some(why) = &why {
            println!("ok      {address} is refused: {why}");
            passed += 1;
        }
        for (name, case) in CASES {
            if why.is_some() {
                println!("SKIP    {name} ({address}): the device has no datagrams");
                skipped += 1;
                continue;
            }
            let before = resources();
            let start = Instant::now();
            match case(address).and_then(|()| nothing_left(&before)) {
                Ok(()) => {
                    println!("ok      {address}: {name} ({} ms)", start.elapsed().as_millis());
                    passed += 1;
                }
                Err(error) => {
                    println!("FAILED  {address}: {name}: {error}");
                    failed += 1;
                }
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
