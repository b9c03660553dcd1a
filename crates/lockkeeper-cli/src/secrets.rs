//! Passwords in URLs: where they stand, and how they are kept from others' eyes.

use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;

/// Options of a URL whose values are secrets.
const OPTIONS: [&str; 4] = ["password", "auth", "secret", "token"];

/// Where secrets stand in a URL: the password before the host, and the values of options that are secrets.
pub fn places(url: &[u8]) -> Vec<Range<usize>> {
    let find = |from: usize, what: u8| url.get(from..)?.iter().position(|b| *b == what).map(|at| from + at);
    let Some(start) = url.windows(3).position(|w| w == b"://").map(|at| at + 3) else { return Vec::new() };
    let query = find(start, b'?').unwrap_or(url.len());
    let mut found = Vec::new();
    // A password whose ? or & is not escaped reaches into what looks like options.
    let at_of_pair = |pair: &Range<usize>| {
        let name = find(pair.start, b'=').map_or(pair.end, |at| at.min(pair.end));
        find(pair.start, b'@').filter(|at| *at < name)
    };
    let pairs = pairs(url, query + 1);
    let odd = pairs.iter().filter_map(at_of_pair).next_back();
    // The last @ ends the user's part; an unescaped password may hold a slash or an @ of its own.
    let authority = find(start, b'/').map_or(query, |at| at.min(query));
    let last = |end: usize| url.get(start..end).and_then(|part| part.iter().rposition(|b| *b == b'@')).map(|at| start + at);
    let has_port = |end: usize| {
        let port = url.get(start..end).and_then(|part| part.rsplit(|b| *b == b':').next());
        port.is_some_and(|port| port.ends_with(b"]") || port.iter().all(u8::is_ascii_digit))
    };
    let colon = find(start, b':').filter(|at| *at < odd.unwrap_or(query));
    let odd_slash = || last(query).filter(|_| colon.is_some_and(|at| at < authority) && !has_port(authority));
    let end = odd.or_else(|| last(authority)).or_else(odd_slash);
    if let (Some(colon), Some(end)) = (colon, end) {
        found.extend((colon < end).then_some(colon + 1..end));
    }
    for pair in pairs {
        let name = find(pair.start, b'=').filter(|at| *at < pair.end);
        let is_secret = |at: &usize| url.get(pair.start..*at).is_some_and(|name| OPTIONS.iter().any(|o| o.as_bytes() == name));
        found.extend(name.filter(is_secret).map(|at| at + 1..pair.end));
    }
    found
}

/// The pairs of a query that begins there.
fn pairs(url: &[u8], from: usize) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut start = from;
    while start < url.len() {
        let end = url.get(start..).and_then(|rest| rest.iter().position(|b| *b == b'&')).map_or(url.len(), |at| start + at);
        all.push(start..end);
        start = end + 1;
    }
    all
}

/// Overwrites the secrets of URLs in the arguments that the process list shows to every user. What stands behind `--` is
/// the command's, and its own list shows it anyway. To be called once the arguments were copied.
///
/// # Safety
/// `argv` is what the C runtime gave to `main`, and no other thread runs yet.
#[cfg_attr(test, allow(dead_code, reason = "the entry point of tests is another"))]
pub unsafe fn hide(argc: c_int, argv: *const *const c_char) {
    for at in 1..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: the runtime's `argv` has `argc` texts, each with its end; they are writable memory of this process.
        let text = unsafe {
            let start = *argv.add(at);
            if start.is_null() {
                return;
            }
            std::slice::from_raw_parts_mut(start.cast_mut().cast::<u8>(), CStr::from_ptr(start).count_bytes())
        };
        if text == b"--" {
            return;
        }
        for place in places(text) {
            if let Some(secret) = text.get_mut(place) {
                secret.fill(b'x');
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c16_secrets_are_found_wherever_they_stand_in_a_url() {
        for (url, shown) in [
            ("redis://user:secret@host:6379/1", "redis://user:xxxxxx@host:6379/1"),
            ("--url=redis://:secret@host", "--url=redis://:xxxxxx@host"),
            ("redis://user:p@ss@host/0", "redis://user:xxxx@host/0"),
            ("redis://user:p/w@host/0", "redis://user:xxx@host/0"),
            ("redis://user:12?4@host/0", "redis://user:xxxx@host/0"),
            ("redis://user:a&b?c@host/0?ttl=5s", "redis://user:xxxxx@host/0?ttl=5s"),
            ("zk://a:2181,b/chroot?auth=digest:u:p&session_timeout=5s", "zk://a:2181,b/chroot?auth=xxxxxxxxxx&session_timeout=5s"),
            ("redis://h:6379?password=a&token=b&password_file=/a@b", "redis://h:6379?password=x&token=x&password_file=/a@b"),
            ("file:///a@b/c:d@e", "file:///a@b/c:d@e"),
            ("zk://h:2181/a@b", "zk://h:2181/a@b"),
            ("redis://ann@host", "redis://ann@host"),
            ("memory:", "memory:"),
            ("nightly", "nightly"),
        ] {
            let mut bytes = url.as_bytes().to_vec();
            for place in places(url.as_bytes()) {
                bytes[place].fill(b'x');
            }
            assert_eq!(String::from_utf8(bytes).unwrap(), shown, "{url}");
        }
    }
}
