//! TLS, on a server's own TLS port.

use super::*;
use crate::ErrorKind;

#[test]
fn tls_is_spoken_with_certificates_on_both_sides_and_a_mismatch_is_named() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let dir = lockkeeper_lab::servers::certificates::make(home.path());
        let file = |name: &str| dir.join(name).display().to_string();
        let keys = std::fs::read_to_string(file("server.key")).unwrap()
            + &std::fs::read_to_string(file("server.pem")).unwrap();
        std::fs::write(dir.join("both.pem"), keys).unwrap();
        let secure = lockkeeper_lab::servers::free_port();
        let settings = Settings {
            lines: vec![
                format!("secureClientPort={secure}"),
                "secureClientPortAddress=127.0.0.1".to_owned(),
            ],
            properties: vec![
                "zookeeper.serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory"
                    .to_owned(),
                format!("zookeeper.ssl.keyStore.location={}", file("both.pem")),
                format!("zookeeper.ssl.trustStore.location={}", file("ca.pem")),
            ],
            ..Settings::default()
        };
        let server = Server::start(settings).unwrap();
        let url = |port: u16, rest: &str| {
            format!("zk://localhost:{port}?connect_timeout=5s&tls=true&{rest}")
        };
        let certificate = format!("tls_cert={}&tls_key={}", file("client.pem"), file("client.key"));
        let one = Client::open(&url(secure, &format!("tls_ca={}&{certificate}", file("ca.pem"))))
            .await
            .unwrap();
        let two = Client::open(&format!("zk://{}", server.address())).await.unwrap();
        let (a, b) = (claim("x"), claim("x"));
        one.lock(&a).await;
        assert!(matches!(two.join(&b).await, Attempt::InLine(_)));
        assert!(matches!(one.release(&a).await, End::Freed));
        two.granted(b.id).await;
        let refusal = async |port: u16, rest: &str| {
            Client::open(&url(port, rest)).await.map(drop).unwrap_err()
        };
        let error = refusal(secure, &format!("tls_ca={}&{certificate}", file("other.pem"))).await;
        assert!(
            error.kind() == ErrorKind::Refused && error.message().contains("tls_ca"),
            "{error}"
        );
        let error = refusal(secure, &format!("tls_ca={}", file("ca.pem"))).await;
        assert!(error.message().contains("tls_cert"), "{error}");
        let error = refusal(secure, &format!("tls_ca={}", file("missing.pem"))).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let error = refusal(server.port(), &format!("tls_ca={}", file("ca.pem"))).await;
        assert!(error.kind() == ErrorKind::Unreachable, "{error}");
    });
}
