//! The words of the recipe: what happens to a claim, what is to be done, what it came to.

use crate::engine::zookeeper::layout::{Child, Tag};
use crate::engine::zookeeper::proto::Code;

/// How a claim stands in the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Want {
    Exclusive,
    Shared,
    /// Beside readers, and as the only one that may become the writer.
    Upgradable,
    /// So many permits of a semaphore that is believed to have `limit`.
    Permits {
        count: u16,
        limit: u16,
    },
    /// One permit of a semaphore whose permits are counted, and stand in no line.
    Lease {
        limit: u16,
    },
}

impl Want {
    /// How many permits, for semaphores.
    pub(super) fn permits(self) -> Option<u16> {
        if let Self::Permits { count, .. } = self { Some(count) } else { None }
    }

    pub(super) fn excludes(self, tag: Tag) -> bool {
        match self {
            Self::Exclusive | Self::Permits { .. } | Self::Lease { .. } => true,
            Self::Shared => !tag.is_shared(),
            Self::Upgradable => !tag.is_shared() || tag == Tag::Upgradable,
        }
    }
}

/// Our node.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Node {
    pub(in super::super) name: String,
    pub(in super::super) seq: i32,
    /// The transaction that created it; not known yet of a node that was found again.
    pub(in super::super) czxid: Option<i64>,
    /// It is watched on this connection.
    pub(super) armed: bool,
}

impl Node {
    pub(in super::super) fn new(name: String, seq: i32, czxid: Option<i64>) -> Self {
        Self { name, seq, czxid, armed: false }
    }
}

/// A directory, as it was listed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Listing {
    pub(in super::super) children: Vec<Child>,
    /// The transaction that last changed the directory's own data.
    pub(in super::super) mzxid: i64,
    /// How many permits the semaphore has; `None` for locks, and where nobody has said it yet.
    pub(in super::super) limit: Option<u16>,
}

/// A node that somebody else may stand at, as its data was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Seen {
    /// It is there; the transaction that last changed it.
    Here(i64),
    Gone,
    /// A directory of another name that ends like a contender; nobody stands there.
    NoContender,
}

/// Our own node, as its data was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct OwnSeen {
    pub(in super::super) czxid: i64,
    /// It lives with our session.
    pub(in super::super) ours: bool,
    /// Its data asks the holder to let go.
    pub(in super::super) asked: bool,
}

/// Another way to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Conversion {
    /// From upgradable to exclusive.
    Upgrade,
    /// From exclusive to upgradable: back from an upgrade, or down from a writer.
    Revert,
    /// From anything to shared.
    Downgrade,
}

/// What happens to a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Input {
    /// The link is up: begin, or go on after it was down.
    LinkUp,
    /// Every reply that was outstanding is lost, every watch gone.
    LinkDown,
    /// The session is over and its nodes with it.
    SessionEnded,
    /// Answers [`Action::Create`] and [`Action::CreateWriter`].
    Created(Result<Node, Code>),
    Built(Result<(), Code>),
    Listed(Result<Listing, Code>),
    /// A node of ours was read and watched; `Err(NO_NODE)`: it is gone.
    Own(String, Result<OwnSeen, Code>),
    /// Somebody's data was read and a watch set.
    Watched(String, Seen),
    /// Somebody's data was read.
    Peeked(String, Seen),
    /// This session's nodes that carry the id asked for; what a server that does not say it has of
    /// ours stays in doubt.
    Found(Result<Vec<Child>, Code>),
    Deleted(String, Result<(), Code>),
    /// Answers [`Action::CreateReader`].
    Made(Result<Node, Code>),
    /// A reader's data was read; `ours`: it is one of ours, and so waits for mutexes, too.
    Whose {
        name: String,
        seen: Seen,
        ours: bool,
    },
    /// Answers [`Action::Guard`]; with the one of those that it stands in for which is gone, if
    /// that hindered it.
    Guarded(Result<(), Code>, Option<String>),
    /// Answers [`Action::Number`].
    Numbered(Result<i64, Code>),
    /// Answers [`Action::Prove`]: the session lasts for a while from now.
    Proven,
    /// Answers [`Action::StoreLimit`].
    LimitStored(Result<(), Code>),
    /// The semaphore's limit may be another one now.
    LimitChanged,
    /// Somebody may have come whose prefix is another one.
    Strangers,
    /// A watch told that this node was deleted, or else changed.
    Happened {
        name: String,
        deleted: bool,
    },
    /// Leave the line, or give the hold back.
    Leave,
    /// Hold in another way.
    Conversion(Conversion),
    /// Take back a turn that waits, or that was made a moment ago.
    TakeBack,
}

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Action {
    /// Create our node.
    Create,
    /// Create our permit, if the gate is ours.
    CreateLease,
    /// Create the writer's node beside our reader's.
    CreateWriter,
    /// Create a reader's node with the number of our node.
    CreateReader {
        seq: i32,
        upgradable: bool,
    },
    /// Make the directory and what is missing above it.
    Build,
    /// List the directory; for permits read the limit, too, and watch it.
    List,
    /// Store our limit, unless somebody was faster.
    StoreLimit,
    /// Read a node of ours and watch it.
    WatchOwn(String),
    /// Read another node and watch it.
    Watch(String),
    /// Read another node: who stands there?
    Peek(String),
    /// Ask for this session's nodes that carry our id; the writer's that stands beside our
    /// reader's.
    Find {
        writer: bool,
    },
    Delete(String),
    /// Delete a second node of ours, made by a create whose reply was lost; nobody waits for the
    /// answer.
    Discard(String),
    /// Read a reader's data: is it one of ours?
    Whose(String),
    /// Create a writer's node with the number of our reader's, if these are there.
    Guard {
        node: String,
        behind: Vec<String>,
    },
    /// Change our node and the directory in one transaction, without changing what they say: its
    /// number is above every number before, and whoever stands behind us learns that numbers have
    /// moved on. So does whoever watches the node that it replaces.
    Number {
        node: String,
        before: Option<String>,
    },
    /// Find out whether the session lasts: it is our turn, if it does.
    Prove,
    /// Tell what it came to.
    Say(Say),
}

/// What a claim came to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in super::super) enum Say {
    Granted {
        number: i64,
    },
    /// `first` is the one at the head of the line.
    InLine {
        ahead: u32,
        first: String,
    },
    /// Somebody is before us, and nothing of ours is there.
    Busy,
    /// The server refuses; nothing of ours is there.
    Refused(Code),
    /// The semaphore has another limit; nothing of ours is there.
    OtherLimit(u16),
    /// This contender has another prefix; nothing of ours is there.
    OtherPrefix(String),
    /// The hold's node is gone.
    Lost,
    /// Somebody asks the holder to let go.
    Asked,
    /// Our node is gone; `ours`: by our own request.
    Left {
        ours: bool,
    },
    /// The server does not let us delete our own node.
    Stuck(Code),
    /// It holds in the other way.
    Converted {
        number: i64,
    },
    /// The other way has to be waited for.
    ConversionWaits,
    /// It holds as before.
    ConversionRefused(Code),
    /// The turn is taken back, or there was none.
    TakenBack,
}
