//! Getting the lock: connect, ask, wait; until it is there, the time is over, or a signal comes.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use lockkeeper::engine::Line;
use lockkeeper::{Claim, Error, ErrorKind, Holder, Require};
use nix::poll::{PollFd, PollFlags, poll};

use super::stay;
use super::words::Words;
use crate::engine::{ANSWERS_WITHIN, Asking, Begun, Got, Holding, Stage, Taker, Waiting};
use crate::start::{Moment, moment};
use crate::supervise::signals::{Came, Signals};
use crate::supervise::timeout;

/// How long `run` tries again to reach an engine when no `-w` says it.
pub const REACH: Duration = Duration::from_secs(10);
/// How long an engine has at least for its first answer, so that a short `-w` on a busy machine
/// says who holds the lock, and not that nobody answers.
const ONCE: Duration = Duration::from_secs(1);
/// How long before the end of its time the last try is made.
const LAST: Duration = Duration::from_millis(100);
/// The pause between two tries, growing to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How asking went.
pub enum Obtained {
    /// We have it.
    Held(Box<dyn Holding>),
    /// We do not, and who does.
    Busy(Option<Box<Holder>>),
    /// A signal ended the wait.
    Interrupted(Came),
    /// The engine failed, or never came.
    Failed(Error),
}

/// What asking needs.
#[derive(Clone, Copy)]
pub struct Ask<'a> {
    /// Connects.
    pub open: &'a dyn Fn() -> Result<Box<dyn Taker>, Error>,
    /// What the engine must promise.
    pub require: &'a [Require],
    /// What is asked for.
    pub claim: &'a Claim,
    /// How long to wait.
    pub patience: Option<Duration>,
    /// From when on the wait counts.
    pub since: Moment,
    /// How long the engine may be silent: at the start, where that is not for ever, and while we
    /// stand in line; `None` for ever.
    pub unreachable_after: Option<Duration>,
    /// How long an engine that cannot be reached is tried again when `patience` does not say it;
    /// `None` for ever, whatever `unreachable_after` says.
    pub reach: Option<Duration>,
    /// Whether that is kept also where it is known that more would help: the command starts then,
    /// without the lock.
    pub is_firm: bool,
    /// Whether an ancestor has a share: then a share of ours may pass those who wait.
    pub beside: bool,
}

