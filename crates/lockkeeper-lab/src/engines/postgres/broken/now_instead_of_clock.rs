//! Waits for the lock in one transaction, and writes `now() + ttl`: that is when the transaction
//! began, and not when the lock was got.

use std::io;

use super::{BASE, Broken, EVERY, OneRow, Row, Strike, Writer, grant, interval};
use crate::torture::fault::STOP;
use crate::torture::raw::{GiveUp, Grant};

pub(super) const THIS: Broken = Broken {
    name: "now-instead-of-clock",
    what: "its lease is counted by now(), the start of its transaction: one that has waited is \
           over before it begins, and the next gets it, too",
    convicted_by: &["overlap"],
    // Whoever waits for a holder that does not come back has waited for longer than a lease.
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 800,
    clients: 4,
    make: |orders, task| OneRow::boxed(Row::of(orders, task), take),
    ..BASE
};

fn take(row: &mut Row, give_up: &GiveUp) -> io::Result<Option<Grant>> {
    let (name, holder, lease) = (row.name.clone(), row.holder.clone(), interval());
    let write = format!(
        "UPDATE broken SET holder = '{holder}', ends = now() + {lease} \
         WHERE name = '{name}' AND ends < clock_timestamp()"
    );
    row.sql.ask("BEGIN")?;
    let got = give_up.poll(EVERY, || {
        let before = Writer::now();
        let (_, changed) = row.sql.ask(&write)?;
        Ok((changed == 1).then(|| grant(before)))
    });
    row.sql.ask("COMMIT")?;
    got
}
