//! Names that a transaction of a holder keeps from passing (`held.sql`).
//!
//! A write that makes such a name pass waits for its row, and everything that this process sends
//! behind it on its one connection waits, too: its renewals. So wherever a transaction may be there
//! it is asked for first, by a statement that waits for nobody.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::doing::{Opened, is_plain, jitter};
use super::errors::Broken;
use super::store::Store;
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::name::{Kind, Name};

/// For how long a name is asked about first that was found kept.
const REMEMBERED: Duration = Duration::from_secs(60);
/// How often it is asked again who stands on a whole row: whoever renews or asks does for a moment.
const LOOKS: u32 = 6;
/// How long is waited for a transaction before it is looked for again: at first, and at most.
const AGAIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));

/// Names that were found kept, and when last.
#[derive(Default)]
pub(super) struct Kept(Mutex<BTreeMap<(Kind, Name), Ticks>>);

impl Kept {
    /// Whether it was found so lately.
    fn has(&self, kind: Kind, name: &Name) -> bool {
        let names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !names.is_empty() && names.contains_key(&(kind, name.clone()))
    }

    fn note(&self, kind: Kind, name: &Name, kept: bool, now: Ticks) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept {
            names.retain(|_, at| now.since(*at) < REMEMBERED);
            names.insert((kind, name.clone()), now);
        } else {
            names.remove(&(kind, name.clone()));
        }
    }
}

impl Opened {
    /// Whether a transaction of a holder kept a name from passing when it was looked at last.
    pub(super) fn was_kept(&self, kind: Kind, name: &Name) -> bool {
        is_plain(kind) && self.kept.has(kind, name)
    }

    /// Whether one does now. Whoever locks the whole row is no holder.
    pub(super) async fn is_kept(
        &self,
        store: &Store,
        kind: Kind,
        name: &Name,
    ) -> Result<bool, Broken> {
        let mut kept = None;
        for round in 0..LOOKS {
            // A question changes nothing.
            let asked = store.is_kept(kind, name).await;
            kept = asked.map_err(|broken| Broken { certain: true, ..broken })?;
            if kept.is_some() {
                break;
            }
            sleep(jitter(round + 2)).await;
        }
        let kept = kept == Some(true);
        self.kept.note(kind, name, kept, self.link.context.clock.now());
        Ok(kept)
    }
}

/// Gives a transaction time to end.
pub(super) async fn pause(round: u32) {
    sleep((AGAIN.0 * (1 << round.min(5))).min(AGAIN.1)).await;
}

/// What whoever would make it pass is told.
pub(super) fn refused(at: &str, name: &Name) -> Broken {
    let text = format!(
        "a transaction in the server at {at} keeps the lock from passing until it ends: commit it, \
         or roll it back"
    );
    let error = Error::new(ErrorKind::Refused, text).no_room();
    Broken { repeat: true, waited: true, ..Broken::unsent(error.name(name)) }
}
