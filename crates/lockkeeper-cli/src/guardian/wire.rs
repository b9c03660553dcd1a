//! What `lockkeeper` and its guardian say to each other.

use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockkeeper::engine::Registration;
use lockkeeper::{ClaimId, Ends, Entry, Error, ErrorKind, Holder, Identity, Kind, Mode, Token};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::line::send;
use crate::args::run::OnLost;
use crate::args::values;
use crate::kill_after::KillAfter;
use crate::supervise::group;
use crate::text::millis;
use crate::under::{Caution, Why};

/// The first message: what to take, and how to look after it. Holds the URL with its password; it
/// is never printed.
#[derive(Clone, Serialize, Deserialize)]
pub struct Order {
    pub url: String,
    pub require: Vec<String>,
    pub kind: String,
    pub name: String,
    pub mode: ModeWord,
    pub ttl_ms: u64,
    pub renew: bool,
    /// How long the engine may be silent while it stands in line.
    pub unreachable_after_ms: Option<u64>,
    /// Whether to leave at once when somebody else has it.
    pub try_only: bool,
    pub host: String,
    pub pid: u32,
    pub started: u64,
    pub program: String,
    pub label: Option<String>,
    pub value: Option<String>,
    pub care: Care,
}

/// How a command under the lock is looked after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Care {
    /// Whether a command will run under it at all.
    pub command: bool,
    /// From TERM to KILL, as it was given.
    pub kill_after: KillAfter,
    /// What a loss means.
    pub on_lost: OnLost,
    /// Who asked for it runs under another lock: nothing may outlive it for long.
    pub nested: bool,
    /// Whether processes that the command leaves behind are left alone.
    pub leave_children: bool,
    /// How long it is held at least.
    pub at_least: Duration,
}

/// A mode in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeWord(String, u16, u16);

impl From<Mode> for ModeWord {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Permits { count, limit } => Self(mode.as_str().to_owned(), count, limit),
            _ => Self(mode.as_str().to_owned(), 0, 0),
        }
    }
}

impl ModeWord {
    pub fn mode(&self) -> Mode {
        match self.0.as_str() {
            "permits" => Mode::Permits { count: self.1, limit: self.2 },
            "shared" => Mode::Shared,
            "upgradable" => Mode::Upgradable,
            _ => Mode::Exclusive,
        }
    }
}

impl Order {
    pub fn kind(&self) -> Kind {
        Kind::ALL.into_iter().find(|k| k.as_str() == self.kind).unwrap_or(Kind::Lock)
    }

    pub fn require(&self) -> impl Iterator<Item = lockkeeper::Require> {
        self.require.iter().filter_map(|word| values::require(word).ok())
    }

    /// Whether whoever gave it is stopped.
    pub fn is_stopped(&self) -> bool {
        i32::try_from(self.pid).is_ok_and(|pid| group::is_stopped(Pid::from_raw(pid)))
    }

    /// Who is shown as the holder: the one who is to have the lock, and not its guardian.
    pub fn who(&self) -> Identity {
        let (host, program, label) = (self.host.clone(), self.program.clone(), self.label.clone());
        Identity { host, pid: self.pid, started: self.started, program, label }
    }
}

/// What is asked of the guardian while it waits or holds: one letter.
pub const WHO_HOLDS: &[u8] = b"?";
/// Why the engine does not answer.
pub const WHY: &[u8] = b"!";
/// Gives the lock back.
pub const RELEASE: &[u8] = b"R";
/// A command's process, just before it becomes the command: this letter, whether it leads a group,
/// its process id.
pub const STARTED: u8 = b'S';

/// The message that a command sends about itself.
pub fn started(own_group: bool, pid: i32) -> [u8; 6] {
    let [a, b, c, d] = pid.to_le_bytes();
    [STARTED, u8::from(own_group), a, b, c, d]
}

/// Sends it. Async-signal-safe: it is called between fork and exec.
///
/// # Errors
/// The other end is closed; there is no room.
pub fn announce(line: RawFd, own_group: bool, pid: i32) -> io::Result<()> {
    send(line, &started(own_group, pid))
}

/// Reads such a message.
pub fn read_started(message: &[u8]) -> Option<(bool, i32)> {
    match *message {
        [STARTED, own_group, a, b, c, d] => {
            Some((own_group != 0, i32::from_le_bytes([a, b, c, d])))
        }
        _ => None,
    }
}

/// What the guardian tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Tell {
    /// It stands in line.
    InLine { ahead: Option<u32>, holder: Option<HolderWord> },
    /// How it stands there now.
    Place { ahead: Option<u32>, holder: Option<HolderWord> },
    /// The engine did not say how it stands there.
    Silence,
    /// The engine has not answered for a while what was asked about the place, or has refused it.
    Unreachable { refused: bool, silent_ms: u64, why: String },
    /// What the last question came to, if one that waits was not answered.
    Why(Option<ErrorWord>),
    /// It answers again.
    Reachable,
    /// Something beside the lock that its holder should know of.
    Warning(Caution),
    /// It has the lock.
    Granted { token: Option<u64>, hold: Option<String>, kill_after: Duration },
    /// Somebody else has it.
    Busy { holder: Option<HolderWord> },
    /// It could not be had.
    Failed(ErrorWord),
    /// It is being lost; the guardian stops the command, at the latest at this instant of the
    /// boot-time clock.
    Stopping { why: Why, kill_by: Duration },
    /// It is lost, and the command is left alone.
    Lost { why: Why },
    /// It was given back, or was not there to be given back any more.
    Released { how: Release },
}

