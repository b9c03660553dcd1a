//! What is said while a lock is asked for and held: words for people, or JSON for programs.

use std::io::Write as _;
use std::time::{Duration, SystemTime};

use lockkeeper::engine::Place;
use lockkeeper::{Error, ErrorKind, Holder, Lost, Mode, Token};

use crate::choice::{Choice, Source};
use crate::engine::{self, Outage};
use crate::json::{self, Event, Report};
use crate::out;
use crate::start::{Moment, moment};
use crate::supervise::terminal::{Terminal, width};
use crate::text::{millis, shown, spoken};
use crate::under::{Caution, Why};

/// So much is remembered of what was said, so that it is not said again.
const CAUTIONS_MAX: usize = 16;
/// A terminal's line appears after so long, so that a short wait does not flicker.
const LIVE_AFTER: Duration = Duration::from_millis(200);
/// Without a terminal nothing is said about a shorter wait: cron mails every line.
const PLAIN_AFTER: Duration = Duration::from_secs(1);
/// How often the terminal's line is written anew.
const LIVE_EVERY: Duration = Duration::from_secs(1);

/// Where JSON goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Out {
    /// stdout is the command's.
    Stderr,
    /// There is no command; without `all` only the lines that say that it was granted and how it
    /// ended.
    Stdout {
        /// Everything that happens.
        all: bool,
    },
}

/// The voice of one lock.
pub struct Words {
    name: String,
    engine: String,
    /// Where the engine is, without secrets.
    server: String,
    quiet: bool,
    verbose: bool,
    json: Option<Out>,
    /// Whether a line stands on the terminal that is to be overwritten.
    live: bool,
    told: bool,
    /// Whether it was said that the turn went to the next.
    missed: bool,
    not_yet: bool,
    /// Whether a program was told that the engine cannot be used yet, and not that it can.
    owes_reachable: bool,
    next: Option<Moment>,
    on_terminal: bool,
    /// Whether the lease is to be renewed.
    renew: bool,
    /// What was said last of what everybody should know.
    cautions: Vec<Caution>,
}

impl Words {
    /// A voice about this name.
    pub fn new(name: &str, quiet: bool, verbose: bool, json: Option<Out>) -> Self {
        let (name, engine, server) = (name.to_owned(), String::new(), String::new());
        Self {
            name,
            engine,
            server,
            quiet,
            verbose,
            json,
            live: false,
            told: false,
            missed: false,
            not_yet: false,
            owes_reachable: false,
            next: None,
            on_terminal: false,
            renew: true,
            cautions: Vec::new(),
        }
    }

    /// From now on known. A person who chose no engine is told what that means.
    pub fn engine(&mut self, choice: &Choice) {
        choice.engine().clone_into(&mut self.engine);
        self.server = engine::canonical(choice);
        if matches!(choice.source, Source::Default(_)) && width(std::io::stderr()).is_some() {
            self.note(
                "the lock is a file here, and other hosts do not see it: for them give --url",
            );
        }
    }

    /// Whether the lease is to be renewed: else its end is what was asked for.
    pub fn renews(&mut self, renew: bool) {
        self.renew = renew;
    }

    /// An engine whose silence has no reason that is known.
    pub fn no_answer(&self) -> Error {
        let text =
            format!("{} does not answer: check that it runs and can be reached", self.server);
        Error::new(ErrorKind::Unreachable, text)
    }

    /// Says something that only -v wants to hear.
    pub fn detail(&mut self, text: impl FnOnce() -> String) {
        if self.verbose && !self.tells_all() {
            self.say(&text());
        }
    }

    /// Says something that everybody wants to hear.
    pub fn note(&mut self, text: &str) {
        if !self.tells_all() && !self.quiet {
            self.say(text);
        }
    }

    /// Says which options do not do what somebody may expect of them. Not without a terminal, where
    /// cron would mail it every time.
    pub fn remark(&mut self, texts: impl FnOnce() -> Vec<String>) {
        let is_read = self.verbose || width(std::io::stderr()).is_some();
        if self.quiet || self.tells_all() || !is_read {
            return;
        }
        for text in texts() {
            self.note(&format!("warning: {text}"));
        }
    }

    /// A wait begins.
    pub fn wait_begins(&mut self, place: impl FnOnce() -> Place) {
        self.told = false;
        if self.tells_all() {
            self.told = true;
            self.is_reached();
            let place = place();
            let holder = place.holder.as_deref().map(Into::into);
            self.event(&Event::Waiting {
                name: &self.name,
                engine: &self.engine,
                ahead: place.ahead,
                holder,
            });
            return;
        }
        if self.quiet {
            return;
        }
        // In the background the line would be written into what the user is typing.
        self.on_terminal =
            width(std::io::stderr()).is_some() && Terminal::find().is_some_and(|t| t.is_ours());
        let after = if self.verbose && !self.on_terminal {
            Duration::ZERO
        } else if self.on_terminal {
            LIVE_AFTER
        } else {
            PLAIN_AFTER
        };
        self.next = Some(moment() + after);
    }

    /// When [`Words::still_waiting`] is to be called next.
    pub fn next(&self) -> Option<Moment> {
        self.next
    }

