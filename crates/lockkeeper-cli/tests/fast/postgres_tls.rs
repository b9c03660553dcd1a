//! PostgreSQL over TLS: the server's certificate is checked, and the client's is shown.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER, give_to_server};

use crate::common::{Place, run};

#[test]
fn the_servers_certificate_is_checked_in_full_and_the_clients_is_shown() {
    let place = Place::new();
    let dir = tempfile::tempdir().unwrap();
    // The server's own user has to come through.
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let certificates = lockkeeper_testkit::servers::certificates::make(dir.path());
    let file = |name: &str| certificates.join(name).display().to_string();
    give_to_server(&certificates.join("server.key")).unwrap();
    let access = "local all all trust\nhostssl all all 127.0.0.1/32 trust clientcert=verify-ca\n\
                  hostssl all all ::1/128 trust clientcert=verify-ca\n";
    std::fs::write(file("access"), access).unwrap();
    let settings = [
        format!("hba_file={}", file("access")),
        format!("ssl_cert_file={}", file("server.pem")),
        format!("ssl_key_file={}", file("server.key")),
        format!("ssl_ca_file={}", file("ca.pem")),
        "ssl=on".to_owned(),
    ];
    let server = PostgresServer::start_with(&settings.each_ref().map(String::as_str));
    let of = |host: &str, ca: &str, options: &str| {
        let port = server.port();
        let ca = file(ca);
        format!(
            "postgres://{USER}@{host}:{port}/postgres?sslmode=verify-full&sslrootcert={ca}{options}"
        )
    };
    let shown = format!("&sslcert={}&sslkey={}", file("client.pem"), file("client.key"));
    for layout in ["", "&layout=shedlock", "&layout=session&names=hash&session_timeout=8s"] {
        let times = "&connect_timeout=1m&request_timeout=20s";
        let url = of("localhost", "ca.pem", &format!("{shown}{layout}{times}"));
        let ran = run(&place, &url, &["run", "a", "--", "sh", "-c", "exit 7"]);
        assert_eq!(ran.code, 7, "{layout}: {ran:?}");
    }
    let port = server.port();
    let plain = format!("postgres://{USER}@127.0.0.1:{port}/postgres");
    let unknown = format!("&sslcert={}&sslkey={}", file("other.pem"), file("other.key"));
    let two_keys = format!("&sslcert={}", file("client.pem"));
    for (url, code, says) in [
        (of("localhost", "ca.pem", ""), 69, "certificate"),
        (of("localhost", "other.pem", &shown), 69, "certificate"),
        // The server says so only after the handshake.
        (of("localhost", "ca.pem", &unknown), 69, "does not accept the client certificate"),
        // The certificate is for the name, and not for the address.
        (of("127.0.0.1", "ca.pem", &shown), 69, "certificate"),
        // On the loopback nothing is encrypted unless it is asked for.
        (plain, 69, "no encryption"),
        (of("localhost", "ca.pem", &two_keys), 64, "sslkey"),
        (of("localhost", "none.pem", &shown), 64, "none.pem"),
    ] {
        let url = format!("{url}{}connect_timeout=5s", if url.contains('?') { '&' } else { '?' });
        let refused = run(&place, &url, &["run", "-n", "a", "--", "true"]);
        assert_eq!(refused.code, code, "{url}: {refused:?}");
        assert!(refused.err.lines().count() == 1 && refused.err.contains(says), "{refused:?}");
    }
}
