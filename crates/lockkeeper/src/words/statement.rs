//! A statement that finds its row only while the lock is held.

use std::fmt;

/// A statement for a transaction on the database that keeps the lock, through any client.
///
/// It answers one row while the lock is held. From then on the lock cannot pass to anybody before
/// the transaction ends, whatever the clocks say. No row, or a serialization failure, means that
/// the lock is gone: roll back. So does a deadlock, of which the transaction is the victim.
///
/// `Display` is the statement with its values in it. For a client that prepares statements, and
/// keeps them, [`text`](Self::text) has `$1`, `$2` and `$3` in their place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    text: String,
    literal: String,
    kind: i16,
    name: Vec<u8>,
    number: i64,
}

impl Statement {
    /// Made by the engine that keeps the lock: the statement with `$1`, `$2`, `$3`, and with the
    /// values in their place.
    pub fn new(
        text: impl Into<String>,
        literal: impl Into<String>,
        kind: i16,
        name: impl Into<Vec<u8>>,
        number: i64,
    ) -> Self {
        Self { text: text.into(), literal: literal.into(), kind, name: name.into(), number }
    }

    /// The statement, with `$1` for [`kind`](Self::kind) (`smallint`), `$2` for
    /// [`name`](Self::name) (`bytea`) and `$3` for [`number`](Self::number) (`bigint`).
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The kind of the lock, as the table has it.
    pub fn kind(&self) -> i16 {
        self.kind
    }

    /// The name, as the table has it.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The number of the hold; each passing of the lock changes it, and no renewal does.
    pub fn number(&self) -> i64 {
        self.number
    }
}

impl fmt::Display for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.literal)
    }
}
