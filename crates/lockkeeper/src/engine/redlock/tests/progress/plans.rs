//! What is simulated: who takes the lock in turns, what befalls them, and what is promised then.

use lockkeeper_testkit::dice::Dice;

use super::net::Weather;
use super::{Fault, Plan, Promise, ms, secs};

const ALL: &[usize] = &[0, 1, 2, 3, 4];

impl Plan {
    fn with(self, faults: &[(u64, Fault)]) -> Self {
        let faults = faults.iter().map(|(at, fault)| (ms(*at), *fault)).collect();
        Self { faults, ..self }
    }

    /// Holds of this length, for so long.
    pub(super) fn holds(self, hold: u64, lasts: u64) -> Self {
        Self { hold: ms(hold), lasts: ms(lasts), ..self }
    }

    /// So many tasks of each process ask.
    fn tasks(mut self, tasks: usize) -> Self {
        // One waits for those of its process before it, each of which is passed by the others.
        self.promise.passed = if tasks > 1 { 2 * tasks } else { 1 } * self.processes + 4;
        Self { tasks, ..self }
    }

    /// Whose place is lost everywhere asks by itself, five seconds after it asked last (R10).
    fn forgets(mut self) -> Self {
        self.promise.passed = 10_000;
        self
    }

    pub(super) fn ttl(self, ttl: u64) -> Self {
        Self { ttl: ms(ttl), ..self }
    }

    /// Some messages take ninety milliseconds.
    pub(super) fn slow(mut self) -> Self {
        self.promise.idle = ms(500);
        self.promise.passed *= 2;
        Self { weather: Weather::SLOW, ..self }
    }

    /// A word in ten is lost as well: those that wait look by themselves (R10).
    pub(super) fn foul(self) -> Self {
        let slow = self.slow();
        let promise = Promise { idle: secs(2), passed: 4 * slow.promise.passed, ..slow.promise };
        Self { weather: Weather::FOUL, promise, ..slow }
    }

    /// Two members go away, and stay away.
    pub(super) fn bare(mut self) -> Self {
        // A majority is all that are left.
        self.promise.idle *= 2;
        self.faults.extend([(ms(1_010), Fault::Away(3)), (ms(1_020), Fault::Away(4))]);
        self
    }

    /// The clocks of three members are ahead by so much, and two of these go away for a while: the
    /// middle one of the others is that of the slower ones.
    pub(super) fn apart(self, ahead: u64) -> Self {
        let ahead = [0, 70, ahead, ahead + 70, ahead + 140].map(ms);
        Self { ahead, ..self }.with(&[
            (3_000, Fault::Away(3)),
            (3_000, Fault::Away(4)),
            (9_000, Fault::Back(4)),
            (10_000, Fault::Away(4)),
            (11_000, Fault::Back(3)),
        ])
    }
}

