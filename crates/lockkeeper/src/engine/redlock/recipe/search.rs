//! Every order of events of two clients and three members, as far as the numbers below go: requests
//! that arrive late, in another order or never, answers that are lost, clients that stop between
//! any two messages. No two hold at once while no member loses its data. Tokens rise also when they
//! do (R7): one after the other, whatever the clocks say; all at once, while the clocks are not
//! further apart than `clock_skew`.

mod state;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use state::State;

const MEMBERS: usize = 3;
const TTL: Duration = Duration::from_secs(10);
/// Time passes in steps of this: two of them end a lease.
const STEP: Duration = Duration::from_secs(5);
/// For how long a request may be carried out.
const IN_TIME: Duration = Duration::from_secs(5);

/// More than that take too long for a test.
const STATES_MOST: usize = 600_000;

/// Where a search ends that is not asked to go on: `cargo xtask campaign models` asks, by the
/// variable [`WHOLE`].
const STATES_BRIEFLY: usize = 10_000;
const WHOLE: &str = "LOCKKEEPER_WHOLE_SEARCHES";

/// By how much a clock's number grows in a step: faster than anybody asks.
const TICKS: u64 = 100;

/// What may happen, and how the members behave.
#[derive(Clone, Copy)]
struct World {
    /// How often each client may ask, and extend what it has.
    asks: [u8; 2],
    renewals: u8,
    steps: u8,
    /// How often a member may lose everything and go on.
    restarts: u8,
    /// What a member has after that: the data of the beginning, or none. One that is flushed while
    /// it runs is one that restarts here: it waits as long.
    older: bool,
    /// How often a lock is taken away by force, on all members or any two of them. Its
    /// holder learns of it when it renews; tokens are above all that were told before they were
    /// asked for, and nobody else's.
    forces: u8,
    /// What the second client sends is carried out and read at once, which leaves room for more of
    /// the first one's.
    at_once: bool,
    /// The same for both. Each reaches all members or any two of them.
    in_turn: bool,
    /// The first client does not reach the last member.
    away: bool,
    /// Members have queues. Where in one a client stands makes nobody a holder: it is the other
    /// messages that do.
    stands: bool,
    /// Which of them ask in shared mode.
    shared: [bool; 2],
    /// The last number of each member at the beginning: losers leave different ones.
    last: [u64; MEMBERS],
    /// What the clocks are ahead by, where numbers depend on them. Nobody proposes by them else,
    /// and whoever starts hears a majority of the others.
    clocks: Option<[u64; MEMBERS]>,
    /// How far apart they are taken to be.
    skew: u64,
    /// A floor reaches its member some time later.
    slow_floors: bool,
    flaw: Option<Flaw>,
}

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// A member that restarted counts at once.
    CountsAtOnce,
    /// One that was flushed while it ran is admitted at once: it is up for long.
    FlushedAtOnce,
    /// It counts a lease later, without a floor.
    NoFloor,
    /// Its floor is of the moment of its start.
    EarlyFloor,
    /// A request to give back deletes what a later round wrote.
    GivesLater,
    /// The greatest number that was answered is told at once.
    OnePhase,
    /// A member keeps a proposed number that it has kept for another claim.
    SameNumber,
    /// Two readers at once are taken for two holders: it shows that they can be.
    ReadersAlone,
    /// A member that has readers lets a writer in.
    ReadersUnseen,
    /// A member does not keep the number of a reader.
    ReadersKeepNothing,
}

const CONTENDING: World = World {
    asks: [1, 1],
    renewals: 0,
    steps: 0,
    restarts: 0,
    older: false,
    forces: 0,
    at_once: false,
    in_turn: false,
    away: false,
    stands: false,
    shared: [false, false],
    last: [0; MEMBERS],
    clocks: None,
    skew: 0,
    slow_floors: false,
    flaw: None,
};

/// One client's messages are late in every way, and another looks for a moment to come in.
const LATE: World = World { asks: [2, 1], at_once: true, away: true, ..CONTENDING };

/// The same while a lease ends.
const ENDING: World = World { asks: [1, 1], steps: 2, away: false, ..LATE };

/// Members that know different numbers.
const APART: [u64; MEMBERS] = [7, 0, 3];

/// Members restart without data while clients hold in turn.
const FORGETTING: World =
    World { asks: [1, 1], in_turn: true, steps: 4, restarts: 2, last: APART, ..CONTENDING };

/// Whether two can hold at once or a token is not above an earlier one, and how many states there
/// are until that is known, or until there are this many.
fn search(world: &World, most: usize) -> (bool, usize) {
    let mut seen = HashSet::new();
    let mut open = vec![State::new(world)];
    while let Some(state) = open.pop() {
        if state.is_wrong(world) {
            return (true, seen.len());
        }
        assert!(seen.len() < STATES_MOST, "too many states: fewer events will do");
        if seen.len() >= most {
            break;
        }
        for next in state.next(world) {
            let mut hasher = DefaultHasher::new();
            next.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                open.push(next);
            }
        }
    }
    (false, seen.len())
}

