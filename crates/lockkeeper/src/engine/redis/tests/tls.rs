//! TLS: what is trusted, by whom, and what it means when it is not.

use std::path::Path;
use std::time::Duration;

use super::super::options::{Address, RedisOptions, Tls};
use super::refusals::refused;
use super::server::RedisServer;
use super::support::{Process, deaf, options, patient, silent, until};
use crate::engine::tls::Files;
use crate::engine::{End, Renewal};
use crate::words::claim::Mode;
use crate::words::error::ErrorKind;

/// A server that speaks TLS and wants a certificate of its clients, and the port.
fn with_tls(dir: &Path, version: &str) -> (RedisServer, u16) {
    RedisServer::start_with_tls(dir, &["--tls-auth-clients", "yes", "--tls-protocols", version])
}

fn over_tls(dir: &Path, port: u16) -> RedisOptions {
    let certificate = Some((dir.join("client.pem"), dir.join("client.key")));
    let mut options = patient(options(port));
    options.address = Address::Tcp("localhost".into(), port);
    options.tls = Some(Tls::new(Files { ca: Some(dir.join("ca.pem")), certificate }, None));
    options
}

#[test]
fn tls_is_spoken_and_a_mismatch_is_named() {
    let plain = RedisServer::start();
    let dir = lockkeeper_testkit::servers::certificates::make(plain.dir());
    let file = |name: &str| dir.join(name);
    let text = |name: &str| file(name).to_string_lossy().into_owned();
    let (server, port) = with_tls(&dir, "TLSv1.3");
    let tls = over_tls(&dir, port);
    let process = Process::with(tls.clone());
    let (held, _) = process.take("a", Mode::Exclusive);
    let waiting = process.queue("a", Mode::Exclusive);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    process.release(held.id);
    process.granted(waiting.id);
    let many: Vec<_> =
        (0..50).map(|n| process.take(&format!("n{n}"), Mode::Exclusive).0.id).collect();
    assert!(
        process
            .wait(process.engine.release(&many, None))
            .ends
            .iter()
            .all(|e| matches!(e, End::Freed))
    );
    // Each of the ways to get it wrong.
    let mut to_plain = tls.clone();
    to_plain.address = Address::Tcp("localhost".into(), plain.port());
    to_plain.connect_timeout = Duration::from_millis(500);
    // Again where it was not even connected in time.
    until("it is told to give its TLS port", || {
        let error = refused(to_plain.clone());
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        error.message().contains("give its TLS port")
    });
    let (silent, (deaf, _callers)) = (silent(), deaf());
    for (listener, says) in [(&silent, "give its TLS port"), (&deaf, "cannot be reached")] {
        let port = listener.local_addr().expect("it is bound").port();
        let mut to_it = tls.clone();
        to_it.address = Address::Tcp("127.0.0.1".into(), port);
        to_it.connect_timeout = Duration::from_millis(500);
        until(says, || {
            let error = refused(to_it.clone());
            let text = error.message();
            // It may stand still, and speak TLS; nothing is said of that where it took no call.
            assert!(!text.contains("redis://"), "{error}");
            assert!(says.contains("TLS") || !text.contains("TLS"), "{error}");
            text.contains(says)
        });
    }
    let error = refused(options(port));
    assert!(
        error.kind() == ErrorKind::Unreachable && error.message().contains("rediss://"),
        "{error}"
    );
    let mut untrusted = tls.clone();
    untrusted.tls = Some(Tls::new(Files { ca: Some(file("other.pem")), certificate: None }, None));
    let error = refused(untrusted);
    assert!(
        error.kind() == ErrorKind::Refused && error.message().contains("certificate"),
        "{error}"
    );
    let mut anonymous = tls.clone();
    anonymous.tls = Some(Tls::new(Files { ca: Some(file("ca.pem")), certificate: None }, None));
    let error = refused(anonymous);
    assert!(error.message().contains("tls_cert"), "{error}");
    // What openssl req -x509 makes, and who trusts it already is told what else to do (B13).
    let (pem, key) = (text("ca.pem"), text("ca.key"));
    server.command(&["CONFIG", "SET", "tls-cert-file", &pem, "tls-key-file", &key]);
    let error = refused(tls.clone());
    assert!(error.message().contains("CA:FALSE") && !error.message().contains("tls_ca"), "{error}");
}

/// TLS 1.2 tells of it in the handshake, and 1.3 after that.
#[test]
fn b2_a_server_that_refuses_our_certificate_is_a_refusal_and_waited_for_if_it_took_it_before() {
    for version in ["TLSv1.2", "TLSv1.3"] {
        let home = tempfile::tempdir().unwrap();
        let dir = lockkeeper_testkit::servers::certificates::make(home.path());
        let (server, port) = with_tls(&dir, version);
        let known = over_tls(&dir, port);
        drop(Process::with(known.clone()));
        let other = dir.join("other.pem").to_string_lossy().into_owned();
        let set = ["CONFIG", "SET", "tls-ca-cert-file", &other];
        assert_eq!(server.command(&set), ["OK"]);
        for (options, waits) in [(known, true), (over_tls(&dir, port), false)] {
            let error = refused(options);
            assert_eq!(error.kind(), ErrorKind::Refused, "{version}: {error}");
            assert_eq!((error.is_outage(), error.is_temporary()), (waits, waits), "{error}");
            assert!(error.message().contains("tls_cert=FILE"), "{version}: {error}");
        }
    }
}

#[test]
fn b2_a_server_is_not_trusted_before_for_what_another_one_of_the_same_url_showed() {
    let home = tempfile::tempdir().unwrap();
    let dir = lockkeeper_testkit::servers::certificates::make(home.path());
    let [(_one, at), (two, to)] = [(); 2].map(|()| with_tls(&dir, "TLSv1.3"));
    let known = over_tls(&dir, at);
    drop(Process::with(known.clone()));
    let [pem, key] = ["ca.pem", "ca.key"].map(|name| dir.join(name).display().to_string());
    two.command(&["CONFIG", "SET", "tls-cert-file", &pem, "tls-key-file", &key]);
    let other = RedisOptions { address: Address::Tcp("localhost".into(), to), ..known };
    let error = refused(other);
    assert!(error.kind() == ErrorKind::Refused && !error.is_outage(), "{error}");
}

#[test]
fn a_file_of_tls_that_is_not_read_in_time_is_told_and_no_server_is_said_to_be_silent() {
    let (ends, hangs) = std::sync::mpsc::channel();
    let server = silent();
    let mut options = options(server.local_addr().expect("it is bound").port());
    options.connect_timeout = Duration::from_secs(1);
    options.tls = Some(Tls::hanging(hangs));
    let error = refused(options);
    assert!(error.message().contains("is not read in time"), "{error}");
    drop(ends);
}
