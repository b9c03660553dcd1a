//! The replies and events that the engine understands.

use super::{Code, Stat, opcode};
use crate::engine::zookeeper::jute::{Malformed, Reader};

/// What a reply looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Shape {
    Nothing,
    Created,
    Stat,
    Data,
    Children,
    Listing,
    Many,
}

/// What the server answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum Reply {
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
    Listing(Vec<String>, Stat),
    /// One result for each part; when one failed, those before it say code 0 and those after it
    /// RuntimeInconsistency.
    Many(Vec<Result<Reply, Code>>),
}

impl Reply {
    pub(in super::super) fn read(shape: Shape, body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        Ok(match shape {
            Shape::Nothing => Self::Nothing,
            Shape::Created => Self::Created { path: from.get_str()?, stat: Stat::read(&mut from)? },
            Shape::Stat => Self::Stat(Stat::read(&mut from)?),
            Shape::Data => Self::Data(from.get_bytes()?.to_vec(), Stat::read(&mut from)?),
            Shape::Children => Self::Children(from.get_strs()?),
            Shape::Listing => Self::Listing(from.get_strs()?, Stat::read(&mut from)?),
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
            opcode::CREATE2 | opcode::CREATE_CONTAINER => {
                Ok(Reply::Created { path: from.get_str()?, stat: Stat::read(from)? })
            }
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
pub(in super::super) struct ReplyHeader {
    pub(in super::super) xid: i32,
    pub(in super::super) zxid: i64,
    pub(in super::super) code: Code,
}

impl ReplyHeader {
    pub(in super::super) const LEN: usize = 16;

    pub(in super::super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        Ok(Self { xid: from.get_i32()?, zxid: from.get_i64()?, code: Code(from.get_i32()?) })
    }
}

/// What happened to a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Happened {
    Created,
    Deleted,
    Changed,
    /// Children of it came or went.
    Children,
    /// Something else: session states are not asked for.
    Other,
}

/// A watch that fired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct WatchEvent {
    pub(in super::super) happened: Happened,
    pub(in super::super) path: String,
}

impl WatchEvent {
    pub(in super::super) fn read(body: &[u8]) -> Result<Self, Malformed> {
        let mut from = Reader::new(body);
        let happened = match from.get_i32()? {
            1 => Happened::Created,
            2 => Happened::Deleted,
            3 => Happened::Changed,
            4 => Happened::Children,
            _ => Happened::Other,
        };
        let _state = from.get_i32()?;
        Ok(Self { happened, path: from.get_str()? })
    }
}
