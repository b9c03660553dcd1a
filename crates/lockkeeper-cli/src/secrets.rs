//! Passwords in URLs: where they stand, and how they are kept from others' eyes.

use std::ffi::{CStr, c_char, c_int};
use std::ops::Range;

use lockkeeper::url::{Form, is_secret};

/// Where secrets stand in a word of a command line, in order and apart from each other: in the URL
/// that it is, and in each URL of a script.
pub fn places(word: &[u8]) -> Vec<Range<usize>> {
    let parts = |b: &u8| b.is_ascii_whitespace() || b"'\"`".contains(b);
    let mut found = Vec::new();
    // A word that begins as a URL may have a password that looks like several words.
    if word.windows(3).position(|w| w == b"://").is_some_and(|at| !word.iter().take(at).any(parts))
    {
        found.extend(in_url(word));
    }
    let mut start = 0;
    for part in word.split(parts) {
        found.extend(in_url(part).into_iter().map(|place| place.start + start..place.end + start));
        start += part.len() + 1;
    }
    found.sort_by_key(|place| (place.start, place.end));
    found.dedup_by(|next, kept| {
        let one = next.start <= kept.end;
        kept.end = if one { kept.end.max(next.end) } else { kept.end };
        one
    });
    found
}

/// A URL without the password between its scheme and its `@`, and without the values of options
/// that name secrets.
pub fn redacted(url: &str) -> String {
    let mut out = url.to_owned();
    for place in places(url.as_bytes()).into_iter().rev() {
        let (before, after) =
            (out.get(..place.start).unwrap_or_default(), out.get(place.end..).unwrap_or_default());
        out = match before.strip_suffix(':') {
            // The colon goes too, and the @ behind an empty user.
            Some(user) if user.ends_with('/') => {
                format!("{user}{}", after.strip_prefix('@').unwrap_or(after))
            }
            Some(user) => format!("{user}{after}"),
            None => {
                let kept = before
                    .rfind(['?', '&'])
                    .map_or(before, |at| before.get(..=at).unwrap_or(before));
                match after.strip_prefix('&') {
                    Some(after) => format!("{kept}{after}"),
                    None => kept.trim_end_matches(['?', '&']).to_owned() + after,
                }
            }
        };
    }
    out
}

/// Where secrets stand in a URL: the password before the host, and the values of options that are
/// secrets.
fn in_url(url: &[u8]) -> Vec<Range<usize>> {
    let find = |from: usize, what: u8| {
        url.get(from..)?.iter().position(|b| *b == what).map(|at| from + at)
    };
    let Some(start) = url.windows(3).position(|w| w == b"://").map(|at| at + 3) else {
        return Vec::new();
    };
    let query = find(start, b'?').unwrap_or(url.len());
    let form = Form::of(&scheme(url.get(..start - 3).unwrap_or_default()));
    let mut found = Vec::new();
    let pairs = pairs(url, query + 1);
    // A password whose ? or & is not escaped reaches into what looks like options.
    let at_of_pair = |pair: &Range<usize>| {
        let name = find(pair.start, b'=').map_or(pair.end, |at| at.min(pair.end));
        let option = url.get(pair.start..name).and_then(|name| std::str::from_utf8(name).ok());
        // Of other schemes nothing is known.
        let may_hold_at =
            form.as_ref().is_none_or(|form| option.is_some_and(|option| form.may_hold_at(option)));
        let last =
            url.get(pair.clone())?.iter().rposition(|b| *b == b'@').map(|at| pair.start + at);
        last.filter(|at| *at < name || !may_hold_at)
    };
    let odd = pairs.iter().filter_map(at_of_pair).next_back();
    // The last @ ends the user's part; an unescaped password may hold a slash or an @ of its own.
    let authority = find(start, b'/').map_or(query, |at| at.min(query));
    let last = |end: usize| {
        url.get(start..end)
            .and_then(|part| part.iter().rposition(|b| *b == b'@'))
            .map(|at| start + at)
    };
    let has_port = |end: usize| {
        let port = url.get(start..end).and_then(|part| part.rsplit(|b| *b == b':').next());
        port.is_some_and(|port| port.ends_with(b"]") || port.iter().all(u8::is_ascii_digit))
    };
    let colon = find(start, b':').filter(|at| *at < odd.unwrap_or(query));
    let odd_slash = || last(query).filter(|_| colon.is_some_and(|at| at < authority));
    let no_at_in_path = form.as_ref().is_some_and(|form| !form.path_may_hold_at());
    let end = odd.or_else(|| odd_slash().filter(|_| no_at_in_path)).or_else(|| last(authority));
    let end = end.or_else(|| odd_slash().filter(|_| !has_port(authority)));
    if let (Some(colon), Some(end)) = (colon, end) {
        found.extend((colon < end).then_some(colon + 1..end));
    }
    for pair in pairs {
        let name = find(pair.start, b'=').filter(|at| *at < pair.end);
        let is_secret = |at: &usize| {
            url.get(pair.start..*at)
                .and_then(|name| std::str::from_utf8(name).ok())
                // An escaped name is refused, and may mean a secret.
                .is_some_and(|name| name.contains('%') || is_secret(name))
        };
        found.extend(name.filter(is_secret).map(|at| at + 1..pair.end));
    }
    found
}

