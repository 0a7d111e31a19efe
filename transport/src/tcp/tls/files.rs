//! Certificates, keys and authorities as files have them, read again when these change.

use std::{
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::CryptoProvider,
    pki_types::{
        CertificateDer, PrivateKeyDer,
        pem::{self, PemObject},
    },
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
    version::TLS13,
};

use super::{PROTOCOL, verify::AnyName};
use crate::{
    Instant,
    log_pace::LogPace,
    sync::lock::lock,
    tls::{
        choice::{Choice, Pair},
        error::TlsError,
    },
};

/// A client's side of the handshake.
#[derive(Debug)]
pub(super) struct ClientSide {
    pub(super) config: Arc<ClientConfig>,
    pub(super) verifier: Arc<dyn ServerCertVerifier>,
}

/// A server's side of the handshake.
#[derive(Debug)]
pub(super) struct ServerSide {
    pub(super) config: Arc<ServerConfig>,
    /// `None`: clients are asked for no certificate.
    pub(super) verifier: Option<Arc<dyn ClientCertVerifier>>,
}

/// What was read of the files of a [`Tls`](crate::Tls).
#[derive(Debug, Default)]
pub(crate) struct Kept {
    client: Mutex<Option<Loaded<ClientSide>>>,
    server: Mutex<Option<Loaded<ServerSide>>>,
    log: LogPace,
}

/// Why files are of no use.
#[derive(PartialEq, Eq, Debug)]
struct Useless {
    cause: TlsError,
    /// One of them could not be read, for want of a descriptor, say: that may pass although the file does not change again.
    is_unread: bool,
}

impl From<TlsError> for Useless {
    fn from(cause: TlsError) -> Self {
        Self { cause, is_unread: false }
    }
}

#[derive(Debug)]
struct Loaded<T> {
    side: Arc<T>,
    stamps: Vec<Stamp>,
}

/// What tells that a file is another one than before: its times, its number and its size. `None`: it is not there.
type Stamp = Option<(i64, i64, i64, i64, u64, u64)>;

fn stamp(path: &PathBuf) -> Stamp {
    let about = std::fs::metadata(path).ok()?;
    Some((about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec(), about.ino(), about.size()))
}

impl Kept {
    /// What a client connects with now.
    pub(super) fn client(&self, choice: &Choice) -> Result<Arc<ClientSide>, TlsError> {
        load(&self.client, &self.log, choice, make_client)
    }

    /// What a server accepts with now.
    pub(super) fn server(&self, choice: &Choice) -> Result<Arc<ServerSide>, TlsError> {
        load(&self.server, &self.log, choice, make_server)
    }

    /// Whether a server can listen.
    pub(in crate::tcp) fn check_server(&self, choice: &Choice) -> Result<(), TlsError> {
        self.server(choice).map(drop)
    }
}

/// Files that are of no use at first may be just being replaced, one after the other: they are read again after so long each.
const AGAIN_MS: [u64; 4] = [1, 4, 16, 64];

/// Reads files of which nothing is in force yet.
fn first<T>(mut make: impl FnMut() -> Result<T, Useless>) -> Result<T, Useless> {
    let mut made = make();
    for pause_ms in AGAIN_MS {
        if !matches!(made, Err(Useless { cause: TlsError::File { .. }, .. })) {
            break;
        }
        thread::sleep(Duration::from_millis(pause_ms));
        made = make();
    }
    made
}

/// What was read, unless a file has changed. Files that are of no use leave in force what was read before.
fn load<T>(
    kept: &Mutex<Option<Loaded<T>>>,
    log: &LogPace,
    choice: &Choice,
    make: fn(&Choice) -> Result<T, Useless>,
) -> Result<Arc<T>, TlsError> {
    let pair = choice.certificate.iter().flat_map(|Pair { chain, key }| [chain, key]);
    let stamps: Vec<_> = pair.chain(&choice.authorities).map(stamp).collect();
    let mut kept = lock(kept);
    let is_first = match &*kept {
        Some(loaded) if loaded.stamps == stamps => return Ok(Arc::clone(&loaded.side)),
        some => some.is_none(),
    };
    let made = if is_first { first(|| make(choice)) } else { make(choice) };
    match (made, &mut *kept) {
        (Ok(side), kept) => {
            if !is_first {
                tracing::info!("files of TLS have changed; new connections use them");
            }
            let side = Arc::new(side);
            *kept = Some(Loaded { side: Arc::clone(&side), stamps });
            Ok(side)
        }
        (Err(Useless { cause: error, is_unread }), Some(loaded)) => {
            if let Some(left_out) = log.line(Instant::now()) {
                let what = "files of TLS have changed and are of no use; what was read before stays in force";
                tracing::warn!(%error, left_out, "{what}");
            }
            // Perhaps it is being written: the next change is looked at again. What was not read is read by the next handshake.
            if !is_unread {
                loaded.stamps = stamps;
            }
            Ok(Arc::clone(&loaded.side))
        }
        (Err(Useless { cause, .. }), None) => Err(cause),
    }
}

