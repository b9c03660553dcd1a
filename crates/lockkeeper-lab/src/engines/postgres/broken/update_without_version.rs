//! Reads that the row is free, and writes its own name: whatever was written in between is gone.

use std::io;

use super::{BASE, Broken, EVERY, OneRow, Row, Writer, grant, interval};
use crate::torture::raw::{GiveUp, Grant};

pub(super) const THIS: Broken = Broken {
    name: "update-without-version",
    what: "its UPDATE does not say which version of the row it read: two that read it free both \
           write, and both hold",
    convicted_by: &["overlap"],
    // No fault is needed: that two ask at once is enough.
    trigger: &[],
    clients: 4,
    make: |orders, task| OneRow::boxed(Row::of(orders, task), take),
    ..BASE
};

fn take(row: &mut Row, give_up: &GiveUp) -> io::Result<Option<Grant>> {
    let (name, holder, lease) = (row.name.clone(), row.holder.clone(), interval());
    let read = format!("SELECT ends < clock_timestamp() FROM broken WHERE name = '{name}'");
    let write = format!(
        "UPDATE broken SET holder = '{holder}', ends = clock_timestamp() + {lease} \
         WHERE name = '{name}'"
    );
    give_up.poll(EVERY, || {
        if row.sql.first(&read)?.as_deref() != Some("t") {
            return Ok(None);
        }
        let before = Writer::now();
        row.sql.ask(&write)?;
        Ok(Some(grant(before)))
    })
}
