//! The options of a `redis:` URL.

use std::path::PathBuf;
use std::time::Duration;

use super::options::{
    Address, Layout, RedisOptions, RedissonLock, RedissonSemaphore, Spelling, Tls, ValueFormat,
};
use crate::engine::Value;
use crate::engine::password::Password;
use crate::open::table;
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

pub(in crate::engine) const PORT: u16 = 6379;

/// The scheme whose path is a socket.
const SOCKET: &str = "redis+unix";

fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

/// Takes everything out of the URL that is about Redis.
///
/// # Errors
/// `InvalidArgument`, naming the part.
pub(crate) fn options(
    url: &mut EngineUrl,
    ttl: Duration,
    drift_permille: u32,
) -> Result<RedisOptions> {
    let address = if url.scheme == SOCKET {
        let path = std::mem::take(&mut url.path);
        if !path.starts_with('/') || !url.hosts.is_empty() {
            return Err(wrong(
                "redis+unix: takes the path of a socket, as in redis+unix:///run/redis.sock",
            ));
        }
        Address::Unix(PathBuf::from(path))
    } else {
        if url.hosts.len() > 1 {
            return Err(several(url));
        }
        let (host, port) = url.single_host()?;
        Address::Tcp(host, port.unwrap_or(PORT))
    };
    let mut options = of_master(url, address, ttl, drift_permille)?;
    let secure = url.scheme == "rediss";
    options.spelling = match url.scheme.as_str() {
        "rediss" => Spelling::SECURE_SERVER,
        SOCKET => Spelling::SOCKET,
        _ => Spelling::SERVER,
    };
    options.tls = Tls::take(url, secure, options.spelling.tls)?;
    Ok(options)
}

/// Several servers, of which a URL of one server can name one: what makes them one service decides
/// the scheme.
fn several(url: &EngineUrl) -> Error {
    let written = |(host, port): &(String, Option<u16>)| {
        let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        port.map_or(host.clone(), |port| format!("{host}:{port}"))
    };
    let hosts = url.hosts.iter().map(written).collect::<Vec<_>>().join(",");
    // Whoever asked for TLS is not to be led to a connection without it.
    let tls = if url.scheme == "rediss" { "?tls=true" } else { "" };
    let forms = [
        ("redis+sentinel", format!("redis+sentinel://{hosts}/SERVICE{tls} for its Sentinels")),
        ("redis+cluster", format!("redis+cluster://{hosts}{tls} for a Redis Cluster")),
        ("redlock", format!("redlock://{hosts}{tls} for a quorum of independent servers")),
    ];
    let is_quorum = [3, 5, 7, 9].contains(&url.hosts.len());
    let fits = |scheme: &str| scheme != "redlock" || is_quorum;
    let here = forms.into_iter().filter(|(scheme, _)| fits(scheme) && table::find(scheme).is_ok());
    let here: Vec<String> = here.map(|(_, form)| form).collect();
    let how = if here.is_empty() { String::new() } else { format!(": use {}", here.join(", or ")) };
    wrong(format!("{}: takes one host{how}", url.scheme))
}

/// What is said of a server beside its address and how its connections are secured.
///
/// # Errors
/// As [`options`].
pub(in crate::engine) fn of_master(
    url: &mut EngineUrl,
    address: Address,
    ttl: Duration,
    drift_permille: u32,
) -> Result<RedisOptions> {
    let mut options = RedisOptions::new(address);
    (options.ttl, options.drift_permille) = (ttl, drift_permille);
    options.db = db(url)?;
    options.user = url.user.take();
    options.password = Password::take(url)?;
    if options.user.is_some() && options.password.is_none() {
        return Err(wrong(format!(
            "the URL names a user and no password: write {}://user:password@host, or use \
             password_file or password_env",
            url.scheme
        )));
    }
    timeouts(url, &mut options)?;
    namespace(url, &mut options)?;
    options.layout = match url.take("layout").as_deref() {
        None | Some("native") => Layout::Native,
        Some("redisson") => Layout::Redisson,
        Some("plain") => Layout::Plain,
        Some(other) => {
            return Err(wrong(format!("layout={other} is none of native, redisson, plain")));
        }
    };
    take_plain(url, &mut options)?;
    take_redisson(url, &mut options)?;
    Ok(options)
}

/// The servers that a URL of several names, in its order, and the first that is named twice.
#[cfg(any(feature = "sentinel", feature = "cluster", feature = "redlock"))]
pub(in crate::engine) fn servers(url: &EngineUrl, port: u16) -> (Vec<Address>, Option<Address>) {
    let mut seen: Vec<(String, u16)> = Vec::new();
    let mut twice = None;
    for (host, on) in &url.hosts {
        let on = on.unwrap_or(port);
        if seen.iter().any(|(other, at)| other.eq_ignore_ascii_case(host) && *at == on) {
            twice.get_or_insert_with(|| Address::Tcp(host.clone(), on));
        }
        seen.push((host.clone(), on));
    }
    (seen.into_iter().map(|(host, on)| Address::Tcp(host, on)).collect(), twice)
}

