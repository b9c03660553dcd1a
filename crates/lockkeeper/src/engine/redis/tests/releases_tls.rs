//! Releases over TLS: what the socket did not take, and what TLS itself keeps back.

use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use tokio_rustls::rustls;
use tokio_rustls::rustls::StreamOwned;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::super::pipe::Pipe;
use super::super::resp::Command;
use super::releases::{FILLING, trusting};
use super::support::PATIENCE;
use crate::engine::stream::Stream;
use crate::engine::tls::shake_hands;

/// A connection over TLS whose driver runs on a thread of its own, and a server that reads what it
/// is told to.
struct OverTls {
    pipe: Pipe,
    runtime: tokio::runtime::Handle,
    server: StreamOwned<rustls::ServerConnection, TcpStream>,
    thread: std::thread::JoinHandle<String>,
}

impl OverTls {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let made = lockkeeper_testkit::servers::certificates::make(dir.path());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, told) = channel();
        let tls = trusting(made.join("ca.pem"));
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async {
                let socket = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let until = tokio::time::Instant::now() + PATIENCE;
                let config = tls.read(until).await.unwrap();
                let shaken = shake_hands(&tls, "localhost", "there", "", socket, config);
                let stream = shaken.await.unwrap();
                let stream = Stream::Tls(Box::new(stream));
                // Nothing but a word wakes the driver within a test.
                let (pipe, driver) = Pipe::new(stream, PATIENCE * 40, Arc::new(|_, _| {}));
                tell.send((pipe, tokio::runtime::Handle::current())).unwrap();
                driver.await
            })
        });
        let (socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut server = StreamOwned::new(tls_server(&made), socket);
        while server.conn.is_handshaking() {
            server.conn.complete_io(&mut server.sock).unwrap();
        }
        let (pipe, runtime) = told.recv().unwrap();
        Self { pipe, runtime, server, thread }
    }

    /// Keeps the driver's thread busy until the sender is gone.
    fn busy(&self) -> Sender<()> {
        let ((busy, until), (there, on_it)) = (channel::<()>(), channel());
        self.runtime.spawn(async move {
            there.send(()).unwrap();
            _ = until.recv();
        });
        on_it.recv().unwrap();
        busy
    }

    /// The server reads all of this, and then the connection ends.
    fn reads(mut self, whole: &[u8]) {
        let mut got = vec![0; whole.len()];
        self.server.read_exact(&mut got).expect("all of it comes");
        assert!(got == whole, "each byte once, and in order");
        drop(self.server);
        self.thread.join().unwrap();
    }
}

#[test]
fn r6_b5_releases_over_tls_that_the_socket_did_not_take_leave_in_order_once_there_is_room() {
    let ours = OverTls::start();
    let (mut whole, word) = (Vec::new(), "w".repeat(100_000));
    let (fills, release) = (Command::new(["ECHO", &word]), Command::new(["GIVE", "BACK"]));
    for _ in 0..FILLING {
        fills.encode(&mut whole);
        drop(ours.pipe.send(std::slice::from_ref(&fills)));
    }
    release.encode(&mut whole);
    drop(ours.pipe.send_now(&[release]));
    ours.reads(&whole);
}

#[test]
fn r6_b5_a_release_that_tls_alone_keeps_back_is_written_by_the_driver() {
    let ours = OverTls::start();
    let busy = ours.busy();
    let (mut whole, release) = (Vec::new(), Command::new(["GIVE", &"w".repeat(10_000)]));
    while !ours.pipe.keeps_back() {
        assert!(whole.len() < FILLING * 1_000_000, "the socket takes everything");
        release.encode(&mut whole);
        drop(ours.pipe.send_now(std::slice::from_ref(&release)));
    }
    drop(busy);
    ours.reads(&whole);
}

fn tls_server(dir: &std::path::Path) -> rustls::ServerConnection {
    let chain = CertificateDer::pem_file_iter(dir.join("server.pem")).unwrap();
    let chain = chain.collect::<Result<Vec<_>, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("server.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    rustls::ServerConnection::new(Arc::new(config)).unwrap()
}
