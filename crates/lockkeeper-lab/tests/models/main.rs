//! The machines of the library, searched exhaustively against models of what they talk to;
//! docs/models.md says what is in them and what is not. Each rule holds in every state that can be
//! reached, and each known flaw is found, with the way there.
//!
//! A program of its own: a search is worked on by itself, and is built without the rest of what is
//! long.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test panics when it fails"
)]

mod explore;
mod file;
mod line;
mod redis;
