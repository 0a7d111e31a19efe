//! One result of `rdma_getaddrinfo(3)`, copied out: addresses, routes, and what must come first in the private data.

use std::ffi::{CStr, c_char};

use crate::{
    cm::{error::CmError, params::ConnectData},
    id::{
        address::{CmAddress, RAW_BYTES, RawCmAddress},
        path::{PATH_BYTES, PathData},
        space::{PortSpace, QpType},
    },
    sys::{self, rai},
};

/// Where to connect to, or to listen.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Target {
    /// `None` when it is none of [`PortSpace`].
    pub port_space: Option<PortSpace>,
    /// `None` when it is none of [`QpType`].
    pub qp_type: Option<QpType>,
    /// Connect from here, or listen here.
    pub source: Option<CmAddress>,
    /// Connect to here; `None` in a passive result.
    pub destination: Option<CmAddress>,
    /// The canonical name of the source.
    pub source_name: Option<String>,
    /// The canonical name of the destination.
    pub destination_name: Option<String>,
    /// Path records that the resolver found; empty off InfiniBand.
    pub routes: Vec<PathData>,
    /// Must be sent first in the private data of the connect request.
    pub connect_data: Vec<u8>,
}

impl Target {
    /// Copies one entry.
    ///
    /// # Safety
    /// `entry` belongs to a live result of `rdma_getaddrinfo`, unchanged since.
    pub(crate) unsafe fn copy(entry: &sys::rdma_addrinfo) -> Self {
        // SAFETY: for all of them: pointers and lengths of a live entry, which the library filled consistently.
        let source = unsafe { bytes(entry.ai_src_addr.cast(), entry.ai_src_len as usize) };
        // SAFETY: as above.
        let destination = unsafe { bytes(entry.ai_dst_addr.cast(), entry.ai_dst_len as usize) };
        // SAFETY: as above.
        let routes = unsafe { bytes(entry.ai_route.cast(), entry.ai_route_len) };
        // SAFETY: as above.
        let connect_data = unsafe { bytes(entry.ai_connect.cast(), entry.ai_connect_len) };
        // SAFETY: as above; the names end with NULs.
        let source_name = unsafe { name(entry.ai_src_canonname) };
        // SAFETY: as above.
        let destination_name = unsafe { name(entry.ai_dst_canonname) };
        Self {
            port_space: PortSpace::parse(entry.ai_port_space),
            qp_type: QpType::parse(entry.ai_qp_type),
            source: address(&source),
            destination: address(&destination),
            source_name,
            destination_name,
            routes: routes.chunks_exact(PATH_BYTES).filter_map(PathData::from_bytes).collect(),
            connect_data,
        }
    }

    /// Of a known address, without asking anybody.
    #[must_use]
    pub fn at(destination: impl Into<CmAddress>) -> Self {
        Self {
            port_space: Some(PortSpace::Tcp),
            qp_type: Some(QpType::Rc),
            destination: Some(destination.into()),
            ..Self::default()
        }
    }

    /// Lends the target to `call` as the entry that the library made it of.
    pub(crate) fn lend<T>(&self, call: impl FnOnce(*mut sys::rdma_addrinfo) -> T) -> T {
        let mut entry: sys::rdma_addrinfo = sys::zeroed();
        let number = |raw: u32| i32::try_from(raw).unwrap_or(0);
        entry.ai_flags = if self.destination.is_none() { rai::PASSIVE } else { 0 };
        entry.ai_port_space = number(self.port_space.unwrap_or_default().raw());
        entry.ai_qp_type = number(self.qp_type.unwrap_or_default().raw());
        let [mut source, mut destination] =
            [self.source, self.destination].map(|address| address.as_ref().map(RawCmAddress::from));
        if let Some(source) = &mut source {
            entry.ai_family = source.family();
            (entry.ai_src_addr, entry.ai_src_len) = (source.as_mut_ptr(), source.len());
        }
        if let Some(destination) = &mut destination {
            entry.ai_family = destination.family();
            (entry.ai_dst_addr, entry.ai_dst_len) = (destination.as_mut_ptr(), destination.len());
        }
        let mut routes = PathData::words(&self.routes);
        if !routes.is_empty() {
            entry.ai_route_len = size_of_val(routes.as_slice());
            entry.ai_route = routes.as_mut_ptr().cast();
        }
        let mut connect_data = self.connect_data.clone();
        if !connect_data.is_empty() {
            entry.ai_connect_len = connect_data.len();
            entry.ai_connect = connect_data.as_mut_ptr().cast();
        }
        call(&raw mut entry)
    }

