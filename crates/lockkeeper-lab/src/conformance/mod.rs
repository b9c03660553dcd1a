//! The conformance suite: what every engine and every layout must keep, unchanged.
//!
//! A [`Subject`] says how a store of one engine is opened, and what can be done to it: a fresh
//! client, another process, wiping it, restarting it, cutting it off. A [`Case`] is one rule, by
//! name; it takes any subject. [`run`] runs one case, [`run_all`] all of them and gives a
//! [`Report`], and the macro [`conformance!`](crate::conformance!) makes a `#[test]` of each, so
//! that a row of the matrix is one line:
//!
//! ```no_run
//! # mod rows {
//! use lockkeeper_lab::conformance::Subject;
//!
//! lockkeeper_lab::conformance!(memory, Subject::memory());
//! # }
//! ```
//!
//! An engine of your own is a row too:
//! `Subject::of("mine", move |builder| Box::pin(builder.with_engine(Mine::new(&store))))`.
//!
//! It runs from a crate of your own, outside of this workspace: CONTRIBUTING.md shows the three
//! files. Rows that stand in one module stand in one call:
//! `conformance! { mine => …, yours => … }`.
//!
//! What an engine says it cannot do is not asked of it: the suite makes sure that it answers
//! `Unsupported`, and reports the case as not capable, with the word for what is missing. An engine
//! whose `Can` has no `list` may answer so to a look at a single lock, too; then waits are not
//! observed, but given 150 ms to begin.
//!
//! A case that does not end within five minutes is broken, as its report says, and the next one
//! runs.

mod ask;
mod awaited;
mod case;
mod cases;
mod grip;
mod helper;
mod need;
mod occupancy;
mod quiet;
mod report;
mod subject;
mod trial;

pub use case::{Case, Outcome, case, cases, check, run};
pub use helper::{Helper, HelperError, serve};
pub use need::Need;
pub use occupancy::Occupancy;
pub use report::{Report, run_all};
pub use subject::{Opening, Subject};
pub use trial::Trial;
