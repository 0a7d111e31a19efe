//! Received bytes that are kept beyond their turn, on any thread.
//!
//! ```text
//!  RxFrame ─ Holder::hold ──► RxBuf      read through a second mapping of the ring, the shelf
//!     │ Holder::keep            │ dropped: one bit of the shelf's release map
//!     ◄── Holder::poll_released ┘         then Port::release, and credit over the contiguous run
//!
//!  The peer needs the room: Holder::move_out gives the shelf's pages to the RxBufs for good, with a copy of their bytes.
//!  The frames come back at once, and the next hold makes a new shelf.
//! ```
//! Nothing of it is touched for a frame that is not held.

use std::{
    fmt, io,
    ops::Deref,
    ptr::NonNull,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64 as Counter, Ordering},
    },
};

use crate::{
    mem::{Region, RxFrame, RxMemory},
    sync::{
        atomic::AtomicU64,
        release::{PLACES, release, take},
    },
};

/// Received bytes, read only, where they landed or copied; `Send` and `Sync`. They stay as they are until this is dropped,
/// whatever becomes of the connection and its worker. Dropping is one atomic operation, or frees the copy.
///
/// They may be given to system calls that have read them when they return. Those that read later (io_uring,
/// `MSG_ZEROCOPY`) need a copy: the kernel would go on reading where the bytes were, when the peer has that room again.
pub struct RxBuf {
    bytes: NonNull<u8>,
    len: usize,
    copy: Option<Box<[u8]>>,
    place: Option<(Arc<Shelf>, u32)>,
}

// SAFETY: the bytes are only read, and nobody writes them while this exists: a copy is our own; a place on a shelf is
// the promise of `Holder::hold`. Both are kept by `copy` and `place`, which are `Send`.
unsafe impl Send for RxBuf {}
// SAFETY: as above.
unsafe impl Sync for RxBuf {}

impl RxBuf {
    /// A copy of `bytes`.
    #[must_use]
    pub fn copied(bytes: &[u8]) -> Self {
        Self::own(bytes.into(), None)
    }

    fn own(copy: Box<[u8]>, place: Option<(Arc<Shelf>, u32)>) -> Self {
        Self { bytes: NonNull::from(&*copy).cast(), len: copy.len(), copy: Some(copy), place }
    }

    /// Whether they were copied already; others lie where they landed as long as their room is not needed.
    #[must_use]
    pub const fn is_copy(&self) -> bool {
        self.copy.is_some()
    }
}

impl Deref for RxBuf {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `copy` owns them, or the shelf in `place` keeps them mapped and unchanged (see `Holder::hold`).
        unsafe { std::slice::from_raw_parts(self.bytes.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for RxBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for RxBuf {
    fn drop(&mut self) {
        if let Some((shelf, place)) = &self.place {
            release(&shelf.released, *place);
        }
    }
}

impl fmt::Debug for RxBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RxBuf({} bytes)", self.len)
    }
}

/// Shelves of a connection that were moved out and are still read. Holders that keep more for long are better
/// served by copies of their own size.
const MOVED_MAX: usize = 4;

/// What the `RxBuf`s of a connection lie on.
#[derive(Debug)]
struct Shelf {
    /// `None`: frames that own their bytes, which stand for others in a simulation.
    view: Option<Region>,
    released: AtomicU64,
}

/// The worker's side: the frames of one connection that are held.
#[derive(Debug)]
pub struct Holder {
    /// No other holder of this process has it.
    number: u64,
    /// Where the frames come from, and which byte of it is the first one of a view.
    region: Option<Rc<RxMemory>>,
    head: usize,
    shelf: Option<Arc<Shelf>>,
    frames: Vec<Option<RxFrame>>,
    /// Places that are lent, and those of them that came back.
    lent: u64,
    back: u64,
    /// Moved out, and still read by somebody: at most [`MOVED_MAX`].
    moved: Vec<Arc<Shelf>>,
    /// No shelf can be had; every frame is copied.
    is_broken: bool,
    /// It was said that frames are copied.
    has_warned: bool,
}

impl Holder {
    /// For the connection that `frame` came from.
    #[must_use]
    pub fn of(frame: &RxFrame) -> Self {
        static LAST: Counter = Counter::new(0);
        Self {
            number: LAST.fetch_add(1, Ordering::Relaxed),
            region: frame.region().map(RxMemory::share),
            head: 0,
            shelf: None,
            frames: (0..PLACES).map(|_| None).collect(),
            lent: 0,
            back: 0,
            moved: Vec::with_capacity(MOVED_MAX),
            is_broken: false,
            has_warned: false,
        }
    }

