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
