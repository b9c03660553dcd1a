//! The floors on PostgreSQL: the same writes by a plain client, on connections of its own.

mod bare;
mod bystander;
mod handoff;
mod rows;
mod version;

pub(super) use bystander::{HELPER, serve};

use crate::bench::{Row, Subject, contended, general, handoff as processes};
use bare::Layout;

/// Measures a row.
pub(super) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    let layout = Layout::of(&subject.url);
    match (name, layout) {
        ("uncontended", _) => rows::uncontended(subject, layout),
        ("many-names", _) => rows::many_names(subject, layout),
        ("one-name", Layout::Table) => {
            let mut rows = contended::one_name(subject)?;
            rows.push(version::one_row(subject)?);
            Ok(rows)
        }
        ("process-handoff", Layout::Table) => {
            let mut rows = vec![handoff::process_handoff(subject)?];
            if subject.is_on_its_own() {
                rows.push(bystander::bystander(subject)?);
            }
            Ok(rows)
        }
        ("process-handoff", _) => processes::process_handoff(subject, "-"),
        _ => general(subject, name),
    }
}
