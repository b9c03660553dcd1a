//! The rows of a cluster: an uncontended acquire on one of its shards beside one on a server alone.

use lockkeeper::Locks;
use lockkeeper_testkit::redis::server::RedisServer;

use crate::bench::measure::{Row, pairs};
use crate::bench::uncontended::{self, cycles};
use crate::bench::{Subject, general, text};
use crate::engines::own::with_options;

/// Few, so that both often take their turns: what else runs here is in the way of both.
const BATCH: u32 = 32;

/// Measures a row.
pub(super) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        // A server of our own says nothing about a cluster that somebody has given.
        "uncontended" if subject.is_on_its_own() => uncontended(subject),
        _ => general(subject, name),
    }
}

/// Beside the lock of the runtime's own, and beside a server that is no node, of the same program.
fn uncontended(subject: &Subject) -> Result<Vec<Row>, String> {
    let server = RedisServer::try_start_below(&subject.scratch, &[], &[])?;
    let options = subject.url.split_once('?').map_or("", |(_, options)| options);
    let url = with_options(&server.url(), options);
    let alone = subject.runtime.block_on(Locks::open(&url)).map_err(text)?;
    let name = subject.name("uncontended");
    let (here, there) = (subject.locks.mutex(&name), alone.mutex(&name));
    let ours = |batch| subject.runtime.block_on(cycles(&here, batch));
    let floor = |batch| subject.runtime.block_on(cycles(&there, batch));
    let measured = pairs(subject.time / 2, BATCH, ours, floor)?;
    let closed = subject.runtime.block_on(alone.close());
    if !closed.unknown.is_empty() {
        return Err(format!("what was released is not known: {:?}", closed.unknown));
    }
    let row = subject.row("uncontended", 1).measured(&measured);
    let mut rows = vec![row.beside("the same on one server that is no node", "≤ 1.11")];
    rows.extend(uncontended::uncontended(subject, subject.time / 2)?);
    Ok(rows)
}
