//! Clocks that differ: what is right stays right however the files' clocks are shifted, and what is
//! wrong by more than that is found.

use std::collections::BTreeMap;
use std::time::Duration;

use lockkeeper_lab::check::{Class, Options, Report, STANDS_STILL, check_files};
use lockkeeper_lab::history::{Flags, Header, HoldMode, LockId, Record, Role, What};

use super::files::{header, put};
use super::generate::{Random, Turn, Use, clean};
use super::story::{Event, hold};

const MS: u64 = 1_000_000;
/// Nothing is told before this, so that clocks can be behind.
const BEGIN_MS: u64 = 20_000;
const RESOURCE: u32 = 50;
const NEMESIS: u32 = 99;
const LINGER_MS: u64 = 50;
/// Generated turns pass on within a few milliseconds.
const RECOVERY_MS: u64 = 40;

/// What happened, in milliseconds of the true time.
#[derive(Clone, Default)]
struct Tale {
    events: Vec<Event>,
    clients: u32,
    claims: u64,
    locks: u64,
    watched: bool,
}

impl Tale {
    fn new(watched: bool) -> Self {
        Self { clients: 100, claims: 1_000_000, locks: 100, watched, ..Self::default() }
    }

    /// A client of its own.
    fn client(&mut self) -> u32 {
        self.clients += 1;
        self.clients
    }

    fn claim(&mut self) -> u64 {
        self.claims += 1;
        self.claims
    }

    fn lock(&mut self) -> LockId {
        self.locks += 1;
        LockId(self.locks)
    }

    fn tell(&mut self, client: u32, at: u64, record: Record) {
        self.events.push(Event { client, record: Record { at, ..record } });
    }

    fn nemesis(&mut self, at: u64, record: Record) {
        if self.watched {
            self.tell(NEMESIS, at, record);
        }
    }

    fn stands_still(&mut self, client: u32, from: u64, to: u64) {
        let fault = |what| Record::about(what, LockId::text(STANDS_STILL), 0).number(client.into());
        self.nemesis(from, fault(What::FaultBegin));
        self.nemesis(to, fault(What::FaultEnd));
    }

    /// Writes each process's file, its clock wrong by up to `skew_ms`, and has them judged.
    fn judge(&self, skew_ms: u64, random: &mut Random) -> Report {
        let dir = tempfile::tempdir().unwrap();
        let mut files = BTreeMap::<u32, Vec<Record>>::new();
        for event in &self.events {
            files.entry(event.client).or_default().push(event.record);
        }
        for (client, mut records) in files {
            records.sort_by_key(|record| record.at);
            let shift = BEGIN_MS * MS + random.below(2 * skew_ms * MS + 1) - skew_ms * MS;
            for record in &mut records {
                record.at = record.at * MS + shift;
                if record.deadline != 0 && record.what != What::ResourceWrite {
                    record.deadline = record.deadline * MS + shift;
                }
            }
            let role = match client {
                NEMESIS => Role::Nemesis,
                RESOURCE => Role::Resource,
                _ => Role::Client,
            };
            put(
                dir.path(),
                &format!("{client:04}.lkh"),
                &Header { role, ..header(client) },
                &records,
            );
        }
        let linger = Duration::from_millis(LINGER_MS);
        let options = Options {
            skew: Duration::from_millis(skew_ms),
            recovery: Some(Duration::from_millis(RECOVERY_MS)),
            linger,
            withdraw: linger,
            ..Options::default()
        };
        check_files(&[dir.path()], options).unwrap()
    }
}

/// A history in which everything happens that makes histories hard, and nothing that is wrong.
fn right(seed: u64, watched: bool) -> Tale {
    let mut random = Random(seed);
    let mut tale = Tale::new(watched);
    let history = clean(seed, 14);
    tale.events.clone_from(&history.others);
    for turn in &history.turns {
        // Room between tokens, for those that conversions give.
        let mut turn = Turn { token: turn.token * 10, ..turn.clone() };
        for event in &mut turn.more {
            event.record.token *= 10;
        }
        match random.below(6) {
            0 | 1 if turn.owner == 0 => loses(&mut tale, turn, &mut random),
            2 if turn.owner == 0 => ends(&mut tale, turn, &mut random),
            3 if turn.usage == Use::ReadWrite && turn.mode == HoldMode::Exclusive => {
                converts(&mut tale, &turn, &mut random)
            }
            _ => plain(&mut tale, &turn),
        }
    }
    resizes(&mut tale, &mut random);
    dies_in_line(&mut tale, &mut random);
    let at = random.between(1_000, 4_000);
    let fault = |what| Record::about(what, LockId::text("slow-link"), 0);
    tale.nemesis(at, fault(What::FaultBegin));
    tale.nemesis(at + random.between(1, 300), fault(What::FaultEnd));
    tale
}

