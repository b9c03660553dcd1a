//! The links between clients and servers, and the faults of networks: a proxy for each pair, and
//! where it is allowed a network of the run's own, in which packets are lost.
//!
//! Behind the proxy what TCP cannot do is not done: bytes are late, or the connection is gone, but
//! none is missing from its middle. Its kernel answers for what it took, so a client whose bytes it
//! holds back believes them sent. On a cut link nobody answers: the client's kernel sends them
//! again until somebody does.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::time::Duration;

use lockkeeper_testkit::proxy::{Elsewhere, Fault as Bytes, Proxy, Way};

use super::Random;
use super::arena::{Failed, Mended};
use super::fault::{Fault, Hits};
use super::loss::Loss;
use super::network::{Namespace, Network};
use super::storm::Storm;

/// What every arena with links has.
pub(crate) const FAULTS: [Fault; 6] = [
    link(
        "partition",
        "nothing passes between a client and its servers; then the connections are cut",
    ),
    link("partition-up", "nothing passes from a client to its servers; the other way is free"),
    link("partition-down", "nothing passes from the servers to a client; what it asks is done"),
    link("hold-replies", "what servers answer to a client comes late, all at once"),
    link("reset", "a client's connections are reset, again and again"),
    link("slow-link", "every message of a client takes 40 ms longer, each way"),
];

/// What those have whose clients live in network namespaces.
pub(crate) const LOSSES: [Fault; 4] = [
    link(
        CUT,
        "every packet between a client and its servers is lost, and neither side is notified",
    ),
    link(CUT_UP, "every packet from a client to its servers is lost; the other way is free"),
    link(CUT_DOWN, "every packet from the servers to a client is lost; what it asks is done"),
    link(
        LOSSY,
        "a third of the time every packet between a client and its servers is lost, 30 ms or a few \
         at a time",
    ),
];
const CUT: &str = "cut-link";
const CUT_UP: &str = "cut-link-up";
const CUT_DOWN: &str = "cut-link-down";
const LOSSY: &str = "lossy-link";
/// What its random numbers are for.
const LOSSY_PURPOSE: u64 = 0x1055_0000;

const fn link(name: &'static str, what: &'static str) -> Fault {
    Fault { name, hits: Hits::Link, excuses: &[], what }
}

/// Whether it is one of [`LOSSES`].
pub(crate) fn loses(fault: &str) -> bool {
    LOSSES.iter().any(|f| f.name == fault)
}

/// How much longer a message takes on a slow link.
const SLOW: Duration = Duration::from_millis(40);
/// How often a connection that is reset again and again is.
const RESET_EVERY: Duration = Duration::from_millis(50);
/// The links of a client to all servers.
const ALL: Range<usize> = 0..usize::MAX;
/// What such a fault could not hit.
const UNCONNECTED: &str = "the client had no connection";

/// See the module.
pub(crate) struct Links {
    servers: Vec<u16>,
    /// Where each client finds them, if they tell it of each other.
    told: Option<BTreeMap<u32, Elsewhere>>,
    direct: bool,
    // What is lost is found again, and proxies end, before the network does.
    losses: BTreeMap<u32, Loss>,
    resets: BTreeMap<u32, Storm>,
    /// Of those whose links, from this one to that, are hit while they have no connection: how many
    /// they had made until then.
    unconnected: BTreeMap<(u32, usize, usize), u64>,
    /// The seed of the run, and how often links began to lose some.
    seed: u64,
    lossy: u64,
    proxies: BTreeMap<u32, Vec<Proxy>>,
    /// Where clients live, unless that is where everybody does.
    network: Option<Network>,
    /// Why they cannot live elsewhere.
    refused: Option<String>,
}

