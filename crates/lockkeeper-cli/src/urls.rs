//! What a URL says before its engine is opened.

use std::path::PathBuf;
use std::time::Duration;

use lockkeeper::engine::{Keep, Registration};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Error, ErrorKind, Result, Warning, direct};

/// How long the session lasts that the URL asks for, and the option that says so, where a session
/// carries the holds.
///
/// # Errors
/// When it is no duration, or the URL is none.
pub fn session(url: &str) -> Result<Option<(Duration, &'static str)>> {
    let mut url = EngineUrl::parse(url)?;
    let Keep::Session { option, default } = Registration::of(&url.scheme)?.keep_of(&url) else {
        return Ok(None);
    };
    Ok(Some((url.take_duration(option)?.unwrap_or(default), option)))
}

/// What is worth changing about where the engine keeps its locks.
pub fn warning(url: &str) -> Option<Warning> {
    let scheme = url.split_once(':')?.0;
    let engine = Registration::of(scheme).ok()?;
    if engine.keep != Keep::Kernel {
        return None;
    }
    direct::foreign_owner(&file(url).ok()?.dir)
}

/// The same URL for whoever only looks: an engine that would make its tables makes none.
pub fn making_nothing(url: &str) -> String {
    let (option, off) = ("create", "create=false");
    let makes = EngineUrl::parse(url).is_ok_and(|parsed| {
        // Advisory locks are in no table, and know no such option.
        parsed.option("layout") != Some("session")
            && Registration::of(&parsed.scheme)
                .is_ok_and(|engine| engine.options.iter().any(|known| known.name == option))
    });
    if !makes {
        return url.to_owned();
    }
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    let named = |part: &&str| part.split('=').next() == Some(option);
    let others = query.split('&').filter(|part| !part.is_empty() && !named(part));
    let all: Vec<&str> = others.chain([off]).collect();
    format!("{place}?{}", all.join("&"))
}

/// What a URL of the file engine says.
pub struct FileUrl {
    /// The directory.
    pub dir: PathBuf,
    /// Whether numbers survive the machine.
    pub durable: bool,
}

/// Reads such a URL.
///
/// # Errors
/// When it cannot be right.
pub fn file(url: &str) -> Result<FileUrl> {
    let mut url = EngineUrl::parse(url)?;
    let wrong = |message: &str| Error::new(ErrorKind::InvalidArgument, message).engine("file");
    if !url.hosts.is_empty() || url.user.is_some() {
        return Err(wrong("file: has no host: write file:///path/dir with three slashes"));
    }
    Registration::of(&url.scheme)?.check(&url)?;
    // Options that every engine takes, and that change nothing here.
    url.take_duration("ttl")?;
    url.take_number("handoff", 0..=64)?;
    url.take_duration("handoff_time")?;
    url.take("drift");
    let durable = url.take_bool("durable")?.unwrap_or(false);
    url.finish()?;
    let dir = direct::directory(&url.path)?;
    Ok(FileUrl { dir, durable })
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[test]
    fn whoever_only_looks_makes_no_tables() {
        for (url, looks) in [
            ("postgres://u:p@h/db", "postgres://u:p@h/db?create=false"),
            ("postgres://h/db?ttl=2s", "postgres://h/db?ttl=2s&create=false"),
            (
                "postgresql://h/db?create=true&layout=shedlock",
                "postgresql://h/db?layout=shedlock&create=false",
            ),
            ("postgres://h/db?create=false", "postgres://h/db?create=false"),
            ("postgres://h/db?layout=session", "postgres://h/db?layout=session"),
            ("redis://h", "redis://h"),
            ("file:///a/b?durable=true", "file:///a/b?durable=true"),
            ("nonsense", "nonsense"),
        ] {
            assert_eq!(making_nothing(url), looks, "{url}");
        }
    }
}
