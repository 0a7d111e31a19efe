//! The devices that this process has open: how each is kept, heard and let go of.
//!
//! ```text
//!  the first id on a device ─► Held { shield, anchor, users } ─► one thread reads its events
//!                                │
//!                  DEVICE_REMOVAL (on the anchor at least) ─► leaving ─► users == 0 ─► shield destroyed, descriptors cut,
//!                                                                                      anchor destroyed
//! ```
//! librdmacm opens a device with the first id that is bound to it, and closes it only after it is gone. Many drivers, rxe
//! and siw among them, wait in their removal until every process has closed it. So a device stays held after its last
//! use: somebody must hear that it goes.

use std::{
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    ptr::NonNull,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use rustix::{
    event::epoll,
    fs::OFlags,
    io::{Errno, retry_on_intr},
};

use crate::{
    error::{DeviceError, errno_text, system},
    id::{address::RawCmAddress, channel::EventChannel},
    sys, thread,
    verbs::{
        events::{DeviceNews, Inbox, read_one},
        key::DeviceKey,
        shield::Shield,
    },
};

/// Names the anchors' channel among what the reader waits for. No context has this address.
const CHANNEL: u64 = 0;

/// One device.
#[derive(Debug)]
struct Held {
    raw: NonNull<sys::ibv_context>,
    /// Where the device's library needs one, from the first context on.
    shield: Option<Shield>,
    /// Keeps librdmacm from closing the context under us.
    _anchor: Anchor,
    /// Contexts on it.
    users: usize,
    /// It is being removed: nothing new begins on it.
    is_leaving: bool,
}

/// What counts as a use of the device for librdmacm.
#[derive(Debug)]
#[expect(dead_code, reason = "held for its drop")]
enum Anchor {
    /// It hears of the device's removal.
    Id(BoundId),
    /// Where no address leads to this device alone.
    List(DeviceList),
}

/// What the reader's thread waits for.
#[derive(Debug)]
struct Reader {
    epoll: Arc<OwnedFd>,
    /// That of the anchors.
    channel: Arc<EventChannel>,
}

#[derive(Debug)]
struct Table {
    devices: Vec<Held>,
    receivers: Vec<Weak<Inbox>>,
    /// Started with the first device. One for all of them, for as long as the process lives.
    reader: Option<Reader>,
}

// SAFETY: contexts and device lists are memory of the libraries that any thread may use; the lock orders those who do.
unsafe impl Send for Table {}

static TABLE: Mutex<Table> = Mutex::new(Table { devices: Vec::new(), receivers: Vec::new(), reader: None });

fn table() -> MutexGuard<'static, Table> {
    // A panic while it is changed leaves a table.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the device of an id with the address `local`, for one more context.
///
/// # Errors
/// [`DeviceError::NoDevice`] when the device is being removed; what the first use of a device needs and the system
/// refuses.
pub(crate) fn hold(raw: NonNull<sys::ibv_context>, local: Option<SocketAddr>) -> Result<(), DeviceError> {
    let mut table = table();
    let held = table.hold(raw, local)?;
    if held.is_leaving {
        return Err(DeviceError::NoDevice { detail: "it is being removed".to_owned() });
    }
    if held.shield.is_none() && held.users == 0 {
        // Before its first context maps anything; tried again when memory was short the last time.
        // SAFETY: the anchor keeps the context open, and is dropped after the shield.
        held.shield = unsafe { Shield::over(held.raw) };
    }
    held.users += 1;
    Ok(())
}

/// Holds the device of an id with the address `local` that is about to be destroyed: it stays open, and its removal must
/// be heard.
pub(crate) fn note(raw: NonNull<sys::ibv_context>, local: Option<SocketAddr>) {
    let mut table = table();
    if !table.has(DeviceKey::of(raw))
        && let Err(error) = table.anchor(local)
    {
        tracing::debug!(%error, "a device stays open that nobody watches");
    }
}

/// Holds every device of the host, for one more context each (`rdma_get_devices(3)`).
///
/// # Errors
/// [`DeviceError::NoDevice`] without any.
pub(crate) fn hold_all() -> Result<Vec<NonNull<sys::ibv_context>>, DeviceError> {
    let list = DeviceList::new()?;
    let mut contexts = list.contexts();
    // One that goes away meanwhile is left out.
    contexts.retain(|&context| hold(context, None).is_ok());
    Ok(contexts)
}

/// A context on the device is gone.
pub(crate) fn release(device: DeviceKey) {
    let gone = {
        let mut table = table();
        if let Some(held) = table.find(device) {
            held.users -= 1;
        }
        table.take_gone(device)
    };
    // Not under the lock: it destroys an id.
    drop(gone);
}

/// The device is being removed, as an id on it was told.
pub(crate) fn removed(device: DeviceKey) {
    let gone = {
        let mut table = table();
        let Some(held) = table.find(device).filter(|held| !held.is_leaving) else { return };
        held.is_leaving = true;
        table.tell(DeviceNews::Removed(device));
        table.take_gone(device)
    };
    drop(gone);
}

/// Gives all news from here on to `inbox`, as long as it lives.
pub(super) fn subscribe(inbox: &Arc<Inbox>) {
    table().receivers.push(Arc::downgrade(inbox));
}

impl Table {
    fn find(&mut self, device: DeviceKey) -> Option<&mut Held> {
        self.devices.iter_mut().find(|held| held.key() == device)
    }

    fn has(&self, device: DeviceKey) -> bool {
        self.devices.iter().any(|held| held.key() == device)
    }

    /// Returns the device `raw`, which an id with the address `local` keeps open now, held from now on.
    fn hold(
        &mut self,
        raw: NonNull<sys::ibv_context>,
        local: Option<SocketAddr>,
    ) -> Result<&mut Held, DeviceError> {
        let device = DeviceKey::of(raw);
        if !self.has(device)
            && (self.anchor(local).inspect_err(|error| tracing::debug!(%error, "no anchor")).is_err()
                || !self.has(device))
        {
            let list = DeviceList::new()?;
            let gone = || DeviceError::NoDevice { detail: "it was removed".to_owned() };
            if !list.has(device) {
                return Err(gone());
            }
            self.add(raw, Anchor::List(list))?;
        }
        self.find(device).ok_or_else(|| DeviceError::NoDevice { detail: "it was removed".to_owned() })
    }

    /// Holds the device that an address leads to, which is another one where two have the address.
    fn anchor(&mut self, address: Option<SocketAddr>) -> Result<(), DeviceError> {
        let unknown = || DeviceError::NoDevice { detail: "the id has no IP address".to_owned() };
        let address = address.ok_or_else(unknown)?;
        let id = BoundId::new(&self.reader()?.channel, address).map_err(system("rdma_bind_addr"))?;
        match id.verbs() {
            Some(raw) if !self.has(DeviceKey::of(raw)) => self.add(raw, Anchor::Id(id)),
            _ => Ok(()),
        }
    }

    fn add(&mut self, raw: NonNull<sys::ibv_context>, anchor: Anchor) -> Result<(), DeviceError> {
        let held = Held { raw, shield: None, _anchor: anchor, users: 0, is_leaving: false };
        let reader = self.reader()?;
        let data = epoll::EventData::new_u64(held.key().number());
        rustix::fs::fcntl_setfl(held.event_fd(), OFlags::NONBLOCK)
            .and_then(|()| epoll::add(&*reader.epoll, held.event_fd(), data, epoll::EventFlags::IN))
            .map_err(|errno| system("epoll_ctl")(errno.raw_os_error()))?;
        self.devices.push(held);
        Ok(())
    }

    fn reader(&mut self) -> Result<&Reader, DeviceError> {
        if self.reader.is_none() {
            self.reader = Some(Reader::start()?);
        }
        self.reader.as_ref().ok_or(DeviceError::NoDevice { detail: String::new() })
    }

    fn tell(&mut self, news: DeviceNews) {
        self.receivers.retain(|inbox| inbox.upgrade().inspect(|inbox| inbox.push(news)).is_some());
    }

    /// Takes a device out that is being removed and has no user.
    fn take_gone(&mut self, device: DeviceKey) -> Option<Held> {
        let at = self
            .devices
            .iter()
            .position(|held| held.key() == device && held.is_leaving && held.users == 0)?;
        Some(self.devices.swap_remove(at))
    }

    /// Reads what the device has to tell.
    fn read(&mut self, number: u64) {
        let Some(at) = self.devices.iter().position(|held| held.key().number() == number) else { return };
        let raw = self.devices[at].raw;
        loop {
            // SAFETY: the device is held, so its context is open; `add` made its descriptor non-blocking.
            match unsafe { read_one(raw, |event| self.tell(DeviceNews::Event(event))) } {
                Ok(Some(())) => {}
                Ok(None) => return,
                Err(errno) => {
                    tracing::debug!(errno, "a device tells no events any more");
                    if let Some(Reader { epoll, .. }) = &self.reader {
                        let _ = epoll::delete(&**epoll, self.devices[at].event_fd());
                    }
                    return;
                }
            }
        }
    }
}

impl Reader {
    fn start() -> Result<Self, DeviceError> {
        let failed = |step| move |errno: Errno| system(step)(errno.raw_os_error());
        let channel = EventChannel::new()?;
        let epoll = Arc::new(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed("epoll_create"))?);
        epoll::add(&*epoll, channel.fd(), epoll::EventData::new_u64(CHANNEL), epoll::EventFlags::IN)
            .map_err(failed("epoll_ctl"))?;
        let (waits, anchors) = (Arc::clone(&epoll), Arc::clone(&channel));
        thread::spawn("rdma-devices", move || run(&waits, &anchors))
            .map_err(|error| system("starting a thread")(error.raw_os_error().unwrap_or(0)))?;
        Ok(Self { epoll, channel })
    }
}