fn plain(tale: &mut Tale, turn: &Turn) {
    tale.events.extend(turn.events());
    // A resource that checks no tokens, in the last moment.
    if turn.mode == HoldMode::Exclusive {
        tale.tell(
            RESOURCE,
            turn.release_called - 1,
            turn.about(What::ResourceWrite).flag(Flags::YES).token(turn.token),
        );
    }
}

/// What the turn's client says of it until its end, or its loss.
fn until(tale: &mut Tale, turn: &Turn, end: u64) {
    let before = |event: &Event| {
        event.record.at < end && !matches!(event.record.what, What::ReleaseCalled | What::Released)
    };
    tale.events.extend(turn.events().into_iter().filter(before));
}

/// It loses its hold when it would have released it, by what its engine says or at its deadline,
/// and says so later.
fn loses(tale: &mut Tale, turn: Turn, random: &mut Random) {
    let deadline = random.one_in(2);
    // Where faults are written down the lock would be owed to others until its server let go.
    let lost =
        if !tale.watched && random.one_in(3) { turn.granted + 2 } else { turn.release_called };
    let mut turn = Turn {
        deadline: if deadline && turn.mode == HoldMode::Exclusive { lost } else { 60_000 },
        ..turn
    };
    turn.more.retain(|event| {
        event.record.at < lost && !matches!(event.record.what, What::RenewCalled | What::Renewed)
    });
    let calls: Vec<_> = turn
        .more
        .iter()
        .filter(|event| event.record.what == What::EffectCalled)
        .map(|event| event.record.number)
        .collect();
    let answered: Vec<_> = turn
        .more
        .iter()
        .filter(|event| event.record.what == What::EffectDone)
        .map(|event| event.record.number)
        .collect();
    turn.more.retain(|event| event.record.what != What::EffectCalled || calls == answered);
    until(tale, &turn, lost);
    let (client, mut told) = (turn.client, lost);
    match random.below(3) {
        0 => {
            // Its renewal is told, and nothing else.
            tale.tell(client, lost - 1, turn.about(What::RenewCalled));
            tale.tell(client, lost, turn.about(What::RenewLost));
        }
        1 if tale.watched && turn.deadline == lost => {
            told = lost + random.between(150, 500);
            tale.stands_still(client, lost - 1, told - 1);
            tale.tell(client, told, turn.about(What::Lost));
        }
        _ => tale.tell(client, lost, turn.about(What::Lost)),
    }
    let released = told.max(turn.release_called) + random.between(1, 600);
    tale.tell(client, released, turn.about(What::ReleaseCalled));
    let answer = if random.one_in(2) { What::ReleasedLost } else { What::ReleasedNotOwner };
    tale.tell(client, released + 1, turn.about(answer));
}

/// Its process is killed when it would have released it; or it ends then, and nobody says so.
fn ends(tale: &mut Tale, turn: Turn, random: &mut Random) {
    let client = tale.client();
    let turn = Turn { client, deadline: 60_000, ..turn };
    let end = turn.release_called;
    let mut events = turn.events();
    events.retain(|event| {
        let cut = matches!(
            event.record.what,
            What::ReleaseCalled | What::Released | What::Renewed | What::RenewCalled
        );
        event.record.at < end && !cut && event.client != RESOURCE
    });
    for event in &mut events {
        event.client = client;
    }
    tale.events.extend(events);
    if random.one_in(2) {
        tale.tell(client, end - 2, turn.about(What::RenewCalled));
        tale.tell(client, end, turn.about(What::Renewed).deadline(60_000));
    }
    let what = if random.one_in(2) { What::Kill } else { What::Exit };
    // Who is killed asked for something else at last; it may be there for a while.
    let (claim, lock) = (tale.claim(), tale.lock());
    tale.tell(
        client,
        end,
        Record { mode: HoldMode::Exclusive, ..Record::about(What::AcquireCalled, lock, claim) },
    );
    tale.nemesis(end + 1, Record::new(what).number(client.into()));
    refused(tale, lock, end + LINGER_MS - 12, end + LINGER_MS - 1);
}

