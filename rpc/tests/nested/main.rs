//! Values that contain themselves: a peer cannot nest them deep enough to overflow a stack, on either side.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

#[path = "../common/mod.rs"]
mod common;
mod levels;

use std::fmt::Debug;

use common::{address, config};
use gimmal_rpc::{CallError, Client, Code, Fate, Server, TransportError};

for_each_scheme! {
    arguments_that_nest_too_deep_are_refused
    items_and_one_way_messages_that_nest_too_deep_are_refused
    answers_that_nest_too_deep_are_refused
    a_sender_refuses_what_its_peer_would
}

extern crate gimmal_rpc as gimmal;

/// Bytes of nesting: one level too many, and what overflowed the stack of a worker.
const TOO_DEEP: [u32; 4] = [129, 20_000, 60_000, 1_000_000];

/// The service of either kind of tree.
macro_rules! service {
    () => {
        #[gimmal_rpc::service(crate = gimmal_rpc, codec = crate::common::Chosen)]
        pub(crate) trait Trees {
            async fn levels(&self, cx: &Cx, tree: Tree) -> u32;
            #[inline]
            fn levels_inline(&self, cx: &Cx, tree: Tree) -> u32;
            async fn grow(&self, cx: &Cx, levels: u32) -> Tree;
            async fn fail(&self, cx: &Cx, levels: u32) -> Result<u32, Tree>;
            #[oneway]
            async fn tell(&self, cx: &Cx, tree: Tree);
            async fn told(&self, cx: &Cx) -> u32;
            async fn up(&self, cx: &Cx, trees: Stream<Tree>) -> Vec<Result<u32, String>>;
            async fn down(&self, cx: &Cx, levels: u32, trees: Sink<Tree>) -> Result<(), String>;
        }

        #[derive(Default)]
        pub(crate) struct Grower(AtomicU32);

        impl Trees for Grower {
            async fn levels(&self, _: &Cx, tree: Tree) -> u32 {
                tree.levels()
            }

            fn levels_inline(&self, _: &Cx, tree: Tree) -> u32 {
                tree.levels()
            }

            async fn grow(&self, _: &Cx, levels: u32) -> Tree {
                Tree::new(levels)
            }

            async fn fail(&self, _: &Cx, levels: u32) -> Result<u32, Tree> {
                Err(Tree::new(levels))
            }

            async fn tell(&self, _: &Cx, tree: Tree) {
                self.0.store(tree.levels(), Ordering::SeqCst);
            }

            async fn told(&self, _: &Cx) -> u32 {
                self.0.load(Ordering::SeqCst)
            }

            async fn up(&self, _: &Cx, mut trees: Stream<Tree>) -> Vec<Result<u32, String>> {
                let mut seen = Vec::new();
                while let Some(tree) = trees.next().await {
                    seen.push(tree.map(|tree| tree.levels()).map_err(|error| error.to_string()));
                }
                seen
            }

            async fn down(&self, _: &Cx, levels: u32, mut trees: Sink<Tree>) -> Result<(), String> {
                trees.send(&Tree::new(levels)).await.map_err(|error| error.to_string())
            }
        }
    };
}

/// What honest peers have.
mod honest {
    use std::sync::atomic::{AtomicU32, Ordering};

    use gimmal_rpc::{Cx, Sink, Stream};
    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize, Debug, Clone, PartialEq, Eq, gimmal_rpc::Shape)]
    #[shape(crate = gimmal_rpc)]
    pub(crate) enum Tree {
        Leaf,
        Node(Box<Self>),
    }

    impl Tree {
        pub(crate) fn new(levels: u32) -> Self {
            (0..levels).fold(Self::Leaf, |inside, _| Self::Node(Box::new(inside)))
        }

        pub(crate) fn levels(&self) -> u32 {
            let mut tree = self;
            let mut levels = 0;
            while let Self::Node(inside) = tree {
                (tree, levels) = (inside, levels + 1);
            }
            levels
        }
    }

    service!();
}

/// The service of trees, as a peer that sends bytes in their place sees it.
mod forged {
    use std::sync::atomic::{AtomicU32, Ordering};

    use gimmal_rpc::{Cx, Sink, Stream};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser::SerializeTuple};

    /// As many levels in bytes alone.
    #[derive(Debug, Clone)]
    pub(crate) struct Tree(u32);

    impl Tree {
        pub(crate) const fn new(levels: u32) -> Self {
            Self(levels)
        }

        const fn levels(&self) -> u32 {
            self.0
        }
    }

    impl Serialize for Tree {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut bytes = serializer.serialize_tuple(self.0 as usize + 1)?;
            for _ in 0..self.0 {
                bytes.serialize_element(&1_u8)?;
            }
            bytes.serialize_element(&0_u8)?;
            bytes.end()
        }
    }

    impl<'de> Deserialize<'de> for Tree {
        fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Err(de::Error::custom("it is only sent"))
        }
    }

    /// The shape of an honest one.
    impl gimmal_rpc::Shape for Tree {
        fn shape(shapes: &mut gimmal_rpc::shape::Shapes) -> gimmal_rpc::shape::TypeRef {
            super::honest::Tree::shape(shapes)
        }
    }

    service!();
}

