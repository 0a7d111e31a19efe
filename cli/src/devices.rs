//! `gimmal devices`: what libibverbs sees, as text and as JSON.

use std::io::{self, Write};

use gimmal_rdma::device::{DeviceInfo, GidInfo, GidType, LinkLayer, PortInfo, Transport, Unusable};
use serde_json::{Value, json};

/// Prints `devices`, those that cannot be used with the reason.
pub(crate) fn print(devices: &[Result<DeviceInfo, Unusable>], as_json: bool) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        let list: Vec<Value> = devices.iter().map(any_json).collect();
        return writeln!(out, "{}", serde_json::to_string_pretty(&list)?);
    }
    if devices.is_empty() {
        return writeln!(out, "no RDMA device; `gimmal doctor` says what is missing");
    }
    for device in devices {
        match device {
            Ok(device) => write!(out, "{}", device_text(device))?,
            Err(unusable) => writeln!(out, "{unusable}")?,
        }
    }
    Ok(())
}

fn any_json(device: &Result<DeviceInfo, Unusable>) -> Value {
    match device {
        Ok(device) => device_json(device),
        Err(Unusable { name, file, why }) => {
            json!({ "name": name, "file": format!("/dev/infiniband/{file}"), "unusable": why.to_string() })
        }
    }
}

fn transport(device: &DeviceInfo) -> &'static str {
    let is_ethernet = device.ports.first().is_some_and(|port| port.link_layer == LinkLayer::Ethernet);
    match device.transport {
        Transport::Ib if is_ethernet => "RoCE",
        Transport::Ib => "InfiniBand",
        Transport::Iwarp => "iWARP",
        _ => "other",
    }
}

const fn kind(gid: &GidInfo) -> &'static str {
    match gid.kind {
        GidType::Ib => "IB",
        GidType::RoceV1 => "RoCE v1",
        GidType::RoceV2 => "RoCE v2",
        _ => "unknown",
    }
}

const fn link_layer(port: &PortInfo) -> &'static str {
    match port.link_layer {
        LinkLayer::Infiniband => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        _ => "other",
    }
}

fn device_text(device: &DeviceInfo) -> String {
    let capacity = &device.capacity;
    let mut text = format!(
        "{}  {}, {}, guid {:016x}, firmware {}\n",
        device.name,
        transport(device),
        device.file,
        device.guid,
        if device.firmware.is_empty() { "none" } else { &device.firmware },
    );
    text += &format!(
        "  limits: {} queue pairs of {} entries, {} completion queues of {}, {} registrations, {} pieces a request\n",
        capacity.queue_pairs,
        capacity.queue_pair_entries,
        capacity.completion_queues,
        capacity.completion_queue_entries,
        capacity.registrations,
        capacity.pieces,
    );
    text += &format!(
        "          responder_resources {}, initiator_depth {}, {} shared receive queues, {} multicast groups\n",
        capacity.responder_resources,
        capacity.initiator_depth,
        capacity.shared_receive_queues,
        capacity.multicast_groups,
    );
    for port in &device.ports {
        text += &format!(
            "  port {}: {} on {} ({}), MTU {} of {}, messages up to {} bytes\n",
            port.number,
            port.state,
            port.netdev.as_deref().unwrap_or("no interface"),
            link_layer(port),
            port.active_mtu_bytes,
            port.max_mtu_bytes,
            port.message_bytes_max,
        );
        for gid in &port.gids {
            let netdev = gid.netdev.as_deref().unwrap_or("");
            text += &format!("    gid {:<3} {:<7} {} {netdev}\n", gid.index, kind(gid), gid.gid);
        }
    }
    text
}

