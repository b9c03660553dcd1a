//! Every layout of every engine with leases, on servers to which nothing happens.

use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::server::{Ensemble, Server, Settings};

/// ZooKeeper's own default; sessions last 2 to 20 ticks.
const TICK: Duration = Duration::from_secs(2);

/// A Redis server, a single ZooKeeper server and an ensemble of three.
pub struct Servers {
    redis: RedisServer,
    one: Server,
    three: Ensemble,
}

/// A layout on a server or an ensemble.
pub struct Setup {
    pub what: String,
    pub url: String,
    /// The length of a lease where nothing is said, the shortest and the longest that are asked
    /// for.
    pub leases: [Duration; 3],
    pub by: By,
    pub has_elections: bool,
}

/// What a lease's length is asked for with: an option of the command line, or one of the URL.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    Ttl,
    Session,
}

impl Servers {
    pub fn start() -> Self {
        let settings = Settings { tick: TICK, ..Settings::default() };
        Self {
            redis: RedisServer::start(),
            one: Server::start(settings.clone()).expect("a ZooKeeper server"),
            three: Ensemble::start(3, &settings).expect("an ensemble"),
        }
    }

    /// Each layout; a layout that is the default is not mentioned in its URL.
    pub fn setups(&self) -> Vec<Setup> {
        let redis = ["native", "plain", "redisson"].map(|layout| {
            let url = if layout == "native" {
                self.redis.url()
            } else {
                format!("{}?layout={layout}", self.redis.url())
            };
            Setup {
                what: format!("redis {layout}"),
                url,
                leases: [30, 2, 60].map(Duration::from_secs),
                by: By::Ttl,
                has_elections: layout == "native",
            }
        });
        let ensembles = [("1 server", self.one.address()), ("3 servers", self.three.addresses())];
        let zookeeper = ["curator", "kazoo", "plain"].into_iter().flat_map(|layout| {
            ensembles.each_ref().map(|(what, servers)| {
                let url = if layout == "curator" {
                    format!("zk://{servers}")
                } else {
                    format!("zk://{servers}?layout={layout}")
                };
                let leases = [Duration::from_secs(15), 2 * TICK, 20 * TICK];
                Setup {
                    what: format!("zookeeper {layout}, {what}"),
                    url,
                    leases,
                    by: By::Session,
                    has_elections: layout != "plain",
                }
            })
        });
        redis.into_iter().chain(zookeeper).collect()
    }
}
