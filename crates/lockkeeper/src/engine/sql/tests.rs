//! The recipe on a store in memory: rows with versions, and a line for each.

mod claims;
mod random;

use std::collections::BTreeMap;
use std::time::Duration;

use super::ask::{Asked, Reply};
use super::line::{CLAIM_LEASE, LIVES, Plan, Seen, Stop, Work, claim_lease};
use super::push::Push;
use super::record::{Hold, LAYOUT, Lock, Place, Row, Us};
use crate::engine::Line;
use crate::words::claim::{Claim, Identity, Mode};
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;

const TTL: Us = 30_000_000;
const START: Us = 1_800_000_000_000_000;

fn claim(mode: Mode) -> Claim {
    let ttl = Duration::from_micros(TTL.unsigned_abs());
    Claim { ttl, ..Claim::of_test("a", mode, Identity::of_test("h")) }
}

fn asked_as(mode: Mode, line: Line) -> Asked {
    let claim = claim(mode);
    let limit = match mode {
        Mode::Permits { limit, .. } => limit,
        _ => 0,
    };
    let channel = format!("c{}", claim.id);
    Asked { kind: claim.kind, place: Place::of(&claim, None, &channel, START), limit, line }
}

fn asked(mode: Mode) -> Asked {
    asked_as(mode, Line::Join)
}

/// One name in a store, and what was told.
#[derive(Default)]
struct Store {
    now: Us,
    row: Option<Row>,
    line: BTreeMap<i64, Place>,
    words: Vec<(String, Push)>,
    /// How many places one question reads at first.
    window: usize,
}

impl Store {
    fn new() -> Self {
        Self { now: START, window: 2, ..Self::default() }
    }

    fn see(&self, me: Option<ClaimId>, window: usize) -> Seen {
        let waits = self.row.as_ref().is_some_and(|row| row.line);
        let line = || self.line.values().filter(|_| waits);
        let mine = line().enumerate().find(|(_, place)| Some(place.claim) == me);
        Seen {
            now: self.now,
            row: self.row.clone(),
            places: line().take(window).cloned().collect(),
            // As a server counts that was not asked for all.
            waiting: line().count().min(window + 2),
            counted: false,
            tail: line().map(|place| place.seq).max().unwrap_or(0),
            mine: mine.map(|(ahead, place)| (place.clone(), ahead)),
            damaged: None,
        }
    }

    fn write(&mut self, plan: Plan) -> bool {
        self.write_read_at(plan, self.now)
    }

    /// Writes a plan as a server does: all of it, if the version is the one that was read.
    fn write_read_at(&mut self, plan: Plan, read: Us) -> bool {
        let version = self.row.as_ref().map_or(0, |row| row.version);
        if version != plan.seen {
            return false;
        }
        // What is written is what is read again.
        let lock = Lock::of(Some(&plan.row), read).unwrap();
        assert_eq!(
            lock.row(plan.row.line),
            Row { version: plan.row.version + 1, ..plan.row.clone() }
        );
        self.row = Some(plan.row);
        for seq in plan.removed {
            assert!(self.line.remove(&seq).is_some(), "only what stands there is removed");
        }
        for seq in plan.asked {
            self.line.get_mut(&seq).unwrap().asked = self.now;
        }
        if let Some(place) = plan.joined {
            assert!(self.line.insert(place.seq, place).is_none(), "no two have one order");
        }
        assert!(
            self.line.is_empty() || self.row.as_ref().unwrap().line,
            "a line is not overlooked"
        );
        self.words.extend(plan.words);
        true
    }

    fn step<T>(
        &mut self,
        me: Option<ClaimId>,
        mut decide: impl FnMut(&mut Work) -> Result<T, Stop>,
    ) -> T {
        let mut window = self.window;
        loop {
            let mut work = Work::on(&self.see(me, window), me).unwrap();
            match decide(&mut work) {
                Ok(value) => {
                    if let Some(plan) = work.plan() {
                        assert!(self.write(plan));
                    }
                    return value;
                }
                Err(Stop::More) => window *= 4,
                Err(Stop::Error(error)) => panic!("{error}"),
            }
        }
    }

