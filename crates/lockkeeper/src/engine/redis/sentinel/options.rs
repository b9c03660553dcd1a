//! What a `redis+sentinel:` URL says.

use std::sync::Arc;
use std::time::Duration;

use super::name;
use crate::engine::Common;
use crate::engine::password::Password;
use crate::engine::redis::options::{Address, RedisOptions, Service, Spelling, Tls, Wait};
use crate::engine::redis::url as server;
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

/// The port of a Sentinel that a URL names without one.
pub(super) const PORT: u16 = 26379;

/// The most replicas that a grant waits for.
pub(super) const REPLICAS_MAX: u64 = 16;

/// How long replicas have, unless the URL says otherwise.
const WAIT_TIMEOUT: Duration = Duration::from_millis(500);

/// The most Sentinels that a URL names: each is asked before each dial.
const SENTINELS_MAX: usize = 16;

/// Who knows where the master is, and how to use it.
#[derive(Clone, Debug)]
pub(super) struct SentinelOptions {
    /// In the order of the URL.
    pub(super) sentinels: Vec<Address>,
    pub(super) service: Arc<str>,
    /// The Sentinels' own password.
    pub(super) password: Option<Password>,
    /// The master; nobody is at its address without somebody who resolves it.
    pub(super) master: RedisOptions,
}

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl SentinelOptions {
    /// Takes everything out of the URL that is about Sentinels and their master.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what to write instead.
    pub(super) fn take(url: &mut EngineUrl, common: &Common) -> Result<Self> {
        let sentinels = sentinels(url)?;
        let (service, db) = name::service(url)?;
        url.path = db;
        let address = Address::Service(Service::new(&service));
        let mut master = server::of_master(url, address, common.ttl, common.drift_per_mille)?;
        let secure = url.take_bool("tls")?.unwrap_or(false);
        master.spelling = Spelling::of_several("redis+sentinel://user:password@host/service");
        master.tls = Tls::take(url, secure, master.spelling.tls)?;
        let option = "sentinel_password_file";
        let password = url.take(option).map(|file| Password::file(option, file.into()));
        master.wait = wait(url, &master)?;
        Ok(Self { sentinels, service: service.into(), password, master })
    }

    /// How many of the Sentinels that the URL names are a majority of them.
    pub(super) fn majority(&self) -> usize {
        self.sentinels.len() / 2 + 1
    }
}

/// The Sentinels' addresses, each once.
fn sentinels(url: &EngineUrl) -> Result<Vec<Address>> {
    let (named, twice) = server::servers(url, PORT);
    if named.is_empty() || named.len() > SENTINELS_MAX {
        return Err(wrong(format!(
            "a Sentinel URL names 1 to {SENTINELS_MAX} Sentinels, best all of them, as in \
             redis+sentinel://a,b,c/mymaster"
        )));
    }
    match twice {
        Some(twice) => Err(wrong(format!("the Sentinel {twice} is named twice: name each once"))),
        None => Ok(named),
    }
}