/// It is upgraded and downgraded; a reader is there beside it, and another was refused meanwhile.
fn converts(tale: &mut Tale, turn: &Turn, random: &mut Random) {
    let inside = |part: u64| turn.granted + (turn.release_called - turn.granted) * part / 20;
    let begins = if random.one_in(2) { HoldMode::Upgradable } else { HoldMode::Exclusive };
    let shown = Turn { mode: begins, more: Vec::new(), ..turn.clone() };
    tale.events.extend(shown.events());
    let mut to = |mode, from: u64, by: u64, token: u64| {
        let record = |what| Record { mode, ..turn.about(what) };
        tale.tell(turn.client, from, record(What::ConvertCalled));
        tale.tell(turn.client, by, record(What::Converted).token(turn.token + token));
    };
    if begins == HoldMode::Upgradable {
        to(HoldMode::Exclusive, inside(1), inside(3), 1);
    }
    to(HoldMode::Shared, inside(5), inside(7), 2);
    let (client, claim) = (tale.client(), tale.claim());
    let reader =
        Turn { mode: HoldMode::Shared, client, claim, token: turn.token + 3, ..turn.clone() };
    let times = [
        (inside(6), What::AcquireCalled),
        (inside(7) + 1, What::Acquired),
        (inside(12), What::ReleaseCalled),
        (inside(13), What::Released),
    ];
    for (at, what) in times {
        tale.tell(
            client,
            at,
            reader.about(what).token(if what == What::Acquired { reader.token } else { 0 }),
        );
    }
    let (client, claim) = (tale.client(), tale.claim());
    let other = Turn { mode: HoldMode::Shared, client, claim, ..turn.clone() };
    tale.tell(client, inside(3), other.about(What::AcquireCalled).flag(Flags::TRY));
    tale.tell(client, inside(5), other.about(What::Busy));
}

/// Limits that are changed by everybody in turn, and used up each time.
fn resizes(tale: &mut Tale, random: &mut Random) {
    let (lock, mut now) = (tale.lock(), 1_000);
    let clients: Vec<_> = (0..4).map(|_| tale.client()).collect();
    for _ in 0..12 {
        let limit = random.between(1, 5);
        let who = clients[random.below(4) as usize];
        tale.tell(who, now, Record::about(What::ResizeCalled, lock, 0).number(limit));
        tale.tell(who, now + 1, Record::about(What::Resized, lock, 0).number(limit));
        let end = now + random.between(20, 500);
        for holder in clients.iter().take(limit as usize) {
            let claim = tale.claim();
            let held = super::story::Hold {
                client: *holder,
                lock,
                ..hold(claim, [now + 1, now + 3, end, end + 2])
            };
            tale.events.extend(held.permits(1, limit).events());
        }
        let claim = tale.claim();
        let record = |what| Record {
            mode: HoldMode::Permits,
            weight: 1,
            ..Record::about(what, lock, claim)
        };
        let tried = now + random.between(4, 15);
        tale.tell(who, tried, record(What::AcquireCalled).flag(Flags::TRY).number(limit));
        tale.tell(who, tried + 1, record(What::Busy));
        now = end + 3;
    }
}

/// A try of a client of its own that is refused.
fn refused(tale: &mut Tale, lock: LockId, from: u64, to: u64) {
    let (client, claim) = (tale.client(), tale.claim());
    let record = |what| Record { mode: HoldMode::Exclusive, ..Record::about(what, lock, claim) };
    tale.tell(client, from, record(What::AcquireCalled).flag(Flags::TRY));
    tale.tell(client, to, record(What::Busy));
}

/// One who gives up, and whose place goes a little later.
fn dies_in_line(tale: &mut Tale, random: &mut Random) {
    let (client, lock, claim) = (tale.client(), tale.lock(), tale.claim());
    let at = random.between(1_000, 4_000);
    let record = |what| Record { mode: HoldMode::Exclusive, ..Record::about(what, lock, claim) };
    tale.tell(client, at - 5, record(What::AcquireCalled));
    tale.tell(client, at, record(if random.one_in(2) { What::TimedOut } else { What::Cancelled }));
    refused(tale, lock, at + LINGER_MS - 12, at + LINGER_MS - 1);
}

#[test]
fn what_is_right_stays_right_however_clocks_differ() {
    let mut found = BTreeMap::<Class, (u64, String)>::new();
    for seed in 1..=100 {
        let mut random = Random(seed * 77);
        let tale = right(seed, seed % 2 == 0);
        let straight = tale.judge(0, &mut random);
        assert!(straight.found.is_empty(), "seed {seed}, one clock: {:#?}", straight.violations);
        for skew_ms in [random.between(1, 40), random.between(40, 400)] {
            let report = tale.judge(skew_ms, &mut random);
            for violation in &report.violations {
                let entry = found.entry(violation.class).or_insert((
                    0,
                    format!("seed {seed}, skew {skew_ms} ms: {}", violation.sentence),
                ));
                entry.0 += 1;
            }
            assert!(report.counts.holds > 40, "{} holds", report.counts.holds);
        }
    }
    assert!(found.is_empty(), "{found:#?}");
}

