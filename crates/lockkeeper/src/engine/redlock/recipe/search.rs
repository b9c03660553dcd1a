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

use crate::searches::as_far_as;

const MEMBERS: usize = 3;
/// The longest lease that needs no word in a URL: the layout's.
const TTL: Duration = Duration::from_secs(10);
/// Time passes in steps of this: two of them end a lease.
const STEP: Duration = Duration::from_secs(5);
/// For how long a request may be carried out.
const IN_TIME: Duration = Duration::from_secs(5);

/// More than that take too long for a test.
const STATES_MOST: usize = 600_000;

/// Where one among the unit tests ends.
const STATES_BRIEFLY: usize = 10_000;

/// By how much a clock's number grows in a step: faster than anybody asks.
const TICKS: u64 = 100;

/// How far clocks may be apart: the layout's, half of what passes while a member waits.
const SKEW: u64 = 100;

/// What a client proposes whose clock is wrong.
const FAR: u64 = 10_000;

/// What may happen, and how the members behave.
#[derive(Clone, Copy)]
struct World {
    /// How often each client may ask, and extend what it has.
    asks: [u8; 2],
    renewals: u8,
    /// How often a hold asks members again on which the other client was in the way.
    completions: u8,
    /// How often a member refuses a claim because it is somebody else's turn.
    turns: u8,
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
    /// The lease of each, which is the longest that its URL allows.
    ttl: [Duration; 2],
    /// A member that restarts keeps what it knew of the longest lease, and loses all else.
    keeps_longest: bool,
    /// The first client proposes numbers of a clock that is far ahead.
    proposes_far: bool,
    /// For the second client the third member's name leads to the second member.
    twins: bool,
    /// Which of them ask in shared mode.
    shared: [bool; 2],
    /// Which of them wait for nobody.
    tries: [bool; 2],
    /// The last number of each member at the beginning: losers leave different ones.
    last: [u64; MEMBERS],
    /// What the clocks are ahead by, where numbers depend on them. Nobody proposes by them else,
    /// and whoever starts hears a majority of the others.
    clocks: Option<[u64; MEMBERS]>,
    /// The first client proposes by the middle one of them, and else by the fastest: what it may
    /// propose is between these.
    by_the_middle: bool,
    /// How far apart each client's URL takes them to be.
    skew: [u64; 2],
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
    /// Whoever admits it waits for the longest lease of its own URL.
    OwnWait,
    /// It waits for that, and for those that the members tell which it reaches, and their records.
    RecordsTell,
    /// Whoever asks last says which lease is the longest.
    Lowers,
    /// The second client waits on a clock that was set forward.
    ClientWaits,
    /// Whoever admits it takes the clocks to be as far apart as its own URL says.
    OwnSkew,
    /// A member gives every number that is proposed.
    AnyNumber,
    /// A server that is reached under two names votes twice.
    TwoVotes,
    /// It tells twice what it remembers.
    TellsTwice,
    /// A hold that asks a member again takes what a contender has there.
    CompletesOver,
    /// Its lease begins anew when it does.
    CompletesLease,
    /// A member whose turn it is counts as one that has its record.
    TurnCounts,
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
    completions: 0,
    turns: 0,
    steps: 0,
    restarts: 0,
    older: false,
    forces: 0,
    at_once: false,
    in_turn: false,
    away: false,
    stands: false,
    ttl: [TTL; 2],
    keeps_longest: false,
    proposes_far: false,
    twins: false,
    shared: [false, false],
    tries: [false, false],
    last: [0; MEMBERS],
    clocks: None,
    by_the_middle: false,
    skew: [SKEW; 2],
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
    let (wrong, states) = search(world, as_far_as(STATES_BRIEFLY, STATES_MOST));
    println!("{states} states");
    assert!(!wrong, "BROKEN LOCK: two holders, or a token that is not above an earlier one");
    assert!(states > 1_000, "the search went nowhere");
}

