//! What this machine has: libraries, devices with their ports, the addresses of network interfaces, counters. For programs
//! that show or judge it; nothing is kept open.

mod addresses;
mod rnr;

use std::{ffi::CStr, net::Ipv6Addr, path::Path, ptr::NonNull};

use thiserror::Error;

pub use addresses::{Assigned, all as addresses};
pub use rnr::{RnrCounters, rnr_counters};

pub use crate::verbs::context::GidType;
use crate::{
    error::{DeviceError, require_libraries, system},
    sys,
    verbs::context::{address, mtu_bytes, query_device, query_gid, query_port},
};

/// Most GIDs that are read of one device: the tables of the kernel's drivers have at most 256 for each port.
const GIDS: usize = 1024;

/// How a device carries verbs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand, or RoCE when the link layer is Ethernet.
    Ib,
    /// iWARP: no write-with-immediate; send and receive only.
    Iwarp,
    /// Something else, with libibverbs' number.
    Other(i32),
}

/// What lies under a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand.
    Infiniband,
    /// Ethernet: RoCE, iWARP.
    Ethernet,
    /// Something else, with libibverbs' number.
    Other(u8),
}

/// One entry of a port's GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GidInfo {
    /// Its place in the table.
    pub index: u32,
    /// The GID, which is written as an IPv6 address; on RoCE the IPv4 ones are mapped (`::ffff:10.0.0.1`).
    pub gid: Ipv6Addr,
    /// Which protocol it is for.
    pub kind: GidType,
    /// The network interface it comes from, where there is one.
    pub netdev: Option<String>,
}

/// One port of a device, `ibv_query_port(3)`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// From 1.
    pub number: u8,
    /// `PORT_ACTIVE`, as libibverbs spells it.
    pub state: String,
    /// Whether data can pass: ACTIVE.
    pub is_active: bool,
    /// What lies under it.
    pub link_layer: LinkLayer,
    /// Path MTU that is in use, bytes.
    pub active_mtu_bytes: u32,
    /// Largest path MTU, bytes.
    pub max_mtu_bytes: u32,
    /// Largest message, bytes.
    pub message_bytes_max: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
    /// The network interface under it, where there is one.
    pub netdev: Option<String>,
    /// Its GID table, without empty entries.
    pub gids: Vec<GidInfo>,
}

/// What a device can do, `ibv_query_device(3)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeviceCapacity {
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Entries of a send or receive queue.
    pub queue_pair_entries: u32,
    /// Pieces of memory one request may name.
    pub pieces: u32,
    /// Completion queues.
    pub completion_queues: u32,
    /// Entries of a completion queue.
    pub completion_queue_entries: u32,
    /// Memory registrations.
    pub registrations: u32,
    /// Largest registration, bytes.
    pub registration_bytes_max: u64,
    /// READs that peers may have outstanding at one queue pair (`max_qp_rd_atom`).
    pub responder_resources: u32,
    /// READs that one queue pair may have outstanding (`max_qp_init_rd_atom`).
    pub initiator_depth: u32,
    /// Shared receive queues; 0: none.
    pub shared_receive_queues: u32,
    /// Multicast groups; 0: none.
    pub multicast_groups: u32,
}

/// A device as libibverbs sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceInfo {
    /// `rxe0`.
    pub name: String,
    /// `uverbs0`, the file in `/dev/infiniband`.
    pub file: String,
    /// How it carries verbs.
    pub transport: Transport,
    /// The node's identity.
    pub guid: u64,
    /// Firmware, or empty.
    pub firmware: String,
    /// The maker.
    pub vendor_id: u32,
    /// The maker's number of the model.
    pub vendor_part_id: u32,
    /// What it can do.
    pub capacity: DeviceCapacity,
    /// Its ports.
    pub ports: Vec<PortInfo>,
}

/// Whether libibverbs and librdmacm can be opened.
///
/// # Errors
/// [`DeviceError::Unavailable`]: which is missing, and the package that has it.
pub fn libraries() -> Result<(), DeviceError> {
    require_libraries()
}

/// Checks that there is a device, and opens none.
///
/// # Errors
/// [`DeviceError::Unavailable`] without the libraries; [`DeviceError::NoDevice`], which says what to do.
pub fn require_device() -> Result<(), DeviceError> {
    require_libraries()?;
    let list = List::new()?;
    if list.devices().next().is_some() {
        return Ok(());
    }
    Err(DeviceError::NoDevice { detail: "ibv_get_device_list has none".to_owned() })
}