    /// Holds the payload of `frame` from `first` on. The frame is given to [`Holder::keep`] then. Anywhere else it goes,
    /// also back to its port, its bytes stay as they are and its credit is lost.
    ///
    /// Returns `None` when the payload cannot be held where it is. Then all 64 places are lent, the frame is held already,
    /// its memory has no second mapping, or too many shelves were moved out and are still read.
    #[must_use]
    pub fn hold(&mut self, frame: &RxFrame, first: usize) -> Option<RxBuf> {
        if frame.is_held() || self.lent == u64::MAX || !self.has_shelf(frame) {
            return None;
        }
        let shelf = Arc::clone(self.shelf.as_ref()?);
        let place = (!self.lent).trailing_zeros();
        let len = frame.len().checked_sub(first)?;
        let buf = match (&self.region, &shelf.view) {
            (Some(region), Some(view)) => {
                let offset = frame.offset_in(region)? + first;
                let bytes = view.at(offset.checked_sub(self.head)?, len);
                // Nobody writes these bytes while the buffer exists. The worker keeps the frame until its place came back or
                // it was moved out. Before that it gives the peer, or its device, no credit for it. A device can write
                // them after that, too, but only if its peer breaks this protocol (see `RxFrame::lend`); once the queue pair
                // is gone it cannot. The view keeps the pages, whatever becomes of the ring and its registration.
                RxBuf { bytes, len, copy: None, place: Some((shelf, place)) }
            }
            _ => RxBuf::own(frame.get(first..)?.into(), Some((shelf, place))),
        };
        self.lent |= 1 << place;
        frame.put_on(self.number, place);
        Some(buf)
    }

    fn has_shelf(&mut self, frame: &RxFrame) -> bool {
        let same = match (&self.region, frame.region()) {
            (Some(ours), Some(its)) => Rc::ptr_eq(ours, its),
            (ours, its) => ours.is_none() && its.is_none(),
        };
        if !same || self.is_broken {
            return false;
        }
        if self.shelf.is_some() {
            return true;
        }
        self.moved.retain(|moved| Arc::strong_count(moved) > 1);
        if self.moved.len() == MOVED_MAX {
            return false;
        }
        let view = match self.region.as_ref().map(|region| region.view()).transpose() {
            Ok(view) => view,
            Err(error) => {
                // A lack of memory or of mappings passes.
                self.is_broken = error.raw_os_error() != Some(libc::ENOMEM);
                if !std::mem::replace(&mut self.has_warned, true) {
                    tracing::warn!(%error, "received frames cannot be mapped a second time: those that are held are copied");
                }
                return false;
            }
        };
        self.head = view.as_ref().map_or(0, |(_, head)| *head);
        let view = view.map(|(view, _)| view);
        self.shelf = Some(Arc::new(Shelf { view, released: AtomicU64::new(0) }));
        true
    }

    /// Takes the frame that was held, at the end of its turn. One that another holder holds stays that one's.
    pub fn keep(&mut self, frame: RxFrame) {
        if let Some(place) = frame.place(self.number) {
            self.frames[place as usize] = Some(frame);
        }
    }

    /// Whether nothing is held.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.lent == 0
    }

    /// The next frame that nobody reads any more, to be released. In any order.
    #[must_use]
    pub fn poll_released(&mut self) -> Option<RxFrame> {
        if let Some(shelf) = &self.shelf {
            self.back |= take(&shelf.released);
        }
        while self.back != 0 {
            let place = self.back.trailing_zeros();
            self.back &= !(1 << place);
            self.lent &= !(1 << place);
            if let Some(frame) = self.frames[place as usize].take() {
                frame.take_off();
                return Some(frame);
            }
        }
        None
    }

