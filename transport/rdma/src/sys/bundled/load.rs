//! Opens a library and finds its functions. What is missing is a sentence, never a panic.

use std::ffi::c_int;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// errno of a function that the installed library does not have.
pub(super) const UNSUPPORTED: c_int = libc::EOPNOTSUPP;

/// A library that is open for the rest of the process: it starts threads and keeps state of its own, so it is never
/// closed again.
pub(super) struct Opened {
    library: Library,
    name: &'static str,
    package: &'static str,
    missing: Option<&'static str>,
}

impl Opened {
    /// Opens `name`, which Debian has in `package`.
    ///
    /// # Errors
    /// The whole sentence for the user.
    pub(super) fn open(name: &'static str, package: &'static str) -> Result<Self, String> {
        // SAFETY: rdma-core's libraries have no initialisers that rely on the caller; they are opened once and kept.
        match unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) } {
            Ok(library) => Ok(Self { library, name, package, missing: None }),
            Err(error) => Err(format!(
                "{name} cannot be opened: {}; install with: apt-get install {package}",
                reason(&error)
            )),
        }
    }

    /// The function `symbol` in its default version, when the library has it.
    ///
    /// # Safety
    /// `F` is a function pointer of the type that the C headers give `symbol`.
    pub(super) unsafe fn find<F: Copy>(&mut self, symbol: &'static str, required: bool) -> Option<F> {
        // SAFETY: the caller's promise about the type.
        let found = unsafe { self.library.get::<F>(symbol.as_bytes()) };
        match found {
            Ok(function) => Some(*function),
            Err(_) => {
                if required {
                    self.missing.get_or_insert(symbol);
                }
                None
            }
        }
    }

    /// Keeps the library open for good.
    ///
    /// # Errors
    /// It lacks a function that every supported version has.
    pub(super) fn keep(self) -> Result<(), String> {
        let _ = self.library.into_raw();
        match self.missing {
            None => Ok(()),
            Some(symbol) => Err(format!(
                "{} has no {symbol}: it is older than this program needs; install with: apt-get install {}",
                self.name, self.package
            )),
        }
    }
}

/// What the dynamic loader said.
fn reason(error: &libloading::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(inner) = source {
        text = inner.to_string();
        source = inner.source();
    }
    text
}

/// What a function returns when the library does not have it: the failure value of its kind, with errno set.
pub(super) trait Absent {
    fn absent(integer: c_int) -> Self;
}

impl Absent for c_int {
    fn absent(integer: c_int) -> Self {
        set_errno();
        integer
    }
}

impl Absent for () {
    fn absent(_: c_int) {
        set_errno();
    }
}

impl<T> Absent for *mut T {
    fn absent(_: c_int) -> Self {
        set_errno();
        std::ptr::null_mut()
    }
}

impl<T> Absent for *const T {
    fn absent(_: c_int) -> Self {
        set_errno();
        std::ptr::null()
    }
}

impl Absent for isize {
    fn absent(_: c_int) -> Self {
        set_errno();
        -1
    }
}

pub(super) fn set_errno() {
    // SAFETY: always the place of this thread's errno.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: valid for as long as the thread runs, and no reference to it exists.
    unsafe { place.write(UNSUPPORTED) };
}

/// Declares the functions of one library: the table, its loading, and a function of the C name for each.
/// `need` functions are in every supported version; `may` functions are newer or rarely used.
macro_rules! functions {
    (library $library:literal package $package:literal failure $failure:expr;
     $($need:ident fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        struct Table {
            $($name: Option<unsafe extern "C" fn($($type),*) $(-> $result)?>,)*
        }

        fn load() -> Result<Table, String> {
            let mut opened = Opened::open($library, $package)?;
            let table = Table {
                $($name: {
                    type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
                    // SAFETY: the type is the one of the C header, which the lab and the comparison exercise.
                    unsafe { opened.find::<Function>(stringify!($name), required!($need)) }
                },)*
            };
            opened.keep().map(|()| table)
        }

        static TABLE: OnceLock<Result<Table, String>> = OnceLock::new();

        fn table() -> Option<&'static Table> {
            TABLE.get_or_init(load).as_ref().ok()
        }

        /// Opens the library, the first time.
        ///
        /// # Errors
        /// What is missing, and what to install.
        pub(super) fn available() -> Result<(), String> {
            TABLE.get_or_init(load).as_ref().map(|_| ()).map_err(Clone::clone)
        }

        /// Each function as it is declared here, its result last.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(in super::super) fn signatures() -> Vec<(&'static str, Vec<&'static str>, &'static str)> {
            vec![$((stringify!($name), vec![$(stringify!($type)),*], concat!("" $(, stringify!($result))?))),*]
        }

        $(
            /// The C function of this name; a library without it fails with EOPNOTSUPP.
            ///
            /// # Safety
            /// As its manual page says.
            pub(crate) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                match table().and_then(|table| table.$name) {
                    // SAFETY: the caller's promise, passed on.
                    Some(function) => unsafe { function($($argument),*) },
                    None => Absent::absent($failure),
                }
            }
        )*
    };
}

macro_rules! required {
    (need) => {
        true
    };
    (may) => {
        false
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_a_sentence() {
        let error = Opened::open("libno-such-verbs.so.1", "librdmacm1").err().unwrap();
        assert!(error.starts_with("libno-such-verbs.so.1 cannot be opened: "), "{error}");
        assert!(error.contains("No such file or directory"), "{error}");
        assert!(error.ends_with("; install with: apt-get install librdmacm1"), "{error}");
    }

    #[test]
    fn a_missing_symbol_is_a_sentence_when_it_is_needed() {
        let mut opened = Opened::open("libc.so.6", "libc6").unwrap();
        // SAFETY: never called; the names do not exist.
        assert!(unsafe { opened.find::<unsafe extern "C" fn()>("no_such_symbol_a", false) }.is_none());
        // SAFETY: as above.
        assert!(unsafe { opened.find::<unsafe extern "C" fn()>("no_such_symbol_b", true) }.is_none());
        let error = opened.keep().unwrap_err();
        assert!(error.contains("no_such_symbol_b") && error.contains("apt-get install libc6"), "{error}");
    }

    #[test]
    fn a_function_that_is_absent_fails_as_its_kind_does() {
        assert_eq!(<c_int as Absent>::absent(-1), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(UNSUPPORTED));
        assert!(<*mut u8 as Absent>::absent(-1).is_null());
    }
}
