//! Names that a user's code has beside a service: none clashes with what `#[service]` makes. It is enough that this compiles.

#![deny(warnings)]
#![allow(
    dead_code,
    unused_imports,
    non_camel_case_types,
    clippy::unwrap_used,
    unreachable_pub,
    clippy::allow_attributes,
    reason = "what is made is looked at by the compiler alone"
)]

use gimmal_rpc::{Client, Cx, Server};

/// A unit struct of each name: a pattern of that name would be the struct.
macro_rules! units {
    ($($name:ident)*) => { $(mod $name {
        pub struct $name;
        #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
        pub trait A {
            async fn a(&self, c: &gimmal_rpc::Cx, x: u8, y: u16) -> u8;
            #[inline]
            fn b(&self, c: &gimmal_rpc::Cx, x: &str, z: &[u8]) -> u8;
            async fn c(&self, c: &gimmal_rpc::Cx, s: gimmal_rpc::Stream<u8>, k: gimmal_rpc::Sink<u8>) -> Result<u8, u8>;
            #[oneway]
            async fn d(&self, c: &gimmal_rpc::Cx, x: u8);
            async fn e(&self, c: &gimmal_rpc::Cx, q: gimmal_rpc::Bulk) -> gimmal_rpc::WithLoan<u8>;
            #[raw]
            fn g(&self, c: &gimmal_rpc::Cx, q: &[u8], w: &mut gimmal_rpc::ResponseWriter<'_>);
        }
    })* };
}

mod units {
    units! {
        answer argument_0 arguments bulk bytes call channel cx does ends error f future loan method options request seat
        service sink stream task this value writer
    }
}

/// A type of each name, in every place.
macro_rules! types {
    ($($name:ident $other:ident)*) => { $(mod $other {
        #[derive(serde::Serialize, serde::Deserialize, gimmal_rpc::Shape)]
        #[shape(crate = gimmal_rpc)]
        pub struct $name {
            pub a: u8,
        }
        #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
        pub trait Sums {
            async fn a(&self, cx: &gimmal_rpc::Cx, x: $name) -> $name;
            #[inline]
            fn b(&self, cx: &gimmal_rpc::Cx, x: $name) -> u8;
            async fn c(&self, cx: &gimmal_rpc::Cx, s: gimmal_rpc::Stream<$name>, k: gimmal_rpc::Sink<$name>) -> Result<u8, $name>;
            #[oneway]
            async fn d(&self, cx: &gimmal_rpc::Cx, x: $name);
        }
    })* };
}

mod types {
    types! {
        Answer answer Arc arc Args args C c Call call Channel channel E e Error error F f I i K k M m Method method
        Outcome outcome P p Pulled pulled R r S s Service service T t
    }
}

/// An argument of each name.
macro_rules! arguments {
    ($($name:ident)*) => { $(mod $name {
        #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
        pub trait A {
            async fn a(&self, cx: &gimmal_rpc::Cx, $name: u8, y: u16) -> u8;
            #[inline]
            fn b(&self, cx: &gimmal_rpc::Cx, $name: &str, z: &[u8]) -> u8;
            async fn c(&self, cx: &gimmal_rpc::Cx, $name: gimmal_rpc::Stream<u8>, k: gimmal_rpc::Sink<u8>, y: u8) -> Result<u8, u8>;
            async fn g(&self, cx: &gimmal_rpc::Cx, s: gimmal_rpc::Stream<u8>, $name: u8) -> u8;
            #[oneway]
            async fn d(&self, cx: &gimmal_rpc::Cx, $name: u8);
            async fn e(&self, cx: &gimmal_rpc::Cx, $name: gimmal_rpc::Bulk) -> gimmal_rpc::WithLoan<u8>;
        }
    })* };
}

mod arguments {
    arguments! {
        answer argument_0 arguments bulk bytes call channel does ends error f future loan method options request seat
        service sink stream task this value writer
    }
}

/// A name of the prelude that is something else here.
macro_rules! shadows {
    ($($name:ident $other:ident)*) => { $(mod $other {
        pub struct $name;
        #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
        pub trait A {
            async fn a(&self, cx: &gimmal_rpc::Cx, x: u8) -> u8;
            #[inline]
            fn b(&self, cx: &gimmal_rpc::Cx, x: &str) -> u8;
            #[idempotent]
            async fn c(&self, cx: &gimmal_rpc::Cx, s: gimmal_rpc::Stream<u8>, k: gimmal_rpc::Sink<u8>) -> u8;
            async fn d(&self, cx: &gimmal_rpc::Cx) -> core::result::Result<u8, u16>;
        }
    })* };
}

mod shadows {
    shadows! {
        Box a Clone b Copy c Debug d Default e Drop f Fn g From h Into i Iterator j Option k Result l Send m Sized n
        String o Sync p Vec q Ok r Err s Some t None u
    }
}

/// A method of each name.
macro_rules! methods {
    ($($name:ident)*) => {
        #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
        pub trait Names {
            $(async fn $name(&self, cx: &gimmal_rpc::Cx, x: u8) -> u8;)*
        }
    };
}

mod methods {
    methods! { a borrow call clone drop eq fmt from into name serve try_into type_id wait r#match }
}

mod others {
    use std::borrow::Cow;

    pub trait Q {
        type X;
    }
    pub struct Z;
    impl Q for Z {
        type X = u8;
    }
    type Done<T> = Result<T, String>;

    #[must_use]
    pub struct Kept;

    #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
    pub trait A {
        async fn a(&self, cx: &gimmal_rpc::Cx, r#type: u8, _unused: u16) -> u8;
        async fn b(&self, cx: &gimmal_rpc::Cx, x: <Z as Q>::X, y: Cow<'static, str>) -> (u8, (u16,));
        async fn c(&self, cx: &gimmal_rpc::Cx) -> Done<u8>;
        #[deprecated]
        async fn d(&self, cx: &gimmal_rpc::Cx, x: u8) -> u8;
        #[deprecated]
        #[inline]
        fn e(&self, cx: &gimmal_rpc::Cx) -> u8;
    }

    pub fn within() {
        #[gimmal_rpc::service(crate = gimmal_rpc, mock)]
        trait Inner {
            async fn a(&self, cx: &gimmal_rpc::Cx) -> u8;
        }
    }
}

/// Methods that are left out: the others keep their places.
#[gimmal_rpc::service(crate = gimmal_rpc, mock)]
trait Parts {
    #[cfg(not(test))]
    async fn never(&self, cx: &Cx) -> Missing;
    async fn first(&self, cx: &Cx) -> u8;
    #[cfg(not(test))]
    #[raw]
    fn neither(&self, cx: &Cx, request: &[u8], answer: &mut Missing);
    #[cfg(test)]
    #[inline]
    fn second(&self, cx: &Cx, x: u8) -> u8;
    async fn third(&self, cx: &Cx, x: u8) -> u8;
}

#[test]
fn methods_that_are_left_out_move_no_other() {
    let mock = MockParts::new().first(|| async { 1 }).second(|x| x + 1).third(|x| async move { x + 2 });
    let _server = Server::builder().service(serve_parts(mock)).listen("mem://hygiene").unwrap();
    let parts = PartsClient::new(Client::connect("mem://hygiene").unwrap());
    assert_eq!(parts.first().wait().unwrap(), 1);
    assert_eq!(parts.second(10).wait().unwrap(), 11);
    assert_eq!(parts.third(10).wait().unwrap(), 12);
}
