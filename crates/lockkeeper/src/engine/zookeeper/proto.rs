//! The requests that the engine sends and the replies that it understands.

use super::jute::{Malformed, Put, Reader};

/// What the server answered instead of doing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Code(pub(super) i32);

impl Code {
    pub(super) const RUNTIME_INCONSISTENCY: Self = Self(-2);
    pub(super) const UNIMPLEMENTED: Self = Self(-6);
    pub(super) const BAD_ARGUMENTS: Self = Self(-8);
    pub(super) const NO_NODE: Self = Self(-101);
    pub(super) const NO_AUTH: Self = Self(-102);
    pub(super) const BAD_VERSION: Self = Self(-103);
    pub(super) const NO_CHILDREN_FOR_EPHEMERALS: Self = Self(-108);
    pub(super) const NODE_EXISTS: Self = Self(-110);
    pub(super) const NOT_EMPTY: Self = Self(-111);
    pub(super) const SESSION_EXPIRED: Self = Self(-112);
    pub(super) const INVALID_ACL: Self = Self(-114);
    pub(super) const AUTH_FAILED: Self = Self(-115);
    pub(super) const SESSION_MOVED: Self = Self(-118);
    pub(super) const NEEDS_SASL: Self = Self(-124);
    pub(super) const QUOTA_EXCEEDED: Self = Self(-125);
    pub(super) const THROTTLED: Self = Self(-127);

    /// The name that ZooKeeper's documentation uses.
    pub(super) fn word(self) -> &'static str {
        match self.0 {
            -1 => "SystemError",
            -2 => "RuntimeInconsistency",
            -3 => "DataInconsistency",
            -5 => "MarshallingError",
            -6 => "Unimplemented",
            -7 => "OperationTimeout",
            -8 => "BadArguments",
            -101 => "NoNode",
            -102 => "NoAuth",
            -103 => "BadVersion",
            -108 => "NoChildrenForEphemerals",
            -110 => "NodeExists",
            -111 => "NotEmpty",
            -112 => "SessionExpired",
            -114 => "InvalidACL",
            -115 => "AuthFailed",
            -118 => "SessionMoved",
            -119 => "NotReadOnly",
            -121 => "NoWatcher",
            -124 => "SessionClosedRequireSaslAuth",
            -125 => "QuotaExceeded",
            -127 => "ThrottledOp",
            _ => "an unknown error",
        }
    }
}

/// What ZooKeeper keeps about a node, as far as the recipes need it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Stat {
    /// The transaction that created the node.
    pub(super) czxid: i64,
    /// The transaction that last changed its data.
    pub(super) mzxid: i64,
    /// Server time of its creation, in milliseconds since 1970.
    pub(super) ctime_ms: i64,
    /// How often its data was changed.
    pub(super) version: i32,
    /// How often its children changed.
    pub(super) cversion: i32,
    /// The session that it lives with; 0 for nodes that stay.
    pub(super) ephemeral_owner: i64,
    /// How many children it has.
    pub(super) children: i32,
}

impl Stat {
    fn read(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (czxid, mzxid, ctime_ms, _mtime) = (from.get_i64()?, from.get_i64()?, from.get_i64()?, from.get_i64()?);
        let (version, cversion, _aversion) = (from.get_i32()?, from.get_i32()?, from.get_i32()?);
        let ephemeral_owner = from.get_i64()?;
        let (_length, children, _pzxid) = (from.get_i32()?, from.get_i32()?, from.get_i64()?);
        Ok(Self { czxid, mzxid, ctime_ms, version, cversion, ephemeral_owner, children })
    }

    /// A directory: a node that stays and has, or had, children. Contenders never have any.
    pub(super) fn is_directory(&self) -> bool {
        self.ephemeral_owner == 0 && (self.children > 0 || self.cversion > 0)
    }
}

/// Who may do what with a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl {
    pub(super) perms: i32,
    pub(super) scheme: String,
    pub(super) id: String,
}

/// How long a node lives and whether its name gets a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Create {
    Persistent,
    #[cfg(test)]
    Ephemeral,
    EphemeralSequential,
    Container,
}

impl Create {
    fn flags(self) -> i32 {
        match self {
            Self::Persistent => 0,
            #[cfg(test)]
            Self::Ephemeral => 1,
            Self::EphemeralSequential => 3,
            Self::Container => 4,
        }
    }

    fn opcode(self) -> i32 {
        match self {
            Self::Container => opcode::CREATE_CONTAINER,
            _ => opcode::CREATE2,
        }
    }
}

mod opcode {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
    pub(super) const EXISTS: i32 = 3;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const SYNC: i32 = 9;
    pub(super) const PING: i32 = 11;
    pub(super) const CHECK: i32 = 13;
    pub(super) const MULTI: i32 = 14;
    pub(super) const CREATE2: i32 = 15;
    pub(super) const REMOVE_WATCHES: i32 = 18;
    pub(super) const CREATE_CONTAINER: i32 = 19;
    pub(super) const MULTI_READ: i32 = 22;
    pub(super) const AUTH: i32 = 100;
    pub(super) const GET_EPHEMERALS: i32 = 103;
    pub(super) const ADD_WATCH: i32 = 106;
    pub(super) const CLOSE: i32 = -11;
    pub(super) const ERROR: i32 = -1;
}

/// Ids of what is no numbered request.
pub(super) mod xid {
    pub(in super::super) const EVENT: i32 = -1;
    pub(in super::super) const PING: i32 = -2;
    pub(in super::super) const AUTH: i32 = -4;
}

