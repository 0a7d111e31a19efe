//! `rdma_getaddrinfo(3)` behind a typed builder.
//!
//! librdmacm keeps only the first address of a name. So a name is looked up here first, and each of its addresses
//! goes through `rdma_getaddrinfo` by itself: the result has them all, in order, each with its routes and its
//! `ai_connect` data.

use std::{
    ffi::{CString, c_char},
    fmt,
    net::{IpAddr, ToSocketAddrs},
    ptr::NonNull,
};

use crate::{
    cm::{
        error::{CmError, above, call},
        target::Target,
    },
    error::require_libraries,
    id::{
        address::{AF_IB, AF_INET, AF_INET6, CmAddress, RawCmAddress},
        cm_id::CmId,
        path::PathData,
        space::{PortSpace, QpType},
    },
    sys::{self, rai},
};

const OLDER: &str = "the installed librdmacm is older than 2025";

/// Which addresses are wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Family {
    /// `AF_INET`.
    V4,
    /// `AF_INET6`.
    V6,
    /// `AF_IB`: the node is a GID, written like an IPv6 address. Implies `RAI_FAMILY` and `RAI_NUMERICHOST`.
    Ib,
}

impl Family {
    const fn raw(self) -> u16 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
            Self::Ib => AF_IB,
        }
    }
}

/// A question to `rdma_getaddrinfo(3)`: where to, and what else is known or wanted.
///
/// ```
/// use gimmal_rdma::cm::{Family, Resolve};
///
/// let question = Resolve { family: Some(Family::V4), ..Resolve::to("server", 7471) };
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Resolve {
    /// A name or an address.
    pub node: Option<String>,
    /// A port, or the name of a service.
    pub service: Option<String>,
    /// For listening (`RAI_PASSIVE`).
    pub passive: bool,
    /// The node is an address, no name (`RAI_NUMERICHOST`): nothing is asked of a name server.
    pub numeric_host: bool,
    /// No lengthy route resolution (`RAI_NOROUTE`).
    pub no_route: bool,
    /// The service is one of an InfiniBand subnet, by its service record (`RAI_SA`, librdmacm of 2025 and later).
    pub service_record: bool,
    /// Asks the domain name system by name (`RAI_DNS`, librdmacm of 2025 and later), which is the default everywhere.
    pub dns: bool,
    /// Only addresses of this family (`RAI_FAMILY`).
    pub family: Option<Family>,
    /// The port space.
    pub port_space: PortSpace,
    /// The queue pair's type.
    pub qp_type: QpType,
    /// Connect from this address.
    pub source: Option<CmAddress>,
    /// An address that is known already: only routes and `ai_connect` data are looked for.
    pub destination: Option<CmAddress>,
    /// Only paths like these (`ai_route` of the hints); means something where a resolver knows the subnet.
    pub routes: Vec<PathData>,
}

impl Resolve {
    /// Where to connect to: a name or an address, and a port or the name of a service.
    #[must_use]
    pub fn to(node: &str, service: impl fmt::Display) -> Self {
        Self { node: Some(node.to_owned()), service: Some(service.to_string()), ..Self::default() }
    }

    /// Where to listen (`RAI_PASSIVE`): without a node on every address of both families.
    #[must_use]
    pub fn passive(node: Option<&str>, service: impl fmt::Display) -> Self {
        let (node, service) = (node.map(str::to_owned), Some(service.to_string()));
        Self { node, service, passive: true, ..Self::default() }
    }

    /// An address that is known already.
    #[must_use]
    pub fn address(destination: impl Into<CmAddress>) -> Self {
        Self { destination: Some(destination.into()), ..Self::default() }
    }

    /// A service of an InfiniBand subnet by its service record.
    #[must_use]
    pub fn service_record(name: &str) -> Self {
        let service = Some(name.to_owned());
        Self { service, service_record: true, port_space: PortSpace::Ib, ..Self::default() }
    }

