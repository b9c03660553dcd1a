//! TLS, on a server's own TLS port.

use super::*;
use crate::ErrorKind;

/// A server that speaks TLS on a port of its own, the port, and where the certificates are.
fn start(dir: &std::path::Path) -> (Server, u16, impl Fn(&str) -> String + use<>) {
    let dir = lockkeeper_testkit::servers::certificates::make(dir);
    let at = dir.clone();
    let file = move |name: &str| at.join(name).display().to_string();
    let keys = std::fs::read_to_string(file("server.key")).unwrap()
        + &std::fs::read_to_string(file("server.pem")).unwrap();
    std::fs::write(dir.join("both.pem"), keys).unwrap();
    let secure = lockkeeper_testkit::servers::free_port();
    let settings = Settings {
        lines: vec![
            format!("secureClientPort={secure}"),
            "secureClientPortAddress=127.0.0.1".to_owned(),
            "maxSessionTimeout=600000".to_owned(),
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
    // It opens this port after the other.
    lockkeeper_testkit::until::until("it serves TLS", || {
        std::net::TcpStream::connect(("127.0.0.1", secure)).is_ok()
    });
    (server, secure, file)
}

#[test]
fn r6_b5_releases_in_a_row_reach_the_server_while_the_driver_stands_still() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let (server, secure, file) = start(home.path());
        let tls = format!(
            "zk://localhost:{secure}?connect_timeout=2m&tls=true&session_timeout=10m&tls_ca={}\
             &tls_cert={}&tls_key={}",
            file("ca.pem"),
            file("client.pem"),
            file("client.key")
        );
        let plain = format!("zk://{}?session_timeout=10m", server.address());
        for url in [tls, plain.clone()] {
            let one = Client::open(&url).await.unwrap();
            let held: Vec<Claim> = (0..6).map(|n| claim(&format!("x{n}"))).collect();
            for each in &held {
                one.lock(each).await;
            }
            let released: Vec<_> =
                held.iter().map(|each| one.engine.release(&[each.id], None)).collect();
            // This thread's runtime drives the connection, and does nothing until another's client
            // has them all.
            let plain = plain.clone();
            std::thread::spawn(move || {
                run(async move {
                    let two = Client::open(&plain).await.unwrap();
                    for n in 0..6 {
                        let next = claim(&format!("x{n}"));
                        if let Attempt::InLine(_) = two.join(&next).await {
                            two.granted(next.id).await;
                        }
                        assert!(matches!(two.release(&next).await, End::Freed));
                    }
                });
            })
            .join()
            .unwrap();
            for each in released {
                let ends = answer(each).await.ends;
                assert!(matches!(ends.as_slice(), [End::Freed]), "{ends:?}");
            }
        }
    });
}

#[test]
fn tls_is_spoken_with_certificates_on_both_sides_and_a_mismatch_is_named() {
    run(async {
        let home = tempfile::tempdir().unwrap();
        let (server, secure, file) = start(home.path());
        let url = |port: u16, rest: &str| {
            format!("zk://localhost:{port}?connect_timeout=2m&tls=true&{rest}")
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
        let refusal =
            async |rest: &str| Client::open(&url(secure, rest)).await.map(drop).unwrap_err();
        let error = refusal(&format!("tls_ca={}&{certificate}", file("other.pem"))).await;
        assert!(
            error.kind() == ErrorKind::Refused && error.message().contains("tls_ca"),
            "{error}"
        );
        let error = refusal(&format!("tls_ca={}", file("ca.pem"))).await;
        assert!(error.message().contains("tls_cert"), "{error}");
        let error = refusal(&format!("tls_ca={}", file("missing.pem"))).await;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        let plain = url(server.port(), &format!("tls_ca={}", file("ca.pem")));
        let error = Client::open(&plain.replace("2m", "5s")).await.map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::Unreachable, "{error}");
    });
}
