//! What our nodes say about who stands there, as text: Curator's and kazoo's tools decode the data
//! of every contender.

use std::fmt::Write as _;
use std::time::{Duration, UNIX_EPOCH};

use super::layout::Child;
use super::proto::Stat;
use crate::words::claim::{Claim, Ends, Holder, Identity, Mode, Waiter};
use crate::words::id::ClaimId;
use crate::words::name::Kind;
use crate::words::token::Token;

/// What our records begin with; the number is the layout's (R17).
const HEAD: &str = "lockkeeper/";
const VERSION: u32 = 1;
/// How much of a text that others stored is shown.
const FOREIGN_MAX: usize = 256;
/// How much of a candidate's id is shown: as much as it may have (R13).
const VALUE_MAX: usize = 1024;

/// The data of a claim's node. A candidate's is its id alone: that is what Curator's and kazoo's
/// observers show.
pub(super) fn write(claim: &Claim) -> Vec<u8> {
    if claim.kind == Kind::Election {
        return match &claim.value {
            Some(value) => value.as_bytes().to_vec(),
            None => format!("{}:{}", claim.who.host, claim.who.pid).into_bytes(),
        };
    }
    let Identity { host, pid, started, program, label } = &*claim.who;
    let mut text = format!(
        "{HEAD}{VERSION} claim={} mode={} pid={pid} start={started}",
        claim.id,
        claim.mode.as_str()
    );
    if let Mode::Permits { count, limit } = claim.mode {
        _ = write!(text, " permits={count}/{limit}");
    }
    for (key, value) in
        [("host", Some(host)), ("program", Some(program)), ("label", label.as_ref())]
    {
        if let Some(value) = value {
            _ = write!(text, " {key}={}", escaped(value));
        }
    }
    text.into_bytes()
}

/// Whether one of us wrote this.
pub(super) fn is_ours(data: &[u8]) -> bool {
    data.starts_with(HEAD.as_bytes())
}

/// What a node says about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) claim: Option<ClaimId>,
    pub(super) host: Option<String>,
    pub(super) pid: Option<u32>,
    pub(super) program: Option<String>,
    pub(super) label: Option<String>,
    pub(super) mode: Option<Mode>,
    /// A record of ours with a greater number than we know.
    pub(super) newer: Option<u32>,
}

impl Record {
    /// Reads what somebody stored; a text that is none of our records is kept as a label, bounded
    /// and escaped.
    pub(super) fn read(data: &[u8]) -> Self {
        let text = String::from_utf8_lossy(data);
        let Some(rest) = text.strip_prefix(HEAD) else {
            return Self { label: foreign(&text), ..Self::default() };
        };
        let mut fields = rest.split(' ');
        match fields.next().and_then(|v| v.parse::<u32>().ok()) {
            Some(VERSION) => {}
            Some(newer) if newer > VERSION => {
                return Self { newer: Some(newer), ..Self::default() };
            }
            _ => return Self { label: foreign(&text), ..Self::default() },
        }
        let mut record = Self::default();
        for (key, value) in fields.filter_map(|f| f.split_once('=')) {
            let text = || Some(unescaped(value)).filter(|v| v.len() <= 4 * FOREIGN_MAX);
            match key {
                "claim" => record.claim = ClaimId::parse(value),
                "pid" => record.pid = value.parse().ok(),
                "host" => record.host = text(),
                "program" => record.program = text(),
                "label" => record.label = text(),
                "mode" => record.mode = record.mode.or_else(|| mode_of(value)),
                "permits" => record.mode = permits_of(value).or(record.mode),
                _ => {}
            }
        }
        record
    }
}

fn mode_of(word: &str) -> Option<Mode> {
    [Mode::Exclusive, Mode::Shared, Mode::Upgradable].into_iter().find(|m| m.as_str() == word)
}

fn permits_of(text: &str) -> Option<Mode> {
    let (count, limit) = text.split_once('/')?;
    Some(Mode::Permits { count: count.parse().ok()?, limit: limit.parse().ok()? })
}

/// Somebody whose data this user may not read, and perhaps nothing else about its node.
pub(super) fn unread(kind: Kind, child: &Child, stat: Option<&Stat>) -> Holder {
    // By its node's name it is told from others.
    let label = Some(format!("this user may not read its node {}", child.name));
    let holder = Holder { label, ..Holder::default() };
    match stat {
        Some(stat) => standing(Holder { since: since(stat), ..holder }, kind, child, stat),
        None => Holder { mode: Some(mode(child)), ..holder },
    }
}

/// Who stands at this node.
pub(super) fn holder(kind: Kind, child: &Child, data: &[u8], stat: &Stat) -> Holder {
    let mut holder = Holder { since: since(stat), ..Holder::default() };
    // Locks and elections of a name share a line in two of three layouts: what one of us wrote for
    // a lock is no candidate's id.
    if kind == Kind::Election && !is_ours(data) {
        holder.value = shown(&String::from_utf8_lossy(data), VALUE_MAX);
    } else {
        let record = Record::read(data);
        holder.claim = record.claim;
        holder.host = record.host;
        holder.pid = record.pid;
        holder.program = record.program;
        holder.label = record.label;
        if let Some(newer) = record.newer {
            holder.label = Some(format!(
                "its record has layout {newer}, and this release knows {VERSION}: upgrade it"
            ));
        }
        holder.mode = record.mode;
    }
    standing(holder, kind, child, stat)
}

