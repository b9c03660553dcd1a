//! A watchdog that renews by name, and that nobody tells of the release: it keeps the locks of the
//! dead alive.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::{BASE, Base, Broken, Strike, TTL, wire};
use crate::torture::fault::KILL;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(super) const THIS: Broken = Broken {
    name: "watchdog-outlives-unlock",
    what: "its renewal goes on after the release, by name: it renews a dead holder's lock for ever",
    convicted_by: &["liveness"],
    trigger: &[Strike::one(KILL, (0, 100), 50)],
    round_ms: 400,
    make: |orders, task| {
        let names: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let (renewed, mut wire) = (names.clone(), wire(&orders.url)?);
        let work = move || {
            loop {
                let names: Vec<String> = renewed
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .iter()
                    .cloned()
                    .collect();
                for name in names {
                    // A server that is away is asked again the next time.
                    let _ = wire.ask(&["PEXPIRE", &name, &TTL.as_millis().to_string()]);
                }
                std::thread::sleep(TTL / 3);
            }
        };
        std::thread::Builder::new().spawn(work).map_err(|e| e.to_string())?;
        Ok(Box::new(Lock { base: Base::of(orders, task)?, names }))
    },
    ..BASE
};

struct Lock {
    base: Base,
    names: Arc<Mutex<BTreeSet<String>>>,
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.base.set_if_free(name, give_up)?;
        if got.is_some() {
            self.names.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_owned());
        }
        Ok(got.map(|_| Grant::default()))
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.base.compare_and_delete()
    }
}