/// How giving back went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Release {
    /// It was ours until now.
    Clean,
    /// It was lost before.
    AlreadyLost,
    /// The engine did not answer; the lease ends by itself.
    Unknown,
}

impl Release {
    /// The word of the report.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::AlreadyLost => "already-lost",
            Self::Unknown => "unknown",
        }
    }
}

/// A holder in words.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HolderWord {
    claim: Option<String>,
    host: Option<String>,
    pid: Option<u32>,
    since_ms: Option<u64>,
    program: Option<String>,
    label: Option<String>,
    mode: Option<ModeWord>,
    token: Option<u64>,
    ends: Option<EndsWord>,
    value: Option<String>,
}

impl From<&Holder> for HolderWord {
    fn from(h: &Holder) -> Self {
        Self {
            claim: h.claim.map(|c| c.to_string()),
            host: h.host.clone(),
            pid: h.pid,
            since_ms: h.since.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map(millis),
            program: h.program.clone(),
            label: h.label.clone(),
            mode: h.mode.map(Into::into),
            token: h.token.map(Token::get),
            ends: h.ends.and_then(EndsWord::of),
            value: h.value.clone(),
        }
    }
}

impl From<HolderWord> for Holder {
    fn from(w: HolderWord) -> Self {
        let mut holder = Self::default();
        holder.claim = w.claim.and_then(|c| ClaimId::parse(&c));
        (holder.host, holder.pid, holder.program, holder.label) =
            (w.host, w.pid, w.program, w.label);
        holder.since =
            w.since_ms.and_then(|ms| SystemTime::UNIX_EPOCH.checked_add(Duration::from_millis(ms)));
        holder.mode = w.mode.map(|m| m.mode());
        holder.token = w.token.and_then(Token::raw);
        holder.ends = w.ends.map(EndsWord::ends);
        holder.value = w.value;
        holder
    }
}

/// How a hold ends, in words.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum EndsWord {
    LeaseMs(u64),
    Session,
    Never,
}

impl EndsWord {
    fn of(ends: Ends) -> Option<Self> {
        Some(match ends {
            Ends::Lease(left) => Self::LeaseMs(millis(left)),
            Ends::Session => Self::Session,
            Ends::Never => Self::Never,
            _ => return None,
        })
    }

    fn ends(self) -> Ends {
        match self {
            Self::LeaseMs(left) => Ends::Lease(Duration::from_millis(left)),
            Self::Session => Ends::Session,
            Self::Never => Ends::Never,
        }
    }
}

/// Our own place and the first holder of an entry.
pub fn place(entry: &Entry, who: &Identity) -> Tell {
    let ours = entry
        .waiters
        .iter()
        .find(|w| w.pid == Some(who.pid) && w.host.as_deref() == Some(&who.host));
    Tell::Place { ahead: ours.and_then(|w| w.ahead), holder: entry.holders.first().map(Into::into) }
}

/// An error in words.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ErrorWord {
    kind: String,
    message: String,
    engine: Option<String>,
    temporary: bool,
    holder: Option<HolderWord>,
    retry_after_ms: Option<u64>,
}

impl From<&Error> for ErrorWord {
    fn from(e: &Error) -> Self {
        Self {
            kind: e.kind().as_str().to_owned(),
            message: e.message().to_owned(),
            engine: e.engine_name().map(str::to_owned),
            temporary: e.is_temporary(),
            holder: e.holder().map(Into::into),
            retry_after_ms: e.retry_after().map(crate::text::millis),
        }
    }
}

impl From<ErrorWord> for Error {
    fn from(w: ErrorWord) -> Self {
        let kind = ErrorKind::ALL
            .iter()
            .copied()
            .find(|k| k.as_str() == w.kind)
            .unwrap_or(ErrorKind::Unknown);
        let error =
            Self::new(kind, w.message).temporary(w.temporary).held_by(w.holder.map(Into::into));
        let error = match w.retry_after_ms {
            Some(ms) => error.with_retry_after(Duration::from_millis(ms)),
            None => error,
        };
        match Registration::all()
            .into_iter()
            .map(|e| e.engine)
            .find(|e| Some(*e) == w.engine.as_deref())
        {
            Some(engine) => error.engine(engine),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_arrives_as_it_was_meant() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits { count: 2, limit: 8 }] {
            assert_eq!(ModeWord::from(mode).mode(), mode);
        }
        assert_eq!(read_started(&started(true, 4_121)), Some((true, 4_121)));
        assert_eq!(read_started(b"S"), None);
        for &kind in ErrorKind::ALL {
            let error = Error::new(kind, "why").engine("redis").temporary(true);
            let back = Error::from(ErrorWord::from(&error));
            assert_eq!(
                (back.kind(), back.message(), back.engine_name(), back.is_temporary()),
                (kind, "why", Some("redis"), true)
            );
        }
        let mut holder = Holder::default();
        (holder.pid, holder.token) = (Some(7), Token::raw(640));
        for ends in [Ends::Lease(Duration::from_millis(20)), Ends::Session, Ends::Never] {
            holder.ends = Some(ends);
            assert_eq!(Holder::from(HolderWord::from(&holder)), holder);
        }
    }
}
