//! Methods with a codec of their own beside those of the service's.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{address, block_on, config};
use gimmal_rpc::{CallError, Client, Cx, Raw, Server, Sink, Stream};

for_each_scheme! {
    a_method_has_a_codec_of_its_own
    another_codec_is_another_method
    answers_are_read_where_they_are
}

#[gimmal_rpc::service(crate = gimmal_rpc)]
trait Mixed {
    async fn pair(&self, cx: &Cx, number: u32, text: String) -> (u32, String);
    /// Bytes as they are.
    #[codec(Raw)]
    async fn reverse(&self, cx: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>, Vec<u8>>;
    /// Upper case, from borrowed bytes.
    #[codec(Raw)]
    #[inline]
    fn upper(&self, cx: &Cx, bytes: &[u8]) -> Vec<u8>;
    /// Items too.
    #[codec(Raw)]
    async fn relay(&self, cx: &Cx, first: Vec<u8>, items: Stream<Vec<u8>>, out: Sink<Vec<u8>>) -> Vec<u8>;
}

struct Mixer;

impl Mixed for Mixer {
    async fn pair(&self, _: &Cx, number: u32, text: String) -> (u32, String) {
        (number, text)
    }

    async fn reverse(&self, _: &Cx, mut bytes: Vec<u8>) -> Result<Vec<u8>, Vec<u8>> {
        bytes.reverse();
        if bytes.is_empty() { Err(b"nothing".to_vec()) } else { Ok(bytes) }
    }

    fn upper(&self, _: &Cx, bytes: &[u8]) -> Vec<u8> {
        bytes.to_ascii_uppercase()
    }

    async fn relay(
        &self,
        _: &Cx,
        first: Vec<u8>,
        mut items: Stream<Vec<u8>>,
        mut out: Sink<Vec<u8>>,
    ) -> Vec<u8> {
        while let Some(Ok(item)) = items.next().await {
            out.send(&item).await.unwrap();
        }
        first
    }
}

/// What an older client takes the service for.
mod before {
    use super::*;

    #[gimmal_rpc::service(crate = gimmal_rpc)]
    pub(super) trait Mixed {
        async fn reverse(&self, cx: &Cx, bytes: Vec<u8>) -> Result<Vec<u8>, Vec<u8>>;
    }
}

fn serve(scheme: &str) -> (Server, Client) {
    let builder = Server::builder().service(serve_mixed(Mixer)).config(config());
    let server = builder.listen(&address(scheme, "mixed")).unwrap();
    let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
    (server, client)
}

fn a_method_has_a_codec_of_its_own(scheme: &str) {
    let (server, channel) = serve(scheme);
    let client = MixedClient::new(channel.clone());
    assert_eq!(client.pair(7, "x".into()).wait().unwrap(), (7, "x".to_owned()));
    for bytes in [1, 1000, 300_000] {
        let sent: Vec<u8> = (0..bytes).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut back = client.reverse(sent.clone()).wait().unwrap();
        back.reverse();
        assert!(back == sent, "{bytes} bytes came back otherwise");
    }
    assert_eq!(client.reverse(Vec::new()).wait(), Err(CallError::App(b"nothing".to_vec())));
    assert_eq!(client.upper(b"abc").wait().unwrap(), b"ABC");
    let (mut up, mut down, call) = client.relay(b"first".to_vec());
    block_on(up.send(&b"item".to_vec())).unwrap();
    assert_eq!(block_on(down.next()).unwrap().unwrap(), b"item");
    up.finish();
    assert_eq!(block_on(call).unwrap(), b"first");
    // On the wire it is what was given, and nothing else.
    let method =
        gimmal_rpc::Service::methods(&serve_mixed(Mixer)).iter().find(|method| method.name == "upper");
    let raw = gimmal_rpc::Channel::call_raw(&channel, method.unwrap(), b"raw").wait();
    assert_eq!(raw.unwrap(), b"RAW");
    drop(server);
}

fn answers_are_read_where_they_are(scheme: &str) {
    let (_server, channel) = serve(scheme);
    let client = MixedClient::new(channel);
    let reply = client.pair(7, "text".into()).response().wait();
    assert_eq!(reply.borrowed(), Ok((7, "text")));
    assert_eq!(reply.borrowed_as::<(u32, String)>(), Ok((7, "text".to_owned())));
    let reply = block_on(client.reverse(b"abc".to_vec()).response());
    assert_eq!((reply.borrowed(), reply.bytes()), (Ok(&b"cba"[..]), Ok(&b"cba"[..])));
    drop(reply);
    // Above a message's size: where the server has it, or where it was brought.
    let sent: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect(); // below 251
    let reply = client.reverse(sent.clone()).response().wait();
    assert!(reply.borrowed().unwrap().iter().rev().eq(&sent));
    let reply = client.reverse(Vec::new()).response().wait();
    let nothing = CallError::App(b"nothing".to_vec());
    assert_eq!(reply.borrowed(), Err(nothing.clone()));
    assert_eq!(reply.value(), Err(nothing));
}

fn another_codec_is_another_method(scheme: &str) {
    let (_server, channel) = serve(scheme);
    let client = before::MixedClient::new(channel);
    let error = client.reverse(vec![1]).wait().unwrap_err();
    let CallError::Mismatch(it) = &error else { panic!("{error:?}") };
    assert!(it.ours.ends_with("[postcard]") && it.theirs.ends_with("[raw]"), "{error:?}");
}

/// Values as they lie in memory.
#[cfg(feature = "zerocopy")]
mod flat {
    use super::{address, config};
    use crate::for_each_scheme;
    use gimmal_rpc::{CallError, CallOptions, Client, Code, Cx, InPlace, Metadata, Server, Zerocopy};
    use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

