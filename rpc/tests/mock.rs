//! Mocks that `#[service(mock)]` makes: every kind of method does what was set, and one that was not says so.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use gimmal_rpc::{CallError, Client, Code, Cx, ResponseWriter, Server, Sink, Stream};

#[gimmal_rpc::service(mock, crate = gimmal_rpc)]
pub trait Ledger {
    /// The new balance, or what is missing.
    async fn withdraw(&self, cx: &Cx, account: String, amount: u64) -> Result<u64, u64>;
    #[oneway]
    async fn note(&self, cx: &Cx, text: String);
    /// Sums, one for each item.
    async fn sums(&self, cx: &Cx, items: Stream<u64>, sums: Sink<u64>) -> u64;
    #[inline]
    fn length(&self, cx: &Cx, text: &str, bytes: &[u8]) -> usize;
    #[raw]
    fn mirror(&self, cx: &Cx, request: &[u8], answer: &mut ResponseWriter<'_>);
}

fn served(mock: MockLedger, name: &str) -> (Server, LedgerClient) {
    let url = format!("mem://mock-{name}-{}", std::process::id());
    let server = Server::builder().service(serve_ledger(mock)).listen(&url).unwrap();
    (server, LedgerClient::new(Client::connect(&url).unwrap()))
}

#[test]
fn every_kind_of_method_does_what_was_set() {
    let noted = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&noted);
    let mock = MockLedger::new()
        .withdraw(
            |account, amount| async move { if account == "full" { Ok(100 - amount) } else { Err(amount) } },
        )
        .note(move |text| {
            counts.fetch_add(text.len() as u64, Ordering::Relaxed);
            async {}
        })
        .sums(|mut items, mut sums| async move {
            let mut sum = 0;
            while let Some(item) = items.next().await {
                sum += item.unwrap();
                sums.send(&sum).await.unwrap();
            }
            sum
        })
        .length(|text, bytes| text.len() + bytes.len())
        .mirror(|request, answer| answer.write(request));
    let (_server, client) = served(mock, "set");
    assert_eq!(client.withdraw("full".into(), 30).wait().unwrap(), 70);
    assert!(matches!(client.withdraw("empty".into(), 30).wait(), Err(CallError::App(30))));
    client.note("four".into()).wait().unwrap();
    let (mut items, mut sums, call) = client.sums();
    for item in [1, 2, 3] {
        items.blocking_send(&item).unwrap();
    }
    items.finish();
    let seen: Vec<u64> = std::iter::from_fn(|| sums.blocking_next()).map(Result::unwrap).collect();
    assert_eq!((seen, call.wait().unwrap()), (vec![1, 3, 6], 6));
    assert_eq!(client.length("abc", &[1, 2]).wait().unwrap(), 5);
    assert_eq!(client.mirror(b"as it is").wait().unwrap(), b"as it is");
    assert_eq!(noted.load(Ordering::Relaxed), 4, "it came before the calls after it");
}

#[test]
fn what_was_not_set_panics_for_its_caller_alone() {
    let (_server, client) = served(MockLedger::new().length(|text, _| text.len()), "unset");
    let error = client.withdraw("full".into(), 1).wait().unwrap_err();
    assert_eq!(error.status().unwrap().code(), Code::Internal);
    assert_eq!(client.length("abc", &[]).wait().unwrap(), 3);
}