    /// Asks. Blocks as long as the name server does, if the node is a name.
    ///
    /// # Errors
    /// [`CmError::Resolve`]; [`CmError::Device`] for a node or service with a NUL in it.
    pub fn run(&self) -> Result<Vec<Target>, CmError> {
        self.is_offered()?;
        let mut targets = Vec::new();
        let mut error = None;
        for question in self.questions()? {
            match question.ask() {
                Ok(found) => targets.extend(found.into_iter().filter(|target| target.is_usable())),
                Err(why) => error = Some(why),
            }
        }
        match (targets.is_empty(), error) {
            (false, _) => Ok(targets),
            (true, Some(error)) => Err(error),
            (true, None) => Err(self.failed("it has no address".to_owned())),
        }
    }

    /// Refuses flags that the installed library would pass over in silence.
    fn is_offered(&self) -> Result<(), CmError> {
        let what = match self {
            Self { service_record: true, .. } => "RAI_SA",
            Self { dns: true, .. } => "RAI_DNS",
            _ => return Ok(()),
        };
        require_libraries()?;
        match sys::newer().resolve_addrinfo {
            Some(_) => Ok(()),
            None => Err(CmError::Unsupported { what, why: OLDER }),
        }
    }

    /// Starts to ask, without waiting (`rdma_resolve_addrinfo(3)`): ADDRINFO_RESOLVED or ADDRINFO_ERROR follows on the
    /// channel of `id`. Unlike [`Resolve::run`], it gives only the first address of a name.
    ///
    /// # Errors
    /// [`CmError::Unsupported`] when librdmacm is older than 2025 and lacks the function; [`CmError::Device`].
    pub fn start(&self, id: &CmId) -> Result<(), CmError> {
        require_libraries()?;
        let unsupported = CmError::Unsupported { what: "rdma_resolve_addrinfo", why: OLDER };
        let start = sys::newer().resolve_addrinfo.ok_or(unsupported)?;
        let returned = self.lend(|node, service, hints| {
            // SAFETY: the id is live; the strings end with NULs, and all three are lent during the call.
            unsafe { start(id.raw(), node, service, hints) }
        })?;
        sys::cm_result(returned).map_err(call("rdma_resolve_addrinfo"))
    }

    /// The answer to [`Resolve::start`], after ADDRINFO_RESOLVED (`rdma_query_addrinfo(3)`).
    ///
    /// # Errors
    /// [`CmError::Unsupported`] when librdmacm is older than 2025 and lacks the function; [`CmError::Device`].
    pub fn answer(id: &CmId) -> Result<Vec<Target>, CmError> {
        let unsupported = CmError::Unsupported { what: "rdma_query_addrinfo", why: OLDER };
        let query = sys::newer().query_addrinfo.ok_or(unsupported)?;
        let mut list = std::ptr::null_mut();
        // SAFETY: the id is live, and `list` is a place for one pointer.
        sys::cm_result(unsafe { query(id.raw(), &raw mut list) }).map_err(call("rdma_query_addrinfo"))?;
        Ok(List(NonNull::new(list)).targets())
    }

    /// One question for each address of the name, in the order of the name service.
    fn questions(&self) -> Result<Vec<Self>, CmError> {
        let Some(node) = &self.node else {
            let both = self.passive && self.family.is_none();
            let families =
                [Family::V4, Family::V6].map(|family| Self { family: Some(family), ..self.clone() });
            return Ok(if both { families.to_vec() } else { vec![self.clone()] });
        };
        if self.numeric_host || self.family == Some(Family::Ib) || node.parse::<IpAddr>().is_ok() {
            return Ok(vec![self.clone()]);
        }
        let addresses =
            (node.as_str(), 0).to_socket_addrs().map_err(|error| self.failed(error.to_string()))?;
        let wanted = addresses.filter(|address| match self.family {
            Some(Family::V4) => address.is_ipv4(),
            Some(Family::V6) => address.is_ipv6(),
            _ => true,
        });
        let mut questions: Vec<Self> = Vec::new();
        for address in wanted {
            let node = match address {
                std::net::SocketAddr::V6(v6) if v6.scope_id() != 0 => {
                    format!("{}%{}", v6.ip(), v6.scope_id())
                }
                other => other.ip().to_string(),
            };
            let question = Self { node: Some(node), numeric_host: true, ..self.clone() };
            if !questions.contains(&question) {
                questions.push(question);
            }
        }
        Ok(questions)
    }