    /// The wait goes on.
    pub fn still_waiting(&mut self, place: impl FnOnce() -> Place) {
        let now = moment();
        if self.next.is_none_or(|next| now < next) {
            return;
        }
        let place = place();
        let mut text = format!("waiting for {}", shown(&self.name));
        match place.holder.as_deref() {
            Some(holder) => text = text + ": held by " + &who(holder),
            None => text += ": held by somebody",
        }
        match place.ahead {
            Some(ahead) if ahead > 0 => text = format!("{text}, {ahead} ahead of you"),
            _ => {}
        }
        self.told = true;
        if self.on_terminal {
            self.next = Some(now + LIVE_EVERY);
            self.rewrite(&text);
        } else {
            self.next = None;
            self.say(&text);
        }
    }

    /// Asking cannot succeed yet, and when it can is known: said once, as each try hears of it.
    pub fn not_yet(&mut self, why: &Error) {
        if std::mem::replace(&mut self.not_yet, true) {
            return;
        }
        self.told = true;
        if self.tells_all() {
            let (name, server) = (&self.name, &self.server);
            let (refused, why) = (why.kind() == ErrorKind::Refused, why.message());
            self.owes_reachable = true;
            return self.event(&Event::Unreachable { name, server, refused, why });
        }
        let text = format!("{}: waiting: {}", shown(&self.name), shown(why.message()));
        self.note(&text);
    }

    /// The engine can be used, after [`Words::not_yet`].
    fn is_reached(&mut self) {
        if std::mem::take(&mut self.owes_reachable) {
            self.event(&Event::Reachable { name: &self.name, server: &self.server });
        }
    }

    /// The server is silent or refuses us while we wait, or answers again.
    pub fn outage(&mut self, outage: &Outage) {
        let server = &self.server;
        if self.tells_all() {
            let name = &self.name;
            return self.event(&match outage {
                Outage::Unreachable { refused, why, .. } => {
                    Event::Unreachable { name, server, refused: *refused, why }
                }
                Outage::Over => Event::Reachable { name, server },
            });
        }
        let text = outage_text(&self.name, server, outage);
        self.note(&text);
    }

    /// Something about the lock that everybody should know, once: each try hears of it.
    pub fn caution(&mut self, caution: &Caution) {
        if !self.is_new(caution) {
            return;
        }
        let Caution { id, text } = caution;
        if self.tells_all() {
            return self.event(&Event::Warning { name: &self.name, id, text });
        }
        let name = shown(&self.name);
        self.note(&format!("{name}: warning: {}", shown(text)));
    }

    fn is_new(&mut self, caution: &Caution) -> bool {
        let is_new = !self.cautions.contains(caution);
        if is_new {
            self.cautions.truncate(CAUTIONS_MAX - 1);
            self.cautions.insert(0, caution.clone());
        }
        is_new
    }

    /// The lock is being given back, and the server lets us wait for its answer.
    pub fn release_waits(&mut self) {
        let (name, server) = (shown(&self.name), shown(&self.server));
        self.note(&format!("{name}: giving the lock back; waiting for an answer of {server}"));
    }

    /// The wait is over, with the lock or without.
    pub fn granted(&mut self, mode: Mode, token: Option<Token>, waited: Duration) {
        self.next = None;
        self.wipe();
        self.is_reached();
        if self.json.is_some() {
            let (token, waited_ms) = (token.map(|t| t.to_string()), millis(waited));
            self.event(&Event::Granted {
                name: &self.name,
                engine: &self.engine,
                mode: mode.as_str(),
                token,
                waited_ms,
            });
        }
        if !self.tells_all() && !self.quiet && self.says_granted() {
            let token =
                token.filter(|_| self.verbose).map(|t| format!(", token {t}")).unwrap_or_default();
            self.say(&format!("{}: granted after {}{token}", shown(&self.name), spoken(waited)));
        }
        self.missed = false;
    }

    /// Whether a person wants to hear that it was granted.
    fn says_granted(&self) -> bool {
        self.told && !self.on_terminal || self.missed || self.verbose
    }

    /// The wait ended without the lock; the terminal's line goes.
    pub fn wait_ends(&mut self) {
        self.next = None;
        self.wipe();
    }

    /// It was granted while we stood still, and is asked for again.
    pub fn missed(&mut self) {
        self.missed = true;
        let name = shown(&self.name);
        self.note(&format!(
            "{name}: its turn came while lockkeeper stood still, and went to the next; asking again"
        ));
    }

    /// It is lost; `then` says what happens now.
    pub fn lost(&mut self, why: Why, then: &str) {
        if self.tells_all() {
            return self.event(&Event::Lost { name: &self.name, why: why.as_str() });
        }
        let is_over = matches!(why, Why::RunningOut | Why::Lost(Lost::Expired));
        let why = if is_over && !self.renew {
            "its lease ends, and --no-renew keeps it from being renewed".to_owned()
        } else {
            why.to_string()
        };
        self.say(&format!("{}: lost: {why}; {then}", shown(&self.name)));
    }

