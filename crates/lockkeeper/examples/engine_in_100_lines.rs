//! An engine of your own in about 100 lines: what it has to answer, and nothing else. This one
//! keeps a line a name in memory.
//!
//! The keeper does the rest: local queues, hand-off, offers, cancelled futures, guards. An engine
//! says only what it can (`Can`), grants, and tells later whom it granted. Run `lockkeeper-lab`'s
//! conformance suite on yours, as CONTRIBUTING.md says: this one keeps it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use lockkeeper::engine::*;
use lockkeeper::{Error, ErrorKind, Locks, Result};

/// A claim in its line; the first one holds, with its number.
struct Stood {
    claim: ClaimId,
    number: u64,
    client: Context,
}

/// What all clients share.
#[derive(Default)]
pub struct Ledger {
    lines: HashMap<(Kind, Name), VecDeque<Stood>>,
    last: u64,
}

/// One client.
#[derive(Default)]
pub struct LedgerEngine {
    /// What it shares with the others.
    pub ledger: Arc<Mutex<Ledger>>,
    /// Its own, once it is open.
    pub client: OnceLock<Context>,
}

impl LedgerEngine {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a claim stands, and with which number. It is asked for by id alone: nothing ends by
    /// name (R3).
    fn find(&self, claim: ClaimId) -> Option<(usize, u64)> {
        let ledger = self.ledger();
        ledger.lines.values().find_map(|line| {
            line.iter().enumerate().find(|(_, p)| p.claim == claim).map(|(at, p)| (at, p.number))
        })
    }

    fn stands(&self, claim: ClaimId) -> Standing {
        match self.find(claim) {
            Some((0, number)) => Standing::Held(granted(number)),
            Some((at, _)) => {
                Standing::InLine(Place { ahead: u32::try_from(at).ok(), ..Place::default() })
            }
            None => Standing::Gone(Error::new(ErrorKind::Lost, "it is neither held nor in line")),
        }
    }

    /// Takes a claim out of its line; the next one holds if it was the first.
    fn remove(&self, claim: ClaimId) -> End {
        let ledger = &mut *self.ledger();
        for line in ledger.lines.values_mut() {
            let Some(at) = line.iter().position(|place| place.claim == claim) else { continue };
            line.remove(at);
            if let (0, Some(next)) = (at, line.front_mut()) {
                ledger.last = next_number(ledger.last, unix_us()).unwrap_or(ledger.last);
                next.number = ledger.last;
                let (claim, grant, events) =
                    (next.claim, granted(next.number), next.client.events.clone());
                // From the client's own thread: never from inside a call.
                next.client
                    .spawner
                    .spawn(async move { events.send(Event::Granted { claim, grant }) });
            }
            ledger.lines.retain(|_, line| !line.is_empty());
            return End::Freed;
        }
        End::NotOurs
    }
}

fn granted(number: u64) -> Grant {
    Grant { number: Number::Ours(number), lease: None }
}

fn unsupported<T>() -> Answer<Result<T>> {
    Answer::Now(Err(Error::new(ErrorKind::Unsupported, "the ledger only knows mutexes")))
}

impl Engine for LedgerEngine {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        Answer::Now(
            self.client
                .set(context)
                .map_err(|_| Error::new(ErrorKind::InvalidArgument, "an engine is opened once")),
        )
    }
    fn describe(&self) -> Description {
        let mut about = Description::new("ledger", "ledger", Class::OneKernel);
        about.server = "this process".to_owned();
        about.breaks.push("nothing but the end of this process, which ends every lock".to_owned());
        about.can = Can::NONE.with(&[Ability::Fair, Ability::FairPermits, Ability::WriterTurns]);
        about
    }
    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let Some(client) = self.client.get() else { return Answer::Now(Attempt::Busy(None)) };
        if self.find(claim.id).is_none() {
            let ledger = &mut *self.ledger();
            let places = ledger.lines.entry((claim.kind, claim.name.clone())).or_default();
            if places.is_empty() {
                ledger.last = next_number(ledger.last, unix_us()).unwrap_or(ledger.last);
            } else if line == Line::Try {
                return Answer::Now(Attempt::Busy(None));
            }
            places.push_back(Stood {
                claim: claim.id,
                number: ledger.last,
                client: client.clone(),
            });
        }
        Answer::Now(self.stands(claim.id).into())
    }
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        Answer::Now(claims.iter().map(|claim| self.stands(*claim)).collect())
    }
    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        Answer::Now(self.remove(claim))
    }
    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let ends = holds.iter().map(|hold| self.remove(*hold)).collect();
        let again = again.map(|claim| self.attempt(claim, Line::Join));
        let again =
            again.and_then(
                |answer| if let Answer::Now(attempt) = answer { Some(attempt) } else { None },
            );
        Answer::Now(Released { ends, again })
    }
    fn convert(&self, _: HoldId, _: &Claim) -> Answer<Attempt> {
        unsupported().map(|refused: Result<()>| {
            refused.map_or_else(Attempt::Failed, |()| Attempt::Busy(None))
        })
    }
    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        Answer::Now(leases.iter().map(|_| Renewal::Gone(Lost::TakenAway)).collect())
    }
    fn read(&self, _: &Query) -> Answer<Result<Vec<Entry>>> {
        unsupported()
    }
    fn write(&self, _: &Change) -> Answer<Result<bool>> {
        unsupported()
    }
    fn watch(&self, _: WatchId, _: &Query) -> Answer<Result<()>> {
        unsupported()
    }
    fn unwatch(&self, _: WatchId) {}
    fn close(&self) -> Answer<()> {
        Answer::Now(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let ledger = Arc::default();
    let open = || {
        Locks::with_engine(LedgerEngine { ledger: Arc::clone(&ledger), client: OnceLock::new() })
    };
    let (here, there) = (open().await?, open().await?);
    let guard = here.mutex("stock").lock().await?;
    println!(
        "here has it, token {}; there: {:?}",
        guard.token()?,
        there.mutex("stock").try_lock().await?.is_some()
    );
    let waiting = tokio::spawn(async move { there.mutex("stock").lock().await?.token() });
    println!("given back: {:?}", guard.release().await);
    println!(
        "there has it, token {}",
        waiting.await.map_err(|error| Error::new(ErrorKind::Closed, error.to_string()))??
    );
    Ok(())
}
