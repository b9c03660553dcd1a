//! The rows of Redis: each beside a raw socket that sends the same bytes.

mod bystander;
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
        "many-names" => {
            let mut rows = rows::many_names(subject)?;
            for (clients, floor) in [
                ((1, 64), "PINGs of another client beside one with 64 names, to those alone"),
                ((4, 16), "PINGs of another client beside four with 16 names, to those alone"),
            ] {
                rows.push(bystander::bystander(subject, clients, floor)?);
            }
            Ok(rows)
        }
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
