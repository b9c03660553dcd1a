//! What the memory engine stores: holders, lines, limits, counts. Pure but for the clock that
//! numbers are drawn from.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::{
    Attempt, Change, Claim, ClaimId, Context, End, Entry, Error, ErrorKind, Event, Grant, HoldId,
    Kind, Line, Lost, Mode, Name, Number, Place, Query, Result, Standing, WatchId, Which,
};
use crate::words::claim::{Holder, Waiter};
use crate::words::clock::unix_us;
use crate::words::id::ById;
use crate::words::token::next_number;

/// How many places a line has (R13).
const PLACES_MAX: usize = 16_384;

/// An event for one client.
pub(super) struct Push {
    pub(super) client: u64,
    pub(super) event: Event,
}

/// How a client hears.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) context: Context,
}

#[derive(Default)]
pub(super) struct Store {
    names: BTreeMap<(Kind, Name), Record>,
    /// The greatest number of any name: a name's record goes when nobody uses it, and its next
    /// number must be greater (R7).
    last_number: u64,
    clients: ById<u64, Client>,
    next_client: u64,
    /// The name of every claim that holds or waits.
    of_claim: ById<ClaimId, (Kind, Name)>,
    watches: HashMap<(u64, WatchId), Query>,
}

#[derive(Default)]
struct Record {
    limit: Option<u16>,
    count: Option<u64>,
    counted: BTreeSet<ClaimId>,
    holds: Vec<Hold>,
    line: VecDeque<Waiting>,
}

struct Hold {
    id: HoldId,
    client: u64,
    claim: Claim,
    number: u64,
    since: SystemTime,
    /// The last conversion, and the mode before it.
    converted: Option<(ClaimId, Mode)>,
}

/// A claim in line; `converts` names the hold that it would change.
struct Waiting {
    client: u64,
    claim: Claim,
    converts: Option<HoldId>,
    since: SystemTime,
}

impl Record {
    fn is_unused(&self) -> bool {
        self.holds.is_empty()
            && self.line.is_empty()
            && self.limit.is_none()
            && self.count.is_none()
    }

    /// May this mode be granted beside the holds, apart from the one that it converts?
    fn admits(&self, mode: Mode, converts: Option<HoldId>) -> bool {
        let others = || self.holds.iter().filter(|h| Some(h.id) != converts);
        if let Mode::Permits { count, .. } = mode {
            let used: u32 = others().filter_map(|h| h.claim.mode.permits()).map(u32::from).sum();
            return used + u32::from(count) <= u32::from(self.limit.unwrap_or(0));
        }
        others().all(|h| h.claim.mode.shares_with(mode))
    }

    fn grant(
        &mut self,
        last: &mut u64,
        client: u64,
        claim: Claim,
        converts: Option<HoldId>,
    ) -> Attempt {
        let now_us = unix_us();
        let since = UNIX_EPOCH + Duration::from_micros(now_us);
        let Some(number) = next_number(*last, now_us) else {
            return Attempt::Failed(Error::new(
                ErrorKind::Corrupt,
                "its numbers are used up; open another store",
            ));
        };
        *last = number;
        match converts.and_then(|id| self.holds.iter_mut().find(|h| h.id == id)) {
            Some(hold) => {
                hold.converted = Some((claim.id, hold.claim.mode));
                (hold.claim.mode, hold.number) = (claim.mode, number);
            }
            None => self.holds.push(Hold {
                id: claim.id,
                client,
                claim,
                number,
                since,
                converted: None,
            }),
        }
        granted(number)
    }

    fn holder(&self) -> Option<Box<Holder>> {
        self.holds.first().map(|h| Box::new(h.shown()))
    }
}

impl Hold {
    fn is_converted_by(&self, id: ClaimId) -> bool {
        self.converted.is_some_and(|(by, _)| by == id)
    }

    /// An upgrade that nobody wants any more: upgradable as before.
    fn unconvert(&mut self) {
        if let Some((_, Mode::Upgradable)) = self.converted.take()
            && self.claim.mode == Mode::Exclusive
        {
            self.claim.mode = Mode::Upgradable;
        }
    }

    fn shown(&self) -> Holder {
        let mut holder = Holder::new(self.id, &self.claim.who, self.claim.mode);
        holder.since = Some(self.since);
        holder.token = if self.claim.mode.permits().is_some() {
            None
        } else {
            crate::Token::of(self.number, 0)
        };
        holder.value = self.claim.value.as_deref().map(str::to_owned);
        holder
    }
}

