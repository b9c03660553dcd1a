//! The requests that the engine sends.

use super::{Acl, Create, Shape, opcode};
use crate::engine::zookeeper::jute::Put;

/// Ids of what is no numbered request.
pub(in super::super) mod xid {
    pub(in super::super::super) const EVENT: i32 = -1;
    pub(in super::super::super) const PING: i32 = -2;
    pub(in super::super::super) const AUTH: i32 = -4;
}

/// One request. Paths are the server's, with the chroot in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Request {
    Create {
        path: String,
        data: Vec<u8>,
        acl: Vec<Acl>,
        how: Create,
    },
    Delete {
        path: String,
        version: i32,
    },
    Exists {
        path: String,
        watch: bool,
    },
    GetData {
        path: String,
        watch: bool,
    },
    SetData {
        path: String,
        data: Vec<u8>,
        version: i32,
    },
    GetChildren {
        path: String,
    },
    /// The children and the stat of the node itself.
    List {
        path: String,
    },
    /// The same, and tells once when children come or go.
    ListAndWatch {
        path: String,
    },
    Sync {
        path: String,
    },
    Check {
        path: String,
        version: i32,
    },
    /// All or nothing, in one transaction.
    Multi(Vec<Request>),
    /// Many reads in one message.
    MultiRead(Vec<Request>),
    /// This session's own ephemeral nodes whose paths start with `prefix`.
    GetEphemerals {
        prefix: String,
    },
    /// Tells of every node that is created, changed or deleted below the path, until removed.
    WatchBelow {
        path: String,
    },
    /// Ends the data watch of this connection.
    UnwatchData {
        path: String,
    },
    /// Ends every watch of this connection on the path.
    UnwatchAll {
        path: String,
    },
    Auth {
        scheme: String,
        credential: Vec<u8>,
    },
    Ping,
    Close,
}

impl Request {
    fn opcode(&self) -> i32 {
        match self {
            Self::Create { how, .. } => how.opcode(),
            Self::Delete { .. } => opcode::DELETE,
            Self::Exists { .. } => opcode::EXISTS,
            Self::GetData { .. } => opcode::GET_DATA,
            Self::SetData { .. } => opcode::SET_DATA,
            Self::GetChildren { .. } => opcode::GET_CHILDREN,
            Self::List { .. } | Self::ListAndWatch { .. } => opcode::LIST,
            Self::Sync { .. } => opcode::SYNC,
            Self::Check { .. } => opcode::CHECK,
            Self::Multi(_) => opcode::MULTI,
            Self::MultiRead(_) => opcode::MULTI_READ,
            Self::GetEphemerals { .. } => opcode::GET_EPHEMERALS,
            Self::WatchBelow { .. } => opcode::ADD_WATCH,
            Self::UnwatchData { .. } | Self::UnwatchAll { .. } => opcode::REMOVE_WATCHES,
            Self::Auth { .. } => opcode::AUTH,
            Self::Ping => opcode::PING,
            Self::Close => opcode::CLOSE,
        }
    }

    /// The node it is about; empty for what is about none or many.
    pub(in super::super) fn path(&self) -> &str {
        match self {
            Self::Create { path, .. }
            | Self::Delete { path, .. }
            | Self::Exists { path, .. }
            | Self::GetData { path, .. }
            | Self::SetData { path, .. }
            | Self::GetChildren { path }
            | Self::List { path }
            | Self::ListAndWatch { path }
            | Self::Sync { path }
            | Self::Check { path, .. }
            | Self::WatchBelow { path }
            | Self::UnwatchData { path }
            | Self::UnwatchAll { path } => path,
            Self::Multi(_)
            | Self::MultiRead(_)
            | Self::GetEphemerals { .. }
            | Self::Auth { .. }
            | Self::Ping
            | Self::Close => "",
        }
    }

    /// Whether it goes through the quorum, so that its answer comes from a leader that was one.
    pub(in super::super) fn is_write(&self) -> bool {
        matches!(
            self,
            Self::Create { .. } | Self::Delete { .. } | Self::SetData { .. } | Self::Multi(_)
        )
    }

    /// What the reply will look like.
    pub(in super::super) fn shape(&self) -> Shape {
        match self {
            Self::Create { .. } => Shape::Created,
            Self::Exists { .. } | Self::SetData { .. } => Shape::Stat,
            Self::GetData { .. } => Shape::Data,
            Self::GetChildren { .. } => Shape::Children,
            Self::List { .. } | Self::ListAndWatch { .. } => Shape::Listing,
            Self::Multi(_) | Self::MultiRead(_) => Shape::Many,
            Self::GetEphemerals { .. } => Shape::Children,
            _ => Shape::Nothing,
        }
    }

    /// Appends the framed request.
    pub(in super::super) fn write(&self, xid: i32, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_i32(0);
        out.put_i32(xid);
        out.put_i32(self.opcode());
        self.body(out);
        let length = i32::try_from(out.len() - start - 4).unwrap_or(i32::MAX);
        if let Some(prefix) = out.get_mut(start..start + 4) {
            prefix.copy_from_slice(&length.to_be_bytes());
        }
    }

    fn body(&self, out: &mut Vec<u8>) {
        match self {
            Self::Create { path, data, acl, how } => {
                out.put_str(path);
                out.put_bytes(data);
                out.put_i32(i32::try_from(acl.len()).unwrap_or(i32::MAX));
                for entry in acl {
                    out.put_i32(entry.perms);
                    out.put_str(&entry.scheme);
                    out.put_str(&entry.id);
                }
                out.put_i32(how.flags());
            }
            Self::Delete { path, version } | Self::Check { path, version } => {
                out.put_str(path);
                out.put_i32(*version);
            }
            Self::Exists { path, watch } | Self::GetData { path, watch } => {
                out.put_str(path);
                out.put_bool(*watch);
            }
            Self::SetData { path, data, version } => {
                out.put_str(path);
                out.put_bytes(data);
                out.put_i32(*version);
            }
            Self::GetChildren { path } | Self::List { path } => {
                out.put_str(path);
                out.put_bool(false);
            }
            Self::ListAndWatch { path } => {
                out.put_str(path);
                out.put_bool(true);
            }
            Self::Sync { path } | Self::GetEphemerals { prefix: path } => out.put_str(path),
            Self::Multi(all) | Self::MultiRead(all) => {
                for one in all {
                    out.put_i32(one.opcode());
                    out.put_bool(false);
                    out.put_i32(-1);
                    one.body(out);
                }
                out.put_i32(-1);
                out.put_bool(true);
                out.put_i32(-1);
            }
            Self::WatchBelow { path } => {
                out.put_str(path);
                out.put_i32(1);
            }
            Self::UnwatchData { path } => {
                out.put_str(path);
                out.put_i32(2);
            }
            Self::UnwatchAll { path } => {
                out.put_str(path);
                out.put_i32(3);
            }
            Self::Auth { scheme, credential } => {
                out.put_i32(0);
                out.put_str(scheme);
                out.put_bytes(credential);
            }
            Self::Ping | Self::Close => {}
        }
    }
}
