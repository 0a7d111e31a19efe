//! The open enums of the C libraries: a kind that is newer than this program is a number.

/// Declares such an enum: `Kind = RAW_VALUE` for each kind, where `$raw` has the values and `$prefix` begins their names.
macro_rules! kinds {
    (
        $(#[$about:meta])* $name:ident, $count:literal of $raw:path, $prefix:literal;
        $($(#[$doc:meta])* $kind:ident = $value:ident,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name {
            $($(#[$doc])* $kind,)*
            /// Newer than this program.
            Other(u32),
        }

        impl $name {
            /// Every kind that this program knows, and one that it does not.
            pub const ALL: [Self; $count] = [$(Self::$kind,)* Self::Other(99)];

            /// The name in the header, without its prefix.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => stringify!($value).trim_start_matches($prefix),)*
                    Self::Other(_) => "UNKNOWN",
                }
            }
        }

        impl $name {
            /// The number in the header.
            #[must_use]
            pub fn raw(self) -> u32 {
                use $raw as raw;
                match self {
                    $(Self::$kind => raw::$value,)*
                    Self::Other(value) => value,
                }
            }
        }

        impl From<u32> for $name {
            fn from(value: u32) -> Self {
                use $raw as raw;
                match value {
                    $(raw::$value => Self::$kind,)*
                    other => Self::Other(other),
                }
            }
        }
    };
}
