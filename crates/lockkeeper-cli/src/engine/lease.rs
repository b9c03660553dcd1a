//! Engines with leases: a guardian takes and keeps the lock, and here is the one who hires it.

mod hire;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use lockkeeper::engine::{Line as Standing, Place};
use lockkeeper::{Claim, ClaimId, Error, ErrorKind, Result, Token};
use nix::poll::{PollFd, PollFlags, poll};

use self::hire::Guardian;
use super::{ANSWERS_WITHIN, Asking, Begun, Got, Holding, Outage, Release, Stage, Taker, Waiting};
use crate::args::run::OnLost;
use crate::failure::os_words;
use crate::guardian::{self, Care, Order, RELEASE, Tell, WHO_HOLDS, WHY};
use crate::start::{Moment, moment};
use crate::supervise::job::Announce;
use crate::supervise::timeout;
use crate::text::millis;
use crate::under::{Caution, Under, Why};

/// How long a guardian may take to say who holds the lock; what was known before is said then.
const SAYS_WITHIN: Duration = Duration::from_millis(300);
/// How long it may take to give the lock back: longer than it tries.
const GIVES_BACK_WITHIN: Duration = Duration::from_secs(7);
/// After how long it is said that giving back waits for the server.
const SLOW: Duration = Duration::from_secs(1);

/// A taker that hires a guardian for each lock.
pub fn open(url: &str, care: Care) -> Box<dyn Taker> {
    Box::new(Leases { url: url.to_owned(), care })
}

struct Leases {
    url: String,
    care: Care,
}

impl Taker for Leases {
    fn begin(&self, asking: &Asking<'_>) -> Result<Begun> {
        let guardian = Guardian::hire(&self.order(asking.claim, asking)).map_err(|e| {
            let message =
                format!("the guardian that keeps the lock cannot be started: {}", os_words(&e));
            Error::new(ErrorKind::Closed, message)
        })?;
        Ok(Begun::Waiting(Box::new(Hired::new(guardian, self.care))))
    }
}

impl Leases {
    fn order(&self, claim: &Claim, asking: &Asking<'_>) -> Order {
        Order {
            url: self.url.clone(),
            require: asking.require.iter().map(|r| r.as_str().to_owned()).collect(),
            kind: claim.kind.as_str().to_owned(),
            name: claim.name.as_str().to_owned(),
            mode: claim.mode.into(),
            ttl_ms: millis(claim.ttl),
            renew: claim.renew,
            unreachable_after_ms: asking.unreachable_after.map(millis),
            try_only: asking.line == Standing::Try,
            host: claim.who.host.clone(),
            pid: claim.who.pid,
            started: claim.who.started,
            program: claim.who.program.clone(),
            label: claim.who.label.clone(),
            value: claim.value.as_deref().map(str::to_owned),
            care: self.care,
        }
    }
}

/// A guardian that is to get the lock.
struct Hired {
    guardian: Guardian,
    care: Care,
    in_line: bool,
    /// What came with the place in line was not shown yet.
    known: bool,
    answer: Option<Tell>,
    place: Place,
    /// When the engine said something last, and when it was asked for that.
    heard: Option<Moment>,
    asked: Option<Moment>,
    outages: VecDeque<Outage>,
    cautions: VecDeque<Caution>,
}

impl Hired {
    fn new(guardian: Guardian, care: Care) -> Self {
        Self {
            guardian,
            care,
            in_line: false,
            known: false,
            answer: None,
            place: Place::default(),
            heard: None,
            asked: None,
            outages: VecDeque::new(),
            cautions: VecDeque::new(),
        }
    }

    fn heard(&mut self, tell: Tell) {
        if let Tell::InLine { .. } | Tell::Place { .. } = &tell {
            self.heard = Some(moment());
        }
        match tell {
            Tell::InLine { ahead, holder } => {
                let holder = holder.map(|h| Box::new(h.into()));
                self.place = Place {
                    ahead: ahead.or(self.place.ahead),
                    holder: holder.or(self.place.holder.take()),
                    ..Place::default()
                };
                self.known =
                    !std::mem::replace(&mut self.in_line, true) && self.place.holder.is_some();
            }
            Tell::Place { ahead, holder } => {
                self.place = Place {
                    ahead: ahead.or(self.place.ahead),
                    holder: holder.map(|h| Box::new(h.into())),
                    ..Place::default()
                };
            }
            // It may answer again by the time that this counts.
            Tell::Silence => self.asked = None,
            Tell::Why(_) => {}
            Tell::Unreachable { refused, silent_ms, why } => {
                let silent_for = Duration::from_millis(silent_ms);
                self.outages.push_back(Outage::Unreachable { refused, silent_for, why });
            }
            Tell::Reachable => self.outages.push_back(Outage::Over),
            Tell::Warning(caution) => self.cautions.push_back(caution),
            answer => self.answer = Some(answer),
        }
    }

