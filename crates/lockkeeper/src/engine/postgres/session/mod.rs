//! The layout `session`: advisory locks, which are gone with their connection.
//!
//! | file | what it is |
//! |---|---|
//! | `options`, `describe` | what the URL says, what the server promises |
//! | `key` | which lock a name is |
//! | `connection` | one connection, its settings and what it proves |
//! | `pool` | the connections of a process, and what each has |
//! | `claims` | one claim's way to its lock, and back |
//! | `look` | who holds and who waits, and watches |
//!
//! A free lock is taken by `pg_try_advisory_lock` on a connection that may have others. Who waits
//! does so in the server, in `pg_advisory_lock` on a connection that has nothing else, and keeps
//! the lock there: that is the one line that `psql` stands in, too, and the server wakes who is
//! next. A look at intervals would never be granted beside somebody who waits.

mod claims;
mod connection;
mod describe;
mod inspect;
mod name;
mod options;
mod pool;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use self::claims::Stand;
use self::inspect::Places;
use self::options::Options;
pub(super) use self::options::SESSION;
use self::pool::{Need, Opened, Slot};
use super::environment;
use super::watch::Watches;
use crate::engine::{
    Answer, Attempt, Change, Claim, Common, Context, End, Engine, Line, Query, Released, Renewal,
    Standing, WatchId,
};
use crate::open::url::EngineUrl;
use crate::words::claim::Entry;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Description;
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;

pub(super) fn open(url: &mut EngineUrl, common: &Common) -> Result<Box<dyn Engine>> {
    let options = Arc::new(Options::take(url, common)?);
    environment::check()?;
    Ok(Box::new(Session { options, opened: OnceLock::new() }))
}

pub(super) fn needs_no_tables() -> Error {
    let text = "layout=session keeps locks in no tables: nothing has to be made for it";
    Error::new(ErrorKind::Unsupported, text)
}

/// The engine; nothing is sent before [`Engine::open`].
struct Session {
    options: Arc<Options>,
    opened: OnceLock<Arc<Opened>>,
}

impl Session {
    fn opened(&self) -> Result<&Arc<Opened>> {
        self.opened.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }
}

fn unsupported<T>() -> Result<T> {
    let text = "advisory locks have no such thing: use layout=table";
    Err(Error::new(ErrorKind::Unsupported, text))
}

impl Engine for Session {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let opened = Opened::new(self.options.clone(), context);
        if self.opened.set(opened.clone()).is_err() {
            let error = Error::new(ErrorKind::InvalidArgument, "the engine is open already");
            return Answer::Now(Err(error));
        }
        Answer::later(async move { opened.take(Need::Look).await.map(drop) })
    }

    fn describe(&self) -> Description {
        let facts = self.opened.get().and_then(|opened| opened.facts());
        describe::describe(&self.options, facts.as_ref())
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        let entry = opened.follow(claim, line);
        Answer::later(async move { opened.answer(&entry).await })
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(error) => return Answer::Now(vec![Standing::Gone(error); claims.len()]),
        };
        let claims = claims.to_vec();
        Answer::later(async move { opened.recheck(&claims).await })
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        match self.opened() {
            Ok(opened) => {
                let opened = opened.clone();
                Answer::later(async move { opened.leave(claim).await })
            }
            Err(_) => Answer::Now(End::NotOurs),
        }
    }

    fn convert(&self, _: HoldId, _: &Claim) -> Answer<Attempt> {
        let text = "advisory locks are not converted: use layout=table";
        Answer::Now(Attempt::Failed(Error::new(ErrorKind::Unsupported, text)))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(error) => return Answer::Now(vec![Renewal::Unknown(error); leases.len()]),
        };
        let leases = leases.to_vec();
        Answer::later(async move { opened.renew(&leases).await })
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(_) => {
                let ends = holds.iter().map(|_| End::NotOurs).collect();
                return Answer::Now(Released { ends, again: None });
            }
        };
        let (holds, again) = (holds.to_vec(), again.cloned());
        Answer::later(async move {
            let mut ends = Vec::with_capacity(holds.len());
            for hold in holds {
                ends.push(opened.leave(hold).await);
            }
            let again = match again {
                Some(claim) => Some(opened.answer(&opened.follow(&claim, Line::Join)).await),
                None => None,
            };
            Released { ends, again }
        })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(error) => return Answer::Now(Err(error)),
        };
        let query = query.clone();
        Answer::later(async move { opened.look(&query).await })
    }

    fn write(&self, _: &Change) -> Answer<Result<bool>> {
        Answer::Now(unsupported())
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        let opened = self.opened();
        Answer::Now(opened.map(|opened| Watches::begin(opened, watch, query.clone())))
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(opened) = self.opened() {
            opened.watches.end(watch);
        }
    }

    fn close(&self) -> Answer<()> {
        if let Ok(opened) = self.opened() {
            opened.watches.end_all();
            opened.close();
        }
        Answer::Now(())
    }
}

