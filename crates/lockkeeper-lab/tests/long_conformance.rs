//! The rest of the matrix: the layouts of Redis that are shared with other software, and ZooKeeper.

#![allow(clippy::expect_used, reason = "a test panics when it fails")]

#[path = "subjects/redis.rs"]
mod redis_server;
#[path = "subjects/zookeeper.rs"]
mod zookeeper_servers;

use redis_server::redis;
use zookeeper_servers::{ensemble, single, zookeeper};

lockkeeper_lab::conformance!(redis_plain, redis("redis, layout=plain", "&layout=plain").foreign());
lockkeeper_lab::conformance!(redisson, redis("redis, layout=redisson", "&layout=redisson").foreign());
lockkeeper_lab::conformance!(redisson_fenced, redis("redis, layout=redisson&lock=fenced", "&layout=redisson&lock=fenced").foreign());
lockkeeper_lab::conformance!(redisson_fair, redis("redis, layout=redisson&lock=fair", "&layout=redisson&lock=fair").foreign());
lockkeeper_lab::conformance!(redisson_rw, redis("redis, layout=redisson&lock=rw", "&layout=redisson&lock=rw").foreign());
lockkeeper_lab::conformance!(
    redisson_simple_semaphore,
    redis("redis, layout=redisson&semaphore=simple", "&layout=redisson&semaphore=simple").foreign()
);

lockkeeper_lab::conformance!(zookeeper_curator, zookeeper(single(), "layout=curator"));
lockkeeper_lab::conformance!(zookeeper_kazoo, zookeeper(single(), "layout=kazoo").electing_by_lock());
lockkeeper_lab::conformance!(zookeeper_plain, zookeeper(single(), "layout=plain"));
lockkeeper_lab::conformance!(zookeeper_plain_prefix, zookeeper(single(), "layout=plain&prefix=Lock"));
lockkeeper_lab::conformance!(zookeeper_ensemble, zookeeper(ensemble(), "layout=curator"));