/// A device that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("{name} ({file}) cannot be used: {why}")]
pub struct Unusable {
    /// `siw0`.
    pub name: String,
    /// `uverbs1`, the file in `/dev/infiniband`.
    pub file: String,
    /// What is wrong with it.
    pub why: Why,
}

/// Why a device cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum Why {
    /// Its file is not there.
    #[error("its file is missing; udev makes it, and a container needs --device=/dev/infiniband")]
    NoFile,
    /// libibverbs has nothing that drives it.
    #[error("libibverbs has no driver for it; install ibverbs-providers")]
    NoDriver,
    /// This user may not open its file.
    #[error("this user may not open its file: {0}")]
    NoAccess(DeviceError),
    /// The process has used up what its cgroup may have of the device.
    #[error("rdma.max of the cgroup is reached: {0}")]
    CgroupLimit(DeviceError),
    /// It was asked and refused.
    #[error("{0}")]
    Refused(DeviceError),
}

impl From<DeviceError> for Why {
    fn from(error: DeviceError) -> Self {
        match error {
            // libibverbs itself says ENOENT when it may not open the file.
            DeviceError::System {
                step: "ibv_open_device",
                errno: libc::EACCES | libc::EPERM | libc::ENOENT,
            } => Self::NoAccess(error),
            DeviceError::System { errno: libc::EAGAIN, .. } => Self::CgroupLimit(error),
            error => Self::Refused(error),
        }
    }
}

/// Returns every device of the machine, those that cannot be used with the reason; empty when there is none
/// (`ibv_get_device_list(3)`). Each is opened and closed again.
///
/// # Errors
/// [`DeviceError::Unavailable`] without the libraries; what `ibv_get_device_list` says.
pub fn devices() -> Result<Vec<Result<DeviceInfo, Unusable>>, DeviceError> {
    require_libraries()?;
    let list = List::new()?;
    let judge = |device: NonNull<sys::ibv_device>| {
        // SAFETY: the list is held, so the device is there; its fields never change.
        let held = unsafe { device.as_ref() };
        describe(device).map_err(|error| Unusable {
            name: text(&held.name),
            file: text(&held.dev_name),
            why: error.into(),
        })
    };
    let mut found: Vec<_> = list.devices().map(judge).collect();
    let is_listed = |name: &str| {
        let names = found.iter().map(|found| match found {
            Ok(device) => &device.name,
            Err(device) => &device.name,
        });
        names.into_iter().any(|listed| listed == name)
    };
    let unlisted = unlisted(Path::new("/"), is_listed);
    found.extend(unlisted.into_iter().map(Err));
    Ok(found)
}

/// Devices of the kernel that libibverbs leaves out.
fn unlisted(root: &Path, is_listed: impl Fn(&str) -> bool) -> Vec<Unusable> {
    let folder = std::fs::read_dir(root.join("sys/class/infiniband_verbs"));
    let judge = |entry: std::fs::DirEntry| {
        let name = std::fs::read_to_string(entry.path().join("ibdev")).ok()?.trim().to_owned();
        let file = entry.file_name().to_string_lossy().into_owned();
        let why = if root.join("dev/infiniband").join(&file).exists() { Why::NoDriver } else { Why::NoFile };
        (!is_listed(&name)).then_some(Unusable { name, file, why })
    };
    let mut unlisted: Vec<_> = folder.into_iter().flatten().flatten().filter_map(judge).collect();
    unlisted.sort_by(|one, other| one.name.cmp(&other.name));
    unlisted
}

/// A device list; freed when dropped, and devices not open then are gone.
struct List {
    /// `None`: the kernel has no verbs at all.
    first: Option<NonNull<*mut sys::ibv_device>>,
    count: usize,
}

impl List {
    fn new() -> Result<Self, DeviceError> {
        let mut count = 0;
        // SAFETY: `count` is a place for one int.
        let list = unsafe { sys::ibv_get_device_list(&raw mut count) };
        match sys::pointer_result(list) {
            Ok(first) => Ok(Self { first: Some(first), count: usize::try_from(count).unwrap_or(0) }),
            Err(libc::ENOSYS | libc::ENOENT | libc::ENODEV) => Ok(Self { first: None, count: 0 }),
            Err(errno) => Err(system("ibv_get_device_list")(errno)),
        }
    }

