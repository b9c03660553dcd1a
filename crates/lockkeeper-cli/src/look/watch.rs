//! `watch`: a live screen on a terminal, a line for every change elsewhere.

mod screen;

use std::io::{PipeReader, Read as _, Write as _, pipe};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use lockkeeper::engine::Registration;
use lockkeeper::{Entry, Holder, Waiter};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::Signal;
use serde::Serialize;

use self::screen::Screen;
use super::{open_chosen, says, told};
use crate::args::common::Global;
use crate::args::others::Watch;
use crate::args::suggest;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::json::{HolderJson, line};
use crate::out::print;
use crate::run::words::{who, who_alone, who_had};
use crate::start::moment;
use crate::supervise::group;
use crate::supervise::job::Status;
use crate::supervise::signals::{ENDING, Signals};
use crate::supervise::timeout;
use crate::text::{rfc3339, shown};

/// How often the ages on the screen are written anew.
const TICK: Duration = Duration::from_secs(1);

/// Shows what changes until a key or a signal ends it, or the time is over.
///
/// # Errors
/// What the engine says.
pub fn watch(global: &Global, args: &Watch) -> Result<u8, Failure> {
    let failed = |e| Failure::internal(format!("signals cannot be waited for: {e}"));
    let mut signals = Signals::take().map_err(failed)?;
    let on_screen = !global.json && Screen::is_possible();
    if on_screen {
        // A stop, too, must find the terminal as it was. Before any thread starts.
        signals.take_more(true).map_err(failed)?;
    }
    let choice = Choice::make(global)?;
    let until = args.watch_for.map(|d| moment() + d);
    let mut view: Box<dyn View> = if on_screen {
        Box::new(Screen::new(&args.prefix, &says(&choice), listing(global, &args.prefix)))
    } else {
        Box::new(Lines {
            before: None,
            not_all: false,
            said: Vec::new(),
            engine: engine_of(&choice),
            json: global.json,
        })
    };
    let (latest, news) = follow(choice, args.prefix.clone())?;
    loop {
        if let Some(state) = latest.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let (state, missing) = state?;
            view.show(state, missing)?;
        }
        while let Some(came) = signals.next() {
            match came.signal {
                signal if ENDING.contains(&signal) => {
                    return Ok(Status::Killed(signal as i32).code());
                }
                // Of a container's first process everybody is a child whose parent has ended.
                Signal::SIGCHLD => group::reap_if_first(),
                signal => view.signal(signal),
            }
        }
        let left = until.map(|until| until.saturating_sub(moment()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(0);
        }
        view.tick()?;
        let keys = view.keys();
        let fds = [Some(signals.as_fd()), Some(news.as_fd()), keys];
        let mut fds: Vec<_> =
            fds.into_iter().flatten().map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        _ = poll(&mut fds, timeout([left, Some(TICK)].into_iter().flatten().min()));
        let is_ready = |at: usize| fds.get(at).and_then(PollFd::any) == Some(true);
        let (is_new, typed) = (is_ready(1), is_ready(2));
        if is_new {
            _ = (&news).read(&mut [0; 64]);
        }
        if typed && view.is_told_to_end() {
            return Ok(0);
        }
    }
}

/// The line that lists what this process watches.
fn listing(global: &Global, prefix: &str) -> String {
    let url = global.url.as_deref().map_or(String::new(), |url| format!(" --url {}", word(url)));
    let prefix = match prefix {
        "" => String::new(),
        dashed if dashed.starts_with('-') => format!(" -- {}", word(dashed)),
        prefix => format!(" {}", word(prefix)),
    };
    format!("lockkeeper ls{url}{prefix}")
}

fn word(word: &str) -> String {
    suggest::word(word.as_ref())
}

/// What there is, and why that is not all.
type State = (Vec<Entry>, Option<Failure>);

type Latest = Arc<Mutex<Option<Result<State, Failure>>>>;

/// The engine's name; a scheme without one is refused when it is opened.
fn engine_of(choice: &Choice) -> &'static str {
    Registration::of(choice.scheme()).map_or("", |registered| registered.engine)
}

