//! On what pages large memory lies: huge ones where the system has them, and why not where it does not.
//!
//! ```text
//!  asked for, and large?  ── no ──► Normal { Off | Small }
//!   │ yes
//!  the pool of huge pages has enough? ── yes ──► Huge
//!   │ no
//!  the kernel's setting lets this kind of memory have them? ── yes ──► Advised
//!   │ no
//!  Normal { None }
//! ```

use std::{fmt, io};

#[cfg(any(feature = "tcp", feature = "verbs"))]
use crate::PortError;

/// A huge page is this power of two. Other sizes are not asked for.
pub(crate) const HUGE_PAGE_BITS: u8 = 21;
/// A huge page.
pub const HUGE_PAGE_BYTES: usize = 1 << HUGE_PAGE_BITS;

/// On what pages some memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// All on huge pages, taken from the system's pool of them.
    Huge {
        /// Size of each.
        bytes: usize,
    },
    /// Ordinary memory for which the kernel was asked for huge pages, and gives as many as it finds.
    Advised {
        /// Size of each.
        bytes: usize,
    },
    /// Pages of the ordinary size.
    Normal {
        /// Why.
        why: NotHuge,
    },
}

/// Why memory does not lie on huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotHuge {
    /// [`PortConfig::huge_pages`](crate::PortConfig::huge_pages) is off.
    Off,
    /// It is smaller than a huge page, or no multiple of one.
    Small,
    /// The system has none for it.
    None {
        /// What the pool of huge pages (`vm.nr_hugepages`) said.
        errno: i32,
        /// The file whose setting says that ordinary memory of this kind gets none.
        setting: &'static str,
    },
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Huge { bytes } => write!(f, "huge pages of {} KiB", bytes >> 10),
            Self::Advised { bytes } => {
                write!(f, "pages of {} KiB as far as the kernel finds them", bytes >> 10)
            }
            Self::Normal { why: NotHuge::Off } => f.write_str("normal pages: huge_pages is off"),
            Self::Normal { why: NotHuge::Small } => f.write_str("normal pages: smaller than a huge one"),
            Self::Normal { why: NotHuge::None { errno, setting } } => {
                let error = io::Error::from_raw_os_error(*errno);
                write!(
                    f,
                    "normal pages: none in vm.nr_hugepages or for this cgroup ({error}), and {setting} gives none"
                )
            }
        }
    }
}

/// A piece of memory that loans are cut from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolMemory {
    /// Its size.
    pub bytes: usize,
    /// What it lies on.
    pub pages: Pages,
}

impl fmt::Display for PoolMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes on {}", self.bytes, self.pages)
    }
}

/// Which setting of the kernel lets ordinary memory have huge pages.
#[cfg(any(feature = "shm", feature = "verbs", test))]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Setting {
    #[cfg(any(feature = "verbs", test))]
    Private,
    #[cfg(any(feature = "shm", test))]
    Shared,
}

#[cfg(any(feature = "shm", feature = "verbs", test))]
impl Setting {
    const fn file(self) -> &'static str {
        match self {
            #[cfg(any(feature = "verbs", test))]
            Self::Private => "/sys/kernel/mm/transparent_hugepage/enabled",
            #[cfg(any(feature = "shm", test))]
            Self::Shared => "/sys/kernel/mm/transparent_hugepage/shmem_enabled",
        }
    }

    /// What to report of memory for which the pool of huge pages said `errno`: whether to advise, or why not to.
    pub(crate) fn without_pool(self, errno: i32) -> Pages {
        let text = std::fs::read_to_string(self.file()).unwrap_or_default();
        if gives_some(&text) {
            Pages::Advised { bytes: HUGE_PAGE_BYTES }
        } else {
            Pages::Normal { why: NotHuge::None { errno, setting: self.file() } }
        }
    }
}

/// Whether memory that was advised gets some: the choice stands in brackets.
#[cfg(any(feature = "shm", feature = "verbs", test))]
fn gives_some(setting: &str) -> bool {
    let chosen = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    chosen.is_some_and(|(chosen, _)| !matches!(chosen, "never" | "deny"))
}

/// A size is a multiple of one sixteenth of the next power of two, so an eighth of it is wasted at most.
const SIZES: usize = 16;

