//! Names as keys of our own layout (R12): injective, readable, and with one hash tag a name.
//!
//! `lockkeeper:{lock:stock/sku-42}` is the record, with `:line` and `:last` behind it the other
//! two, and `:watch:DB` while somebody watches that name. Names of letters, digits and
//! `-_.:/@+=~,;!#$&()|<>` pass through; every other byte is written `%XX`.

use crate::engine::words::{escape, unescape};
use crate::words::name::{Kind, Name};

/// What every key of the layout starts with.
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
    pub(super) fn record(&self, kind: Kind, name: &Name) -> String {
        format!("{}:{{{}:{}}}", self.namespace, kind.as_str(), escape(name.as_str()))
    }

    /// The key that is there while somebody watches a record, and the channel that tells of changes
    /// to it. A channel is heard in every database, hence the number.
    pub(super) fn watch(&self, record: &str) -> String {
        format!("{record}:watch:{}", self.db)
    }

    /// What every key of every name starts with.
    pub(super) fn everything(&self) -> String {
        format!("{}:{{", self.namespace)
    }

    /// The channel of one process.
    pub(super) fn channel(&self, process: u128) -> String {
        format!("{}:process:{process:032x}", self.namespace)
    }

    /// A SCAN pattern for the keys of every name that starts with `prefix`.
    pub(super) fn pattern(&self, prefix: &str) -> String {
        // Escaped names hold no character that a pattern would take for more than itself.
        format!("{}:{{*:{}*", self.namespace, escape(prefix))
    }

    /// The kind and name that a record or a line belongs to; `None` for other keys.
    pub(super) fn parse(&self, key: &str) -> Option<(Kind, Name)> {
        let (tag, rest) =
            key.strip_prefix(self.namespace.as_str())?.strip_prefix(":{")?.split_once('}')?;
        if !matches!(rest, "" | ":line") {
            return None;
        }
        let (kind, name) = tag.split_once(':')?;
        let kind = Kind::ALL.into_iter().find(|k| k.as_str() == kind)?;
        Some((kind, Name::new(unescape(name)?).ok()?))
    }
}

/// What stands behind a record in the key of its line.
pub(super) const LINE: &str = ":line";

/// What stands behind a record in the key of its last number.
pub(super) const LAST: &str = ":last";

/// The line of a record.
pub(super) fn line(record: &str) -> String {
    [record, LINE].concat()
}

/// The last number of a record.
pub(super) fn last(record: &str) -> String {
    [record, LAST].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r12_names_pass_through_or_are_escaped_and_always_come_back() {
        let keys = Keys::new("lockkeeper", 0);
        let plain = Name::new("stock/sku-42").unwrap();
        assert_eq!(keys.record(Kind::Lock, &plain), "lockkeeper:{lock:stock/sku-42}");
        let odd = [
            "a b", "a%20b", "{x}", "}", "é", "e\u{301}", "*", "?", "[a]", "\\", "a\nb", "A", "a",
            "::", "\"'`",
        ];
        let mut seen = std::collections::HashSet::new();
        for name in odd {
            let name = Name::new(name).unwrap();
            let key = keys.record(Kind::Semaphore, &name);
            assert!(key.bytes().all(|b| b.is_ascii_graphic()), "{key}");
            assert!(seen.insert(key.clone()), "{key} twice");
            assert_eq!(keys.parse(&key), Some((Kind::Semaphore, name.clone())), "{key}");
            assert_eq!(keys.parse(&line(&key)), Some((Kind::Semaphore, name)));
            assert_eq!(keys.parse(&last(&key)), None);
            assert_eq!(keys.parse(&keys.watch(&key)), None);
            assert!(key.starts_with(&keys.everything()));
        }
    }

    #[test]
    fn keys_of_others_are_not_ours() {
        let keys = Keys::new("a", 0);
        for key in [
            "a:{lock:x",
            "b:{lock:x}",
            "a:{what:x}",
            "a:{lock:}",
            "a:{lock:%zz}",
            "a:{lock:%C3}",
            "a:watch:0",
            "",
        ] {
            assert_eq!(keys.parse(key), None, "{key}");
        }
    }
}