fn device_json(device: &DeviceInfo) -> Value {
    let capacity = &device.capacity;
    json!({
        "name": device.name,
        "file": format!("/dev/infiniband/{}", device.file),
        "transport": transport(device),
        "guid": format!("{:016x}", device.guid),
        "firmware": device.firmware,
        "vendor_id": device.vendor_id,
        "vendor_part_id": device.vendor_part_id,
        "limits": {
            "queue_pairs": capacity.queue_pairs,
            "queue_pair_entries": capacity.queue_pair_entries,
            "pieces": capacity.pieces,
            "completion_queues": capacity.completion_queues,
            "completion_queue_entries": capacity.completion_queue_entries,
            "registrations": capacity.registrations,
            "registration_bytes_max": capacity.registration_bytes_max,
            "responder_resources": capacity.responder_resources,
            "initiator_depth": capacity.initiator_depth,
            "shared_receive_queues": capacity.shared_receive_queues,
            "multicast_groups": capacity.multicast_groups,
        },
        "ports": device.ports.iter().map(port_json).collect::<Vec<_>>(),
    })
}

fn port_json(port: &PortInfo) -> Value {
    let gid = |gid: &GidInfo| json!({ "index": gid.index, "gid": gid.gid.to_string(), "kind": kind(gid), "netdev": gid.netdev });
    json!({
        "number": port.number,
        "state": port.state,
        "is_active": port.is_active,
        "link_layer": link_layer(port),
        "active_mtu_bytes": port.active_mtu_bytes,
        "max_mtu_bytes": port.max_mtu_bytes,
        "message_bytes_max": port.message_bytes_max,
        "lid": port.lid,
        "netdev": port.netdev,
        "gids": port.gids.iter().map(gid).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use gimmal_rdma::device::{DeviceCapacity, Why};

    use super::*;

    fn device() -> DeviceInfo {
        DeviceInfo {
            name: "rxe0".into(),
            file: "uverbs0".into(),
            transport: Transport::Ib,
            guid: 0x1234,
            firmware: String::new(),
            vendor_id: 0xff_ffff,
            vendor_part_id: 0,
            capacity: DeviceCapacity {
                queue_pairs: 1,
                queue_pair_entries: 2,
                pieces: 3,
                completion_queues: 4,
                completion_queue_entries: 5,
                registrations: 6,
                registration_bytes_max: u64::MAX,
                responder_resources: 128,
                initiator_depth: 16,
                shared_receive_queues: 8,
                multicast_groups: 9,
            },
            ports: vec![PortInfo {
                number: 1,
                state: "PORT_ACTIVE".into(),
                is_active: true,
                link_layer: LinkLayer::Ethernet,
                active_mtu_bytes: 4096,
                max_mtu_bytes: 4096,
                message_bytes_max: 1 << 23,
                lid: 0,
                netdev: Some("v0".into()),
                gids: vec![GidInfo {
                    index: 1,
                    gid: "::ffff:10.77.1.1".parse().unwrap(),
                    kind: GidType::RoceV2,
                    netdev: Some("v0".into()),
                }],
            }],
        }
    }

    #[test]
    fn text_has_the_gid_and_its_version() {
        let text = device_text(&device());
        assert!(text.starts_with("rxe0  RoCE, uverbs0"), "{text}");
        assert!(text.contains("port 1: PORT_ACTIVE on v0 (Ethernet), MTU 4096 of 4096"), "{text}");
        assert!(text.contains("gid 1   RoCE v2 ::ffff:10.77.1.1 v0"), "{text}");
    }

    #[test]
    fn a_device_that_cannot_be_used_says_why() {
        let unusable = Unusable { name: "siw0".into(), file: "uverbs1".into(), why: Why::NoFile };
        let json = any_json(&Err(unusable));
        assert_eq!((&json["name"], &json["file"]), (&json!("siw0"), &json!("/dev/infiniband/uverbs1")));
        assert!(json["unusable"].as_str().unwrap().contains("is missing"), "{json}");
    }

    #[test]
    fn json_has_the_same() {
        let json = device_json(&device());
        assert_eq!(json["limits"]["responder_resources"], 128);
        assert_eq!(json["ports"][0]["gids"][0]["kind"], "RoCE v2");
        assert_eq!(json["file"], "/dev/infiniband/uverbs0");
    }
}