fn grant(number: u64) -> Grant {
    Grant { number: Number::Ours(number), lease: None }
}

fn granted(number: u64) -> Attempt {
    Attempt::Granted(grant(number))
}

impl Store {
    pub(super) fn new_client(&mut self) -> u64 {
        self.next_client += 1;
        self.next_client
    }

    pub(super) fn join(&mut self, id: u64, context: Context) {
        self.clients.insert(id, Client { context });
    }

    pub(super) fn client(&self, id: u64) -> Option<Client> {
        self.clients.get(&id).cloned()
    }

    pub(super) fn attempt(
        &mut self,
        client: u64,
        claim: &Claim,
        line: Line,
        pushes: &mut Vec<Push>,
    ) -> Attempt {
        if self.of_claim.contains_key(&claim.id) {
            return self.recheck(claim.id).into();
        }
        let key = (claim.kind, claim.name.clone());
        let record = self.names.entry(key.clone()).or_default();
        if let Mode::Permits { limit, .. } = claim.mode {
            let stored = *record.limit.get_or_insert(limit);
            if stored != limit {
                return Attempt::Failed(limit_mismatch(stored, limit));
            }
        }
        let answer = if record.line.is_empty() && record.admits(claim.mode, None) {
            record.grant(&mut self.last_number, client, claim.clone(), None)
        } else if line == Line::Try {
            return Attempt::Busy(record.holder());
        } else if record.line.len() >= PLACES_MAX {
            return Attempt::Failed(Error::new(
                ErrorKind::Refused,
                format!("{PLACES_MAX} wait in its line already, which is the limit"),
            ));
        } else {
            let ahead = record.line.len();
            record.line.push_back(Waiting {
                client,
                claim: claim.clone(),
                converts: None,
                since: SystemTime::now(),
            });
            let (ahead, holder) = (u32::try_from(ahead).ok(), record.holder());
            Attempt::InLine(Place { ahead, holder, ask_at: None })
        };
        if !matches!(answer, Attempt::Failed(_)) {
            self.of_claim.insert(claim.id, key.clone());
        }
        self.changed(&key, pushes);
        answer
    }

    pub(super) fn attempt_all(
        &mut self,
        client: u64,
        claims: &[Claim],
        pushes: &mut Vec<Push>,
    ) -> Vec<Attempt> {
        let mut answers: Vec<Attempt> = Vec::with_capacity(claims.len());
        for claim in claims {
            let answer = self.attempt(client, claim, Line::Try, pushes);
            let got = matches!(answer, Attempt::Granted(_));
            answers.push(answer);
            if !got {
                break;
            }
        }
        if answers.len() < claims.len() || !matches!(answers.last(), Some(Attempt::Granted(_))) {
            for claim in claims {
                self.release(claim.id, pushes);
            }
            let last = answers.pop().unwrap_or(Attempt::Busy(None));
            return claims.iter().map(|_| last.clone()).collect();
        }
        answers
    }

    pub(super) fn recheck(&self, id: ClaimId) -> Standing {
        let record = self.of_claim.get(&id).and_then(|key| self.names.get(key));
        let Some(record) = record else {
            return Standing::Gone(Error::new(ErrorKind::Lost, "it is neither held nor in line"));
        };
        if let Some(hold) = record.holds.iter().find(|h| h.id == id || h.is_converted_by(id)) {
            return Standing::Held(grant(hold.number));
        }
        let ahead =
            record.line.iter().position(|p| p.claim.id == id).and_then(|at| u32::try_from(at).ok());
        Standing::InLine(Place { ahead, holder: record.holder(), ask_at: None })
    }

    pub(super) fn withdraw(&mut self, id: ClaimId, pushes: &mut Vec<Push>) -> End {
        let Some(key) = self.of_claim.get(&id).cloned() else { return End::NotOurs };
        if let Some(record) = self.names.get_mut(&key)
            && let Some(at) = record.line.iter().position(|p| p.claim.id == id)
        {
            record.line.remove(at);
            self.of_claim.remove(&id);
            self.settle(&key, pushes);
            return End::Freed;
        }
        if let Some(record) = self.names.get_mut(&key)
            && let Some(hold) = record.holds.iter_mut().find(|h| h.is_converted_by(id))
        {
            hold.unconvert();
            self.of_claim.remove(&id);
            self.settle(&key, pushes);
            return End::Freed;
        }
        self.release(id, pushes)
    }

