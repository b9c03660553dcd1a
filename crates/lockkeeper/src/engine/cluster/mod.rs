//! Redis Cluster: the names are in slots, the slots at its nodes.
//!
//! Everything about locks is done by the engine of one server, in any of its layouts: every script
//! is about one name, and its keys are in one slot. What is here knows which node has it; the
//! connections to the nodes (`engine/redis/client/nodes.rs`) send each script there, and to another
//! node where one says so.
//!
//! | file | what it is |
//! |---|---|
//! | `registration`, `options` | what the URL says |
//! | `wire` | what one node says about all |
//! | `map`, `older` | whom to ask for it, when, and whom to believe |
//! | `describe`, `errors` | what a cluster promises, what breaks it, and why it cannot be used |

mod describe;
mod errors;
mod map;
mod older;
mod options;
mod registration;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use registration::registration;

use map::Map;
use options::ClusterOptions;

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

/// The engine of one server, whose keys are at many.
pub(crate) struct Cluster {
    map: Arc<Map>,
    server: Box<dyn Engine>,
}

impl Cluster {
    fn new(options: ClusterOptions) -> Self {
        let map = Map::new(options);
        let node = RedisOptions { slots: Some(map.slots.clone()), ..map.options.node.clone() };
        Self { server: redis::connect(node), map }
    }
}

impl Engine for Cluster {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let (map, spawner) = (self.map.clone(), context.spawner.clone());
        let (find, keep) = (map.clone(), map.clone());
        // Nothing is sent before the map is there: an engine has to be opened here.
        let opening = self.server.open(context.clone());
        Answer::later(async move {
            find.find(&context).await?;
            opening.get().await?;
            spawner.spawn(keep.keep(context));
            Ok(())
        })
    }

    fn describe(&self) -> Description {
        self.description()
    }

    fn close(&self) -> Answer<()> {
        let (closing, map) = (self.server.close(), self.map.clone());
        Answer::later(async move {
            closing.get().await;
            map.close();
        })
    }

    fn part(&self, claim: ClaimId) -> u32 {
        self.server.part(claim)
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        self.server.clear_probe(name)
    }

    server_does_the_rest!();
}