/// One request. Paths are the server's, with the chroot in front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Request {
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

    /// Whether it goes through the quorum, so that its answer comes from a leader that was one.
    pub(super) fn is_write(&self) -> bool {
        matches!(self, Self::Create { .. } | Self::Delete { .. } | Self::SetData { .. } | Self::Multi(_))
    }

    /// What the reply will look like.
    pub(super) fn shape(&self) -> Shape {
        match self {
            Self::Create { .. } => Shape::Created,
            Self::Exists { .. } | Self::SetData { .. } => Shape::Stat,
            Self::GetData { .. } => Shape::Data,
            Self::GetChildren { .. } => Shape::Children,
            Self::Multi(_) | Self::MultiRead(_) => Shape::Many,
            Self::GetEphemerals { .. } => Shape::Children,
            _ => Shape::Nothing,
        }
    }

    /// Appends the framed request.
    pub(super) fn write(&self, xid: i32, out: &mut Vec<u8>) {
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
            Self::GetChildren { path } => {
                out.put_str(path);
                out.put_bool(false);
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

/// What a reply looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    Nothing,
    Created,
    Stat,
    Data,
    Children,
    Many,
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Nothing,
    Created {
        path: String,
        /// All zero inside a multi before 3.8.2.
        stat: Stat,
    },
    Stat(Stat),
    Data(Vec<u8>, Stat),
    /// Names, or whole paths for ephemerals.
    Children(Vec<String>),
    /// One result for each part; when one failed, those before it say code 0 and those after it RuntimeInconsistency.
    Many(Vec<Result<Reply, Code>>),
}

impl Reply {
    pub(super) fn read(shape: Shape, body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        Ok(match shape {
            Shape::Nothing => Self::Nothing,
            Shape::Created => Self::Created { path: from.get_str()?, stat: Stat::read(&mut from)? },
            Shape::Stat => Self::Stat(Stat::read(&mut from)?),
            Shape::Data => Self::Data(from.get_bytes()?.to_vec(), Stat::read(&mut from)?),
            Shape::Children => Self::Children(from.get_strs()?),
            Shape::Many => Self::Many(read_many(&mut from)?),
        })
    }
}

fn read_many(from: &mut Reader<'_>) -> Result<Vec<Result<Reply, Code>>, Malformed> {
    let mut all = Vec::new();
    loop {
        let (kind, done, _err) = (from.get_i32()?, from.get_bool()?, from.get_i32()?);
        if done {
            return Ok(all);
        }
        all.push(match kind {
            opcode::ERROR => Err(Code(from.get_i32()?)),
            // Servers before 3.8.2 answer so inside a multi, whatever kind of create was asked for.
            opcode::CREATE => Ok(Reply::Created { path: from.get_str()?, stat: Stat::default() }),
            opcode::CREATE2 | opcode::CREATE_CONTAINER => Ok(Reply::Created { path: from.get_str()?, stat: Stat::read(from)? }),
            opcode::SET_DATA => Ok(Reply::Stat(Stat::read(from)?)),
            opcode::GET_DATA => Ok(Reply::Data(from.get_bytes()?.to_vec(), Stat::read(from)?)),
            opcode::GET_CHILDREN => Ok(Reply::Children(from.get_strs()?)),
            opcode::DELETE | opcode::CHECK => Ok(Reply::Nothing),
            _ => return Err(Malformed),
        });
    }
}

/// What stands before every reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReplyHeader {
    pub(super) xid: i32,
    pub(super) zxid: i64,
    pub(super) code: Code,
}

impl ReplyHeader {
    pub(super) const LEN: usize = 16;

    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        Ok(Self { xid: from.get_i32()?, zxid: from.get_i64()?, code: Code(from.get_i32()?) })
    }
}

/// What happened to a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Happened {
    Created,
    Deleted,
    Changed,
    /// Something else about it: session states and children are not asked for.
    Other,
}

/// A watch that fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WatchEvent {
    pub(super) happened: Happened,
    pub(super) path: String,
}

impl WatchEvent {
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let happened = match from.get_i32()? {
            1 => Happened::Created,
            2 => Happened::Deleted,
            3 => Happened::Changed,
            _ => Happened::Other,
        };
        let _state = from.get_i32()?;
        Ok(Self { happened, path: from.get_str()? })
    }
}

/// What identifies a session to any server of the ensemble.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct SessionKey {
    /// 0 asks for a new session.
    pub(super) id: i64,
    pub(super) password: Vec<u8>,
}

impl SessionKey {
    pub(super) fn fresh() -> Self {
        Self { id: 0, password: vec![0; 16] }
    }
}

/// The first message of a connection.
pub(super) fn write_connect(key: &SessionKey, last_zxid: i64, timeout_ms: i32, out: &mut Vec<u8>) {
    out.put_i32(4 + 8 + 4 + 8 + 4 + i32::try_from(key.password.len()).unwrap_or(i32::MAX) + 1);
    out.put_i32(0);
    out.put_i64(last_zxid);
    out.put_i32(timeout_ms);
    out.put_i64(key.id);
    out.put_bytes(&key.password);
    // Never a read-only server: it cannot grant anything.
    out.put_bool(false);
}

/// The first answer of a connection; `id` 0 means that the session has expired.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Connected {
    pub(super) key: SessionKey,
    pub(super) timeout_ms: i32,
    pub(super) read_only: bool,
}

impl Connected {
    pub(super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let (_version, timeout_ms, id) = (from.get_i32()?, from.get_i32()?, from.get_i64()?);
        let password = from.get_bytes()?.to_vec();
        // Servers before 3.4 say nothing about it.
        let read_only = !from.is_empty() && from.get_bool()?;
        Ok(Self { key: SessionKey { id, password }, timeout_ms, read_only })
    }
}
