//! Where the choice of engine comes from, the same for the library and the command line.

use std::collections::BTreeMap;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::open::home;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Warning;

pub use crate::open::home::{Place, default_place};

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
/// `InvalidArgument` when `LOCKKEEPER_URL` is set and empty, a configuration file cannot be read,
/// or no directory is known.
pub fn url() -> Result<(String, Origin)> {
    if let Some(url) = std::env::var_os("LOCKKEEPER_URL") {
        let url = url.into_string().ok().filter(|u| !u.is_empty());
        let wrong = || {
            Error::new(
                ErrorKind::InvalidArgument,
                "LOCKKEEPER_URL is set but empty: unset it, or give it an engine's URL",
            )
        };
        return Ok((url.ok_or_else(wrong)?, Origin::Environment("LOCKKEEPER_URL")));
    }
    match Config::read(false)?.get("url") {
        Some((url, file)) => Ok((url.to_owned(), Origin::File(file.to_owned()))),
        None => Ok((file_url(&default_place()?.0), Origin::Default)),
    }
}

/// A setting of the configuration files: the user's first, then the machine's.
///
/// # Errors
/// `InvalidArgument` when a file is there and cannot be read.
pub fn setting(key: &str) -> Result<Option<(String, PathBuf)>> {
    Ok(Config::read(false)?.get(key).map(|(value, file)| (value.to_owned(), file.to_owned())))
}

/// The configuration files, read once: the user's first, then the machine's.
#[derive(Clone, Debug, Default)]
pub struct Config {
    files: Vec<(PathBuf, Settings)>,
    warnings: Vec<Warning>,
}

impl Config {
    /// Reads the files that are there. With `explicit` the engine is chosen elsewhere: then the
    /// password database is not asked for a home, and a user's file that cannot be opened is a
    /// warning.
    ///
    /// # Errors
    /// `InvalidArgument` for a file that cannot be read and for a line that cannot be right.
    ///
    /// ```
    /// let config = lockkeeper::config::Config::read(true)?;
    /// if let Some((url, file)) = config.get("url") {
    ///     println!("{} chooses an engine of {} characters", file.display(), url.len());
    /// }
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn read(explicit: bool) -> Result<Self> {
        let mut config = Self::default();
        let home =
            if explicit { home::config_home_of_the_environment() } else { home::config_home() };
        if let Some(file) = home.map(|home| home.join("lockkeeper/config.toml")) {
            match config.add(&file) {
                Err(error) if explicit && error.kind() == ErrorKind::Refused => {
                    config.warnings.push(Warning {
                        id: "config-unreadable",
                        text: format!(
                            "{}; it is left out, and what it requires with it",
                            error.message()
                        ),
                    });
                }
                added => added.map_err(invalid)?,
            }
        }
        config.add(Path::new("/etc/lockkeeper/config.toml")).map_err(invalid)?;
        Ok(config)
    }

    /// A setting and the file that it stands in: the first that has it.
    pub fn get(&self, key: &str) -> Option<(&str, &Path)> {
        self.all(key).next()
    }

    /// A setting of every file that has it.
    pub fn all(&self, key: &str) -> impl Iterator<Item = (&str, &Path)> {
        let files = self.files.iter();
        files
            .filter_map(move |(file, settings)| Some((settings.get(key)?.as_str(), file.as_path())))
    }

    /// What is worth changing about the files: others may write them, or one could not be opened.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Reads one file, if it is there; `Refused` where the system does not let us.
    fn add(&mut self, path: &Path) -> Result<()> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        let refused = |e: &std::io::Error| {
            Error::new(ErrorKind::Refused, format!("{} cannot be read: {e}", shown(path)))
        };
        // A pipe would be waited for.
        let no_wait = OFlag::O_NONBLOCK.bits();
        let mut file = match std::fs::File::options().read(true).custom_flags(no_wait).open(path) {
            Ok(file) => file,
            Err(e) if matches!(e.kind(), NotFound | NotADirectory) => return Ok(()),
            Err(e) => return Err(refused(&e)),
        };
        let about = file.metadata().map_err(|e| refused(&e))?;
        if about.file_type().is_fifo() {
            return Err(refused(&std::io::Error::other("it is a pipe, and no file")));
        }
        let mut text = String::new();
        std::io::Read::read_to_string(&mut file, &mut text).map_err(|e| refused(&e))?;
        self.files.push((path.to_owned(), parse(path, &text)?));
        // Whoever may write its directory may put another in its place.
        let directory = path.parent().and_then(|dir| Some((dir, std::fs::metadata(dir).ok()?)));
        let warning = writable(path, &about)
            .or_else(|| directory.and_then(|(dir, about)| writable(dir, &about)));
        self.warnings.extend(warning);
        Ok(())
    }
}

type Settings = BTreeMap<&'static str, String>;

