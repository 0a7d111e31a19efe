//! What an error of TLS means to people.

use rustls::{AlertDescription, CertificateError, Error, PeerIncompatible};

use crate::TlsError;

/// The fault that `error` is to a client or a server.
pub(super) fn fault(error: &Error, is_client: bool) -> TlsError {
    use AlertDescription as A;
    match error {
        Error::InvalidCertificate(error) => certificate_fault(error),
        Error::NoCertificatesPresented => TlsError::NoCertificate,
        Error::NoApplicationProtocol | Error::AlertReceived(A::NoApplicationProtocol) => TlsError::NotOurs,
        Error::AlertReceived(A::CertificateRequired) if is_client => TlsError::CertificateNeeded,
        Error::AlertReceived(A::ProtocolVersion) => TlsError::Version,
        Error::PeerIncompatible(
            PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
            | PeerIncompatible::ServerDoesNotSupportTls12Or13
            | PeerIncompatible::SupportedVersionsExtensionRequired
            | PeerIncompatible::Tls12NotOffered
            | PeerIncompatible::Tls12NotOfferedOrEnabled
            | PeerIncompatible::Tls13RequiredForQuic,
        ) => TlsError::Version,
        Error::AlertReceived(
            alert @ (A::BadCertificate
            | A::UnsupportedCertificate
            | A::CertificateRevoked
            | A::CertificateExpired
            | A::CertificateUnknown
            | A::UnknownCA
            | A::AccessDenied
            | A::DecryptError),
        ) => TlsError::Refused { alert: format!("{alert:?}") },
        error => TlsError::Other { why: error.to_string() },
    }
}

fn certificate_fault(error: &CertificateError) -> TlsError {
    use CertificateError as C;
    match error {
        C::Expired | C::ExpiredContext { .. } | C::NotValidYet | C::NotValidYetContext { .. } => {
            TlsError::Expired
        }
        C::UnknownIssuer => TlsError::UnknownAuthority,
        C::NotValidForNameContext { expected, presented } => {
            let has = if presented.is_empty() { "no name".to_owned() } else { presented.join(", ") };
            TlsError::WrongName { wanted: expected.to_str().into_owned(), has }
        }
        error => TlsError::Other { why: error.to_string() },
    }
}
