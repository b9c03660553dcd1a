//! A fake engine with leases, a clock of its own and a bad network, under time that a test moves:
//! what happens to a lock when requests and replies are lost, doubled and late, links go down and
//! servers lose their data.
//!
//! Everything runs on one [`Stage`]: an executor that rolls who goes next from a seed, with virtual
//! time. A schedule takes no wall time, and its seed replays it.

mod client;
mod network;
mod server;
mod stage;

pub use client::Client;
pub use network::{Faults, World};
pub use server::{History, Server};
pub use stage::Stage;
