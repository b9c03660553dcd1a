//! What the server's refusals mean to the one who asked, and what to do about them.

use super::layout::{Child, Layout, Tag};
use super::limit;
use super::proto::Code;
use crate::open::url;
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind};

/// A list with more contenders than R13 allows; not one of the server's codes.
pub(super) const TOO_MANY: Code = Code(1);
/// A semaphore of the other shape stands beside the directory; not one of the server's codes.
pub(super) const OTHER_SHAPE: Code = Code(2);
/// An answer longer than is read; not one of the server's codes.
pub(super) const TOO_LONG: Code = Code(4);
/// What the code of a semaphore of a newer layout begins at; the layout's number is added.
const NEWER_LIMIT: i32 = 1_000;
/// How many contenders a directory may have.
pub(super) const PLACES_MAX: usize = 16_384;

/// A semaphore's limit was written by this newer layout; not one of the server's codes.
pub(super) fn newer_limit(layout: u32) -> Code {
    Code(NEWER_LIMIT.saturating_add(i32::try_from(layout).unwrap_or(i32::MAX)))
}

/// The server refuses what a recipe needs at `path`.
pub(super) fn refused(code: Code, path: &str) -> Error {
    let text = match code {
        Code::NO_AUTH => {
            format!(
                "ZooKeeper's access rules (ACL) forbid it at {path}: give the URL an `auth` that \
                 may create, read and delete there"
            )
        }
        Code::NO_CHILDREN_FOR_EPHEMERALS => {
            format!("{path} is an ephemeral node, which cannot have children: choose another name")
        }
        Code::INVALID_ACL => {
            "ZooKeeper does not accept the URL's `acl`: `auth` rules need an `auth`, and schemes \
             must be known to the server"
                .to_owned()
        }
        Code::QUOTA_EXCEEDED => {
            format!("the quota of {path} is used up: raise it, or delete what is not needed there")
        }
        Code::NO_NODE => format!(
            "{path} went away again and again while it was being used: does its chroot exist?"
        ),
        Code::BAD_ARGUMENTS => format!("ZooKeeper does not accept the path {path}"),
        Code::UNIMPLEMENTED => "this ZooKeeper is too old: 3.6 or newer is needed".to_owned(),
        TOO_MANY => format!("{path} has more than {PLACES_MAX} contenders, which is the limit"),
        OTHER_SHAPE => format!(
            "a semaphore of another shape stands beside {path}, and the two would not see each \
             other: say semaphore=shared to stand in line with those of Curator or kazoo, \
             semaphore=own for lockkeeper's alone, or delete the other one's directory if nobody \
             uses it"
        ),
        Code(newer) if newer > NEWER_LIMIT => format!(
            "the semaphore at {path} was written by layout {}, and this release knows {}: use a \
             newer lockkeeper",
            newer - NEWER_LIMIT,
            limit::VERSION
        ),
        TOO_LONG => {
            format!("what ZooKeeper answers about {path} is more than 32 MiB, which is the limit")
        }
        Code::THROTTLED => "ZooKeeper is overloaded and drops requests: try again later".to_owned(),
        other => format!("ZooKeeper answered {} ({}) at {path}", other.word(), other.0),
    };
    let kind = if code.0 > NEWER_LIMIT { ErrorKind::NewerLayout } else { ErrorKind::Refused };
    Error::new(kind, text).temporary(code == Code::THROTTLED)
}

/// A contender of another prefix stands in the directory `dir` of the layout plain.
///
/// `InvalidArgument` and not `Refused`: the server refuses nothing. The URL's `prefix` is not the
/// one that is in use there, as a limit may not be the stored one; another URL helps, and the same
/// one again does not.
pub(super) fn other_prefix(layout: &Layout, dir: &str, name: &str) -> Error {
    let ours = if let Layout::Plain { prefix } = layout { prefix.as_str() } else { "" };
    let text = format!(
        "the contender {name} stands in {dir}, and beside it this URL's prefix={} could let in two \
         holders, or none: {}",
        url::encode(ours),
        advice(name)
    );
    Error::new(ErrorKind::InvalidArgument, text)
}

/// The options with which a URL stands in line with a contender of this name.
pub(super) fn advice(name: &str) -> String {
    let child = Child::read(name);
    let option = match child.as_ref().map(|child| (child.library(), child.prefix())) {
        Some((Some(library), _)) => format!("layout={library}"),
        Some((None, "")) | None => "layout=plain&prefix= (an empty prefix, the default)".to_owned(),
        Some((None, prefix)) => format!("layout=plain&prefix={}", url::encode(prefix)),
    };
    format!("say {option} to stand in line with it")
}

/// What whoever looks at a directory should know about a contender that our claims do not stand in
/// line with, or that may not stand in line with ours.
pub(super) fn hint(layout: &Layout, child: &Child) -> Option<String> {
    match layout {
        Layout::Plain { .. } if child.tag == Tag::OtherPrefix => {
            Some(format!("{} has another prefix: {}", child.name, advice(&child.name)))
        }
        Layout::Curator | Layout::Kazoo if child.tag == Tag::Lock && child.library().is_none() => {
            Some(format!(
                "if the code that made {} compares names as texts, {}",
                child.name,
                advice(&child.name)
            ))
        }
        _ => None,
    }
}

/// The semaphore has another limit than it was asked with.
pub(super) fn other_limit(stored: u16, mode: Mode) -> Error {
    let text = match mode {
        Mode::Permits { count, limit } if limit == stored => {
            format!("the semaphore now has {stored} permits, and {count} were requested")
        }
        Mode::Permits { limit, .. } => format!(
            "its stored limit is {stored} and {limit} was requested: request {stored}, or resize it"
        ),
        _ => format!("the semaphore has a limit of {stored}"),
    };
    Error::new(ErrorKind::LimitMismatch, text)
}

/// The server does not accept an identity.
pub(super) fn auth(server: &str, code: Code) -> Error {
    let text =
        format!("the ZooKeeper server at {server} refused the URL's `auth`: {}", code.word());
    Error::new(ErrorKind::Refused, text)
}

/// A semaphore, latch or read whose answer did not come.
pub(super) fn unanswered() -> Error {
    Error::new(
        ErrorKind::Unknown,
        "the connection to ZooKeeper broke before the answer came: it may have happened",
    )
}

/// A server that closes connections before it has read anything.
pub(super) fn full(server: &str) -> Error {
    let text = format!(
        "the ZooKeeper server at {server} closes each connection without a word: it has as many as \
         it takes from this address (maxClientCnxns), or in all (maxCnxns); or it speaks TLS, or \
         nobody is behind that port"
    );
    Error::new(ErrorKind::Refused, text).no_room()
}

pub(super) fn unreachable(servers: &str, why: &str) -> Error {
    Error::new(ErrorKind::Unreachable, format!("no ZooKeeper server answers at {servers}: {why}"))
}
