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
mod lean;
mod lent;
mod line;
mod many;
mod many_compared;
mod mutual;
mod names;
mod pipe;
mod recheck;
mod recipe;
mod redisson;
mod refusals;
mod releases;
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
