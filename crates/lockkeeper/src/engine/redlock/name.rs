//! Names as keys of a member (R12): injective, readable, and apart from those of `redis://` on the
//! same server.
//!
//! `lockkeeper:{redlock:stock/sku-42}` is the record. The same with `:free:DB` behind it is the
//! channel that tells who gave it back; a channel is heard in every database, hence the number.
//! `…:readers` are those who share the lock, `…:line` those who wait, `…:signs` when each of these
//! asked last, `…:turn` is whose turn it is, `…:last` the last number of the name, and
//! `lockkeeper:redlock` is about the member itself.

use crate::engine::words::{escape, unescape};
use crate::words::name::Name;

/// What every key starts with.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Keys {
    namespace: String,
    db: u32,
}

impl Keys {
    pub(super) fn new(namespace: &str, db: u32) -> Self {
        Self { namespace: namespace.to_owned(), db }
    }

    /// The record of a name.
    pub(super) fn record(&self, name: &Name) -> String {
        format!("{}:{{redlock:{}}}", self.namespace, escape(name.as_str()))
    }

    /// Who reads a name.
    pub(super) fn readers(&self, name: &Name) -> String {
        format!("{}:readers", self.record(name))
    }

    /// The last number of a name.
    pub(super) fn last(&self, name: &Name) -> String {
        format!("{}:last", self.record(name))
    }

    /// Who waits for a name, in order.
    pub(super) fn line(&self, name: &Name) -> String {
        format!("{}:line", self.record(name))
    }

    /// When each of those asked last.
    pub(super) fn signs(&self, name: &Name) -> String {
        format!("{}:signs", self.record(name))
    }

    /// Whose turn it is to have a name.
    pub(super) fn turn(&self, name: &Name) -> String {
        format!("{}:turn", self.record(name))
    }

    /// What a member keeps about itself.
    pub(super) fn member(&self) -> String {
        format!("{}:redlock", self.namespace)
    }

    /// The channel of a name.
    pub(super) fn channel(&self, name: &Name) -> String {
        format!("{}:free:{}", self.record(name), self.db)
    }

    /// A SCAN pattern for the records of every name that starts with `prefix`.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        // Escaped names hold no character that a pattern would take for more than itself.
        format!("{}:{{redlock:{}*", self.namespace, escape(prefix))
    }

    /// The name that a record, or the readers, belong to; `None` for other keys.
    pub(super) fn parse(&self, key: &str) -> Option<Name> {
        let key = key.strip_suffix(":readers").unwrap_or(key);
        let rest = key.strip_prefix(self.namespace.as_str())?.strip_prefix(":{redlock:")?;
        Name::new(unescape(rest.strip_suffix('}')?)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r12_names_pass_through_or_are_escaped_and_always_come_back() {
        let keys = Keys::new("lockkeeper", 3);
        let plain = Name::new("stock/sku-42").unwrap();
        assert_eq!(keys.record(&plain), "lockkeeper:{redlock:stock/sku-42}");
        assert_eq!(keys.channel(&plain), "lockkeeper:{redlock:stock/sku-42}:free:3");
        assert_eq!(keys.last(&plain), "lockkeeper:{redlock:stock/sku-42}:last");
        let mut seen = std::collections::HashSet::new();
        for name in ["a b", "a%20b", "{x}", "}", "é", "*", "?", "[a]", "a\nb", "A", "a", "::"] {
            let name = Name::new(name).unwrap();
            let key = keys.record(&name);
            assert!(key.bytes().all(|b| b.is_ascii_graphic()), "{key}");
            assert!(seen.insert(key.clone()), "{key} twice");
            assert_eq!(keys.parse(&keys.readers(&name)), Some(name.clone()), "{key}");
            assert_eq!(keys.parse(&key), Some(name), "{key}");
        }
        for other in [
            "lockkeeper:{lock:a}",
            "x:{redlock:a}",
            "lockkeeper:{redlock:a}:last",
            "lockkeeper:redlock",
        ] {
            assert_eq!(keys.parse(other), None, "{other}");
        }
    }
}
