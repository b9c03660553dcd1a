//! Engine URLs: taken apart here, once, with every option checked by name and value.

mod canonical;
mod secret;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::time::Duration;

use crate::words::error::{Error, ErrorKind, Result};
use secret::is_cut_password;
pub(crate) use secret::named;
pub use secret::{Form, is_secret};

/// Something that must never be printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps a text from being printed.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text, for handing to the server and to nobody else.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// A URL taken apart. Its `Display` and its `Debug` are the URL without password.
#[derive(Clone, PartialEq, Eq)]
pub struct EngineUrl {
    /// The scheme in lower case: `file`, `redis`, …
    pub scheme: String,
    /// The user, decoded.
    pub user: Option<String>,
    /// The password, decoded.
    pub password: Option<Secret>,
    /// Hosts with their ports, in order; an IPv6 address without its brackets.
    pub hosts: Vec<(String, Option<u16>)>,
    /// What follows the hosts, decoded, with its leading slash; for `memory:` the name.
    pub path: String,
    options: BTreeMap<String, String>,
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl EngineUrl {
    /// Takes a URL apart.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what is wrong; the URL itself is not repeated, it may hold a
    /// password.
    pub fn parse(url: &str) -> Result<Self> {
        let colon = url.find(':').ok_or_else(|| {
            bad("an engine's URL begins with a scheme, such as file:///var/lib/locks or \
                 redis://host")
        })?;
        let (scheme, rest) = (url[..colon].to_ascii_lowercase(), &url[colon + 1..]);
        let known_form = scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
            && !scheme.is_empty();
        if !known_form {
            return Err(bad(
                "an engine's URL begins with a scheme, such as file:///var/lib/locks or \
                 redis://host",
            ));
        }
        if rest.contains('#') {
            return Err(bad(
                "an engine's URL has no fragment: write # in a password or path as %23",
            ));
        }
        let (rest, query) = rest.split_once('?').map_or((rest, ""), |(r, q)| (r, q));
        if is_cut_password(&scheme, rest, query) {
            return Err(bad(
                "an @ stands behind / or ?: write / and ? and & in a password as %2F and %3F and \
                 %26, and @ in an option as %40",
            ));
        }
        let options = options(query)?;
        let mut parsed = Self {
            scheme,
            user: None,
            password: None,
            hosts: Vec::new(),
            path: String::new(),
            options,
        };
        let Some(rest) = rest.strip_prefix("//") else {
            parsed.path = decode(rest)?;
            return Ok(parsed);
        };
        let (authority, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        parsed.path = decode(path)?;
        let hosts = match authority.rsplit_once('@') {
            Some((who, hosts)) => {
                let (user, password) =
                    who.split_once(':').map_or((who, None), |(u, p)| (u, Some(p)));
                parsed.user = Some(decode(user)?).filter(|u| !u.is_empty());
                parsed.password = password.map(decode).transpose()?.map(Secret::new);
                hosts
            }
            None => authority,
        };
        for host in hosts.split(',').filter(|_| !hosts.is_empty()) {
            parsed.hosts.push(host_and_port(host)?);
        }
        Ok(parsed)
    }

    /// Takes an option out, so that what is left at the end is unknown.
    pub fn take(&mut self, option: &str) -> Option<String> {
        self.options.remove(option)
    }

    /// Writes an option, in place of what it was.
    pub fn set(&mut self, option: &str, value: impl Into<String>) {
        self.options.insert(option.to_owned(), value.into());
    }

    /// Takes an option that is a duration.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option.
    pub fn take_duration(&mut self, option: &str) -> Result<Option<Duration>> {
        self.take(option).map(|text| duration(option, &text)).transpose()
    }

    /// Takes an option that is a whole number.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option and its range.
    pub fn take_number(&mut self, option: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        self.take(option).map(|text| number(option, &text, &range)).transpose()
    }

    /// Takes an option that is `true` or `false`.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option.
    pub fn take_bool(&mut self, option: &str) -> Result<Option<bool>> {
        self.take(option).map(|text| switch(option, &text)).transpose()
    }

    /// The value of an option that nobody took.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.get(name).map(String::as_str)
    }

    /// The names of the options that nobody took.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.options.keys().map(String::as_str)
    }

    /// Fails when an option is left that nobody took.
    ///
    /// # Errors
    /// `InvalidArgument`, naming the option.
    pub fn finish(&self) -> Result<()> {
        match self.options().next() {
            Some(option) => Err(bad(format!("{}: does not know {}", self.scheme, named(option)))),
            None => Ok(()),
        }
    }

