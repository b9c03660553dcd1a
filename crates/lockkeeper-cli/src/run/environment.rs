//! What the command finds in its environment, and what we find in ours about the locks of our
//! ancestors.

use std::ffi::OsString;
use std::fs::File;
use std::io::Read as _;
use std::time::Duration;

use lockkeeper::{Claim, ClaimId, Error, ErrorKind, Holder, Identity, Kind, Mode, Name, Token};
use serde::{Deserialize, Serialize};

const STACK: &str = "LOCKKEEPER_STACK";

/// One lock that an ancestor holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The engine's URL, without password.
    pub engine: String,
    pub name: String,
    /// The word of [`Mode::as_str`].
    pub mode: String,
    pub token: Option<String>,
    pub pid: u32,
    /// When the process started, in ticks since boot.
    pub start: u64,
    /// How many permits, and of how many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub permits: Option<u16>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u16>,
    /// The name space, where it is not the one of locks and semaphores.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
}

/// A process, told from a later one with the same id by when it started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub start: u64,
}

impl Process {
    /// The one that an identity is about.
    pub fn of(who: &Identity) -> Self {
        Self { pid: who.pid, start: who.started }
    }

    /// Ourselves.
    pub fn current() -> Self {
        let pid = std::process::id();
        Self { pid, start: stat(pid).map_or(0, |s| s.start) }
    }
}

struct Stat {
    parent: u32,
    start: u64,
}

fn stat(pid: u32) -> Option<Stat> {
    let mut buffer = [0; 1_024];
    // One read: /proc answers whole lines, and this one is never longer.
    let read =
        File::open(format!("/proc/{pid}/stat")).and_then(|mut f| f.read(&mut buffer)).ok()?;
    let text = String::from_utf8_lossy(buffer.get(..read)?);
    // The program's name may hold anything, blanks and brackets too; what follows the last bracket
    // may not.
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let start = fields.nth(17)?.parse().ok()?;
    Some(Stat { parent, start })
}

/// Ourselves (a lockkeeper that became its command is what we were), our parent, and so on.
fn ancestors() -> Vec<Process> {
    let mut line = Vec::new();
    let mut pid = std::process::id();
    // A parent always started before its child, so the way up cannot turn in a circle; the bound is
    // for a broken /proc.
    while pid != 0 && line.len() < 10_000 {
        let Some(stat) = stat(pid) else { break };
        line.push(Process { pid, start: stat.start });
        pid = stat.parent;
    }
    line
}

/// The locks of our ancestors.
#[derive(Clone, Debug, Default)]
pub struct Stack(Vec<Held>);

impl Stack {
    /// Reads the environment; entries whose process is no living ancestor are left out.
    pub fn read() -> Self {
        let Some(text) = std::env::var_os(STACK) else { return Self::default() };
        let entries: Vec<Held> =
            text.to_str().and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default();
        if entries.is_empty() {
            return Self::default();
        }
        let living = ancestors();
        Self(
            entries
                .into_iter()
                .filter(|h| living.contains(&Process { pid: h.pid, start: h.start }))
                .collect(),
        )
    }

    /// Refuses what could never be granted, because an ancestor that waits for us holds it.
    ///
    /// # Errors
    /// [`ErrorKind::WouldDeadlock`], naming the ancestor. Whoever does not wait meets no deadlock:
    /// it is not obtained, [`ErrorKind::TimedOut`], as under flock(1). Both know the holder.
    pub fn check(
        &self,
        engine: &str,
        kind: Kind,
        name: &Name,
        mode: Mode,
        patience: Option<Duration>,
    ) -> Result<(), Error> {
        let Some(held) = self.excludes(engine, kind, name, mode) else { return Ok(()) };
        let Held { pid, mode, .. } = held;
        let (kind, message) = if patience.is_some_and(|patience| patience.is_zero()) {
            let message = format!("not obtained: process {pid}, an ancestor, holds it ({mode})");
            (ErrorKind::TimedOut, message)
        } else {
            let message = format!(
                "would deadlock: process {pid} is an ancestor, holds it ({mode}) and waits; \
                 leave one of the two lockkeeper calls out"
            );
            (ErrorKind::WouldDeadlock, message)
        };
        Err(Error::new(kind, message).name(name).held_by(Some(held.holder())))
    }

    /// What an ancestor holds that excludes what is asked for.
    fn excludes(&self, engine: &str, kind: Kind, name: &Name, mode: Mode) -> Option<&Held> {
        let same = |h: &&Held| h.is(engine, kind, name);
        if let Mode::Permits { count, limit } = mode {
            let taken: u32 =
                self.0.iter().filter(same).map(|h| u32::from(h.permits.unwrap_or(1))).sum();
            let is_full = taken + u32::from(count) > u32::from(limit);
            return self.0.iter().rfind(same).filter(|_| is_full);
        }
        let excludes = |h: &&Held| h.mode().is_none_or(|held| !held.shares_with(mode));
        self.0.iter().filter(same).find(excludes)
    }

    /// Whether a share is asked for of what an ancestor holds.
    pub fn shares(&self, engine: &str, kind: Kind, name: &Name, mode: Mode) -> bool {
        mode == Mode::Shared && self.0.iter().any(|h| h.is(engine, kind, name))
    }

    /// Whether an ancestor holds a lock.
    pub fn is_nested(&self) -> bool {
        !self.0.is_empty()
    }

