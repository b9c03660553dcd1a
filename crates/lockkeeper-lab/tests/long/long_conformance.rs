//! The rest of the matrix: the layouts of Redis that are shared with other software, and the
//! engines whose servers take long to start.

use crate::subjects::postgres::{postgres, postgres_pooled, postgres_session, shedlock};
use crate::subjects::redis::redis;
use crate::subjects::zookeeper::{ensemble, single, zookeeper};

lockkeeper_lab::conformance! {
    redis_plain => redis("redis, layout=plain", "&layout=plain").foreign(),
    redisson => redis("redis, layout=redisson", "&layout=redisson").foreign(),
    redisson_fenced => redis(
        "redis, layout=redisson&lock=fenced",
        "&layout=redisson&lock=fenced",
    )
    .foreign(),
    redisson_fair => redis(
        "redis, layout=redisson&lock=fair",
        "&layout=redisson&lock=fair",
    )
    .foreign(),
    redisson_rw => redis("redis, layout=redisson&lock=rw", "&layout=redisson&lock=rw").foreign(),
    redisson_simple_semaphore => redis(
        "redis, layout=redisson&semaphore=simple",
        "&layout=redisson&semaphore=simple",
    )
    .foreign(),
    postgres_table => postgres("postgres", ""),
    postgres_pooled => postgres_pooled(),
    postgres_session => postgres_session(),
    postgres_shedlock => shedlock("postgres, layout=shedlock", "&layout=shedlock").foreign(),
    zookeeper_curator => zookeeper(single(), "layout=curator"),
    zookeeper_kazoo => zookeeper(single(), "layout=kazoo").electing_by_lock(),
    zookeeper_plain => zookeeper(single(), "layout=plain"),
    zookeeper_plain_prefix => zookeeper(single(), "layout=plain&prefix=Lock"),
    zookeeper_ensemble => zookeeper(ensemble(), "layout=curator"),
}
