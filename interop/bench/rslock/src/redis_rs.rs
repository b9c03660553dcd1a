//! A lock that somebody writes who has only the client: SET NX PX, and a script that compares and
//! deletes, on one multiplexed connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};

use crate::{Failure, TTL};

/// Nothing tells that the lock is free: it is asked for again.
const PAUSE: Duration = Duration::from_millis(10);
/// Requests that wait to be written: by default there is room for 50, and more callers are slower.
const ROOM: usize = 256;
const UNLOCK: &str =
    "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1]) or 0";

#[derive(Clone)]
pub struct Raw {
    connection: MultiplexedConnection,
    unlock: Arc<Script>,
    taken: Arc<AtomicU64>,
}

impl Raw {
    pub const SETTINGS: &str =
        "SET NX PX and a script, pipeline_buffer_size 256, asked again after 10 ms";

    pub async fn connect(url: &str) -> Result<Self, Failure> {
        let config = AsyncConnectionConfig::new().set_pipeline_buffer_size(ROOM);
        let client = Client::open(url)?;
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Self { connection, unlock: Arc::new(Script::new(UNLOCK)), taken: Arc::default() })
    }

    /// The value that it was taken with.
    pub async fn lock(&mut self, name: &str) -> Result<String, Failure> {
        let value = format!("{}-{}", std::process::id(), self.taken.fetch_add(1, Relaxed));
        let mut set = redis::cmd("SET");
        set.arg(name).arg(&value).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        while !set.query_async::<bool>(&mut self.connection).await? {
            tokio::time::sleep(PAUSE).await;
        }
        Ok(value)
    }

    pub async fn unlock(&mut self, name: &str, value: &str) -> Result<(), Failure> {
        let mut call = self.unlock.key(name);
        match call.arg(value).invoke_async(&mut self.connection).await? {
            1 => Ok(()),
            gone => Err(format!("it was not ours: {gone}").into()),
        }
    }
}
