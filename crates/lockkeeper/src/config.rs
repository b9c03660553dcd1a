//! Where the choice of engine comes from, the same for the library and the command line.

use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// Where a choice came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The environment variable of this name.
    Environment(&'static str),
    /// This file.
    File(PathBuf),
    /// Nobody chose: the embedded file engine.
    Default,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Environment(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Default => f.write_str("the default"),
        }
    }
}

/// The URL of the engine to use, and where it came from.
///
/// # Errors
/// `InvalidArgument` when `LOCKKEEPER_URL` is set and empty, a configuration file cannot be read, or no directory is known.
pub fn url() -> Result<(String, Origin)> {
    if let Some(url) = std::env::var_os("LOCKKEEPER_URL") {
        let url = url.into_string().ok().filter(|u| !u.is_empty());
        let wrong = || Error::new(ErrorKind::InvalidArgument, "LOCKKEEPER_URL is set but empty: unset it, or give it an engine's URL");
        return Ok((url.ok_or_else(wrong)?, Origin::Environment("LOCKKEEPER_URL")));
    }
    match setting("url")? {
        Some((url, file)) => Ok((url, Origin::File(file))),
        None => Ok((file_url(&crate::locks::default_directory()?), Origin::Default)),
    }
}

/// A setting of the configuration files: the user's first, then the machine's.
///
/// # Errors
/// `InvalidArgument` when a file is there and cannot be read.
pub fn setting(key: &str) -> Result<Option<(String, PathBuf)>> {
    for file in files() {
        if let Some(value) = lookup(&file, key)? {
            return Ok(Some((value, file)));
        }
    }
    Ok(None)
}

fn files() -> Vec<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let home = var("XDG_CONFIG_HOME").or_else(|| var("HOME").map(|h| h.join(".config")));
    let user = home.map(|h| h.join("lockkeeper/config.toml"));
    user.into_iter().chain([PathBuf::from("/etc/lockkeeper/config.toml")]).collect()
}

fn lookup(file: &Path, key: &str) -> Result<Option<String>> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound || e.kind() == std::io::ErrorKind::NotADirectory => return Ok(None),
        Err(e) => return Err(wrong(file, 0, &format!("cannot be read: {e}"))),
    };
    let mut found = None;
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| wrong(file, at + 1, "is no `key = \"value\"`"))?;
        let value = unquote(value.trim()).ok_or_else(|| wrong(file, at + 1, "needs its value in double quotes"))?;
        match name.trim() {
            name if name == key => found = Some(value),
            "url" | "require" => {}
            other => return Err(wrong(file, at + 1, &format!("knows no {other:?}: the keys are url and require"))),
        }
    }
    Ok(found)
}

/// The one form of TOML that these files need: a basic string, with a comment behind it or not.
fn unquote(value: &str) -> Option<String> {
    let inner = value.strip_prefix('"')?;
    let end = inner.find('"')?;
    let rest = inner.get(end + 1..)?.trim();
    let text = inner.get(..end)?;
    ((rest.is_empty() || rest.starts_with('#')) && !text.contains('\\')).then(|| text.to_owned())
}

fn wrong(file: &Path, line: usize, what: &str) -> Error {
    let place = if line > 0 { format!(", line {line},") } else { String::new() };
    Error::new(ErrorKind::InvalidArgument, format!("{}{place} {what}", file.display()))
}

/// A directory as a `file:` URL.
pub fn file_url(directory: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    let path: String =
        directory.as_os_str().as_bytes().iter().map(|b| if plain(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") }).collect();
    format!("file://{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_file_says_url_and_require_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "# for five hosts\nurl = \"redis://a:1\"  # here\nrequire = \"fenced\"\n").unwrap();
        assert_eq!(lookup(&file, "url").unwrap().as_deref(), Some("redis://a:1"));
        assert_eq!(lookup(&file, "require").unwrap().as_deref(), Some("fenced"));
        for wrong in ["uri = \"x\"", "url = x", "url"] {
            std::fs::write(&file, wrong).unwrap();
            assert_eq!(lookup(&file, "url").unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
        assert_eq!(lookup(&dir.path().join("none"), "url").unwrap(), None);
    }
}