    /// It is over.
    pub fn done(&mut self, report: &Report) {
        if self.json.is_some() {
            self.event(&Event::Done(report));
        }
    }

    /// Whether JSON takes the place of words.
    fn tells_all(&self) -> bool {
        matches!(self.json, Some(Out::Stderr | Out::Stdout { all: true }))
    }

    fn event(&self, event: &Event<'_>) {
        // --json -q is for those who want the errors only; the lines on stdout are what `acquire`
        // is for.
        let line = json::line(event);
        match self.json {
            // What could not be written ends `acquire`, which looks for it.
            Some(Out::Stdout { .. }) => _ = out::print(&(line + "\n")),
            Some(Out::Stderr) if !self.quiet => _ = writeln!(std::io::stderr(), "{line}"),
            _ => {}
        }
    }

    fn say(&mut self, text: &str) {
        self.wipe();
        _ = writeln!(std::io::stderr(), "lockkeeper: {text}");
    }

    fn rewrite(&mut self, text: &str) {
        let columns = width(std::io::stderr()).unwrap_or(80);
        // What is not ASCII may be two columns wide; a line that wraps could not be rewritten.
        let mut left = columns.saturating_sub(1);
        let fits = |c: &char| {
            let wide = if c.is_ascii() { 1 } else { 2 };
            left.checked_sub(wide).inspect(|rest| left = *rest).is_some()
        };
        let cut: String = text.chars().take_while(fits).collect();
        self.live = true;
        _ = write!(std::io::stderr(), "\r{cut}\x1b[K");
    }

    fn wipe(&mut self) {
        if std::mem::take(&mut self.live) {
            _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        self.wipe();
    }
}

/// An outage in words. What a server says must not act on a terminal.
fn outage_text(name: &str, server: &str, outage: &Outage) -> String {
    let (name, server) = (shown(name), shown(server));
    match outage {
        Outage::Unreachable { refused, silent_for, why } => {
            let does = if *refused { "has refused it" } else { "has not answered" };
            let (time, why) = (spoken(*silent_for), shown(why));
            format!("{name}: {server} {does} for {time}; still waiting: {why}")
        }
        Outage::Over => format!("{name}: {server} answers again; still waiting"),
    }
}

/// A holder in words: `ci-7 (pid 4121) for 3m12s`.
pub fn who(holder: &Holder) -> String {
    with_time(holder, "for")
}

/// One that holds it no more: `ci-7 (pid 4121) after 3m12s`.
pub fn who_had(holder: &Holder) -> String {
    with_time(holder, "after")
}

fn with_time(holder: &Holder, word: &str) -> String {
    let since = holder.since.and_then(|since| SystemTime::now().duration_since(since).ok());
    let time = since.map(|time| format!(" {word} {}", spoken(time))).unwrap_or_default();
    who_alone(holder) + &time
}

/// A holder without its time: `ci-7 (pid 4121)`.
pub fn who_alone(holder: &Holder) -> String {
    let mut text = holder.host.as_deref().map_or_else(|| "somebody".to_owned(), shown);
    let mut known = Vec::new();
    known.extend(holder.pid.map(|pid| format!("pid {pid}")));
    known.extend(holder.label.as_deref().map(shown));
    if !known.is_empty() {
        text = format!("{text} ({})", known.join(", "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_that_each_try_hears_is_said_once() {
        let mut words = Words::new("job", false, false, None);
        let caution = |n: usize| Caution { id: "member-refuses".into(), text: n.to_string() };
        assert!(words.is_new(&caution(0)) && words.is_new(&caution(1)));
        assert!(!words.is_new(&caution(0)) && !words.is_new(&caution(1)));
        assert!((2..100).all(|n| words.is_new(&caution(n))));
        assert_eq!(words.cautions.len(), CAUTIONS_MAX);
    }

    #[test]
    fn who_was_told_that_it_missed_its_turn_is_told_that_it_has_the_lock() {
        let mut words = Words::new("job", false, false, None);
        words.wait_begins(Place::default);
        assert!(!words.says_granted());
        words.missed();
        words.wait_begins(Place::default);
        assert!(words.says_granted(), "however short the second wait is");
    }

    #[test]
    fn what_a_server_says_during_an_outage_cannot_act_on_a_terminal() {
        let why = "ERR \x1b]0;pwned\x07\r\n".to_owned();
        let silent_for = Duration::from_secs(10);
        let outage = Outage::Unreachable { refused: false, silent_for, why };
        let text = outage_text("job", "redis://h:6379", &outage);
        assert_eq!(
            text,
            "job: redis://h:6379 has not answered for 10s; \
             still waiting: ERR \\u{1b}]0;pwned\\u{7}\\u{d}\\u{a}"
        );
    }

    #[test]
    fn a_server_that_refuses_is_not_called_silent() {
        let (silent_for, why) = (Duration::from_secs(10), "somebody stands on it".to_owned());
        let outage = Outage::Unreachable { refused: true, silent_for, why };
        assert_eq!(
            outage_text("job", "postgres://h", &outage),
            "job: postgres://h has refused it for 10s; still waiting: somebody stands on it"
        );
    }
}
