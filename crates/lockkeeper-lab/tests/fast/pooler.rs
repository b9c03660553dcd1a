//! PostgreSQL behind a pooler that mixes up whose answer is whose.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use lockkeeper::{Kind, Locks};
use lockkeeper_testkit::postgres::server::{PostgresServer, USER};

/// Passes on what a client and a server say, message by message.
struct Relay {
    port: u16,
    accepted: Arc<AtomicUsize>,
    /// The answers of the next transaction go to somebody else: from then on each question has the
    /// answers of the one after it.
    swallows: Arc<AtomicBool>,
}

impl Relay {
    fn before(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
        let port = listener.local_addr().expect("it has one").port();
        let accepted = Arc::new(AtomicUsize::new(0));
        let swallows = Arc::new(AtomicBool::new(false));
        let (count, swallow) = (accepted.clone(), swallows.clone());
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(mut client) = client else { return };
                let mut server = TcpStream::connect(("127.0.0.1", server)).expect("it listens");
                count.fetch_add(1, Ordering::SeqCst);
                let pair = client.try_clone().and_then(|c| Ok((c, server.try_clone()?)));
                let (mut from, mut to) = pair.expect("descriptors");
                thread::spawn(move || {
                    _ = std::io::copy(&mut from, &mut to);
                    _ = to.shutdown(std::net::Shutdown::Both);
                });
                let swallow = swallow.clone();
                thread::spawn(move || {
                    _ = pass(&mut server, &mut client, &swallow);
                    _ = client.shutdown(std::net::Shutdown::Both);
                });
            }
        });
        Self { port, accepted, swallows }
    }

    fn url(&self) -> String {
        let port = self.port;
        let times = "ttl=8s&connect_timeout=1m&request_timeout=6s";
        format!("postgres://{USER}@127.0.0.1:{port}/postgres?pooler=transaction&{times}")
    }
}

/// What the server says: a letter, a length that counts itself, and so many bytes.
fn pass(
    server: &mut TcpStream,
    client: &mut TcpStream,
    swallows: &AtomicBool,
) -> std::io::Result<()> {
    let mut swallowing = false;
    loop {
        let mut message = vec![0; 5];
        server.read_exact(&mut message)?;
        let length = u32::from_be_bytes([message[1], message[2], message[3], message[4]]);
        message.resize(1 + length as usize, 0);
        server.read_exact(&mut message[5..])?;
        swallowing |= message[5..].starts_with(b"BEGIN") && swallows.swap(false, Ordering::SeqCst);
        if !swallowing {
            client.write_all(&message)?;
        }
        // Ready for the next, and in no transaction.
        swallowing &= message != b"Z\0\0\0\x05I";
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p4_answers_to_others_are_believed_by_nobody_and_the_connection_is_made_anew() {
    let server = PostgresServer::start();
    let relay = Relay::before(server.port());
    let here = format!("{}?ttl=8s&connect_timeout=1m&request_timeout=20s", server.url());
    let here = Locks::open(&here).await.expect("it is there");
    let there = Locks::open(&relay.url()).await.expect("it is there");
    let held = here.mutex("a").lock().await.expect("it is free");
    let next = tokio::spawn({
        let there = there.clone();
        async move { there.mutex("a").lock().await }
    });
    let stands = async {
        while here.status(Kind::Lock, "a").await.expect("a status").waiters.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), stands).await.expect("it stands in line");
    let accepted = relay.accepted.load(Ordering::SeqCst);
    relay.swallows.store(true, Ordering::SeqCst);
    let anew = async {
        let swallows = || relay.swallows.load(Ordering::SeqCst);
        while swallows() || relay.accepted.load(Ordering::SeqCst) == accepted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), anew).await.expect("it connects anew");
    assert!(!next.is_finished(), "somebody holds it");
    assert!(held.release().await.is_clean());
    let got = tokio::time::timeout(Duration::from_secs(120), next).await.expect("in time");
    let got = got.expect("no panic").expect("it is granted");
    assert!(got.release().await.is_clean());
    for locks in [here, there] {
        assert_eq!(locks.close().await.unknown, []);
    }
}
