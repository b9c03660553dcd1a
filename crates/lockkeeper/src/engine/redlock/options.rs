//! What a `redlock:` URL says.

use std::sync::Arc;
use std::time::Duration;

use super::name::Keys;
use super::plain::{Others, Plain};
use crate::engine::Common;
use crate::engine::password::Password;
use crate::engine::redis::options::{Address, Layout, RedisOptions, Spelling, Tls};
use crate::engine::redis::url::{self, PORT};
use crate::open::url::EngineUrl;
use crate::protocol::lease::Drift;
use crate::words::error::{Error, ErrorKind, Result};

/// How many members a quorum has.
const SIZES: [usize; 4] = [3, 5, 7, 9];

/// The shortest time that a member has for its answer, unless the URL says another.
const SERVER_TIMEOUT_LEAST: Duration = Duration::from_millis(50);

/// The longest lease that needs no word in any URL: for so long a member waits that may have
/// forgotten one. It is the layout's, as is the next: whoever waited for less than another's lease
/// would let a second holder in. A URL only lengthens them.
const MAX_TTL: Duration = Duration::from_secs(60);

/// How far the members' clocks may be apart.
const CLOCK_SKEW: Duration = Duration::from_secs(10);

/// A member waits until its clock has passed by as much again what others made of a faster one.
const CLOCK_SKEW_MOST: Duration = Duration::from_secs(MAX_TTL.as_secs() / 2);

