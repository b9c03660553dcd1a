//! The engine against a real server.

mod asker;
mod faults;
mod fenced;
mod keeper;
mod leavers;
mod line;
mod mutex;
mod others;
mod pipe;
mod recipe;
mod redisson;
mod refusals;
mod resolve;
mod shared_layouts;
mod slots;
pub(in crate::engine) mod support;
mod watching;

use lockkeeper_lab::engines::redis::server;
use lockkeeper_lab::proxy;
