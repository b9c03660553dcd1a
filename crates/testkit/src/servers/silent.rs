//! An address of the loopback that answers nobody, as one behind a firewall: its queue of
//! connections is full.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// Such an address, while it lives.
pub struct Silent {
    address: SocketAddr,
    _listener: TcpListener,
    /// What fills the queue.
    _waiting: Vec<TcpStream>,
}

impl Silent {
    /// One at 127.0.0.2.
    ///
    /// # Panics
    /// When the loopback has no such address, or no free port there.
    #[allow(clippy::expect_used, reason = "a test without it cannot go on")]
    pub fn start() -> Self {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).expect("a port is free");
        rustix::net::listen(&listener, 0).expect("it listens already");
        let address = listener.local_addr().expect("it is bound");
        let mut waiting = Vec::new();
        // What the queue takes is there at once.
        while let Ok(one) = TcpStream::connect_timeout(&address, Duration::from_millis(500)) {
            waiting.push(one);
        }
        Self { address, _listener: listener, _waiting: waiting }
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