    fn ask(&mut self, asked: &Asked) -> Reply {
        let reply = self.step(Some(asked.place.claim), |work| work.stand(asked));
        // As the engine does beside the row.
        if matches!(reply, Reply::InLine { .. }) {
            let mine = self.line.values_mut().find(|place| place.claim == asked.place.claim);
            if let Some(mine) = mine {
                mine.alive = self.now + LIVES;
            }
        }
        reply
    }

    fn release(&mut self, asked: &Asked) -> bool {
        let id = asked.place.claim;
        self.step(Some(id), |work| work.release(id, 0, None)).0
    }

    fn lock(&self) -> Lock {
        Lock::of(self.row.as_ref(), self.now).unwrap()
    }

    fn holders(&self) -> Vec<Hold> {
        self.lock().holds.into_iter().filter(|hold| hold.ends > self.now).collect()
    }

    fn told(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.words).into_iter().map(|(_, push)| push).collect()
    }
}

fn number(reply: &Reply) -> u64 {
    match reply {
        Reply::Granted { number, .. } => *number,
        other => panic!("{other:?}"),
    }
}

fn waits(reply: &Reply) -> usize {
    match reply {
        Reply::InLine { ahead, .. } => *ahead,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_free_lock_is_granted_and_a_release_grants_to_the_first_in_line_and_tells_it_alone() {
    let mut store = Store::new();
    let [one, two, three] = std::array::from_fn(|_| asked(Mode::Exclusive));
    let first = number(&store.ask(&one));
    assert_eq!((waits(&store.ask(&two)), waits(&store.ask(&three))), (0, 1));
    assert!(store.told().is_empty(), "with nobody to wake nothing is notified");
    assert!(store.release(&one));
    assert!(!store.release(&one), "a release sent twice frees only its own grant");
    let told = store.told();
    let [Push::Granted { claim, number, lease, .. }, Push::First { claim: next, .. }] = &told[..]
    else {
        panic!("{told:?}")
    };
    assert_eq!((*claim, *lease, *next), (two.place.claim, CLAIM_LEASE, three.place.claim));
    assert!(*number > first, "R7");
    assert!(store.release(&two));
    store.told();
    assert!(store.release(&three));
    assert!(store.told().is_empty(), "with nobody to wake nothing is notified");
    assert_eq!(
        store.row.as_ref().map(|row| (row.record.as_str(), row.ends, row.line)),
        Some(("", 0, false))
    );
}

#[test]
fn r3_a_claim_asked_for_twice_is_one_hold_or_one_place() {
    let mut store = Store::new();
    let (one, two) = (asked(Mode::Exclusive), asked(Mode::Exclusive));
    assert_eq!(number(&store.ask(&one)), number(&store.ask(&one)));
    assert_eq!((waits(&store.ask(&two)), waits(&store.ask(&two))), (0, 0));
    assert_eq!((store.holders().len(), store.line.len()), (1, 1));
}

#[test]
fn a_holder_that_the_columns_describe_reads_as_one_that_was_written_whole() {
    let asked = asked(Mode::Exclusive);
    let row = Row {
        version: 1,
        number: 77,
        claim: Some(asked.place.claim),
        ends: START + TTL,
        since: START,
        line: false,
        record: asked.place.granted_text(),
    };
    let lock = Lock::of(Some(&row), START).unwrap();
    assert_eq!(lock.holds, [Hold::of(&asked.place, 77, START, TTL)]);
    let again = lock.row(false);
    assert_eq!((again.ends, again.since, again.number), (row.ends, row.since, row.number));
    assert_eq!(Lock::of(Some(&again), START).unwrap().holds, lock.holds);
    // D2: the clock was set back by an hour, and no lease has more left than it began with.
    let back = Lock::of(Some(&row), START - 3_600_000_000).unwrap();
    assert_eq!(back.holds[0].ends, START - 3_600_000_000 + TTL);
}

#[test]
fn c8_only_a_greater_number_is_a_newer_layout_and_everything_else_is_damage() {
    let row = |record: &str| Row { version: 1, record: record.to_owned(), ..Row::default() };
    let kind = |record: &str| Lock::of(Some(&row(record)), START).map_err(|error| error.kind());
    let newer = format!("{}\nwhatever", LAYOUT + 1);
    assert_eq!(kind(&newer), Err(ErrorKind::NewerLayout));
    let whole = asked(Mode::Exclusive).place.granted_text();
    assert!(kind(&whole).is_ok() && kind("").is_ok());
    for damage in
        ["x", "0\n", "1\nh", "1\nz 3", "1\nl x", &whole.replace(" x ", " y "), &whole[..40]]
    {
        assert_eq!(kind(damage), Err(ErrorKind::Corrupt), "{damage:?}");
    }
}

#[test]
fn readers_share_and_a_writer_in_line_is_not_starved() {
    let mut store = Store::new();
    let [one, two, late] = std::array::from_fn(|_| asked(Mode::Shared));
    let writer = asked(Mode::Exclusive);
    let (first, second) = (number(&store.ask(&one)), number(&store.ask(&two)));
    assert!(second > first && store.holders().len() == 2);
    assert_eq!((waits(&store.ask(&writer)), waits(&store.ask(&late))), (0, 1));
    let tried = asked_as(Mode::Shared, Line::Try);
    assert!(matches!(store.ask(&tried), Reply::Busy { .. }), "a try never overtakes a line");
    store.release(&one);
    assert!(store.told().is_empty());
    store.release(&two);
    assert!(matches!(store.told()[0], Push::Granted { claim, .. } if claim == writer.place.claim));
    store.release(&writer);
    assert_eq!(store.holders()[0].claim, late.place.claim);
}

#[test]
fn permits_are_weighted_and_go_to_the_first_that_fits_in_order() {
    let permits = |count| asked(Mode::Permits { count, limit: 5 });
    let mut store = Store::new();
    let (four, two, one) = (permits(4), permits(2), permits(1));
    number(&store.ask(&four));
    assert_eq!(waits(&store.ask(&two)), 0);
    assert_eq!(waits(&store.ask(&one)), 1, "nobody overtakes, although there is room for one");
    let other = asked(Mode::Permits { count: 1, limit: 6 });
    assert!(matches!(store.ask(&other), Reply::OtherLimit { stored: 5 }));
    store.release(&four);
    assert_eq!(store.holders().len(), 2, "both fit now");
}

#[test]
fn r11_dead_waiters_in_a_row_cost_one_claim_lease_together() {
    let mut store = Store::new();
    let holder = asked(Mode::Exclusive);
    number(&store.ask(&holder));
    let dead: Vec<Asked> = (0..20).map(|_| asked(Mode::Exclusive)).collect();
    dead.iter().for_each(|one| drop(store.ask(one)));
    let lives = asked(Mode::Exclusive);
    assert_eq!(waits(&store.ask(&lives)), 20);
    store.now += 3_000_000;
    store.release(&holder);
    let free = store.now;
    // Whoever lives looks when it is told to, and a claim lease after the lease that it knows of.
    while store.holders().first().is_none_or(|hold| hold.claim != lives.place.claim) {
        store.now += 50_000;
        assert!(store.now - free < claim_lease(TTL) + 1_000_000, "{:?}", store.lock());
        store.ask(&lives);
    }
    assert_eq!(store.line.len(), 19, "those that are silent keep their places");
}

#[test]
fn an_upgrade_waits_in_front_of_the_line_and_one_that_is_not_wanted_any_more_is_taken_back() {
    let mut store = Store::new();
    let (up, reader, writer) =
        (asked(Mode::Upgradable), asked(Mode::Shared), asked(Mode::Exclusive));
    let first = number(&store.ask(&up));
    number(&store.ask(&reader));
    store.ask(&writer);
    let mut upgrade = asked(Mode::Exclusive);
    upgrade.place.hold = Some(up.place.claim);
    let id = upgrade.place.claim;
    assert_eq!(waits(&store.step(Some(id), |work| work.convert(&upgrade))), 0);
    store.release(&reader);
    let told = store.told();
    assert!(
        matches!(told[0], Push::Granted { claim, number, .. } if claim == id && number > first)
    );
    assert_eq!(store.holders()[0].mode, 'x');
    assert!(store.step(Some(id), |work| work.withdraw(&upgrade.place, 0)));
    assert_eq!(store.holders()[0].mode, 'u');
    let again = store.step(Some(id), |work| work.convert(&upgrade));
    assert!(matches!(again, Reply::Late), "a copy that was delayed changes nothing: {again:?}");
}

#[test]
fn r16_after_a_lease_that_ran_out_its_delay_passes_first() {
    let mut store = Store::new();
    let mut one = asked(Mode::Exclusive);
    one.place.delay = 5_000_000;
    number(&store.ask(&one));
    store.now += TTL + 1;
    let two = asked(Mode::Exclusive);
    waits(&store.ask(&two));
    assert!(store.holders().is_empty());
    assert_eq!(store.step(None, |work| Ok(work.renew(one.place.claim))), None);
    store.now += 5_000_000;
    number(&store.ask(&two));
}

#[test]
fn a_withdrawn_claim_is_refused_until_no_copy_of_its_request_can_be_in_time() {
    let mut store = Store::new();
    let one = asked(Mode::Exclusive);
    let until = store.now + 2_000_000;
    assert!(!store.step(Some(one.place.claim), |work| work.withdraw(&one.place, until)));
    assert!(store.row.as_ref().unwrap().line, "the one statement must not grant it either");
    assert!(matches!(store.ask(&one), Reply::Late));
    let two = asked(Mode::Exclusive);
    number(&store.ask(&two));
}

#[test]
fn r5_a_withdrawal_is_written_behind_what_may_still_be_on_its_way_and_once() {
    let store = Store::new();
    let one = asked(Mode::Exclusive);
    let me = Some(one.place.claim);
    let plans = |store: &Store, refuse| {
        let mut work = Work::on(&store.see(me, 2), me).unwrap();
        work.withdraw(&one.place, refuse).unwrap();
        work.plan().is_some()
    };
    // A request that was in time may wait for its commit still.
    assert!(plans(&store, store.now - 1));
    assert!(!plans(&store, 0), "all were answered");
    let mut store = store;
    let until = store.now + 2_000_000;
    store.step(me, |work| work.withdraw(&one.place, until));
    assert!(!plans(&store, until), "nothing comes behind its mark");
}

#[test]
fn a_write_on_what_was_read_before_somebody_elses_is_refused() {
    let mut store = Store::new();
    let (one, two) = (asked(Mode::Exclusive), asked(Mode::Exclusive));
    let stale = store.see(Some(two.place.claim), 2);
    number(&store.ask(&one));
    let mut work = Work::on(&stale, Some(two.place.claim)).unwrap();
    number(&work.stand(&two).unwrap());
    assert!(!store.write(work.plan().unwrap()));
    assert_eq!(store.holders()[0].claim, one.place.claim);
}

#[test]
fn d2_after_the_clock_was_set_back_a_dead_holders_lease_ends_a_ttl_later() {
    let mut store = Store::new();
    let (dead, one, two) = (asked(Mode::Exclusive), asked(Mode::Exclusive), asked(Mode::Exclusive));
    number(&store.ask(&dead));
    waits(&store.ask(&one));
    waits(&store.ask(&two));
    store.now -= 3_600_000_000;
    waits(&store.ask(&one));
    assert_eq!(store.row.as_ref().map(|row| row.ends), Some(store.now + TTL));
    let row = store.row.clone();
    waits(&store.ask(&one));
    assert_eq!(store.row, row, "it is written once");
    store.now += TTL + 1;
    number(&store.ask(&one));
}