    /// User, hosts and path.
    fn shown_place(&self) -> String {
        let mut text = String::new();
        if !self.hosts.is_empty() || self.user.is_some() || self.path.starts_with('/') {
            text.push_str("//");
        }
        if let Some(user) = &self.user {
            text += &format!("{}@", encode(user));
        }
        for (at, (host, port)) in self.hosts.iter().enumerate() {
            text.push_str(if at > 0 { "," } else { "" });
            // Read as it stands between brackets, and decoded without them.
            let is_address = host.contains(':')
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || b":.%-_~".contains(&b));
            text += &if is_address { format!("[{host}]") } else { encode_but(host, b"") };
            if let Some(port) = port {
                text += &format!(":{port}");
            }
        }
        text + &encode(&self.path)
    }

    /// The one host of a URL that can have only one.
    ///
    /// # Errors
    /// `InvalidArgument`.
    pub fn single_host(&self) -> Result<(String, Option<u16>)> {
        match self.hosts.as_slice() {
            [host] => Ok(host.clone()),
            [] => Err(bad(format!("{}: needs a host, as in {0}://host", self.scheme))),
            _ => Err(bad(format!("{}: takes one host", self.scheme))),
        }
    }
}

impl fmt::Display for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.scheme, self.shown_place())?;
        for (at, (key, value)) in self.options.iter().enumerate() {
            let value = if is_secret(key) { "***".to_owned() } else { encode(value) };
            write!(f, "{}{}={value}", if at > 0 { '&' } else { '?' }, encode(key))?;
        }
        Ok(())
    }
}

impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EngineUrl({self})")
    }
}

/// The value of an option that is a duration.
pub(crate) fn duration(option: &str, text: &str) -> Result<Duration> {
    crate::words::duration::parse(text).ok_or_else(|| {
        let form = crate::words::duration::meant(text);
        let form = form.unwrap_or_else(|| "500ms, 2.5, 30s, 1h30m".to_owned());
        bad(format!("{option}={text} is not a duration: write {form}"))
    })
}

/// The value of an option that is a whole number.
pub(crate) fn number(option: &str, text: &str, range: &RangeInclusive<u64>) -> Result<u64> {
    let (least, most) = (range.start(), range.end());
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| bad(format!("{option}={text} is not a number from {least} to {most}")))
}

/// The value of an option that is a percentage.
pub(crate) fn percent(option: &str, text: &str, range: &RangeInclusive<u32>) -> Result<u32> {
    let (least, most) = (range.start(), range.end());
    let number = text.strip_suffix('%').and_then(|number| number.parse().ok());
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| bad(format!("{option}={text} is not a percentage from {least}% to {most}%")))
}

/// The value of an option that is `true` or `false`.
pub(crate) fn switch(option: &str, text: &str) -> Result<bool> {
    match text {
        "true" | "1" | "yes" | "" => Ok(true),
        "false" | "0" | "no" => Ok(false),
        _ => Err(bad(format!("{option}={text} is neither true nor false"))),
    }
}

fn options(query: &str) -> Result<BTreeMap<String, String>> {
    let mut options = BTreeMap::new();
    for pair in query.split('&').filter(|p| !p.is_empty()) {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        // What hides the values of secrets reads the names as they are written.
        if key.contains('%') {
            return Err(bad(
                "the name of a URL's option is written without %: in a password write ? and & as \
                 %3F and %26",
            ));
        }
        let key = key.to_owned();
        if options.insert(key.clone(), decode(value)?).is_some() {
            return Err(bad(format!("{} is given twice", named(&key))));
        }
    }
    Ok(options)
}

fn host_and_port(text: &str) -> Result<(String, Option<u16>)> {
    let wrong_port = || bad("a port is a number from 1 to 65535");
    let port = |text: &str| text.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(wrong_port);
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) =
            rest.split_once(']').ok_or_else(|| bad("an IPv6 address needs its closing bracket"))?;
        return match after.strip_prefix(':') {
            Some(digits) => Ok((host.to_owned(), Some(port(digits)?))),
            None if after.is_empty() => Ok((host.to_owned(), None)),
            None => Err(wrong_port()),
        };
    }
    let (host, port) = match text.split_once(':') {
        Some((host, digits)) => (host, Some(port(digits)?)),
        None => (text, None),
    };
    if host.is_empty() {
        return Err(bad("a host's name is missing in the URL"));
    }
    Ok((decode(host)?, port))
}

/// Percent-decoding; the result must be UTF-8.
fn decode(text: &str) -> Result<String> {
    let wrong = || {
        bad("a % in a URL is followed by two hexadecimal digits of UTF-8: write a percent sign as \
             %25")
    };
    let bytes = unescaped(text).ok_or_else(wrong)?;
    String::from_utf8(bytes).map_err(|_| wrong())
}

