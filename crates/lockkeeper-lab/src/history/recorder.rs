//! From the library's observer to history records.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{ClaimId, Kind, Lost, Name, Ticks};

use super::name::LockId;
use super::record::{Flags, Record, What, fold};
use super::writer::Writer;

/// Writes down what one [`Locks`](lockkeeper::Locks) does; hand it to
/// [`Builder::observer`](lockkeeper::Builder::observer). Each `Locks` gets a recorder of its own;
/// they may share a writer.
///
/// A place in the engine's line (`enq_ok`) is written down where the engine serves those first who
/// came first, and for the claim that asked for it: another that takes it over is handed its turn.
/// Not seen here, because the library does not tell: checks and effects, which whoever makes them
/// writes down with [`Writer::write_for`], under the number that [`asked`](super::asked) answers.
pub struct Recorder {
    writer: Writer,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The library numbers claims by name, and anew when a name was forgotten; here every one is
    /// unique.
    ids: HashMap<(LockId, u64), Known>,
    /// Which claim asked for a place, until the engine said that it has it.
    places: HashMap<u64, u64>,
    holds: HashMap<u64, Hold>,
    /// Those that ended, the oldest first: what is told of them later is written down, too.
    ended: VecDeque<u64>,
    /// What to add to the keeper's clock to get the history's. That clock starts with it and may
    /// run ahead, never behind.
    offset_ns: i64,
}

/// How many holds that ended are remembered.
const REMEMBERED: usize = 1024;

/// A claim that is open, and the hold that its turn belongs to, once it has one.
#[derive(Clone, Copy, Default)]
struct Known {
    id: u64,
    /// What it asked for a place under; 0 when it was not told of.
    place: u64,
    hold: u64,
}

/// A hold of the engine and the turns in it.
#[derive(Default)]
struct Hold {
    now: Vec<u64>,
    /// Those whose release was called, and whether the engine was asked to free it.
    leaving: Vec<u64>,
    asked: bool,
    /// The turns that ended last, when there are no others: lost, or released and answered.
    gone: Vec<u64>,
}

impl Hold {
    fn is_over(&self) -> bool {
        self.now.is_empty() && self.leaving.is_empty()
    }

    /// Under which claims something is written down that concerns the hold.
    fn concerned(&self) -> &[u64] {
        [&self.now, &self.leaving, &self.gone]
            .into_iter()
            .find(|claims| !claims.is_empty())
            .map_or(&[], Vec::as_slice)
    }
}