/// The scheme before `://`, behind whatever else stands there.
fn scheme(before: &[u8]) -> String {
    let scheme = before
        .rsplit(|b| !(b.is_ascii_alphanumeric() || b"+-.".contains(b)))
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(scheme).to_ascii_lowercase()
}

/// The pairs of a query that begins there.
fn pairs(url: &[u8], from: usize) -> Vec<Range<usize>> {
    let mut all = Vec::new();
    let mut start = from;
    while start < url.len() {
        let end = url
            .get(start..)
            .and_then(|rest| rest.iter().position(|b| *b == b'&'))
            .map_or(url.len(), |at| start + at);
        all.push(start..end);
        start = end + 1;
    }
    all
}

/// Overwrites the secrets of URLs in the arguments that the process list shows to every user, the
/// command's too: it may be another lockkeeper, which hides them in its own. To be called once the
/// arguments were copied.
///
/// # Safety
/// `argv` is what the C runtime gave to `main`, and no other thread runs yet.
#[cfg_attr(test, allow(dead_code, reason = "the entry point of tests is another"))]
pub unsafe fn hide(argc: c_int, argv: *const *const c_char) {
    for at in 1..usize::try_from(argc).unwrap_or(0) {
        // SAFETY: the runtime's `argv` has `argc` texts, each with its end; they are writable
        // memory of this process.
        let text = unsafe {
            let start = *argv.add(at);
            if start.is_null() {
                return;
            }
            std::slice::from_raw_parts_mut(
                start.cast_mut().cast::<u8>(),
                CStr::from_ptr(start).count_bytes(),
            )
        };
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
            ("redlock://user:12?4@h1,h2,h3/0", "redlock://user:xxxx@h1,h2,h3/0"),
            ("redis://user:12?4@host/0", "redis://user:xxxx@host/0"),
            ("redis://user:a&b?c@host/0?ttl=5s", "redis://user:xxxxx@host/0?ttl=5s"),
            (
                "zk://a:2181,b/chroot?auth=digest:u:p&session_timeout=5s",
                "zk://a:2181,b/chroot?auth=xxxxxxxxxx&session_timeout=5s",
            ),
            (
                "redis://h:6379?password=a&token=b&password_file=/a@b",
                "redis://h:6379?password=x&token=x&password_file=/a@b",
            ),
            ("zk://h?%61uth=u:p&ttl=5s", "zk://h?%61uth=xxx&ttl=5s"),
            ("file:///a@b/c:d@e", "file:///a@b/c:d@e"),
            ("zk://h:2181/a@b", "zk://h:2181/a@b"),
            ("redis://ann@host", "redis://ann@host"),
            ("redis://u:2024/winter@h", "redis://u:xxxxxxxxxxx@h"),
            ("REDIS://u:2024/winter@h/0", "REDIS://u:xxxxxxxxxxx@h/0"),
            ("redis://u:p@2024/winter@h", "redis://u:xxxxxxxxxxxxx@h"),
            ("redis+sentinel://u:2024/winter@a,b/m", "redis+sentinel://u:xxxxxxxxxxx@a,b/m"),
            ("redis+cluster://u:2024/winter@h", "redis+cluster://u:xxxxxxxxxxx@h"),
            ("redis://u:12?namespace=a@h", "redis://u:xxxxxxxxxxxxxx@h"),
            ("redis://ann:12?abc&zz@h", "redis://ann:xxxxxxxxx@h"),
            ("redis://ann:12?abc=d@h", "redis://ann:xxxxxxxx@h"),
            ("redis://ann:12?ttl=5s@h?ttl=5s", "redis://ann:xxxxxxxxx@h?ttl=5s"),
            (
                "redis://h:6379?key={name}@x&layout=plain",
                "redis://h:6379?key={name}@x&layout=plain",
            ),
            ("redis+unix://:pw@/run/a@b.sock", "redis+unix://:xx@/run/a@b.sock"),
            ("http://u:p@h/a@b", "http://u:x@h/a@b"),
            ("http://h:80/a@b?to=a@b", "http://h:80/a@b?to=a@b"),
            ("memory:", "memory:"),
            ("nightly", "nightly"),
            ("redis://u:a b'c@host", "redis://u:xxxxx@host"),
            ("LOCKKEEPER_URL=redis://:pw@h", "LOCKKEEPER_URL=redis://:xx@h"),
            ("LOCKKEEPER_URL='redis://:pw@h' make", "LOCKKEEPER_URL='redis://:xx@h' make"),
            (
                "curl https://a/b; lk run x --url redis://:pw@h -- mail a@b",
                "curl https://a/b; lk run x --url redis://:xx@h -- mail a@b",
            ),
            ("https://a/b redis://:pw@h?token=t", "https://a/b redis://:xx@h?token=x"),
        ] {
            let mut bytes = url.as_bytes().to_vec();
            for place in places(url.as_bytes()) {
                bytes[place].fill(b'x');
            }
            assert_eq!(String::from_utf8(bytes).unwrap(), shown, "{url}");
        }
    }
}
