//! How this side and its peer know each other: the same options for every command that connects or listens.

use std::{error::Error, path::PathBuf};

use gimmal_rpc::{Client, ClientBuilder, Key, KeyError, Server, ServerBuilder, Tls};

const HEADING: &str = "Keys and certificates";

/// A shared key, and certificates for `tcp+tls://`.
#[derive(clap::Args, Clone, Default, Debug)]
pub(crate) struct Credentials {
    /// A file with the key that both sides share, mode 0600. (The private key of a certificate is --cert-key.)
    #[arg(long, value_name = "FILE", env = "GIMMAL_KEY", help_heading = HEADING, hide_env_values = true)]
    key: Option<PathBuf>,
    /// Believe certificates that the authorities in this PEM file have signed; more than once. A side that listens then demands a
    /// certificate [default: the system's store, on the side that connects].
    #[arg(long, value_name = "FILE", env = "GIMMAL_CA", help_heading = HEADING, hide_env_values = true)]
    ca: Vec<PathBuf>,
    /// Show the certificate in this PEM file, with the intermediate ones behind it. Files that change are used by the next
    /// connection.
    #[arg(long, value_name = "FILE", env = "GIMMAL_CERT", help_heading = HEADING, hide_env_values = true, requires = "cert_key")]
    cert: Option<PathBuf>,
    /// The PEM file with the private key of --cert.
    #[arg(long, value_name = "FILE", env = "GIMMAL_CERT_KEY", help_heading = HEADING, hide_env_values = true, requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Expect this name in the server's certificate [default: the URL's host].
    #[arg(long, value_name = "NAME", env = "GIMMAL_SERVER_NAME", help_heading = HEADING, hide_env_values = true)]
    server_name: Option<String>,
    /// Allow peers with this identity and no others: a SPIFFE id, a DNS name, or a whole subject like O=Example,CN=client; more
    /// than once. Of a server it takes the place of its name.
    #[arg(long, value_name = "IDENTITY", env = "GIMMAL_ALLOW", help_heading = HEADING, hide_env_values = true)]
    allow: Vec<String>,
}

impl Credentials {
    /// The shared key, if one is given.
    pub(crate) fn key(&self) -> Result<Option<Key>, KeyError> {
        self.key.as_ref().map(Key::from_file).transpose()
    }

    /// What this side shows and believes.
    pub(crate) fn tls(&self) -> Tls {
        let mut tls = self.ca.iter().fold(Tls::default(), |tls, file| tls.authority(file));
        if let (Some(chain), Some(key)) = (&self.cert, &self.cert_key) {
            tls = tls.certificate(chain, key);
        }
        if let Some(name) = &self.server_name {
            tls = tls.server_name(name);
        }
        self.allow.iter().fold(tls, |tls, identity| tls.allow(identity))
    }

    /// Whether only some identities are allowed.
    pub(crate) const fn allows_some(&self) -> bool {
        !self.allow.is_empty()
    }

    /// Refuses certificates where all of `urls` take bytes over a network without TLS.
    pub(crate) fn check(&self, urls: &[&str]) -> Result<(), String> {
        let is_bare =
            |url: &&str| ["tcp://", "rdma://", "http://"].iter().any(|scheme| url.starts_with(scheme));
        if urls.iter().all(is_bare) && self.tls() != Tls::default() {
            let url = urls.join(" and ");
            return Err(format!(
                "certificates are given, and {url} has no TLS; write tcp+tls:// or gimmal://, or give none of --ca, --cert, \
                 --server-name and --allow"
            ));
        }
        Ok(())
    }

    /// A client, in a command that has these `urls`.
    pub(crate) fn client(&self, urls: &[&str]) -> Result<ClientBuilder, Box<dyn Error>> {
        self.check(urls)?;
        let builder = Client::builder().tls(self.tls());
        Ok(self.key()?.into_iter().fold(builder, ClientBuilder::key))
    }

    /// A server, in a command that has these `urls`.
    pub(crate) fn server(&self, urls: &[&str]) -> Result<ServerBuilder, Box<dyn Error>> {
        self.check(urls)?;
        let builder = Server::builder().tls(self.tls());
        Ok(self.key()?.into_iter().fold(builder, ServerBuilder::key))
    }
}

/// What the libraries call a setting, and which option it is here; a name stands before those that end like it.
const OPTIONS: [(&str, &str); 7] = [
    ("connect.tls.authority", "--ca"),
    ("listen.tls.authority", "--ca"),
    ("listen.tls.certificate", "--cert, --cert-key"),
    ("tls.authority", "--ca"),
    ("tls.certificate", "--cert, --cert-key"),
    ("tls.server_name", "--server-name"),
    ("tls.allow", "--allow"),
];

/// An error of the libraries, with options of this program in place of settings.
pub(crate) fn in_options(error: &str) -> String {
    let named = |text: String, (setting, option): (&str, &str)| {
        text.replace(&format!("`{setting}`"), &format!("`{option}`"))
    };
    OPTIONS.into_iter().fold(error.to_owned(), named)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        credentials: Credentials,
    }

    fn read(arguments: &[&str]) -> Result<Credentials, String> {
        let line = Line::try_parse_from([&["it"], arguments].concat());
        line.map(|line| line.credentials).map_err(|error| error.to_string())
    }

    #[test]
    fn options_become_certificates_and_go_with_tls_alone() {
        assert_eq!(read(&[]).unwrap().tls(), Tls::default());
        let whole = [
            "--ca=a",
            "--ca=b",
            "--cert=c",
            "--cert-key=k",
            "--server-name=s",
            "--allow=O=x,CN=y",
            "--allow=z",
        ];
        let expected = Tls::default().authority("a").authority("b").certificate("c", "k");
        let expected = expected.server_name("s").allow("O=x,CN=y").allow("z");
        let credentials = read(&whole).unwrap();
        assert_eq!(credentials.tls(), expected);
        for half in ["--cert=c", "--cert-key=k"] {
            assert!(read(&[half]).unwrap_err().contains("--cert"), "{half}");
        }
        for url in ["tcp+tls://a:1", "gimmal://a:1", "shm://a", "https://a:1"] {
            assert_eq!(credentials.check(&[url]), Ok(()), "{url}");
        }
        for url in ["tcp://a:1", "rdma://a:1"] {
            assert!(credentials.check(&[url]).unwrap_err().contains("write tcp+tls://"), "{url}");
            assert!(
                credentials.check(&["http://a:1", url]).is_err()
                    && credentials.check(&["https://a:1", url]).is_ok()
            );
            assert_eq!(read(&["--key=k"]).unwrap().check(&[url]), Ok(()));
        }
    }

    #[test]
    fn errors_name_options() {
        let missing = "give it one (`listen.tls.certificate`), or `tls.authority`";
        assert_eq!(in_options(missing), "give it one (`--cert, --cert-key`), or `--ca`");
    }
}