    /// Asks who holds it, and waits so long for the answer; answers whether the engine said it.
    fn ask(&mut self, within: Duration) -> bool {
        let until = moment() + within;
        self.guardian.line.send(WHO_HOLDS).is_ok() && self.is_answered(until)
    }

    /// Whether the engine says until then who holds it.
    fn is_answered(&mut self, until: Moment) -> bool {
        while let Some(tell) = self.guardian.tells_until(until) {
            let is_silence = matches!(tell, Tell::Silence);
            let is_news = matches!(
                tell,
                Tell::InLine { .. } | Tell::Unreachable { .. } | Tell::Reachable | Tell::Warning(_)
            );
            self.heard(tell);
            if !is_news {
                return !is_silence;
            }
        }
        false
    }
}

impl Waiting for Hired {
    fn news(&self) -> BorrowedFd<'_> {
        self.guardian.line.as_fd()
    }

    fn stage(&mut self) -> Stage {
        while self.answer.is_none()
            && let Some(tell) = self.guardian.tells()
        {
            self.heard(tell);
        }
        if self.answer.is_some() || self.guardian.gone.get() {
            Stage::Over
        } else if self.in_line {
            Stage::InLine
        } else {
            Stage::Reaching
        }
    }

    fn place(&mut self) -> Place {
        // What came with the place in line is not asked for again.
        if self.answer.is_none() && !std::mem::take(&mut self.known) {
            self.ask(SAYS_WITHIN);
        }
        self.place.clone()
    }

    fn outage(&mut self) -> Option<Outage> {
        self.outages.pop_front()
    }

    fn why(&mut self) -> Option<Error> {
        let until = moment() + SAYS_WITHIN;
        self.guardian.line.send(WHY).ok()?;
        // Once it has answered what it was hired for, it says no more about that.
        while self.answer.is_none()
            && let Some(tell) = self.guardian.tells_until(until)
        {
            match tell {
                Tell::Why(why) => return why.map(Into::into),
                other => self.heard(other),
            }
        }
        None
    }

    fn caution(&mut self) -> Option<Caution> {
        self.cautions.pop_front()
    }

    fn asks(&mut self) {
        self.asked = self.guardian.line.send(WHO_HOLDS).is_ok().then(moment);
    }

    fn is_reached(&mut self) -> bool {
        let is_reached = self.answer.is_some()
            || match self.asked {
                Some(asked) => self.heard >= self.asked || self.is_answered(asked + ANSWERS_WITHIN),
                None => self.ask(ANSWERS_WITHIN),
            };
        // Who holds it came with that.
        self.known = is_reached;
        // It would leave its place as long as it may; that ends with the lease.
        self.guardian.is_waited_for.set(is_reached);
        is_reached
    }

    fn finish(mut self: Box<Self>) -> Result<Got> {
        self.guardian.is_waited_for.set(true);
        while self.stage() != Stage::Over {
            _ = poll(&mut [PollFd::new(self.news(), PollFlags::POLLIN)], timeout(None));
        }
        let guardian = &self.guardian;
        match self.answer {
            Some(Tell::Granted { .. })
                if !guardian.sheet.take() || guardian.has_let_go(stops(self.care)) =>
            {
                Ok(Got::Missed)
            }
            Some(Tell::Granted { token, hold, kill_after }) => {
                let (token, hold) =
                    (token.and_then(Token::raw), hold.and_then(|h| ClaimId::parse(&h)));
                let state = State { times: self.guardian.sheet.read(), ..State::default() };
                Ok(Got::Held(Box::new(Kept {
                    guardian: self.guardian,
                    stops: stops(self.care),
                    token,
                    hold,
                    kill_after,
                    state: RefCell::new(state),
                })))
            }
            Some(Tell::Busy { holder }) => Ok(Got::Busy(holder.map(|h| Box::new(h.into())))),
            Some(Tell::Failed(error)) => Err(error.into()),
            // What said that it was granted is lost: while we stood still there was no room for it.
            Some(_) => Ok(Got::Missed),
            None if !guardian.sheet.take() => Ok(Got::Missed),
            None => Err(Error::new(
                ErrorKind::Closed,
                "the guardian that was to get the lock ended without an answer",
            )),
        }
    }
}