fn never(world: &World) {
    let most = if std::env::var_os(WHOLE).is_some() { STATES_MOST } else { STATES_BRIEFLY };
    let (wrong, states) = search(world, most);
    println!("{states} states");
    assert!(!wrong, "BROKEN LOCK: two holders, or a token that is not above an earlier one");
    assert!(states > 1_000, "the search went nowhere");
}

fn found(world: World, flaw: Flaw, what: &str) {
    let (wrong, states) = search(&World { flaw: Some(flaw), ..world }, STATES_MOST);
    assert!(wrong, "{what}: {states} states");
}

#[test]
fn two_contenders_never_hold_at_once() {
    never(&CONTENDING);
}

#[test]
fn r3_r4_whatever_is_late_or_lost_no_other_holds_at_once() {
    never(&LATE);
}

#[test]
fn r1_no_other_holds_before_a_lease_has_ended() {
    never(&ENDING);
}

#[test]
fn l7_a_renewal_lets_no_other_in() {
    never(&World { asks: [1, 1], renewals: 1, steps: 1, ..LATE });
}

#[test]
fn l3_a_member_that_restarts_empty_and_waits_gives_nobody_a_second_hold() {
    never(&World { restarts: 1, steps: 1, ..ENDING });
    // Two steps are a lease: it counts at the end, beside requests of before.
    never(&World { restarts: 1, away: true, ..ENDING });
}

#[test]
fn r4_whoever_keeps_its_places_in_queues_lets_no_other_in() {
    never(&World { stands: true, ..LATE });
    never(&World { stands: true, ..ENDING });
    never(&World { stands: true, asks: [1, 1], renewals: 1, steps: 1, ..LATE });
}

#[test]
fn r7_l6_tokens_rise_over_majorities_that_know_different_numbers() {
    never(&World { last: APART, ..LATE });
    never(&World { last: APART, ..ENDING });
    never(&World { asks: [2, 2], in_turn: true, renewals: 1, steps: 3, last: APART, ..CONTENDING });
}

#[test]
fn r7_tokens_rise_over_members_that_forget_one_after_the_other_whatever_the_clocks_say() {
    never(&FORGETTING);
    never(&World { restarts: 1, slow_floors: true, ..FORGETTING });
}

#[test]
fn r7_tokens_rise_over_members_that_come_back_with_older_data() {
    never(&World { older: true, ..FORGETTING });
    never(&World { older: true, last: APART, restarts: 1, away: true, ..ENDING });
}

#[test]
fn r7_tokens_rise_over_what_is_taken_away_by_force() {
    never(&World { forces: 1, last: APART, ..LATE });
}

/// Two of three forget at once: the clocks know.
const ALL_AT_ONCE: World =
    World { clocks: Some([0, 0, 150]), skew: 150, last: [0; MEMBERS], ..FORGETTING };

#[test]
fn r7_tokens_rise_over_a_majority_that_forgets_while_the_clocks_agree() {
    never(&ALL_AT_ONCE);
}

#[test]
fn a_reader_and_a_writer_never_hold_at_once_and_their_tokens_rise() {
    let [reads, writes] = [[true, false], [false, true]];
    for shared in [reads, writes] {
        never(&World { shared, last: APART, ..LATE });
        never(&World { shared, restarts: 1, ..FORGETTING });
    }
    never(&World { shared: reads, last: APART, ..ENDING });
}

#[test]
fn two_readers_hold_at_once_and_above_every_writer() {
    let shared = [true, true];
    never(&World { shared, last: APART, ..LATE });
    never(&World { shared, restarts: 1, ..FORGETTING });
    found(World { shared, ..LATE }, Flaw::ReadersAlone, "two readers hold at once");
}

#[test]
fn the_search_finds_what_goes_wrong_without_the_rules() {
    let restarts = World { restarts: 1, ..ENDING };
    found(World { steps: 0, ..restarts }, Flaw::CountsAtOnce, "who restarts counts at once");
    found(World { steps: 0, ..restarts }, Flaw::FlushedAtOnce, "who is flushed counts at once");
    found(LATE, Flaw::GivesLater, "a late release frees a later grant");
    found(World { last: APART, ..ENDING }, Flaw::OnePhase, "a minority's number is told");
    found(ENDING, Flaw::SameNumber, "two are told one number");
    let reads = World { shared: [true, false], ..ENDING };
    found(reads, Flaw::ReadersUnseen, "a writer beside a reader");
    found(reads, Flaw::ReadersKeepNothing, "a writer with the number of a reader");
    found(FORGETTING, Flaw::NoFloor, "who restarts counts without a floor");
    found(World { restarts: 1, ..FORGETTING }, Flaw::NoFloor, "one of them is enough");
    found(World { away: true, ..restarts }, Flaw::EarlyFloor, "a floor of before a number is told");
    let far = World { clocks: Some([0, 0, 350]), skew: 100, ..ALL_AT_ONCE };
    assert!(search(&far, STATES_MOST).0, "clocks further apart than clock_skew");
    assert!(search(&World { skew: 350, ..far }, STATES_MOST).0, "a clock_skew beyond max_ttl");
}