/// The members, and how to use them.
#[derive(Clone, Debug)]
pub(super) struct RedlockOptions {
    /// One for each member, in the order of the URL.
    pub(super) members: Vec<Arc<RedisOptions>>,
    /// The default lease; each claim says its own.
    pub(super) ttl: Duration,
    pub(super) drift: Drift,
    /// The longest lease of anybody.
    pub(super) max_ttl: Duration,
    /// How long a member waits that may have forgotten leases: `max_ttl`, but in the laboratory.
    pub(super) wait: Duration,
    /// How far the members' clocks may be apart.
    pub(super) clock_skew: Duration,
    /// How long a member's answer to an acquire is waited for; `None`: see
    /// [`Self::server_timeout`].
    server_timeout: Option<Duration>,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
    pub(super) namespace: String,
    /// A layout of other programs, where the URL says so.
    pub(super) plain: Option<Plain>,
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl RedlockOptions {
    /// Takes everything out of the URL that is about a quorum. `wait`: how long members wait where
    /// that is not for the longest lease.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what to write instead.
    pub(super) fn take(
        url: &mut EngineUrl,
        common: &Common,
        wait: Option<Duration>,
    ) -> Result<Self> {
        let addresses = addresses(url)?;
        let Some(first) = addresses.first() else { return Err(wrong("redlock: needs hosts")) };
        let mut one = RedisOptions::new(first.clone());
        one.spelling = Spelling::of_several("redlock://user:password@a,b,c");
        one.ttl = common.ttl;
        one.db = url::db(url)?;
        one.user = url.user.take();
        one.password = Password::take(url)?;
        if one.user.is_some() && one.password.is_none() {
            return Err(wrong(format!(
                "the URL names a user and no password: write {}, or use password_file or \
                 password_env",
                one.spelling.login
            )));
        }
        url::timeouts(url, &mut one)?;
        url::namespace(url, &mut one)?;
        let secure = url.take_bool("tls")?.unwrap_or(false);
        one.tls = Tls::take(url, secure, one.spelling.tls)?;
        let max_ttl = url.take_duration("max_ttl")?.unwrap_or_default().max(MAX_TTL);
        if max_ttl < common.ttl {
            return Err(wrong(format!(
                "the URL's ttl is {:?} and its max_ttl is {max_ttl:?}: write a ttl up to max_ttl, \
                 or the same greater max_ttl in the URL of every client",
                common.ttl
            )));
        }
        let clock_skew = url.take_duration("clock_skew")?.unwrap_or_default().max(CLOCK_SKEW);
        if clock_skew > CLOCK_SKEW_MOST {
            return Err(wrong(format!(
                "clock_skew is {clock_skew:?}: a member that forgot waits for {MAX_TTL:?}, and its \
                 clock has to pass the others' meanwhile; write a clock_skew up to \
                 {CLOCK_SKEW_MOST:?}"
            )));
        }
        let server_timeout = url.take_duration("server_timeout")?;
        if server_timeout.is_some_and(|time| time.is_zero()) {
            return Err(wrong("server_timeout cannot be 0"));
        }
        let (connect_timeout, request_timeout) = (one.connect_timeout, one.request_timeout);
        let namespace = one.namespace.clone();
        let plain = match url.take("layout").as_deref() {
            None | Some("native") => None,
            Some("plain") => {
                // Errors say what to do about a key of this layout.
                one.layout = Layout::Plain;
                url::take_plain(url, &mut one)?;
                Some(Plain { key: one.key.clone(), others: Others::Value(one.value) })
            }
            Some("redisson") => {
                one.layout = Layout::Redisson;
                let others = Others::Redisson { fair: is_fair(url)? };
                Some(Plain { key: "{name}".into(), others })
            }
            Some(other) => {
                return Err(wrong(format!("layout={other} is none of native, plain, redisson")));
            }
        };
        one.marker = plain.is_none().then(|| Keys::new(&namespace, one.db).member());
        // What one of them refuses says nothing about the others.
        let member = |address| {
            let password = one.password.as_ref().map(Password::of_another_server);
            Arc::new(RedisOptions { address, password, ..one.clone() })
        };
        Ok(Self {
            members: addresses.into_iter().map(member).collect(),
            ttl: common.ttl,
            drift: Drift { per_mille: common.drift_per_mille, ..Drift::default() },
            max_ttl,
            wait: wait.unwrap_or(max_ttl),
            clock_skew,
            server_timeout,
            connect_timeout,
            request_timeout,
            namespace,
            plain,
        })
    }

    /// How many members are a majority.
    pub(super) fn majority(&self) -> usize {
        self.members.len() / 2 + 1
    }

    /// How long a member's answer to a claim with this lease is waited for: what the URL says, else
    /// a hundredth of the lease. Where a majority needs so much for an answer (`trip`), four times
    /// that, as long as it is no more than a quarter of the lease.
    pub(super) fn server_timeout(&self, ttl: Duration, trip: Duration) -> Duration {
        let least = SERVER_TIMEOUT_LEAST.max(ttl / 100);
        self.server_timeout.unwrap_or_else(|| least.max((trip * 4).min(ttl / 4)))
    }
}

/// Which of Redisson's locks the members keep: whether it is the RFairLock.
///
/// # Errors
/// Others than RLock and RFairLock.
fn is_fair(url: &mut EngineUrl) -> Result<bool> {
    let why = match url.take("lock").as_deref() {
        None | Some("plain") => return Ok(false),
        Some("fair") => return Ok(true),
        Some("fenced") => {
            "an RFencedLock counts for itself on each member: their tokens have no common order"
        }
        _ => "only RLocks and RFairLocks are kept on a quorum",
    };
    Err(wrong(format!("{why}: use lock=plain, or layout=native, which has a token")))
}

/// The members' addresses: an odd number, each once.
fn addresses(url: &EngineUrl) -> Result<Vec<Address>> {
    let (members, twice) = url::servers(url, PORT);
    let count = members.len();
    let like = "as in redlock://a,b,c";
    if url.path.contains(',') {
        return Err(wrong(format!("the database follows the last member, {like}/3")));
    }
    if count < 3 {
        let single = match members.as_slice() {
            [_, ..] => ", or redis://host for one server",
            [] => "",
        };
        return Err(wrong(format!(
            "a quorum of {count} members survives no failure: name 3, 5, 7 or 9 independent \
             servers, {like}{single}"
        )));
    }
    if count > 9 {
        return Err(wrong(format!(
            "a quorum of {count} members is more than the 9 that are asked for each lock: name 3, \
             5, 7 or 9, {like}"
        )));
    }
    if !SIZES.contains(&count) {
        return Err(wrong(format!(
            "a quorum of {count} members survives no more failures than one of {}: name 3, 5, 7 \
             or 9, {like}",
            count - 1
        )));
    }
    match twice {
        Some(twice) => Err(wrong(format!(
            "the member {twice} is named twice, and would vote twice: name {count} different \
             servers"
        ))),
        None => Ok(members),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::tests::support::read_options;

    fn parse(text: &str) -> Result<RedlockOptions> {
        read_options(&super::super::registration(), text, |url, common| {
            RedlockOptions::take(url, common, None)
        })
    }

    #[test]
    fn every_part_of_a_url_is_understood() {
        let options = parse(
            "redlock://ann:s3same@a,b:7001,[::1]:7002/3?namespace=shop&max_ttl=2m&\
             server_timeout=80ms&connect_timeout=1s&request_timeout=500ms",
        )
        .unwrap();
        let at: Vec<_> = options.members.iter().map(|m| m.address.to_string()).collect();
        assert_eq!(at, ["a:6379", "b:7001", "[::1]:7002"]);
        assert!(options.members.iter().all(|m| m.db == 3 && m.user.as_deref() == Some("ann")));
        assert_eq!((options.namespace.as_str(), options.majority()), ("shop", 2));
        assert_eq!(options.max_ttl, Duration::from_secs(120));
        assert_eq!(options.clock_skew, Duration::from_secs(10));
        let slow = Duration::from_millis(70);
        assert_eq!(options.server_timeout(options.ttl, slow), Duration::from_millis(80));
        assert!(!format!("{options:?}").contains("s3same"), "{options:?}");
        let options = parse("redlock://a,b,c,d,e").unwrap();
        assert_eq!((options.majority(), options.max_ttl), (3, Duration::from_secs(60)));
        for (ttl, trip, patience) in [
            (30_000, 0, 300),
            (30_000, 70, 300),
            (2_000, 1, 50),
            (2_000, 70, 280),
            (2_000, 700, 500),
            (200, 70, 50),
        ] {
            let [ttl, trip] = [ttl, trip].map(Duration::from_millis);
            let patience_is = options.server_timeout(ttl, trip);
            assert_eq!(patience_is, Duration::from_millis(patience), "{ttl:?} {trip:?}");
        }
        assert!(parse("redlock://a,b,c?tls=true&tls_ca=/ca.pem").unwrap().members[2].tls.is_some());
        for layout in [Layout::Native, Layout::Plain, Layout::Redisson] {
            let options = parse(&format!("redlock://a,b,c?layout={}", layout.as_str())).unwrap();
            assert!(options.members.iter().all(|member| member.layout == layout), "{layout:?}");
            let Spelling { login, tls, no_tls } = options.members[0].spelling;
            assert_eq!((tls, no_tls), ("add tls=true", "leave out tls=true"));
            assert!(parse(login).is_ok(), "{login}");
        }
    }

    #[test]
    fn r1_a_url_lengthens_what_members_wait_for_and_never_shortens_it() {
        for (query, wait, skew) in [
            ("", 60, 10),
            ("?max_ttl=2s&ttl=2s", 60, 10),
            ("?max_ttl=61s", 61, 10),
            ("?max_ttl=1h", 3600, 10),
            ("?clock_skew=3s", 60, 10),
            ("?clock_skew=30s&max_ttl=2s", 60, 30),
        ] {
            let options = parse(&format!("redlock://a,b,c{query}")).unwrap();
            let seconds = [options.wait, options.max_ttl, options.clock_skew].map(|d| d.as_secs());
            assert_eq!(seconds, [wait, wait, skew], "{query}");
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_a_reason() {
        for (url, says) in [
            ("redlock://", "3, 5, 7 or 9"),
            ("redlock://a", "redis://host for one server"),
            ("redlock://a,b", "3, 5, 7 or 9"),
            ("redlock://a,b,c,d", "no more failures than one of 3"),
            ("redlock://a,b,c,d,e,f,g,h", "no more failures than one of 7"),
            ("redlock://a,b,c,d,e,f,g,h,i,j", "more than the 9"),
            ("redlock://a,b,A:6379", "the member A:6379 is named twice"),
            ("redlock://a/3,b,c", "follows the last member, as in redlock://a,b,c/3"),
            ("redlock://a,b,c/x", "database number, as in redlock://host/3"),
            ("redlock://ann@a,b,c", "no password"),
            ("redlock://a,b,c?ttl=90s", "max_ttl"),
            ("redlock://a,b,c?max_ttl=1h&clock_skew=31s", "clock_skew up to 30s"),
            ("redlock://a,b,c?server_timeout=0", "server_timeout cannot be 0"),
            ("redlock://a,b,c?request_timeout=0", "cannot be 0"),
            ("redlock://a,b,c?namespace=a:b", "namespace"),
            ("redlock://a,b,c?tls_ca=/x", "tls=true"),
            ("redlock://a,b,c?max_tll=2s", "did you mean max_ttl?"),
            ("redlock://a,b,c?layout=redison", "none of native, plain"),
            ("redlock://a,b,c?layout=redisson&lock=fenced", "no common order"),
            ("redlock://a,b,c?layout=redisson&lock=rw", "only RLocks and RFairLocks"),
            ("redlock://a,b,c?lock=plain", "layout=redisson"),
            ("redlock://a,b,c?key=x:{name}", "layout=plain"),
            ("redlock://a,b,c?layout=plain&key=x", "{name} once"),
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.message().contains(says), "{url}: {error}");
            assert!(!error.message().contains('\n'), "{url}: {error}");
        }
    }

    #[test]
    fn every_option_that_is_registered_is_read_and_its_default_is_what_it_says() {
        for option in super::super::registration().options {
            let name = option.name;
            if option.default.is_empty() {
                let tls = if name.starts_with("tls_") { "&tls=true" } else { "" };
                let value = if name == "server_timeout" { "70ms" } else { "/no/such/path" };
                let error = parse(&format!("redlock://a,b,c?{name}={value}{tls}")).err();
                let understood = |e: &Error| e.message().contains(name);
                assert!(error.as_ref().is_none_or(understood), "{name}: {error:?}");
                continue;
            }
            let needs = option.needs.map(|(needs, value)| format!("{needs}={value}&"));
            let url = format!("redlock://a,b,c?{}", needs.unwrap_or_default());
            let given = parse(&format!("{url}{name}={}", option.default)).unwrap();
            assert_eq!(format!("{given:?}"), format!("{:?}", parse(&url).unwrap()));
        }
    }
}
