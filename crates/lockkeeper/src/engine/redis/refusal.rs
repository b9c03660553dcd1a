//! Servers that refuse us, where several are asked and a majority is enough: each is named once.
//!
//! A server that cannot be reached may come back by itself. One that refuses is for somebody to
//! mend: a password, a right, a certificate, another program behind the port, a replica, no room.
//! Neither counts, and how many are a majority depends on neither.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(in crate::engine) use super::errors::each_once;
use super::options::Address;
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};

/// How soon the same refusal is told again, of a server that counted in between: one that is just
/// full refuses now and then.
const TOLD_EVERY: Duration = Duration::from_secs(3600);

/// Whether it is more than that a server cannot be reached, or did not answer.
pub(in crate::engine) fn is_refusal(error: &Error) -> bool {
    let away =
        matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::TimedOut);
    // One that does not speak TLS on this port can be reached.
    !away || !error.is_temporary()
}

/// When a server refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Stage {
    /// When it was connected: nothing can be asked of it.
    Greeting,
    /// When it was asked for something; it may do the rest.
    Asked,
}

/// Why one server refuses.
#[derive(Default)]
pub(in crate::engine) struct Refusal(Mutex<State>);

#[derive(Default)]
struct State {
    why: Option<(Stage, Error)>,
    /// What was told last, and when.
    told: Option<(String, Ticks)>,
}

impl Refusal {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why it refuses, if it does.
    pub(in crate::engine) fn why(&self) -> Option<Error> {
        self.lock().why.as_ref().map(|(_, why)| why.clone())
    }

    /// The same, where nothing can be asked of it.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn at_greeting(&self) -> Option<Error> {
        let state = self.lock();
        state.why.as_ref().filter(|(at, _)| *at == Stage::Greeting).map(|(_, why)| why.clone())
    }

    /// It failed; answers whether that is a refusal that nobody was told of yet.
    pub(in crate::engine) fn failed(&self, stage: Stage, error: &Error, now: Ticks) -> bool {
        self.failed_for(stage, error, error.message(), now)
    }

    /// The same, where what it says differs from one time to the next and is told once: `reason`.
    pub(in crate::engine) fn failed_for(
        &self,
        stage: Stage,
        error: &Error,
        reason: &str,
        now: Ticks,
    ) -> bool {
        let mut state = self.lock();
        if !is_refusal(error) {
            // Who is away refuses nothing any more. Who only did not answer may refuse still.
            if stage == Stage::Greeting {
                state.why = None;
            }
            return false;
        }
        let goes_on = state.why.is_some();
        state.why = Some((stage, error.clone()));
        let known = state
            .told
            .as_ref()
            .is_some_and(|(text, at)| text == reason && (goes_on || now.since(*at) < TOLD_EVERY));
        if !known {
            state.told = Some((reason.to_owned(), now));
        }
        !known
    }

    /// It did what it refused at that stage, or at an earlier one.
    pub(in crate::engine) fn did(&self, stage: Stage) {
        let mut state = self.lock();
        let over = |at: Stage| at == Stage::Greeting || stage == Stage::Asked;
        if state.why.as_ref().is_some_and(|(at, _)| over(*at)) {
            state.why = None;
        }
    }
}

/// The error of which the whole takes its kind, where so many servers were asked and a majority is
/// needed: of those that refuse for good where they leave no majority, else of those that will do,
/// and of these one that is waited for, unless the others leave no majority without it.
pub(in crate::engine) fn decides(
    count: usize,
    majority: usize,
    said: &[(Address, Error)],
) -> Option<&Error> {
    let refusing = || said.iter().map(|(_, error)| error).filter(|error| is_refusal(error));
    let for_good = || refusing().filter(|error| !error.is_temporary());
    let lacks = |missing: usize| count.saturating_sub(missing) < majority;
    if lacks(for_good().count()) {
        return for_good().next();
    }
    if !lacks(refusing().count()) {
        return None;
    }
    let waited_for = |error: &&Error| error.is_temporary() && error.is_outage();
    let others = || refusing().filter(|error| !waited_for(error));
    match lacks(others().count()) {
        true => others().find(|error| error.is_temporary()),
        false => refusing().find(waited_for),
    }
}

