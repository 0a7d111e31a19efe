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
    /// The same where they landed.
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
    drop(up);
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
    let reply = client.pair(7, "text".into()).wait_reply().unwrap();
    assert_eq!(reply.get(), Ok((7, "text")));
    assert_eq!(reply.get_as::<(u32, String)>(), Ok((7, "text".to_owned())));
    let reply = block_on(client.reverse(b"abc".to_vec()).reply()).unwrap();
    assert_eq!((reply.get(), reply.bytes()), (Ok(&b"cba"[..]), &b"cba"[..]));
    drop(reply);
    // Above a message's size: where the server has it, or where it was brought.
    let sent: Vec<u8> = (0..300_000u32).map(|at| (at % 251) as u8).collect(); // below 251
    let reply = client.reverse(sent.clone()).wait_reply().unwrap();
    assert!(reply.get().unwrap().iter().rev().eq(&sent));
    let error = client.reverse(Vec::new()).wait_reply().unwrap_err();
    assert_eq!(error, CallError::App(b"nothing".to_vec()));
}

fn another_codec_is_another_method(scheme: &str) {
    let (_server, channel) = serve(scheme);
    let client = before::MixedClient::new(channel);
    let error = client.reverse(vec![1]).wait().unwrap_err();
    let CallError::Mismatch { ours, theirs, .. } = &error else { panic!("{error:?}") };
    assert!(ours.ends_with("[postcard]") && theirs.ends_with("[raw]"), "{error:?}");
}
