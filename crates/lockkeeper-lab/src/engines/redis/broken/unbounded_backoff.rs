//! Asks again and again, after pauses that double each time and have no end: the longer somebody
//! waits, the more rarely it asks.

use std::io;
use std::time::Duration;

use super::{BASE, Base, Broken, EVERY, OneKey};
use crate::torture::raw::{GiveUp, Grant, Style};

pub(super) const THIS: Broken = Broken {
    name: "unbounded-backoff",
    what: "it asks again after pauses that double: the longest waiter asks most rarely, and \
           newcomers get the lock before it",
    convicted_by: &["starvation"],
    // No fault is needed: that others come is enough.
    trigger: &[],
    clients: 4,
    style: Style { hold_ms: (1, 3), rest_ms: (0, 1), ..Style::PLAIN },
    make: |orders, task| OneKey::boxed(Base::of(orders, task)?, take, Base::compare_and_delete),
    ..BASE
};

fn take(base: &mut Base, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
    let mut pause = EVERY;
    while !give_up.is_now() {
        if let Some(got) = base.try_to_set(name)? {
            return Ok(Some(got));
        }
        give_up.sleep(pause);
        pause = pause.saturating_mul(2).min(Duration::from_secs(3600));
    }
    Ok(None)
}
