//! What a URL says about one Redis server, parsed.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
#[cfg(feature = "sentinel")]
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::client::script::Which;
#[cfg(feature = "cluster")]
use super::client::slots::Slots;
pub(crate) use super::client::stream::Resolve;
use crate::engine::password::Password;
pub(crate) use crate::engine::tls::Tls;

/// Where and how to reach a server, and how to write locks down there.
#[derive(Clone, Debug)]
pub(crate) struct RedisOptions {
    /// The server, as errors and descriptions name it.
    pub(crate) address: Address,
    /// Where it is now, asked before each dial; without, at its address.
    pub(crate) resolve: Option<Arc<dyn Resolve>>,
    /// How errors spell a URL like that of the user.
    pub(crate) spelling: Spelling,
    /// The ACL user; the default user without.
    pub(crate) user: Option<String>,
    /// Its password.
    pub(crate) password: Option<Password>,
    /// The database number.
    pub(crate) db: u32,
    /// Whether the server may be a node of a cluster; one that was not expected is refused.
    pub(crate) in_cluster: bool,
    /// Which node of a cluster has what; without, there is one server.
    #[cfg(feature = "cluster")]
    pub(crate) slots: Option<Arc<Slots>>,
    /// TLS, where the URL says so.
    pub(crate) tls: Option<Tls>,
    /// How locks are written down.
    pub(crate) layout: Layout,
    /// The default lease, as far as the description needs it; each claim says its own.
    pub(crate) ttl: Duration,
    /// How long connecting may take.
    pub(crate) connect_timeout: Duration,
    /// How long an answer may take.
    pub(crate) request_timeout: Duration,
    /// What the keys of our own layout start with.
    pub(crate) namespace: String,
    /// Layout `plain`: the key of a name, with `{name}` in it.
    pub(crate) key: String,
    /// Layout `plain`: what stands in the key.
    pub(crate) value: ValueFormat,
    /// Layout `redisson`: which lock type.
    pub(crate) redisson: RedissonLock,
    /// Layout `redisson`: which semaphore type.
    pub(crate) semaphore: RedissonSemaphore,
    /// How much clock rates may differ, in thousandths.
    pub(crate) drift_permille: u32,
    /// How many replicas have to have what grants or extends a hold.
    pub(crate) wait: Option<Wait>,
    /// A hash that is read with the greeting: what a member of a quorum says about itself.
    pub(crate) marker: Option<String>,
}

/// How many replicas acknowledge a write before it counts, and for how long that is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
}

impl RedisOptions {
    /// Whether another server may take the place of the one that has a key.
    pub(crate) fn moves(&self) -> bool {
        self.resolve.is_some() || self.scattered()
    }

    /// The scripts that give locks of the layout back, on one server, and the one of many names: of
    /// these the greeting asks whether the server has them.
    pub(in crate::engine) fn brought(&self) -> &'static [Which] {
        match self.layout {
            Layout::Native => &[Which::Release, Which::Withdraw, Which::Many, Which::Gives],
            Layout::Plain => &[Which::PlainRelease, Which::PlainGives],
            Layout::Redisson => &[
                Which::HashRelease,
                Which::FairRelease,
                Which::ReadRelease,
                Which::WriteRelease,
                Which::PermitsRelease,
            ],
        }
    }

    /// Whether keys are at several nodes.
    pub(crate) fn scattered(&self) -> bool {
        #[cfg(feature = "cluster")]
        return self.slots.is_some();
        #[cfg(not(feature = "cluster"))]
        false
    }

    /// The defaults of the URL table for one address.
    pub(crate) fn new(address: Address) -> Self {
        Self {
            address,
            resolve: None,
            spelling: Spelling::SERVER,
            user: None,
            password: None,
            db: 0,
            in_cluster: false,
            #[cfg(feature = "cluster")]
            slots: None,
            tls: None,
            layout: Layout::Native,
            ttl: Duration::from_secs(30),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            namespace: "lockkeeper".into(),
            key: "{name}".into(),
            value: ValueFormat::Hex,
            redisson: RedissonLock::Plain,
            semaphore: RedissonSemaphore::Expirable,
            drift_permille: 100,
            wait: None,
            marker: None,
        }
    }
}

