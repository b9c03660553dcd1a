//! `run`, `acquire` and `elect` on engines with leases.

mod acquire_and_elect;
mod clock_step;
mod command;
mod margins;
mod nested;
mod unreachable;
mod waiting;