impl Links {
    pub(crate) fn to(servers: Vec<u16>) -> Self {
        let (network, refused) = match Network::new() {
            Ok(network) => (Some(network), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            servers,
            told: None,
            direct: false,
            losses: BTreeMap::new(),
            resets: BTreeMap::new(),
            unconnected: BTreeMap::new(),
            seed: 0,
            lossy: 0,
            proxies: BTreeMap::new(),
            network,
            refused,
        }
    }

    /// The same to servers of Redis that tell clients of each other.
    pub(crate) fn to_announced(servers: Vec<u16>) -> Self {
        Self { told: Some(BTreeMap::new()), ..Self::to(servers) }
    }

    /// Clients find one more server.
    pub(crate) fn add(&mut self, server: u16) -> Result<(), String> {
        self.servers.push(server);
        let clients: Vec<u32> = self.proxies.keys().copied().collect();
        clients.into_iter().try_for_each(|client| self.lead(client))
    }

    /// One of the servers is there no more.
    pub(crate) fn remove(&mut self, server: u16) {
        let Some(at) = self.servers.iter().position(|port| *port == server) else { return };
        self.servers.remove(at);
        for of_client in self.proxies.values_mut().filter(|of_client| of_client.len() > at) {
            of_client.remove(at);
        }
        self.told.iter().flat_map(BTreeMap::values).for_each(|told| told.remove(server));
    }

    /// The faults that they can have.
    pub(crate) fn faults(&self) -> impl Iterator<Item = Fault> {
        let losses: &[Fault] = if self.refused.is_none() { &LOSSES } else { &[] };
        FAULTS.into_iter().chain(losses.iter().copied())
    }

    /// Those that they cannot have, and why.
    pub(crate) fn left_out(&self) -> Option<String> {
        let names = LOSSES.map(|f| f.name).join(", ");
        self.refused.as_ref().map(|why| format!("{names}: {why}"))
    }

    /// Nothing but these faults will be asked of them; what is random in them hangs on the seed.
    /// Where there are none clients go to their servers without a proxy between them, which would
    /// cost more than the locks.
    pub(crate) fn are_to_suffer(&mut self, faults: &[&'static str], seed: u64) {
        self.direct = faults.is_empty();
        self.seed = seed;
        if !faults.iter().any(|fault| loses(fault)) {
            self.network = None;
        }
    }

    /// Where the processes of a client have to be to reach its servers, if not where everybody is.
    pub(crate) fn home(&mut self, client: u32) -> Result<Option<&Namespace>, String> {
        self.network.as_mut().map(|network| network.home(client)).transpose()
    }

    /// Where a client finds its servers.
    pub(crate) fn addresses(&mut self, client: u32) -> Result<Vec<SocketAddr>, String> {
        let here = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if self.direct {
            return Ok(self.servers.iter().copied().map(here).collect());
        }
        self.lead(client)?;
        Ok(self.proxies.get(&client).into_iter().flatten().map(Proxy::address).collect())
    }

    /// Makes the proxies of a client that are not there yet.
    fn lead(&mut self, client: u32) -> Result<(), String> {
        let made = self.proxies.entry(client).or_default();
        let told = self.told.as_mut().map(|told| told.entry(client).or_default());
        for port in self.servers.iter().skip(made.len()) {
            let listener = match &mut self.network {
                Some(network) => network.listen(client)?,
                None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                    .map_err(|e| format!("no port for a proxy: {e}"))?,
            };
            let proxy = Proxy::at(listener, *port);
            if let Some(told) = &told {
                told.put(*port, proxy.address().ip(), proxy.port());
                proxy.tell_of(Elsewhere::clone(told));
            }
            made.push(proxy);
        }
        Ok(())
    }

    /// Begins a fault; `None` for one that is not of links.
    pub(crate) fn strike(&mut self, fault: &str, client: u32) -> Option<Result<(), Failed>> {
        self.strike_some(ALL, fault, client)
    }

    /// The same for the links to some of the servers; where packets are lost they are on all.
    pub(crate) fn strike_some(
        &mut self,
        servers: Range<usize>,
        fault: &str,
        client: u32,
    ) -> Option<Result<(), Failed>> {
        if loses(fault) {
            return Some(self.lose(fault, client));
        }
        if !FAULTS.iter().any(|f| f.name == fault) {
            return None;
        }
        let (connections, made) = self.connections(&servers, client);
        if fault == "reset" {
            return Some(if connections > 0 {
                self.reset(&servers, client)
            } else {
                Err(UNCONNECTED.to_owned().into())
            });
        }
        if connections == 0 {
            self.unconnected.insert((client, servers.start, servers.end), made);
        }
        let hold = Bytes { hold: true, ..Bytes::default() };
        let slow = Bytes { delay: SLOW, ..Bytes::default() };
        for proxy in self.of_client(&servers, client) {
            let (up, down) = match fault {
                "partition" => (hold, hold),
                "partition-up" => (hold, Bytes::default()),
                "partition-down" | "hold-replies" => (Bytes::default(), hold),
                _ => (slow, slow),
            };
            proxy.set(Way::Up, up);
            proxy.set(Way::Down, down);
        }
        Some(Ok(()))
    }

    /// The proxies of a client to some of the servers.
    fn of_client(&self, servers: &Range<usize>, client: u32) -> impl Iterator<Item = &Proxy> {
        let some = self.proxies.get(&client).into_iter().flatten().enumerate();
        some.filter(|(at, _)| servers.contains(at)).map(|(_, proxy)| proxy)
    }

    /// How many connections a client has to them, and had.
    pub(crate) fn connections(&self, servers: &Range<usize>, client: u32) -> (usize, u64) {
        let of_client = || self.of_client(servers, client);
        (of_client().map(Proxy::connections).sum(), of_client().map(Proxy::accepted).sum())
    }

    fn reset(&mut self, servers: &Range<usize>, client: u32) -> Result<(), Failed> {
        let scissors: Vec<_> = self.of_client(servers, client).map(Proxy::scissors).collect();
        let storm = Storm::begin(RESET_EVERY, move || scissors.iter().for_each(|cut| cut()))?;
        self.resets.insert(client, storm);
        Ok(())
    }

    fn lose(&mut self, fault: &str, client: u32) -> Result<(), Failed> {
        let line =
            self.network.as_mut().ok_or("this run has no network of its own")?.line(client)?;
        let ways: &[Way] = match fault {
            CUT_UP => &[Way::Up],
            CUT_DOWN => &[Way::Down],
            _ => &[Way::Up, Way::Down],
        };
        // It is kept whatever becomes of it: what was cut has to be mended.
        let mut loss = Loss::on(line, ways);
        let begun = if fault == LOSSY {
            self.lossy += 1;
            loss.of_some(Random::new(self.seed, LOSSY_PURPOSE ^ self.lossy))
        } else {
            loss.of_all()
        };
        self.losses.insert(client, loss);
        begun.map_err(Failed::Half)
    }

    /// Ends it; `None` for one that is not of links.
    pub(crate) fn mend(&mut self, fault: &str, client: u32) -> Option<Result<Mended, String>> {
        self.mend_some(ALL, fault, client)
    }

    /// The same for the links to some of the servers.
    pub(crate) fn mend_some(
        &mut self,
        servers: Range<usize>,
        fault: &str,
        client: u32,
    ) -> Option<Result<Mended, String>> {
        if loses(fault) {
            let mended = self.losses.get_mut(&client)?.mend();
            if mended.is_ok() {
                self.losses.remove(&client);
            }
            return Some(mended.map(|lost| {
                if lost > 0 { Mended::Ended } else { Mended::HitNobody("no packet was lost") }
            }));
        }
        // What happens to servers leaves clients' links as they are.
        if !FAULTS.iter().any(|f| f.name == fault) {
            return None;
        }
        if fault == "reset" {
            self.resets.remove(&client);
        }
        let made = self.connections(&servers, client).1;
        for proxy in self.of_client(&servers, client) {
            if fault.starts_with("partition") {
                // What was on its way is gone, as when a partition lasts longer than TCP has
                // patience.
                proxy.cut();
            }
            proxy.heal();
        }
        let before = self.unconnected.remove(&(client, servers.start, servers.end));
        let hit_nobody = before.is_some_and(|before| before == made);
        Some(Ok(if hit_nobody { Mended::HitNobody(UNCONNECTED) } else { Mended::Ended }))
    }

    /// Takes no more connections of a client, or does again; those that it has are as they were.
    pub(crate) fn refuse(&self, client: u32, refuse: bool) {
        self.proxies.get(&client).into_iter().flatten().for_each(|proxy| proxy.refuse(refuse));
    }

    /// What servers said first on each connection that a client has.
    pub(crate) fn greetings(&self, client: u32) -> Vec<Vec<u8>> {
        self.proxies.get(&client).into_iter().flatten().flat_map(Proxy::greetings).collect()
    }

    /// No connection of anybody survives.
    pub(crate) fn cut_all(&self) {
        self.proxies.values().flatten().for_each(Proxy::cut);
    }
}

#[cfg(test)]
mod tests;
