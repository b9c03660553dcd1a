//! The engine against real servers.

mod faults;
mod mutual;
mod refusals;
mod support;
mod tokens;
