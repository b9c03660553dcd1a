//! The objects that programs read. Keys are only ever added; `docs/json.md` lists them.

use std::time::{Duration, SystemTime};

use lockkeeper::text::json_line;
use lockkeeper::{Entry, Holder, Mode, Waiter};
use serde::Serialize;

use crate::text::{millis, rfc3339};

/// Somebody who holds a lock.
#[derive(Clone, Debug, Serialize)]
pub struct HolderJson {
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub since: Option<String>,
    pub program: Option<String>,
    pub label: Option<String>,
    pub mode: Option<&'static str>,
    pub permits: Option<u16>,
    pub token: Option<String>,
    pub expires_in_ms: Option<u64>,
}

impl From<&Holder> for HolderJson {
    fn from(h: &Holder) -> Self {
        Self {
            host: h.host.clone(),
            pid: h.pid,
            since: h.since.map(rfc3339),
            program: h.program.clone(),
            label: h.label.clone(),
            mode: h.mode.map(Mode::as_str),
            permits: h.mode.and_then(Mode::permits),
            token: h.token.map(|t| t.to_string()),
            expires_in_ms: h.expires_in().map(millis),
        }
    }
}

/// Somebody who waits.
#[derive(Clone, Debug, Serialize)]
pub struct WaiterJson {
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub since: Option<String>,
    pub ahead: Option<u32>,
}

impl From<&Waiter> for WaiterJson {
    fn from(w: &Waiter) -> Self {
        Self { host: w.host.clone(), pid: w.pid, since: w.since.map(rfc3339), ahead: w.ahead }
    }
}

/// Which build this is.
#[derive(Clone, Debug, Serialize)]
pub struct Build {
    pub version: &'static str,
    pub commit: Option<&'static str>,
    pub target: &'static str,
    pub engines: Vec<&'static str>,
}

/// One name, as `ls` and `status` show it.
#[derive(Clone, Debug, Serialize)]
pub struct EntryJson<'a> {
    pub name: &'a str,
    pub kind: &'static str,
    pub engine: &'a str,
    pub state: &'static str,
    pub limit: Option<u16>,
    pub holders: Vec<HolderJson>,
    pub waiters: Vec<WaiterJson>,
}

impl<'a> EntryJson<'a> {
    /// What an engine said about a name.
    pub fn new(entry: &'a Entry, engine: &'a str) -> Self {
        Self {
            name: entry.name.as_str(),
            kind: entry.kind.as_str(),
            engine,
            state: if entry.holders.is_empty() { "free" } else { "held" },
            limit: entry.limit,
            holders: entry.holders.iter().map(Into::into).collect(),
            waiters: entry.waiters.iter().map(Into::into).collect(),
        }
    }
}

/// What happens while a lock is asked for and held.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Event<'a> {
    Waiting {
        name: &'a str,
        engine: &'a str,
        ahead: Option<u32>,
        holder: Option<HolderJson>,
    },
    Granted {
        name: &'a str,
        engine: &'a str,
        mode: &'static str,
        token: Option<String>,
        waited_ms: u64,
    },
    Unreachable {
        name: &'a str,
        server: &'a str,
        refused: bool,
        why: &'a str,
    },
    Reachable {
        name: &'a str,
        server: &'a str,
    },
    Warning {
        name: &'a str,
        id: &'a str,
        text: &'a str,
    },
    Lost {
        name: &'a str,
        why: &'a str,
    },
    Done(&'a Report),
}

/// How it went, as `--report` writes it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub name: Option<String>,
    pub engine: Option<String>,
    pub outcome: &'static str,
    pub exit: u8,
    pub command_exit: Option<u8>,
    pub command_signal: Option<String>,
    pub token: Option<String>,
    pub waited_ms: u64,
    pub held_ms: Option<u64>,
    pub release: Option<&'static str>,
    pub why: Option<String>,
    pub holder: Option<HolderJson>,
    pub started: String,
}

impl Report {
    /// A report about which nothing is known but the name and when it began.
    pub fn new(name: impl Into<Option<String>>, waited: Duration) -> Self {
        let began = SystemTime::now().checked_sub(waited).unwrap_or_else(SystemTime::now);
        Self {
            name: name.into(),
            engine: None,
            outcome: "not-started",
            exit: 0,
            command_exit: None,
            command_signal: None,
            token: None,
            waited_ms: millis(waited),
            held_ms: None,
            release: None,
            why: None,
            holder: None,
            started: rfc3339(began),
        }
    }
}

/// One line of JSON; these objects always can be written. Control characters that JSON leaves raw
/// are escaped, which changes no value: the line may be read on a terminal.
pub fn line(object: &impl Serialize) -> String {
    let text = serde_json::to_string(object);
    let text = text
        .unwrap_or_else(|e| format!("{{\"error\":\"internal\",\"message\":{:?}}}", e.to_string()));
    json_line(text)
}