    /// The devices, which are there as long as the list.
    fn devices(&self) -> impl Iterator<Item = NonNull<sys::ibv_device>> {
        self.first.into_iter().flat_map(|first| {
            (0..self.count).filter_map(move |at| {
                let place = first.as_ptr().wrapping_add(at);
                // SAFETY: the list has `count` devices, and lives while we do.
                NonNull::new(unsafe { place.read() })
            })
        })
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(first) = self.first {
            // SAFETY: from `ibv_get_device_list`, freed once.
            unsafe { sys::ibv_free_device_list(first.as_ptr()) };
        }
    }
}

/// A context that we opened.
struct Open(NonNull<sys::ibv_context>);

impl Drop for Open {
    fn drop(&mut self) {
        // SAFETY: opened by us, nothing was made on it.
        unsafe { sys::ibv_close_device(self.0.as_ptr()) };
    }
}

fn describe(device: NonNull<sys::ibv_device>) -> Result<DeviceInfo, DeviceError> {
    // SAFETY: of a list that is still held.
    let context = unsafe { sys::ibv_open_device(device.as_ptr()) };
    let context = sys::pointer_result(context).map(Open).map_err(system("ibv_open_device"))?;
    // SAFETY: the context is open.
    let attributes = unsafe { query_device(context.0.as_ptr()) }?;
    let gids = gid_table(&context, &attributes);
    let ports = (1..=attributes.phys_port_cnt)
        .map(|number| describe_port(&context, number, &gids))
        .collect::<Result<_, _>>()?;
    // SAFETY: the list is held, so the device is there; its fields never change.
    let held = unsafe { device.as_ref() };
    Ok(DeviceInfo {
        name: text(&held.name),
        file: text(&held.dev_name),
        transport: match held.transport_type {
            sys::ibv_transport_type::IBV_TRANSPORT_IB => Transport::Ib,
            sys::ibv_transport_type::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            other => Transport::Other(other),
        },
        guid: u64::from_be(attributes.node_guid),
        firmware: text(&attributes.fw_ver),
        vendor_id: attributes.vendor_id,
        vendor_part_id: attributes.vendor_part_id,
        capacity: capacity(&attributes),
        ports,
    })
}

fn capacity(attributes: &sys::ibv_device_attr) -> DeviceCapacity {
    let count = |value: i32| u32::try_from(value).unwrap_or(0);
    DeviceCapacity {
        queue_pairs: count(attributes.max_qp),
        queue_pair_entries: count(attributes.max_qp_wr),
        pieces: count(attributes.max_sge),
        completion_queues: count(attributes.max_cq),
        completion_queue_entries: count(attributes.max_cqe),
        registrations: count(attributes.max_mr),
        registration_bytes_max: attributes.max_mr_size,
        responder_resources: count(attributes.max_qp_rd_atom),
        initiator_depth: count(attributes.max_qp_init_rd_atom),
        shared_receive_queues: count(attributes.max_srq),
        multicast_groups: count(attributes.max_mcast_grp),
    }
}

fn describe_port(context: &Open, number: u8, gids: &[(u32, GidInfo)]) -> Result<PortInfo, DeviceError> {
    // SAFETY: the context is open.
    let attributes = unsafe { query_port(context.0.as_ptr(), number) }?;
    // SAFETY: any number has a text.
    let state = unsafe { sys::ibv_port_state_str(attributes.state) };
    let state = NonNull::new(state.cast_mut()).map_or_else(String::new, |state| {
        // SAFETY: the library's own constant, ended by NUL.
        unsafe { CStr::from_ptr(state.as_ptr()) }.to_string_lossy().into_owned()
    });
    let mut gids: Vec<GidInfo> =
        gids.iter().filter(|(port, _)| *port == u32::from(number)).map(|(_, gid)| gid.clone()).collect();
    if gids.is_empty() {
        gids = gids_one_by_one(context, number, attributes.gid_tbl_len);
    }
    Ok(PortInfo {
        number,
        state,
        is_active: attributes.state == sys::ibv_port_state::IBV_PORT_ACTIVE,
        link_layer: match attributes.link_layer {
            sys::IBV_LINK_LAYER_INFINIBAND => LinkLayer::Infiniband,
            sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
            other => LinkLayer::Other(other),
        },
        active_mtu_bytes: mtu_bytes(attributes.active_mtu),
        max_mtu_bytes: mtu_bytes(attributes.max_mtu),
        message_bytes_max: attributes.max_msg_sz,
        lid: attributes.lid,
        netdev: gids.iter().find_map(|gid| gid.netdev.clone()).or_else(|| by_hardware_address(&gids)),
        gids,
    })
}

