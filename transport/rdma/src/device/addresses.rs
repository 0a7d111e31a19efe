//! The addresses of network interfaces (`getifaddrs(3)`).

use std::{ffi::CStr, net::IpAddr, ptr};

/// An interface's address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// `eth0`.
    pub netdev: String,
    /// What it has.
    pub address: IpAddr,
    /// Bits that it shares with its network.
    pub prefix: u8,
}

impl Assigned {
    /// Whether peers beyond the link can use it; link-local ones need a scope that no URL of ours carries.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        match self.address {
            IpAddr::V4(v4) => !v4.is_link_local() && !v4.is_loopback(),
            IpAddr::V6(v6) => !v6.is_unicast_link_local() && !v6.is_loopback(),
        }
    }
}

/// What all interfaces have; empty when the kernel does not say.
#[must_use]
pub fn all() -> Vec<Assigned> {
    let mut list = ptr::null_mut();
    // SAFETY: `list` is a place for one pointer.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), list);
    // SAFETY: null, or an entry of the list, which lives until it is freed below.
    while let Some(entry) = unsafe { next.as_ref() } {
        // SAFETY: as above.
        found.extend(unsafe { assigned(entry) });
        next = entry.ifa_next;
    }
    // SAFETY: from `getifaddrs`, freed once.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// # Safety
/// `entry` is of a list that `getifaddrs(3)` made.
unsafe fn assigned(entry: &libc::ifaddrs) -> Option<Assigned> {
    // SAFETY: null, or an address, by the caller's promise.
    let address = unsafe { ip(entry.ifa_addr) }?;
    // SAFETY: as above.
    let prefix = match unsafe { ip(entry.ifa_netmask) }? {
        IpAddr::V4(mask) => mask.to_bits().count_ones(),
        IpAddr::V6(mask) => mask.to_bits().count_ones(),
    };
    // SAFETY: ended by NUL, by the caller's promise.
    let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy();
    // An address of IPv4 has a label: the interface's name, with `:1` behind it where there are several.
    let netdev = name.split(':').next()?.to_owned();
    Some(Assigned { netdev, address, prefix: u8::try_from(prefix).ok()? })
}

/// # Safety
/// `place` is null, or an address of its family.
unsafe fn ip(place: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: null, or an address, which begins with its family.
    match i32::from(unsafe { place.as_ref() }?.sa_family) {
        libc::AF_INET => {
            // SAFETY: of this family.
            let v4 = unsafe { place.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
        }
        libc::AF_INET6 => {
            // SAFETY: of this family.
            let v6 = unsafe { place.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::from(v6.sin6_addr.s6_addr))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_loopback() {
        let loopback = all().into_iter().find(|one| one.netdev == "lo").unwrap();
        assert!(loopback.address.is_loopback() && !loopback.is_usable(), "{loopback:?}");
    }

    #[test]
    fn link_local_addresses_do_not_count() {
        let one = |text: &str| Assigned { netdev: "v0".into(), address: text.parse().unwrap(), prefix: 24 };
        assert!(one("10.0.0.1").is_usable() && one("fd77::1").is_usable());
        assert!(
            !one("169.254.1.1").is_usable() && !one("fe80::1").is_usable() && !one("127.0.0.1").is_usable()
        );
    }
}
