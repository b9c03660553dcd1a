//! What the URL says, taken apart.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use super::layout::Layout;
pub(crate) use super::proto::Acl;
use crate::error::{Error, ErrorKind, Result};

/// Something that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// One identity that the session takes on: `digest` and `user:password`, for example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) scheme: String,
    pub(crate) credential: Secret,
}

/// Files for TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Certificates of authorities, PEM; without it those of the system.
    pub(crate) ca: Option<PathBuf>,
    /// Our certificate chain and key, PEM, where the server asks for them.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Servers of one ensemble.
    pub(crate) hosts: Vec<(String, u16)>,
    /// Below this path everything happens; empty for the root, else without a slash at the end.
    pub(crate) chroot: String,
    pub(crate) auth: Vec<Auth>,
    /// What our nodes and directories allow to whom.
    pub(crate) acl: Vec<Acl>,
    /// What is asked for; the server has bounds of its own.
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) layout: Layout,
    /// How much clock rates may differ, in thousandths.
    pub(crate) drift_per_mille: u32,
    pub(crate) tls: Option<Tls>,
}

impl Options {
    /// The defaults, for these servers.
    pub(crate) fn new(hosts: Vec<(String, u16)>) -> Self {
        Self {
            hosts,
            chroot: String::new(),
            auth: Vec::new(),
            acl: vec![Acl::open()],
            session_timeout: Duration::from_secs(15),
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            layout: Layout::Curator,
            drift_per_mille: 100,
            tls: None,
        }
    }

    /// The servers as texts, for messages.
    pub(super) fn servers(&self) -> String {
        let all: Vec<String> = self.hosts.iter().map(|(host, port)| format!("{host}:{port}")).collect();
        all.join(",")
    }

    /// The path that stands for everything of ours.
    pub(super) fn root(&self) -> String {
        if self.chroot.is_empty() { "/".to_owned() } else { self.chroot.clone() }
    }
}

impl Acl {
    /// Everybody may do everything.
    pub(crate) fn open() -> Self {
        Self { perms: 31, scheme: "world".to_owned(), id: "anyone".to_owned() }
    }

    /// Reads `scheme:id:perms` entries behind commas, such as `auth::cdrwa,world:anyone:r`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], naming the entry.
    pub(crate) fn parse_all(text: &str) -> Result<Vec<Self>> {
        text.split(',').map(Self::parse).collect()
    }

    fn parse(text: &str) -> Result<Self> {
        let bad = || {
            let text = format!("{text:?} is no access rule: write scheme:id:perms with perms out of c, d, r, w, a, such as auth::cdrwa");
            Error::new(ErrorKind::InvalidArgument, text)
        };
        let (scheme, rest) = text.split_once(':').ok_or_else(bad)?;
        let (id, letters) = rest.rsplit_once(':').ok_or_else(bad)?;
        let mut perms = 0;
        for letter in letters.chars() {
            perms |= match letter {
                'r' => 1,
                'w' => 2,
                'c' => 4,
                'd' => 8,
                'a' => 16,
                _ => return Err(bad()),
            };
        }
        if scheme.is_empty() || perms == 0 {
            return Err(bad());
        }
        Ok(Self { perms, scheme: scheme.to_owned(), id: id.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn access_rules_are_read_as_zookeepers_own_shell_writes_them() {
        let all = Acl::parse_all("auth::cdrwa,digest:bob:x+y/z=:rw").unwrap();
        assert_eq!(all[0], Acl { perms: 31, scheme: "auth".into(), id: String::new() });
        assert_eq!(all[1], Acl { perms: 3, scheme: "digest".into(), id: "bob:x+y/z=".into() });
        for bad in ["", "world", "world:anyone", "world:anyone:", "world:anyone:x", ":anyone:r", "world:anyone:r,"] {
            assert_eq!(Acl::parse_all(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn a_secret_is_never_shown() {
        let auth = Auth { scheme: "digest".into(), credential: Secret("bob:hunter2".into()) };
        assert!(!format!("{auth:?}").contains("hunter2"));
    }
}
