//! The sequence number of the node as the token: it begins again at zero when the directory is made anew.

use std::io;

use super::super::super::raw::{Ending, GiveUp, Grant, RawLock, Style};
use super::{BASE, Base, Broken, Node, number};

pub(super) const THIS: Broken = Broken {
    name: "sequence-as-token",
    // The server removes idle directories every second instead of every minute.
    url: "zk:auto?session_timeout=600ms&container_check=1s",
    what: "its token is the node's number, which begins again when the server has removed the idle directory",
    convicted_by: &["token-order", "token-repeated"],
    clients: 2,
    names: 3,
    style: Style { hold_ms: (1, 10), rest_ms: (200, 900), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.0.acquire(name, Node::Container, give_up)?;
        Ok(got.map(|grant| Grant { token: number(&self.0.node) + 1, ..grant }))
    }

    fn tend(&mut self) -> bool {
        self.0.tend()
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.release()
    }
}
