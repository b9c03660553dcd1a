//! What a holder writes into ZooKeeper: in one transaction with the check that its node is there.
//!
//! The node's name is nobody else's, so its existence is the hold: no clock and no delay can make
//! it true for two.

use super::errors;
use super::inspect::{ask, failed};
use super::name;
use super::proto::{Code, Create, Reply, Request};
use super::recipe::Input;
use super::session::Shared;
use super::state::Fault;
use crate::engine::Write;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::HoldId;

/// How much may be written at once: servers close the connection on a request of more than 1 MB,
/// and all holds are on it.
const BYTES_MAX: usize = 1_000_000;
/// What one write takes besides its path and its data, at most.
const OVERHEAD: usize = 64;

/// The writes as requests; nothing is sent.
pub(super) fn requests(shared: &Shared, writes: &[Write]) -> Result<Vec<Request>> {
    let size: usize = writes
        .iter()
        .map(|write| {
            write.path().len() + shared.options.chroot.len() + data(write).len() + OVERHEAD
        })
        .sum();
    if size > BYTES_MAX {
        let text =
            format!("write() takes {BYTES_MAX} bytes at most on ZooKeeper, and {size} were given");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    let request = |write: &Write| {
        let path = name::of_data(&shared.options, write.path())?;
        Ok(match write {
            Write::Create { data, .. } => Request::Create {
                path,
                data: data.clone(),
                acl: shared.options.acl.clone(),
                how: Create::Persistent,
            },
            Write::Put { data, .. } => Request::SetData { path, data: data.clone(), version: -1 },
            Write::Delete { .. } => Request::Delete { path, version: -1 },
        })
    };
    writes.iter().map(request).collect()
}

fn data(write: &Write) -> &[u8] {
    match write {
        Write::Create { data, .. } | Write::Put { data, .. } => data,
        Write::Delete { .. } => &[],
    }
}

/// Carries them out, if the hold is there.
pub(super) async fn commit(shared: &Shared, hold: HoldId, requests: Vec<Request>) -> Result<()> {
    let (dir, nodes) = match shared.lock().claims.get(&hold) {
        Some(entry) => (
            entry.dir.clone(),
            entry.machine.rests_on().into_iter().map(str::to_owned).collect::<Vec<_>>(),
        ),
        None => (String::new(), Vec::new()),
    };
    if nodes.is_empty() {
        return Err(lost());
    }
    let paths: Vec<String> = requests.iter().map(|request| request.path().to_owned()).collect();
    let checks =
        nodes.iter().map(|name| Request::Check { path: format!("{dir}/{name}"), version: -1 });
    let replies = match ask(shared, Request::Multi(checks.chain(requests).collect())).await {
        Ok(Reply::Many(replies)) => replies,
        Ok(_) => return Err(errors::unanswered()),
        Err(Fault::Lost) => return Err(errors::unanswered()),
        Err(fault) => return Err(failed(shared, fault, &dir)),
    };
    // What hindered one hindered all; those beside it say less.
    let hindered = replies.iter().enumerate().find_map(|(at, reply)| match reply {
        Err(code) if *code != Code(0) && *code != Code::RUNTIME_INCONSISTENCY => Some((at, *code)),
        _ => None,
    });
    let Some((at, code)) = hindered else { return Ok(()) };
    if let Some(name) = nodes.get(at) {
        if code == Code::NO_NODE {
            shared.lock().step(hold, Input::Own(name.clone(), Err(Code::NO_NODE)));
            return Err(lost());
        }
        return Err(errors::refused(code, &dir));
    }
    let path = paths.get(at - nodes.len()).map_or("", String::as_str);
    let text = match code {
        Code::NO_NODE => format!("there is no node {path}, or none above it: create it first"),
        Code::NODE_EXISTS => format!("there is a node {path} already: put replaces what it says"),
        Code::NOT_EMPTY => format!("{path} has children and cannot be deleted"),
        code => errors::refused(code, path).message().to_owned(),
    };
    Err(Error::new(ErrorKind::Refused, format!("nothing was written: {text}")))
}

fn lost() -> Error {
    Error::new(ErrorKind::Lost, "the lock's node no longer exists, and nothing was written")
}
