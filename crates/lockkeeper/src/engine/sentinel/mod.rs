//! Redis with Sentinels: one server at a time, found anew before each connection.
//!
//! A Sentinel is a way to find the server, and no other way to keep a lock there: everything about
//! locks is done by the engine of one server, in any of its layouts.
//!
//! | file | what it is |
//! |---|---|
//! | `registration`, `options`, `name` | what the URL says |
//! | `wire` | one Sentinel: its connection, and what it says |
//! | `resolve` | all of them: whom to believe, and who hears that the master moved |
//! | `inspect` | the clocks of the servers |
//! | `describe`, `errors` | what a failover costs and breaks, and why there is no master |

mod describe;
mod errors;
mod inspect;
mod name;
mod options;
mod registration;
mod resolve;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use registration::registration;

use options::SentinelOptions;
use resolve::{Resolver, Sentinels};

use crate::claim::{Claim, Entry};
use crate::engine::redis::options::RedisOptions;
use crate::engine::{
    Answer, Attempt, Change, Context, End, Engine, Inlet, Line, Query, Released, Renewal, Standing,
    WatchId, redis,
};
use crate::error::Result;
use crate::guarantee::{Description, Warning};
use crate::id::{ClaimId, HoldId, LeaseId};
use crate::name::{Kind, Name};

/// The engine of one server, whose address the Sentinels say.
pub(crate) struct Sentinel {
    sentinels: Arc<Sentinels>,
    server: Box<dyn Engine>,
}

impl Sentinel {
    fn new(options: SentinelOptions) -> Self {
        let sentinels = Sentinels::new(Arc::new(options));
        let resolve = Resolver(sentinels.clone());
        let master = &sentinels.options.master;
        let master = RedisOptions { resolve: Some(Arc::new(resolve)), ..master.clone() };
        Self { server: redis::connect(master), sentinels }
    }
}

impl Engine for Sentinel {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        self.sentinels.start(&context);
        let spawner = context.spawner.clone();
        let (opening, sentinels) = (self.server.open(context), self.sentinels.clone());
        Answer::later(async move {
            let opened = opening.get().await;
            match &opened {
                Ok(()) => spawner.spawn(sentinels.watch_clocks()),
                Err(_) => sentinels.close(),
            }
            opened
        })
    }

    fn describe(&self) -> Description {
        self.description()
    }

    fn close(&self) -> Answer<()> {
        let (closing, sentinels) = (self.server.close(), self.sentinels.clone());
        Answer::later(async move {
            closing.get().await;
            sentinels.close();
        })
    }

    // What follows is the server's.

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.server.attempt(claim, line)
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        self.server.attempt_all(claims)
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        self.server.recheck(claims)
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.server.withdraw(claim)
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        self.server.convert(hold, claim)
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        self.server.renew(leases)
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.server.release(holds, again)
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        self.server.read(query)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        self.server.write(change)
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        self.server.watch(watch, query)
    }

    fn unwatch(&self, watch: WatchId) {
        self.server.unwatch(watch);
    }

    fn ask(&self, kind: Kind, name: &Name) -> Answer<Result<bool>> {
        self.server.ask(kind, name)
    }

    fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.server.other_layouts(name)
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let (clearing, sentinels) = (self.server.clear_probe(name), self.sentinels.clone());
        Answer::later(async move {
            // Who examines it has the time to look at the clocks.
            sentinels.look_at_clocks().await;
            clearing.get().await
        })
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        self.server.sweep(word)
    }

    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        self.server.inlet()
    }
}
