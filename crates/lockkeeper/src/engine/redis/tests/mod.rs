//! The engine against a real server.

#[path = "../../../../../lockkeeper-lab/src/servers/redis.rs"]
#[allow(dead_code, reason = "the lab's module; each test uses some of it")]
mod server;

#[path = "../../../../../lockkeeper-lab/src/proxy.rs"]
#[allow(dead_code, reason = "the lab's module; each test uses some of it")]
mod proxy;

mod faults;
mod fenced;
mod keeper;
mod leavers;
mod line;
mod mutex;
mod others;
mod pipe;
mod recipe;
mod refusals;
mod shared_layouts;
mod support;