    fn failed(&self, why: String) -> CmError {
        CmError::Resolve { what: self.to_string(), why }
    }

    /// The flags and family of the hints.
    fn hints(&self) -> (i32, i32) {
        let mut flags = 0;
        let is_ib = self.family == Some(Family::Ib);
        for (wanted, flag) in [
            (self.passive, rai::PASSIVE),
            (self.numeric_host || is_ib, rai::NUMERICHOST),
            (self.no_route, rai::NOROUTE),
            (self.family.is_some(), rai::FAMILY),
            (self.service_record, rai::SA),
            (self.dns, rai::DNS),
        ] {
            if wanted {
                flags |= flag;
            }
        }
        (flags, self.family.map_or(0, |family| i32::from(family.raw())))
    }

    /// One call.
    fn ask(&self) -> Result<Vec<Target>, CmError> {
        require_libraries()?;
        let mut list = std::ptr::null_mut();
        let returned = self.lend(|node, service, hints| {
            // SAFETY: the strings end with NULs, and all three are lent during the call; `list` is ours.
            unsafe { sys::rdma_getaddrinfo(node, service, hints, &raw mut list) }
        })?;
        if returned != 0 {
            return Err(self.failed(getaddrinfo_error(returned)));
        }
        let mut targets = List(NonNull::new(list)).targets();
        for target in &mut targets {
            target.source = target.source.or(self.source);
            target.destination = target.destination.or(self.destination);
        }
        Ok(targets)
    }

    /// Lends the question to `call` as the library takes it: node, service, hints.
    fn lend(
        &self,
        call: impl FnOnce(*const c_char, *const c_char, *const sys::rdma_addrinfo) -> i32,
    ) -> Result<i32, CmError> {
        let text = |field: &'static str, text: &Option<String>| {
            let text = text.as_deref().map(CString::new).transpose();
            text.map_err(|error| above(field, error.nul_position() as u64, 0))
        };
        let node = text("the first NUL of the node's name", &self.node)?;
        let service = text("the first NUL of the service's name", &self.service)?;
        let pointer =
            |text: &Option<CString>| text.as_ref().map_or(std::ptr::null::<c_char>(), |text| text.as_ptr());
        let mut hints: sys::rdma_addrinfo = sys::zeroed();
        (hints.ai_flags, hints.ai_family) = self.hints();
        hints.ai_port_space = i32::try_from(self.port_space.raw()).unwrap_or(0);
        hints.ai_qp_type = i32::try_from(self.qp_type.raw()).unwrap_or(0);
        let mut source = self.source.as_ref().map(RawCmAddress::from);
        if let Some(source) = &mut source {
            hints.ai_src_len = source.len();
            hints.ai_src_addr = source.as_mut_ptr();
        }
        let mut destination = self.destination.as_ref().map(RawCmAddress::from);
        if let Some(destination) = &mut destination {
            hints.ai_dst_len = destination.len();
            hints.ai_dst_addr = destination.as_mut_ptr();
        }
        let mut routes = PathData::words(&self.routes);
        if !routes.is_empty() {
            hints.ai_route_len = size_of_val(routes.as_slice());
            hints.ai_route = routes.as_mut_ptr().cast();
        }
        Ok(call(pointer(&node), pointer(&service), &raw const hints))
    }
}

impl fmt::Display for Resolve {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |text: &Option<String>| text.clone().unwrap_or_else(|| "*".to_owned());
        match &self.destination {
            Some(destination) => destination.fmt(f),
            None => write!(f, "{}, {}", part(&self.node), part(&self.service)),
        }
    }
}

/// A result list, freed whole.
struct List(Option<NonNull<sys::rdma_addrinfo>>);

