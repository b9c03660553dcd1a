//! The engine against real servers.

mod admit;
mod awaited;
mod company;
mod defaults;
mod fair;
mod faults;
mod forgets;
mod handoff;
mod interop;
mod late;
mod lend;
mod line;
mod many;
mod minority;
mod mutual;
mod names;
mod plain;
#[cfg(feature = "test-util")]
mod progress;
mod redisson;
mod refusals;
mod set_back;
mod shared;
mod support;
mod tokens;
mod tries;