/// The bytes of a text in which some are a % and two hexadecimal digits; `None` where a % is
/// followed by anything else.
pub(crate) fn unescaped(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let mut digit =
                || char::from(rest.next()?).to_digit(16).and_then(|d| u8::try_from(d).ok());
            let (high, low) = (digit()?, digit()?);
            bytes.push(high << 4 | low);
        } else {
            bytes.push(byte);
        }
    }
    Some(bytes)
}

/// Percent-encoding, for a path or an option's value.
pub(crate) fn encode(text: &str) -> String {
    encode_but(text, b"/:,{}")
}

/// Percent-encoding of all but letters, digits, what never means anything in a URL, and these.
fn encode_but(text: &str, others: &[u8]) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~".contains(&b) || others.contains(&b);
    text.bytes()
        .map(|b| if plain(b) { char::from(b).to_string() } else { format!("%{b:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Registration;

    fn parse(url: &str) -> EngineUrl {
        EngineUrl::parse(url).unwrap()
    }

    #[test]
    fn urls_of_the_table_are_taken_apart() {
        assert_eq!(parse("memory:").path, "");
        assert_eq!(parse("memory:shop").path, "shop");
        assert_eq!(parse("file:///var/lib/a%20b").path, "/var/lib/a b");
        let redis = parse("redis://ann:p%40ss@[::1]:6380/3?ttl=10s&layout=plain");
        assert_eq!(
            (redis.user.as_deref(), redis.password.as_ref().map(Secret::reveal)),
            (Some("ann"), Some("p@ss"))
        );
        assert_eq!(
            (redis.hosts.as_slice(), redis.path.as_str()),
            ([("::1".to_owned(), Some(6380))].as_slice(), "/3")
        );
        let zk = parse("zk://a:2181,b,c:2183/chroot");
        assert_eq!(
            zk.hosts,
            [("a".to_owned(), Some(2181)), ("b".to_owned(), None), ("c".to_owned(), Some(2183))]
        );
        assert_eq!(parse("redis+unix:///run/redis.sock").path, "/run/redis.sock");
    }

    #[test]
    fn the_name_of_an_option_is_not_escaped_and_the_refusal_repeats_nothing_of_it() {
        for url in ["zk://h?%61uth=digest:u:secret", "redis://h?ttl=1s&pass%77ord=secret"] {
            let error = EngineUrl::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{url}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert_eq!(parse("redis://h?key=%7Bname%7D").take("key").as_deref(), Some("{name}"));
    }

    #[test]
    fn options_are_taken_by_name_and_value_and_what_is_left_is_an_error() {
        let mut url = parse("file:///x?ttl=1m&durable=true&handoff=65&colour=red");
        assert_eq!(url.take_duration("ttl").unwrap(), Some(Duration::from_secs(60)));
        assert_eq!(url.take_bool("durable").unwrap(), Some(true));
        assert_eq!(
            url.take_number("handoff", 0..=64).unwrap_err().kind(),
            ErrorKind::InvalidArgument
        );
        assert!(url.finish().unwrap_err().message().contains("colour"));
        assert!(EngineUrl::parse("file:///x?a=1&a=2").is_err());
    }

    #[test]
    fn an_unknown_option_is_told_with_those_that_there_are_and_the_one_that_was_meant() {
        let check = |url: &str| {
            Registration::of("memory")
                .unwrap()
                .check(&parse(url))
                .map_err(|e| e.message().to_owned())
        };
        let list = "options are ttl, handoff, handoff_time, drift";
        assert_eq!(
            check("memory:?handof=3"),
            Err(format!(
                "memory: does not know the option \"handof\": did you mean handoff? The {list}"
            ))
        );
        assert_eq!(
            check("memory:?colour=red"),
            Err(format!("memory: does not know the option \"colour\": the {list}"))
        );
        assert_eq!(check("memory:?ttl=3s"), Ok(()));
    }

    #[test]
    fn a_password_is_never_printed() {
        let url = parse("redis://ann:sesame@host:1?ttl=5s");
        assert_eq!(url.to_string(), "redis://ann@host:1?ttl=5s");
        assert!(!format!("{url:?}").contains("sesame"));
        let zk = parse("zk://h?auth=digest:u:sesame");
        assert_eq!(zk.to_string(), "zk://h?auth=***");
        // C16
        assert_eq!(
            format!("{zk:?} {:?}", parse("redis://h?token=sesame")),
            "EngineUrl(zk://h?auth=***) EngineUrl(redis://h?token=***)"
        );
        for wrong in [
            "redis://ann:sesame@host:0",
            "redis://ann:sesame@:6379",
            "redis://:sesame%zz@host",
            "sesame",
        ] {
            assert!(
                !EngineUrl::parse(wrong).unwrap_err().to_string().contains("sesame"),
                "{wrong}"
            );
        }
    }
}
