//! Removes the directories that a probe has made.

use super::path;
use super::proto::{Code, Reply, Request};
use super::read::{ask, failed};
use super::session::Shared;
use super::state::Fault;
use crate::error::Result;
use crate::name::Name;

/// How much older than the probe's own directory one above it may be and still be the probe's.
const MADE_WITHIN_MS: i64 = 2_000;
/// What the server gives a container node as its owner.
const CONTAINER: i64 = i64::MIN;

/// Deletes the directory of a name that nobody uses, and those above it that were made for it and are empty.
pub(super) async fn clear(shared: &Shared, name: &Name) -> Result<()> {
    let mut path = path::directory(&shared.options.chroot, &shared.options.layout, name)?;
    let mut made_at = None;
    while path.len() > shared.options.chroot.len() + 1 {
        let stat = match ask(shared, Request::GetData { path: path.clone(), watch: false }).await {
            Ok(Reply::Data(_, stat)) => stat,
            Err(Fault::Code(Code::NO_NODE)) | Ok(_) => return Ok(()),
            Err(fault) => return Err(failed(shared, fault, &path)),
        };
        let made = *made_at.get_or_insert(stat.ctime_ms);
        // Somebody's own directory stays, empty or not.
        if stat.ephemeral_owner != CONTAINER && stat.ctime_ms < made - MADE_WITHIN_MS {
            return Ok(());
        }
        match ask(shared, Request::Delete { path: path.clone(), version: -1 }).await {
            Ok(_) | Err(Fault::Code(Code::NO_NODE)) => {}
            Err(Fault::Code(Code::NOT_EMPTY)) => return Ok(()),
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
        path.truncate(path.rfind('/').unwrap_or(0));
    }
    Ok(())
}
