//! The names in a certificate that was verified.

use std::fmt::Write;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

use crate::Certificate;

const SPIFFE: &str = "spiffe://";

/// The names in `certificate`.
pub(super) fn of(certificate: &CertificateDer<'_>) -> Certificate {
    // It was parsed before, to be verified.
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return Certificate::default() };
    // A certificate with several SPIFFE ids is none (SPIFFE's X509-SVID, section 2).
    let mut ids = parsed.valid_uri_names().filter(|uri| uri.starts_with(SPIFFE));
    let spiffe = ids.next().filter(|_| ids.next().is_none()).map(str::to_owned);
    let names = parsed.valid_dns_names().map(str::to_owned).collect();
    Certificate { subject: subject(parsed.subject()), spiffe, names }
}

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT: u8 = 0x06;
/// Strings whose bytes are UTF-8: `UTF8String`, `PrintableString`, `IA5String`.
const TEXTS: [u8; 3] = [0x0c, 0x13, 0x16];

/// The next value of DER: its tag and its bytes, and what follows.
fn next(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&[tag, first], rest) = der.split_first_chunk()?;
    let (bytes, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(u16::from_be_bytes(*rest.first_chunk()?)), &rest[2..]),
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(bytes)?;
    Some((tag, value, rest))
}

/// What lies in the next value, if that is `wanted`.
fn within(wanted: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (tag, value, rest) = next(der)?;
    (tag == wanted).then_some((value, rest))
}

/// The names of a subject as people write them: `C=CH,O=Example,CN=a`. What cannot be read ends it by `?`.
fn subject(mut der: &[u8]) -> String {
    let mut out = String::new();
    while !der.is_empty() {
        let Some((mut set, rest)) = within(SET, der) else {
            out.push('?');
            break;
        };
        while let Some((pair, others)) = within(SEQUENCE, set) {
            set = others;
            let Some((object, value)) = within(OBJECT, pair) else { continue };
            let Some((tag, text, _)) = next(value) else { continue };
            let mark = if out.is_empty() { "" } else { "," };
            let _ = write!(out, "{mark}{}=", key(object));
            match std::str::from_utf8(text) {
                Ok(text) if TEXTS.contains(&tag) => escape(text, &mut out),
                _ => out.push('?'),
            }
        }
        der = rest;
    }
    out
}

/// The short name of an attribute (RFC 4514), or its object identifier's bytes.
fn key(object: &[u8]) -> String {
    let known = match object {
        [0x55, 4, 3] => "CN",
        [0x55, 4, 6] => "C",
        [0x55, 4, 7] => "L",
        [0x55, 4, 8] => "ST",
        [0x55, 4, 10] => "O",
        [0x55, 4, 11] => "OU",
        _ => return object.iter().map(|byte| format!("{byte:02x}")).collect(),
    };
    known.to_owned()
}

/// So that no value reads as two names, and none moves a terminal.
fn escape(text: &str, out: &mut String) {
    for character in text.chars() {
        match character {
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' | '=' | '?' => out.extend(['\\', character]),
            character if character.is_control() => out.push('?'),
            character => out.push(character),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn der(tag: u8, value: &[u8]) -> Vec<u8> {
        [&[tag, u8::try_from(value.len()).unwrap()], value].concat()
    }

    fn name(object: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
        der(SET, &der(SEQUENCE, &[der(OBJECT, object), der(tag, text)].concat()))
    }

    #[test]
    fn a_subject_reads_as_people_write_it_and_no_value_as_two_names() {
        let whole = [name(&[0x55, 4, 10], 0x0c, b"A, B"), name(&[0x55, 4, 3], 0x13, b"c=d\n")].concat();
        assert_eq!(subject(&whole), "O=A\\, B,CN=c\\=d?");
        assert_eq!(subject(&name(&[9, 9], 0x16, b"x")), "0909=x");
        assert_eq!(subject(&name(&[0x55, 4, 3], 0x1e, b"\0x")), "CN=?", "no UTF-8");
        assert_eq!(subject(b""), "");
    }

    #[test]
    fn any_bytes_are_read_without_a_panic() {
        let whole = [name(&[0x55, 4, 10], 0x0c, b"abc"), name(&[0x55, 4, 3], 0x0c, &[b'x'; 100])].concat();
        for len in 0..whole.len() {
            let _ = subject(&whole[..len]);
        }
        for at in 0..whole.len() {
            for value in 0..=255 {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let _ = subject(&bytes);
            }
        }
    }
}
