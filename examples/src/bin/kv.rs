//! A key-value store: keys are read where they landed, values are lent; the service uses bincode.
//!
//! `kv` or, in the lab, `kv rdma://$GIMMAL_RXE_ADDR:7612`

#![forbid(unsafe_code)]

use std::{
    collections::HashMap,
    sync::{PoisonError, RwLock},
};

use gimmal::{Answer, Bincode, Bulk, Channel as _, Code, Cx, Status, WithLoan};

#[gimmal::service(codec = Bincode)]
trait Kv {
    /// Keeps `value` as it lies where it was brought: it never passes a codec. Returns whether the key was new.
    async fn put(&self, cx: &Cx, key: String, value: Bulk) -> bool;
    /// A value of any size, lent.
    async fn get(&self, cx: &Cx, key: String) -> Result<WithLoan<u64>, String>;
    /// A small value, by a key that is read in the ring and copied nowhere; the value is written into the ring.
    #[raw]
    fn peek(&self, cx: &Cx, request: &[u8], answer: &mut Answer<'_>) -> Result<(), Status>;
}

#[derive(Default)]
struct Store {
    values: RwLock<HashMap<String, Bulk>>,
}

impl Kv for Store {
    async fn put(&self, _: &Cx, key: String, value: Bulk) -> bool {
        self.values.write().unwrap_or_else(PoisonError::into_inner).insert(key, value).is_none()
    }

    async fn get(&self, cx: &Cx, key: String) -> Result<WithLoan<u64>, String> {
        let values = self.values.read().unwrap_or_else(PoisonError::into_inner);
        let value = values.get(&key).ok_or_else(|| format!("no key {key:?}"))?;
        let mut loan = cx.loan(value.len()).map_err(|error| error.to_string())?;
        loan.copy_from_slice(value);
        Ok(WithLoan::new(value.len() as u64, loan))
    }

    fn peek(&self, _: &Cx, request: &[u8], answer: &mut Answer<'_>) -> Result<(), Status> {
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
    println!("peek small: {} bytes", client.peek(b"small").wait_with(<[u8]>::len)?);
    let pulled = client.get(large).wait()?;
    println!(
        "get  large: {} bytes, {} of them x",
        pulled.value,
        pulled.iter().filter(|x| **x == b'x').count()
    );
    println!("get  other: {}", client.get("other".to_owned()).wait().err().ok_or("it is there")?);
    println!("peek other: {}", client.peek(b"other").wait().err().ok_or("it is there")?);
    Ok(())
}
