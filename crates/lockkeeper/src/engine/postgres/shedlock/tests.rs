//! The layout as a machine, and on a server beside ShedLock's own statements.

mod claims;
mod rows;
mod server;