/// The reader's thread. It sleeps while no device has anything to tell.
fn run(epoll: &OwnedFd, anchors: &Arc<EventChannel>) {
    let mut ready = Vec::with_capacity(16);
    loop {
        match epoll::wait(epoll, rustix::buffer::spare_capacity(&mut ready), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the events of devices are not read any more");
                return;
            }
        }
        for event in ready.drain(..) {
            match event.data.u64() {
                CHANNEL => {
                    while let Ok(Some(gone)) = next_removal(anchors) {
                        gone.into_iter().for_each(removed);
                    }
                }
                number => table().read(number),
            }
        }
    }
}

/// Reads an event of the anchors: the device that it is about, if that is being removed.
fn next_removal(anchors: &EventChannel) -> Result<Option<Option<DeviceKey>>, i32> {
    anchors.take(|event| {
        let is_removal = event.event == sys::rdma_cm_event_type::RDMA_CM_EVENT_DEVICE_REMOVAL;
        let id = NonNull::new(event.id).filter(|_| is_removal)?;
        // SAFETY: the id of an event is live until its ack, which follows.
        NonNull::new(unsafe { (*id.as_ptr()).verbs }).map(DeviceKey::of)
    })
}

/// An id that is only bound to a device.
#[derive(Debug)]
struct BoundId(NonNull<sys::rdma_cm_id>);

