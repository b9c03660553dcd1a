//! Which engine is used, and where that was said.

use std::env;
use std::io::Write as _;
use std::sync::Once;

use lockkeeper::config::{self, Config, Origin, Place};
use lockkeeper::engine::Registration;
use lockkeeper::{ErrorKind, Require, Warning};

use crate::args::common::Global;
use crate::args::values;
use crate::failure::Failure;
use crate::secrets;
use crate::text::quoted;
use crate::urls;

/// Where the choice was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `--url`, or an argument that stands for it.
    Option,
    /// The environment or a configuration file.
    Said(Origin),
    /// Nobody said anything: the embedded engine, in the directory that this names.
    Default(Place),
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Option => f.write_str("from --url"),
            Self::Said(origin) => write!(f, "from {origin}"),
            Self::Default(place) => write!(f, "the default, in {}", place.as_str()),
        }
    }
}

/// The engine that was chosen, and what it must promise.
#[derive(Clone, Debug)]
pub struct Choice {
    /// Its URL, as it was written. May hold a password: print [`Choice::redacted`] instead.
    pub url: String,
    /// Where it was said.
    pub source: Source,
    /// What it must promise.
    pub require: Vec<Require>,
    /// What is worth changing about where it was said.
    pub warnings: Vec<Warning>,
}

impl Choice {
    /// Chooses from the command line, the environment and the files, in this order, and says on
    /// stderr what is not safe about it.
    ///
    /// # Errors
    /// Whatever was said and cannot be right: an empty variable, an unreadable file, an unknown
    /// key.
    pub fn make(global: &Global) -> Result<Self, Failure> {
        let choice = Self::find(global)?;
        choice.warn(global);
        Ok(choice)
    }

    /// Chooses, and says nothing.
    ///
    /// # Errors
    /// As [`Choice::make`].
    pub fn find(global: &Global) -> Result<Self, Failure> {
        let choice = Self::any(global)?;
        if lockkeeper_lab::engines::is_started_for(&choice.url) {
            let text = format!(
                "{} is an engine that lockkeeper demo, bench and torture start for themselves, and \
                 none for anything else: name a server that runs, or a directory as in \
                 file:///path/dir",
                choice.url.split('?').next().unwrap_or_default()
            );
            let failure = Failure::from(ErrorKind::InvalidArgument).message(text);
            return Err(failure.engine(Some(choice.engine().to_owned())));
        }
        Ok(choice)
    }

    /// The same for those who start an engine of their own where the URL says so.
    ///
    /// # Errors
    /// As [`Choice::make`].
    pub fn or_started(global: &Global) -> Result<Self, Failure> {
        let choice = Self::any(global)?;
        choice.warn(global);
        Ok(choice)
    }

    fn any(global: &Global) -> Result<Self, Failure> {
        let mut require = global.require.clone();
        require.extend(required("LOCKKEEPER_REQUIRE", variable("LOCKKEEPER_REQUIRE")?.as_deref())?);
        let explicit = match &global.url {
            Some(url) if url.is_empty() => {
                return Err(Failure::usage(
                    "--url is empty: give the engine's URL, or leave --url out",
                ));
            }
            Some(url) => Some((url.clone(), Source::Option)),
            None => variable("LOCKKEEPER_URL")?
                .map(|url| (url, Source::Said(Origin::Environment("LOCKKEEPER_URL")))),
        };
        let config = Config::read(explicit.is_some())?;
        for (words, file) in config.all("require") {
            require.extend(required(&quoted(file.as_os_str()), Some(words))?);
        }
        require.sort_by_key(|r| r.as_str());
        require.dedup();
        let (url, source) = match (explicit, config.get("url")) {
            (Some(chosen), _) => chosen,
            (None, Some((url, file))) => {
                (url.to_owned(), Source::Said(Origin::File(file.to_owned())))
            }
            (None, None) => {
                variable("LOCKKEEPER_DIR")?;
                let (directory, place) = config::default_place()?;
                (config::file_url(&directory), Source::Default(place))
            }
        };
        let url = with_plain_scheme(url);
        let mut warnings = config.warnings().to_vec();
        if source == Source::Default(Place::StateDirectory) {
            let text = "the locks lie in the state directory of this systemd unit, so no other \
                        unit and no shell sees them: name a shared directory or a server where \
                        others must wait";
            warnings.push(Warning { id: "unit-state-directory", text: text.to_owned() });
        }
        warnings.extend(urls::warning(&url));
        Ok(Self { url, source, require, warnings })
    }

