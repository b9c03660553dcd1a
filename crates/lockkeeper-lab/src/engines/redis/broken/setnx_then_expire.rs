//! `SETNX name value`, then `PEXPIRE name ttl`: a holder that dies between the two keeps the lock
//! for ever.

use std::io;

use super::{BASE, Base, Broken, OneKey, Strike, TTL};
use crate::torture::fault::KILL;
use crate::torture::raw::{GiveUp, Grant, Style};

pub(super) const THIS: Broken = Broken {
    name: "setnx-then-expire",
    what: "taking and expiring are two commands: a holder that was killed between them keeps it \
           for ever",
    convicted_by: &["liveness"],
    trigger: &[Strike::one("hold-replies", (0, 100), 300), Strike::one(KILL, (200, 300), 50)],
    round_ms: 1_700,
    clients: 2,
    style: Style { hold_ms: (1, 5), rest_ms: (10, 30), ..Style::PLAIN },
    make: |orders, task| {
        OneKey::boxed(Base::of(orders, task)?, set_then_expire, Base::compare_and_delete)
    },
    ..BASE
};

fn set_then_expire(base: &mut Base, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
    let got = base.set_for_ever(name, give_up)?;
    if got.is_some() {
        base.wire.ask(&["PEXPIRE", name, &TTL.as_millis().to_string()])?;
    }
    Ok(got)
}
