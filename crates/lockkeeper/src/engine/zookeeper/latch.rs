//! Latches: one node that is there, with its count, for as long as the latch is closed. Curator's
//! and kazoo's barriers are latches of one: closed while the node exists.
//!
//! Where the node is there already, as the directory of a lock, it may be one that the server
//! deletes once it is empty. So a closed latch has a child there, created and deleted in one
//! transaction with the count.

use super::claims::together;
use super::errors;
use super::inspect::{ask, catch_up, failed};
use super::layout::Layout;
use super::name;
use super::proto::{Code, Create, Reply, Request, Stat};
use super::session::Shared;
use super::state::Fault;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::Name;

const HEAD: &str = "lockkeeper-latch/";
const VERSION: u32 = 1;
/// How many counts down are remembered, so that one that is sent twice counts once.
const REMEMBERED: usize = 64;
/// Keeps the directory of a lock there while the latch is closed; it ends in no number, and so
/// stands in nobody's line.
const KEEPS: &str = "lockkeeper-latch";
/// How often a change is tried against others that change it too.
const TRIES: u32 = 1_000;

/// What stands at a latch's path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Latch {
    /// Nothing, or only the directory of a lock of the same name.
    Open,
    /// Ours.
    Closed(Record),
    /// Somebody's barrier.
    Barrier,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    count: u64,
    /// Which `set` made it.
    set: ClaimId,
    /// Who counted it down last.
    by: Vec<ClaimId>,
}

impl Record {
    fn write(&self) -> Vec<u8> {
        let ids: Vec<String> = self.by.iter().map(ToString::to_string).collect();
        format!("{HEAD}{VERSION} {} {} {}", self.count, self.set, ids.join(",")).into_bytes()
    }

    fn read(data: &[u8]) -> Result<Option<Self>> {
        let Some(rest) = std::str::from_utf8(data).ok().and_then(|text| text.strip_prefix(HEAD))
        else {
            return Ok(None);
        };
        let mut fields = rest.split(' ');
        let version = fields.next().and_then(|v| v.parse::<u32>().ok());
        if let Some(newer) = version.filter(|v| *v > VERSION) {
            let text = format!(
                "the latch was written by layout {newer}, and this release knows {VERSION}: \
                 upgrade it"
            );
            return Err(Error::new(ErrorKind::NewerLayout, text));
        }
        let count = fields.next().and_then(|c| c.parse().ok());
        let set = fields.next().and_then(ClaimId::parse);
        let by = fields
            .next()
            .unwrap_or_default()
            .split(',')
            .filter(|id| !id.is_empty())
            .map(ClaimId::parse)
            .collect::<Option<Vec<_>>>();
        match (version, count, set, by) {
            (Some(VERSION), Some(count), Some(set), Some(by)) => Ok(Some(Self { count, set, by })),
            _ => Err(Error::new(
                ErrorKind::Corrupt,
                "the latch's record cannot be read: delete its node, which opens it",
            )),
        }
    }
}

impl Latch {
    /// The count to show; a barrier stands for one.
    pub(super) fn count(&self) -> u64 {
        match self {
            Self::Open => 0,
            Self::Closed(record) => record.count,
            Self::Barrier => 1,
        }
    }

    /// What a node's data and stat mean.
    pub(super) fn read(layout: &Layout, data: &[u8], stat: &Stat) -> Result<Self> {
        if let Some(record) = Record::read(data)? {
            return Ok(Self::Closed(record));
        }
        // Curator leaves the data of directories empty, kazoo that of barriers; kazoo's semaphores
        // keep their limit there.
        let limit =
            *layout == Layout::Kazoo && !data.is_empty() && data.iter().all(u8::is_ascii_digit);
        let empty = *layout != Layout::Kazoo && data.is_empty();
        Ok(if limit || empty || stat.is_directory() { Self::Open } else { Self::Barrier })
    }
}

