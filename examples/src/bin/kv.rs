//! A key-value store: keys are read where they landed, values are lent as they lie; the service uses bincode.
//!
//! `kv`, `kv tcp://127.0.0.1:0` or, in the lab, `kv rdma://$GIMMAL_RXE_ADDR:7612`

#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use gimmal::{
    Bulk, Channel as _, Code, Cx, Status, UserBytes, WithLoan, codec::Bincode, raw::ResponseWriter,
};

#[gimmal::service(codec = Bincode)]
trait Kv {
    /// Keeps `value` as it lies where it was brought: it never passes a codec. Returns whether the key was new.
    async fn put(&self, cx: &Cx, key: String, value: Bulk) -> bool;
    /// A value of any size, lent as it lies: over a device it is registered once, and read there by every client.
    async fn get(&self, cx: &Cx, key: String) -> Result<WithLoan<u64>, String>;
    /// A small value, by a key that is read in the ring and copied nowhere; the value is written into the ring.
    #[raw]
    fn peek(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) -> Result<(), Status>;
}

#[derive(Default)]
struct Store {
    values: RwLock<HashMap<String, UserBytes>>,
}

impl Kv for Store {
    async fn put(&self, _: &Cx, key: String, value: Bulk) -> bool {
        let mut values = self.values.write().unwrap_or_else(PoisonError::into_inner);
        let old = values.insert(key, UserBytes::new(value));
        drop(values);
        // Nobody will ask for it again, so its memory need not wait until others want the room.
        old.inspect(UserBytes::forget).is_none()
    }

    async fn get(&self, cx: &Cx, key: String) -> Result<WithLoan<u64>, String> {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        let value = values.get(&key).cloned().ok_or_else(|| format!("no key {key:?}"))?;
        drop(values);
        let loan = cx.lend(&value).map_err(|error| error.to_string())?;
        Ok(WithLoan::new(value.len() as u64, loan))
    }

    fn peek(&self, _: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>) -> Result<(), Status> {
        let key = std::str::from_utf8(request)
            .map_err(|error| Status::new(Code::InvalidArgument, error.to_string()))?;
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        let value = values.get(key).ok_or_else(|| Status::new(Code::NotFound, format!("no key {key:?}")))?;
        answer.write(value);
        Ok(())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::args().nth(1).unwrap_or_else(|| format!("shm://kv-{}", std::process::id()));
    let server = gimmal::serve(&url, serve_kv(Store::default()))?;
    let client = KvClient::new(gimmal::connect(&server.address().to_string())?);
    let large = "large".to_owned();
    for (key, bytes) in [("small", 100), (&*large, 1 << 20)] {
        let mut value = client.channel().loan(bytes)?;
        value.fill(b'x');
        println!("put  {key}: {bytes} bytes, new: {}", client.put(key.to_owned(), value).wait()?);
    }
    println!("peek small: {} bytes", client.peek(b"small").response().wait().bytes().map(<[u8]>::len)?);
    for _ in 0..2 {
        let pulled = client.get(large.clone()).wait()?;
        let count = pulled.iter().filter(|x| **x == b'x').count();
        println!("get  large: {} bytes, {count} of them x", pulled.value);
    }
    println!("get  other: {}", client.get("other".to_owned()).wait().err().ok_or("it is there")?);
    println!("peek other: {}", client.peek(b"other").wait().err().ok_or("it is there")?);
    let lent = server.user_memory();
    println!("lent: {} registered, {} known already, {} copied", lent.misses, lent.hits, lent.copies);
    Ok(())
}
