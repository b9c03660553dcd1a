//! Pure machines: no I/O, clock, randomness or hash order inside.
//!
//! Each takes the time and an event, and answers with actions; the [keeper](crate::keeper) runs
//! them in production, the lab runs the same code in simulation and in the model checker.

pub mod lease;
pub mod line;
pub mod margin;
pub(crate) mod table;
