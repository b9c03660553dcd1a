//! The rows of Redis: each beside a raw socket that sends the same bytes.

mod crowd;
mod handoff;
pub(crate) mod learn;
mod leases;
pub(crate) mod raw;
mod rows;

pub(crate) use handoff::{HELPER, serve};

use crate::bench::measure::Row;
use crate::bench::{Subject, contended, general};

/// Measures a row.
pub(crate) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        "uncontended" => rows::uncontended(subject),
        "many-names" => rows::many_names(subject),
        "one-name" => {
            let mut rows = contended::one_name(subject)?;
            rows.push(handoff::two_processes(subject)?);
            Ok(rows)
        }
        "process-handoff" => handoff::process_handoff(subject),
        "places" => crowd::places(subject),
        "leases" => leases::leases(subject),
        _ => general(subject, name),
    }
}
