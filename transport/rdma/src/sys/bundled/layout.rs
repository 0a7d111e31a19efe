//! How our structs are declared: the declaration also describes itself to the tests.

/// Where a field lies.
#[cfg(test)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

/// What a struct looks like in memory.
#[cfg(test)]
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) bytes: usize,
    pub(crate) align: usize,
    pub(crate) fields: Vec<Field>,
}

/// The size of what a projection leads to.
#[cfg(test)]
pub(super) fn bytes_of<T, F>(_: impl Fn(*const T) -> *const F) -> usize {
    size_of::<F>()
}

#[cfg(test)]
macro_rules! layout {
    ($type:ty, $name:ident { $($field:ident),* }) => {
        $crate::sys::bundled::layout::Layout {
            name: stringify!($name),
            bytes: size_of::<$type>(),
            align: align_of::<$type>(),
            fields: vec![$($crate::sys::bundled::layout::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($type, $field),
                // SAFETY: the closure is a type only and is never called.
                bytes: $crate::sys::bundled::layout::bytes_of(|place: *const $type| unsafe {
                    &raw const (*place).$field
                }),
            }),*],
        }
    };
}

/// Declares structs and unions in C's layout, once for each file.
macro_rules! structs {
    ($($kind:tt $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) $kind $name { $(pub(crate) $field: $type),* }
        )*

        /// The layouts of this file's declarations.
        #[cfg(test)]
        pub(super) fn ours() -> Vec<super::layout::Layout> {
            vec![$(layout!($name, $name { $($field),* })),*]
        }

        /// The layouts of the other backend's declarations of the same names.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(super) fn theirs() -> Vec<super::layout::Layout> {
            use crate::sys::rdma;
            vec![$(layout!(rdma::$name, $name { $($field),* })),*]
        }
    };
}