impl BoundId {
    fn new(channel: &EventChannel, mut address: SocketAddr) -> Result<Self, i32> {
        let (mut raw, space) = (std::ptr::null_mut(), sys::rdma_port_space::RDMA_PS_TCP);
        // SAFETY: the channel is live, and lives as long as the process; `raw` is a place for one pointer.
        let returned =
            unsafe { sys::rdma_create_id(channel.raw(), &raw mut raw, std::ptr::null_mut(), space) };
        sys::cm_result(returned)?;
        let id = Self(NonNull::new(raw).ok_or(libc::EINVAL)?);
        address.set_port(0);
        let mut address = RawCmAddress::from(&address.into());
        // SAFETY: the id is live; the address is read during the call only, as long as its family says.
        sys::cm_result(unsafe { sys::rdma_bind_addr(id.0.as_ptr(), address.as_mut_ptr()) })?;
        Ok(id)
    }

    fn verbs(&self) -> Option<NonNull<sys::ibv_context>> {
        // SAFETY: the id is live while we are, and nothing changes it after its bind.
        NonNull::new(unsafe { (*self.0.as_ptr()).verbs })
    }
}

impl Drop for BoundId {
    fn drop(&mut self) {
        // SAFETY: ours alone. The call waits until the reader has acked its event, which needs no lock.
        let returned = unsafe { sys::rdma_destroy_id(self.0.as_ptr()) };
        if let Err(errno) = sys::cm_result(returned) {
            tracing::warn!(errno, "rdma_destroy_id failed");
        }
    }
}

