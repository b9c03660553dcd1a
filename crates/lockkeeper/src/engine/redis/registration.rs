//! The schemes and options of Redis URLs, as the reference lists them; `url` reads them.

use crate::engine::tls::Tls;
use crate::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

const OPTIONS: [UrlOption; 11] = [
    UrlOption::new(
        "db",
        Value::Number(0, u32::MAX as u64),
        "0",
        "the database; also the path: redis://host/3",
    )
    .identity(),
    UrlOption::new(
        "layout",
        Value::OneOf(&["native", "redisson", "plain"]),
        "native",
        "how locks are written down: lockkeeper's way, Redisson's, or one string key a lock",
    )
    .identity(),
    UrlOption::new(
        "lock",
        Value::OneOf(&["plain", "fenced", "fair", "rw"]),
        "plain",
        "RLock, RFencedLock, RFairLock or RReadWriteLock",
    )
    .identity()
    .needs("layout", "redisson"),
    UrlOption::new(
        "semaphore",
        Value::OneOf(&["expirable", "simple"]),
        "expirable",
        "RPermitExpirableSemaphore or RSemaphore",
    )
    .needs("layout", "redisson"),
    UrlOption::new("key", Value::Text("KEY"), "{name}", "the key of a lock; has {name} once")
        .identity()
        .needs("layout", "plain"),
    UrlOption::new(
        "value",
        Value::OneOf(&["hex", "guid", "base64"]),
        "hex",
        "how the holder's random value is written: as redis-py, RedLock.net or redsync do",
    )
    .needs("layout", "plain"),
    UrlOption::new(
        "namespace",
        Value::Word("WORD"),
        "lockkeeper",
        "what the keys of layout=native begin with",
    )
    .identity(),
    UrlOption::new("connect_timeout", Value::Duration, "5s", "how long connecting may take"),
    UrlOption::new("request_timeout", Value::Duration, "2s", "how long an answer may take"),
    UrlOption::new(
        "password_file",
        Value::Text("FILE"),
        "",
        "the file that holds the password; read again for each connection",
    ),
    UrlOption::new(
        "password_env",
        Value::Text("NAME"),
        "",
        "the environment variable that holds the password",
    ),
];

pub(crate) fn registration() -> Registration {
    let mut redis =
        Registration::new("redis", &["redis", "rediss", "redis+unix"], Keep::Lease, open);
    redis.port = Some(super::url::PORT);
    redis.paths_without_at = &["redis", "rediss"];
    redis.place = Some(super::url::place);
    redis.options = OPTIONS.into_iter().chain(Tls::OPTIONS).collect();
    redis
}

fn open(url: &mut EngineUrl, common: &Common) -> Result<Box<dyn Engine>> {
    let options = super::url::options(url, common.ttl, common.drift_per_mille)?;
    Ok(super::connect(options, None))
}
