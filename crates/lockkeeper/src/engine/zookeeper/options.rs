//! What the URL says, taken apart.

use std::time::Duration;

pub(crate) use super::layout::Layout;
pub(crate) use super::proto::Acl;
use crate::engine::password::{Login, Password};
use crate::engine::tls::Tls;
use crate::open::url::{EngineUrl, Secret};
use crate::words::error::{Error, ErrorKind, Result};

/// The port of a server that is named without one.
pub(super) const PORT: u16 = 2181;
/// How long a session lasts unless the URL says otherwise.
pub(super) const SESSION: Duration = Duration::from_secs(15);

/// One identity that the session takes on: `digest` and `user:password`, for example.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Auth {
    pub(crate) scheme: String,
    pub(crate) credential: Secret,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Servers of one ensemble.
    pub(crate) hosts: Vec<(String, u16)>,
    /// Below this path everything happens; empty for the root, else without a slash at the end.
    pub(crate) chroot: String,
    pub(crate) auth: Vec<Auth>,
    /// More of them, in a file; where there is none, nothing more. What the ensemble refused is
    /// known here in both cases.
    pub(crate) more_auth: Option<Password>,
    /// What our nodes and directories allow to whom.
    pub(crate) acl: Vec<Acl>,
    pub(crate) tls: Option<Tls>,
    /// What is asked for; the server has bounds of its own.
    pub(crate) session_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) request_timeout: Duration,
    pub(crate) layout: Layout,
    /// Semaphores are those of the layout's own library, and not ours.
    pub(crate) shared_permits: bool,
    /// How much clock rates may differ, in thousandths.
    pub(crate) drift_per_mille: u32,
}

impl Options {
    /// The defaults, for these servers.
    pub(crate) fn new(hosts: Vec<(String, u16)>) -> Self {
        Self {
            hosts,
            chroot: String::new(),
            auth: Vec::new(),
            more_auth: None,
            acl: vec![Acl::open()],
            tls: None,
            session_timeout: SESSION,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(2),
            layout: Layout::Curator,
            shared_permits: false,
            drift_per_mille: 100,
        }
    }

    /// What a `zk://` URL says.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], naming the option.
    pub(crate) fn from_url(url: &mut EngineUrl, drift_per_mille: u32) -> Result<Self> {
        if url.hosts.is_empty() {
            return Err(invalid("zk: needs its servers, as in zk://a:2181,b:2181,c:2181/chroot"));
        }
        let hosts =
            url.hosts.iter().map(|(host, port)| (host.clone(), port.unwrap_or(PORT))).collect();
        let mut options = Self { drift_per_mille, ..Self::new(hosts) };
        options.chroot = super::name::check_chroot(&url.path)?;
        if let Some(user) = &url.user {
            let password = url.password.as_ref().map_or("", Secret::reveal);
            options.auth.push(Auth {
                scheme: "digest".to_owned(),
                credential: Secret::new(format!("{user}:{password}")),
            });
        }
        if let Some(text) = url.take("auth") {
            options.auth.push(Auth::parse("auth=", &text)?);
        }
        options.more_auth = match url.take("auth_file") {
            Some(file) => Some(Password::file_of("auth_file", file.into(), check_auth_file)),
            None => (!options.auth.is_empty()).then(|| Password::given(Secret::new(""))),
        };
        if let Some(text) = url.take("acl") {
            options.acl = Acl::parse_all(&text)?;
        }
        let prefix = url.take("prefix");
        options.layout = match url.take("layout").as_deref() {
            None | Some("curator") => Layout::Curator,
            Some("kazoo") => Layout::Kazoo,
            Some("plain") => Layout::Plain { prefix: prefix.clone().unwrap_or_default() },
            Some(other) => {
                return Err(invalid(format!(
                    "layout={other} is none of ZooKeeper's: curator, kazoo, plain"
                )));
            }
        };
        match (&options.layout, prefix) {
            (Layout::Plain { .. }, Some(prefix)) if prefix.contains('/') => {
                return Err(invalid("prefix= is part of one node's name and holds no slash"));
            }
            (Layout::Curator | Layout::Kazoo, Some(_)) => {
                return Err(invalid("prefix= goes with layout=plain only"));
            }
            _ => {}
        }
        options.shared_permits = match (url.take("semaphore").as_deref(), &options.layout) {
            (None | Some("own"), _) => false,
            (Some("shared"), Layout::Curator | Layout::Kazoo) => true,
            (Some("shared"), _) => {
                return Err(invalid(
                    "semaphore=shared goes with layout=curator and layout=kazoo only",
                ));
            }
            (Some(other), _) => {
                return Err(invalid(format!("semaphore={other} is neither own nor shared")));
            }
        };
        let times = [
            ("session_timeout", &mut options.session_timeout),
            ("connect_timeout", &mut options.connect_timeout),
            ("request_timeout", &mut options.request_timeout),
        ];
        for (option, time) in times {
            if let Some(given) = url.take_duration(option)? {
                if given < Duration::from_millis(100) || given > Duration::from_secs(24 * 3600) {
                    return Err(invalid(format!("{option} is between 100ms and 24h")));
                }
                *time = given;
            }
        }
        let secure = url.take_bool("tls")?.unwrap_or(false);
        options.tls = Tls::take(url, secure, "say tls=true")?;
        Ok(options)
    }