/// What an error tells to write into the URL, which another engine spells otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Spelling {
    /// A URL with a user and a password.
    pub(crate) login: &'static str,
    /// How to have TLS.
    pub(crate) tls: &'static str,
    /// How to have none.
    pub(crate) no_tls: &'static str,
}

impl Spelling {
    /// One server.
    pub(crate) const SERVER: Self =
        Self { login: "redis://user:password@host", tls: "use rediss://", no_tls: "use redis://" };

    /// One server with TLS.
    pub(crate) const SECURE_SERVER: Self =
        Self { login: "rediss://user:password@host", ..Self::SERVER };

    /// One server at a unix socket.
    pub(crate) const SOCKET: Self =
        Self { login: "redis+unix://user:password@/path", ..Self::SERVER };

    /// Several servers, whose scheme does not say whether there is TLS.
    #[cfg(any(feature = "sentinel", feature = "cluster", feature = "redlock"))]
    pub(crate) const fn of_several(login: &'static str) -> Self {
        Self { login, tls: "add tls=true", no_tls: "leave out tls=true" }
    }
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A TCP port.
    Tcp(String, u16),
    /// A unix socket.
    Unix(PathBuf),
    /// Wherever the server of a service is; [`Resolve`] says it.
    #[cfg(feature = "sentinel")]
    Service(Service),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
            #[cfg(feature = "sentinel")]
            Self::Service(service) => write!(f, "{service}"),
        }
    }
}

/// A service whose server may change, as errors name it: with the address that was dialled last.
#[cfg(feature = "sentinel")]
#[derive(Clone, Debug)]
pub(crate) struct Service {
    name: Arc<str>,
    at: Arc<Mutex<Option<Box<Address>>>>,
}

#[cfg(feature = "sentinel")]
impl Service {
    pub(crate) fn new(name: &str) -> Self {
        Self { name: name.into(), at: Arc::default() }
    }

    /// It is dialled there now.
    pub(crate) fn dialled(&self, at: &Address) {
        let mut dialled = self.at.lock().unwrap_or_else(PoisonError::into_inner);
        *dialled = Some(Box::new(at.clone()));
    }
}

/// Whatever its address is, it is the same service.
#[cfg(feature = "sentinel")]
impl PartialEq for Service {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

#[cfg(feature = "sentinel")]
impl Eq for Service {}

#[cfg(feature = "sentinel")]
impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match at {
            Some(at) => write!(f, "{at} (the master of {})", self.name),
            None => write!(f, "the master of {}", self.name),
        }
    }
}

/// How locks are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// Our own: every primitive, direct grants.
    Native,
    /// As Redisson writes them.
    Redisson,
    /// One string key, as most other libraries and articles write it.
    Plain,
}

impl Layout {
    /// The word in a URL.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Redisson => "redisson",
            Self::Plain => "plain",
        }
    }
}

/// Which of Redisson's lock types a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RedissonLock {
    /// RLock.
    Plain,
    /// RFencedLock.
    Fenced,
    /// RFairLock.
    Fair,
    /// RReadWriteLock.
    ReadWrite,
}

/// Which of Redisson's semaphore types a semaphore is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum RedissonSemaphore {
    /// RPermitExpirableSemaphore.
    Expirable,
    /// RSemaphore.
    Simple,
}

/// What the layout `plain` writes into a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ValueFormat {
    /// 32 hexadecimal digits: redis-py, node-redlock.
    Hex,
    /// A GUID with dashes: RedLock.net, redis-semaphore.
    Guid,
    /// 24 characters of base64: redsync.
    Base64,
}