impl Ask<'_> {
    /// Asks. Connecting counts as waiting.
    pub fn obtain(&self, signals: &Signals, words: &mut Words) -> Obtained {
        let mut ask = *self;
        loop {
            match ask.in_time(signals, words) {
                Some(obtained) => return obtained,
                None => words.wait_ends(),
            }
            // Whoever lets us go on may have ended us first.
            if let Some(came) = signals.ending() {
                return Obtained::Interrupted(came);
            }
            words.missed();
            // What is left of the patience; without any, once more, for it was granted in time.
            let now = moment();
            let left = |patience| (ask.since + patience).saturating_sub(now);
            ask = Self { patience: ask.patience.map(left), since: now, ..ask };
        }
    }

    /// The same; nothing when it was granted and we stood still.
    fn in_time(&self, signals: &Signals, words: &mut Words) -> Option<Obtained> {
        let until = self.patience.map(|p| self.since + p);
        let mut pause = Duration::from_millis(50);
        let mut before = None;
        let mut give_up = self.gives_up();
        loop {
            let error = match self.once([until, give_up], before.as_ref(), signals, words) {
                Ok(got) => return got,
                Err(error) => error,
            };
            if !self.is_at_once() && waits_out(self.put_off(), &error, &mut give_up) {
                words.not_yet(&error);
            }
            // Only what may come by itself is waited for; with -n it is tried once.
            let end = until.into_iter().chain(give_up).min();
            let left = end.map(|end| end.saturating_sub(moment()));
            let too_late = left.is_some_and(|left| left <= LAST);
            let passes = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Refused);
            if !passes || !error.is_temporary() || too_late {
                return Some(Obtained::Failed(error));
            }
            words.detail(|| format!("{error}; trying again"));
            before = Some(error);
            // The last try still has time for an answer.
            let until = moment() + left.map_or(pause, |left| pause.min(left - LAST));
            if let Some(came) = stay(signals, until) {
                return Some(Obtained::Interrupted(came));
            }
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    /// Until when an engine is waited for that has not answered yet; `None` for ever.
    fn gives_up(&self) -> Option<Moment> {
        let longest = self.patience.or(self.reach)?;
        let longest = self.unreachable_after.map_or(longest, |after| after.min(longest));
        Some(self.since + longest.max(ONCE))
    }

    /// Until when the end of the time may be put off; `None` for as long as it takes.
    fn put_off(&self) -> Option<Moment> {
        if self.patience.is_some() || self.is_firm {
            return Some(self.since);
        }
        self.unreachable_after.map(|after| self.since + after)
    }

    fn is_at_once(&self) -> bool {
        self.patience.is_some_and(|patience| patience.is_zero())
    }

    fn once(
        &self,
        [until, give_up]: [Option<Moment>; 2],
        before: Option<&Error>,
        signals: &Signals,
        words: &mut Words,
    ) -> Result<Option<Obtained>, Error> {
        let taker = (self.open)()?;
        let at_once = self.is_at_once();
        let line = if at_once { Line::Try } else { Line::Join };
        let asking = Asking {
            claim: self.claim,
            line,
            unreachable_after: self.unreachable_after,
            require: self.require,
        };
        if self.beside
            && let Some(holding) = taker.begin_beside(&asking)?
        {
            return Ok(Some(Obtained::Held(holding)));
        }
        match taker.begin(&asking)? {
            Begun::Now(got) => Ok(obtained(got)),
            // Who does not wait for the lock still waits for the engine's one answer.
            Begun::Waiting(waiting) if at_once => {
                let silent = self.unreachable_after.map(|after| self.since + after.max(ONCE));
                self.wait(waiting, [None, silent], before, false, signals, words)
            }
            Begun::Waiting(waiting) => {
                let in_vain = self.beside && until.is_none();
                self.wait(waiting, [until, give_up], before, in_vain, signals, words)
            }
        }
    }

    /// Waits for an answer: in line until the first instant, for an engine that says nothing until
    /// the second. `before` is what the try before this one came to. `in_vain`: whoever is before
    /// us in line waits for an ancestor of ours, and that one waits for us.
    fn wait(
        &self,
        mut waiting: Box<dyn Waiting>,
        [until, mut give_up]: [Option<Moment>; 2],
        before: Option<&Error>,
        in_vain: bool,
        signals: &Signals,
        words: &mut Words,
    ) -> Result<Option<Obtained>, Error> {
        let mut in_line = false;
        // Whether the engine still answers is known at the end, and not only after it.
        let mut asks_at = until.map(|until| until.saturating_sub(ANSWERS_WITHIN));
        // Whoever does not wait is not told for what.
        let mut ask_why = (!self.is_at_once()).then(|| moment() + ONCE);
        loop {
            let stage = waiting.stage();
            if stage == Stage::Over {
                tell_news(&mut *waiting, words);
                let got = waiting.finish().map(obtained).inspect_err(|_| words.wait_ends());
                // Whoever stood in line has waited for a server that is away; asking anew would
                // wait twice.
                return match got {
                    Err(error) if in_line => Ok(Some(Obtained::Failed(error))),
                    got => got,
                };
            }
            if stage == Stage::InLine && in_vain {
                let message = "would deadlock: somebody who waits for it is before us, waits for a \
                               process above us, and that one for us; \
                               leave one of the two lockkeeper calls out";
                return Err(Error::new(ErrorKind::WouldDeadlock, message));
            }
            if stage == Stage::InLine && !std::mem::replace(&mut in_line, true) {
                words.wait_begins(|| waiting.place());
            }
            tell_news(&mut *waiting, words);
            if let Some(came) = signals.ending() {
                words.wait_ends();
                return Ok(Some(Obtained::Interrupted(came)));
            }
            let (now, end) = (moment(), if in_line { until } else { give_up });
            if end.is_some_and(|end| now >= end) {
                if !in_line || !waiting.is_reached() {
                    let why = waiting.why();
                    // The answer may have come in the meantime.
                    if waiting.stage() == Stage::Over {
                        continue;
                    }
                    let passes = |why: &Error| waits_out(self.put_off(), why, &mut give_up);
                    if !in_line && until.is_none() && why.as_ref().is_some_and(passes) {
                        continue;
                    }
                    words.wait_ends();
                    // A try that the end of the time cut off may not know why; the one before it
                    // did.
                    return Err(why.or(before.cloned()).unwrap_or_else(|| words.no_answer()));
                }
                let holder = waiting.place().holder;
                words.wait_ends();
                return Ok(Some(Obtained::Busy(holder)));
            }
            if in_line {
                if asks_at.take_if(|at| now >= *at).is_some() {
                    waiting.asks();
                }
                words.still_waiting(|| waiting.place());
            } else if ask_why.take_if(|at| now >= *at).is_some() {
                match waiting.why() {
                    Some(why) if waits_out(self.put_off(), &why, &mut give_up) => {
                        words.not_yet(&why);
                    }
                    // It may be known later.
                    _ => ask_why = Some(moment() + ONCE),
                }
            }
            // Asking who holds it may have brought the answer.
            if waiting.stage() == Stage::Over {
                continue;
            }
            let said = if in_line { words.next() } else { ask_why };
            let next = [end, said, asks_at.filter(|_| in_line)].into_iter().flatten().min();
            rest(signals, Some(waiting.news()), next);
        }
    }
}

