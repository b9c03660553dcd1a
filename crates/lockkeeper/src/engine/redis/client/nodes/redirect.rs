//! What a node answers that has not carried out a request, and where that is to go then.

use super::super::super::options::Address;
use super::super::node::Node;
use super::super::resp::Value;
use super::super::slots::Slots;

/// What a node answers that has not carried out a request.
pub(super) enum Redirect {
    Moved { slot: u16, to: Address },
    Ask { to: Address },
    Later(String),
}

impl Redirect {
    /// `node` answered; where it names no host it means its own.
    pub(super) fn of(value: &Value, node: Option<Node>, slots: &Slots) -> Option<Self> {
        let Value::Error(text) = value else { return None };
        let mut words = text.split(' ');
        let word = words.next()?;
        match word {
            "MOVED" | "ASK" => {
                let slot = words.next()?.parse().ok()?;
                let (host, port) = words.next()?.rsplit_once(':')?;
                if host == "?" {
                    // Its name is not known there; the map tells its address.
                    return Some(Self::Later(text.clone()));
                }
                let own = || match slots.address(node?)? {
                    Address::Tcp(host, _) => Some(host),
                    _ => None,
                };
                let host = if host.is_empty() { own()? } else { host.to_owned() };
                let to = Address::Tcp(host, port.parse().ok()?);
                Some(if word == "ASK" { Self::Ask { to } } else { Self::Moved { slot, to } })
            }
            "TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "LOADING" => {
                Some(Self::Later(text.clone()))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn read(slots: &Arc<Slots>, node: Node, text: &str) -> String {
        match Redirect::of(&Value::Error(text.to_owned()), Some(node), slots) {
            None => "an answer".to_owned(),
            Some(Redirect::Moved { slot, to }) => format!("{slot} is at {to}"),
            Some(Redirect::Ask { to }) => format!("ask {to}"),
            Some(Redirect::Later(_)) => "later".to_owned(),
        }
    }

    #[test]
    fn a_node_says_where_to_go_by_an_address_a_name_or_its_own_host() {
        let slots = Slots::new();
        let node = slots.node(&Address::Tcp("own.host".into(), 7000));
        for (text, is) in [
            ("MOVED 3999 10.0.0.1:6381", "3999 is at 10.0.0.1:6381"),
            ("MOVED 3999 node-1.example:6381", "3999 is at node-1.example:6381"),
            ("MOVED 3999 ::1:6381", "3999 is at [::1]:6381"),
            ("MOVED 3999 fd00::a:1:6381", "3999 is at [fd00::a:1]:6381"),
            // The host is the one that was asked.
            ("MOVED 3999 :6381", "3999 is at own.host:6381"),
            ("ASK 3999 :6381", "ask own.host:6381"),
            ("ASK 3999 10.0.0.1:6381", "ask 10.0.0.1:6381"),
            // It is to be called by its name, and has none.
            ("MOVED 3999 ?:6381", "later"),
            ("ASK 3999 ?:6381", "later"),
            ("TRYAGAIN Multiple keys request during rehashing of slot", "later"),
            ("CLUSTERDOWN The cluster is down", "later"),
            ("MASTERDOWN Link with MASTER is down", "later"),
            ("LOADING Redis is loading the dataset in memory", "later"),
            // What cannot be understood is an answer like any other error.
            ("MOVED", "an answer"),
            ("MOVED x 10.0.0.1:6381", "an answer"),
            ("MOVED 3999 10.0.0.1", "an answer"),
            ("MOVED 3999 10.0.0.1:66666", "an answer"),
            ("ERR MOVED 3999 10.0.0.1:6381", "an answer"),
            ("MOVEDTO 3999 10.0.0.1:6381", "an answer"),
        ] {
            assert_eq!(read(&slots, node, text), is, "{text}");
        }
        assert!(Redirect::of(&Value::Text(b"MOVED 1 a:1".to_vec()), Some(node), &slots).is_none());
        let unknown = Value::Error("MOVED 3999 :6381".into());
        assert!(Redirect::of(&unknown, None, &slots).is_none(), "nobody is known to have said it");
    }
}
