//! A network of the run's own, in which packets can be lost: a namespace for each client, one in
//! which the proxies of all listen, and a switch between them.
//!
//! ```text
//! client 0 ── switch ── hub: the proxies ·· the servers, on the loopback link of the process
//! client 1 ──   │   ──
//! ```
//!
//! Each client has a pair of links to the switch, and a second pair leads on from there to an
//! address of its own in the hub. What is lost is lost in the switch, on its way out: neither end
//! learns of it, and both kernels send it again until it gets through or they run out of patience.
//! Addresses are private ones that nobody sees outside.

mod namespace;
mod netlink;

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;

pub(crate) use namespace::Namespace;
use netlink::{End, Netlink};

use lockkeeper_testkit::proxy::Way;

/// The links of clients and of the hub are numbered from here on in the switch, two a client; in
/// the hub one a client.
const FIRST: u32 = 10;
/// The one link of a client.
const ONLY: u32 = 2;
/// For how many clients there are addresses.
const CLIENTS: u32 = 1 << 14;
/// How much of an address a pair of links has for itself.
const PAIR: u8 = 30;

/// See the module.
pub(crate) struct Network {
    // Clients go before what they are connected to.
    clients: BTreeMap<u32, Client>,
    hub: Namespace,
    switch: Arc<Namespace>,
}

struct Client {
    home: Namespace,
    at_hub: Ipv4Addr,
    line: Line,
}

/// The way of one client's packets through the switch.
#[derive(Clone)]
pub(crate) struct Line {
    switch: Arc<Namespace>,
    /// Over which links what goes up and what goes down leaves the switch.
    out: [u32; 2],
}

impl Network {
    /// With nobody in it yet.
    ///
    /// # Errors
    /// Why this machine, or this user, cannot have one.
    pub(crate) fn new() -> Result<Self, String> {
        let mut network = Self {
            clients: BTreeMap::new(),
            hub: Namespace::new(false)?,
            switch: Arc::new(Namespace::new(true)?),
        };
        // Links and queues can be missing even where namespaces are there.
        let line = network.line(0)?;
        for way in [Way::Up, Way::Down] {
            line.cut(way)?;
            line.mend(way)?;
        }
        Ok(network)
    }

    /// Where the processes of a client live.
    pub(crate) fn home(&mut self, client: u32) -> Result<&Namespace, String> {
        self.client(client).map(|client| &client.home)
    }

    /// The way of its packets.
    pub(crate) fn line(&mut self, client: u32) -> Result<Line, String> {
        self.client(client).map(|client| client.line.clone())
    }

    /// A port in the hub, at an address that is for this client alone.
    pub(crate) fn listen(&mut self, client: u32) -> Result<TcpListener, String> {
        let at = self.client(client)?.at_hub;
        self.hub
            .run(move || TcpListener::bind((at, 0)))
            .and_then(|bound| bound)
            .map_err(|e| format!("no port in the hub: {e}"))
    }

    fn client(&mut self, number: u32) -> Result<&Client, String> {
        if !self.clients.contains_key(&number) {
            let client = self.connect(number)?;
            self.clients.insert(number, client);
        }
        self.clients.get(&number).ok_or_else(|| format!("client {number} has no network"))
    }

    fn connect(&self, number: u32) -> Result<Client, String> {
        if number >= CLIENTS {
            return Err(format!(
                "there are addresses for {CLIENTS} clients, and not for client {number}"
            ));
        }
        let home = Namespace::new(false)?;
        let [to_client, to_hub, in_hub] =
            [FIRST + 2 * number, FIRST + 2 * number + 1, FIRST + number];
        let below =
            |host| Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + 4 * number + host);
        let above =
            |host| Ipv4Addr::from_bits(Ipv4Addr::new(10, 2, 0, 0).to_bits() + 4 * number + host);
        let (clients, hubs) = (format!("client{number}"), format!("hub{number}"));
        let make = || {
            let (inside, switch, hub) = (&home.links, &self.switch.links, &self.hub.links);
            switch.pair(
                End { link: to_client, name: &clients },
                End { link: ONLY, name: "switch" },
                as_fd(&home),
            )?;
            switch.pair(
                End { link: to_hub, name: &hubs },
                End { link: in_hub, name: &clients },
                as_fd(&self.hub),
            )?;
            for (namespace, link, address) in [
                (inside, ONLY, below(2)),
                (switch, to_client, below(1)),
                (switch, to_hub, above(1)),
                (hub, in_hub, above(2)),
            ] {
                namespace.address(link, address, PAIR)?;
                namespace.up(link)?;
            }
            inside.route(Ipv4Addr::new(10, 2, 0, 0), 16, below(1))?;
            hub.route(below(0), PAIR, above(1))
        };
        make().map_err(|e| format!("this process cannot connect network namespaces: {e}"))?;
        let line = Line { switch: self.switch.clone(), out: [to_hub, to_client] };
        Ok(Client { home, at_hub: above(2), line })
    }
}

fn as_fd(namespace: &Namespace) -> std::os::fd::BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(namespace)
}

impl Line {
    /// What goes this way is lost from now on.
    pub(crate) fn cut(&self, way: Way) -> Result<(), String> {
        self.links()
            .lose_all(self.out[way as usize])
            .map_err(|e| format!("a link cannot be cut: {e}"))
    }

    /// It is lost no more. Answers how many packets were, as far as they can be counted.
    pub(crate) fn mend(&self, way: Way) -> Result<u32, String> {
        let out = self.out[way as usize];
        let lost = self.links().lost(out).unwrap_or(0);
        self.links().lose_nothing(out).map_err(|e| format!("a link cannot be restored: {e}"))?;
        Ok(lost)
    }

    fn links(&self) -> &Netlink {
        &self.switch.links
    }
}

#[cfg(test)]
mod tests;