/// Whether it is known when asking can succeed, and that is waited for: the end is put off to then
/// where it may be.
fn waits_out(put_off: Option<Moment>, why: &Error, give_up: &mut Option<Moment>) -> bool {
    let Some(after) = why.retry_after() else { return false };
    let can = moment() + after;
    if put_off.is_none_or(|until| can + ONCE <= until) {
        *give_up = give_up.map(|at| at.max(can + ONCE));
    }
    give_up.is_none_or(|at| can <= at)
}

fn obtained(got: Got) -> Option<Obtained> {
    match got {
        Got::Held(holding) => Some(Obtained::Held(holding)),
        Got::Busy(holder) => Some(Obtained::Busy(holder)),
        Got::Missed => None,
    }
}

fn tell_news(waiting: &mut dyn Waiting, words: &mut Words) {
    while let Some(caution) = waiting.caution() {
        words.caution(&caution);
    }
    while let Some(outage) = waiting.outage() {
        words.outage(&outage);
    }
}

/// Sleeps until a signal comes, the descriptor is readable, or the time is over.
fn rest(signals: &Signals, news: Option<BorrowedFd<'_>>, until: Option<Moment>) {
    let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
    fds.extend(news.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
    _ = poll(&mut fds, timeout(until.map(|at| at.saturating_sub(moment()))));
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::io::PipeReader;
    use std::rc::Rc;

    use lockkeeper::engine::Place;
    use lockkeeper::{Kind, Mode, Name};
    use nix::sys::signal::{Signal, raise};

    use super::*;
    use crate::run::options::Wanted;

    /// One who asks for a lock without any option, at this moment.
    fn with_ask(check: impl FnOnce(Ask<'_>)) {
        let wanted = Wanted {
            name: Name::new("a").unwrap(),
            mode: Mode::Exclusive,
            patience: None,
            unreachable_after: None,
            ttl: Duration::from_secs(30),
            renew: true,
            label: None,
            conflict_exit_code: 75,
        };
        let claim = crate::run::claim(&wanted, Kind::Lock, None, None);
        let open = || Err(Error::new(ErrorKind::Unreachable, "nobody is asked"));
        check(Ask {
            open: &open,
            require: &[],
            claim: &claim,
            patience: None,
            since: moment(),
            unreachable_after: None,
            reach: Some(REACH),
            is_firm: false,
            beside: false,
        });
    }

    fn seconds(seconds: u64) -> Option<Duration> {
        Some(Duration::from_secs(seconds))
    }

    #[test]
    fn w1_what_passes_at_a_known_time_is_waited_for_unless_the_user_says_how_long() {
        let unknown = Error::new(ErrorKind::Unreachable, "nobody answers");
        let known = unknown.clone().with_retry_after(Duration::from_secs(48));
        with_ask(|ask| {
            let gives_up = |ask: &Ask<'_>, error: &Error| {
                let mut give_up = ask.gives_up();
                (waits_out(ask.put_off(), error, &mut give_up), give_up.unwrap() - ask.since)
            };
            assert_eq!(gives_up(&ask, &unknown), (false, REACH));
            let (waits, until) = gives_up(&ask, &known);
            assert!(waits && until > Duration::from_secs(48), "{until:?}");
            for (own, waits) in [(5, false), (60, true)] {
                let ask = Ask { patience: seconds(own), ..ask };
                let end = Duration::from_secs(own);
                assert_eq!(gives_up(&ask, &known), (waits, end), "no more than -w says");
            }
            let silent = |time| Ask { unreachable_after: seconds(time), ..ask };
            assert!(!gives_up(&silent(5), &known).0);
            assert!(gives_up(&silent(60), &known).0);
            let firm = Ask { is_firm: true, ..ask };
            assert_eq!(gives_up(&firm, &known), (false, REACH), "the command starts without it");
            let mut for_ever = None;
            assert!(waits_out(None, &known, &mut for_ever) && for_ever.is_none());
        });
    }

    #[test]
    fn a_silence_at_the_start_lasts_no_longer_than_unreachable_after_says() {
        with_ask(|ask| {
            let longest = |patience, unreachable_after, reach| {
                let ask = Ask { patience, unreachable_after, reach, ..ask };
                ask.gives_up().map(|until| until - ask.since)
            };
            let reach = ask.reach;
            assert_eq!(longest(None, seconds(2), reach), seconds(2));
            assert_eq!(longest(None, seconds(60), reach), Some(REACH));
            assert_eq!(longest(seconds(60), seconds(2), reach), seconds(2));
            assert_eq!(longest(seconds(5), seconds(60), reach), seconds(5));
            assert_eq!(longest(seconds(60), seconds(0), reach), Some(ONCE), "one answer is due");
            // A leader that stands again.
            assert_eq!(longest(None, None, None), None);
            assert_eq!(longest(None, seconds(2), None), None);
        });
    }

    /// An engine that says nothing for long.
    struct Silent;

    impl Taker for Silent {
        fn begin(&self, _asking: &Asking<'_>) -> Result<Begun, Error> {
            // What nobody writes to is at its end, and that is news.
            Ok(Begun::Waiting(Box::new(Silence { looks: 0, news: std::io::pipe().unwrap().0 })))
        }
    }

    struct Silence {
        looks: u32,
        news: PipeReader,
    }

    impl Waiting for Silence {
        fn news(&self) -> BorrowedFd<'_> {
            self.news.as_fd()
        }

        fn stage(&mut self) -> Stage {
            self.looks += 1;
            if self.looks < 10 { Stage::Reaching } else { Stage::Over }
        }

        fn place(&mut self) -> Place {
            Place::default()
        }

        fn finish(self: Box<Self>) -> Result<Got, Error> {
            Ok(Got::Busy(None))
        }
    }

    #[test]
    fn who_does_not_wait_hears_of_a_silence_after_the_time_of_unreachable_after() {
        let signals = Signals::take().unwrap();
        let open = || Ok(Box::new(Silent) as Box<dyn Taker>);
        with_ask(|ask| {
            let patience = Some(Duration::ZERO);
            for (unreachable_after, ends) in [(seconds(2), true), (None, false)] {
                let since = ask.since.saturating_sub(Duration::from_secs(5));
                let ask = Ask { open: &open, patience, since, unreachable_after, ..ask };
                let obtained = ask.obtain(&signals, &mut Words::new("a", true, false, None));
                assert_eq!(matches!(obtained, Obtained::Failed(_)), ends, "{unreachable_after:?}");
            }
        });
    }

    /// Grants while we stand still, once; then somebody else has it.
    struct Misses(Rc<RefCell<Vec<Line>>>);

    impl Taker for Misses {
        fn begin(&self, asking: &Asking<'_>) -> Result<Begun, Error> {
            let mut asked = self.0.borrow_mut();
            asked.push(asking.line);
            Ok(Begun::Now(if asked.len() == 1 { Got::Missed } else { Got::Busy(None) }))
        }
    }

    #[test]
    fn r5_who_missed_its_turn_stands_in_line_again_for_what_is_left_of_its_patience() {
        let signals = Signals::take().unwrap();
        for (patience, again) in [
            (None, Line::Join),
            (Some(Duration::from_secs(3_600)), Line::Join),
            // It was granted in time, and is tried for once more.
            (Some(Duration::from_nanos(1)), Line::Try),
        ] {
            let asked = Rc::new(RefCell::new(Vec::new()));
            let open = || Ok(Box::new(Misses(Rc::clone(&asked))) as Box<dyn Taker>);
            with_ask(|ask| {
                let ask = Ask { open: &open, patience, ..ask };
                let obtained = ask.obtain(&signals, &mut Words::new("a", true, false, None));
                assert!(matches!(obtained, Obtained::Busy(None)));
            });
            assert_eq!(*asked.borrow(), [Line::Join, again], "{patience:?}");
        }
    }

    #[test]
    fn r5_who_missed_its_turn_and_is_ended_by_a_signal_does_not_ask_again() {
        let signals = Signals::take().unwrap();
        let asked = Rc::new(RefCell::new(Vec::new()));
        let open = || Ok(Box::new(Misses(Rc::clone(&asked))) as Box<dyn Taker>);
        // To this thread alone.
        raise(Signal::SIGTERM).unwrap();
        with_ask(|ask| {
            let ask = Ask { open: &open, ..ask };
            let obtained = ask.obtain(&signals, &mut Words::new("a", true, false, None));
            let is_term = |came: &Came| came.signal == Signal::SIGTERM;
            assert!(matches!(&obtained, Obtained::Interrupted(came) if is_term(came)));
        });
        assert_eq!(*asked.borrow(), [Line::Join]);
    }
}