    /// Says once what others could do to the choice or the locks, and with -v all that is worth
    /// changing. With --json the lines of stderr are objects, and `doctor` lists the warnings.
    fn warn(&self, global: &Global) {
        const UNSAFE: [&str; 3] = ["config-writable", "config-unreadable", "directory-owner"];
        static SAID: Once = Once::new();
        if global.quiet || global.json {
            return;
        }
        SAID.call_once(|| {
            for warning in self.warnings.iter().filter(|w| global.verbose || UNSAFE.contains(&w.id))
            {
                _ = writeln!(std::io::stderr(), "lockkeeper: warning: {}", warning.text);
            }
        });
    }

    /// The part before the colon, in lower case.
    pub fn scheme(&self) -> &str {
        self.url.split_once(':').map_or(self.url.as_str(), |(scheme, _)| scheme)
    }

    /// The engine's name: one engine has one name, however many schemes lead to it.
    pub fn engine(&self) -> &str {
        Registration::of(self.scheme()).map_or(self.scheme(), |engine| engine.engine)
    }

    /// The URL without its password, for eyes, logs and environments.
    pub fn redacted(&self) -> String {
        secrets::redacted(&self.url)
    }
}

/// The same URL with its scheme in lower case: in a URL upper case means the same.
fn with_plain_scheme(url: String) -> String {
    match url.split_once(':') {
        Some((scheme, rest)) if scheme.bytes().any(|b| b.is_ascii_uppercase()) => {
            format!("{}:{rest}", scheme.to_ascii_lowercase())
        }
        _ => url,
    }
}

/// A URL in a line that somebody is to type: a word stands where each secret was, and no server
/// takes it for one. Left out, the line would ask without a password.
pub fn to_type(url: &str) -> String {
    let mut out = url.to_owned();
    for place in secrets::places(url.as_bytes()).into_iter().rev() {
        // Not between two characters: then nothing of it is shown.
        if out.get(place.clone()).is_none() {
            return secrets::redacted(url);
        }
        out.replace_range(place, "PASSWORD");
    }
    out
}

/// An environment variable that is set, as text. Set and empty is a mistake, never the default.
fn variable(key: &str) -> Result<Option<String>, Failure> {
    let Some(value) = env::var_os(key) else { return Ok(None) };
    match value.into_string() {
        Ok(value) if value.is_empty() => {
            Err(Failure::usage(format!("{key} is set and empty: give it a value, or unset it")))
        }
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(Failure::usage(format!("{key} is not UTF-8 text: set it anew"))),
    }
}

fn required(place: &str, words: Option<&str>) -> Result<Vec<Require>, Failure> {
    let words = words.unwrap_or_default().split(',').map(str::trim).filter(|w| !w.is_empty());
    words
        .map(|w| {
            values::require(w)
                .map_err(|why| Failure::usage(format!("{place}: {} {why}", quoted(w.as_ref()))))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (url, shown) in [
            ("redis://user:secret@host:6379/1", "redis://user@host:6379/1"),
            ("redis://:secret@host", "redis://host"),
            ("redis://user:p@ss@host/0", "redis://user@host/0"),
            ("redis://user:p/w@host/0", "redis://user@host/0"),
            (
                "zk://a,b/chroot?auth=digest:u:p&session_timeout=5s",
                "zk://a,b/chroot?session_timeout=5s",
            ),
            (
                "redis://u:12?4@host?ttl=5s&token=a&layout=plain",
                "redis://u@host?ttl=5s&layout=plain",
            ),
            ("redis://h?password=a&token=b", "redis://h"),
            ("file:///a@b/c:d@e", "file:///a@b/c:d@e"),
            ("zk://h:2181/a@b", "zk://h:2181/a@b"),
            ("memory:", "memory:"),
        ] {
            assert_eq!(secrets::redacted(url), shown, "{url}");
        }
    }

    #[test]
    fn in_a_line_to_type_a_word_stands_for_each_password() {
        for (url, shown) in [
            ("redis://user:secret@host:6379/1", "redis://user:PASSWORD@host:6379/1"),
            ("--url=redis://:sécret@host", "--url=redis://:PASSWORD@host"),
            ("zk://a,b/c?auth=digest:u:p&drift=5%25", "zk://a,b/c?auth=PASSWORD&drift=5%25"),
            ("redis://h?password=a&token=b", "redis://h?password=PASSWORD&token=PASSWORD"),
            ("redis://ann@host", "redis://ann@host"),
            ("nightly", "nightly"),
        ] {
            assert_eq!(to_type(url), shown, "{url}");
        }
    }
}