/// Those that stand on their own: a name, and what is played.
pub(super) fn named() -> Vec<(&'static str, Plan)> {
    let eight = |hold, lasts| Plan::of(8).holds(hold, lasts);
    let twelve = |hold, lasts| Plan::of(12).holds(hold, lasts);
    let stops = |count| [(3_010, Fault::StopFirst(count))];
    // While a majority is away nobody can ask.
    let away = Promise { idle: secs(7), asks: secs(8), passed: 40, ..Plan::of(6).promise };
    vec![
        ("two", Plan::of(2).holds(20, 4_000)),
        ("two at once", Plan::of(2).holds(0, 1_500)),
        ("five", Plan::of(5).holds(20, 4_000)),
        ("eight", eight(20, 4_000)),
        ("eight at once", eight(0, 1_500)),
        ("five slow", Plan::of(5).holds(50, 10_000).slow()),
        ("eight slow", eight(50, 10_000).slow()),
        ("eight foul", eight(50, 10_000).foul()),
        ("bare", eight(50, 6_000).bare()),
        ("slow bare", eight(50, 10_000).slow().bare()),
        ("bare foul", eight(50, 10_000).foul().bare()),
        (
            "one after the other away",
            Plan { promise: away, ..Plan::of(6).holds(100, 14_000) }.with(&[
                (2_000, Fault::Away(0)),
                (4_000, Fault::Back(0)),
                (4_100, Fault::Away(1)),
                (5_000, Fault::Away(2)),
                (5_010, Fault::Away(3)),
                (7_000, Fault::Back(1)),
                (7_000, Fault::Back(2)),
                (8_000, Fault::Back(3)),
            ]),
        ),
        ("clocks apart, the fastest away", eight(20, 14_000).apart(6_000)),
        (
            "clocks apart, the fastest away beside some at rest",
            Plan { pause: secs(6), ..Plan::of(12).holds(50, 14_000) }.apart(6_000),
        ),
        ("first killed", eight(50, 6_000).with(&[(3_010, Fault::KillFirst(1))])),
        ("first stopped", eight(50, 6_000).with(&stops(1))),
        ("five stopped", twelve(50, 12_000).with(&stops(5))),
        ("eight killed", twelve(50, 20_000).with(&[(3_010, Fault::KillFirst(8))])),
        ("eight stopped", twelve(200, 30_000).with(&stops(8))),
        (
            "eight stopped beside newcomers",
            Plan { pause: ms(500), ..twelve(100, 20_000) }.with(&stops(8)),
        ),
        (
            "eight stopped before waits of 1.5 s",
            Plan { wait: Some(ms(1_500)), ..twelve(50, 12_000) }.with(&stops(8)),
        ),
        (
            "some stop and go on",
            eight(50, 14_000).with(&[
                (2_010, Fault::Stop(&[1, 2])),
                (4_000, Fault::GoOn(&[2])),
                (9_000, Fault::GoOn(&[1])),
            ]),
        ),
        ("holder killed", eight(50, 12_000).ttl(4_000).with(&[(3_010, Fault::KillHolder)])),
        (
            "holder and those behind it killed",
            eight(50, 20_000)
                .ttl(4_000)
                .with(&[(3_010, Fault::KillHolder), (3_010, Fault::StopFirst(3))]),
        ),
        (
            "lines turned round",
            eight(50, 6_000).with(&[(3_000, Fault::TurnRound(0)), (4_000, Fault::TurnRound(1))]),
        ),
        (
            "places forgotten",
            eight(50, 12_000).forgets().with(&[
                (3_010, Fault::Forget(1, ALL)),
                (6_010, Fault::Forget(2, &[0, 1])),
                (7_010, Fault::Forget(3, &[0, 1, 2])),
            ]),
        ),
        (
            "lines forgotten",
            eight(50, 12_000).with(&[
                (3_010, Fault::ForgetLine(0)),
                (3_010, Fault::ForgetLine(1)),
                (6_010, Fault::ForgetLine(0)),
                (6_010, Fault::ForgetLine(1)),
                (6_010, Fault::ForgetLine(2)),
                (6_010, Fault::ForgetLine(3)),
                (6_010, Fault::ForgetLine(4)),
            ]),
        ),
        (
            "bare twelve, one line forgotten",
            twelve(0, 6_000).with(&[(3_007, Fault::ForgetLine(0))]).bare(),
        ),
        ("three tasks each", Plan::of(4).holds(50, 8_000).tasks(3)),
        ("three tasks each, slow", Plan::of(4).holds(50, 10_000).tasks(3).slow()),
        ("three tasks each, foul", Plan::of(4).holds(50, 10_000).tasks(3).foul()),
        ("short waits", Plan { wait: Some(ms(300)), ..eight(100, 10_000) }),
        ("late on old connections", late()),
    ]
}

/// What two processes send arrives three seconds later, over connections that have ended by then.
fn late() -> Plan {
    let late = Plan::of(5).holds(100, 12_000).with(&[
        (2_050, Fault::SlowDown(0, ALL, secs(3))),
        (2_050, Fault::SlowDown(1, &[0, 1], secs(3))),
        (6_050, Fault::SlowDown(2, &[2, 3, 4], secs(3))),
    ]);
    // While its own connections are slow one neither gives back nor asks.
    let promise = Promise { idle: secs(4), asks: secs(8), passed: 60, ..late.promise };
    Plan { promise, ..late }
}

/// One that a seed makes up.
pub(super) fn random(seed: u64) -> Plan {
    let mut dice = Dice::new(seed ^ 0x91a5);
    let mut one_of = |some: &[u64]| some[dice.below(some.len() as u64) as usize];
    let plan = Plan::of(one_of(&[2, 3, 5, 8, 12]) as usize);
    let mut plan =
        plan.holds(one_of(&[0, 5, 20, 100, 400]), 12_000).tasks(one_of(&[1, 1, 3]) as usize);
    plan.pause = ms(one_of(&[0, 0, 50, 500]));
    plan = plan.ttl(one_of(&[2_000, 8_000, 30_000]));
    plan = match one_of(&[0, 1, 2]) {
        0 => plan,
        1 => plan.slow(),
        _ => plan.foul(),
    };
    if one_of(&[0, 0, 1]) == 1 {
        plan = plan.bare();
    }
    let at = ms(3_000 + one_of(&[0, 7, 13, 31, 64]));
    let fault = match one_of(&[0, 1, 2, 3, 4, 5, 6]) {
        0 => Some(Fault::StopFirst(one_of(&[1, 3, 8]) as usize)),
        1 => Some(Fault::KillFirst(one_of(&[1, 3, 8]) as usize)),
        2 => Some(Fault::KillHolder),
        3 => Some(Fault::TurnRound(one_of(&[0, 1, 2]) as usize)),
        4 => {
            plan = plan.forgets();
            Some(Fault::Forget(1, ALL))
        }
        5 => Some(Fault::ForgetLine(one_of(&[0, 1, 2]) as usize)),
        _ => None,
    };
    plan.faults.extend(fault.map(|fault| (at, fault)));
    plan
}
