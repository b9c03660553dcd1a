//! TLS by rustls with ring: the system's certificates or one's own, and a certificate to show where
//! the server wants one. The files are read again for each connection.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::reread::{Reread, bytes};

#[cfg(any(feature = "redis", feature = "zookeeper"))]
use crate::engine::{UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

/// How to check the server, and how to show who we are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tls {
    pub(crate) files: Files,
    /// The name that the server's certificate must carry, where it is not the host's.
    pub(crate) server_name: Option<String>,
    /// What the files say.
    config: Reread<Made>,
    before: Before,
}

/// The files of a URL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Files {
    /// Certificates to trust, PEM; the system's without.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key, PEM.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
}

/// The servers that answered over TLS before, by address: they were trusted, and we by them.
#[derive(Clone, Debug, Default)]
struct Before(Arc<Mutex<BTreeSet<String>>>);

impl Before {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PartialEq for Before {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Before {}

/// What was made of the content of the files.
#[derive(Clone)]
struct Made {
    of: Content,
    config: Arc<ClientConfig>,
}

impl PartialEq for Made {
    fn eq(&self, other: &Self) -> bool {
        self.of == other.of
    }
}

/// What stands in the files.
#[derive(Clone, PartialEq, Eq)]
struct Content {
    ca: Option<Vec<u8>>,
    certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Tls {
    /// What [`Tls::take`] reads.
    #[cfg(any(feature = "redis", feature = "zookeeper"))]
    pub(crate) const OPTIONS: [UrlOption; 4] = [
        UrlOption::new(
            "tls_ca",
            Value::Text("FILE"),
            "",
            "the certificates to trust, PEM; the system's without it",
        ),
        UrlOption::new(
            "tls_cert",
            Value::Text("FILE"),
            "",
            "the client's certificate, PEM; goes with tls_key",
        ),
        UrlOption::new("tls_key", Value::Text("FILE"), "", "its key, PEM; goes with tls_cert"),
        UrlOption::new(
            "tls_name",
            Value::Text("NAME"),
            "",
            "the name in the server's certificate, where it is not the host's",
        ),
    ];

    /// Takes the options `tls_ca`, `tls_cert`, `tls_key` and `tls_name`; `on` says whether there is
    /// TLS, `hint` how to have it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`].
    pub(crate) fn take(url: &mut EngineUrl, on: bool, hint: &str) -> Result<Option<Self>> {
        let ca = url.take("tls_ca").map(PathBuf::from);
        let certificate = match (url.take("tls_cert"), url.take("tls_key")) {
            (Some(certificate), Some(key)) => Some((certificate.into(), key.into())),
            (None, None) => None,
            _ => return Err(wrong("tls_cert and tls_key belong together".into())),
        };
        let (files, server_name) = (Files { ca, certificate }, url.take("tls_name"));
        if !on && (files != Files::default() || server_name.is_some()) {
            return Err(wrong(format!("tls_ca, tls_cert, tls_key and tls_name need TLS: {hint}")));
        }
        Ok(on.then(|| Self::new(files, server_name)))
    }

    /// Nothing is read before a server is dialled.
    pub(crate) fn new(files: Files, server_name: Option<String>) -> Self {
        let reads = files.clone();
        let config = Reread::new("a file of the TLS options", move |last| made(&reads, last));
        Self { files, server_name, config, before: Before::default() }
    }

    /// With files on a mount that hangs, until the other end is dropped.
    #[cfg(all(test, feature = "redis"))]
    pub(crate) fn hanging(until: std::sync::mpsc::Receiver<()>) -> Self {
        let until = Mutex::new(until);
        let config = Reread::new("a file of the TLS options", move |_| {
            _ = until.lock().unwrap_or_else(PoisonError::into_inner).recv();
            Err(wrong("it is gone".into()))
        });
        Self { config, ..Self::new(Files::default(), None) }
    }

    /// Reads its files, which may take as long as a disk does: none of that is a server's silence.
    ///
    /// # Errors
    /// One cannot be read, or not by `until`.
    pub(crate) async fn read(&self, until: Instant) -> Result<Arc<ClientConfig>> {
        self.config.now(until).await.map(|made| made.config)
    }

    /// The server at this address answered what it was told over TLS. That the handshake ended says
    /// less: TLS 1.3 tells only afterwards whether our certificate is accepted.
    pub(crate) fn accepted(&self, at: &str) {
        let mut before = self.before.lock();
        if !before.contains(at) {
            before.insert(at.to_owned());
        }
    }

    /// What to tell of a refusal by, or of, the server at this address. Where there was trust
    /// before it is waited for: certificates are changed on one side after the other.
    fn refused(&self, at: &str, text: String) -> Error {
        let error = Error::new(ErrorKind::Refused, text);
        if self.before.lock().contains(at) { error.waited_out() } else { error }
    }

    /// What an error of a connection means if it is the server's alert about our certificate.
    fn alert(&self, at: &str, error: &str) -> Option<Error> {
        let (_, alert) = error.split_once("received fatal alert: ")?;
        let end = alert.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(alert.len());
        let alert = alert.get(..end)?;
        let (_, advice) = ALERTS.iter().find(|(known, _)| *known == alert)?;
        let text = if self.files.certificate.is_none() {
            format!(
                "the server at {at} wants a client certificate: name it with tls_cert=FILE and \
                 tls_key=FILE"
            )
        } else {
            format!("the server at {at} does not accept the client certificate ({alert}): {advice}")
        };
        Some(self.refused(at, text))
    }
}

/// The alerts of a server that are about the certificate of its client, and what to do.
const ALERTS: [(&str, &str); 8] = [
    ("AccessDenied", "let the server admit the one in tls_cert=FILE, or name another one"),
    ("BadCertificate", SIGNED),
    ("CertificateExpired", "renew the one in tls_cert=FILE, or set the clocks right"),
    ("CertificateRequired", SIGNED),
    ("CertificateRevoked", "renew the one in tls_cert=FILE"),
    ("CertificateUnknown", SIGNED),
    ("UnknownCA", SIGNED),
    ("UnsupportedCertificate", SIGNED),
];
const SIGNED: &str = "name one in tls_cert=FILE that an authority of the server has signed";

/// What an error of a connection over TLS to the server at this address means: that our certificate
/// is refused where the server said so. It may say so after the handshake.
pub(crate) fn or_refusal(tls: Option<&Tls>, at: &str, error: Error) -> Error {
    tls.and_then(|tls| tls.alert(at, error.message())).unwrap_or(error)
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Makes TLS of a TCP connection to the server that messages call `at`; `hint` says what to do
/// where it speaks none.
///
/// # Errors
/// A server that cannot be trusted, does not trust us, or speaks no TLS.
pub(crate) async fn shake_hands(
    tls: &Tls,
    host: &str,
    at: &str,
    hint: &str,
    stream: TcpStream,
    config: Arc<ClientConfig>,
) -> Result<TlsStream<TcpStream>> {
    let name = tls.server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| wrong(format!("{name} is not a name that a certificate can carry")))?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| {
        let text = error.to_string();
        let ends = error.kind() == std::io::ErrorKind::UnexpectedEof;
        if text.contains("InvalidContentType") || ends {
            let full = if ends { "; a server that is full ends like that, too" } else { "" };
            let text = format!("the server at {at} does not speak TLS on this port: {hint}{full}");
            return Error::new(ErrorKind::Unreachable, text).temporary(false);
        }
        if let Some(refused) = tls.alert(at, &text) {
            return refused;
        }
        if text.contains("certificate") {
            let what_to_do = advice(&text, tls.files.ca.is_some());
            let text = format!(
                "the certificate of the server at {at} is not accepted: {text}; {what_to_do}"
            );
            return tls.refused(at, text);
        }
        Error::new(
            ErrorKind::Unreachable,
            format!("the server at {at} cannot be reached: TLS: {text}"),
        )
    })
}

/// What to do about a certificate that is not accepted for this reason.
fn advice(reason: &str, has_ca: bool) -> &'static str {
    const ADVICE: [(&str, &str); 5] = [
        (
            "CaUsedAsEndEntity",
            "it is an authority's own, as openssl req -x509 makes them: make one \
          with -addext basicConstraints=critical,CA:FALSE",
        ),
        ("certificate expired", "renew it, or set this machine's clock right"),
        ("not valid yet", "set this machine's clock right"),
        ("not valid for name", "write a name that stands in it, or give that with tls_name="),
        ("Revoked", "renew it"),
    ];
    let known = ADVICE.iter().find(|(word, _)| reason.contains(word));
    match known {
        Some((_, advice)) => advice,
        None if has_ca => "the authorities in tls_ca=FILE have not signed it: name those that have",
        None => "name its authority with tls_ca=FILE",
    }
}

/// Reads the files; what they said before is not read once more.
fn made(files: &Files, last: Option<&Made>) -> Result<Made> {
    let read = |option: &str, file: &Path| bytes(&format!("{option}={}", file.display()), file);
    let of = Content {
        ca: files.ca.as_ref().map(|file| read("tls_ca", file)).transpose()?,
        certificate: match &files.certificate {
            Some((certificate, key)) => {
                Some((read("tls_cert", certificate)?, read("tls_key", key)?))
            }
            None => None,
        },
    };
    // Which files have the system's certificates is not known here.
    if let Some(last) = last.filter(|last| of.ca.is_some() && last.of == of) {
        return Ok(last.clone());
    }
    let config = Arc::new(config(files, &of)?);
    Ok(Made { of, config })
}

fn config(files: &Files, content: &Content) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(format!("TLS cannot be set up: {e}")))?
        .with_root_certificates(roots(files, content)?);
    let Some(((certificate, key), (chain, secret))) =
        files.certificate.as_ref().zip(content.certificate.as_ref())
    else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate, chain)?;
    let secret = PrivateKeyDer::from_pem_slice(secret)
        .map_err(|e| wrong(format!("tls_key={}: {e}", key.display())))?;
    builder
        .with_client_auth_cert(chain, secret)
        .map_err(|e| wrong(format!("tls_cert={}: {e}", certificate.display())))
}

fn roots(files: &Files, content: &Content) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match files.ca.as_ref().zip(content.ca.as_ref()) {
        Some((file, pem)) => {
            for certificate in certificates(file, pem)? {
                roots
                    .add(certificate)
                    .map_err(|e| wrong(format!("tls_ca={}: {e}", file.display())))?;
            }
        }
        // Single certificates that cannot be read must not keep the others from being trusted.
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    if roots.is_empty() {
        return Err(wrong(
            "there is no certificate to trust: install ca-certificates, or name one with \
             tls_ca=FILE"
                .into(),
        ));
    }
    Ok(roots)
}

fn certificates(file: &Path, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_slice_iter(pem).collect::<std::result::Result<Vec<_>, _>>();
    read.map_err(|e| wrong(format!("{}: {e}", file.display())))
}

#[cfg(test)]
mod tests;
