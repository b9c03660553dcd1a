//! Redis Cluster: the names are in slots, the slots at its nodes.
//!
//! Everything about locks is done by the engine of one server, in any of its layouts: every script
//! is about one name, and its keys are in one slot. What is here, and given to that engine, knows
//! which node has it; the connections to the nodes (`engine/redis/client/nodes.rs`) send each
//! script there, and to another node where one says so.
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

use crate::engine::redis::finder::Finder;
use crate::engine::{BoxFuture, Context};
use crate::words::error::Result;
use crate::words::guarantee::Description;

impl Finder for Map {
    fn open(
        self: Arc<Self>,
        context: Context,
        connecting: BoxFuture<Result<()>>,
    ) -> BoxFuture<Result<()>> {
        Box::pin(async move {
            // Nothing is sent before the map is there.
            self.find(&context).await?;
            connecting.await?;
            context.spawner.clone().spawn(self.keep(context));
            Ok(())
        })
    }

    fn describe(&self, about: &mut Description) {
        describe::describe(self, about);
    }

    fn close(&self) {
        self.closed.send_replace(true);
    }
}
