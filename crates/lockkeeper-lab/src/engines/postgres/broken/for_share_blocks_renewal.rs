//! Guards its transaction by `SELECT … FOR SHARE` on the lock's row: no renewal gets through while
//! it lasts, and the lease is over when it ends.
//!
//! A renewal that waits does not help when it comes through at the end. The row was locked
//! meanwhile and not changed, so PostgreSQL does not compute the UPDATE again: the lease counts
//! from the clock before the wait. A taker who stands first in the row's queue is the next anyway.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{BASE, Broken, EVERY, Ending, GiveUp, Grant, RawLock, Row, Sql, TTL, interval};
use crate::torture::orders::Orders;
use crate::torture::raw::{Long, Style};

pub(super) const THIS: Broken = Broken {
    name: "for-share-blocks-renewal",
    what: "FOR SHARE on the lock's row keeps its own renewals out for as long as its transaction \
           lasts: the lease runs out, and the next holds it before this one has ended",
    convicted_by: &["overlap"],
    // No fault is needed: a transaction that is longer than a lease is enough.
    trigger: &[],
    style: Style { long_one_in: 4, long: Long::Ms(700), write_ms: (40, 80), ..Style::PLAIN },
    make: |orders, task| Lock::boxed(orders, task),
    ..BASE
};

struct Lock {
    row: Row,
    /// The connection of its transactions.
    work: Sql,
    working: bool,
    /// What is renewed; nothing between turns.
    renewed: Arc<Mutex<Option<String>>>,
}

impl Lock {
    fn boxed(orders: &Orders, task: u32) -> Result<Box<dyn RawLock>, String> {
        let (renewed, mut renews) = (Arc::new(Mutex::new(None)), Sql::to(orders)?);
        let row = Row::of(orders, task)?;
        let (names, holder) = (Arc::clone(&renewed), row.holder.clone());
        let work = move || {
            loop {
                std::thread::sleep(TTL / 3);
                let name: Option<String> =
                    names.lock().unwrap_or_else(PoisonError::into_inner).clone();
                if let Some(name) = name {
                    let lease = interval();
                    // Says only the next time whether it came through.
                    _ = renews.ask(&format!(
                        "UPDATE broken SET ends = clock_timestamp() + {lease} \
                         WHERE name = '{name}' AND holder = '{holder}'"
                    ));
                }
            }
        };
        std::thread::Builder::new().spawn(work).map_err(|e| e.to_string())?;
        Ok(Box::new(Self { row, work: Sql::to(orders)?, working: false, renewed }))
    }

    fn renew(&self, name: Option<String>) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = name;
    }
}

impl RawLock for Lock {
    fn ready(&mut self, name: &str, give_up: &GiveUp) -> io::Result<()> {
        self.row.ready(name, give_up)
    }

    fn acquire(&mut self, _: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let (name, holder, lease) = (&self.row.name, &self.row.holder, interval());
        let take = format!(
            "UPDATE broken SET holder = '{holder}', ends = clock_timestamp() + {lease} \
             WHERE name = '{name}' AND ends < clock_timestamp()"
        );
        let guard = format!(
            "BEGIN; SELECT name FROM broken WHERE name = '{name}' AND holder = '{holder}' FOR SHARE"
        );
        let sql = &mut self.row.sql;
        let got = give_up.poll(EVERY, || Ok((sql.ask(&take)?.1 == 1).then(Grant::default)))?;
        if got.is_some() {
            self.work.ask(&guard)?;
            self.working = true;
            self.renew(Some(self.row.name.clone()));
        }
        Ok(got)
    }

    /// The transaction ends before the last write, which is made elsewhere.
    fn holds(&mut self) -> bool {
        if std::mem::take(&mut self.working) {
            return self.work.ask("COMMIT").is_ok();
        }
        true
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.renew(None);
        if std::mem::take(&mut self.working) {
            self.work.ask("COMMIT")?;
        }
        self.row.free()
    }
}
