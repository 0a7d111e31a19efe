use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, gimmal_rpc::Shape)]
#[shape(crate = gimmal_rpc)]
struct Order {
    #[serde(with = "seconds")]
    patience: u64,
}

mod seconds {
    pub use serde::{Deserialize, Serialize};

    pub fn serialize<S: serde::Serializer>(value: &u64, serializer: S) -> Result<S::Ok, S::Error> {
        value.serialize(serializer)
    }

    pub fn deserialize<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
        u64::deserialize(deserializer)
    }
}

fn main() {}