/// Something wrong, by more than clocks can explain that differ by up to `apart` from the true
/// time.
fn wrong(class: Class, apart: u64) -> Tale {
    let mut tale = Tale::new(matches!(class, Class::SlowRecovery | Class::LateLoss));
    let far = 8 * apart + 1_000;
    let (lock, [a, b, c]) = (tale.lock(), [1, 2, 3]);
    let held = |tale: &mut Tale, client: u32, times: [u64; 4], token: u64, deadline: u64| {
        let made = super::story::Hold {
            client,
            lock,
            ..hold(client.into(), times).token(token).deadline(deadline)
        };
        tale.events.extend(made.events());
    };
    let about = |client: u32, what| Record {
        mode: HoldMode::Exclusive,
        ..Record::about(what, lock, client.into())
    };
    match class {
        Class::Overlap => {
            held(&mut tale, a, [1, 2, 2 + 2 * far, 3 + 2 * far], 0, 0);
            held(&mut tale, b, [1, 2 + far, 9 + 2 * far, 10 + 2 * far], 0, 0);
        }
        Class::TokenOrder => {
            held(&mut tale, a, [1, 2, 2 + far, 3 + far], 9, 0);
            held(&mut tale, b, [3 + 2 * far, 4 + 2 * far, 4 + 3 * far, 5 + 3 * far], 8, 0);
        }
        Class::WrongBusy => {
            held(&mut tale, a, [1, 2, 3, 4], 0, 0);
            refused(&mut tale, lock, 4 + far, 5 + far);
        }
        Class::LateEffect => {
            held(&mut tale, a, [1, 2, 3 * far, 1 + 3 * far], 5, 2 + far);
            tale.tell(a, 3 * far - 1, about(a, What::Lost));
            tale.tell(
                RESOURCE,
                2 + 2 * far,
                about(a, What::ResourceWrite).flag(Flags::YES).token(5),
            );
        }
        Class::HeldAfterDeadline => {
            held(&mut tale, a, [1, 2, 3 * far, 1 + 3 * far], 0, 2 + far);
            tale.tell(a, 3 + 2 * far, about(a, What::CheckCalled));
            tale.tell(a, 4 + 2 * far, about(a, What::Checked).flag(Flags::YES));
        }
        Class::HoldVanished => {
            held(&mut tale, a, [1, 2, 2 + far, 0], 0, 9 * far);
            tale.tell(a, 3 + far, about(a, What::ReleasedNotOwner));
        }
        Class::FifoInversion => {
            held(&mut tale, a, [1, 2, 2 + 2 * far, 3 + 2 * far], 0, 0);
            held(&mut tale, b, [3, 4 + 4 * far, 4 + 5 * far, 5 + 5 * far], 0, 0);
            tale.tell(b, 4, about(b, What::InLine));
            held(&mut tale, c, [4 + far, 4 + 2 * far, 4 + 3 * far, 5 + 3 * far], 0, 0);
        }
        Class::SlowRecovery => {
            held(&mut tale, a, [1, 2, 0, 0], 0, 0);
            tale.nemesis(2 + far, Record::new(What::Kill).number(a.into()));
            held(&mut tale, b, [3, 4 + 2 * far, 4 + 3 * far, 5 + 3 * far], 0, 0);
        }
        Class::LateLoss => {
            held(&mut tale, a, [1, 2, 0, 0], 0, 2 + far);
            tale.tell(a, 2 + 2 * far, about(a, What::Lost));
            // Somebody writes down who stood still; nobody did.
            tale.nemesis(1, Record::new(What::Exit).number(77));
        }
        Class::StaleWriteAccepted => {
            held(&mut tale, a, [1, 2, 2 + far, 3 + far], 5, 0);
            for token in [6, 5] {
                let flags = Flags::YES.and(Flags::FENCED);
                tale.tell(
                    RESOURCE,
                    9 - token,
                    about(a, What::ResourceWrite).flag(flags).token(token),
                );
            }
        }
        _ => unreachable!("nothing wrong is told of {class}"),
    }
    tale
}

#[test]
fn what_is_wrong_by_more_than_clocks_differ_is_found() {
    let classes = [
        Class::Overlap,
        Class::TokenOrder,
        Class::WrongBusy,
        Class::LateEffect,
        Class::HeldAfterDeadline,
        Class::HoldVanished,
        Class::FifoInversion,
        Class::SlowRecovery,
        Class::LateLoss,
        Class::StaleWriteAccepted,
    ];
    for class in classes {
        for (skew_ms, seed) in [0, 1, 20, 400].into_iter().cycle().take(40).zip(1..) {
            let report = wrong(class, skew_ms).judge(skew_ms, &mut Random(seed));
            assert_eq!(
                report.found.keys().copied().collect::<Vec<_>>(),
                [class],
                "skew {skew_ms} ms: {:#?}",
                report.violations
            );
        }
    }
}
