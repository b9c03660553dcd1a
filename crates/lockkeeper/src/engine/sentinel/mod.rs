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

use crate::engine::redis::options::RedisOptions;
use crate::engine::redis::relay::server_does_the_rest;
use crate::engine::{
    Answer, Attempt, Change, Context, End, Engine, Inlet, Line, Query, Released, Renewal, Standing,
    WatchId, redis,
};
use crate::words::claim::{Claim, Entry};
use crate::words::error::Result;
use crate::words::guarantee::{Description, Warning};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::{Kind, Name};

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
                Ok(()) => spawner.spawn(sentinels.clone().watch_clocks()),
                Err(_) => sentinels.close(),
            }
            opened.map_err(|error| sentinels.choosing(&error).unwrap_or(error))
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

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        self.server.attempt_all(claims)
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let (clearing, sentinels) = (self.server.clear_probe(name), self.sentinels.clone());
        Answer::later(async move {
            // Who examines it has the time to look at the clocks.
            sentinels.look_at_clocks().await;
            clearing.get().await
        })
    }

    server_does_the_rest!();
}
