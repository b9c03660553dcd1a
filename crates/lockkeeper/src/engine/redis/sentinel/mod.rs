//! Redis with Sentinels: one server at a time, found anew before each connection.
//!
//! A Sentinel is a way to find the server, and no other way to keep a lock there: everything about
//! locks is done by the engine of one server, in any of its layouts, which is given the Sentinels.
//!
//! | file | what it is |
//! |---|---|
//! | `registration`, `options`, `name` | what the URL says |
//! | `wire` | one Sentinel: its connection, and what it says |
//! | `resolve`, `master` | all of them: who is asked when, and whom to believe |
//! | `inspect` | the clocks of the servers |
//! | `describe`, `errors` | what a failover costs and breaks, and why there is no master |

mod describe;
mod errors;
mod inspect;
mod master;
mod name;
mod options;
mod registration;
mod resolve;
mod wire;

#[cfg(test)]
mod tests;

use std::sync::Arc;

pub(crate) use registration::registration;

use resolve::Sentinels;

use crate::engine::redis::finder::Finder;
use crate::engine::redis::options::{Address, Resolve};
use crate::engine::{BoxFuture, Context};
use crate::words::error::Result;
use crate::words::guarantee::Description;

impl Finder for Sentinels {
    fn open(
        self: Arc<Self>,
        context: Context,
        connecting: BoxFuture<Result<()>>,
    ) -> BoxFuture<Result<()>> {
        self.start(&context);
        Box::pin(async move {
            let opened = connecting.await;
            match &opened {
                Ok(()) => context.spawner.spawn(self.clone().watch_clocks()),
                Err(_) => self.close(),
            }
            opened.map_err(|error| self.choosing(&error).unwrap_or(error))
        })
    }

    fn describe(&self, about: &mut Description) {
        describe::describe(self, about);
    }

    fn examine(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move { self.look_at_clocks().await })
    }

    fn close(&self) {
        self.closed.send_replace(true);
    }
}

impl Resolve for Sentinels {
    fn resolve(self: Arc<Self>) -> BoxFuture<Result<Address>> {
        Box::pin(self.find())
    }

    fn moved(&self, from: &Address) -> BoxFuture<String> {
        let moved = self.moved_from(from);
        Box::pin(async move { format!("the Sentinels moved the master to {}", moved.await) })
    }
}
