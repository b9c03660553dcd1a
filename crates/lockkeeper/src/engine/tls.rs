//! TLS by rustls with ring: the system's certificates or one's own, and a certificate to show where
//! the server wants one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

#[cfg(any(feature = "redis", feature = "zookeeper"))]
use crate::engine::{UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

/// How to check the server, and how to show who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Certificates to trust, PEM; the system's without.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate and its key, PEM.
    pub(crate) certificate: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate must carry, where it is not the host's.
    pub(crate) server_name: Option<String>,
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
        let tls = Self { ca, certificate, server_name: url.take("tls_name") };
        if on {
            return Ok(Some(tls));
        }
        if tls != Self::default() {
            return Err(wrong(format!("tls_ca, tls_cert, tls_key and tls_name need TLS: {hint}")));
        }
        Ok(None)
    }
}

fn wrong(message: String) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Makes TLS of a TCP connection to the server that messages call `at`; `hint` says what to do
/// where it speaks none.
///
/// # Errors
/// A file that cannot be read, or a server that cannot be trusted or speaks no TLS.
pub(crate) async fn shake_hands(
    tls: &Tls,
    host: &str,
    at: &str,
    hint: &str,
    stream: TcpStream,
) -> Result<TlsStream<TcpStream>> {
    let config = config(tls)?;
    let name = tls.server_name.as_deref().unwrap_or(host);
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| wrong(format!("{name} is not a name that a certificate can carry")))?;
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.map_err(|error| {
        let text = error.to_string();
        let ends = error.kind() == std::io::ErrorKind::UnexpectedEof;
        if text.contains("InvalidContentType") || ends {
            let full = if ends { "; a server that is full ends like that, too" } else { "" };
            let text = format!("the server at {at} does not speak TLS on this port: {hint}{full}");
            return Error::new(ErrorKind::Unreachable, text).temporary(false);
        }
        if tls.certificate.is_none() && text.contains("fatal alert") && text.contains("Certificate")
        {
            let text = format!(
                "the server at {at} wants a client certificate: name it with tls_cert=FILE and \
                 tls_key=FILE"
            );
            return Error::new(ErrorKind::Refused, text);
        }
        if text.contains("certificate") {
            let what_to_do = advice(&text, tls.ca.is_some());
            let text = format!(
                "the certificate of the server at {at} is not accepted: {text}; {what_to_do}"
            );
            return Error::new(ErrorKind::Refused, text);
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

fn config(tls: &Tls) -> Result<ClientConfig> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| wrong(format!("TLS cannot be set up: {e}")))?
        .with_root_certificates(roots(tls)?);
    let Some((certificate, key)) = &tls.certificate else {
        return Ok(builder.with_no_client_auth());
    };
    let chain = certificates(certificate)?;
    let key = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| wrong(format!("tls_key={}: {e}", key.display())))?;
    builder
        .with_client_auth_cert(chain, key)
        .map_err(|e| wrong(format!("tls_cert={}: {e}", certificate.display())))
}

fn roots(tls: &Tls) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &tls.ca {
        Some(file) => {
            for certificate in certificates(file)? {
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

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>);
    read.map_err(|e| wrong(format!("{}: {e}", file.display())))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio_rustls::rustls::CertificateError as Wrong;
    use tokio_rustls::rustls::pki_types::UnixTime;

    use super::*;

    #[test]
    fn b13_the_advice_about_a_certificate_is_about_what_is_wrong_with_it() {
        let at = |seconds| UnixTime::since_unix_epoch(Duration::from_secs(seconds));
        let expected = ServerName::try_from("a").unwrap();
        for (wrong, word) in [
            (Wrong::ExpiredContext { time: at(2), not_after: at(1) }, "renew"),
            (Wrong::NotValidYetContext { time: at(1), not_before: at(2) }, "clock"),
            (Wrong::NotValidForNameContext { expected, presented: Vec::new() }, "tls_name="),
            (Wrong::Revoked, "renew"),
            (Wrong::UnknownIssuer, "name its authority with tls_ca="),
        ] {
            let text = tokio_rustls::rustls::Error::InvalidCertificate(wrong).to_string();
            assert!(text.contains("certificate") && advice(&text, false).contains(word), "{text}");
        }
    }
}
