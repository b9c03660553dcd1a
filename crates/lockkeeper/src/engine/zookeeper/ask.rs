//! Asking holders to let go: Curator's word is written into their nodes, which they watch.

use super::claims::REVOKE;
use super::inspect::{ask, failed, holding};
use super::proto::{Code, Request};
use super::session::Shared;
use super::state::Fault;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::{Kind, Name};

/// Answers whether somebody was asked. What a candidate's node says is its id, and a permit's
/// holder is not told: they are not asked.
pub(super) async fn ask_holders(shared: &Shared, kind: Kind, name: &Name) -> Result<bool> {
    if kind != Kind::Lock {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "only the holder of a lock can be asked to let go",
        )
        .name(name));
    }
    let mut asked = false;
    for (path, _) in holding(shared, kind, name).await? {
        match ask(
            shared,
            Request::SetData { path: path.clone(), data: REVOKE.to_vec(), version: -1 },
        )
        .await
        {
            Ok(_) => asked = true,
            Err(Fault::Code(Code::NO_NODE)) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Ok(asked)
}
