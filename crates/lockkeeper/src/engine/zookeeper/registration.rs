//! The options of ZooKeeper URLs, as the reference lists them; `options` reads them.

use super::ZooKeeper;
use super::options::{Options, PORT, SESSION};
use crate::engine::tls::Tls;
use crate::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

const OPTIONS: [UrlOption; 10] = [
    UrlOption::new(
        "layout",
        Value::OneOf(&["curator", "kazoo", "plain"]),
        "curator",
        "how nodes are called: as Curator does, as kazoo does, or as ZkClient and the articles do",
    )
    .identity(),
    UrlOption::new("prefix", Value::Text("WORD"), "", "what the names of nodes begin with")
        .identity()
        .needs("layout", "plain"),
    UrlOption::new(
        "semaphore",
        Value::OneOf(&["own", "shared"]),
        "own",
        "lockkeeper's semaphores, or those of Curator and kazoo",
    ),
    UrlOption::new(
        "session_timeout",
        Value::Duration,
        "15s",
        "how long a session lasts without renewal, 100ms to 24h",
    ),
    UrlOption::new(
        "connect_timeout",
        Value::Duration,
        "5s",
        "how long connecting may take, 100ms to 24h",
    ),
    UrlOption::new(
        "request_timeout",
        Value::Duration,
        "2s",
        "how long an answer may take, 100ms to 24h",
    ),
    UrlOption::new(
        "auth",
        Value::Secret("SCHEME:CREDENTIAL"),
        "",
        "an identity of the session: digest:user:password",
    ),
    UrlOption::new(
        "auth_file",
        Value::Text("FILE"),
        "",
        "a file with an identity in each line; read again for each connection",
    ),
    UrlOption::new(
        "acl",
        Value::Text("SCHEME:ID:PERMS"),
        "world:anyone:cdrwa",
        "what nodes allow to whom; entries behind commas",
    ),
    UrlOption::new("tls", Value::Switch, "false", "speaks TLS"),
];

pub(crate) fn registration() -> Registration {
    let keep = Keep::Session { option: "session_timeout", default: SESSION };
    let mut zookeeper = Registration::new("zookeeper", &["zk"], keep, open);
    zookeeper.port = Some(PORT);
    zookeeper.place = Some(place);
    zookeeper.options = OPTIONS.into_iter().chain(Tls::OPTIONS).collect();
    zookeeper
}

/// An ensemble has no order; the slash at the end of its chroot is none of it.
fn place(url: &mut EngineUrl) -> Result<()> {
    url.hosts.sort();
    url.path.truncate(url.path.trim_end_matches('/').len());
    Ok(())
}

fn open(url: &mut EngineUrl, common: &Common) -> Result<Box<dyn Engine>> {
    Ok(Box::new(ZooKeeper::new(Options::from_url(url, common.drift_per_mille)?)))
}