/// What stands there, and the version of its data; `None` when nothing does.
async fn look(shared: &Shared, path: &str) -> Result<Option<(Latch, i32)>, Fault> {
    catch_up(shared);
    match ask(shared, Request::GetData { path: path.to_owned(), watch: false }).await {
        Ok(Reply::Data(data, stat)) => match Latch::read(&shared.options.layout, &data, &stat) {
            Ok(latch) => Ok(Some((latch, stat.version))),
            Err(error) => Err(Fault::Told(error)),
        },
        Ok(_) | Err(Fault::Code(Code::NO_NODE)) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// What keeps the latch's node there.
fn keeper(path: &str) -> String {
    format!("{path}/{KEEPS}")
}

fn set_data(path: &str, record: Option<&Record>, version: i32) -> Request {
    Request::SetData {
        path: path.to_owned(),
        data: record.map(Record::write).unwrap_or_default(),
        version,
    }
}

/// Sets the count, if it is zero or absent; answers whether it did.
pub(super) async fn set(shared: &Shared, name: &Name, count: u64) -> Result<bool> {
    let path = name::directory(&shared.options.chroot, &shared.options.layout, name)?;
    let record = Record { count, set: ClaimId::fresh(), by: Vec::new() };
    // What was there when a request was sent whose answer is lost.
    let mut lost: Option<Option<i32>> = None;
    let mut there = None;
    // Somebody emptied the node, and left what keeps it.
    let mut kept = false;
    for _ in 0..TRIES {
        let found = look(shared, &path).await;
        if let Ok(found) = &found {
            there = found.as_ref().map(|(_, version)| *version);
        }
        let request = match found {
            Err(Fault::Lost) if lost.is_some() => return Err(errors::unanswered()),
            // Either never set, or set and counted down to the end since. Only an unchanged node
            // says which.
            Ok(Some((Latch::Open, _)) | None)
                if lost.is_some_and(|before| before.is_none() || before != there) =>
            {
                return Err(errors::unanswered());
            }
            // A lost answer of ours: it happened.
            Ok(Some((Latch::Closed(there), _))) if there.set == record.set => return Ok(true),
            Ok(Some((Latch::Open, version))) if kept => set_data(&path, Some(&record), version),
            Ok(Some((Latch::Open, version))) => {
                let (path_kept, acl) = (keeper(&path), shared.options.acl.clone());
                let keeps = Request::Create {
                    path: path_kept,
                    data: Vec::new(),
                    acl,
                    how: Create::Persistent,
                };
                Request::Multi(vec![set_data(&path, Some(&record), version), keeps])
            }
            Ok(Some(_)) => return Ok(false),
            Ok(None) => {
                let acl = shared.options.acl.clone();
                Request::Create {
                    path: path.clone(),
                    data: record.write(),
                    acl,
                    how: Create::Persistent,
                }
            }
            Err(fault) => return Err(failed(shared, fault, &path)),
        };
        let both = matches!(request, Request::Multi(_));
        match done(ask(shared, request).await) {
            Ok(()) => return Ok(true),
            Err(Fault::Lost) => lost = Some(there),
            Err(Fault::Code(Code::NODE_EXISTS)) if both => kept = true,
            // It went away in between.
            Err(Fault::Code(Code::NO_NODE)) if both => {}
            Err(Fault::Code(Code::NODE_EXISTS | Code::BAD_VERSION)) => {}
            Err(Fault::Code(Code::NO_NODE)) => parents(shared, &path).await?,
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Err(errors::unanswered())
}

/// What became of one request, or of several of which all are done or none.
pub(super) fn done(answer: Result<Reply, Fault>) -> Result<(), Fault> {
    match answer? {
        Reply::Many(parts) => together(Ok(Reply::Many(parts))).map(|_| ()).map_err(Fault::Code),
        _ => Ok(()),
    }
}

/// Makes what is missing above a path.
pub(super) async fn parents(shared: &Shared, path: &str) -> Result<()> {
    let inside = path.get(shared.options.chroot.len()..).unwrap_or_default();
    for (at, _) in inside.match_indices('/').skip(1) {
        let above = path.get(..shared.options.chroot.len() + at).unwrap_or_default().to_owned();
        let how = if shared.options.layout == Layout::Curator {
            Create::Container
        } else {
            Create::Persistent
        };
        let request = Request::Create {
            path: above.clone(),
            data: Vec::new(),
            acl: shared.options.acl.clone(),
            how,
        };
        match ask(shared, request).await {
            Ok(_) | Err(Fault::Code(Code::NODE_EXISTS | Code::NO_NODE)) => {}
            Err(fault) => return Err(failed(shared, fault, &above)),
        }
    }
    Ok(())
}

/// Counts down by one; answers whether the latch is open now. Sent twice with one id it counts
/// once.
pub(super) async fn count_down(shared: &Shared, name: &Name, id: ClaimId) -> Result<bool> {
    let path = name::directory(&shared.options.chroot, &shared.options.layout, name)?;
    let mut which = None;
    let mut lost = false;
    for _ in 0..TRIES {
        let (latch, version) = match look(shared, &path).await {
            Err(Fault::Lost) if lost => return Err(errors::unanswered()),
            Ok(Some(found)) => found,
            Ok(None) => return Ok(true),
            Err(fault) => return Err(failed(shared, fault, &path)),
        };
        let mut record = match latch {
            Latch::Open => return Ok(true),
            // A latch of one.
            Latch::Barrier => Record { count: 1, set: ClaimId(0), by: Vec::new() },
            Latch::Closed(record) => record,
        };
        // Another latch by now: the one that was counted down has opened.
        if *which.get_or_insert(record.set) != record.set {
            return Ok(true);
        }
        if record.by.contains(&id) {
            return Ok(false);
        }
        record.count = record.count.saturating_sub(1);
        record.by.push(id);
        if record.by.len() > REMEMBERED {
            record.by.remove(0);
        }
        let opens = record.count == 0;
        let request = if opens {
            Request::Delete { path: path.clone(), version }
        } else {
            set_data(&path, Some(&record), version)
        };
        let mut answer = done(ask(shared, request).await);
        if matches!(answer, Err(Fault::Code(Code::NOT_EMPTY))) {
            // A lock of the same name stands there: the directory stays, the latch goes.
            let keeps = Request::Delete { path: keeper(&path), version: -1 };
            answer = done(
                ask(shared, Request::Multi(vec![set_data(&path, None, version), keeps])).await,
            );
            if matches!(answer, Err(Fault::Code(Code::NO_NODE))) {
                answer = done(ask(shared, set_data(&path, None, version)).await);
            }
        }
        match answer {
            Ok(()) => return Ok(opens),
            Err(Fault::Lost) => lost = true,
            Err(Fault::Code(Code::BAD_VERSION | Code::NO_NODE)) => {}
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Err(errors::unanswered())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latch_reads_back_what_was_written() {
        let record = Record { count: 3, set: ClaimId(7), by: vec![ClaimId(8), ClaimId(9)] };
        let read = |data: &[u8], stat: &Stat| Latch::read(&Layout::Curator, data, stat);
        let bare = Stat::default();
        assert_eq!(read(&record.write(), &bare).unwrap(), Latch::Closed(record));
        assert_eq!(read(b"", &bare).unwrap(), Latch::Open, "the directory of a lock");
        assert_eq!(read(b"10.0.0.7", &bare).unwrap(), Latch::Barrier, "Curator's");
        assert_eq!(Latch::read(&Layout::Kazoo, b"", &bare).unwrap(), Latch::Barrier, "kazoo's");
        assert_eq!(
            Latch::read(&Layout::Kazoo, b"", &Stat { cversion: 1, ..bare }).unwrap(),
            Latch::Open
        );
        assert_eq!(
            Latch::read(&Layout::Kazoo, b"8", &bare).unwrap(),
            Latch::Open,
            "kazoo's semaphore"
        );
        assert_eq!(
            read(b"lockkeeper-latch/2 x", &bare).unwrap_err().kind(),
            ErrorKind::NewerLayout
        );
        assert_eq!(read(b"lockkeeper-latch/1 x", &bare).unwrap_err().kind(), ErrorKind::Corrupt);
    }
}
