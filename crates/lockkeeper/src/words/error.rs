//! One error for everything, with a kind that programs can act on.

use std::error::Error as StdError;
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use crate::words::claim::{Entry, Holder};
use crate::words::name::Name;

/// What kind of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The lock was not obtained within the caller's time.
    TimedOut,
    /// The hold ended without being released.
    Lost,
    /// Waiting could never end: the caller itself holds what it waits for.
    WouldDeadlock,
    /// The name is empty, too long, or cannot be said in this layout.
    InvalidName,
    /// An option or argument is outside its documented range.
    InvalidArgument,
    /// The semaphore has another limit than the one requested.
    LimitMismatch,
    /// This engine or layout cannot do that.
    Unsupported,
    /// This hold carries no fencing token: permits, or a layout without a counter.
    NoToken,
    /// The engine does not promise what `require` asked for.
    NotMet,
    /// The engine cannot be reached.
    Unreachable,
    /// The engine was reached and refused us: password, permission, read-only, disk full.
    Refused,
    /// A record could not be read.
    Corrupt,
    /// A record was written by a newer layout than this release knows.
    NewerLayout,
    /// The `Locks` was closed.
    Closed,
    /// It is not known whether the operation took effect.
    Unknown,
}

impl ErrorKind {
    /// Every kind of this release, to find one by its word. A later release may have more.
    pub const ALL: &'static [Self] = &[
        Self::TimedOut,
        Self::Lost,
        Self::WouldDeadlock,
        Self::InvalidName,
        Self::InvalidArgument,
        Self::LimitMismatch,
        Self::Unsupported,
        Self::NoToken,
        Self::NotMet,
        Self::Unreachable,
        Self::Refused,
        Self::Corrupt,
        Self::NewerLayout,
        Self::Closed,
        Self::Unknown,
    ];

    /// A stable word for JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::TimedOut => "timed-out",
            Self::Lost => "lost",
            Self::WouldDeadlock => "would-deadlock",
            Self::InvalidName => "invalid-name",
            Self::InvalidArgument => "invalid-argument",
            Self::LimitMismatch => "limit-mismatch",
            Self::Unsupported => "unsupported",
            Self::NoToken => "no-token",
            Self::NotMet => "not-met",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Corrupt => "corrupt",
            Self::NewerLayout => "newer-layout",
            Self::Closed => "closed",
            Self::Unknown => "unknown",
        }
    }

    /// The exit code of the command line for this kind: the one table.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::TimedOut => 75,
            Self::Lost => 79,
            Self::WouldDeadlock
            | Self::InvalidName
            | Self::InvalidArgument
            | Self::LimitMismatch
            | Self::Unsupported
            | Self::NoToken
            | Self::NotMet => 64,
            Self::Unreachable
            | Self::Refused
            | Self::Corrupt
            | Self::NewerLayout
            | Self::Unknown => 69,
            Self::Closed => 125,
        }
    }
}

/// What went wrong, with which lock, and what to do about it.
///
/// Cheap to clone. Never holds a password or the arguments of a program.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    message: String,
    engine: Option<&'static str>,
    name: Option<Name>,
    holder: Option<Holder>,
    partial: Option<Arc<[Entry]>>,
    temporary: bool,
    no_room: bool,
    retry_after: Option<Duration>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