    pub(super) fn convert(
        &mut self,
        hold: HoldId,
        claim: &Claim,
        pushes: &mut Vec<Push>,
    ) -> Attempt {
        if self.of_claim.contains_key(&claim.id) {
            return self.recheck(claim.id).into();
        }
        let gone = || Attempt::Failed(Error::new(ErrorKind::Lost, "the hold no longer exists"));
        let Some(key) = self.of_claim.get(&hold).cloned() else { return gone() };
        let Some(record) = self.names.get_mut(&key) else { return gone() };
        let Some((client, before)) =
            record.holds.iter().find(|h| h.id == hold).map(|h| (h.client, h.converted))
        else {
            return gone();
        };
        if let Some((before, _)) = before {
            self.of_claim.remove(&before);
        }
        self.of_claim.insert(claim.id, key.clone());
        let answer = if record.admits(claim.mode, Some(hold)) {
            record.grant(&mut self.last_number, client, claim.clone(), Some(hold))
        } else {
            // Before everybody in line: nobody there could be granted while this hold stands.
            let waiting = Waiting {
                client,
                claim: claim.clone(),
                converts: Some(hold),
                since: SystemTime::now(),
            };
            record.line.push_front(waiting);
            Attempt::InLine(Place { ahead: Some(0), holder: record.holder(), ask_at: None })
        };
        self.settle(&key, pushes);
        answer
    }

    pub(super) fn release(&mut self, id: HoldId, pushes: &mut Vec<Push>) -> End {
        let Some(key) = self.of_claim.get(&id).cloned() else { return End::NotOurs };
        let Some(record) = self.names.get_mut(&key) else { return End::NotOurs };
        let Some(at) = record.holds.iter().position(|h| h.id == id) else { return End::NotOurs };
        let converted = record.holds.remove(at).converted.map(|(by, _)| by);
        // A conversion of this hold that still waits goes with it.
        let left: Vec<ClaimId> =
            record.line.iter().filter(|p| p.converts == Some(id)).map(|p| p.claim.id).collect();
        record.line.retain(|p| p.converts != Some(id));
        for claim in left.into_iter().chain(converted).chain([id]) {
            self.of_claim.remove(&claim);
        }
        self.settle(&key, pushes);
        End::Freed
    }

    /// Grants to everybody at the head of the line who can have it now.
    fn settle(&mut self, key: &(Kind, Name), pushes: &mut Vec<Push>) {
        if let Some(record) = self.names.get_mut(key) {
            while let Some(first) = record.line.front() {
                let never = first
                    .claim
                    .mode
                    .permits()
                    .is_some_and(|count| count > record.limit.unwrap_or(0));
                if never {
                    let Some(first) = record.line.pop_front() else { break };
                    let error = Error::new(
                        ErrorKind::InvalidArgument,
                        "the semaphore now has fewer permits than were requested",
                    );
                    self.of_claim.remove(&first.claim.id);
                    pushes.push(Push {
                        client: first.client,
                        event: Event::Failed { claim: first.claim.id, error },
                    });
                    continue;
                }
                if !record.admits(first.claim.mode, first.converts) {
                    break;
                }
                let Some(first) = record.line.pop_front() else { break };
                let (client, claim) = (first.client, first.claim.id);
                let event = match record.grant(
                    &mut self.last_number,
                    client,
                    first.claim,
                    first.converts,
                ) {
                    Attempt::Granted(grant) => Event::Granted { claim, grant },
                    Attempt::Failed(error) => Event::Failed { claim, error },
                    _ => continue,
                };
                pushes.push(Push { client, event });
            }
        }
        self.changed(key, pushes);
        if self.names.get(key).is_some_and(Record::is_unused) {
            self.names.remove(key);
        }
    }

    fn changed(&self, key: &(Kind, Name), pushes: &mut Vec<Push>) {
        for ((client, watch), query) in &self.watches {
            let concerned = match query {
                Query::One(kind, name) => *kind == key.0 && *name == key.1,
                Query::Prefix(prefix) => key.1.as_str().starts_with(prefix.as_str()),
            };
            if concerned {
                pushes.push(Push { client: *client, event: Event::Changed { watch: *watch } });
            }
        }
    }

    pub(super) fn watch(&mut self, client: u64, watch: WatchId, query: Query) {
        self.watches.insert((client, watch), query);
    }

    pub(super) fn unwatch(&mut self, client: u64, watch: WatchId) {
        self.watches.remove(&(client, watch));
    }

