//! What the databases share: who is granted, and what is written down about it. Pure.
//!
//! | file | what it is |
//! |---|---|
//! | `record` | a name's row and its places in line, read and written |
//! | `line` | the line of a name moves: what is over ends, and the next are granted |
//! | `ask` | asking, converting, renewing, giving back, taking away, limits and latches |
//! | `claims` | the claims of one process: what to ask, and what an answer or a push means |
//! | `push` | the words that one process sends to another |
//!
//! A name is one row. Whoever changes more than one statement can read it, decides here, and writes
//! only if its version is still the one that was read: the optimistic lock. A dialect has the
//! statements and the wire. All times are microseconds of the server's clock.

pub(in crate::engine) mod ask;
pub(in crate::engine) mod claims;
pub(in crate::engine) mod line;
pub(in crate::engine) mod push;
pub(in crate::engine) mod record;

#[cfg(test)]
mod tests;