/// The error of the whole. `decides`: the one of which it takes its kind, if there is one. Whoever
/// answers and is for somebody to mend can be reached.
pub(in crate::engine) fn of_whole(decides: Option<&Error>, text: String) -> Error {
    let Some(error) = decides else { return Error::new(ErrorKind::Unreachable, text) };
    let kind = match error.kind() {
        ErrorKind::Unreachable | ErrorKind::Unknown | ErrorKind::TimedOut
            if !error.is_temporary() =>
        {
            ErrorKind::Refused
        }
        kind => kind,
    };
    Error::new(kind, text).passing_as(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::redis::errors;
    use crate::engine::redis::options::RedisOptions;

    fn at(port: u16) -> Address {
        Address::Tcp("h".into(), port)
    }

    fn refused(text: &str) -> Error {
        Error::new(ErrorKind::Refused, text)
    }

    fn away() -> Error {
        Error::new(ErrorKind::Unreachable, "away")
    }

    #[test]
    fn b4_what_somebody_has_to_mend_is_a_refusal_and_what_passes_by_itself_is_none() {
        let options = RedisOptions::new(at(1));
        let says = |text: &str| errors::server(&options, "EVALSHA", text);
        for text in [
            "NOAUTH Authentication required.",
            "WRONGPASS invalid username-password pair or user is disabled.",
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR unknown command 'EVALSHA', with args beginning with:",
            "READONLY You can't write against a read only replica.",
            "OOM command not allowed when used memory > 'maxmemory'.",
            "MISCONF Redis is configured to save RDB snapshots",
            "ERR max number of clients reached",
            "DENIED Redis is running in protected mode",
            "MOVED 3999 127.0.0.1:6381",
        ] {
            assert!(is_refusal(&says(text)), "{text}");
        }
        for error in [
            errors::garbage(&options),
            errors::sentinel(&at(1)),
            errors::cluster(&at(1)),
            // TLS that is not spoken, or another program.
            errors::unreachable(&at(1), "it speaks otherwise").temporary(false),
        ] {
            assert!(is_refusal(&error), "{error}");
        }
        for text in ["LOADING Redis is loading", "BUSY Redis is busy", "MASTERDOWN Link is down"] {
            assert!(!is_refusal(&says(text)), "{text}");
        }
        assert!(!is_refusal(&errors::unreachable(&at(1), "no answer within 5s")));
    }

    #[test]
    fn b4_a_refusal_is_told_once_and_again_when_it_is_another() {
        let (refusal, now) = (Refusal::default(), Ticks(1_000_000_000));
        let wants = refused("it wants a password");
        assert!(refusal.failed(Stage::Greeting, &wants, now));
        for _ in 0..3 {
            assert!(!refusal.failed(Stage::Greeting, &wants, now.plus(TOLD_EVERY * 2)));
        }
        assert!(refusal.failed(Stage::Greeting, &refused("it is a replica"), now));
        // It counted, and refuses soon, or long after that.
        for (after, told) in [(TOLD_EVERY / 2, false), (TOLD_EVERY, true)] {
            refusal.did(Stage::Greeting);
            assert!(refusal.why().is_none());
            let again =
                refusal.failed(Stage::Greeting, &refused("it is a replica"), now.plus(after));
            assert_eq!(again, told, "{after:?}");
        }
    }

    #[test]
    fn b4_who_is_away_refuses_nothing_and_who_is_greeted_may_refuse_still_to_do_a_thing() {
        let (refusal, now) = (Refusal::default(), Ticks::default());
        assert!(!refusal.failed(Stage::Greeting, &away(), now) && refusal.why().is_none());
        assert!(refusal.failed(Stage::Asked, &refused("it is full"), now));
        refusal.did(Stage::Greeting);
        assert!(refusal.why().is_some(), "being connected says nothing of room");
        assert!(!refusal.failed(Stage::Asked, &away(), now) && refusal.why().is_some());
        refusal.did(Stage::Asked);
        assert!(refusal.why().is_none());
        refusal.failed(Stage::Asked, &refused("it is full"), now);
        refusal.failed(Stage::Greeting, &away(), now);
        assert!(refusal.why().is_none(), "it is dead");
        let no_tls = away().temporary(false);
        assert!(refusal.failed(Stage::Greeting, &no_tls, now), "it answers, and not in TLS");
    }

    #[test]
    fn one_reason_that_names_another_lock_each_time_is_told_once() {
        let (refusal, now) = (Refusal::default(), Ticks(1_000_000_000));
        for (n, name) in ["a", "b", "a", "b"].into_iter().enumerate() {
            let error = refused(name);
            assert_eq!(refusal.failed_for(Stage::Asked, &error, "its numbers", now), n == 0);
            assert_eq!(refusal.why().expect("it refuses").message(), name, "and it is shown");
            refusal.did(Stage::Asked);
        }
        assert!(refusal.failed(Stage::Asked, &refused("it is full"), now), "that is another one");
    }

    #[test]
    fn q2_what_several_say_alike_is_said_once_with_the_address_of_each() {
        let wants = |port| (at(port), refused(&format!("Redis at h:{port} wants a password")));
        let said = [wants(1), (at(2), away()), wants(3), wants(4)];
        let text = "Redis at h:1 wants a password; the same at h:3, h:4; away";
        assert_eq!(each_once(&said), text);
        assert_eq!(each_once(&said[..2]), "Redis at h:1 wants a password; away");
        let url =
            |port| (at(port), refused(&format!("h:{port} is a server: use redis://h:{port}")));
        let text = "h:1 is a server: use redis://h:1; the same at h:3";
        assert_eq!(each_once(&[url(1), url(3)]), text, "an address may stand there twice");
    }

    #[test]
    fn b4_the_whole_is_refused_where_those_that_do_not_refuse_are_no_majority_of_all() {
        let (wants, full) = (refused("wants"), refused("full").temporary(true));
        let of = |errors: &[&Error]| {
            let said: Vec<_> = errors.iter().map(|e| (at(1), (*e).clone())).collect();
            decides(5, 3, &said).map(|error| error.message().to_owned())
        };
        let away = away();
        assert_eq!(of(&[&wants, &wants, &away]), None, "the third may come back");
        assert_eq!(of(&[&away, &wants, &wants, &wants]).as_deref(), Some("wants"));
        assert_eq!(of(&[&wants, &wants, &full]).as_deref(), Some("full"), "it will do");
        assert_eq!(of(&[&full, &wants, &wants, &wants]).as_deref(), Some("wants"));
    }

    #[test]
    fn b4_of_those_that_will_do_it_is_one_that_is_waited_for_whatever_their_order() {
        let no_memory = refused("no memory").temporary(true);
        let (full, wants) = (refused("full").no_room(), refused("wants"));
        let of = |errors: &[&Error]| {
            let said: Vec<_> = errors.iter().map(|e| (at(1), (*e).clone())).collect();
            decides(3, 2, &said).map(|error| error.message().to_owned())
        };
        for other in [&no_memory, &wants] {
            for errors in [[other, &full], [&full, other]] {
                assert_eq!(of(&errors).as_deref(), Some("full"), "{errors:?}");
            }
        }
        for errors in [[&full, &no_memory, &no_memory], [&no_memory, &no_memory, &full]] {
            assert_eq!(
                of(&errors).as_deref(),
                Some("no memory"),
                "without it there is no majority"
            );
        }
    }
}
