//! Keeping a hold, giving it back, and what stays behind on members that did not answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::acquire::Entry;
use super::heard::{IN_LINE, READERS};
use super::recipe::{Event as Step, Outcome};
use super::wire::Member;
use super::{Quorum, State, all, errors};
use crate::engine::{Answer, Attempt, BoxFuture, End, Event, Line, Place, Released, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;

/// How often a member that did not answer is asked again to give back what is over.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// After which pauses a hold asks those members again on which others were in the way: the first,
/// and the second, which doubles from then on.
const COMPLETE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(50));

/// The longest of these pauses.
const COMPLETE_LAST: Duration = Duration::from_secs(5);

/// For how long a hold waits for the answers of all before it says to those it has that it is one.
const MARK: Duration = Duration::from_millis(300);

impl Quorum {
    /// Renews leases, all of them at once. A minority that lost its record gets it again.
    pub(super) fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let each = leases.iter().map(|lease| -> BoxFuture<Renewal> {
            let id = ClaimId(lease.0);
            let Some(ttl) = self.state().claims.get(&id).map(|entry| entry.claim.ttl) else {
                return Box::pin(std::future::ready(Renewal::Gone(Lost::TakenAway)));
            };
            // Sent at once, and not when the answer is asked for.
            let stepped = self.step(id, Step::Renew { now: self.context.clock.now() });
            let quorum = self.clone();
            Box::pin(async move {
                match quorum.follow(id, stepped).await {
                    Outcome::Renewed { since } | Outcome::Granted { since, .. } => {
                        Renewal::Extended { ttl, since: Some(since) }
                    }
                    Outcome::TooFew
                    | Outcome::Late
                    | Outcome::First { .. }
                    | Outcome::Refused { .. } => Renewal::Unknown(quorum.why_too_few(id)),
                    Outcome::TooSlow => Renewal::Unknown(errors::too_slow(ttl)),
                    Outcome::Lost | Outcome::Freed | Outcome::Gone | Outcome::NotOurs => {
                        quorum.retire(id);
                        Renewal::Gone(Lost::TakenAway)
                    }
                }
            })
        });
        Answer::later(all(each.collect()))
    }

    /// A member is connected again. It alone is asked for the holds that it may lack, and gets
    /// their records again: those of which it did not say that it has them, and all where it may
    /// have forgotten them. What is being asked for may be a hold in a moment.
    pub(super) fn came_back(self: &Arc<Self>, member: usize) {
        let forgot = self.members.get(member).is_some_and(Member::may_have_forgotten);
        let lacks = |entry: &Entry| {
            let doubtful = forgot && entry.machine.is_held() || entry.doubts.contains_key(&member);
            !entry.leaving && (doubtful || entry.machine.may_lack(member))
        };
        let lacking: Vec<ClaimId> =
            self.state().claims.iter().filter(|(_, e)| lacks(e)).map(|(id, _)| *id).collect();
        for id in lacking {
            let stepped = self.step(id, Step::Back { member });
            self.follow_rest(id, stepped.flights);
        }
        if self.tracks() {
            self.read_again();
        }
    }

    /// A hold that others kept from a minority asks these again, after a flight, and less and less
    /// often until it is renewed: with a bare majority it would end with one of its members.
    pub(super) fn complete_soon(self: &Arc<Self>, id: ClaimId) {
        let ttl = {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id) else { return };
            if !entry.machine.is_incomplete() || entry.leaving || self.options.plain.is_some() {
                return;
            }
            if std::mem::replace(&mut entry.completes, true) {
                return;
            }
            entry.claim.ttl
        };
        self.context.spawner.spawn(self.clone().complete(id, ttl));
    }

    async fn complete(self: Arc<Self>, id: ClaimId, ttl: Duration) {
        let (mut pause, mut waited) = (COMPLETE.0, Duration::ZERO);
        loop {
            sleep(pause).await;
            waited += pause;
            pause = COMPLETE.1.max(pause * 2).min(COMPLETE_LAST);
            {
                let mut state = self.state();
                let Some(entry) = state.claims.get_mut(&id) else { return };
                let goes_on = entry.machine.is_incomplete() && !entry.leaving;
                if !goes_on || waited >= ttl / 3 || self.is_closed() {
                    entry.completes = false;
                    return;
                }
            }
            let stepped = self.step(id, Step::Complete);
            self.follow_rest(id, stepped.flights);
        }
    }

    /// Where a member is silent its record of a hold does not say so before the hold is renewed,
    /// nor do others': whoever cannot reach these would take it for a contender's that died.
    pub(super) fn mark_soon(self: &Arc<Self>, id: ClaimId) {
        let begins = {
            let mut state = self.state();
            let unmarked = state.claims.get(&id).is_some_and(Entry::is_unmarked);
            if !unmarked || self.options.plain.is_some() {
                return;
            }
            state.marks.push_back((self.steady.now().plus(MARK), id));
            state.marks.len() == 1
        };
        if begins {
            self.context.spawner.begin(self.clone().mark_all());
        }
    }

    /// The holds in the order in which they were granted: most have been given back by their time.
    async fn mark_all(self: Arc<Self>) {
        let mut asked = None;
        loop {
            let (at, id) = {
                let mut state = self.state();
                let State { claims, marks, .. } = &mut *state;
                // One that was asked may be unmarked still, and is not asked twice.
                let is_over = |mark: &(Ticks, ClaimId)| {
                    asked == Some(*mark) || !claims.get(&mark.1).is_some_and(Entry::is_unmarked)
                };
                while marks.front().is_some_and(is_over) {
                    marks.pop_front();
                }
                // This task ends with the queue locked: the next hold begins another.
                let Some(first) = marks.front().copied() else { return };
                first
            };
            let rest = at.since(self.steady.now());
            if !rest.is_zero() {
                self.timer.until(Instant::now() + rest).await;
                if self.is_closed() {
                    return;
                }
                continue;
            }
            let stepped = self.step(id, Step::Complete);
            self.follow_rest(id, stepped.flights);
            asked = Some((at, id));
        }
    }

    /// A member of the layout `plain` tells of keys that were read over this connection: who waits
    /// asks again, which reads them.
    fn read_again(&self) {
        let waits = |entry: &Entry| !entry.machine.is_held() && !entry.leaving;
        let waiting: Vec<ClaimId> =
            self.state().claims.iter().filter(|(_, e)| waits(e)).map(|(id, _)| *id).collect();
        let at = self.context.clock.now();
        for claim in waiting {
            self.context.events.send(Event::AskAt { claim, at });
        }
    }

    /// The last question about a claim: what it was granted is given back, what it got of a
    /// majority as well.
    pub(super) fn leave(self: &Arc<Self>, id: ClaimId) -> Answer<End> {
        let gone = self.give_back(id, false);
        Answer::later(async move { gone.await.0 })
    }

    /// The same, with who waits for it. It is sent at once, but where its caller awaits the answer:
    /// then it may leave together with what others ask.
    fn give_back(self: &Arc<Self>, id: ClaimId, awaited: bool) -> BoxFuture<(End, u64)> {
        if let Some(entry) = self.state().claims.get_mut(&id) {
            entry.awaited = awaited;
        }
        let stepped = self.step(id, Step::Leave { now: self.context.clock.now() });
        if let Some(entry) = self.state().claims.get_mut(&id) {
            entry.awaited = false;
        }
        // Nothing is known of it, perhaps since this moment: what was left behind is gone.
        if stepped.due.is_none() {
            return Box::pin(std::future::ready((End::NotOurs, 0)));
        }
        let quorum = self.clone();
        Box::pin(async move {
            let end = match quorum.follow(id, stepped).await {
                Outcome::Freed => End::Freed,
                Outcome::Gone => End::Gone(Lost::TakenAway),
                Outcome::TooFew => End::Unknown(quorum.why_too_few(id)),
                _ => End::NotOurs,
            };
            let waited_for = quorum.state().claims.get(&id).map_or(0, |entry| entry.waited_for);
            quorum.retire(id);
            (end, waited_for)
        })
    }

    pub(super) fn release(
        self: &Arc<Self>,
        holds: &[HoldId],
        again: Option<&Claim>,
        awaited: bool,
    ) -> Answer<Released> {
        let ends: Vec<_> = holds.iter().map(|hold| self.give_back(*hold, awaited)).collect();
        let again = again.cloned().zip(holds.first().copied());
        let quorum = self.clone();
        Answer::later(async move {
            let ends = all(ends).await;
            let again = match again {
                Some((claim, hold)) => {
                    let by = ends.first().map_or(0, |(_, by)| *by);
                    let lets_pass = quorum.lets_pass(claim.mode, by);
                    Some(quorum.ask_behind(claim, hold, lets_pass).await)
                }
                None => None,
            };
            Released { ends: ends.into_iter().map(|(end, _)| end).collect(), again }
        })
    }

    /// Whether a claim asks for what was just given back only after others had their chance.
    fn lets_pass(&self, mode: Mode, waited_for: u64) -> bool {
        match (&self.options.plain, mode) {
            // Members that tell of keys do not know who waits; with queues it stands behind.
            (Some(plain), _) => !plain.stands() && (plain.tracks() || waited_for > 0),
            // Who stands in line has its turn first, whenever the others ask.
            (None, Mode::Exclusive) => waited_for & READERS != 0,
            (None, _) => waited_for & IN_LINE != 0,
        }
    }

    /// Asks for a lock that was just given back: at once, or after others had their chance.
    async fn ask_behind(self: &Arc<Self>, claim: Claim, hold: HoldId, lets_pass: bool) -> Attempt {
        if !lets_pass {
            return self.ask(&claim, Line::Join).get().await;
        }
        if let Err(refused) = self.enter(&claim, Line::Join) {
            return refused;
        }
        let ask_at = self.stand_back(&claim, hold);
        if !self.tracks() {
            self.listen(claim.id).await;
        }
        Attempt::InLine(Place { ask_at, ..Place::default() })
    }

    /// It is over for whoever asked. What members may still have of it is given back as soon as
    /// they answer, and at the latest its lease ends it there.
    pub(super) fn retire(self: &Arc<Self>, id: ClaimId) {
        self.hush(id);
        if let Some(entry) = self.state().claims.get_mut(&id) {
            (entry.leaving, entry.over) = (true, true);
        }
        self.tidy(id);
    }

    /// Forgets what is over, and looks after what it may have left behind. Most often the answers
    /// that are on their way say that this is nothing.
    pub(super) fn tidy(self: &Arc<Self>, id: ClaimId) {
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id).filter(|entry| entry.over) else { return };
        if entry.is_clean() {
            state.claims.remove(&id);
        } else if (entry.in_flight.load(Ordering::Acquire) == 0 || !entry.doubts.is_empty())
            && !std::mem::replace(&mut entry.lingers, true)
        {
            drop(state);
            self.context.spawner.spawn(self.clone().linger(id));
        }
    }

    async fn linger(self: Arc<Self>, id: ClaimId) {
        let Some(ttl) = self.state().claims.get(&id).map(|entry| entry.claim.ttl) else { return };
        let until = self.steady.now().plus(ttl).plus(self.options.request_timeout * 2);
        let mut pause = Duration::from_millis(5);
        while !self.is_closed() && self.steady.now() < until {
            sleep(pause).await;
            pause = (pause * 2).min(ASK_AGAIN);
            let now = self.steady.now();
            let suspects: Vec<usize> = match self.state().claims.get_mut(&id) {
                Some(entry) if entry.is_clean() => break,
                Some(entry) => {
                    let over = entry.doubts.iter().filter(|(_, until)| **until <= now);
                    let over: Vec<usize> = over.map(|(member, _)| *member).collect();
                    entry.doubts.retain(|_, until| *until > now);
                    over
                }
                None => return,
            };
            for member in suspects {
                let _ = self.step(id, Step::Suspect { member });
            }
            if !self.is_asked(id) && !self.is_held(id) {
                let stepped = self.step(id, Step::Leave { now: self.context.clock.now() });
                self.follow_rest(id, stepped.flights);
            }
        }
        self.state().claims.remove(&id);
    }

    /// Whether it is somebody's: a hold is given back by whoever has it, and by nobody else.
    fn is_held(&self, id: ClaimId) -> bool {
        self.state().claims.get(&id).is_some_and(|entry| entry.machine.is_held())
    }

    /// Whether an answer about it is on its way.
    fn is_asked(&self, id: ClaimId) -> bool {
        let is_asked = |entry: &Entry| entry.in_flight.load(Ordering::Acquire) > 0;
        self.state().claims.get(&id).is_some_and(is_asked)
    }
}