    pub(crate) fn is_usable(&self) -> bool {
        self.source.is_some() || self.destination.is_some()
    }

    /// Private data for a connect request to this target: `ai_connect` data first, as the manual asks, then `own`.
    ///
    /// # Errors
    /// [`CmError::Device`] when both together are above 56 bytes.
    pub fn private_data(&self, own: &[u8]) -> Result<ConnectData, CmError> {
        Ok(ConnectData::behind(&self.connect_data, own)?)
    }
}

/// # Safety
/// `place` is null, or `len` bytes can be read there.
unsafe fn bytes(place: *const u8, len: usize) -> Vec<u8> {
    if place.is_null() || len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { std::slice::from_raw_parts(place, len) }.to_vec()
}

/// # Safety
/// `place` is null, or a string that ends with a NUL.
unsafe fn name(place: *const c_char) -> Option<String> {
    if place.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(place) }.to_string_lossy().into_owned())
}

fn address(bytes: &[u8]) -> Option<CmAddress> {
    let mut raw = [0; RAW_BYTES];
    let len = bytes.len().min(RAW_BYTES);
    raw[..len].copy_from_slice(&bytes[..len]);
    let address = CmAddress::parse(&raw)?;
    // Shorter than its family: not an address.
    (len >= RawCmAddress::from(&address).len() as usize).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::path::PATH_WORDS;

    /// A made-up entry with everything that a fabric with an SA resolver would give.
    #[test]
    fn everything_of_an_entry_is_copied() {
        let mut entry: sys::rdma_addrinfo = sys::zeroed();
        let mut destination = RawCmAddress::from(&CmAddress::Ip("10.0.0.1:7".parse().unwrap()));
        let mut route = [7u64; 2 * PATH_WORDS];
        let mut connect = *b"acm!";
        (entry.ai_port_space, entry.ai_qp_type) = (0x106, 2);
        (entry.ai_dst_addr, entry.ai_dst_len) = (destination.as_mut_ptr(), destination.len());
        (entry.ai_route, entry.ai_route_len) = (route.as_mut_ptr().cast(), 2 * PATH_BYTES);
        (entry.ai_connect, entry.ai_connect_len) = (connect.as_mut_ptr().cast(), connect.len());
        entry.ai_dst_canonname = c"host".as_ptr().cast_mut();
        // SAFETY: all pointers are to locals with these lengths.
        let target = unsafe { Target::copy(&entry) };
        assert_eq!(target.destination, Some(CmAddress::Ip("10.0.0.1:7".parse().unwrap())));
        assert_eq!((target.port_space, target.qp_type), (Some(PortSpace::Tcp), Some(QpType::Rc)));
        assert_eq!((target.routes.len(), target.destination_name.as_deref()), (2, Some("host")));
        assert_eq!(target.private_data(b"own").unwrap().bytes(), b"acm!own");
        assert!(target.private_data(&[0; 53]).is_err());
        assert!(target.routes.iter().all(|route| route.flags() == 7));
        // Lent to the library, it is the same entry.
        let again = target.lend(|entry| {
            // SAFETY: lent for this closure.
            let entry = unsafe { &*entry };
            // SAFETY: everything of the entry lives during the call.
            unsafe { Target::copy(entry) }
        });
        assert_eq!(again, Target { destination_name: None, ..target.clone() });
        entry.ai_src_canonname = c"here".as_ptr().cast_mut();
        // SAFETY: as above.
        assert_eq!(unsafe { Target::copy(&entry) }.source_name.as_deref(), Some("here"));
        // A length that is too short for its family is no address.
        entry.ai_dst_len = 8;
        // SAFETY: as above.
        assert_eq!(unsafe { Target::copy(&entry) }.destination, None);
    }
}