/// Rounds `bytes` up to whole huge pages, and to one of few sizes. It wastes an eighth at most, or less than a huge page.
#[cfg(any(feature = "shm", feature = "tcp", feature = "verbs"))]
pub(crate) const fn large_size(bytes: usize) -> usize {
    let step = bytes.next_power_of_two() / SIZES;
    bytes.next_multiple_of(if step > HUGE_PAGE_BYTES { step } else { HUGE_PAGE_BYTES })
}

/// The smallest buffer: a page.
#[cfg(any(feature = "tcp", feature = "verbs"))]
const BUFFER_BYTES_MIN: usize = 4 << 10;
/// The largest loan that has a buffer of its own.
#[cfg(any(feature = "tcp", feature = "verbs"))]
const BUFFER_BYTES_MAX: usize = 1 << 62;

/// The bytes of a buffer for one loan of `bytes`: a power of two up to a huge page, and above it [`large_size`].
///
/// # Errors
/// [`PortError::Limit`] for what no address space holds.
#[cfg(any(feature = "tcp", feature = "verbs"))]
pub(crate) const fn buffer_bytes(bytes: usize) -> Result<usize, PortError> {
    if bytes > BUFFER_BYTES_MAX {
        let (value, limit) = (bytes as u64, BUFFER_BYTES_MAX as u64);
        return Err(PortError::Limit { field: "bytes of a loan", value, limit });
    }
    if bytes > HUGE_PAGE_BYTES {
        return Ok(large_size(bytes));
    }
    let bytes = if bytes > BUFFER_BYTES_MIN { bytes } else { BUFFER_BYTES_MIN };
    Ok(bytes.next_power_of_two())
}

/// Whether memory of this size may lie on huge pages at all.
#[cfg(any(feature = "shm", feature = "verbs", test))]
pub(crate) const fn is_large(bytes: usize) -> bool {
    bytes >= HUGE_PAGE_BYTES && bytes.is_multiple_of(HUGE_PAGE_BYTES)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_choice_is_in_brackets() {
        for (text, gives) in [
            ("always [madvise] never\n", true),
            ("[always] madvise never\n", true),
            ("always madvise [never]\n", false),
            ("always within_size advise never [deny] force\n", false),
            ("always within_size [advise] never deny force\n", true),
            ("", false),
        ] {
            assert_eq!(gives_some(text), gives, "{text}");
        }
    }

    #[cfg(any(feature = "tcp", feature = "verbs"))]
    #[test]
    fn no_buffer_wastes_more_than_an_eighth_of_a_large_loan() {
        for (bytes, held) in [(0, 4096), (4096, 4096), (4097, 8192), (1 << 21, 1 << 21)] {
            assert_eq!(buffer_bytes(bytes), Ok(held));
        }
        assert_eq!(buffer_bytes(65 << 20), Ok(72 << 20));
        for power in 22..40 {
            for bytes in [(1 << power) - 4096, 1 << power, (1 << power) + 1, 3 << (power - 1)] {
                let held = buffer_bytes(bytes).unwrap();
                assert!(held >= bytes && held.is_multiple_of(HUGE_PAGE_BYTES), "{bytes} in {held}");
                assert!(held - bytes <= (bytes / 8).max(HUGE_PAGE_BYTES), "{bytes} in {held}");
            }
        }
        assert_eq!(buffer_bytes(BUFFER_BYTES_MAX), Ok(BUFFER_BYTES_MAX));
        assert!(buffer_bytes(BUFFER_BYTES_MAX + 1).is_err() && buffer_bytes(usize::MAX).is_err());
    }

    #[test]
    fn every_report_says_what_to_do() {
        let none = Setting::Shared.file();
        let why = NotHuge::None { errno: 12, setting: none };
        let text = Pages::Normal { why }.to_string();
        assert!(
            text.contains("vm.nr_hugepages or for this cgroup (Cannot allocate memory")
                && text.contains(none),
            "{text}"
        );
        let memory = PoolMemory { bytes: 16 << 20, pages: Pages::Huge { bytes: HUGE_PAGE_BYTES } };
        assert_eq!(memory.to_string(), "16777216 bytes on huge pages of 2048 KiB");
        assert!(is_large(4 << 20) && !is_large(3 << 20) && !is_large(1 << 20));
    }
}
