use std::time::Duration;

use tokio_rustls::rustls::CertificateError as Wrong;
use tokio_rustls::rustls::pki_types::UnixTime;

use super::*;

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

/// The certificate and its key are changed one after the other.
#[tokio::test]
async fn b2_a_certificate_beside_the_key_of_another_leaves_the_last_pair_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let made = lockkeeper_testkit::servers::certificates::make(dir.path());
    let [certificate, key] = ["c.pem", "c.key"].map(|name| dir.path().join(name));
    let put = |from: &str, to: &Path| _ = std::fs::copy(made.join(from), to).unwrap();
    put("client.pem", &certificate);
    put("client.key", &key);
    let ca = Some(made.join("ca.pem"));
    let files = Files { ca, certificate: Some((certificate.clone(), key.clone())) };
    let tls = Tls::new(files, None);
    let now = async || tls.config.now(soon()).await.unwrap().config;
    let first = now().await;
    assert!(Arc::ptr_eq(&first, &now().await), "nothing changed");
    put("server.pem", &certificate);
    assert!(Arc::ptr_eq(&first, &now().await), "half of it changed");
    std::fs::write(&key, "").unwrap();
    assert!(Arc::ptr_eq(&first, &now().await), "it is being written");
    put("server.key", &key);
    assert!(!Arc::ptr_eq(&first, &now().await), "both changed");
}

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
