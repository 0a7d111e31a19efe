//! Names of hosts.

use super::*;
use crate::ConnectError;

/// The resolver has words for its errors, and no errno.
#[test]
fn a_name_that_cannot_be_resolved_is_an_error_in_the_resolvers_words() {
    let gate = Tcp.open_port(&config(4096)).unwrap().gate();
    // No label is so long, so nobody is asked.
    let address = Address::Tcp { host: format!("{}.invalid", "x".repeat(70)), port: 1, tls: false };
    let patience = Duration::from_secs(60);
    let options = ConnectOptions { connect_timeout: patience, ..patient_connect() };
    let error = Tcp
        .connect(&address, &gate, &options)
        .and_then(|mut connecting| connecting.poll(patience).expect("an outcome"))
        .unwrap_err();
    let ConnectError::Address { why, .. } = &error else { panic!("{error}") };
    let words = why.strip_prefix("the host cannot be resolved: ");
    assert!(words.is_some_and(|words| words.contains("lookup") && !words.contains("errno")), "{error}");
}