fn make_client(choice: &Choice) -> Result<ClientSide, Useless> {
    let (provider, roots) = (provider(), roots(choice)?);
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let verifier: Arc<dyn ServerCertVerifier> = verifier.build().map_err(other)?;
    let verifier = if choice.allowed.is_empty() { verifier } else { Arc::new(AnyName(verifier)) };
    let config =
        ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).map_err(other)?;
    let config = config.dangerous().with_custom_certificate_verifier(Arc::clone(&verifier));
    let mut config = match &choice.certificate {
        Some(pair) => {
            let (chain, key) = read_pair(pair)?;
            config.with_client_auth_cert(chain, key).map_err(|error| unfit(pair, &error))?
        }
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(ClientSide { config: Arc::new(config), verifier })
}

fn make_server(choice: &Choice) -> Result<ServerSide, Useless> {
    let why = "a server under TLS needs a certificate; give it one (`listen.tls.certificate`)";
    let pair = choice.certificate.as_ref().ok_or(TlsError::Incomplete { why })?;
    if choice.authorities.is_empty() && !choice.allowed.is_empty() {
        let why = "a server that allows some identities needs to know who vouches for them; name the authority \
                   (`listen.tls.authority`)";
        return Err(TlsError::Incomplete { why }.into());
    }
    let provider = provider();
    let verifier = if choice.authorities.is_empty() {
        None
    } else {
        let builder = WebPkiClientVerifier::builder_with_provider(roots(choice)?, Arc::clone(&provider));
        Some(builder.build().map_err(|error| TlsError::Other { why: error.to_string() })?)
    };
    let config =
        ServerConfig::builder_with_provider(provider).with_protocol_versions(&[&TLS13]).map_err(other)?;
    let config = match &verifier {
        Some(verifier) => config.with_client_cert_verifier(Arc::clone(verifier)),
        None => config.with_no_client_auth(),
    };
    let (chain, key) = read_pair(pair)?;
    let mut config = config.with_single_cert(chain, key).map_err(|error| unfit(pair, &error))?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(ServerSide { config: Arc::new(config), verifier })
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn other(error: impl std::fmt::Display) -> TlsError {
    TlsError::Other { why: error.to_string() }
}

fn file(path: &Path, why: impl std::fmt::Display) -> TlsError {
    TlsError::File { path: path.to_owned(), why: why.to_string() }
}

/// A file that could not be read, or has something else in it.
fn unread(path: &Path, error: &pem::Error) -> Useless {
    Useless { cause: file(path, error), is_unread: matches!(error, pem::Error::Io(_)) }
}

/// A certificate and its key that do not fit each other.
fn unfit(pair: &Pair, error: &rustls::Error) -> TlsError {
    match error {
        rustls::Error::InconsistentKeys(_) => {
            file(&pair.key, format_args!("it is not the key of {}", pair.chain.display()))
        }
        error => file(&pair.chain, error),
    }
}

/// All certificates of a file; at least one.
fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Useless> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match read {
        Ok(found) if found.is_empty() => Err(file(path, "there is no certificate in it").into()),
        Ok(found) => Ok(found),
        Err(error) => Err(unread(path, &error)),
    }
}

fn read_pair(pair: &Pair) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Useless> {
    let key = PrivateKeyDer::from_pem_file(&pair.key).map_err(|error| unread(&pair.key, &error))?;
    Ok((certificates(&pair.chain)?, key))
}

/// The authorities that are believed: those of the files, or of the system's store.
fn roots(choice: &Choice) -> Result<Arc<RootCertStore>, Useless> {
    let mut roots = RootCertStore::empty();
    for path in &choice.authorities {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| file(path, error))?;
        }
    }
    if choice.authorities.is_empty() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            let why = "the system's store has no authorities; install ca-certificates, or name a file \
                       (`connect.tls.authority`)";
            return Err(TlsError::Incomplete { why }.into());
        }
    }
    Ok(Arc::new(roots))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_are_of_no_use_at_first_are_read_again_and_other_errors_are_final() {
        let wrong = || Useless::from(file(Path::new("key"), "it is not the key of chain"));
        let mut calls = 0;
        let read = first(|| {
            calls += 1;
            if calls < 3 { Err(wrong()) } else { Ok(calls) }
        });
        assert_eq!(read, Ok(3));
        calls = 0;
        let read = first::<()>(|| {
            calls += 1;
            Err(wrong())
        });
        assert_eq!((read, calls), (Err(wrong()), 5));
        calls = 0;
        let read = first::<()>(|| {
            calls += 1;
            Err(TlsError::NotBuilt.into())
        });
        assert_eq!((read, calls), (Err(TlsError::NotBuilt.into()), 1));
    }
}
