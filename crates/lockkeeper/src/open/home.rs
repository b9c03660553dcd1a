//! Where a user's files lie: the default directory of lock files, and the configuration.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::words::error::{Error, ErrorKind, Result};

/// Which setting the default directory of the lock files comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// `LOCKKEEPER_DIR`.
    Variable,
    /// `$XDG_STATE_HOME/lockkeeper`.
    XdgStateHome,
    /// `$HOME/.local/state/lockkeeper`.
    Home,
    /// `$STATE_DIRECTORY/lockkeeper`: a systemd unit's own, which no other unit sees.
    StateDirectory,
    /// `.local/state/lockkeeper` in the home that the password database gives this user.
    PasswordDatabase,
}

impl Place {
    /// How the place is written, for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Variable => "LOCKKEEPER_DIR",
            Self::XdgStateHome => "$XDG_STATE_HOME/lockkeeper",
            Self::Home => "~/.local/state/lockkeeper",
            Self::StateDirectory => "$STATE_DIRECTORY/lockkeeper, which this unit alone uses",
            Self::PasswordDatabase => {
                "~/.local/state/lockkeeper, the home being the password database's"
            }
        }
    }
}

/// The directory of the embedded file engine when nothing else is said: `LOCKKEEPER_DIR`,
/// `$XDG_STATE_HOME/lockkeeper`, `~/.local/state/lockkeeper`; without `HOME`
/// `$STATE_DIRECTORY/lockkeeper`, then the home of the password database.
///
/// # Errors
/// `InvalidArgument` when `LOCKKEEPER_DIR` is relative, and when no setting says where.
///
/// ```
/// let (directory, place) = lockkeeper::config::default_place()?;
/// assert!(directory.is_absolute(), "{}", place.as_str());
/// # Ok::<(), lockkeeper::Error>(())
/// ```
pub fn default_place() -> Result<(PathBuf, Place)> {
    if let Some(directory) = variable("LOCKKEEPER_DIR") {
        if directory.is_relative() {
            let text = format!(
                "LOCKKEEPER_DIR is relative, so each working directory would have locks of its \
                 own: write LOCKKEEPER_DIR={}",
                shown(&absolute(&directory))
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
        return Ok((directory, Place::Variable));
    }
    let below = |home: PathBuf| home.join(".local/state/lockkeeper");
    xdg("XDG_STATE_HOME")
        .map(|state| (state.join("lockkeeper"), Place::XdgStateHome))
        .or_else(|| variable_home().map(|home| (below(home), Place::Home)))
        .or_else(|| {
            state_directory().map(|state| (state.join("lockkeeper"), Place::StateDirectory))
        })
        .or_else(|| password_home().map(|home| (below(home), Place::PasswordDatabase)))
        .ok_or_else(|| {
            let text = "no directory for the lock files: neither HOME nor the password database \
                        names a home: set LOCKKEEPER_DIR";
            Error::new(ErrorKind::InvalidArgument, text)
        })
}

/// The directory of lock files that the path of a `file:` URL names.
///
/// # Errors
/// `InvalidArgument` for a relative path, with the absolute one to write.
#[cfg(all(feature = "file", target_os = "linux"))]
pub(crate) fn lock_directory(path: &str) -> Result<PathBuf> {
    let given = Path::new(path);
    if given.is_absolute() {
        return Ok(given.to_owned());
    }
    let text = match path {
        "" => return Ok(default_place()?.0),
        "auto" => "file:auto is a directory that lockkeeper demo, bench and torture make for \
                   themselves, and no engine for anything else: name a directory, as in \
                   file:///path/dir, or leave the URL out"
            .to_owned(),
        _ => {
            // A shell expands no ~ behind a colon.
            let at_home = path.strip_prefix("~/").and_then(|rest| Some(home()?.join(rest)));
            let absolute = at_home.unwrap_or_else(|| absolute(given));
            format!(
                "file:{} is relative, so each working directory would have locks of its own: write \
                 {}",
                shown(given),
                crate::open::config::file_url(&absolute)
            )
        }
    };
    Err(Error::new(ErrorKind::InvalidArgument, text).engine("file"))
}

/// The user's state directory, which a fresh account does not have, and the directory above it that
/// has to be there.
#[cfg(all(feature = "file", target_os = "linux"))]
pub(crate) fn state_home() -> Option<(PathBuf, PathBuf)> {
    match xdg("XDG_STATE_HOME") {
        Some(state) => {
            let base = variable_home()
                .filter(|home| state.starts_with(home))
                .or_else(|| state.parent().map(Path::to_owned))?;
            Some((state, base))
        }
        None => home().map(|home| (home.join(".local/state"), home)),
    }
}

/// The directory of the user's configuration files; `None` when no home is known.
pub(crate) fn config_home() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME").or_else(|| home().map(|home| home.join(".config")))
}

/// The same without a look into the password database.
pub(crate) fn config_home_of_the_environment() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME").or_else(|| variable_home().map(|home| home.join(".config")))
}

fn home() -> Option<PathBuf> {
    variable_home().or_else(password_home)
}

fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// A variable of the XDG specification, which has a relative path ignored.
fn xdg(name: &str) -> Option<PathBuf> {
    variable(name).filter(|path| path.is_absolute())
}

fn variable_home() -> Option<PathBuf> {
    variable("HOME").filter(|path| path.is_absolute())
}

/// The first state directory that systemd made for this unit; with several, colons stand between
/// them.
fn state_directory() -> Option<PathBuf> {
    let all = variable("STATE_DIRECTORY")?;
    let first = all
        .to_str()
        .and_then(|all| all.split(':').next())
        .map_or_else(|| all.clone(), PathBuf::from);
    Some(first).filter(|path| path.is_absolute())
}

/// The home that the password database gives this user, read at most once: it may be on a server.
fn password_home() -> Option<PathBuf> {
    static HOME: OnceLock<Option<PathBuf>> = OnceLock::new();
    let read =
        || nix::unistd::User::from_uid(nix::unistd::getuid()).ok().flatten().map(|user| user.dir);
    HOME.get_or_init(|| read().filter(|home| home.is_absolute())).clone()
}

fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().collect()
}

#[cfg(all(test, feature = "file", target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn c9_a_relative_file_url_is_refused_with_the_absolute_one_to_write() {
        let here = std::env::current_dir().unwrap();
        for (path, word) in [("locks", "locks"), ("./locks", "locks"), ("../locks", "../locks")] {
            let error = lock_directory(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            let wanted = crate::open::config::file_url(&here.join(word));
            assert!(error.message().ends_with(&format!("write {wanted}")), "{error}");
        }
        assert!(lock_directory("auto").unwrap_err().message().contains("torture"));
        assert_eq!(lock_directory("/var/locks").unwrap(), Path::new("/var/locks"));
    }
}