impl Error {
    /// A new error; `message` says what happened and what to do. Its control characters are
    /// escaped: a server's answer or a stored record may be part of it, and must not act on a
    /// terminal or forge a line of a log.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let temporary =
            matches!(kind, ErrorKind::TimedOut | ErrorKind::Unreachable | ErrorKind::Unknown);
        let message = crate::words::text::printable(message.into());
        Self(Arc::new(Inner {
            kind,
            message,
            engine: None,
            name: None,
            holder: None,
            partial: None,
            temporary,
            no_room: false,
            retry_after: None,
            source: None,
        }))
    }

    fn with(self, change: impl FnOnce(&mut Inner)) -> Self {
        let mut inner = Arc::try_unwrap(self.0).unwrap_or_else(|shared| (*shared).clone());
        change(&mut inner);
        Self(Arc::new(inner))
    }

    /// The same about another kind, whose defaults hold.
    pub(crate) fn with_kind(self, kind: ErrorKind) -> Self {
        let temporary = Self::new(kind, "").is_temporary();
        self.with(|e| (e.kind, e.temporary) = (kind, temporary))
    }

    /// Adds the engine's name unless it is there already.
    #[must_use]
    pub fn engine(self, engine: &'static str) -> Self {
        self.with(|e| e.engine = e.engine.or(Some(engine)))
    }

    /// Adds the lock's name unless it is there already.
    #[must_use]
    pub fn name(self, name: &Name) -> Self {
        self.with(|e| _ = e.name.get_or_insert_with(|| name.clone()))
    }

    /// Adds who holds the lock.
    #[must_use]
    pub fn held_by(self, holder: Option<Holder>) -> Self {
        self.with(|e| e.holder = holder)
    }

    /// Adds what is known all the same, where many were asked and some did not answer.
    #[must_use]
    pub fn with_partial(self, told: Vec<Entry>) -> Self {
        self.with(|e| e.partial = Some(told.into()))
    }

    /// Adds the cause.
    #[must_use]
    pub fn caused_by(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with(|e| e.source = Some(Arc::new(source)))
    }

    /// Says whether trying again later can help, where it differs from what the kind says.
    #[must_use]
    pub fn temporary(self, temporary: bool) -> Self {
        self.with(|e| e.temporary = temporary)
    }

    /// Says when the same call can succeed, where that is known.
    #[must_use]
    pub fn with_retry_after(self, time: Duration) -> Self {
        self.with(|e| e.retry_after = Some(time))
    }

    /// The server takes no more clients, or no writes, and will again: a refusal that is waited for
    /// by whoever waits, as a server that is away.
    #[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
    pub(crate) fn no_room(self) -> Self {
        self.with(|e| (e.temporary, e.no_room) = (true, true))
    }

    /// A refusal of what was accepted before: passwords and certificates are changed on one side
    /// after the other, so it is waited for, too.
    #[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
    pub(crate) fn waited_out(self) -> Self {
        self.no_room()
    }

    /// It passes as that one does.
    #[cfg(any(
        feature = "redlock",
        feature = "sentinel",
        feature = "postgres",
        feature = "zookeeper"
    ))]
    pub(crate) fn passing_as(self, other: &Self) -> Self {
        self.with(|e| (e.temporary, e.no_room) = (other.0.temporary, other.0.no_room))
    }

    /// Whether whoever waits goes on waiting: the server is away, or has no room.
    pub(crate) fn is_outage(&self) -> bool {
        self.0.no_room || self.0.kind == ErrorKind::Unreachable
    }

    /// The kind, for programs.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message alone, without the lock's and the engine's name.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Who held the lock when it was not obtained, as far as the engine could tell.
    pub fn holder(&self) -> Option<&Holder> {
        self.0.holder.as_ref()
    }

    /// What the others told, where names are kept by several servers and one of them does not
    /// answer; `None` where nothing is known. Of [`Locks::list`](crate::Locks::list) and
    /// [`Watch::next`](crate::Watch::next). A name that is not among these may be in use.
    ///
    /// ```
    /// use lockkeeper::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Unreachable, "one of three nodes does not answer");
    /// assert!(error.partial().is_none());
    /// assert_eq!(error.with_partial(Vec::new()).partial(), Some(&[][..]));
    /// ```
    pub fn partial(&self) -> Option<&[Entry]> {
        self.0.partial.as_deref()
    }

    /// The engine that failed.
    pub fn engine_name(&self) -> Option<&'static str> {
        self.0.engine
    }

    /// The lock that it was about.
    pub fn lock_name(&self) -> Option<&Name> {
        self.0.name.as_ref()
    }

    /// How long after this error the same call can succeed, where that is known: the members of a
    /// quorum that have just started count from then on.
    ///
    /// ```
    /// use std::time::Duration;
    /// use lockkeeper::{Error, ErrorKind};
    ///
    /// let error = Error::new(ErrorKind::Unreachable, "the members count in 48s");
    /// assert_eq!(error.retry_after(), None);
    /// let known = error.with_retry_after(Duration::from_secs(48));
    /// assert_eq!(known.retry_after(), Some(Duration::from_secs(48)));
    /// ```
    pub fn retry_after(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// Whether the same call can succeed later without anybody changing anything.
    pub fn is_temporary(&self) -> bool {
        self.0.temporary
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.0.name, self.0.engine) {
            (Some(name), Some(engine)) => {
                write!(f, "{} ({engine}): ", name.as_str().escape_debug())?;
            }
            (Some(name), None) => write!(f, "{}: ", name.as_str().escape_debug())?,
            (None, Some(engine)) => write!(f, "{engine}: ")?,
            (None, None) => {}
        }
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // What a `main` that returns it prints, and a test that unwraps it: for people.
        let mut f = OneLine(f);
        write!(f, "{:?}: {self}", self.0.kind)?;
        let mut cause = StdError::source(self);
        while let Some(error) = cause {
            write!(f, "; caused by: {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Escapes control characters: what a server said may hold some.
struct OneLine<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl fmt::Write for OneLine<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive(char::is_control) {
            let rest = part.trim_end_matches(char::is_control);
            self.0.write_str(rest)?;
            let control = part.get(rest.len()..).unwrap_or_default();
            write!(self.0, "{}", control.escape_debug())?;
        }
        Ok(())
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0.source.as_deref().map(|e| e as &(dyn StdError + 'static))
    }
}

/// A result of this library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q6_debug_reads_as_display_with_the_kind_and_the_causes() {
        let cause = std::io::Error::other("the socket is closed");
        let error = Error::new(ErrorKind::Unreachable, "nobody answers: look at the server")
            .name(&Name::new("stock").unwrap())
            .engine("redis")
            .caused_by(cause);
        assert_eq!(error.to_string(), "stock (redis): nobody answers: look at the server");
        assert_eq!(
            format!("{error:?}"),
            "Unreachable: stock (redis): nobody answers: look at the server; caused by: the \
             socket is closed"
        );
        let bell = std::io::Error::other("\x1b[2Jhe said \"no\"\n");
        let told = Error::new(ErrorKind::Refused, "ERR a\r\nb\x07").caused_by(bell);
        assert_eq!(
            format!("{told:?}"),
            "Refused: ERR a\\u{d}\\u{a}b\\u{7}; caused by: \\u{1b}[2Jhe said \"no\"\\n"
        );
        let bare = Error::new(ErrorKind::Closed, "it is closed");
        assert_eq!(format!("{bare} {bare:?}"), "it is closed Closed: it is closed");
        assert_eq!(bare.engine("file").to_string(), "file: it is closed");
    }
}
