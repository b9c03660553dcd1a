//! Which node of a cluster has which slot, as far as this process knows.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, watch};

use super::super::describe::Facts;
use super::super::options::Address;
use super::node::Node;

/// How many slots there are.
pub(in crate::engine) const SLOTS: u16 = 16384;

/// Nobody has it.
const NOWHERE: u16 = u16::MAX;

/// The slot of a key: of what stands between its first `{` and the next `}`, if that is something,
/// else of the whole key.
pub(in crate::engine) fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    let crc = tag.unwrap_or(key).bytes().fold(0u16, |crc, byte| {
        let at = usize::from(crc >> 8) ^ usize::from(byte);
        crc << 8 ^ CRC.get(at).copied().unwrap_or_default()
    });
    crc % SLOTS
}

/// CRC-16/XMODEM of each byte.
static CRC: LazyLock<[u16; 256]> = LazyLock::new(|| {
    let shifted = |crc: u16, _| if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
    std::array::from_fn(|byte| (0..8).fold((byte as u16) << 8, shifted))
});

/// Where every slot is.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::engine) struct Homes(Vec<u16>);

impl Homes {
    /// The node of a slot, if one has it.
    pub(in crate::engine) fn of(&self, slot: u16) -> Option<Node> {
        self.0.get(usize::from(slot)).copied().filter(|node| *node != NOWHERE).map(Node)
    }

    /// Every node that has one.
    pub(in crate::engine) fn nodes(&self) -> BTreeSet<Node> {
        self.0.iter().copied().filter(|node| *node != NOWHERE).map(Node).collect()
    }

    fn set(&mut self, slot: u16, node: Node) {
        if let Some(home) = self.0.get_mut(usize::from(slot)) {
            *home = node.0;
        }
    }
}

/// The map that all connections of an engine share.
pub(crate) struct Slots {
    state: Mutex<State>,
    version: watch::Sender<u64>,
    doubt: Notify,
    hint: Notify,
}

struct State {
    homes: Arc<Homes>,
    addresses: Vec<Address>,
    /// Who is at an address, as the cluster calls its nodes.
    ids: Vec<(Address, String)>,
    /// Who told the map last, and what it said about itself.
    facts: Option<(Node, Facts)>,
    /// Who was named as the new home of a slot last.
    named: Option<Address>,
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Slots").field("nodes", &self.lock().addresses).finish_non_exhaustive()
    }
}