/// Opens the engine and follows it, in a thread of its own: whoever watches may end that at any
/// time. The newest state is kept, and a byte says that there is one.
fn follow(choice: Choice, prefix: String) -> Result<(Latest, PipeReader), Failure> {
    let latest = Latest::default();
    let failed =
        |e: std::io::Error| Failure::internal(format!("changes cannot be waited for: {e}"));
    let (news, mut tell) = pipe().map_err(failed)?;
    let into = Arc::clone(&latest);
    let mut keep = move |state: Result<State, Failure>| {
        let over = state.is_err();
        let mut kept: MutexGuard<'_, _> = into.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = Some(state);
        drop(kept);
        tell.write_all(b".").is_ok() && !over
    };
    let work = move || {
        let opened = open_chosen(choice);
        let watch = opened.and_then(|opened| Ok((opened.locks.watch(&prefix)?, opened)));
        match watch {
            Ok((mut watch, _opened)) => while keep(told(watch.next())) {},
            Err(failure) => _ = keep(Err(failure)),
        }
    };
    std::thread::Builder::new().name("watch".to_owned()).spawn(work).map_err(failed)?;
    Ok((latest, news))
}

/// How it is shown.
trait View {
    /// What the engine knows now, and why that is not all.
    fn show(&mut self, state: Vec<Entry>, missing: Option<Failure>) -> Result<(), Failure>;

    /// Time has passed.
    fn tick(&mut self) -> Result<(), Failure> {
        Ok(())
    }

    /// A signal came that does not end us.
    fn signal(&mut self, _signal: Signal) {}

    /// Where keys come from, if anybody types.
    fn keys(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Whether the keys that came tell us to end.
    fn is_told_to_end(&mut self) -> bool {
        false
    }
}

fn write(text: &str) -> Result<(), Failure> {
    match print(text) {
        0 => Ok(()),
        _ => Err(Failure::internal("stdout cannot be written")),
    }
}

/// A line for every change.
struct Lines {
    before: Option<Vec<Entry>>,
    /// Some did not answer then.
    not_all: bool,
    /// What was said about records that cannot be read, and names that are not told.
    said: Vec<String>,
    engine: &'static str,
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    event: &'static str,
    at: String,
    name: &'a str,
    #[serde(flatten)]
    who: HolderJson,
    kind: &'static str,
    engine: &'static str,
}

/// What happened to one name.
#[derive(Clone, Debug, PartialEq)]
struct Change<'a> {
    event: &'static str,
    entry: &'a Entry,
    who: Holder,
}

impl View for Lines {
    fn show(&mut self, mut state: Vec<Entry>, missing: Option<Failure>) -> Result<(), Failure> {
        let before = self.before.as_deref().unwrap_or_default();
        keep_known(before, &mut state);
        let not_all = missing.is_some();
        if not_all {
            keep_missing(before, &mut state);
        }
        self.say(&state, missing);
        let at = rfc3339(SystemTime::now());
        let mut text = String::new();
        for change in changes(self.before.as_deref(), self.not_all, &state) {
            let (name, kind) = (change.entry.name.as_str(), change.entry.kind.as_str());
            if self.json {
                let who = HolderJson::from(&change.who);
                text += &line(&Json {
                    event: change.event,
                    at: at.clone(),
                    name,
                    who,
                    kind,
                    engine: self.engine,
                });
                text.push('\n');
            } else {
                let token = change.who.token.map(|t| format!(", token {t}")).unwrap_or_default();
                text += &format!(
                    "{at} {} {} {}{token}\n",
                    shown(name),
                    in_words(change.event),
                    with_time(change.event, &change.who)
                );
            }
        }
        (self.before, self.not_all) = (Some(state), not_all);
        if text.is_empty() { Ok(()) } else { write(&text) }
    }
}

