//! What is known about an engine before it is opened: its URLs, and what keeps its holds.

use std::fmt;
use std::time::Duration;

use super::Engine;
use crate::open::url::{self, EngineUrl};
use crate::words::error::{Error, ErrorKind, Result};

/// An engine as URLs name it: schemes, options, what keeps its holds, and how it is opened.
///
/// [`Locks::register`](crate::Locks::register) makes the URLs of an engine of your own known in
/// this process; the engines of this crate are registered from the start. Unknown options and
/// their hints, canonical names and the reference of options are made from it.
///
/// ```
/// use lockkeeper::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
/// use lockkeeper::{Error, ErrorKind, Locks, Result, url::EngineUrl};
///
/// fn open(url: &mut EngineUrl, _: &Common) -> Result<Box<dyn Engine>> {
///     let table = url.take("table");
///     // Ok(Box::new(Ledger::new(url.single_host()?, table)))
/// #   Err(Error::new(ErrorKind::Unsupported, format!("{table:?}")))
/// }
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<()> {
/// let mut ledger = Registration::new("ledger", &["ledger"], Keep::Lease, open);
/// ledger.port = Some(7000);
/// let table = UrlOption::new("table", Value::Text("NAME"), "locks", "the table that keeps them");
/// ledger.options.push(table.identity());
/// Locks::register(ledger)?;
///
/// let error = Locks::open("ledger://host?tabel=mine").await.unwrap_err();
/// assert!(error.message().contains("did you mean table?"), "{error}");
/// let url = EngineUrl::parse("ledger://user:secret@host?ttl=5s&table=mine")?;
/// assert_eq!(url.canonical()?, "ledger://host:7000?table=mine");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Registration {
    /// The engine's name, as [`Description::engine`](super::Description::engine) says it.
    pub engine: &'static str,
    /// The schemes that lead to it, in lower case.
    pub schemes: &'static [&'static str],
    /// The port of a host that a URL names without one.
    pub port: Option<u16>,
    /// Those of its schemes whose path never holds an `@`, such as a number: there it is the end of
    /// a password that was not escaped, and is hidden as one.
    pub paths_without_at: &'static [&'static str],
    /// The options of its URLs, beside those that every engine has ([`UrlOption::COMMON`]).
    pub options: Vec<UrlOption>,
    /// What keeps a hold until it is released.
    pub keep: Keep,
    /// An option and its value with which something else keeps it.
    pub keep_with: Option<(&'static str, &'static str, Keep)>,
    /// Writes the place of a URL in the one way that its canonical name has: an option that means
    /// the same as the path becomes the path, and an order that means nothing is sorted away. The
    /// hosts are in lower case and have their ports by then, and nobody's name is in it. Without
    /// it, a slash at the end of the path means nothing.
    pub place: Option<fn(&mut EngineUrl) -> Result<()>>,
    /// The statements that make what a URL's engine keeps locks in, and the rights that its user
    /// needs, for whoever may do both; `None` where nothing has to be made.
    pub schema: Option<fn(&mut EngineUrl, &Common) -> Result<String>>,
    /// Makes the engine of a URL. It takes the options that it has registered; nothing is sent
    /// before [`Engine::open`].
    pub open: Open,
}

/// Makes an engine of a URL whose options were checked ([`Registration::check`]).
pub type Open = fn(&mut EngineUrl, &Common) -> Result<Box<dyn Engine>>;

/// What the common options and the builder say, as far as an engine needs it before it is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Common {
    /// How long leases last unless a claim says otherwise.
    pub ttl: Duration,
    /// How much clock rates may differ, in thousandths.
    pub drift_per_mille: u32,
}

impl Common {
    pub(crate) fn new(ttl: Duration, drift_per_mille: u32) -> Self {
        Self { ttl, drift_per_mille }
    }
}