impl Slots {
    /// Nothing is known yet.
    pub(in crate::engine) fn new() -> Arc<Self> {
        let state = State {
            homes: Arc::new(Homes(vec![NOWHERE; usize::from(SLOTS)])),
            addresses: Vec::new(),
            ids: Vec::new(),
            facts: None,
            named: None,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            version: watch::Sender::new(0),
            doubt: Notify::new(),
            hint: Notify::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where everything is now.
    pub(in crate::engine) fn homes(&self) -> Arc<Homes> {
        self.lock().homes.clone()
    }

    /// The node that has a slot.
    pub(in crate::engine) fn home(&self, slot: u16) -> Option<Node> {
        self.lock().homes.of(slot)
    }

    /// The node at this address.
    pub(in crate::engine) fn node(&self, at: &Address) -> Node {
        self.lock().node(at)
    }

    /// Where a node is.
    pub(in crate::engine) fn address(&self, node: Node) -> Option<Address> {
        self.lock().addresses.get(usize::from(node.0)).cloned()
    }

    /// A node said that a slot is there. That is known now; others may have moved as well.
    pub(in crate::engine) fn moved(&self, slot: u16, to: &Address) {
        let mut state = self.lock();
        let node = state.node(to);
        state.named = Some(to.clone());
        if state.homes.of(slot) != Some(node) {
            Arc::make_mut(&mut state.homes).set(slot, node);
            drop(state);
            self.changed();
        }
        self.hint.notify_one();
    }

    /// A node told where everything is, and who is at which address.
    pub(in crate::engine) fn learn(
        &self,
        told: &[(RangeInclusive<u16>, Address)],
        ids: &[(Address, String)],
        by: &Address,
        facts: Facts,
    ) {
        let mut state = self.lock();
        // Slots that are nobody's stay where they were: that node says best why. The cluster has no
        // address for it if a stranger is there now, who is not to be taken for it.
        let mut homes = Homes::clone(&state.homes);
        for (slots, at) in told {
            let node = state.node(at);
            slots.clone().for_each(|slot| homes.set(slot, node));
        }
        let by = state.node(by);
        state.facts = Some((by, facts));
        let with_slots = homes.nodes();
        let mut known = ids.to_vec();
        for (at, id) in std::mem::take(&mut state.ids) {
            let is_left_out = !known.iter().any(|(other, _)| *other == at);
            if is_left_out && with_slots.contains(&state.node(&at)) {
                known.push((at, id));
            }
        }
        state.ids = known;
        if *state.homes != homes {
            state.homes = Arc::new(homes);
            drop(state);
            self.changed();
        }
    }

    /// Whether another node than this one is to be at an address.
    pub(in crate::engine) fn is_other(&self, at: &Address, id: &str) -> bool {
        self.lock().ids.iter().any(|(address, of)| address == at && of != id)
    }

    /// The node that told the map last, and what it said about itself.
    pub(in crate::engine) fn facts(&self) -> Option<(Node, Facts)> {
        self.lock().facts.clone()
    }

    /// Who was named as the new home of a slot since this was asked last.
    pub(in crate::engine) fn named(&self) -> Option<Address> {
        self.lock().named.take()
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    /// Counts the changes.
    pub(in crate::engine) fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// What is known may be wrong: somebody is to ask.
    pub(in crate::engine) fn doubt(&self) {
        self.doubt.notify_one();
    }

    /// Waits until somebody doubts.
    pub(in crate::engine) async fn doubted(&self) {
        self.doubt.notified().await;
    }

    /// Waits until a node names a new home of a slot.
    pub(in crate::engine) async fn hinted(&self) {
        self.hint.notified().await;
    }
}

impl State {
    fn node(&mut self, at: &Address) -> Node {
        let known = self.addresses.iter().position(|known| known == at);
        let at = known.unwrap_or_else(|| {
            self.addresses.push(at.clone());
            self.addresses.len() - 1
        });
        // More nodes than slots there never are.
        Node(u16::try_from(at).unwrap_or(NOWHERE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_in_the_slot_that_the_server_says() {
        // As CLUSTER KEYSLOT answers.
        for (key, slot) in [
            ("123456789", 12739),
            ("foo", 12182),
            ("{foo}bar", 12182),
            ("lockkeeper:{foo}", 12182),
            ("{}foo", 9500),
            ("foo{}{bar}", 8363),
            ("", 0),
        ] {
            assert_eq!(slot_of(key), slot, "{key}");
        }
    }

    #[test]
    fn a_node_that_names_a_new_home_is_believed_for_that_slot() {
        let at = |port| Address::Tcp("h".into(), port);
        let slots = Slots::new();
        assert_eq!(slots.home(0), None);
        let all = [(0..=8191, at(1)), (8192..=16383, at(2))];
        let ids = [(at(1), "a".to_owned()), (at(2), "b".to_owned())];
        slots.learn(&all, &ids, &at(1), Facts::default());
        let (one, two) = (slots.node(&at(1)), slots.node(&at(2)));
        assert_eq!((slots.home(0), slots.home(16383)), (Some(one), Some(two)));
        let changes = slots.changes();
        slots.learn(&all, &ids, &at(1), Facts::default());
        assert!(!changes.has_changed().unwrap(), "nothing did");
        assert!(slots.is_other(&at(1), "b") && !slots.is_other(&at(1), "a"));
        assert!(!slots.is_other(&at(3), "c"), "nobody said who is there");
        slots.moved(7, &at(3));
        assert!(changes.has_changed().unwrap());
        assert_eq!(slots.home(7).and_then(|node| slots.address(node)), Some(at(3)));
        assert_eq!((slots.home(6), slots.homes().nodes().len()), (Some(one), 3));
        assert_eq!((slots.named(), slots.named()), (Some(at(3)), None));
        slots.learn(&all[..1], &ids[..1], &at(1), Facts::default());
        assert!(slots.is_other(&at(2), "a stranger"), "whoever is there now");
        assert!(!slots.is_other(&at(2), "b"));
        assert_eq!((slots.home(7), slots.home(16383)), (Some(one), Some(two)), "nobody has it");
    }
}