/// The whole table, each with its port; empty when the library or the kernel cannot give it.
fn gid_table(context: &Open, attributes: &sys::ibv_device_attr) -> Vec<(u32, GidInfo)> {
    let room = GIDS * usize::from(attributes.phys_port_cnt.max(1));
    let mut entries: Vec<sys::ibv_gid_entry> = std::iter::repeat_with(sys::zeroed).take(room).collect();
    // SAFETY: the context is open, and there is room for `room` entries.
    let count = unsafe { sys::ibv_query_gid_table(context.0.as_ptr(), entries.as_mut_ptr(), room, 0) };
    entries.truncate(usize::try_from(count).unwrap_or(0));
    let describe = |entry: &sys::ibv_gid_entry| {
        let info = GidInfo {
            index: entry.gid_index,
            gid: address(&entry.gid),
            kind: GidType::from_raw(entry.gid_type),
            netdev: interface_name(entry.ndev_ifindex),
        };
        (entry.port_num, info)
    };
    entries.iter().map(describe).collect()
}

/// What every version of the library can do: each place of the table, without kind and interface.
fn gids_one_by_one(context: &Open, port: u8, places: i32) -> Vec<GidInfo> {
    let describe = |index| {
        // SAFETY: the context is open.
        let gid =
            unsafe { query_gid(context.0.as_ptr(), port, index) }.filter(|gid| !gid.is_unspecified())?;
        Some(GidInfo { index: u32::try_from(index).unwrap_or(0), gid, kind: GidType::Unknown, netdev: None })
    };
    (0..places).filter_map(describe).collect()
}

fn interface_name(index: u32) -> Option<String> {
    use rustix::net::{AddressFamily, SocketType, netdevice, socket};
    if index == 0 {
        return None;
    }
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(&any, index).ok()
}

/// iWARP drivers put the interface's hardware address into the GID and name no interface.
fn by_hardware_address(gids: &[GidInfo]) -> Option<String> {
    let first = gids.first()?.gid.octets();
    let hardware = first[..6].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(":");
    let folder = std::fs::read_dir("/sys/class/net").ok()?;
    folder.flatten().find_map(|entry| {
        let address = std::fs::read_to_string(entry.path().join("address")).ok()?;
        (address.trim() == hardware).then(|| entry.file_name().to_string_lossy().into_owned())
    })
}

/// A C array that holds a text.
fn text(array: &[std::ffi::c_char]) -> String {
    let bytes: Vec<u8> =
        array.iter().take_while(|byte| **byte != 0).map(|byte| byte.to_ne_bytes()[0]).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        assert_eq!([0, 1, 5, 6].map(mtu_bytes), [0, 256, 4096, 0]);
        assert_eq!(address(&sys::ibv_gid { raw: [1; 16] }).octets(), [1; 16]);
        assert_eq!(interface_name(0), None);
        assert_eq!(interface_name(1).as_deref(), Some("lo"));
    }

    #[test]
    fn a_device_that_libibverbs_leaves_out_is_listed_with_the_reason() {
        let root = tempfile::tempdir().unwrap();
        for (file, name, has_file) in
            [("uverbs0", "rxe0", true), ("uverbs1", "siw0", false), ("uverbs2", "mlx9", true)]
        {
            let class = root.path().join("sys/class/infiniband_verbs").join(file);
            std::fs::create_dir_all(&class).unwrap();
            std::fs::write(class.join("ibdev"), format!("{name}\n")).unwrap();
            std::fs::create_dir_all(root.path().join("dev/infiniband")).unwrap();
            if has_file {
                std::fs::write(root.path().join("dev/infiniband").join(file), "").unwrap();
            }
        }
        let found = unlisted(root.path(), |name| name == "rxe0");
        let found: Vec<_> = found.iter().map(|device| (device.name.as_str(), &device.why)).collect();
        assert_eq!(found, [("mlx9", &Why::NoDriver), ("siw0", &Why::NoFile)]);
        let refused = |errno| Why::from(DeviceError::System { step: "ibv_open_device", errno });
        assert!(matches!(refused(libc::EAGAIN), Why::CgroupLimit(_)));
        assert!(matches!(refused(libc::ENOENT), Why::NoAccess(_)));
        assert!(matches!(refused(libc::EIO), Why::Refused(_)));
    }

    #[test]
    fn a_machine_without_devices_has_an_empty_list() {
        if Path::new("/sys/class/infiniband").exists() {
            return;
        }
        // With the libraries there is an empty list, without them a sentence; never a panic.
        match (libraries(), devices()) {
            (Ok(()), listed) => assert_eq!(listed, Ok(Vec::new())),
            (Err(missing), listed) => assert_eq!(listed, Err(missing)),
        }
    }
}
