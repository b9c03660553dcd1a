//! The password that a URL gives, in its text, by a variable or in a file, and what follows when a
//! server refuses it.
//!
//! Whoever tries a wrong password again and again locks an account. So a server that refused one is
//! dialled again when the file has another, and else every 30 seconds; but once after 5 seconds if
//! that password was accepted before: the server may have started again without its users, and be
//! given them. Where the file's content was refused and another one was accepted before, that one
//! is tried, too: the file may be half written, or the server not changed yet.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::reread::{Reread, text};
#[cfg(any(feature = "redis", feature = "postgres"))]
use crate::open::url::EngineUrl;
use crate::open::url::Secret;
use crate::words::error::{Error, ErrorKind, Result};

/// When a password that was refused is tried again.
pub(crate) const AGAIN: Duration = Duration::from_secs(30);

/// The same, once, of one that was accepted before: early enough for a hold of 30 seconds.
pub(crate) const EARLY: Duration = Duration::from_secs(5);

/// How often it is looked meanwhile whether there is another one, unless leases are short.
const LOOK_EVERY: Duration = Duration::from_secs(2);
const LOOK_LEAST: Duration = Duration::from_millis(20);

/// The password of one URL. Clones share what is known of it.
#[derive(Clone)]
pub(crate) struct Password {
    source: Source,
    known: Arc<Mutex<Known>>,
}

#[derive(Clone)]
enum Source {
    /// It stands in the URL or in a variable: a running process cannot learn of another.
    Given(Secret),
    File(Reread<Secret>),
}

#[derive(Default)]
struct Known {
    /// What servers took last, and the other one that they took before: of several servers some
    /// may have changed.
    accepted: [Option<Secret>; 2],
    /// By address.
    refused: BTreeMap<String, Refused>,
}

/// What one server said no to.
#[derive(Clone, Debug)]
struct Refused {
    password: Secret,
    at: Instant,
    /// When it is tried again.
    again: Duration,
    before: Before,
    why: Error,
}

/// What a server that refused the newer password said since to the one accepted before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Untried,
    Taken,
    /// So it may have changed since it refused the newer one, which is tried once more.
    Refused,
    /// And that one was refused again.
    Both,
    /// So it was, and again after its time: the older one has its turn, too, and no more.
    Again,
}

/// The password of one dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) password: Secret,
    /// The one that was accepted before, while the one that counts is refused.
    before: bool,
}

impl Known {
    /// What to dial this server with while `password` is the one that counts; `None`: not yet.
    fn login(&self, server: &str, password: &Secret, now: Instant) -> Option<Login> {
        let this = || Login { password: password.clone(), before: false };
        let Some(refused) = self.refused.get(server) else { return Some(this()) };
        if refused.password != *password || now.duration_since(refused.at) >= refused.again {
            return Some(this());
        }
        match refused.before {
            Before::Untried | Before::Taken | Before::Again => {}
            Before::Refused => return Some(this()),
            Before::Both => return None,
        }
        let before = self.accepted.iter().flatten().find(|before| *before != password);
        before.map(|before| Login { password: before.clone(), before: true })
    }

    fn accepted(&mut self, server: &str, login: &Login) {
        if self.accepted[0].as_ref() != Some(&login.password) {
            self.accepted.swap(0, 1);
            self.accepted[0] = Some(login.password.clone());
        }
        // While the one before is in use, the newer one is not tried at each dial.
        match self.refused.get_mut(server).filter(|_| login.before) {
            Some(refused) => refused.before = Before::Taken,
            None => _ = self.refused.remove(server),
        }
    }

    fn refused(&mut self, server: &str, login: &Login, why: Error, now: Instant) {
        // What is older keeps nobody from dialling: so there are as many as were dialled just now.
        let lasts = |refused: &Refused| now.duration_since(refused.at) < AGAIN * 2;
        self.refused.retain(|at, refused| at == server || lasts(refused));
        let known = self.refused.get_mut(server);
        if login.before {
            if let Some(refused) = known {
                refused.before = match refused.before {
                    Before::Untried | Before::Taken => Before::Refused,
                    Before::Again => Before::Both,
                    before => before,
                };
            }
            return;
        }
        let same = known.as_ref().is_some_and(|refused| refused.password == login.password);
        let before = match known {
            None => Before::Untried,
            Some(known) => match known.before {
                Before::Refused | Before::Both if now.duration_since(known.at) >= AGAIN => {
                    Before::Again
                }
                Before::Refused | Before::Both => Before::Both,
                before => before,
            },
        };
        let was_accepted = self.accepted.iter().flatten().any(|taken| *taken == login.password);
        let again = if was_accepted && !same { EARLY } else { AGAIN };
        let refused = Refused { password: login.password.clone(), at: now, again, before, why };
        self.refused.insert(server.to_owned(), refused);
    }

