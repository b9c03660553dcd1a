//! A process of its own that takes locks when it is told to, and that can be stopped and killed.
//!
//! One line a request, `NUMBER VERB ARGUMENT…`, answered by one line, `NUMBER WORD…`, in any order.
//! Names travel as hexadecimal digits, so that any name can.

mod client;
mod fork;
mod server;
mod words;

pub(super) use client::Turn;
pub use client::{Helper, HelperError};
pub(super) use server::occupy;
pub use server::serve;
