//! How many permits a semaphore has: the data of the directory in which they stand. kazoo writes
//! the bare number.

use super::errors;
use super::inspect::{ask, failed};
use super::latch::parents;
use super::name;
use super::options::Options;
use super::proto::{Code, Create, Reply, Request, Stat};
use super::session::Shared;
use super::state::Fault;
use crate::words::claim::Mode;
use crate::words::error::Result;
use crate::words::name::{Kind, Name};

const HEAD: &str = "lockkeeper-semaphore/";
pub(super) const VERSION: u32 = 1;
/// How often a change is tried against others that change it too.
const TRIES: u32 = 1_000;

/// What is stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Limit {
    /// Nothing where others made the directory, or nobody has said it yet.
    pub(super) stored: Option<u16>,
    /// Written by a release with this greater layout.
    pub(super) newer: Option<u32>,
    /// Of the directory's data.
    pub(super) version: i32,
}

impl Limit {
    pub(super) fn read(options: &Options, data: &[u8], stat: &Stat) -> Self {
        if options.counts_leases() {
            let stored = std::str::from_utf8(data).ok().and_then(|text| text.trim().parse().ok());
            return Self { stored, newer: None, version: stat.version };
        }
        let text = std::str::from_utf8(data)
            .ok()
            .and_then(|text| text.strip_prefix(HEAD)?.split_once(' '));
        let Some((Ok(layout), text)) = text.map(|(layout, text)| (layout.parse::<u32>(), text))
        else {
            return Self { version: stat.version, ..Self::default() };
        };
        let stored = text.parse().ok().filter(|limit| layout == VERSION && *limit > 0);
        Self { stored, newer: (layout > VERSION).then_some(layout), version: stat.version }
    }
}

/// The data of a claim's directory.
pub(super) fn write(options: &Options, mode: Mode) -> Vec<u8> {
    if let Mode::Permits { limit, .. } = mode { data(options, limit) } else { Vec::new() }
}

fn data(options: &Options, limit: u16) -> Vec<u8> {
    if options.counts_leases() { limit.to_string() } else { format!("{HEAD}{VERSION} {limit}") }
        .into_bytes()
}

/// Stores a limit for everybody; answers whether that changed anything. Permits that are out stay
/// out.
pub(super) async fn resize(shared: &Shared, name: &Name, limit: u16) -> Result<bool> {
    let path = name::of_kind(&shared.options, Kind::Semaphore, name)?;
    let mut sent = false;
    for _ in 0..TRIES {
        let request = match ask(shared, Request::GetData { path: path.clone(), watch: false }).await
        {
            Ok(Reply::Data(stored, stat)) => {
                let stored = Limit::read(&shared.options, &stored, &stat);
                if let Some(newer) = stored.newer {
                    return Err(errors::refused(errors::newer_limit(newer), &path));
                }
                if stored.stored == Some(limit) {
                    // By our own request whose answer was lost, or by somebody else's.
                    return Ok(sent);
                }
                Request::SetData {
                    path: path.clone(),
                    data: data(&shared.options, limit),
                    version: stored.version,
                }
            }
            Ok(_) => return Err(errors::refused(Code::RUNTIME_INCONSISTENCY, &path)),
            Err(Fault::Code(Code::NO_NODE)) => Request::Create {
                path: path.clone(),
                data: data(&shared.options, limit),
                acl: shared.options.acl.clone(),
                how: Create::Persistent,
            },
            // It was sent before, and nobody says what became of that.
            Err(Fault::Lost) if sent => return Err(errors::unanswered()),
            Err(fault) => return Err(failed(shared, fault, &path)),
        };
        sent = true;
        match ask(shared, request).await {
            Ok(_) => return Ok(true),
            Err(Fault::Code(Code::NODE_EXISTS | Code::BAD_VERSION) | Fault::Lost) => {}
            Err(Fault::Code(Code::NO_NODE)) => parents(shared, &path).await?,
            Err(fault) => return Err(failed(shared, fault, &path)),
        }
    }
    Err(errors::unanswered())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_reads_back_and_garbage_is_none() {
        let options = Options::new(Vec::new());
        let read = |data: &[u8]| Limit::read(&options, data, &Stat::default()).stored;
        assert_eq!(read(&write(&options, Mode::Permits { count: 2, limit: 65_535 })), Some(65_535));
        let newer = Limit::read(&options, b"lockkeeper-semaphore/2 8 x", &Stat::default());
        assert_eq!((newer.stored, newer.newer), (None, Some(2)));
        for garbage in [
            &b""[..],
            b"8",
            b"10.0.0.7",
            b"lockkeeper-semaphore/1 0",
            b"lockkeeper-semaphore/1 65536",
            b"\xff",
        ] {
            assert_eq!(read(garbage), None, "{garbage:?}");
        }
        let kazoo = Options {
            layout: crate::engine::zookeeper::options::Layout::Kazoo,
            shared_permits: true,
            ..options
        };
        assert_eq!(
            Limit::read(
                &kazoo,
                &write(&kazoo, Mode::Permits { count: 1, limit: 8 }),
                &Stat::default()
            )
            .stored,
            Some(8)
        );
        assert_eq!(Limit::read(&kazoo, b"", &Stat::default()).stored, None);
    }
}
