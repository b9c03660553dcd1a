//! The engine against a real server.

mod asker;
mod cancel;
mod convert;
mod dead_waiters;
mod faults;
mod fenced;
mod interop;
mod keeper;
mod late_answers;
mod layouts;
pub(in crate::engine) mod lean;
mod lent;
mod line;
pub(in crate::engine) mod many;
mod many_compared;
mod mutual;
mod names;
pub(in crate::engine) mod pipe;
mod recheck;
mod recipe;
mod redisson;
mod refusals;
pub(in crate::engine) mod releases;
mod releases_tls;
mod resolve;
mod server_time;
mod shared;
mod slots;
mod standing_back;
#[cfg_attr(
    not(all(feature = "cluster", feature = "redlock", feature = "sentinel")),
    allow(dead_code, reason = "tests of other engines use it, too")
)]
pub(in crate::engine) mod support;
mod tls;
mod watch;
mod written;

use lockkeeper_testkit::proxy;
use lockkeeper_testkit::redis::server;