    fn with(&self, held: Held) -> String {
        let all: Vec<_> = self.0.iter().chain([&held]).collect();
        crate::json::line(&all)
    }
}

impl Held {
    /// What we are about to hold.
    pub fn new(engine: &str, claim: &Claim, token: Option<Token>, process: Process) -> Self {
        let limit = match claim.mode {
            Mode::Permits { limit, .. } => Some(limit),
            _ => None,
        };
        Self {
            engine: engine.to_owned(),
            name: claim.name.as_str().to_owned(),
            mode: claim.mode.as_str().to_owned(),
            token: token.map(|t| t.to_string()),
            pid: process.pid,
            start: process.start,
            permits: claim.mode.permits(),
            limit,
            kind: (claim.kind == Kind::Election).then(|| claim.kind.as_str().to_owned()),
        }
    }

    fn mode(&self) -> Option<Mode> {
        [Mode::Exclusive, Mode::Shared, Mode::Upgradable]
            .into_iter()
            .find(|m| m.as_str() == self.mode)
    }

    /// Its holder, a process of this machine.
    fn holder(&self) -> Holder {
        let permits = self.permits.zip(self.limit);
        let mut holder = Holder::default();
        (holder.host, holder.pid) = (Some(super::host()), Some(self.pid));
        holder.mode =
            permits.map(|(count, limit)| Mode::Permits { count, limit }).or_else(|| self.mode());
        holder.token = self.token.as_deref().and_then(|token| token.parse().ok());
        holder
    }

    fn is(&self, engine: &str, kind: Kind, name: &Name) -> bool {
        self.engine == engine && self.name == name.as_str() && self.is_of(kind)
    }

    fn is_of(&self, kind: Kind) -> bool {
        match (&self.kind, self.permits) {
            (Some(said), _) => said == kind.as_str(),
            (None, Some(_)) => kind == Kind::Semaphore,
            (None, None) => kind == Kind::Lock,
        }
    }
}

/// What the command's environment is to say.
pub struct Says<'a> {
    pub name: &'a Name,
    pub owner: Option<ClaimId>,
    pub token: Option<Token>,
    /// The scheme only.
    pub engine: &'a str,
    /// The URL that `--url` gave, without password.
    pub url: Option<String>,
}

/// The command's variables: set last, and removed where this grant has no value, so that an outer
/// lock's never show through.
pub fn variables(
    says: &Says<'_>,
    stack: &Stack,
    held: Option<Held>,
) -> Vec<(&'static str, Option<OsString>)> {
    let text = |text: String| Some(OsString::from(text));
    let stack = match held {
        Some(held) => text(stack.with(held)),
        None if stack.0.is_empty() => None,
        None => text(crate::json::line(&stack.0)),
    };
    let mut variables = vec![
        ("LOCKKEEPER_NAME", text(says.name.as_str().to_owned())),
        ("LOCKKEEPER_TOKEN", says.token.map(|t| OsString::from(t.to_string()))),
        ("LOCKKEEPER_OWNER", says.owner.map(|o| OsString::from(o.to_string()))),
        ("LOCKKEEPER_ENGINE", text(says.engine.to_owned())),
        (STACK, stack),
    ];
    if let Some(url) = &says.url {
        variables.push(("LOCKKEEPER_URL", text(url.clone())));
    }
    variables
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(mode: &str, permits: Option<u16>) -> Held {
        let (engine, name) = ("file:///d".to_owned(), "a".to_owned());
        Held {
            engine,
            name,
            mode: mode.to_owned(),
            token: None,
            pid: 1,
            start: 1,
            permits,
            limit: permits.map(|_| 4),
            kind: None,
        }
    }

    #[test]
    fn what_an_ancestor_holds_is_refused_only_where_it_excludes() {
        let stack = Stack(vec![held("shared", None), held("permits", Some(3))]);
        let name = Name::new("a").unwrap();
        let check = |engine: &str, kind, mode| stack.check(engine, kind, &name, mode, None).is_ok();
        assert!(!check("file:///d", Kind::Lock, Mode::Exclusive));
        assert!(check("file:///d", Kind::Lock, Mode::Shared));
        assert!(check("file:///other", Kind::Lock, Mode::Exclusive));
        assert!(check("file:///d", Kind::Election, Mode::Exclusive));
        assert!(check("file:///d", Kind::Semaphore, Mode::Permits { count: 1, limit: 4 }));
        assert!(!check("file:///d", Kind::Semaphore, Mode::Permits { count: 2, limit: 4 }));
    }

    #[test]
    fn we_are_our_own_ancestor_and_so_is_our_parent() {
        let line = ancestors();
        assert_eq!(line.first(), Some(&Process::current()));
        assert_eq!(line.get(1).map(|p| p.pid), Some(std::os::unix::process::parent_id()));
    }

    #[test]
    fn a_variable_without_a_value_is_removed() {
        let name = Name::new("a").unwrap();
        let says = Says { name: &name, owner: None, token: None, engine: "file", url: None };
        let variables = variables(&says, &Stack::default(), None);
        let of = |key: &str| variables.iter().find(|(k, _)| *k == key).map(|(_, v)| v.clone());
        assert_eq!(of("LOCKKEEPER_TOKEN"), Some(None));
        assert_eq!(of("LOCKKEEPER_STACK"), Some(None));
        assert_eq!(of("LOCKKEEPER_URL"), None, "what the user exported passes untouched");
    }
}