    pub(super) fn read(&self, query: &Query) -> Vec<Entry> {
        match query {
            Query::One(kind, name) => {
                let key = (*kind, name.clone());
                vec![
                    self.names.get(&key).map_or_else(
                        || Entry::new(*kind, name.clone()),
                        |record| shown(&key, record),
                    ),
                ]
            }
            Query::Prefix(prefix) => {
                let used = self
                    .names
                    .iter()
                    .filter(|(key, _)| key.1.as_str().starts_with(prefix.as_str()));
                used.map(|(key, record)| shown(key, record)).collect()
            }
        }
    }

    pub(super) fn write(&mut self, change: &Change, pushes: &mut Vec<Push>) -> Result<bool> {
        match change {
            Change::LatchSet(name, count) => {
                let key = (Kind::Latch, name.clone());
                let record = self.names.entry(key.clone()).or_default();
                let free = record.count.unwrap_or(0) == 0;
                if free {
                    record.count = (*count > 0).then_some(*count);
                    record.counted.clear();
                    self.settle(&key, pushes);
                }
                Ok(free)
            }
            Change::LatchCountDown(name, id) => {
                let key = (Kind::Latch, name.clone());
                let Some(record) = self.names.get_mut(&key) else { return Ok(true) };
                if record.counted.insert(*id) {
                    record.count = record
                        .count
                        .and_then(|count| count.checked_sub(1))
                        .filter(|count| *count > 0);
                }
                let open = record.count.is_none();
                self.settle(&key, pushes);
                Ok(open)
            }
            Change::Force(kind, name, from) => {
                let from: Vec<HoldId> = from.iter().filter_map(|holder| holder.claim).collect();
                Ok(self.take_away(*kind, name, &from, Lost::TakenAway, pushes))
            }
            Change::Resize(name, limit) => {
                let key = (Kind::Semaphore, name.clone());
                let record = self.names.entry(key.clone()).or_default();
                let changed = record.limit.replace(*limit) != Some(*limit);
                self.settle(&key, pushes);
                Ok(changed)
            }
        }
    }

    /// Takes a lock away from whoever holds it.
    pub(super) fn take_away(
        &mut self,
        kind: Kind,
        name: &Name,
        from: &[HoldId],
        why: Lost,
        pushes: &mut Vec<Push>,
    ) -> bool {
        let key = (kind, name.clone());
        let holds: Vec<(HoldId, u64)> = self
            .names
            .get(&key)
            .map(|r| r.holds.iter().map(|h| (h.id, h.client)).collect())
            .unwrap_or_default();
        let is_meant = |hold: &HoldId| from.is_empty() || from.contains(hold);
        let holds: Vec<_> = holds.into_iter().filter(|(hold, _)| is_meant(hold)).collect();
        for (hold, client) in &holds {
            pushes.push(Push {
                client: *client,
                event: Event::Ended { which: Which::Hold(*hold), why },
            });
            self.release(*hold, pushes);
        }
        !holds.is_empty()
    }

    /// A client is gone, with everything it held or waited for.
    pub(super) fn leave(&mut self, client: u64, pushes: &mut Vec<Push>) {
        self.clients.remove(&client);
        self.watches.retain(|(c, _), _| *c != client);
        let keys: Vec<_> = self.names.keys().cloned().collect();
        for key in keys {
            let Some(record) = self.names.get_mut(&key) else { continue };
            let mine: Vec<ClaimId> =
                record.holds.iter().filter(|h| h.client == client).map(|h| h.id).collect();
            let waits: Vec<ClaimId> =
                record.line.iter().filter(|p| p.client == client).map(|p| p.claim.id).collect();
            for id in mine.into_iter().chain(waits) {
                self.withdraw(id, pushes);
            }
        }
    }
}

fn shown(key: &(Kind, Name), record: &Record) -> Entry {
    let mut entry = Entry::new(key.0, key.1.clone());
    entry.limit = record.limit;
    entry.count = record.count;
    entry.holders = record.holds.iter().map(Hold::shown).collect();
    entry.waiters = record
        .line
        .iter()
        .enumerate()
        .map(|(at, place)| Waiter {
            host: Some(place.claim.who.host.clone()),
            pid: Some(place.claim.who.pid),
            since: Some(place.since),
            ahead: u32::try_from(at).ok(),
            mode: Some(place.claim.mode),
        })
        .collect();
    entry
}

fn limit_mismatch(stored: u16, asked: u16) -> Error {
    let text = format!(
        "its stored limit is {stored} and {asked} was requested: request {stored}, or resize it"
    );
    Error::new(ErrorKind::LimitMismatch, text)
}
