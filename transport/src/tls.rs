//! TLS of `tcp+tls://`: what a side shows and believes, and what became of it.

pub(crate) mod choice;
pub(crate) mod error;

use std::{fmt, path::Path, sync::Arc};

use self::choice::{Choice, Pair};
#[cfg(feature = "tls")]
pub use crate::tcp::foreign;

/// The certificates of one side of `tcp+tls://`, in PEM files. Files that change are read again by the next connection;
/// established connections stay as they are.
///
/// A server needs a [`certificate`](Tls::certificate). One that names an [`authority`](Tls::authority) demands a certificate
/// of every client. A client believes the authorities of the system's store unless it names others.
///
/// ```
/// use gimmal_transport::Tls;
///
/// // The server: its certificate, and the authority of its clients.
/// let server = Tls::default().certificate("server.pem", "server.key").authority("ours.pem");
/// // A client: whom it believes, and what it shows.
/// let client = Tls::default().authority("ours.pem").certificate("client.pem", "client.key");
/// ```
#[derive(Clone, Default)]
pub struct Tls {
    /// Clones share what was read of the files, and with it the sessions that can be resumed.
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    choice: Choice,
    #[cfg(feature = "tls")]
    kept: crate::tcp::TlsKept,
}

impl Tls {
    /// Shows a certificate: `chain` is a PEM file with it and the intermediate ones, `key` one with its private key.
    #[must_use]
    pub fn certificate(self, chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        let certificate = Some(Pair { chain: chain.as_ref().into(), key: key.as_ref().into() });
        self.with(|choice| choice.certificate = certificate)
    }

    /// Believes certificates that an authority of the PEM file `file` has signed, and none of the system's store. Several
    /// calls add up.
    #[must_use]
    pub fn authority(self, file: impl AsRef<Path>) -> Self {
        self.with(|choice| choice.authorities.push(file.as_ref().into()))
    }

    /// Expects `name` in the server's certificate, in place of the URL's host. Clients only.
    #[must_use]
    pub fn server_name(self, name: impl Into<String>) -> Self {
        self.with(|choice| choice.server_name = Some(name.into()))
    }

    /// Allows a peer whose certificate has this identity: a SPIFFE id, a DNS name, or the whole subject as
    /// [`Certificate::subject`] has it. A side that allows some refuses all others. A client then checks these instead of
    /// the server's name.
    #[must_use]
    pub fn allow(self, identity: impl Into<String>) -> Self {
        self.with(|choice| choice.allowed.push(identity.into()))
    }

    /// One more choice, and nothing read yet.
    fn with(self, choose: impl FnOnce(&mut Choice)) -> Self {
        let mut choice = self.inner.choice.clone();
        choose(&mut choice);
        #[cfg(feature = "tls")]
        let kept = crate::tcp::TlsKept::default();
        let inner = Inner {
            choice,
            #[cfg(feature = "tls")]
            kept,
        };
        Self { inner: Arc::new(inner) }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn choice(&self) -> &Choice {
        &self.inner.choice
    }

    #[cfg(feature = "tls")]
    pub(crate) fn kept(&self) -> &crate::tcp::TlsKept {
        &self.inner.kept
    }
}

impl PartialEq for Tls {
    fn eq(&self, other: &Self) -> bool {
        self.inner.choice == other.inner.choice
    }
}

impl Eq for Tls {}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.inner.choice).finish()
    }
}

/// What TLS came to on one connection: the cipher suite, and whom the peer's certificate names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Secured {
    /// The cipher suite: `TLS13_AES_128_GCM_SHA256`.
    pub suite: String,
    /// Whether it continues an earlier session, so that no certificate was sent again.
    pub resumed: bool,
    /// The peer's certificate, after it was verified; `None` of a client that was asked for none.
    pub peer: Option<Certificate>,
}

/// The names in a certificate of the peer's, which was verified.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Certificate {
    /// Its subject, in the order of the certificate: `O=Example,CN=client`. Special characters are escaped by a backslash.
    pub subject: String,
    /// Its SPIFFE id, if it has one: `spiffe://example.org/ns/prod/sa/client`.
    pub spiffe: Option<String>,
    /// Its DNS names.
    pub names: Vec<String>,
}

impl Certificate {
    /// Returns whether `identity` is its SPIFFE id, one of its DNS names, or its whole subject.
    #[must_use]
    pub fn is(&self, identity: &str) -> bool {
        self.spiffe.as_deref() == Some(identity)
            || self.names.iter().any(|name| name == identity)
            || (!self.subject.is_empty() && self.subject == identity)
    }
}

impl fmt::Display for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.spiffe.as_deref().or_else(|| self.names.first().map(String::as_str));
        f.write_str(
            name.filter(|_| self.subject.is_empty() || self.spiffe.is_some()).unwrap_or(&self.subject),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{BuilderCall, no_call_undoes_another};

    #[test]
    fn no_choice_of_tls_undoes_another() {
        let calls: &[BuilderCall<Tls>] = &[
            ("certificate", |tls| tls.certificate("chain", "key")),
            ("authority", |tls| tls.authority("roots")),
            ("server_name", |tls| tls.server_name("a")),
            ("allow", |tls| tls.allow("spiffe://a/b")),
        ];
        no_call_undoes_another(Tls::default, calls, |tls| tls);
    }

    #[test]
    fn a_certificate_has_the_identities_in_it_and_no_others() {
        let spiffe = Some("spiffe://a/b".to_owned());
        let certificate =
            Certificate { subject: "O=A,CN=b".to_owned(), spiffe, names: vec!["b.example".to_owned()] };
        for identity in ["O=A,CN=b", "spiffe://a/b", "b.example"] {
            assert!(certificate.is(identity), "{identity}");
        }
        for identity in ["", "b", "CN=b", "spiffe://a/b/c", "example"] {
            assert!(!certificate.is(identity) && !Certificate::default().is(identity), "{identity}");
        }
        assert_eq!(certificate.to_string(), "spiffe://a/b");
    }
}
