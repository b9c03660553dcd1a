//! `pg_advisory_lock` through a pooler in transaction mode: each statement gets another of the
//! server's connections, and the lock belongs to that one.
//!
//! The pool is the client's own: two connections, used in turn by the tasks of one process. So it
//! needs no pooler's program. What a release does not find is left locked until the process ends.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{BASE, Broken, EVERY, Ending, GiveUp, Grant, RawLock, Sql};
use crate::torture::orders::Orders;

pub(super) const THIS: Broken = Broken {
    name: "advisory-through-pooler",
    what: "a session's lock through a pool that gives each statement a connection belongs to one \
           that others use, too: who asks on the same one holds it as well",
    convicted_by: &["overlap"],
    // No fault is needed: the pool is enough.
    trigger: &[],
    tasks: 3,
    make: |orders, task| Lock::boxed(orders, task),
    ..BASE
};

/// The server's connections behind the pooler of this process, and whose turn it is.
struct Pool {
    connections: Vec<Sql>,
    next: usize,
}

static POOL: Mutex<Option<Arc<Mutex<Pool>>>> = Mutex::new(None);

impl Pool {
    fn of(orders: &Orders) -> Result<Arc<Mutex<Self>>, String> {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = &*pool {
            return Ok(Arc::clone(pool));
        }
        let connections = (0..2).map(|_| Sql::to(orders)).collect::<Result<Vec<_>, _>>()?;
        Ok(Arc::clone(pool.insert(Arc::new(Mutex::new(Self { connections, next: 0 })))))
    }

    /// One statement, on the connection whose turn it is.
    fn ask(&mut self, text: &str) -> io::Result<bool> {
        let count = self.connections.len();
        self.next += 1;
        let connection = self.connections.get_mut(self.next % count);
        let connection = connection.ok_or_else(|| io::Error::other("an empty pool"))?;
        Ok(connection.first(text)?.as_deref() == Some("t"))
    }
}

struct Lock {
    pool: Arc<Mutex<Pool>>,
    name: String,
}

impl Lock {
    fn boxed(orders: &Orders, _: u32) -> Result<Box<dyn RawLock>, String> {
        Ok(Box::new(Self { pool: Pool::of(orders)?, name: String::new() }))
    }

    fn ask(&self, what: &str) -> io::Result<bool> {
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        pool.ask(&format!("SELECT {what}(hashtext('{}'))", self.name))
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        name.clone_into(&mut self.name);
        give_up.poll(EVERY, || Ok(self.ask("pg_try_advisory_lock")?.then(Grant::default)))
    }

    fn release(&mut self) -> io::Result<Ending> {
        let ours = self.ask("pg_advisory_unlock")?;
        Ok(if ours { Ending::Released } else { Ending::NotOurs })
    }
}