/// How long connecting and an answer may take.
///
/// # Errors
/// `InvalidArgument`.
pub(in crate::engine) fn timeouts(url: &mut EngineUrl, options: &mut RedisOptions) -> Result<()> {
    if let Some(time) = url.take_duration("connect_timeout")? {
        options.connect_timeout = time;
    }
    if let Some(time) = url.take_duration("request_timeout")? {
        options.request_timeout = time;
    }
    if options.connect_timeout.is_zero() || options.request_timeout.is_zero() {
        return Err(wrong("connect_timeout and request_timeout cannot be 0"));
    }
    Ok(())
}

/// What our own keys begin with.
///
/// # Errors
/// `InvalidArgument` for what cannot stand in a key.
pub(in crate::engine) fn namespace(url: &mut EngineUrl, options: &mut RedisOptions) -> Result<()> {
    if let Some(namespace) = url.take("namespace") {
        // It becomes a part of keys, whoever opens the engine.
        Value::Word("").check("namespace", &namespace)?;
        options.namespace = namespace;
    }
    Ok(())
}

/// The database's number, of the option or of the path.
///
/// # Errors
/// `InvalidArgument`.
pub(in crate::engine) fn db(url: &mut EngineUrl) -> Result<u32> {
    let option = url.take_number("db", 0..=u64::from(u32::MAX))?;
    let option = option.map(|db| u32::try_from(db).unwrap_or(0));
    let path = std::mem::take(&mut url.path);
    let digits = path.strip_prefix('/').unwrap_or(&path);
    if digits.is_empty() {
        return Ok(option.unwrap_or(0));
    }
    let db = digits.parse().map_err(|_| {
        wrong(format!(
            "the path of a {0}: URL is a database number, as in {0}://host/3, not {digits:?}",
            url.scheme
        ))
    })?;
    match option.filter(|option| *option != db) {
        Some(other) => Err(wrong(format!(
            "the path names database {db}, and db= names {other}: leave one out"
        ))),
        None => Ok(db),
    }
}

/// The database as canonical names have it: in the path, and beside a socket's path in the option.
///
/// # Errors
/// `InvalidArgument`.
pub(in crate::engine) fn place(url: &mut EngineUrl) -> Result<()> {
    let socket = (url.scheme == SOCKET).then(|| std::mem::take(&mut url.path));
    let db = db(url)?;
    url.path = match (socket, db) {
        (Some(socket), _) => {
            url.set("db", db.to_string());
            socket
        }
        (None, 0) => String::new(),
        (None, db) => format!("/{db}"),
    };
    Ok(())
}

/// What the layout `plain` writes.
///
/// # Errors
/// `InvalidArgument`, naming what to write instead.
pub(in crate::engine) fn take_plain(url: &mut EngineUrl, options: &mut RedisOptions) -> Result<()> {
    let (key, value) = (url.take("key"), url.take("value"));
    if let Some(key) = key {
        if key.matches("{name}").count() != 1 {
            return Err(wrong(format!(
                "key={key} needs {{name}} once, as in key=redlock:{{name}}"
            )));
        }
        options.key = key;
    }
    options.value = match value.as_deref() {
        None | Some("hex") => ValueFormat::Hex,
        Some("guid") => ValueFormat::Guid,
        Some("base64") => ValueFormat::Base64,
        Some(other) => return Err(wrong(format!("value={other} is none of hex, guid, base64"))),
    };
    Ok(())
}