impl List {
    fn targets(&self) -> Vec<Target> {
        let (mut targets, mut next) = (Vec::new(), self.0);
        while let Some(entry) = next {
            // SAFETY: an entry of the list, which lives until we are dropped.
            let entry = unsafe { entry.as_ref() };
            // SAFETY: as above: its pointers and lengths are the library's own.
            targets.push(unsafe { Target::copy(entry) });
            next = NonNull::new(entry.ai_next);
        }
        targets
    }
}

impl Drop for List {
    fn drop(&mut self) {
        if let Some(list) = self.0 {
            // SAFETY: from `rdma_getaddrinfo`, freed once; everything was copied out.
            unsafe { sys::rdma_freeaddrinfo(list.as_ptr()) };
        }
    }
}

/// -1 is errno by the manual and `EAI_BADFLAGS` by netdb.h; other negative values are `EAI_*`.
fn getaddrinfo_error(returned: i32) -> String {
    match returned {
        -1 => crate::error::errno_text(sys::last_errno()),
        -2 => "the name is not known (EAI_NONAME)".to_owned(),
        -3 => "the name server did not answer; try again (EAI_AGAIN)".to_owned(),
        -4 => "the name server failed (EAI_FAIL)".to_owned(),
        -5 => "the name has no address (EAI_NODATA)".to_owned(),
        -6 => "the address family is not supported (EAI_FAMILY)".to_owned(),
        -7 => "the queue pair type does not suit the port space (EAI_SOCKTYPE, EAI_QPTYPE)".to_owned(),
        -8 => "the service is not known for this port space (EAI_SERVICE)".to_owned(),
        -9 => "the name has no address of this family (EAI_ADDRFAMILY)".to_owned(),
        -10 => "out of memory (EAI_MEMORY)".to_owned(),
        -11 => crate::error::errno_text(sys::last_errno()),
        code => format!("code {code}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_and_families() {
        assert_eq!(Resolve::to("a", 1).hints(), (0, 0));
        assert_eq!(Resolve { family: Some(Family::V4), ..Resolve::passive(None, 1) }.hints(), (0x9, 2));
        let numbers = Resolve { numeric_host: true, no_route: true, ..Resolve::to("a", 1) };
        assert_eq!(numbers.hints(), (0x6, 0));
        // AF_IB needs both flags.
        let gid = Resolve { family: Some(Family::Ib), ..Resolve::to("fe80::1", 1) };
        assert_eq!(gid.hints(), (0xa, 27));
        assert_eq!(Resolve { dns: true, ..Resolve::to("a", 1) }.hints(), (0x20, 0));
        // RAI_SA needs a null node and an InfiniBand port space.
        let record = Resolve::service_record("files");
        assert_eq!((record.hints().0, record.node.is_none(), record.port_space), (0x10, true, PortSpace::Ib));
    }

    /// A name is asked for once for each of its addresses, in order, an address once.
    #[test]
    fn a_name_becomes_one_question_for_each_address() {
        let questions = Resolve::to("localhost", 7).questions().unwrap();
        assert!(!questions.is_empty());
        for question in &questions {
            assert!(question.numeric_host && question.node.as_deref().unwrap().parse::<IpAddr>().is_ok());
        }
        let v4 = Resolve { family: Some(Family::V4), ..Resolve::to("localhost", 7) }.questions().unwrap();
        assert_eq!(v4.len(), 1);
        assert_eq!(Resolve::to("::1", 7).questions().unwrap().len(), 1);
        let both = Resolve::passive(None, 7).questions().unwrap();
        assert_eq!(
            both.iter().map(|one| one.family).collect::<Vec<_>>(),
            [Some(Family::V4), Some(Family::V6)]
        );
        assert!(matches!(Resolve::to("no.such.host.invalid", 1).run(), Err(CmError::Resolve { .. })));
    }

    #[test]
    fn every_code_has_words() {
        for code in -20..0 {
            assert!(!getaddrinfo_error(code).is_empty());
        }
        assert!(getaddrinfo_error(-2).contains("not known"));
        assert!(getaddrinfo_error(-7).contains("EAI_QPTYPE"));
    }
}