fn serve(scheme: &str, builder: gimmal_rpc::server::ServerBuilder) -> (Server, Client) {
    let server = builder.config(config()).listen(&address(scheme, "nested")).unwrap();
    let client = Client::builder().config(config()).connect(&server.address().to_string()).unwrap();
    (server, client)
}

/// An honest server and a client that forges.
fn honest_server(scheme: &str) -> (Server, forged::TreesClient) {
    let service = honest::serve_trees(honest::Grower::default());
    let (server, client) = serve(scheme, Server::builder().service(service));
    (server, forged::TreesClient::new(client))
}

/// A server that forges and an honest client.
fn forging_server(scheme: &str) -> (Server, honest::TreesClient) {
    let service = forged::serve_trees(forged::Grower::default());
    let (server, client) = serve(scheme, Server::builder().service(service));
    (server, honest::TreesClient::new(client))
}

fn says_so(error: &impl Debug) -> bool {
    format!("{error:?}").contains("nested deeper than 128")
}

fn is_invalid<T: Debug>(outcome: Result<T, CallError>) {
    let error = outcome.expect_err("it was taken");
    assert_eq!(error.status().map(gimmal_rpc::Status::code), Some(Code::InvalidArgument), "{error}");
    assert!(says_so(&error), "{error}");
    assert_eq!(error.fate(), Fate::NotRun);
}

fn arguments_that_nest_too_deep_are_refused(scheme: &str) {
    let (server, client) = honest_server(scheme);
    for levels in TOO_DEEP {
        is_invalid(client.levels(forged::Tree::new(levels)).wait());
        if levels < 60_000 {
            // What is above a frame does not go to an inline method.
            is_invalid(client.levels_inline(forged::Tree::new(levels)).wait());
        }
    }
    assert_eq!(client.levels(forged::Tree::new(128)).wait().unwrap(), 128);
    assert_eq!(client.levels_inline(forged::Tree::new(128)).wait().unwrap(), 128);
    drop(server);
}

fn items_and_one_way_messages_that_nest_too_deep_are_refused(scheme: &str) {
    let (server, client) = honest_server(scheme);
    for levels in [128, 129, 20_000, 60_000] {
        client.tell(forged::Tree::new(levels)).wait().unwrap();
        assert_eq!(client.told().wait().unwrap(), 128, "{levels}");
        let (mut trees, call) = client.up();
        trees.blocking_send(&forged::Tree::new(levels)).unwrap();
        trees.finish();
        let seen = call.wait().unwrap();
        match &seen[..] {
            [Ok(128)] if levels == 128 => {}
            [Err(why)] if levels > 128 && says_so(why) => {}
            seen => panic!("{levels}: {seen:?}"),
        }
    }
    drop(server);
}

fn answers_that_nest_too_deep_are_refused(scheme: &str) {
    let (server, client) = forging_server(scheme);
    for levels in TOO_DEEP {
        let error = client.fail(levels).wait().unwrap_err();
        assert!(says_so(&error), "{levels}: {error:?}");
        let error = client.grow(levels).wait().unwrap_err();
        assert!(says_so(&error), "{levels}: {error}");
        assert_eq!(error.fate(), Fate::Ran);
        if levels <= 60_000 {
            let (mut trees, call) = client.down(levels);
            assert!(says_so(&trees.blocking_next().unwrap().unwrap_err()), "{levels}");
            assert_eq!(call.wait().unwrap(), ());
        }
    }
    assert_eq!(client.grow(128).wait().unwrap().levels(), 128);
    drop(server);
}

fn a_sender_refuses_what_its_peer_would(scheme: &str) {
    let service = honest::serve_trees(honest::Grower::default());
    let (server, client) = serve(scheme, Server::builder().service(service));
    let client = honest::TreesClient::new(client);
    let deep = honest::Tree::new(129);
    let error = client.levels(deep.clone()).wait().unwrap_err();
    assert!(matches!(error, CallError::Transport(TransportError::Encode(_))) && says_so(&error), "{error:?}");
    assert_eq!(error.fate(), Fate::NotRun);
    assert!(says_so(&client.tell(deep.clone()).wait().unwrap_err()));
    let (mut trees, call) = client.up();
    assert!(says_so(&trees.blocking_send(&deep).unwrap_err()));
    trees.finish();
    assert_eq!(call.wait().unwrap(), []);
    // The server's own answer, error and item.
    let error = client.grow(129).wait().unwrap_err();
    assert_eq!(error.status().map(gimmal_rpc::Status::code), Some(Code::Internal));
    assert!(says_so(&error), "{error}");
    assert!(says_so(&client.fail(129).wait().unwrap_err()));
    let (trees, call) = client.down(129);
    let error = call.wait().unwrap_err();
    assert!(says_so(&error), "{error}");
    drop(trees);
    assert_eq!(client.levels(honest::Tree::new(128)).wait().unwrap(), 128);
    assert_eq!(client.grow(128).wait().unwrap(), honest::Tree::new(128));
    drop(server);
}
