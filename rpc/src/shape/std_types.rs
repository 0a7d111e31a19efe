//! The shapes of the standard library's types, as serde's own implementations write them for codecs that are not for people.

use std::{
    borrow::Cow,
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, LinkedList, VecDeque},
    convert::Infallible,
    marker::PhantomData,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6},
    num,
    ops::{Range, RangeInclusive},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, Mutex, RwLock, atomic},
    time::{Duration, SystemTime},
};

use super::{
    schema::{Contents, Field, Type, TypeRef, Variant},
    shapes::{Shape, Shapes},
};

macro_rules! plain {
    ($($kind:ident: $($ty:ty),*;)*) => {$($(
        impl Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                shapes.put::<Self>(|_| Type::$kind)
            }
        }
    )*)*};
}

plain! {
    Bool: bool, atomic::AtomicBool;
    U8: u8, num::NonZeroU8, atomic::AtomicU8;
    U16: u16, num::NonZeroU16, atomic::AtomicU16;
    U32: u32, num::NonZeroU32, atomic::AtomicU32;
    U64: u64, usize, num::NonZeroU64, num::NonZeroUsize, atomic::AtomicU64, atomic::AtomicUsize;
    U128: u128, num::NonZeroU128;
    I8: i8, num::NonZeroI8, atomic::AtomicI8;
    I16: i16, num::NonZeroI16, atomic::AtomicI16;
    I32: i32, num::NonZeroI32, atomic::AtomicI32;
    I64: i64, isize, num::NonZeroI64, num::NonZeroIsize, atomic::AtomicI64, atomic::AtomicIsize;
    I128: i128, num::NonZeroI128;
    F32: f32;
    F64: f64;
    Char: char;
    Text: str, String, Path, PathBuf;
    Unit: ();
}

/// What serde writes as what it holds.
macro_rules! through {
    ($($ty:ty),*) => {$(
        impl<T: Shape + ?Sized> Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                T::shape(shapes)
            }
        }
    )*};
}

through! { &T, &mut T, Box<T>, Rc<T>, Arc<T>, RefCell<T>, Mutex<T>, RwLock<T> }

macro_rules! through_sized {
    ($($ty:ty),*) => {$(
        impl<T: Shape> Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                T::shape(shapes)
            }
        }
    )*};
}

through_sized! { Cell<T>, num::Wrapping<T>, num::Saturating<T>, std::cmp::Reverse<T> }

impl<T: Shape + ToOwned + ?Sized> Shape for Cow<'_, T> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        T::shape(shapes)
    }
}

fn list<T: Shape>(shapes: &mut Shapes) -> Type {
    let item = T::shape(shapes);
    if *shapes.get(item) == Type::U8 { Type::Bytes } else { Type::List(item) }
}

macro_rules! lists {
    ($($ty:ty $(, $more:ident)?;)*) => {$(
        impl<T: Shape $(, $more)?> Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                shapes.put::<Self>(list::<T>)
            }
        }
    )*};
}

lists! {
    [T]; Vec<T>; VecDeque<T>; LinkedList<T>; BTreeSet<T>; BinaryHeap<T>; HashSet<T, H>, H;
}

fn map<K: Shape, V: Shape>(shapes: &mut Shapes) -> Type {
    let key = K::shape(shapes);
    Type::Map(key, V::shape(shapes))
}

impl<K: Shape, V: Shape> Shape for BTreeMap<K, V> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        shapes.put::<Self>(map::<K, V>)
    }
}

impl<K: Shape, V: Shape, H> Shape for HashMap<K, V, H> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        shapes.put::<Self>(map::<K, V>)
    }
}

impl<T: Shape> Shape for Option<T> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        shapes.put::<Self>(|shapes| Type::Option(T::shape(shapes)))
    }
}

impl<T: Shape, const N: usize> Shape for [T; N] {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        shapes.put::<Self>(|shapes| Type::Array(T::shape(shapes), N as u64))
    }
}

macro_rules! tuples {
    ($($($name:ident)*;)*) => {$(
        impl<$($name: Shape),*> Shape for ($($name,)*) {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                shapes.put::<Self>(|shapes| Type::Tuple(vec![$($name::shape(shapes)),*]))
            }
        }
    )*};
}

tuples! {
    A; A B; A B C; A B C D; A B C D E; A B C D E F; A B C D E F G; A B C D E F G H; A B C D E F G H I;
    A B C D E F G H I J; A B C D E F G H I J K; A B C D E F G H I J K L; A B C D E F G H I J K L M;
    A B C D E F G H I J K L M N; A B C D E F G H I J K L M N O; A B C D E F G H I J K L M N O P;
}

fn field<T: Shape>(shapes: &mut Shapes, name: &str) -> Field {
    Field::plain(name, T::shape(shapes))
}

fn variant<T: Shape>(shapes: &mut Shapes, name: &str) -> Variant {
    Variant {
        name: name.to_owned(),
        contents: Contents::Newtype(T::shape(shapes)),
        aliases: Vec::new(),
        is_other: false,
    }
}

macro_rules! structs {
    ($($ty:ty $(, $more:ident)?: $name:literal { $($field:literal: $inner:ty),* };)*) => {$(
        impl $(<$more: Shape>)? Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                shapes.put::<Self>(|shapes| Type::Struct {
                    name: $name.to_owned(),
                    fields: vec![$(field::<$inner>(shapes, $field)),*],
                    denies_unknown: false,
                })
            }
        }
    )*};
}

structs! {
    Duration: "Duration" { "secs": u64, "nanos": u32 };
    SystemTime: "SystemTime" { "secs_since_epoch": u64, "nanos_since_epoch": u32 };
    Range<T>, T: "Range" { "start": T, "end": T };
    RangeInclusive<T>, T: "RangeInclusive" { "start": T, "end": T };
}

macro_rules! enums {
    ($($ty:ty $(, $($more:ident),*)?: $name:literal { $($variant:literal: $inner:ty),* };)*) => {$(
        impl $(<$($more: Shape),*>)? Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                shapes.put::<Self>(|shapes| Type::Enum {
                    name: $name.to_owned(),
                    variants: vec![$(variant::<$inner>(shapes, $variant)),*],
                    denies_unknown: false,
                })
            }
        }
    )*};
}

enums! {
    Result<T, E>, T, E: "Result" { "Ok": T, "Err": E };
    IpAddr: "IpAddr" { "V4": Ipv4Addr, "V6": Ipv6Addr };
    SocketAddr: "SocketAddr" { "V4": SocketAddrV4, "V6": SocketAddrV6 };
}

macro_rules! as_other {
    ($($ty:ty: $other:ty;)*) => {$(
        impl Shape for $ty {
            fn shape(shapes: &mut Shapes) -> TypeRef {
                <$other>::shape(shapes)
            }
        }
    )*};
}

as_other! {
    Ipv4Addr: [u8; 4];
    Ipv6Addr: [u8; 16];
    SocketAddrV4: (Ipv4Addr, u16);
    SocketAddrV6: (Ipv6Addr, u16);
}

impl<T: ?Sized> Shape for PhantomData<T> {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        shapes.put::<PhantomData<()>>(|_| Type::Unit)
    }
}

/// An enum without variants: it has no values.
impl Shape for Infallible {
    fn shape(shapes: &mut Shapes) -> TypeRef {
        shapes.put::<Self>(|_| Type::Enum {
            name: "Infallible".to_owned(),
            variants: Vec::new(),
            denies_unknown: false,
        })
    }
}
