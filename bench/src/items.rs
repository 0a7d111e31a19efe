//! The service whose methods stream, and the items.

use gimmal::{Cx, Sink, Stream};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::target::{body, total};

/// The largest item that a server makes, bytes.
const ITEM_BYTES_MAX: u64 = 16 << 20;

/// Bytes that serde is told to be bytes.
#[derive(Clone, PartialEq, Eq, Debug, gimmal::Shape)]
pub(crate) struct Item(pub(crate) Vec<u8>);

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Bytes;
        impl de::Visitor<'_> for Bytes {
            type Value = Item;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Item, E> {
                Ok(Item(bytes.to_vec()))
            }
        }
        deserializer.deserialize_bytes(Bytes)
    }
}

/// What is called.
#[gimmal::service]
pub(crate) trait Streams {
    /// So many items of so many bytes.
    async fn down(&self, cx: &Cx, items: u64, bytes: u64, down: Sink<Item>);
    /// The sum of what the items hold, and how many they were.
    async fn up(&self, cx: &Cx, up: Stream<Item>) -> (u64, u64);
    /// Items both ways.
    async fn both(&self, cx: &Cx, up: Stream<Item>, down: Sink<Item>);
}

/// What answers.
#[derive(Debug)]
pub(crate) struct Source;

impl Streams for Source {
    async fn down(&self, _: &Cx, items: u64, bytes: u64, mut down: Sink<Item>) {
        let item = Item(body(usize::try_from(bytes.min(ITEM_BYTES_MAX)).unwrap_or(0)));
        for _ in 0..items {
            if down.send(&item).await.is_err() {
                return;
            }
        }
    }

    async fn up(&self, _: &Cx, mut up: Stream<Item>) -> (u64, u64) {
        let (mut sum, mut items) = (0u64, 0);
        while let Some(Ok(item)) = up.next().await {
            sum = sum.wrapping_add(total(&item.0));
            items += 1;
        }
        (sum, items)
    }

    async fn both(&self, _: &Cx, mut up: Stream<Item>, mut down: Sink<Item>) {
        while let Some(Ok(item)) = up.next().await {
            if down.send(&item).await.is_err() {
                return;
            }
        }
    }
}
