//! The statement of a holder's own transaction.
//!
//! Each passing of a hold changes the row's `number`: release, the next grant, a conversion, forced
//! release. No renewal does, and nobody who comes into the line. `number` is in a unique index, so
//! `FOR KEY SHARE` keeps it from changing until the transaction ends, and lets everything else be
//! written. The statement looks at no clock: as long as it finds its row, nobody else had the lock.

use super::doing::Opened;
use super::options::PostgresOptions;
use crate::engine::Statement;
use crate::engine::sql::record::kind_number;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{HoldId, LeaseId};
use crate::words::lost::Lost;

impl Opened {
    /// The statement of a hold, if the server says that it is there.
    pub(super) async fn statement(&self, hold: HoldId) -> Result<Statement> {
        let known = self.claims().renewal(LeaseId(hold.0)).ok_or_else(gone)?;
        let store = self.store().await?;
        if !store.facts.indexed {
            let text = format!(
                "the table in the server at {} lacks the unique index of `number`, which this \
                 needs: let its owner run `{}`, and connect again",
                self.link.options.at(),
                make_index(&self.link.options, &store.facts.schema)
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        // First: from now on a transaction may be there.
        self.claims().give_out(hold);
        let seen = store.read(known.kind, &known.name, Some(hold), (0, false)).await;
        let row = seen.map_err(|broken| broken.error)?.row;
        let row = row.filter(|row| row.claim == Some(hold)).ok_or_else(gone)?;
        let (kind, name) = (kind_number(known.kind), known.name.as_str().as_bytes());
        // The caller's connection may have another search path.
        let sql = |sql: &str| self.link.options.sql_in(Some(&store.facts.schema), sql);
        let text = sql(include_str!("held.sql").trim_end());
        let hex: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
        // What the names of the tables may contain is no place of a value.
        let literal = include_str!("held.sql")
            .trim_end()
            .replace("$1", &kind.to_string())
            .replace("$2", &format!("decode('{hex}', 'hex')"))
            .replace("$3", &row.number.to_string());
        Ok(Statement::new(text, sql(&literal), kind, name, row.number))
    }
}

/// What gives an older table its index, and does not keep those who lock from writing meanwhile.
pub(super) fn make_index(options: &PostgresOptions, schema: &str) -> String {
    let make = "CREATE UNIQUE INDEX CONCURRENTLY {numbers} ON {locks} (kind, name, number)";
    options.sql_in(Some(schema), make)
}

fn gone() -> Error {
    Error::new(ErrorKind::Lost, format!("the lock is gone: {}", Lost::TakenAway))
}