/// Whether a command is stopped in time.
fn stops(care: Care) -> bool {
    care.command && care.on_lost != OnLost::Warn
}

/// A lock that a guardian keeps.
struct Kept {
    guardian: Guardian,
    /// Whether a command is to be stopped in time.
    stops: bool,
    token: Option<Token>,
    hold: Option<ClaimId>,
    kill_after: Duration,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    lost: Option<Why>,
    /// By when the command must be gone.
    by: Option<Moment>,
    /// Whether the guardian asks the command to end.
    asked: bool,
    released: Option<Release>,
    cautions: VecDeque<Caution>,
    /// The times on the sheet when we last looked.
    times: Option<crate::guardian::Times>,
}

impl State {
    fn heard(&mut self, tell: Tell) {
        let (why, by, asked) = match tell {
            Tell::Stopping { why, kill_by } => (why, Some(kill_by), true),
            Tell::Lost { why } => (why, None, false),
            Tell::Released { how } => {
                self.released = Some(how);
                return;
            }
            Tell::Warning(caution) => return self.cautions.push_back(caution),
            _ => return,
        };
        if self.lost.is_none() {
            (self.lost, self.by, self.asked) = (Some(why), by, asked);
        }
    }
}

impl Kept {
    fn listen(&self) -> std::cell::RefMut<'_, State> {
        let mut state = self.state.borrow_mut();
        while let Some(tell) = self.guardian.tells() {
            state.heard(tell);
        }
        state
    }

    /// The guardian should have acted by now: half way between the TERM and the KILL we do it
    /// ourselves.
    fn backup(&self, state: &State) -> Option<Moment> {
        let times = state.times?;
        Some(if self.stops {
            times.term + times.end.saturating_sub(times.term) / 2
        } else {
            times.end
        })
    }
}

impl Under for Kept {
    fn lost(&self) -> Option<Why> {
        let mut state = self.listen();
        if state.lost.is_none() && self.guardian.gone.get() && state.released.is_none() {
            state.by = self.guardian.sheet.read().map(|times| times.end);
            state.lost = Some(Why::Alone);
        }
        if state.lost.is_none() && self.backup(&state).is_some_and(|at| moment() >= at) {
            state.times = self.guardian.sheet.read();
            if self.backup(&state).is_some_and(|at| moment() >= at) {
                (state.lost, state.by) =
                    (Some(Why::RunningOut), state.times.map(|times| times.end));
            }
        }
        state.lost
    }

    fn alarm(&self) -> Option<BorrowedFd<'_>> {
        (!self.guardian.gone.get()).then(|| self.guardian.line.as_fd())
    }

    fn every(&self) -> Option<Duration> {
        None
    }

    fn next(&self) -> Option<Moment> {
        self.backup(&self.state.borrow())
    }

    fn caution(&self) -> Option<Caution> {
        self.state.borrow_mut().cautions.pop_front()
    }

    fn end(&self) -> (Option<Moment>, bool) {
        let state = self.state.borrow();
        (state.by, state.asked)
    }
}

impl Holding for Kept {
    fn token(&self) -> Option<Token> {
        self.token
    }

    fn pass_on(&self) -> Result<Option<BorrowedFd<'_>>> {
        Ok(None)
    }

    fn announce(&self) -> Option<Announce<'_>> {
        Some(Announce { line: self.guardian.line.as_fd(), say: guardian::announce })
    }

    fn kill_after(&self) -> Option<Duration> {
        Some(self.kill_after)
    }

    fn hold(&self) -> Option<ClaimId> {
        self.hold
    }

    fn release(mut self: Box<Self>, _for_all: bool, waits: &mut dyn FnMut()) -> Release {
        let released = self.released(waits);
        if released.is_none() && !self.guardian.gone.get() {
            self.guardian.end();
        }
        released.unwrap_or(Release::Unknown)
    }
}

impl Kept {
    /// Has the lock given back; nothing when the guardian does not say that it did.
    fn released(&self, waits: &mut dyn FnMut()) -> Option<Release> {
        if self.guardian.is_stopped() {
            return None;
        }
        _ = self.guardian.line.send(RELEASE);
        let (slow, until) = (moment() + SLOW, moment() + GIVES_BACK_WITHIN);
        let mut told = false;
        let mut state = self.listen();
        while state.released.is_none() && moment() < until {
            match self.guardian.tells_until(if told { until } else { slow }) {
                Some(tell) => state.heard(tell),
                None if self.guardian.gone.get() || told => break,
                None => {
                    told = true;
                    waits();
                }
            }
        }
        state.released
    }
}

#[cfg(test)]
mod tests;
