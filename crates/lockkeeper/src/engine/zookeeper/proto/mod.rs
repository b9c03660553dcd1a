//! What is said to a server and what it says: messages, stats, codes.

mod reply;
mod request;

pub(super) use self::reply::{Happened, Reply, ReplyHeader, Shape, WatchEvent};
pub(super) use self::request::{Request, xid};
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
        let (czxid, mzxid, ctime_ms, _mtime) =
            (from.get_i64()?, from.get_i64()?, from.get_i64()?, from.get_i64()?);
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
    Ephemeral,
    EphemeralSequential,
    Container,
}

impl Create {
    fn flags(self) -> i32 {
        match self {
            Self::Persistent => 0,
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
    pub(super) const LIST: i32 = 12;
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
