//! The engine: one client of the world's server.

use std::time::Duration;

use lockkeeper::engine::*;
use lockkeeper::{Builder, Locks};

use super::network::World;
use super::server::{Asked, CLAIM_LEASE, Reply};

/// One client; hand it to [`Builder::with_engine`].
#[derive(Debug)]
pub struct Client {
    world: World,
    id: u64,
}

fn unknown() -> Error {
    Error::new(ErrorKind::Unknown, "the server did not answer in time")
}

fn gone() -> Error {
    Error::new(ErrorKind::Lost, "it is neither held nor in line")
}

fn attempt(id: ClaimId, reply: Reply) -> Attempt {
    match reply {
        Reply::Granted { number, left, confirm } => {
            let lease = Lease { id: LeaseId(id.0), ttl: left, since: None, confirm };
            Attempt::Granted(Grant { number: Number::Ours(number), lease: Some(lease) })
        }
        Reply::InLine(ahead) => Attempt::InLine(Place { ahead: Some(ahead), ..Place::default() }),
        Reply::Busy => Attempt::Busy(None),
        Reply::Gone => Attempt::Failed(gone()),
    }
}

impl Client {
    /// A fresh client.
    pub fn new(world: &World) -> Self {
        Self { world: world.clone(), id: world.join() }
    }

    /// Its number in the world.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Opens it on the world's stage.
    ///
    /// # Errors
    /// What opening gives.
    pub async fn open(self, builder: Builder) -> Result<Locks> {
        let stage = self.world.stage().clone();
        builder
            .clock(stage.clock().clone())
            .host(std::sync::Arc::new(stage))
            .with_engine(self)
            .await
    }

    fn asked(&self, claim: &Claim) -> Asked {
        Asked {
            id: claim.id,
            client: self.id,
            name: claim.name.clone(),
            mode: claim.mode,
            ttl: claim.ttl,
            not_after: self.world.not_after(self.id, claim.give_up),
        }
    }
}

impl Engine for Client {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        self.world.opened(self.id, context);
        Answer::Now(Ok(()))
    }

    fn describe(&self) -> Description {
        let mut about = Description::new("sim", "sim", Class::Timed);
        about.server = "a simulated server".to_owned();
        about.expiry = Expiry::PerHold { claim_lease: Some(CLAIM_LEASE) };
        about.recovery = Duration::from_secs(30);
        about.recovery_stopped = Some(about.recovery);
        about.can = about.can.without(&[
            Ability::Upgrade,
            Ability::Permits,
            Ability::Election,
            Ability::Latch,
            Ability::List,
            Ability::Force,
            Ability::Delay,
        ]);
        about.breaks.push("a simulated server that loses its data".to_owned());
        about
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let (asked, id) = (self.asked(claim), claim.id);
        let call =
            self.world.clone().call(self.id, move |server, now| server.attempt(now, &asked, line));
        Answer::later(async move {
            match call.await {
                // Refused on arrival: it may still be asked again, with a fresh time.
                Some(Reply::Gone) | None => Attempt::Unknown(unknown()),
                Some(reply) => attempt(id, reply),
            }
        })
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let claims = claims.to_vec();
        let asked = claims.clone();
        let call = self.world.clone().call(self.id, move |server, now| {
            asked.iter().map(|id| server.look(now, *id)).collect::<Vec<_>>()
        });
        Answer::later(async move {
            match call.await {
                Some(replies) => claims
                    .into_iter()
                    .zip(replies)
                    .map(|(id, reply)| attempt(id, reply).into())
                    .collect(),
                None => claims.iter().map(|_| Standing::Unknown(unknown())).collect(),
            }
        })
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let call = self.world.clone().call(self.id, move |server, now| server.remove(now, claim));
        Answer::later(async move { end(call.await) })
    }

    fn convert(&self, _: HoldId, _: &Claim) -> Answer<Attempt> {
        Answer::Now(Attempt::Failed(Error::new(
            ErrorKind::Unsupported,
            "this engine converts nothing",
        )))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let leases = leases.to_vec();
        let asked = leases.clone();
        let call = self.world.clone().call(self.id, move |server, now| {
            asked.iter().map(|id| server.renew(now, id.0)).collect::<Vec<_>>()
        });
        Answer::later(async move {
            match call.await {
                Some(renewed) => renewed
                    .into_iter()
                    .map(|ttl| {
                        ttl.map_or(Renewal::Gone(Lost::TakenAway), |ttl| Renewal::Extended {
                            ttl,
                            since: None,
                        })
                    })
                    .collect(),
                None => leases.iter().map(|_| Renewal::Unknown(unknown())).collect(),
            }
        })
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let (holds, asked) = (holds.to_vec(), again.map(|claim| self.asked(claim)));
        let (count, again) = (holds.len(), again.map(|claim| claim.id));
        let call = self.world.clone().call(self.id, move |server, now| {
            let ends: Vec<bool> = holds.iter().map(|hold| server.remove(now, *hold)).collect();
            let again = asked.as_ref().map(|asked| server.attempt(now, asked, Line::Join));
            (ends, again)
        });
        Answer::later(async move {
            let Some((ends, reply)) = call.await else {
                let ends = (0..count).map(|_| End::Unknown(unknown())).collect();
                return Released { ends, again: again.map(|_| Attempt::Unknown(unknown())) };
            };
            let again = again.zip(reply).map(|(id, reply)| match reply {
                Reply::Gone => Attempt::Unknown(unknown()),
                reply => attempt(id, reply),
            });
            Released { ends: ends.into_iter().map(|found| end(Some(found))).collect(), again }
        })
    }

    fn read(&self, _: &Query) -> Answer<Result<Vec<Entry>>> {
        Answer::Now(Ok(Vec::new()))
    }

    fn write(&self, _: &Change) -> Answer<Result<bool>> {
        Answer::Now(Err(Error::new(ErrorKind::Unsupported, "this engine keeps no values")))
    }

    fn watch(&self, _: WatchId, _: &Query) -> Answer<Result<()>> {
        Answer::Now(Err(Error::new(ErrorKind::Unsupported, "this engine watches nothing")))
    }

    fn unwatch(&self, _: WatchId) {}

    fn close(&self) -> Answer<()> {
        self.world.leave(self.id);
        Answer::Now(())
    }
}

fn end(found: Option<bool>) -> End {
    match found {
        Some(true) => End::Freed,
        Some(false) => End::NotOurs,
        None => End::Unknown(unknown()),
    }
}