fn take_redisson(url: &mut EngineUrl, options: &mut RedisOptions) -> Result<()> {
    let (lock, semaphore) = (url.take("lock"), url.take("semaphore"));
    options.redisson = match lock.as_deref() {
        None | Some("plain") => RedissonLock::Plain,
        Some("fenced") => RedissonLock::Fenced,
        Some("fair") => RedissonLock::Fair,
        Some("rw") => RedissonLock::ReadWrite,
        Some(other) => {
            return Err(wrong(format!("lock={other} is none of plain, fenced, fair, rw")));
        }
    };
    options.semaphore = match semaphore.as_deref() {
        None | Some("expirable") => RedissonSemaphore::Expirable,
        Some("simple") => RedissonSemaphore::Simple,
        Some(other) => {
            return Err(wrong(format!("semaphore={other} is none of expirable, simple")));
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<RedisOptions> {
        let mut url = EngineUrl::parse(text)?;
        crate::engine::redis::registration().check(&url)?;
        let options = options(&mut url, Duration::from_secs(30), 100)?;
        url.finish()?;
        Ok(options)
    }

    #[test]
    fn every_part_of_a_url_is_understood() {
        let options = parse(
            "redis://ann:s3same@[::1]:6380/3?namespace=shop&connect_timeout=1s&\
             request_timeout=500ms",
        )
        .unwrap();
        assert_eq!(options.address, Address::Tcp("::1".into(), 6380));
        assert_eq!(
            (options.user.as_deref(), options.db, options.namespace.as_str()),
            (Some("ann"), 3, "shop")
        );
        assert_eq!(options.request_timeout, Duration::from_millis(500));
        assert!(!format!("{options:?}").contains("s3same"), "{options:?}");
        assert_eq!(format!("{:?}", parse("redis://:pw@h").unwrap().password), "Some(Secret(…))");
        assert_eq!(
            parse("redis+unix:///run/r.sock?db=2").unwrap().address,
            Address::Unix("/run/r.sock".into())
        );
        // Which of two databases is meant is not known (B11).
        let twice = parse("redis://h/1?db=2").unwrap_err();
        assert!(twice.message().contains("database 1") && twice.message().contains("names 2"));
        assert_eq!(parse("redis://h/2?db=2").unwrap().db, 2);
        let plain = parse("redis://h?layout=plain&key=redlock:{name}&value=guid").unwrap();
        assert_eq!(
            (plain.layout, plain.key.as_str(), plain.value),
            (Layout::Plain, "redlock:{name}", ValueFormat::Guid)
        );
        assert!(
            parse("rediss://h?tls_ca=/ca.pem")
                .unwrap()
                .tls
                .is_some_and(|tls| tls.files.ca.is_some())
        );
    }

    #[test]
    fn every_option_that_is_registered_is_read_and_its_default_is_what_it_says() {
        for option in crate::engine::redis::registration().options {
            let needs =
                option.needs.map(|(name, value)| format!("&{name}={value}")).unwrap_or_default();
            let tls = if option.name.starts_with("tls_") { "&tls_cert=/c&tls_key=/k" } else { "" };
            let without = format!("rediss://h?{}{tls}", needs.trim_start_matches('&'));
            if option.default.is_empty() {
                let given = without
                    .replace(&format!("&{}=", option.name), "&x=")
                    .replace("&x=/c", "")
                    .replace("&x=/k", "");
                let error = parse(&format!("{given}&{}=PATH", option.name))
                    .err()
                    .map(|e| e.message().to_owned());
                assert!(error.is_none_or(|e| e.starts_with(option.name)), "{}", option.name);
                continue;
            }
            let given = parse(&format!("{without}&{}={}", option.name, option.default)).unwrap();
            assert_eq!(
                format!("{given:?}"),
                format!("{:?}", parse(&without).unwrap()),
                "{}",
                option.name
            );
            for word in if let Value::OneOf(words) = option.value { words } else { &[] } {
                parse(&format!("{without}&{}={word}", option.name)).unwrap();
            }
        }
    }

    #[test]
    fn what_cannot_be_right_is_refused_with_a_reason() {
        for (url, says) in [
            ("redis://", "host"),
            ("redis://a,b", "one host"),
            ("redis://h:1,[::1]:2,h:3/4", "redlock://h:1,[::1]:2,h:3 for a quorum"),
            ("rediss://a:7001,b", "redis+sentinel://a:7001,b/SERVICE?tls=true for"),
            ("rediss://a:7001,b", "redis+cluster://a:7001,b?tls=true for"),
            ("redis://h/x", "database number"),
            ("redis://ann@h", "no password"),
            ("redis://:p@h?password_env=X", "twice"),
            ("redis://h?layout=fancy", "native, redisson, plain"),
            ("redis://h?key=x:{name}", "layout=plain"),
            ("redis://h?layout=plain&key=x", "{name}"),
            ("redis://h?semaphore=simple", "layout=redisson"),
            ("redis://h?layout=redisson&semaphore=x", "expirable, simple"),
            ("redis://h?layout=redisson&lock=x", "plain, fenced, fair, rw"),
            ("redis://h?tls_ca=/x", "rediss://"),
            ("rediss://h?tls_key=/x", "belong together"),
            ("redis://h?namespace=a:b", "namespace"),
            ("redis://h?request_timeout=0", "0"),
            ("redis://h?colour=red", "colour"),
            ("redis+unix://host/x", "socket"),
        ] {
            let error = parse(url).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(error.message().contains(says), "{url}: {error}");
        }
    }
}