impl Lines {
    /// Says once which records cannot be read, and what is missing: nothing is known of what
    /// happens there.
    fn say(&mut self, state: &[Entry], missing: Option<Failure>) {
        let unreadable = state.iter().filter_map(|e| e.readable().err());
        let unreadable = unreadable.map(|error| Failure::from(error.engine(self.engine)));
        let (now, mut said) = (unreadable.chain(missing), Vec::new());
        for failure in now {
            let text = failure.to_string();
            if !self.said.contains(&text) {
                failure.print(self.json);
            }
            said.push(text);
        }
        self.said = said;
    }
}

/// An event as it stands before somebody.
fn in_words(event: &str) -> &str {
    match event {
        "held" => "held by",
        "granted" => "granted to",
        "released" => "released by",
        "lost" => "lost by",
        "waiting" => "waited for by",
        "left" => "given up by",
        other => other,
    }
}

/// Whom it is about, and how long they have held or waited, or did.
fn with_time(event: &str, holder: &Holder) -> String {
    match event {
        "held" | "waiting" => who(holder),
        "granted" => who_alone(holder),
        _ => who_had(holder),
    }
}

/// Who was known to hold or wait stays known while the record cannot be read: nobody has seen them
/// go.
fn keep_known(before: &[Entry], state: &mut [Entry]) {
    for entry in state.iter_mut().filter(|e| e.unreadable.is_some()) {
        if let Some(old) =
            before.iter().find(|old| old.kind == entry.kind && old.name == entry.name)
        {
            (entry.holders, entry.waiters) = (old.holders.clone(), old.waiters.clone());
        }
    }
}

/// The same of names that are not told: they may be where nobody answers. Who let go elsewhere is
/// told of once all answer again.
fn keep_missing(before: &[Entry], state: &mut Vec<Entry>) {
    for old in before {
        if !state.iter().any(|entry| entry.kind == old.kind && entry.name == old.name) {
            state.push(old.clone());
        }
    }
}

/// What happened between two states. Who holds in the first one is held: nobody saw when it was
/// granted. The same where a record could not be read before, and of a name that was not among them
/// when they were `not_all`.
fn changes<'a>(before: Option<&'a [Entry]>, not_all: bool, now: &'a [Entry]) -> Vec<Change<'a>> {
    let (is_first, before) = (before.is_none(), before.unwrap_or_default());
    let find =
        |all: &'a [Entry], e: &Entry| all.iter().find(|o| o.kind == e.kind && o.name == e.name);
    let mut found = Vec::new();
    for old in before {
        let new = find(now, old);
        let holders = new.map_or(&[][..], |n| &n.holders);
        let waiters = new.map_or(&[][..], |n| &n.waiters);
        for holder in old.holders.iter().filter(|h| !holders.iter().any(|n| same(h, n))) {
            // A lease that had run out when we last looked was not given back.
            let event = if holder.expires_in().is_some_and(|left| left.is_zero()) {
                "lost"
            } else {
                "released"
            };
            found.push(Change { event, entry: old, who: holder.clone() });
        }
        let got_it = |w: &Waiter| holders.iter().any(|h| h.host == w.host && h.pid == w.pid);
        for waiter in old.waiters.iter().filter(|w| !waiters.iter().any(|n| is(w, n)) && !got_it(w))
        {
            found.push(Change { event: "left", entry: old, who: as_holder(waiter) });
        }
    }
    for new in now {
        let old = find(before, new);
        let holders = old.map_or(&[][..], |o| &o.holders);
        let waiters = old.map_or(&[][..], |o| &o.waiters);
        for holder in new.holders.iter().filter(|h| !holders.iter().any(|o| same(h, o))) {
            let is_seen = !is_first && old.map_or(!not_all, |o| o.unreadable.is_none());
            let event = if is_seen { "granted" } else { "held" };
            found.push(Change { event, entry: new, who: holder.clone() });
        }
        for waiter in new.waiters.iter().filter(|w| !waiters.iter().any(|o| is(w, o))) {
            found.push(Change { event: "waiting", entry: new, who: as_holder(waiter) });
        }
    }
    found
}

