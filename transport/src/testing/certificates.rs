//! Certificates of authorities that live as long as a test.

use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, SanType, date_time_ymd,
    string::Ia5String,
};

/// An authority that signs certificates into files of one folder.
#[derive(Debug)]
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: PathBuf,
    /// The file that names it.
    pub file: PathBuf,
}

/// The files of a certificate.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub chain: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Authority {
    /// A new one, whose file in `folder` is `name.pem`.
    ///
    /// # Panics
    /// When that file cannot be written.
    #[must_use]
    pub fn new(folder: &Path, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("randomness");
        let certificate = params.self_signed(&key).expect("a certificate of our own");
        let file = folder.join(format!("{name}.pem"));
        std::fs::write(&file, certificate.pem()).expect("a folder of the test's");
        Self { issuer: Issuer::new(params, key), folder: folder.to_owned(), file }
    }

    /// A certificate for `names`, which are DNS names, IP addresses or URIs, with the subject `O=gimmal,CN=file`. The files are
    /// `file.pem` and `file.key`.
    ///
    /// # Panics
    /// When these cannot be written.
    #[must_use]
    pub fn issue(&self, file: &str, names: &[&str]) -> Issued {
        self.issue_until(file, names, 4000)
    }

    /// Issues as [`Authority::issue`] does, until the end of `year`.
    ///
    /// # Panics
    /// When the files cannot be written.
    #[must_use]
    pub fn issue_until(&self, file: &str, names: &[&str], year: i32) -> Issued {
        let (uris, others): (Vec<&str>, Vec<&str>) = names.iter().partition(|name| name.contains("://"));
        let others: Vec<String> = others.into_iter().map(str::to_owned).collect();
        let mut params = CertificateParams::new(others).expect("names");
        for uri in uris {
            params.subject_alt_names.push(SanType::URI(Ia5String::try_from(uri).expect("a URI")));
        }
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "gimmal");
        params.distinguished_name.push(DnType::CommonName, file);
        params.not_after = date_time_ymd(year, 12, 31);
        let key = KeyPair::generate().expect("randomness");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate of our own");
        let path = |end| self.folder.join(format!("{file}.{end}"));
        let issued = Issued { chain: path("pem"), key: path("key") };
        // Each replaced at once, as those do it who rotate certificates.
        for (to, text) in [(&issued.key, key.serialize_pem()), (&issued.chain, certificate.pem())] {
            let fresh = to.with_extension("fresh");
            std::fs::write(&fresh, text).expect("a folder of the test's");
            std::fs::rename(&fresh, to).expect("a folder of the test's");
        }
        issued
    }
}
