//! Who finds what the engine connects to where a URL does not name it: Sentinels, or some nodes of
//! a cluster.

use std::sync::Arc;

use crate::engine::{BoxFuture, Context};
use crate::words::error::Result;
use crate::words::guarantee::Description;

/// What a server found in this way needs beside the engine of one server, which does all the rest.
pub(super) trait Finder: Send + Sync {
    /// Does what has to be done before and after `connecting`.
    ///
    /// # Errors
    /// Those of `connecting`; nobody says where to connect.
    fn open(
        self: Arc<Self>,
        context: Context,
        connecting: BoxFuture<Result<()>>,
    ) -> BoxFuture<Result<()>>;

    /// Changes what a server says of itself into what is promised where it may move.
    fn describe(&self, about: &mut Description);

    /// Looks at what only somebody who examines the engine has the time for.
    fn examine(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async {})
    }

    /// Nothing is connected any more, nor will be.
    fn close(&self);
}