/// What keeps a hold from its grant to its release. It decides how the command line runs a command
/// under a lock, before the engine is opened; [`Description::expiry`](crate::Description::expiry)
/// then says the same with the values that were negotiated: `WithProcess` of `Process` and
/// `Kernel`, `PerHold` of `Lease`, `Session` of `Session`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Keep {
    /// The memory of this process, which no other process sees: no command is run under it.
    Process,
    /// The kernel, through a descriptor that a command inherits: it ends with the last process
    /// that has it open.
    Kernel,
    /// A lease of its own, whose length is `ttl`; a guardian renews it beside the command.
    Lease,
    /// A session, or a connection, that carries all holds of a client; a guardian keeps it beside
    /// the command.
    Session {
        /// The option of the URL that says how long it lasts.
        option: &'static str,
        /// How long it lasts unless the URL says otherwise.
        default: Duration,
    },
}

/// The values that an option of a URL takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Value {
    /// A duration: `500ms`, `2.5`, `30s`, `1h30m`.
    Duration,
    /// A whole number, and its least and greatest value.
    Number(u64, u64),
    /// A percentage, and its least and greatest value.
    Percent(u32, u32),
    /// `true` or `false`; the option alone is `true`.
    Switch,
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// 1 to 64 letters, digits, dots, dashes and underscores, and what that is called in the
    /// reference.
    Word(&'static str),
    /// A text, and what it is called in the reference: `PATH`.
    Text(&'static str),
    /// A text that is never printed, and what it is called in the reference.
    Secret(&'static str),
}

/// What [`Value::Word`] takes.
fn is_plain_word(text: &str) -> bool {
    (1..=64).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

impl Value {
    /// A value as canonical names have it: the same for every way to write it.
    pub(crate) fn normal(self, text: &str) -> String {
        let written = match self {
            Self::Duration => url::duration("", text).ok().map(|time| format!("{time:?}")),
            Self::Number(..) => text.parse().ok().map(|number: u64| number.to_string()),
            Self::Switch => url::switch("", text).ok().map(|on| on.to_string()),
            _ => None,
        };
        written.unwrap_or_else(|| text.to_owned())
    }

    /// Refuses what an option with such values does not take.
    pub(crate) fn check(self, option: &str, text: &str) -> Result<()> {
        let wrong = |why: String| Err(Error::new(ErrorKind::InvalidArgument, why));
        match self {
            Self::Duration => url::duration(option, text).map(drop),
            Self::Number(least, most) => url::number(option, text, &(least..=most)).map(drop),
            Self::Percent(least, most) => url::percent(option, text, &(least..=most)).map(drop),
            Self::Switch => url::switch(option, text).map(drop),
            Self::OneOf(words) if !words.contains(&text) => {
                wrong(format!("{option}={text} is none of {}", words.join(", ")))
            }
            Self::Word(_) if !is_plain_word(text) => wrong(format!(
                "{option}={text}: a {option} has 1 to 64 letters, digits, dots, dashes and \
                 underscores"
            )),
            Self::OneOf(_) | Self::Word(_) | Self::Text(_) | Self::Secret(_) => Ok(()),
        }
    }

    /// Whether it may hold an `@`.
    pub(crate) fn may_hold_at(self) -> bool {
        matches!(self, Self::Text(_) | Self::Secret(_))
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Duration => f.write_str("DURATION"),
            Self::Number(least, most) if *most >= u64::from(u32::MAX) => {
                write!(f, "{least} or more")
            }
            Self::Number(least, most) => write!(f, "{least} to {most}"),
            Self::Percent(least, most) => write!(f, "{least}% to {most}%"),
            Self::Switch => f.write_str("true, false"),
            Self::OneOf(words) => f.write_str(&words.join(", ")),
            Self::Word(called) | Self::Text(called) | Self::Secret(called) => f.write_str(called),
        }
    }
}

/// An option of an engine's URLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UrlOption {
    /// Its name: letters, digits, `_`.
    pub name: &'static str,
    /// The values that it takes.
    pub value: Value,
    /// The value that means the same as leaving it out; empty where there is none.
    pub default: &'static str,
    /// What it does, in one line.
    pub about: &'static str,
    /// Whether another value makes a name another lock: such options are part of the canonical
    /// name.
    pub identity: bool,
    /// The option and its value without which it is refused: `("layout", "plain")`.
    pub needs: Option<(&'static str, &'static str)>,
}

impl UrlOption {
    /// The options that every engine has.
    pub const COMMON: [Self; 4] = [
        Self::new(
            "ttl",
            Value::Duration,
            "30s",
            "how long a lease lasts without renewal, 200ms to 24h",
        ),
        Self::new(
            "handoff",
            Value::Number(0, 64),
            "64",
            "turns of a hold inside a process before it goes back",
        ),
        Self::new(
            "handoff_time",
            Value::Duration,
            "50ms",
            "for how long after its grant a hold passes inside a process",
        ),
        Self::new(
            "drift",
            Value::Percent(1, 50),
            "10%",
            "how much the rates of two clocks may differ",
        ),
    ];

    /// Two lines of the reference: how it is written, and what it does.
    pub fn reference(&self) -> String {
        let default = (!self.default.is_empty()).then(|| format!("default: {}", self.default));
        let needs = self.needs.map(|(option, value)| format!("with {option}={value}"));
        let more: Vec<_> = default.into_iter().chain(needs).collect();
        let more = if more.is_empty() { String::new() } else { format!(" [{}]", more.join("; ")) };
        format!("  {}={}{more}\n      {}\n", self.name, self.value, self.about)
    }

    /// An option that says nothing about which lock it is.
    pub const fn new(
        name: &'static str,
        value: Value,
        default: &'static str,
        about: &'static str,
    ) -> Self {
        Self { name, value, default, about, identity: false, needs: None }
    }

    /// The same, where another value makes another lock.
    #[must_use]
    pub const fn identity(mut self) -> Self {
        self.identity = true;
        self
    }

    /// The same, where it goes with one value of another option only.
    #[must_use]
    pub const fn needs(mut self, option: &'static str, value: &'static str) -> Self {
        self.needs = Some((option, value));
        self
    }
}

impl Registration {
    /// An engine without options, without a port, whose place is its hosts and its path.
    pub fn new(
        engine: &'static str,
        schemes: &'static [&'static str],
        keep: Keep,
        open: Open,
    ) -> Self {
        Self {
            engine,
            schemes,
            port: None,
            paths_without_at: &[],
            options: Vec::new(),
            keep,
            keep_with: None,
            place: None,
            schema: None,
            open,
        }
    }

    /// The engine of a scheme.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what there is; for an engine that this build lacks, what brings
    /// it.
    ///
    /// ```
    /// use lockkeeper::engine::Registration;
    ///
    /// assert_eq!(Registration::of("memory")?.engine, "memory");
    /// assert!(Registration::of("memori").unwrap_err().message().contains("did you mean memory?"));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn of(scheme: &str) -> Result<Self> {
        crate::open::table::find(scheme)
    }

    /// The statements that make what the engine of a URL keeps locks in; nothing is asked there.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that cannot be right; `Unsupported` where nothing has to be
    /// made.
    ///
    /// ```
    /// use lockkeeper::{ErrorKind, engine::Registration};
    ///
    /// let error = Registration::schema_of("memory:").unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::Unsupported);
    /// ```
    pub fn schema_of(url: &str) -> Result<String> {
        let mut url = EngineUrl::parse(url)?;
        let registration = Self::of(&url.scheme)?;
        registration.check(&url)?;
        let Some(schema) = registration.schema else {
            let text = format!(
                "the engine {} keeps locks in no tables: nothing has to be made for it",
                registration.engine
            );
            return Err(Error::new(ErrorKind::Unsupported, text));
        };
        schema(&mut url, &Common::new(Duration::from_secs(30), 100))
    }

    /// Every engine that URLs can name in this process.
    ///
    /// ```
    /// use lockkeeper::engine::Registration;
    ///
    /// assert!(Registration::all().iter().any(|engine| engine.schemes.contains(&"memory")));
    /// ```
    pub fn all() -> Vec<Self> {
        crate::open::table::all()
    }

    /// What keeps a hold until it is released, with the options of this URL.
    ///
    /// ```
    /// use lockkeeper::{engine::{Keep, Registration}, url::EngineUrl};
    ///
    /// let url = EngineUrl::parse("memory:")?;
    /// assert_eq!(Registration::of(&url.scheme)?.keep_of(&url), Keep::Process);
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn keep_of(&self, url: &EngineUrl) -> Keep {
        match self.keep_with {
            Some((option, value, keep)) if url.option(option) == Some(value) => keep,
            _ => self.keep,
        }
    }

    /// Its own options, and those that every engine has.
    pub fn all_options(&self) -> impl Iterator<Item = &UrlOption> {
        self.options.iter().chain(&UrlOption::COMMON)
    }

    /// Its schemes and options, as `lockkeeper doctor --options` prints them and docs/urls.md has
    /// them.
    ///
    /// ```
    /// let memory = lockkeeper::engine::Registration::of("memory")?.reference();
    /// assert!(memory.starts_with("memory: memory:"));
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn reference(&self) -> String {
        let schemes: Vec<_> = self.schemes.iter().map(|scheme| format!("{scheme}:")).collect();
        let port = self.port.map(|port| format!("; port {port}")).unwrap_or_default();
        let options: String = self.options.iter().map(UrlOption::reference).collect();
        format!("{}: {}{port}\n{options}", self.engine, schemes.join(", "))
    }

    /// Refuses the first option that the URL has and the engine has not; else the first whose value
    /// it does not take, or that needs another one.
    ///
    /// # Errors
    /// `InvalidArgument`, with the options or the values that there are.
    pub fn check(&self, url: &EngineUrl) -> Result<()> {
        let unknown = |option: &&str| self.all_options().all(|known| known.name != *option);
        if let Some(option) = url.options().find(unknown) {
            return Err(self.unknown(&url.scheme, option));
        }
        let given = || self.all_options().filter_map(|o| Some((o, url.option(o.name)?)));
        for (option, text) in given() {
            option.value.check(option.name, text)?;
        }
        for (option, (needed, value)) in given().filter_map(|(o, _)| Some((o, o.needs?))) {
            let known = self.all_options().find(|known| known.name == needed);
            let is = url.option(needed).or(known.map(|known| known.default));
            if is != Some(value) {
                let text = format!("{} belongs to {needed}={value}", option.name);
                return Err(Error::new(ErrorKind::InvalidArgument, text));
            }
        }
        Ok(())
    }

    /// That there is no such option.
    fn unknown(&self, scheme: &str, option: &str) -> Error {
        let names: Vec<_> = self.all_options().map(|known| known.name).collect();
        let near = crate::words::text::near(option, names.iter().copied());
        let there =
            near.map_or_else(|| ": the".to_owned(), |near| format!(": did you mean {near}? The"));
        let text = format!(
            "{scheme}: does not know {}{there} options are {}",
            crate::open::url::named(option),
            names.join(", ")
        );
        Error::new(ErrorKind::InvalidArgument, text)
    }

    /// Refuses what cannot be registered.
    pub(crate) fn checked(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        let is_word = |word: &str, more: &[u8]| {
            let fits = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || more.contains(&b);
            word.bytes().next().is_some_and(|b| b.is_ascii_lowercase()) && word.bytes().all(fits)
        };
        if !is_word(self.engine, b"-_") {
            return wrong(format!(
                "{:?} is no engine's name: write lower-case letters, digits, - and _",
                self.engine
            ));
        }
        if self.schemes.is_empty() {
            return wrong(format!("the engine {} has no scheme", self.engine));
        }
        if let Some(scheme) = self.schemes.iter().find(|scheme| !is_word(scheme, b"+-.")) {
            return wrong(format!(
                "{scheme:?} is no scheme: write lower-case letters, digits, +, - and ."
            ));
        }
        for (at, option) in self.options.iter().enumerate() {
            if !is_word(option.name, b"_") {
                return wrong(format!(
                    "{:?} is no option's name: write lower-case letters, digits and _",
                    option.name
                ));
            }
            let before = self.options.iter().take(at).chain(&UrlOption::COMMON);
            if before.into_iter().any(|other| other.name == option.name) {
                return wrong(format!(
                    "the engine {} has the option {} twice",
                    self.engine, option.name
                ));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
