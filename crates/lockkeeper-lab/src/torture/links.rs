//! The links between clients and servers: a proxy for each pair, and the faults of networks.
//!
//! What TCP cannot do is not done: bytes are late, or the connection is gone, but none is missing from its middle.

use std::collections::BTreeMap;
use std::time::Duration;

use super::fault::{Fault, Hits};
use crate::proxy::{Fault as Bytes, Proxy, Way};

/// What every arena with links has.
pub(super) const FAULTS: [Fault; 6] = [
    link("partition", "nothing passes between a client and its servers; then the connections are cut"),
    link("partition-up", "nothing passes from a client to its servers; the other way is free"),
    link("partition-down", "nothing passes from the servers to a client; what it asks is done"),
    link("hold-replies", "what servers answer to a client comes late, all at once"),
    link("reset", "a client's connections are reset, again and again"),
    link("slow-link", "every message of a client takes 40 ms longer, each way"),
];

const fn link(name: &'static str, what: &'static str) -> Fault {
    Fault { name, hits: Hits::Link, excuses: &[], what }
}

/// How much longer a message takes on a slow link.
const SLOW: Duration = Duration::from_millis(40);

/// See the module.
pub(super) struct Links {
    servers: Vec<u16>,
    direct: bool,
    proxies: BTreeMap<u32, Vec<Proxy>>,
}

impl Links {
    pub(super) fn to(servers: Vec<u16>) -> Self {
        Self { servers, direct: false, proxies: BTreeMap::new() }
    }

    /// No link will be hit: clients go to their servers without a proxy between them, which would cost more than the locks.
    pub(super) fn go_direct(&mut self) {
        self.direct = true;
    }

    /// Where a client finds its servers.
    pub(super) fn ports(&mut self, client: u32) -> Vec<u16> {
        if self.direct {
            return self.servers.clone();
        }
        let servers = &self.servers;
        let made = || servers.iter().map(|port| Proxy::to(*port)).collect::<Vec<_>>();
        self.proxies.entry(client).or_insert_with(made).iter().map(Proxy::port).collect()
    }

    /// Begins a fault of [`FAULTS`], or does again what is done again and again; false for any other.
    pub(super) fn strike(&self, fault: &str, client: u32) -> bool {
        let of_client = self.proxies.get(&client).into_iter().flatten();
        let hold = Bytes { hold: true, ..Bytes::default() };
        let slow = Bytes { delay: SLOW, ..Bytes::default() };
        for proxy in of_client {
            let (up, down) = match fault {
                "partition" => (hold, hold),
                "partition-up" => (hold, Bytes::default()),
                "partition-down" | "hold-replies" => (Bytes::default(), hold),
                "slow-link" => (slow, slow),
                "reset" => {
                    proxy.cut();
                    continue;
                }
                _ => return false,
            };
            proxy.set(Way::Up, up);
            proxy.set(Way::Down, down);
        }
        FAULTS.iter().any(|f| f.name == fault)
    }

    /// Ends it; false for any other.
    pub(super) fn mend(&self, fault: &str, client: u32) -> bool {
        for proxy in self.proxies.get(&client).into_iter().flatten() {
            if fault.starts_with("partition") || fault == "reset" {
                // What was on its way is gone, as when a partition lasts longer than TCP has patience.
                proxy.cut();
            }
            proxy.heal();
        }
        FAULTS.iter().any(|f| f.name == fault)
    }

    /// No connection of anybody survives.
    pub(super) fn cut_all(&self) {
        self.proxies.values().flatten().for_each(Proxy::cut);
    }
}
