//! The checker: what it must convict, what it must let pass, and that it agrees with exhaustive
//! search.

mod deaths;
mod files;
mod generate;
mod leases;
mod line;
mod moments;
mod planted;
mod recordings;
mod recovery;
mod refusals;
mod reports;
mod resource;
mod search;
mod searched;
mod sharing;
mod skew;
mod story;
mod tokens;
mod tries;
mod unjudged;
mod words;