impl Opened {
    /// Proves the connections of these leases.
    async fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(leases.len());
        for lease in leases {
            let connection = {
                let state = self.state();
                // What one had that broke is told as lost already.
                let lost = |slot: &&Slot| slot.keys.is_empty() && slot.connection.is_over();
                let slot = state.slots.get(lease).filter(|slot| !lost(slot));
                slot.map(|slot| slot.connection.clone())
            };
            renewals.push(match connection {
                None => Renewal::Gone(Lost::SessionEnded),
                Some(connection) => match connection.prove(&self.context.clock).await {
                    Ok(since) => {
                        Renewal::Extended { ttl: self.options.session, since: Some(since) }
                    }
                    Err(broken) => Renewal::Unknown(broken.error),
                },
            });
        }
        renewals
    }

    /// Asks how claims stand: each connection with locks once, and once for all who wait.
    async fn recheck(self: &Arc<Self>, claims: &[ClaimId]) -> Vec<Standing> {
        let mut proven: BTreeMap<LeaseId, Renewal> = BTreeMap::new();
        let mut looked: Option<Result<Places>> = None;
        let mut standings = Vec::with_capacity(claims.len());
        for id in claims {
            let stand = self.known(*id).map(|entry| {
                let stand = entry.stand.borrow().clone();
                (stand, entry)
            });
            standings.push(match stand {
                Some((Stand::Held(on, ..), _)) => {
                    if !proven.contains_key(&on) {
                        proven.extend(self.renew(&[on]).await.pop().map(|renewal| (on, renewal)));
                    }
                    match proven.get(&on) {
                        Some(Renewal::Extended { since: Some(since), .. }) => {
                            Standing::Held(self.grant(on, *since))
                        }
                        Some(Renewal::Unknown(error)) => Standing::Unknown(error.clone()),
                        _ => gone(),
                    }
                }
                Some((Stand::InLine(_), entry)) => {
                    if looked.is_none() {
                        looked = Some(self.all_places().await);
                    }
                    match &looked {
                        Some(Ok(places)) => self.still_waits(&entry, places),
                        Some(Err(error)) => Standing::Unknown(error.clone()),
                        None => gone(),
                    }
                }
                Some((Stand::Asking | Stand::Releasing, _)) => {
                    let text = "it is being asked for";
                    Standing::Unknown(Error::new(ErrorKind::Unknown, text))
                }
                _ => gone(),
            });
        }
        standings
    }

    async fn all_places(self: &Arc<Self>) -> Result<Places> {
        let connection = self.take(Need::Look).await?;
        self.places(&connection, None).await.map_err(|broken| broken.error)
    }

    /// Whether the server has the claim in line.
    fn still_waits(&self, entry: &Arc<claims::Entry>, places: &Places) -> Standing {
        let id = entry.claim.id;
        if let Some(place) = places.of_claim(id) {
            entry.missed.store(0, Ordering::Release);
            return Standing::InLine(place);
        }
        if let Stand::Held(on, _, since) = &*entry.stand.borrow() {
            return Standing::Held(self.grant(*on, *since));
        }
        // Its answer is on its way, or was lost with the connection.
        if entry.missed.fetch_add(1, Ordering::AcqRel) > 0
            && let Some(connection) = self.connection_of(id)
        {
            connection.end();
        }
        let text = "the server has it neither in line nor told that it is granted";
        Standing::Unknown(Error::new(ErrorKind::Unknown, text))
    }
}

fn gone() -> Standing {
    Standing::Gone(Error::new(ErrorKind::Lost, "it is neither held nor in line"))
}