/// What the node itself says, whatever its data is.
fn standing(mut holder: Holder, kind: Kind, child: &Child, stat: &Stat) -> Holder {
    holder.ends = Some(if stat.ephemeral_owner == 0 { Ends::Never } else { Ends::Session });
    if stat.ephemeral_owner == 0 {
        // Nothing will ever delete it by itself: whoever looks must learn what to delete.
        let said =
            holder.label.as_deref().map_or(String::new(), |label| format!("; its data: {label}"));
        holder.label =
            Some(format!("the persistent node {} blocks until it is deleted{said}", child.name));
    }
    holder.mode = holder.mode.or(Some(mode(child)));
    if kind != Kind::Semaphore {
        holder.token = u64::try_from(stat.czxid).ok().and_then(|number| Token::of(number, 0));
    }
    holder
}

fn mode(child: &Child) -> Mode {
    if child.tag.is_shared() { Mode::Shared } else { Mode::Exclusive }
}

/// The same node as somebody who waits.
pub(super) fn waiter(holder: Holder, ahead: u32) -> Waiter {
    Waiter {
        host: holder.host,
        pid: holder.pid,
        since: holder.since,
        ahead: Some(ahead),
        mode: holder.mode,
    }
}

fn since(stat: &Stat) -> Option<std::time::SystemTime> {
    u64::try_from(stat.ctime_ms)
        .ok()
        .filter(|ms| *ms > 0)
        .and_then(|ms| UNIX_EPOCH.checked_add(Duration::from_millis(ms)))
}

/// A text that others stored, fit for a terminal: bounded, and without control characters.
fn foreign(text: &str) -> Option<String> {
    shown(text, FOREIGN_MAX)
}

fn shown(text: &str, most: usize) -> Option<String> {
    let shown: String = text
        .chars()
        .take(most)
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    Some(shown).filter(|s| !s.is_empty())
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c == '%' || c == ' ' || c.is_control() {
            let mut bytes = [0; 4];
            for byte in c.encode_utf8(&mut bytes).bytes() {
                _ = write!(out, "%{byte:02x}");
            }
        } else {
            out.push(c);
        }
    }
    out
}

fn unescaped(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let hex = tail
            .get(..2)
            .and_then(|h| std::str::from_utf8(h).ok())
            .and_then(|h| u8::from_str_radix(h, 16).ok());
        match hex.filter(|_| first == b'%') {
            Some(byte) => {
                out.push(byte);
                rest = tail.get(2..).unwrap_or_default();
            }
            None => {
                out.push(first);
                rest = tail;
            }
        }
    }
    foreign(&String::from_utf8_lossy(&out)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn claim(kind: Kind, mode: Mode, value: Option<&str>) -> Claim {
        let who = Identity {
            host: "web 3%".into(),
            pid: 4121,
            started: 7,
            program: "job".into(),
            label: Some("nachts\n=ü".into()),
        };
        let value = value.map(Arc::from);
        Claim { id: ClaimId(77), kind, value, ..Claim::of_test("n", mode, Arc::new(who)) }
    }

    #[test]
    fn a_record_reads_back_what_was_written() {
        let data = write(&claim(Kind::Semaphore, Mode::Permits { count: 2, limit: 8 }, None));
        assert!(std::str::from_utf8(&data).unwrap().starts_with("lockkeeper/1 "));
        let record = Record::read(&data);
        assert_eq!((record.claim, record.pid), (Some(ClaimId(77)), Some(4121)));
        assert_eq!(
            (record.host.as_deref(), record.program.as_deref()),
            (Some("web 3%"), Some("job"))
        );
        assert_eq!(
            record.label.as_deref(),
            Some("nachts\u{fffd}=ü"),
            "control characters never reach a terminal"
        );
        assert_eq!(record.mode, Some(Mode::Permits { count: 2, limit: 8 }));
    }

    #[test]
    fn what_others_stored_is_shown_bounded_and_escaped() {
        assert_eq!(Record::read(b"10.0.0.7").label.as_deref(), Some("10.0.0.7"));
        assert_eq!(Record::read(b"").label, None);
        assert_eq!(
            Record::read(b"\xac\xed\x00\x05t\x1b[31m").label.as_deref(),
            Some("\u{fffd}\u{fffd}\u{fffd}\u{fffd}t\u{fffd}[31m")
        );
        assert_eq!(Record::read("x".repeat(10_000).as_bytes()).label.unwrap().len(), FOREIGN_MAX);
        assert_eq!(Record::read(b"lockkeeper/2 anything").newer, Some(2));
        for odd in [
            "lockkeeper/",
            "lockkeeper/x",
            "lockkeeper/1",
            "lockkeeper/1 = a=b pid=x permits=9 %",
            "lockkeeper/1 host=%zz%e",
        ] {
            _ = Record::read(odd.as_bytes());
        }
    }

    #[test]
    fn r17_who_stands_there_with_a_newer_record_is_shown_with_both_numbers() {
        let child = Child::read("_c_a-lock-0000000000").unwrap();
        let stands = holder(
            Kind::Lock,
            &child,
            b"lockkeeper/2 anything",
            &Stat { ephemeral_owner: 1, ..Stat::default() },
        );
        let label = stands.label.unwrap();
        assert!(label.contains("layout 2") && label.contains("knows 1"), "{label}");
    }

    #[test]
    fn a_candidates_data_is_its_id_alone() {
        assert_eq!(write(&claim(Kind::Election, Mode::Exclusive, Some("host-a"))), b"host-a");
        assert_eq!(write(&claim(Kind::Election, Mode::Exclusive, None)), b"web 3%:4121");
    }
}