impl Recorder {
    /// Records into `writer`.
    pub fn new(writer: Writer) -> Self {
        Self { writer, state: Mutex::new(State::default()) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn concerned(&self, hold: ClaimId) -> &[u64] {
        self.holds.get(&fold(hold.0)).map_or(&[], Hold::concerned)
    }

    fn id(&self, lock: LockId, claim: u64) -> Option<u64> {
        self.ids.get(&(lock, claim)).map(|known| known.id)
    }

    /// A claim that is over.
    fn forget(&mut self, lock: LockId, claim: u64) -> Option<Known> {
        let known = self.ids.remove(&(lock, claim))?;
        self.places.remove(&known.place);
        Some(known)
    }

    /// A hold is over: it is forgotten once so many others are.
    fn remember(&mut self, hold: u64) {
        self.ended.push_back(hold);
        if self.ended.len() > REMEMBERED
            && let Some(old) = self.ended.pop_front()
            && self.holds.get(&old).is_some_and(Hold::is_over)
        {
            self.holds.remove(&old);
        }
    }

    fn deadline(&mut self, at: Ticks, deadline: Ticks) -> u64 {
        let now = Writer::now();
        let seen = i64::try_from(now)
            .unwrap_or(i64::MAX)
            .saturating_sub(i64::try_from(at.0).unwrap_or(i64::MAX));
        self.offset_ns = self.offset_ns.min(seen);
        deadline.0.saturating_add_signed(self.offset_ns).max(1)
    }
}

impl Observer for Recorder {
    fn seen(&self, at: Ticks, kind: Kind, name: &Name, what: &Seen) {
        let lock = LockId::of(kind, name.as_str());
        let mut state = self.lock();
        let write = |record: Record| self.writer.write_for(kind, name.as_str(), record);
        let about = |what: What, claim: u64| Record::about(what, lock, claim);
        match what {
            Seen::Asked { claim, place, mode, trying } => {
                let (id, place) = (self.writer.unique(), fold(place.0));
                state.ids.insert((lock, *claim), Known { id, place, hold: 0 });
                state.places.insert(place, id);
                let called =
                    Record { owner: super::asking::note(id), ..about(What::AcquireCalled, id) };
                write(called.mode(*mode).flag(if *trying { Flags::TRY } else { Flags::NONE }));
            }
            Seen::InLine { place, fair, ahead, .. } => {
                // The engine says so again and again.
                let Some(id) = state.places.remove(&fold(place.0)).filter(|_| *fair) else {
                    return;
                };
                write(about(What::InLine, id).number(ahead.map_or(0, u64::from)));
            }
            Seen::Got { claim, hold, mode, token, deadline } => {
                let hold = fold(hold.0);
                // Asked for together with other names, it is told of here for the first time.
                let known = state.forget(lock, *claim).unwrap_or_else(|| Known {
                    id: self.writer.unique(),
                    place: hold,
                    hold,
                });
                let Known { id, place, .. } = known;
                state.ids.insert((lock, *claim), Known { hold, ..known });
                let entry = state.holds.entry(hold).or_default();
                // In a hold that it did not ask for itself, or at a place that another of this
                // process left to it.
                let handed = place != hold;
                entry.now.push(id);
                entry.gone.clear();
                entry.asked = false;
                // The hold passed on: nothing more will be told about the turn before.
                for left in entry.leaving.drain(..) {
                    write(about(What::Released, left));
                }
                let deadline = deadline.map_or(0, |deadline| state.deadline(at, deadline));
                let record = about(What::Acquired, id)
                    .mode(*mode)
                    .token(token.map_or(0, |t| t.get()))
                    .deadline(deadline);
                write(record.flag(if handed { Flags::HANDED } else { Flags::NONE }));
            }
            Seen::NotObtained { claim, why } => {
                let Some(Known { id, .. }) = state.forget(lock, *claim) else { return };
                write(about(outcome(why), id));
            }
            Seen::Left { claim } => {
                let Some(Known { id, .. }) = state.forget(lock, *claim) else { return };
                write(about(What::Cancelled, id));
            }
            Seen::Converting { claim, mode } => {
                let Some(id) = state.id(lock, *claim) else { return };
                write(about(What::ConvertCalled, id).mode(*mode));
            }
            Seen::Converted { claim, mode, token } => {
                let Some(id) = state.id(lock, *claim) else { return };
                write(about(What::Converted, id).mode(*mode).token(token.map_or(0, |t| t.get())));
            }
            Seen::NotConverted { claim } => {
                let Some(id) = state.id(lock, *claim) else { return };
                write(about(What::ConvertFailed, id));
            }
            Seen::Renewed { hold, deadline } => {
                let deadline = state.deadline(at, *deadline);
                for id in state.concerned(*hold) {
                    write(about(What::Renewed, *id).deadline(deadline));
                }
            }
            Seen::Renewing { hold } => {
                state.concerned(*hold).iter().for_each(|id| write(about(What::RenewCalled, *id)))
            }
            Seen::NotRenewed { hold, gone } => {
                let answer = if *gone { What::RenewLost } else { What::RenewUnknown };
                state.concerned(*hold).iter().for_each(|id| write(about(answer, *id)));
            }
            Seen::Releasing { claim, hold } => {
                let Some(Known { id, .. }) = state.forget(lock, *claim) else { return };
                let entry = state.holds.entry(fold(hold.0)).or_default();
                entry.now.retain(|other| *other != id);
                entry.leaving.push(id);
                write(about(What::ReleaseCalled, id));
            }
            Seen::GivingBack { hold, again } => {
                let Some(entry) =
                    state.holds.get_mut(&fold(hold.0)).filter(|hold| hold.now.is_empty())
                else {
                    return;
                };
                // The call of the last guard is written down already; what is repeated, or given
                // back after it was lost, is not.
                if std::mem::replace(&mut entry.asked, true) || entry.leaving.is_empty() {
                    let call =
                        |id: &u64| write(about(What::ReleaseCalled, *id).number(u64::from(*again)));
                    entry.concerned().iter().for_each(call);
                }
            }
            Seen::Released { hold, end } => {
                let hold = fold(hold.0);
                let Some(entry) = state.holds.get_mut(&hold).filter(|hold| hold.now.is_empty())
                else {
                    return;
                };
                let answer = match *end {
                    "freed" => What::Released,
                    "not-ours" => What::ReleasedNotOwner,
                    _ => What::ReleaseUnknown,
                };
                entry.concerned().iter().for_each(|id| write(about(answer, *id)));
                if !entry.leaving.is_empty() {
                    entry.gone = std::mem::take(&mut entry.leaving);
                    state.remember(hold);
                }
            }
            Seen::Lost { claim, why } => {
                let Some(Known { id, hold, .. }) = state.forget(lock, *claim) else { return };
                if let Some(entry) = state.holds.get_mut(&hold) {
                    entry.now.retain(|other| *other != id);
                    entry.gone.push(id);
                    if entry.is_over() {
                        state.remember(hold);
                    }
                }
                write(about(What::Lost, id).number(reason(*why)));
                write(about(What::ReleasedLost, id));
            }
            _ => {}
        }
    }
}

/// How an acquire that got nothing ended.
fn outcome(why: &str) -> What {
    match why {
        "busy" => What::Busy,
        "timed-out" => What::TimedOut,
        "unknown" => What::AcquireUnknown,
        "failed" | "too-many" => What::AcquireFailed,
        // Closed, or lost on the way: its place may still be there for a while.
        _ => What::Cancelled,
    }
}

/// The number of a reason in the file.
fn reason(why: Lost) -> u64 {
    match why {
        Lost::Expired => 1,
        Lost::TakenAway => 2,
        Lost::Replaced => 3,
        Lost::SessionEnded => 4,
        Lost::HeldTooLong => 5,
        Lost::Closed => 6,
        Lost::Forked => 7,
        Lost::Released => 8,
        Lost::ClockStepped => 9,
        _ => 0,
    }
}