/// That others may write a file, or the directory that it lies in, and so choose the engine of
/// whoever reads it.
fn writable(path: &Path, about: &std::fs::Metadata) -> Option<Warning> {
    use std::os::unix::fs::MetadataExt;
    let us = nix::unistd::geteuid().as_raw();
    let strange_group = about.gid() != 0 && about.gid() != nix::unistd::getegid().as_raw();
    // In a sticky directory everybody replaces only what is their own.
    let is_shared = !(about.is_dir() && about.mode() & 0o1000 != 0);
    let how = if about.uid() != 0 && about.uid() != us {
        format!("belongs to user {}, who can change it", about.uid())
    } else if about.mode() & 0o002 != 0 && is_shared {
        "can be changed by every user: chmod o-w it".to_owned()
    } else if about.mode() & 0o020 != 0 && strange_group && is_shared {
        format!("can be changed by group {}: chmod g-w it", about.gid())
    } else {
        return None;
    };
    let what = if about.is_dir() { "holds the file that chooses" } else { "chooses" };
    let text = format!("{} {what} the engine and {how}", shown(path));
    Some(Warning { id: "config-writable", text })
}

/// A line that is wrong is named by its number alone: it may hold a password.
fn parse(file: &Path, text: &str) -> Result<Settings> {
    const KEYS: [&str; 2] = ["url", "require"];
    let wrong = |at: usize, what: &str| {
        Error::new(ErrorKind::InvalidArgument, format!("{}, line {}, {what}", shown(file), at + 1))
    };
    let mut found = Settings::new();
    // Editors on other systems begin a file with the mark of its byte order.
    for (at, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) =
            line.split_once('=').ok_or_else(|| wrong(at, "is not `key = \"value\"`"))?;
        let key = KEYS.into_iter().find(|key| *key == name.trim());
        let key =
            key.ok_or_else(|| wrong(at, "has an unknown key: the keys are url and require"))?;
        let value =
            unquote(value.trim()).ok_or_else(|| wrong(at, "needs its value in double quotes"))?;
        if key == "url" && value.is_empty() {
            return Err(wrong(at, "gives an empty url: write the engine's, or leave the line out"));
        }
        if found.insert(key, value).is_some() {
            return Err(wrong(at, &format!("gives `{key}` a second time: leave one out")));
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

/// A file that cannot be read is a wrong argument: which engine it chooses is not known.
fn invalid(error: Error) -> Error {
    Error::new(ErrorKind::InvalidArgument, error.message())
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().collect()
}

/// A directory as a `file:` URL.
pub fn file_url(directory: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._~/".contains(&b);
    let path: String = directory
        .as_os_str()
        .as_bytes()
        .iter()
        .map(|b| if plain(*b) { char::from(*b).to_string() } else { format!("%{b:02X}") })
        .collect();
    format!("file://{path}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lookup(text: &str) -> Result<Settings> {
        parse(Path::new("/x/config.toml"), text)
    }

    #[test]
    fn a_configuration_file_says_url_and_require_and_nothing_else() {
        let found =
            lookup("# for five hosts\nurl = \"redis://a:1\"  # here\nrequire = \"fenced\"\n")
                .unwrap();
        assert_eq!((found["url"].as_str(), found["require"].as_str()), ("redis://a:1", "fenced"));
        let marked = lookup("\u{feff}url = \"redis://a\"\n").unwrap();
        assert_eq!(marked["url"], "redis://a", "a mark of the byte order says nothing");
        // Which of two is meant is not known (B11).
        let twice = "url = \"redis://a\"\nurl = \"redis://a\"\n";
        assert!(lookup(twice).unwrap_err().message().contains("line 2, gives `url` a second time"));
        assert!(lookup("url = \"\"").unwrap_err().message().contains("line 1, gives an empty url"));
        for wrong in ["uri = \"x\"", "url = x", "url", twice] {
            assert_eq!(lookup(wrong).unwrap_err().kind(), ErrorKind::InvalidArgument, "{wrong}");
        }
    }

    #[test]
    fn the_users_file_chooses_the_engine_and_what_either_requires_counts() {
        let file = |path: &str, text: &str| (PathBuf::from(path), lookup(text).unwrap());
        let user = file("/home/config.toml", "url = \"redis://a\"\nrequire = \"fenced\"\n");
        let machine = file("/etc/config.toml", "url = \"redis://b\"\nrequire = \"hosts\"\n");
        let config = Config { files: vec![user, machine], warnings: Vec::new() };
        assert_eq!(config.get("url").map(|(url, _)| url), Some("redis://a"));
        let required: Vec<_> = config.all("require").map(|(words, _)| words).collect();
        assert_eq!(required, ["fenced", "hosts"]);
    }

    #[test]
    fn c16_a_line_that_is_wrong_is_named_by_its_number_and_its_text_is_never_repeated() {
        for line in [
            "url \"redis://u:s3cr3t@h?t url = \"x\"",
            "redis://:s3cr3t@h",
            "url = redis://:s3cr3t@h",
            "s3cr3t = \"x\"",
        ] {
            let error = lookup(&format!("# one\n{line}")).unwrap_err();
            assert!(
                error.message().starts_with("/x/config.toml, line 2, ")
                    && !error.message().contains("s3cr3t"),
                "{error}"
            );
        }
    }
}