impl Held {
    fn key(&self) -> DeviceKey {
        DeviceKey::of(self.raw)
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the context is open while we are; the field never changes.
        let fd = unsafe { (*self.raw.as_ptr()).async_fd };
        // SAFETY: open as long as the context is.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    /// Lets the kernel end the removal. librdmacm has no call that closes the context, so its descriptors are made to lead
    /// nowhere. It closes those with the context, when it looks for devices again.
    ///
    /// # Errors
    /// What open and dup2 say.
    fn cut_off(&self) -> Result<(), Errno> {
        // SAFETY: the context is open while we are, and so is its descriptor; the field never changes.
        let command = unsafe { (*self.raw.as_ptr()).cmd_fd };
        let nowhere = retry_on_intr(|| {
            rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, rustix::fs::Mode::empty())
        })?;
        for fd in [command, self.event_fd().as_raw_fd()] {
            // SAFETY: the context's open descriptor; lent to the call below only, and never closed by this value.
            let mut place = std::mem::ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
            rustix::io::dup2(&nowhere, &mut place)?;
        }
        Ok(())
    }
}

/// The device is gone, and nobody has anything on it.
impl Drop for Held {
    fn drop(&mut self) {
        // While its descriptors still lead to the kernel.
        self.shield = None;
        if self.is_leaving
            && let Err(error) = self.cut_off()
        {
            tracing::error!(%error, "cannot let go of a device that is being removed");
        }
    }
}

/// What `rdma_get_devices` gave. It opens every device of the host.
#[derive(Debug)]
struct DeviceList(NonNull<*mut sys::ibv_context>);

impl DeviceList {
    fn new() -> Result<Self, DeviceError> {
        // SAFETY: the count is not asked for.
        let list = unsafe { sys::rdma_get_devices(std::ptr::null_mut()) };
        let failed =
            |errno| DeviceError::NoDevice { detail: format!("rdma_get_devices: {}", errno_text(errno)) };
        sys::pointer_result(list).map(Self).map_err(failed)
    }

    fn has(&self, device: DeviceKey) -> bool {
        self.contexts().into_iter().any(|context| DeviceKey::of(context) == device)
    }

    fn contexts(&self) -> Vec<NonNull<sys::ibv_context>> {
        let (mut at, mut all) = (self.0.as_ptr(), Vec::new());
        loop {
            // SAFETY: the list is ours and ends with a null pointer, behind which we do not go.
            let context = unsafe { at.read() };
            match NonNull::new(context) {
                None => return all,
                Some(context) => {
                    all.push(context);
                    at = at.wrapping_add(1);
                }
            }
        }
    }
}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: from `rdma_get_devices`, freed once.
        unsafe { sys::rdma_free_devices(self.0.as_ptr()) };
    }
}