fn same(one: &Holder, other: &Holder) -> bool {
    match (one.claim, other.claim) {
        (Some(a), Some(b)) => a == b && one.token == other.token,
        _ => (&one.host, one.pid, one.token) == (&other.host, other.pid, other.token),
    }
}

fn is(one: &Waiter, other: &Waiter) -> bool {
    (&one.host, one.pid, one.since) == (&other.host, other.pid, other.since)
}

fn as_holder(waiter: &Waiter) -> Holder {
    let mut holder = Holder::default();
    holder.host.clone_from(&waiter.host);
    (holder.pid, holder.since, holder.mode) = (waiter.pid, waiter.since, waiter.mode);
    holder
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::{Error, ErrorKind, Kind, Name, Token};

    fn holder(pid: u32, token: u64) -> Holder {
        let mut holder = Holder::default();
        (holder.pid, holder.token) = (Some(pid), Token::of(token, 0));
        holder
    }

    fn waiter(pid: u32) -> Waiter {
        let mut waiter = Waiter::default();
        waiter.pid = Some(pid);
        waiter
    }

    fn entry(holders: Vec<Holder>, waiters: Vec<Waiter>) -> Vec<Entry> {
        let mut entry = Entry::new(Kind::Lock, Name::new("a").unwrap());
        (entry.holders, entry.waiters) = (holders, waiters);
        vec![entry]
    }

    fn between(before: &[Entry], now: &[Entry]) -> Vec<(&'static str, Option<u32>)> {
        changes(Some(before), false, now).into_iter().map(|c| (c.event, c.who.pid)).collect()
    }

    #[test]
    fn a_hand_over_is_a_release_and_a_grant_and_who_got_it_did_not_leave() {
        let (before, now) = (
            entry(vec![holder(1, 1)], vec![waiter(2), waiter(3)]),
            entry(vec![holder(2, 2)], vec![waiter(4)]),
        );
        assert_eq!(
            between(&before, &now),
            [("released", Some(1)), ("left", Some(3)), ("granted", Some(2)), ("waiting", Some(4))]
        );
        assert_eq!(between(&now, &now), []);
        assert_eq!(between(&now, &[]), [("released", Some(2)), ("left", Some(4))]);
    }

    #[test]
    fn a_lease_that_ran_out_is_lost() {
        let mut dying = holder(1, 1);
        dying.ends = Some(lockkeeper::Ends::Lease(Duration::ZERO));
        assert_eq!(between(&entry(vec![dying], vec![]), &[]), [("lost", Some(1))]);
    }

    #[test]
    fn who_held_before_we_looked_holds_and_is_not_granted_now() {
        let now = entry(vec![holder(1, 1)], vec![waiter(2)]);
        let told = |before, not_all| -> Vec<_> {
            changes(before, not_all, &now).into_iter().map(|c| (c.event, c.who.pid)).collect()
        };
        assert_eq!(told(None, false), [("held", Some(1)), ("waiting", Some(2))]);
        assert_eq!(told(Some(&[]), true), [("held", Some(1)), ("waiting", Some(2))]);
        assert_eq!(between(&[], &now), [("granted", Some(1)), ("waiting", Some(2))]);
    }

    #[test]
    fn who_holds_a_name_that_is_not_told_was_not_seen_to_let_go() {
        let mut before = entry(vec![holder(1, 1)], vec![]);
        let mut gone = Entry::new(Kind::Lock, Name::new("b").unwrap());
        gone.holders = vec![holder(2, 2)];
        before.push(gone);
        let mut now = entry(vec![holder(3, 3)], vec![]);
        keep_missing(&before, &mut now);
        assert_eq!(between(&before, &now), [("released", Some(1)), ("granted", Some(3))]);
    }

    #[test]
    fn who_holds_a_record_that_could_not_be_read_was_not_seen_to_be_granted_it() {
        let mut before = entry(vec![holder(1, 1)], vec![]);
        before[0].unreadable = Some(Error::new(ErrorKind::Corrupt, "damaged").into());
        let now = entry(vec![holder(1, 1), holder(2, 2)], vec![]);
        assert_eq!(between(&before, &now), [("held", Some(2))]);
    }
}