    /// Whether this server refused one just now.
    fn refuses(&self, server: &str, now: Instant) -> bool {
        let refused = self.refused.get(server);
        refused.is_some_and(|refused| now.duration_since(refused.at) < AGAIN)
    }
}

impl Password {
    pub(crate) fn given(secret: Secret) -> Self {
        Self { source: Source::Given(secret), known: Arc::default() }
    }

    /// One that stands in a file; `option` is how the URL names it.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn file(option: &str, path: PathBuf) -> Self {
        Self::file_of(option, path, |_, _| Ok(()))
    }

    /// One whose content has a form; `check` is given the name of the file.
    pub(crate) fn file_of(
        option: &str,
        path: PathBuf,
        check: fn(&str, &str) -> Result<()>,
    ) -> Self {
        let what = format!("{option}={}", path.display());
        let named = what.clone();
        let file = Reread::new(what, move |_| {
            let text = text(&named, &path)?;
            check(&named, &text)?;
            Ok(Secret::new(text))
        });
        Self { source: Source::File(file), known: Arc::default() }
    }

    /// The password of a URL, whose text, variable or file gives it.
    ///
    /// # Errors
    /// `InvalidArgument` where it is given twice, or the variable is not set.
    #[cfg(any(feature = "redis", feature = "postgres"))]
    pub(crate) fn take(url: &mut EngineUrl) -> Result<Option<Self>> {
        let (file, variable) = (url.take("password_file"), url.take("password_env"));
        let given = [url.password.is_some(), file.is_some(), variable.is_some()];
        if given.iter().filter(|given| **given).count() > 1 {
            return Err(wrong(
                "the password is given twice: use one of the URL, password_file and password_env",
            ));
        }
        if let Some(file) = file {
            return Ok(Some(Self::file("password_file", file.into())));
        }
        if let Some(variable) = variable {
            let text = std::env::var(&variable)
                .map_err(|_| wrong(format!("password_env={variable}: this variable is not set")))?;
            return Ok(Some(Self::given(Secret::new(text))));
        }
        Ok(url.password.take().map(Self::given))
    }

    /// The same for another server, whose refusals say nothing about the first.
    #[cfg(feature = "redlock")]
    pub(crate) fn of_another_server(&self) -> Self {
        Self { source: self.source.clone(), known: Arc::default() }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What to dial this server with, by `until`.
    ///
    /// # Errors
    /// The file cannot be read and never could; or what the server said, which is not asked again
    /// yet.
    pub(crate) async fn to_dial(&self, server: &str, until: Instant) -> Result<Login> {
        let password = match &self.source {
            Source::Given(secret) => secret.clone(),
            Source::File(file) => file.now(until).await?,
        };
        let known = self.known();
        known.login(server, &password, Instant::now()).ok_or_else(|| {
            let why = known.refused.get(server).map(|refused| refused.why.clone());
            why.unwrap_or_else(|| Error::new(ErrorKind::Refused, "the password was refused"))
        })
    }

    /// The server took it.
    pub(crate) fn accepted(&self, server: &str, login: &Login) {
        self.known().accepted(server, login);
    }

    /// The server refused it, and said why; answers what to tell. Where one of a file was accepted
    /// before, it is waited for as a server that is away: a rotation costs no hold.
    pub(crate) fn refused(&self, server: &str, login: &Login, why: Error) -> Error {
        let mut known = self.known();
        let rotates = matches!(self.source, Source::File(_)) && known.accepted[0].is_some();
        let why = if rotates { why.waited_out() } else { why };
        known.refused(server, login, why.clone(), Instant::now());
        why
    }

    /// How long to wait before this server is dialled again, which would be after `pause`. While it
    /// refuses, that dial looks into the file, and nothing is sent before that has another one:
    /// often enough that a hold with this lease lives through it.
    pub(crate) fn pause(&self, server: &str, pause: Duration, ttl: Duration) -> Duration {
        let refuses = self.known().refuses(server, Instant::now());
        if refuses { pause.min(look_every(ttl)) } else { pause }
    }
}

fn look_every(ttl: Duration) -> Duration {
    (ttl / 6).min(LOOK_EVERY).max(LOOK_LEAST)
}

/// Whether the URL says the same; not whether the servers do.
impl PartialEq for Password {
    fn eq(&self, other: &Self) -> bool {
        match (&self.source, &other.source) {
            (Source::Given(one), Source::Given(other)) => one == other,
            (Source::File(one), Source::File(other)) => one == other,
            _ => false,
        }
    }
}

impl Eq for Password {}

#[cfg(any(feature = "redis", feature = "postgres"))]
fn wrong(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.source {
            Source::Given(secret) => write!(f, "{secret:?}"),
            Source::File(file) => write!(f, "{file:?}"),
        }
    }
}

#[cfg(test)]
mod tests;