fn found(world: World, flaw: Flaw, what: &str) {
    let (wrong, states) = search(&World { flaw: Some(flaw), ..world }, STATES_MOST);
    println!("{what}: {states} states");
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
fn l4_of_tries_that_meet_no_two_hold_at_once() {
    never(&World { asks: [1, 1], tries: [true, true], ..CONTENDING });
    never(&World { tries: [true, true], ..LATE });
    never(&World { tries: [true, false], ..LATE });
    never(&World { tries: [true, true], ..ENDING });
}

#[test]
fn r1_no_other_holds_before_a_lease_has_ended() {
    never(&ENDING);
}

#[test]
fn l7_a_renewal_lets_no_other_in() {
    never(&World { asks: [1, 1], renewals: 1, steps: 1, ..LATE });
}

/// A hold asks members again on which the other was in the way.
const COMPLETING: World = World { asks: [1, 2], completions: 1, away: false, ..LATE };

#[test]
fn l4_a_hold_that_takes_what_becomes_free_lets_no_other_in() {
    never(&COMPLETING);
    never(&World { asks: [1, 1], steps: 2, ..COMPLETING });
    never(&World { asks: [1, 1], renewals: 1, last: APART, ..COMPLETING });
    never(&World { asks: [1, 1], renewals: 1, steps: 1, away: true, ..COMPLETING });
    never(&World { asks: [1, 1], restarts: 1, ..COMPLETING });
    never(&World { asks: [1, 1], restarts: 1, steps: 1, away: true, ..COMPLETING });
    never(&World { asks: [1, 1], forces: 1, ..COMPLETING });
    never(&ENDING_FIRST);
}

/// The second client's lease is shorter: it asks again while the first one's lasts, whose number
/// is greater.
const ENDING_FIRST: World =
    World { asks: [1, 3], steps: 2, ttl: [TTL, STEP], clocks: Some([SKEW; MEMBERS]), ..COMPLETING };

#[test]
fn exhaustive_the_search_finds_what_a_hold_does_that_takes_too_much() {
    let over = World { steps: 1, ..ENDING_FIRST };
    found(over, Flaw::CompletesOver, "what a contender counted is taken from it");
    found(ENDING_FIRST, Flaw::CompletesLease, "a lease that no majority has extended");
}

/// Members have lines, and keep places free for whose turn it is: each has a line of its own, so
/// they may be of different claims, and of dead ones.
const TAKING_TURNS: World = World { turns: 1, stands: true, ..LATE };

#[test]
fn r11_turns_that_members_do_not_agree_about_let_no_other_in() {
    never(&TAKING_TURNS);
    never(&World { asks: [1, 1], restarts: 1, steps: 1, last: APART, ..TAKING_TURNS });
    found(TAKING_TURNS, Flaw::TurnCounts, "a turn is taken for a lock");
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
const ALL_AT_ONCE: World = World { clocks: Some([0, 0, SKEW]), last: [0; MEMBERS], ..FORGETTING };

/// The same where numbers began as far above the fastest clock as clocks may be apart.
const AHEAD: World = World { last: [2 * SKEW; MEMBERS], ..ALL_AT_ONCE };

/// The second client's URL knows of no lease as long as the first one's.
const UNEQUAL: World = World { ttl: [TTL, STEP], ..ALL_AT_ONCE };

/// The first one's lease is longer than the layout's, which members remember that restart.
const LONG: World = World {
    ttl: [Duration::from_secs(20), TTL],
    keeps_longest: true,
    asks: [1, 2],
    steps: 2,
    ..ALL_AT_ONCE
};

/// A clock that is far ahead proposes, and all forget.
const FAR_AHEAD: World =
    World { proposes_far: true, clocks: Some([0; MEMBERS]), last: [0; MEMBERS], ..FORGETTING };

/// The first and the third know a number that is above the fastest clock; the second client does
/// not reach the third.
const TWINS: World =
    World { twins: true, restarts: 1, last: [2 * SKEW, 0, 2 * SKEW], ..ALL_AT_ONCE };

#[test]
fn r7_tokens_rise_over_a_majority_that_forgets_while_the_clocks_agree() {
    never(&ALL_AT_ONCE);
}

#[test]
fn r7_tokens_rise_though_numbers_are_proposed_by_the_middle_one_of_the_clocks() {
    for clocks in [[0, 0, SKEW], [SKEW, 0, SKEW]] {
        let world = World { by_the_middle: true, clocks: Some(clocks), ..ALL_AT_ONCE };
        never(&world);
        never(&World { last: [2 * SKEW; MEMBERS], ..world });
        never(&World { older: true, ..world });
    }
}

#[test]
fn r1_urls_that_differ_let_no_second_holder_in() {
    never(&UNEQUAL);
    never(&World { ttl: [STEP, TTL], ..UNEQUAL });
    never(&LONG);
    never(&World { asks: [1, 1], steps: 4, ..LONG });
}

#[test]
fn r1_tokens_rise_above_floors_that_were_ahead_of_the_clocks_whatever_skew_a_url_says() {
    never(&AHEAD);
    never(&World { skew: [SKEW, 0], ..AHEAD });
    never(&World { skew: [0, SKEW], ..AHEAD });
}

#[test]
fn h2_tokens_rise_though_a_client_proposes_by_a_clock_that_is_far_ahead() {
    never(&FAR_AHEAD);
    never(&World { clocks: Some([0, 0, SKEW]), ..FAR_AHEAD });
}

#[test]
fn h3_a_server_with_two_names_lets_no_second_holder_in_and_takes_no_token_back() {
    never(&TWINS);
    never(&World { restarts: 0, last: APART, clocks: None, ..TWINS });
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
fn the_search_finds_what_goes_wrong_in_few_steps_without_the_rules() {
    found(World { last: APART, ..ENDING }, Flaw::OnePhase, "a minority's number is told");
    found(ENDING, Flaw::SameNumber, "two are told one number");
    let reads = World { shared: [true, false], ..ENDING };
    found(reads, Flaw::ReadersUnseen, "a writer beside a reader");
    found(reads, Flaw::ReadersKeepNothing, "a writer with the number of a reader");
    found(FORGETTING, Flaw::NoFloor, "who restarts counts without a floor");
    found(TWINS, Flaw::TwoVotes, "one server is a majority");
    let at_once = World { steps: 0, ..UNEQUAL };
    found(at_once, Flaw::ClientWaits, "a client's clock is set forward while they wait");
}

#[test]
fn exhaustive_the_search_finds_what_goes_wrong_without_the_rules() {
    let restarts = World { restarts: 1, ..ENDING };
    found(World { steps: 0, ..restarts }, Flaw::CountsAtOnce, "who restarts counts at once");
    found(World { steps: 0, ..restarts }, Flaw::FlushedAtOnce, "who is flushed counts at once");
    found(LATE, Flaw::GivesLater, "a late release frees a later grant");
    found(World { restarts: 1, ..FORGETTING }, Flaw::NoFloor, "one of them is enough");
    found(World { away: true, ..restarts }, Flaw::EarlyFloor, "a floor of before a number is told");
    let far = World { clocks: Some([0, 0, 350]), ..ALL_AT_ONCE };
    assert!(search(&far, STATES_MOST).0, "clocks further apart than clock_skew");
    let far = World { clocks: Some([0, 0, 350]), skew: [350; 2], ..ALL_AT_ONCE };
    assert!(search(&far, STATES_MOST).0, "a clock_skew that is no half of what members wait");
}

#[test]
fn exhaustive_the_search_finds_what_a_quorum_that_forgets_does_without_the_rules() {
    let unequal = World { steps: 1, ..UNEQUAL };
    found(unequal, Flaw::OwnWait, "two members wait for less than somebody's lease");
    found(unequal, Flaw::RecordsTell, "nobody who answers has the record");
    found(LONG, Flaw::Lowers, "a member forgets the longest lease");
    let unequal = World { skew: [SKEW, 0], steps: 2, ..AHEAD };
    found(unequal, Flaw::OwnSkew, "a floor below those of a greater clock_skew");
    found(
        World { steps: 2, ..FAR_AHEAD },
        Flaw::AnyNumber,
        "a floor below what a wrong clock proposed",
    );
    found(TWINS, Flaw::TellsTwice, "one server knows what a majority knows");
}
