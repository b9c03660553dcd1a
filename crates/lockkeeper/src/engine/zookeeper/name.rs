//! From a lock's name to its path (R12).
//!
//! The layouts are shared with other software, so the name *is* the path below the chroot:
//! `stock/sku-42` is `/stock/sku-42`. Nothing is escaped, because an escaped name would lock beside
//! the others; what cannot be said is refused with the reason.

use super::layout::{Child, Layout};
use super::options::Options;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::{Kind, Name};

/// The directory of a name, as the server sees it.
pub(super) fn directory(chroot: &str, layout: &Layout, name: &Name) -> Result<String> {
    let text = name.as_str();
    if let Some(why) = refusal(chroot, layout, text) {
        let text = format!("ZooKeeper cannot say this name as a path: {why}");
        return Err(Error::new(ErrorKind::InvalidName, text).name(name));
    }
    Ok(format!("{chroot}/{text}"))
}

/// The directory in which claims of this kind stand.
pub(super) fn of_kind(options: &Options, kind: Kind, name: &Name) -> Result<String> {
    let dir = directory(&options.chroot, &options.layout, name)?;
    Ok(match kind {
        Kind::Semaphore if options.counts_leases() => dir,
        Kind::Semaphore if options.shared_permits => format!("{dir}/leases"),
        Kind::Semaphore => format!("{dir}/permits"),
        _ => dir,
    })
}

/// Where those wait who want a permit of another library's semaphore, whose permits are in `dir`.
pub(super) fn gate(options: &Options, kind: Kind, dir: &str) -> Option<String> {
    match dir.strip_suffix("leases") {
        _ if kind != Kind::Semaphore || !options.shared_permits => None,
        Some(name) if !options.counts_leases() => Some(format!("{name}locks")),
        _ => Some(format!("{dir}-__lock__")),
    }
}

/// The path of what a holder writes.
pub(super) fn of_data(options: &Options, text: &str) -> Result<String> {
    match refusal(&options.chroot, &Layout::Curator, text) {
        None if text.is_empty() => Err(Error::new(ErrorKind::InvalidName, "a write needs a path")),
        None => Ok(format!("{}/{text}", options.chroot)),
        Some(why) => Err(Error::new(
            ErrorKind::InvalidName,
            format!("{text:?} is not a path of ZooKeeper: {why}"),
        )),
    }
}

/// The name that a server path stands for; `None` outside the chroot.
pub(super) fn name_of(chroot: &str, path: &str) -> Option<Name> {
    Name::new(path.strip_prefix(chroot)?.strip_prefix('/')?).ok()
}

fn refusal(chroot: &str, layout: &Layout, text: &str) -> Option<String> {
    if text.starts_with('/') {
        return Some("the first slash is the chroot's, leave it out".to_owned());
    }
    if text.ends_with('/') || text.contains("//") {
        return Some("a part between two slashes, or behind the last one, is empty".to_owned());
    }
    if text.split('/').any(|part| part == "." || part == "..") {
        return Some("a part is `.` or `..`".to_owned());
    }
    if let Some(bad) = text.chars().find(|c| !is_allowed(*c)) {
        return Some(format!("it holds the character {}", bad.escape_unicode()));
    }
    if chroot.is_empty() && (text == "zookeeper" || text.starts_with("zookeeper/")) {
        return Some(
            "`zookeeper` at the root is the server's own; give the URL a chroot".to_owned(),
        );
    }
    // We tell a directory from a contender, and Curator's users nest locks; kazoo and plain code
    // would wait for it for ever.
    let like_a_contender = text.split('/').skip(1).find(|part| Child::read(part).is_some());
    if let Some(part) = like_a_contender.filter(|_| *layout != Layout::Curator) {
        return Some(format!(
            "the part `{part}` ends like a contender's node and would stand in the line of the \
             name above it"
        ));
    }
    None
}

/// Checks a chroot as the URL gives it, and answers it without a slash at the end: empty for the
/// root.
pub(crate) fn check_chroot(text: &str) -> Result<String> {
    let trimmed = text.strip_suffix('/').unwrap_or(text);
    if trimmed.is_empty() {
        return Ok(String::new());
    }
    let inner = trimmed.strip_prefix('/').unwrap_or(trimmed);
    match refusal("-", &Layout::Curator, inner) {
        None if trimmed.starts_with('/') => Ok(trimmed.to_owned()),
        None => Ok(format!("/{inner}")),
        Some(why) => Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("the chroot {text:?} is not a path of ZooKeeper: {why}"),
        )),
    }
}

/// The characters that the server accepts in paths; those beyond the basic plane are surrogates to
/// it.
fn is_allowed(c: char) -> bool {
    !matches!(
        c,
        '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..='\u{ffff}'
            | '\u{10000}'..
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir(layout: &Layout, name: &str) -> Result<String> {
        directory("/app", layout, &Name::new(name)?)
    }

    #[test]
    fn r12_the_name_is_the_path() {
        for name in [
            "anyLock",
            "stock/sku-42",
            "a b",
            "É",
            "e\u{301}",
            "...",
            "a.b",
            "stock/1234567890",
            "UPPER",
            "upper",
        ] {
            assert_eq!(dir(&Layout::Curator, name).unwrap(), format!("/app/{name}"));
            assert_eq!(name_of("/app", &format!("/app/{name}")).unwrap().as_str(), name);
        }
    }

    #[test]
    fn r12_what_a_path_cannot_say_is_refused_with_the_reason() {
        for name in [
            "/a",
            "a/",
            "a//b",
            ".",
            "a/./b",
            "..",
            "a/..",
            "a\u{1}b",
            "a\nb",
            "\u{1f600}",
            "\u{e000}",
        ] {
            let error = dir(&Layout::Curator, name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{name:?}");
            assert!(error.message().contains("cannot say"), "{error}");
        }
        assert!(
            dir(&Layout::Kazoo, "stock/1234567890").is_err(),
            "it would block the kazoo lock `stock` for ever"
        );
        assert!(dir(&Layout::Kazoo, "1234567890").is_ok(), "nothing can be locked above it");
        assert!(directory("", &Layout::Curator, &Name::new("zookeeper/quota").unwrap()).is_err());
    }

    #[test]
    fn a_chroot_is_checked_like_a_path() {
        for (given, kept) in [("", ""), ("/", ""), ("/a", "/a"), ("/a/b/", "/a/b")] {
            assert_eq!(check_chroot(given).unwrap(), kept);
        }
        for bad in ["//a", "/a//b", "/a/../b"] {
            assert_eq!(check_chroot(bad).unwrap_err().kind(), ErrorKind::InvalidArgument, "{bad}");
        }
    }
}