/// How many replicas have to have a grant or a renewal.
fn wait(url: &mut EngineUrl, master: &RedisOptions) -> Result<Option<Wait>> {
    let replicas = url.take_number("wait_replicas", 0..=REPLICAS_MAX)?.unwrap_or(0);
    let given = url.take_duration("wait_timeout")?;
    if replicas == 0 && given.is_none() {
        return Ok(None);
    }
    let timeout = given.unwrap_or(WAIT_TIMEOUT);
    if timeout < Duration::from_millis(1) || timeout >= master.request_timeout {
        return Err(wrong(format!(
            "wait_timeout is {timeout:?}: replicas have at least 1ms, and less than an answer may \
             take (request_timeout, {:?})",
            master.request_timeout
        )));
    }
    let replicas = u32::try_from(replicas).unwrap_or(0);
    Ok((replicas > 0).then_some(Wait { replicas, timeout }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::options::Layout;
    use crate::engine::redis::tests::support::{assert_options_are_read, read_options};

    fn parse(text: &str) -> Result<SentinelOptions> {
        read_options(&super::super::registration(), text, SentinelOptions::take)
    }

    #[test]
    fn every_part_of_a_url_is_understood() {
        let options = parse(
            "redis+sentinel://ann:s3same@a,b:7001,[::1]:7002/mymaster/3?namespace=shop&\
             connect_timeout=1s&request_timeout=500ms",
        )
        .unwrap();
        let at: Vec<_> = options.sentinels.iter().map(ToString::to_string).collect();
        assert_eq!(at, ["a:26379", "b:7001", "[::1]:7002"]);
        assert_eq!((&*options.service, options.majority()), ("mymaster", 2));
        let master = &options.master;
        assert_eq!((master.db, master.user.as_deref()), (3, Some("ann")));
        assert_eq!(master.address.to_string(), "the master of mymaster");
        assert_eq!(master.request_timeout, Duration::from_millis(500));
        assert!(!format!("{options:?}").contains("s3same"), "{options:?}");
        for (layout, is) in [
            ("plain&key=locks:{name}", Layout::Plain),
            ("redisson&lock=fair", Layout::Redisson),
            ("native", Layout::Native),
        ] {
            let options = parse(&format!("redis+sentinel://a/m?layout={layout}")).unwrap();
            assert_eq!(options.master.layout, is);
        }
        assert_eq!(master.wait, None);
        let wait = |url: &str| parse(url).unwrap().master.wait;
        let (replicas, timeout) = (2, Duration::from_millis(500));
        assert_eq!(wait("redis+sentinel://a/m?wait_replicas=2"), Some(Wait { replicas, timeout }));
        let timeout = Duration::from_millis(80);
        let url = "redis+sentinel://a/m?wait_replicas=2&wait_timeout=80ms";
        assert_eq!(wait(url), Some(Wait { replicas, timeout }));
        assert!(parse("redis+sentinel://a/m?tls=true&tls_ca=/c").unwrap().master.tls.is_some());
    }

    #[test]
    fn two_ways_to_write_one_service_are_one_engine() {
        let canonical = |url: &str| EngineUrl::parse(url).unwrap().canonical().unwrap();
        let one = canonical("redis+sentinel://a,b/m");
        assert_eq!(one, "redis+sentinel://a:26379,b:26379/m");
        for same in ["redis+sentinel://:pw@a:26379,b/m/0?ttl=5s", "redis+sentinel://a,b/m/"] {
            assert_eq!(canonical(same), one);
        }
        assert_ne!(canonical("redis+sentinel://a,b/m/1"), one);
        assert_eq!(
            canonical("redis+sentinel://B,a/m?db=3"),
            canonical("redis+sentinel://a,b/m/03")
        );
        assert_ne!(canonical("redis+sentinel://a,b/n"), one);
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_a_reason() {
        for (url, says) in [
            ("redis+sentinel:///m", "names 1 to 16 Sentinels"),
            ("redis+sentinel://a,b,c", "as in redis+sentinel://a,b,c/mymaster"),
            ("redis+sentinel://a,b,c/", "the name of a service"),
            ("redis+sentinel://a/my master", "is no name of a service"),
            ("redis+sentinel://a/m/x", "the number of a database"),
            ("redis+sentinel://a,A:26379/m", "the Sentinel A:26379 is named twice"),
            ("redis+sentinel://ann@a/m", "redis+sentinel://user:password@host"),
            ("redis+sentinel://a/m?tls_ca=/x", "tls=true"),
            ("redis+sentinel://a/m?request_timeout=0", "cannot be 0"),
            ("redis+sentinel://a/m?wait_timeout=2s", "less than an answer may take"),
            ("redis+sentinel://a/m?wait_timeout=0", "at least 1ms"),
            ("redis+sentinel://a/m?wait_replicas=17", "wait_replicas"),
            ("redis+sentinel://a/m?sentinel_pasword_file=/x", "did you mean sentinel_password"),
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.message().contains(says), "{url}: {error}");
            assert!(!error.message().contains('\n'), "{url}: {error}");
        }
    }

    #[test]
    fn every_option_that_is_registered_is_read_and_its_default_is_what_it_says() {
        assert_options_are_read(&super::super::registration(), "redis+sentinel://a/m", parse);
    }
}
