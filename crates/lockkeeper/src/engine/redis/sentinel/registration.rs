//! The scheme and options of Sentinel URLs, as the reference lists them; `options` reads them.

use std::sync::Arc;

use super::name;
use super::options::{PORT, REPLICAS_MAX, SentinelOptions};
use super::resolve::Sentinels;
use crate::engine::redis;
use crate::engine::redis::options::RedisOptions;
use crate::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

/// Beside those of one server.
const OPTIONS: [UrlOption; 4] = [
    UrlOption::new(
        "sentinel_password_file",
        Value::Text("FILE"),
        "",
        "the file that holds the Sentinels' own password; read again for each connection",
    ),
    UrlOption::new(
        "wait_replicas",
        Value::Number(0, REPLICAS_MAX),
        "0",
        "how many replicas must have a grant or a renewal before it counts",
    ),
    UrlOption::new(
        "wait_timeout",
        Value::Duration,
        "500ms",
        "how long they have for it; less than request_timeout",
    ),
    UrlOption::new("tls", Value::Switch, "false", "TLS to the master and to every Sentinel"),
];

pub(crate) fn registration() -> Registration {
    let mut sentinel = Registration::new("sentinel", &["redis+sentinel"], Keep::Lease, open);
    sentinel.port = Some(PORT);
    sentinel.paths_without_at = sentinel.schemes;
    sentinel.place = Some(name::place);
    sentinel.options = OPTIONS.into_iter().chain(redis::registration().options).collect();
    for option in &mut sentinel.options {
        match option.name {
            "db" => option.about = "the database; also the path: redis+sentinel://a,b,c/service/3",
            "password_file" => {
                option.about =
                    "the file that holds the master's password; read again for each connection";
            }
            "password_env" => {
                option.about = "the environment variable that holds the master's password";
            }
            _ => {}
        }
    }
    sentinel
}

fn open(url: &mut EngineUrl, common: &Common) -> Result<Box<dyn Engine>> {
    let sentinels = Sentinels::new(Arc::new(SentinelOptions::take(url, common)?));
    let master = sentinels.options.master.clone();
    let master = RedisOptions { resolve: Some(sentinels.clone()), ..master };
    Ok(redis::connect(master, Some(sentinels)))
}
