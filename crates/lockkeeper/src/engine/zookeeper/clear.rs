//! Removes the directories that a probe has made, and everything of a measurement.

use super::inspect::{ask, failed};
use super::name;
use super::proto::{Code, Reply, Request};
use super::session::Shared;
use super::state::Fault;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::Name;

/// How much older than the probe's own directory one above it may be and still be the probe's.
const MADE_WITHIN_MS: i64 = 2_000;
/// What the server gives a container node as its owner.
const CONTAINER: i64 = i64::MIN;

/// Deletes the directory of a name that nobody uses, and those above it that were made for it and
/// are empty.
pub(super) async fn clear(shared: &Shared, name: &Name) -> Result<()> {
    let own = name::directory(&shared.options.chroot, &shared.options.layout, name)?;
    let mut path = own.clone();
    let mut made_at = None;
    while path.len() > shared.options.chroot.len() + 1 {
        let stat = match ask(shared, Request::GetData { path: path.clone(), watch: false }).await {
            Ok(Reply::Data(_, stat)) => stat,
            Err(Fault::Code(Code::NO_NODE)) | Ok(_) => return Ok(()),
            // Locks need no right there.
            Err(Fault::Code(Code::NO_AUTH)) if path != own => return Ok(()),
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
            Err(Fault::Code(Code::NO_AUTH)) if path != own => return Ok(()),
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
        path.truncate(path.rfind('/').unwrap_or(0));
    }
    Ok(())
}

/// How often nodes that appear meanwhile are deleted, too.
const SWEPT_AGAIN_MAX: u32 = 1_000;

/// Deletes a directory and everything below it, whoever made it; answers whether it was there.
pub(super) async fn sweep(shared: &Shared, top: String) -> Result<bool> {
    let (mut found, mut again) = (false, 0);
    let mut paths = vec![top];
    while let Some(path) = paths.last().cloned() {
        match ask(shared, Request::Delete { path: path.clone(), version: -1 }).await {
            Ok(_) => {
                found = true;
                paths.pop();
            }
            // Sent twice, or gone with its session.
            Err(Fault::Code(Code::NO_NODE)) => _ = paths.pop(),
            Err(Fault::Code(Code::NOT_EMPTY)) if again < SWEPT_AGAIN_MAX => {
                again += 1;
                match ask(shared, Request::GetChildren { path: path.clone() }).await {
                    Ok(Reply::Children(names)) => {
                        paths.extend(names.into_iter().map(|name| format!("{path}/{name}")))
                    }
                    Ok(_) => {
                        return Err(Error::new(
                            ErrorKind::Corrupt,
                            "children were asked for, and something else was answered",
                        ));
                    }
                    Err(Fault::Code(Code::NO_NODE)) => {}
                    Err(fault) => return Err(failed(shared, fault, &path)),
                }
            }
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Ok(found)
}