    for_each_scheme! {
        values_are_read_where_they_landed
        a_layout_of_another_length_is_refused
    }

    #[derive(
        Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, gimmal_rpc::Shape,
    )]
    #[shape(crate = gimmal_rpc)]
    #[repr(C)]
    pub(super) struct Quote {
        price: u64,
        volume: u64,
    }

    #[gimmal_rpc::service(crate = gimmal_rpc)]
    trait Quotes {
        /// Twice as much of it.
        #[codec(Zerocopy)]
        #[inline]
        fn doubled(&self, cx: &Cx, quote: InPlace<'_, Quote>) -> Quote;
        /// Whether it was copied, although it should lie where it landed.
        #[codec(Zerocopy)]
        #[inline]
        fn is_copied(&self, cx: &Cx, quote: InPlace<'_, Quote>) -> u8;
        /// Returns the number, or what is wrong with it.
        #[codec(Zerocopy)]
        async fn checked(&self, cx: &Cx, number: u64) -> Result<u64, u32>;
        async fn named(&self, cx: &Cx, name: String, number: u64) -> String;
    }

    struct Desk;

    impl Quotes for Desk {
        fn doubled(&self, _: &Cx, quote: InPlace<'_, Quote>) -> Quote {
            Quote { volume: 2 * quote.volume, ..*quote }
        }

        fn is_copied(&self, _: &Cx, quote: InPlace<'_, Quote>) -> u8 {
            quote.is_copied().into()
        }

        async fn checked(&self, _: &Cx, number: u64) -> Result<u64, u32> {
            if number == 7 { Err(77) } else { Ok(number) }
        }

        async fn named(&self, _: &Cx, name: String, number: u64) -> String {
            format!("{name} {number}")
        }
    }

    /// A longer method of the same signature text.
    mod other {
        use super::{Cx, FromBytes, Immutable, IntoBytes, KnownLayout, Zerocopy};
        use gimmal_rpc::InPlace;

        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(super) struct Quote(pub(super) [u64; 3]);

        /// It claims the shape of the other.
        impl gimmal_rpc::Shape for Quote {
            fn shape(shapes: &mut gimmal_rpc::shape::Shapes) -> gimmal_rpc::shape::TypeRef {
                super::Quote::shape(shapes)
            }
        }

        #[gimmal_rpc::service(crate = gimmal_rpc)]
        pub(super) trait Quotes {
            #[codec(Zerocopy)]
            #[inline]
            fn doubled(&self, cx: &Cx, quote: InPlace<'_, Quote>) -> Quote;
        }
    }

    const QUOTE: Quote = Quote { price: 3, volume: 4 };

    fn serve(scheme: &str) -> (Server, Client) {
        let builder = Server::builder().service(serve_quotes(Desk)).config(config());
        let server = builder.listen(&address(scheme, "quotes")).unwrap();
        let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
        (server, client)
    }

    fn values_are_read_where_they_landed(scheme: &str) {
        let (server, channel) = serve(scheme);
        let client = QuotesClient::new(channel);
        assert_eq!(client.doubled((&QUOTE).into()).wait().unwrap(), Quote { price: 3, volume: 8 });
        let mut copied = vec![client.is_copied((&QUOTE).into()).wait().unwrap()];
        // Behind metadata too.
        let mut metadata = Metadata::new();
        metadata.insert("key", "value").unwrap();
        let noted = client.clone().with_options(CallOptions::default().metadata(metadata));
        copied.push(noted.is_copied((&QUOTE).into()).wait().unwrap());
        if scheme == "shm" {
            assert_eq!(copied, [0, 0]);
        }
        assert_eq!(client.checked(5).wait().unwrap(), 5);
        assert!(matches!(client.checked(7).wait(), Err(CallError::App(77))));
        assert_eq!(client.named("a".to_owned(), 1).wait().unwrap(), "a 1");
        drop(server);
    }

    fn a_layout_of_another_length_is_refused(scheme: &str) {
        let (server, channel) = serve(scheme);
        let client = other::QuotesClient::new(channel);
        let refused = client.doubled((&other::Quote([1, 2, 3])).into()).wait().unwrap_err();
        let CallError::Status(status) = refused else { panic!("{refused}") };
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().contains("24 bytes, and such a value has 16"), "{}", status.message());
        drop(server);
    }
}
