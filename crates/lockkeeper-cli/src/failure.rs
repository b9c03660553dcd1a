//! What went wrong, as the one line that a person reads or the object that a program reads.

use std::fmt;
use std::io::Write as _;

use lockkeeper::{Error, ErrorKind};
use lockkeeper_lab::trouble::Trouble;
use nix::errno::Errno;

/// Exit codes of the contract that no [`ErrorKind`] stands for.
pub mod exit {
    /// The command line cannot be right.
    pub const USAGE: u8 = 64;
    /// `--hold-at-most` was over.
    pub const HELD_TOO_LONG: u8 = 124;
    /// Our own failure.
    pub const INTERNAL: u8 = 125;
    /// The command is not executable.
    pub const NOT_EXECUTABLE: u8 = 126;
    /// The command was not found.
    pub const NOT_FOUND: u8 = 127;
}

/// A failure that ends the program.
#[derive(Clone, Debug)]
pub struct Failure {
    /// A stable word: one of [`ErrorKind::as_str`], or `usage`, `not-found`, `not-executable`,
    /// `internal`.
    pub kind: &'static str,
    /// What happened, to what, and what to do.
    pub message: String,
    /// The exit code.
    pub exit: u8,
    /// The lock that it was about.
    pub name: Option<String>,
    /// The engine that it was about.
    pub engine: Option<String>,
}

impl Failure {
    fn of(kind: &'static str, exit: u8, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), exit, name: None, engine: None }
    }

    /// The command line cannot be right.
    pub fn usage(message: impl Into<String>) -> Self {
        Self::of("usage", exit::USAGE, message)
    }

    /// The answer is no.
    pub fn no(message: impl Into<String>) -> Self {
        Self::of("no", 1, message)
    }

    /// Our own failure.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::of("internal", exit::INTERNAL, message)
    }

    /// The command could not be started.
    pub fn not_started(program: &str, why: &std::io::Error) -> Self {
        let raw = why.raw_os_error().map(Errno::from_raw);
        if matches!(raw, Some(Errno::EMFILE | Errno::ENFILE | Errno::EAGAIN | Errno::ENOMEM)) {
            Self::internal(format!("{program} cannot be started: {}", os_words(why)))
        } else if why.kind() == std::io::ErrorKind::NotFound {
            Self::of(
                "not-found",
                exit::NOT_FOUND,
                format!("{program} was not found: check its spelling and PATH"),
            )
        } else if why.kind() == std::io::ErrorKind::InvalidInput {
            Self::of(
                "usage",
                exit::USAGE,
                format!("{program} or one of its arguments holds a NUL byte: take it out"),
            )
        } else {
            Self::of(
                "not-executable",
                exit::NOT_EXECUTABLE,
                format!("{program} cannot be executed: {}", os_words(why)),
            )
        }
    }

    /// The same failure, about this lock. What stands where the name should may be the engine's
    /// URL.
    #[must_use]
    pub fn name(mut self, name: impl AsRef<str>) -> Self {
        self.name.get_or_insert_with(|| crate::secrets::redacted(name.as_ref()));
        self
    }

    /// The same failure, on this engine.
    #[must_use]
    pub fn engine(mut self, engine: Option<String>) -> Self {
        self.engine = self.engine.or(engine);
        self
    }

    /// The same failure, in other words.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// The same failure, with another exit code.
    #[must_use]
    pub fn exit(mut self, exit: u8) -> Self {
        self.exit = exit;
        self
    }

    /// Prints it to stderr, as words or as JSON. A stderr that is gone is no reason to fail
    /// differently.
    pub fn print(&self, json: bool) {
        let line = if json {
            let (name, engine) = (self.name.as_deref(), self.engine.as_deref());
            let (error, exit, message) = (self.kind, self.exit, self.message.as_str());
            Trouble { error, name, engine, exit, message }.json()
        } else {
            format!("lockkeeper: {self}")
        };
        _ = writeln!(std::io::stderr(), "{line}");
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name.as_ref().filter(|n| !n.is_empty()) {
            write!(f, "{}: ", crate::text::shown(name))?;
        }
        f.write_str(&self.message)
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self {
            kind: error.kind().as_str(),
            message: error.message().to_owned(),
            exit: error.kind().exit_code(),
            name: error.lock_name().map(|n| n.as_str().to_owned()),
            engine: error.engine_name().map(str::to_owned),
        }
    }
}

impl From<ErrorKind> for Failure {
    fn from(kind: ErrorKind) -> Self {
        Self::of(kind.as_str(), kind.exit_code(), kind.as_str())
    }
}

/// What the system says, without the number that Rust puts behind it.
pub fn os_words(error: &std::io::Error) -> String {
    let words = error.to_string();
    words.split(" (os error ").next().unwrap_or(&words).to_lowercase()
}