    /// The identities of one connection.
    pub(super) fn identities(&self, login: Option<&Login>) -> Vec<Auth> {
        let file = login.map_or("", |login| login.password.reveal());
        // It was checked when it was read.
        let more = lines(file).filter_map(|line| Auth::parse("", line).ok());
        self.auth.iter().cloned().chain(more).collect()
    }

    /// The servers as texts, for messages.
    pub(super) fn servers(&self) -> String {
        let all: Vec<String> = (0..self.hosts.len()).map(|at| self.server(at)).collect();
        all.join(",")
    }

    /// The one at this place.
    pub(super) fn server(&self, at: usize) -> String {
        self.hosts.get(at).map(|(host, port)| format!("{host}:{port}")).unwrap_or_default()
    }

    /// Whether semaphores are kazoo's: permits without numbers in the directory of the name itself.
    pub(super) fn counts_leases(&self) -> bool {
        self.shared_permits && self.layout == Layout::Kazoo
    }

    /// The path that stands for everything of ours.
    pub(super) fn root(&self) -> String {
        if self.chroot.is_empty() { "/".to_owned() } else { self.chroot.clone() }
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

impl Auth {
    fn parse(what: &str, text: &str) -> Result<Self> {
        let (scheme, credential) =
            text.split_once(':').filter(|(scheme, _)| !scheme.is_empty()).ok_or_else(|| {
                let like = "is written scheme:credential, as in digest:user:password";
                invalid(format!("{what} {like}"))
            })?;
        Ok(Self { scheme: scheme.to_owned(), credential: Secret::new(credential) })
    }
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim().is_empty())
}

/// Whether each line of an `auth_file` is an identity.
fn check_auth_file(what: &str, text: &str) -> Result<()> {
    let what = format!("each line of {what}");
    lines(text).try_for_each(|line| Auth::parse(&what, line).map(drop))
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
            let text = format!(
                "{text:?} is not an access rule: write scheme:id:perms with perms out of c, d, r, \
                 w, a, such as auth::cdrwa"
            );
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
    use crate::engine::Value;

    #[test]
    fn access_rules_are_read_as_zookeepers_own_shell_writes_them() {
        let all = Acl::parse_all("auth::cdrwa,digest:bob:x+y/z=:rw").unwrap();
        assert_eq!(all[0], Acl { perms: 31, scheme: "auth".into(), id: String::new() });
        assert_eq!(all[1], Acl { perms: 3, scheme: "digest".into(), id: "bob:x+y/z=".into() });
        for bad in [
            "",
            "world",
            "world:anyone",
            "world:anyone:",
            "world:anyone:x",
            ":anyone:r",
            "world:anyone:r,",
        ] {
            assert_eq!(
                Acl::parse_all(bad).unwrap_err().kind(),
                ErrorKind::InvalidArgument,
                "{bad}"
            );
        }
    }

    fn options(url: &str) -> Result<Options> {
        let mut url = EngineUrl::parse(url)?;
        crate::engine::zookeeper::registration().check(&url)?;
        let options = Options::from_url(&mut url, 100)?;
        url.finish()?;
        Ok(options)
    }

    #[test]
    fn a_url_is_read_whole() {
        let all = options(
            "zk://ann:sesame@a:2182,b/app?layout=kazoo&session_timeout=9s&auth=digest:bob:hunter2&\
             acl=auth::cdrwa",
        )
        .unwrap();
        assert_eq!(all.hosts, [("a".to_owned(), 2182), ("b".to_owned(), 2181)]);
        assert_eq!(
            (all.chroot.as_str(), &all.layout, all.session_timeout),
            ("/app", &Layout::Kazoo, Duration::from_secs(9))
        );
        assert_eq!(
            all.auth.iter().map(|a| a.credential.reveal()).collect::<Vec<_>>(),
            ["ann:sesame", "bob:hunter2"]
        );
        assert!(!format!("{all:?}").contains("hunter2"), "a secret is never shown");
        for (given, prefix) in [("", ""), ("&prefix=", ""), ("&prefix=Lock", "Lock")] {
            let layout = options(&format!("zk://a?layout=plain{given}")).unwrap().layout;
            assert_eq!(layout, Layout::Plain { prefix: prefix.to_owned() }, "{given}");
        }
        assert_eq!(options("zk://a/").unwrap().root(), "/");
    }

    #[test]
    fn every_option_that_is_registered_is_read_and_its_default_is_what_it_says() {
        for option in crate::engine::zookeeper::registration().options {
            let needs =
                option.needs.map(|(name, value)| format!("&{name}={value}")).unwrap_or_default();
            let without = format!("zk://a?tls=true{needs}")
                .replace("tls=true", if option.name == "tls" { "" } else { "tls=true" });
            let given = options(&format!("{without}&{}={}", option.name, option.default));
            if option.default.is_empty() && option.name != "prefix" {
                let error = given.err().map(|e| e.message().to_owned());
                assert!(error.is_none_or(|e| e.contains(option.name)), "{}", option.name);
                continue;
            }
            assert_eq!(given.unwrap(), options(&without).unwrap(), "{}", option.name);
            for word in if let Value::OneOf(words) = option.value { words } else { &[] } {
                options(&format!("{without}&{}={word}", option.name)).unwrap();
            }
        }
    }

    #[test]
    fn tls_has_to_be_asked_for_and_is_never_left_out_silently() {
        assert!(
            options("zk://a?tls=true&tls_ca=/ca.pem")
                .unwrap()
                .tls
                .is_some_and(|tls| tls.files.ca.is_some())
        );
        assert!(options("zk://a?tls=false").unwrap().tls.is_none());
        for bad in ["zk://a?tls_ca=/ca.pem", "zk://a?tls=true&tls_cert=/c.pem", "zk://a?tls=maybe"]
        {
            assert_eq!(options(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }

    #[test]
    fn what_a_url_cannot_mean_is_refused() {
        for bad in [
            "zk:///app",
            "zk://a/x//y",
            "zk://a?layout=native",
            "zk://a?prefix=x",
            "zk://a?semaphore=mine",
            "zk://a?layout=plain&semaphore=shared",
            "zk://a?layout=plain&prefix=a/b",
            "zk://a?auth=bob",
            "zk://a?acl=x",
            "zk://a?session_timeout=1ms",
            "zk://a?unknown=1",
        ] {
            assert_eq!(options(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
