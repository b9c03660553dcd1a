//! The matrix over a Redis Cluster: every layout, over three shards.

use crate::subjects::cluster::cluster;

lockkeeper_lab::conformance! {
    cluster_native => cluster("redis cluster", ""),
    cluster_plain => cluster("redis cluster, layout=plain", "&layout=plain").foreign(),
    cluster_redisson => cluster("redis cluster, layout=redisson", "&layout=redisson").foreign(),
    cluster_redisson_rw => cluster(
        "redis cluster, layout=redisson&lock=rw",
        "&layout=redisson&lock=rw",
    )
    .foreign(),
}