    /// Copies what is held to memory that is no ring's, where its readers find it without noticing: all frames come by
    /// [`Holder::poll_released`] then.
    ///
    /// # Errors
    /// What mmap and mremap say, and `InvalidInput` while a frame is read that was never given to [`Holder::keep`]; nothing has
    /// changed then.
    pub fn move_out(&mut self) -> io::Result<()> {
        let Some(shelf) = &self.shelf else { return Ok(()) };
        self.back |= take(&shelf.released);
        let is_kept = |place: u32| self.frames[place as usize].is_some() || self.back >> place & 1 == 1;
        if !(0..PLACES).all(|place| self.lent >> place & 1 == 0 || is_kept(place)) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if let (Some(region), Some(view)) = (&self.region, &shelf.view) {
            let places = self.frames.iter().flatten().filter_map(|frame| {
                let at = frame.offset_in(region)?.checked_sub(self.head)?;
                Some((at, &**frame))
            });
            replace_pages(view, places)?;
        }
        self.back = self.lent;
        self.moved.extend(self.shelf.take());
        Ok(())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.region.iter().for_each(|region| region.unshare());
    }
}

/// Gives the pages under `pieces`, offsets in `view` and the bytes there, memory of their own.
fn replace_pages<'a>(
    view: &Region,
    pieces: impl Iterator<Item = (usize, &'a [u8])> + Clone,
) -> io::Result<()> {
    let page = rustix::param::page_size();
    let first = pieces.clone().map(|(at, _)| at).min();
    let last = pieces.clone().map(|(at, bytes)| at + bytes.len()).max();
    let (Some(first), Some(last)) = (first, last) else { return Ok(()) };
    let start = first - first % page;
    let fresh = Region::reserved((last - start).next_multiple_of(page))?;
    for (at, bytes) in pieces {
        let to = fresh.at(at - start, bytes.len());
        // SAFETY: `to` lies in memory that only we have, `bytes` are a received frame, which is not written (see
        // `RxFrame::lend`).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
    }
    // SAFETY: readers of this view have buffers inside these frames only, each of which was just copied to its place.
    unsafe { view.replace(start, fresh) }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::{FrameWord, Position, Tag, frame::span, mem::Access};

    const RING: usize = 16 << 10;

    fn rings() -> (Region, Rc<RxMemory>) {
        let fd = rustix::fs::memfd_create("ring", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, RING as u64).unwrap();
        let map = |access| Region::ring(fd.as_fd(), 0, RING, access).unwrap();
        (map(Access::ReadWrite), Rc::new(RxMemory::new(map(Access::ReadOnly))))
    }

    /// As a peer does: `len` bytes of `value` behind the word at `position`.
    fn receive(peer: &Region, ours: &Rc<RxMemory>, position: u64, len: usize, value: u8) -> RxFrame {
        let at = Position(position).offset(RING) + 8;
        // SAFETY: inside the mapping; the frames that are held lie elsewhere.
        unsafe { peer.at(at, len).write_bytes(value, len) };
        let end = Position(position + span(len) as u64);
        // SAFETY: the test writes a place again only after it was released or moved out.
        unsafe { RxFrame::lend(ours, ours.at(at, len), FrameWord::new(len, Tag(0)), end, 0) }
    }

    /// R47: places come back in any order, from other threads, and hold what they held until then.
    #[test]
    fn r47_held_frames_come_back_in_any_order() {
        let (peer, ours) = rings();
        let mut holder = Holder::of(&receive(&peer, &ours, 0, 8, 0));
        let mut bufs = Vec::new();
        for number in 0..PLACES + 1 {
            let frame = receive(&peer, &ours, u64::from(number) * 64, 40, number.to_le_bytes()[0]);
            match holder.hold(&frame, 8) {
                Some(buf) => {
                    assert!(holder.hold(&frame, 0).is_none(), "held already");
                    holder.keep(frame);
                    bufs.push((number, buf));
                }
                None => assert_eq!(number, PLACES, "no place"),
            }
        }
        assert!(holder.poll_released().is_none());
        bufs.swap(3, 60);
        let (first, second) = (bufs.split_off(32), bufs);
        std::thread::scope(|scope| {
            for bufs in [first, second] {
                scope.spawn(move || {
                    for (number, buf) in bufs.into_iter().rev() {
                        assert_eq!(&*buf, &[number.to_le_bytes()[0]; 32]);
                    }
                });
            }
        });
        let mut ends: Vec<_> =
            std::iter::from_fn(|| holder.poll_released()).map(|frame| frame.end().0).collect();
        ends.sort_unstable();
        assert_eq!(ends, (0..u64::from(PLACES)).map(|number| number * 64 + 48).collect::<Vec<_>>());
        assert!(holder.is_empty());
    }

    /// The peer's room is free again, and nobody who reads notices; across the end of the ring, too.
    #[test]
    fn what_is_moved_out_can_be_written_over() {
        let (peer, ours) = rings();
        let mut holder = Holder::of(&receive(&peer, &ours, 0, 8, 0));
        let start = 3 * RING as u64 - 100;
        let mut bufs = Vec::new();
        for (number, position) in [(1, start - 5000), (2, start), (3, start + 208)] {
            let frame = receive(&peer, &ours, position, 200, number);
            bufs.push((number, holder.hold(&frame, 0).unwrap()));
            holder.keep(frame);
        }
        assert!(bufs.iter().all(|(_, buf)| !buf.is_copy()));
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    assert!(bufs.iter().all(|(number, buf)| buf.iter().all(|byte| byte == number)));
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(5));
            holder.move_out().unwrap();
            assert_eq!(std::iter::from_fn(|| holder.poll_released()).count(), 3);
            for position in (0..RING as u64).step_by(1024) {
                drop(receive(&peer, &ours, position, 1000, 0xee));
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
            stop.store(true, Ordering::Relaxed);
        });
        let mut more = Vec::new();
        for number in 1..=MOVED_MAX {
            let frame = receive(&peer, &ours, 0, 8, 4);
            match holder.hold(&frame, 0) {
                Some(buf) => more.push(buf),
                None => assert_eq!(number, MOVED_MAX, "while so many are read the next are copied"),
            }
            holder.keep(frame);
            holder.move_out().unwrap();
            while holder.poll_released().is_some() {}
        }
        assert_eq!(more.len(), MOVED_MAX - 1);
        drop(holder);
        drop((peer, ours));
        assert!(bufs.iter().all(|(number, buf)| **buf == [*number; 200]), "the ring is gone, they are not");
    }

    #[test]
    fn after_the_last_reader_frames_are_held_in_place_again() {
        let (peer, ours) = rings();
        let frame = receive(&peer, &ours, 0, 8, 1);
        let mut holder = Holder::of(&frame);
        let buf = holder.hold(&frame, 0).unwrap();
        holder.keep(frame);
        holder.move_out().unwrap();
        let frame = holder.poll_released().unwrap();
        assert!(holder.is_empty());
        drop((buf, frame));
        let frame = receive(&peer, &ours, 64, 8, 2);
        let buf = holder.hold(&frame, 0).unwrap();
        assert!(!buf.is_copy());
        assert_eq!(&*buf, &[2; 8]);
    }

    /// Whatever becomes of a frame that is held, its bytes stay its reader's.
    #[test]
    fn a_held_frame_goes_to_its_own_holder_alone() {
        let (peer, ours) = rings();
        let keep = |position| receive(&peer, &ours, position, 40, 7).kept();
        let frame = keep(64);
        let [mut holder, mut other] = [Holder::of(&frame), Holder::of(&frame)];
        let buf = holder.hold(&frame, 0).unwrap();
        assert_eq!(holder.move_out().unwrap_err().kind(), io::ErrorKind::InvalidInput, "it is not here");
        other.keep(frame);
        assert_eq!(ours.kept_from(), Some(64), "dropped, and not free");
        let second = keep(128);
        let seen = other.hold(&second, 0).unwrap();
        drop(seen);
        other.keep(second);
        let back = other.poll_released().unwrap();
        assert_eq!(back.end().0, 176, "the frame that it holds itself");
        drop(back);
        assert!(other.poll_released().is_none());
        assert_eq!((&*buf, ours.kept_from()), (&[7; 40][..], Some(64)));
    }
}
