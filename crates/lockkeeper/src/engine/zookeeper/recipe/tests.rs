//! The recipe against a model of the server: every order in which requests, replies, events and
//! lost links can come.

mod prefixes;
mod world;

use std::collections::HashSet;

use self::world::{Flaw, World};
use super::*;
use crate::searches::as_far_as;

/// Walks through every history, or through some of many; answers how many states it met.
fn explore(world: World) -> usize {
    let most = as_far_as(5_000, usize::MAX);
    let start = std::time::Instant::now();
    let mut seen = HashSet::new();
    let mut open = vec![world];
    let (mut random, among) = (Random(1), as_far_as(8, 1));
    while seen.len() < most && !open.is_empty() {
        // One that ends early goes to the end of some ways, and not only of those that come last.
        let back = random.below(open.len().min(among));
        let world = open.swap_remove(open.len() - 1 - back);
        let moves = world.moves();
        if moves.is_empty() {
            world.at_rest();
        }
        for (at, what) in moves {
            let mut next = world.clone();
            next.make(at, what);
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    println!(
        "model zookeeper: holds, {} states, {:.1} s",
        seen.len(),
        start.elapsed().as_secs_f64()
    );
    seen.len()
}

/// A small generator.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

/// The search finds what a flaw breaks, in every way that there is.
fn convicts(search: impl FnOnce() + std::panic::UnwindSafe, sentence: &str) {
    let found = std::panic::catch_unwind(search).expect_err("the flaw is not found");
    let text = found.downcast_ref::<String>().map_or("", String::as_str);
    assert!(text.contains(sentence), "{text}");
}

/// Walks through many long histories at random, for worlds with too many states.
fn wander(world: &World, walks: u64) {
    for seed in 1..=as_far_as(walks / 5, walks) {
        let mut world = world.clone();
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        loop {
            let moves = world.moves();
            if moves.is_empty() {
                world.at_rest();
                break;
            }
            // Faults are rare, so that they are spread over the whole history.
            let usual: Vec<_> =
                moves.iter().copied().filter(|(_, what)| !what.is_fault()).collect();
            let any = usual.is_empty() || random.below(16) == 0;
            let moves = if any { moves } else { usual };
            let (at, what) = moves[random.below(moves.len())];
            world.make(at, what);
        }
    }
}

const LEAVE: &[Input] = &[Input::Leave];

/// One claim's machine, stepped by hand: what it is told, and what it wants done then.
fn stepping(want: Want, tries: bool) -> impl FnMut(Input) -> Vec<Action> {
    let mut machine = Contender::new(want, tries);
    move |input| {
        let mut out = Vec::new();
        machine.step(input, &mut out);
        out
    }
}

/// The list shows these nodes.
fn listed(names: &[&String]) -> Input {
    let children = names.iter().map(|name| Child::read(name).unwrap()).collect();
    Input::Listed(Ok(Listing { children, mzxid: 1, limit: None }))
}

#[test]
fn two_mutexes_exclude_each_other_in_every_history_with_a_lost_link() {
    let states =
        explore(World::new(&[(Want::Exclusive, false, LEAVE), (Want::Exclusive, false, LEAVE)], 1));
    assert!(states > 2_000, "{states}");
}

#[test]
fn two_mutexes_in_every_history_in_which_a_session_ends() {
    explore(
        World::new(&[(Want::Exclusive, false, LEAVE), (Want::Exclusive, false, LEAVE)], 0)
            .with_ends(1),
    );
}

#[test]
fn z1_z4_who_ignores_a_lost_session_or_lists_through_a_server_that_lags_is_found() {
    let two = || World::new(&[(Want::Exclusive, false, LEAVE), (Want::Exclusive, false, LEAVE)], 0);
    convicts(
        || _ = explore(two().with_ends(1).with_flaw(Flaw::IgnoresSessionLoss)),
        "as Exclusive beside",
    );
    convicts(|| _ = explore(two().with_flaw(Flaw::ListsElsewhere)), "as Exclusive beside");
}

#[test]
fn z1_whoever_takes_old_news_for_a_grant_is_found() {
    let three = || {
        World::new(
            &[
                (Want::Exclusive, false, LEAVE),
                (Want::Exclusive, false, LEAVE),
                (Want::Exclusive, false, LEAVE),
            ],
            0,
        )
    };
    convicts(
        || wander(&three().with_ends(1).with_flaw(Flaw::BelievesOldNews), 10_000),
        "as Exclusive beside",
    );
    wander(&three().with_ends(1), 10_000);
}

#[test]
fn two_in_line_on_servers_that_lag_in_every_history_with_a_lost_link_or_a_session_that_ends() {
    let two = |cuts| {
        World::new(&[(Want::Exclusive, false, LEAVE), (Want::Exclusive, false, LEAVE)], cuts)
            .with_lag()
    };
    explore(two(1));
    explore(two(0).with_ends(1));
    explore(
        World::new(&[(Want::Exclusive, true, LEAVE), (Want::Exclusive, false, LEAVE)], 1)
            .with_lag(),
    );
    explore(
        World::new(&[(permits(2), false, LEAVE), (permits(2), false, LEAVE)], 0)
            .with_ends(1)
            .with_lag(),
    );
}

#[test]
fn conversions_on_servers_that_lag_in_every_history() {
    let up = &[Input::Conversion(Conversion::Upgrade), Input::Leave];
    explore(
        World::new(&[(Want::Upgradable, false, up), (Want::Exclusive, false, LEAVE)], 0).with_lag(),
    );
    explore(
        World::new(&[(Want::Upgradable, false, up), (Want::Shared, false, LEAVE)], 0).with_lag(),
    );
    let back = &[Input::Conversion(Conversion::Revert), Input::Leave];
    explore(
        World::new(&[(Want::Exclusive, false, back), (Want::Upgradable, false, LEAVE)], 0)
            .with_lag(),
    );
}

#[test]
fn everybody_at_once_on_servers_that_lag_in_many_long_histories() {
    let up_and_back = &[
        Input::Conversion(Conversion::Upgrade),
        Input::Conversion(Conversion::Revert),
        Input::Conversion(Conversion::Downgrade),
        Input::Leave,
    ];
    let all: [(Want, bool, &[Input]); 4] = [
        (Want::Upgradable, false, up_and_back),
        (Want::Exclusive, false, LEAVE),
        (Want::Shared, false, LEAVE),
        (Want::Exclusive, true, LEAVE),
    ];
    wander(&World::new(&all, 3).with_ends(2).with_withdrawals(1).with_lag(), 5_000);
    let all: [(Want, bool, &[Input]); 3] =
        [(permits(1), false, LEAVE), (permits(3), false, LEAVE), (permits(2), false, LEAVE)];
    wander(&World::new(&all, 3).with_ends(1).with_lag(), 2_000);
}

#[test]
fn z2_z4_whoever_looks_for_its_node_on_a_server_that_lags_without_asking_it_to_catch_up_is_found() {
    let two = || {
        World::new(&[(Want::Exclusive, false, LEAVE), (Want::Exclusive, false, LEAVE)], 1)
            .with_lag()
    };
    convicts(|| _ = explore(two().without_sync()), "waits for ever");
}

#[test]
fn a_try_and_a_waiter_in_every_history_with_two_lost_links() {
    explore(World::new(&[(Want::Exclusive, true, LEAVE), (Want::Exclusive, false, LEAVE)], 2));
}

#[test]
fn three_in_line_in_many_histories() {
    let world = World::new(
        &[
            (Want::Exclusive, false, LEAVE),
            (Want::Exclusive, false, LEAVE),
            (Want::Exclusive, true, LEAVE),
        ],
        3,
    );
    wander(&world, 10_000);
}

#[test]
fn an_upgrade_beside_a_reader_and_before_a_writer_in_every_history() {
    let up = &[
        Input::Conversion(Conversion::Upgrade),
        Input::Conversion(Conversion::Revert),
        Input::Leave,
    ];
    explore(World::new(&[(Want::Upgradable, false, up), (Want::Exclusive, false, LEAVE)], 0));
    let up = &[Input::Conversion(Conversion::Upgrade), Input::Leave];
    explore(World::new(&[(Want::Upgradable, false, up), (Want::Shared, false, LEAVE)], 0));
    explore(World::new(&[(Want::Upgradable, false, up), (Want::Upgradable, false, LEAVE)], 0));
}

#[test]
fn an_upgrade_before_a_writer_that_leaves_and_a_reader_behind_it_in_many_histories() {
    let up = &[Input::Conversion(Conversion::Upgrade), Input::Leave];
    let up_and_back = &[
        Input::Conversion(Conversion::Upgrade),
        Input::Conversion(Conversion::Revert),
        Input::Conversion(Conversion::Upgrade),
        Input::Leave,
    ];
    let up_and_taken_back = &[
        Input::Conversion(Conversion::Upgrade),
        Input::TakeBack,
        Input::Conversion(Conversion::Upgrade),
        Input::Leave,
    ];
    for script in [up as &[Input], up_and_back, up_and_taken_back] {
        let world = World::new(
            &[
                (Want::Upgradable, false, script),
                (Want::Exclusive, false, LEAVE),
                (Want::Shared, false, LEAVE),
            ],
            0,
        );
        for world in [world.clone(), world.with_kazoos_names()] {
            wander(&world.clone().with_withdrawals(1), 3_000);
            wander(&world.with_cuts(2).with_withdrawals(1).with_ends(1), 3_000);
        }
    }
}

#[test]
fn a_writer_waits_for_one_that_becomes_a_reader_in_every_history() {
    let down = &[Input::Conversion(Conversion::Downgrade), Input::Leave];
    explore(World::new(&[(Want::Upgradable, false, down), (Want::Exclusive, false, LEAVE)], 0));
    // With Curator's names it is known that a reader may stay behind the writer.
    explore(
        World::new(&[(Want::Exclusive, false, down), (Want::Exclusive, false, LEAVE)], 0)
            .with_kazoos_names(),
    );
    let up_and_down = &[
        Input::Conversion(Conversion::Upgrade),
        Input::Conversion(Conversion::Downgrade),
        Input::Leave,
    ];
    let world = World::new(
        &[
            (Want::Upgradable, false, up_and_down),
            (Want::Exclusive, false, LEAVE),
            (Want::Shared, false, LEAVE),
        ],
        2,
    );
    wander(&world.clone().with_withdrawals(1).with_kazoos_names(), 3_000);
    wander(&world.with_withdrawals(1), 3_000);
}

#[test]
fn a_conversion_asked_for_while_the_link_is_down_in_every_history() {
    let up = &[Input::Conversion(Conversion::Upgrade), Input::Leave];
    explore(World::new(&[(Want::Upgradable, false, up)], 2));
    let down = &[Input::Conversion(Conversion::Downgrade), Input::Leave];
    explore(World::new(&[(Want::Upgradable, false, down)], 2));
    let taken_back = &[Input::Conversion(Conversion::Upgrade), Input::TakeBack, Input::Leave];
    explore(World::new(&[(Want::Upgradable, false, taken_back)], 2));
}

#[test]
fn an_upgrade_that_may_not_look_is_refused_and_leaves_nothing() {
    let mut step = stepping(Want::Upgradable, false);
    let (reader, writer) =
        ("_c_A-__READ__0000000000".to_owned(), "_c_a-__WRIT__0000000001".to_owned());
    step(Input::LinkUp);
    step(Input::Created(Ok(Node::new(reader.clone(), 0, Some(2)))));
    step(listed(&[&reader]));
    assert_eq!(step(Input::Proven), [Action::Say(Say::Granted { number: 2 })]);
    assert_eq!(step(Input::Conversion(Conversion::Upgrade)), [Action::CreateWriter]);
    step(Input::Created(Ok(Node::new(writer.clone(), 1, Some(3)))));
    let refused = step(Input::Listed(Err(Code::NO_AUTH)));
    assert_eq!(
        refused,
        [Action::Delete(writer), Action::Say(Say::ConversionRefused(Code::NO_AUTH))]
    );
}

#[test]
fn an_upgrade_whose_create_was_lost_is_refused_when_nobody_says_what_became_of_it() {
    let mut step = stepping(Want::Upgradable, false);
    let reader = "_c_A-__READ__0000000000".to_owned();
    step(Input::LinkUp);
    step(Input::Created(Ok(Node::new(reader.clone(), 0, Some(2)))));
    step(listed(&[&reader]));
    step(Input::Proven);
    step(Input::Conversion(Conversion::Upgrade));
    step(Input::LinkDown);
    assert_eq!(
        step(Input::LinkUp),
        [Action::WatchOwn(reader.clone()), Action::Find { writer: true }]
    );
    assert_eq!(
        step(Input::Found(Err(Code::THROTTLED))),
        [Action::Say(Say::ConversionRefused(Code::THROTTLED))]
    );
    assert_eq!(step(Input::Leave), [Action::Delete(reader)]);
}

#[test]
fn a_release_whose_answer_is_lost_with_the_session_gave_back_what_was_ours() {
    let mut step = stepping(Want::Exclusive, false);
    let node = "_c_a-lock-0000000000".to_owned();
    step(Input::LinkUp);
    step(Input::Created(Ok(Node::new(node.clone(), 0, Some(2)))));
    step(listed(&[&node]));
    step(Input::Proven);
    assert_eq!(step(Input::Leave), [Action::Delete(node)]);
    step(Input::LinkDown);
    assert_eq!(step(Input::SessionEnded), [Action::Say(Say::Left { ours: true })]);
}

#[test]
fn an_upgrade_looks_past_a_writer_that_its_server_shows_and_the_quorum_does_not_have() {
    let mut step = stepping(Want::Upgradable, false);
    let [own, other, reads, writer, guard] = [
        "A-__READ__0000000000",
        "b-lock-0000000001",
        "c-__READ__0000000002",
        "a-__WRIT__0000000003",
        "a-__WRIT__0000000000",
    ]
    .map(|name| format!("_c_{name}"));
    step(Input::LinkUp);
    step(Input::Created(Ok(Node::new(own.clone(), 0, Some(2)))));
    step(listed(&[&own]));
    step(Input::Proven);
    step(Input::Conversion(Conversion::Upgrade));
    step(Input::Created(Ok(Node::new(writer.clone(), 3, Some(5)))));
    let all = [&own, &other, &reads, &writer];
    assert_eq!(step(listed(&all)), [Action::Whose(reads.clone())]);
    assert_eq!(
        step(Input::Whose { name: reads.clone(), seen: Seen::Here(4), ours: true }),
        [Action::List]
    );
    assert_eq!(step(listed(&all)), [Action::Peek(other.clone())]);
    assert_eq!(
        step(Input::Peeked(other.clone(), Seen::Here(3))),
        [Action::Guard { node: guard, behind: vec![other.clone()] }]
    );
    assert_eq!(step(Input::Guarded(Err(Code::NO_NODE), Some(other.clone()))), [Action::List]);
    assert_eq!(
        step(listed(&all)),
        [Action::Watch(reads.clone()), Action::Say(Say::ConversionWaits)]
    );
}

#[test]
fn an_upgrade_stands_in_for_the_mutex_and_for_the_writer_that_keeps_curators_readers_out() {
    let mut step = stepping(Want::Upgradable, false);
    let [own, mutex, ours, writes, last, writer, guard] = [
        "A-__READ__0000000000",
        "b-lock-0000000001",
        "c-__READ__0000000002",
        "d-__WRIT__0000000003",
        "e-__READ__0000000004",
        "a-__WRIT__0000000005",
        "a-__WRIT__0000000000",
    ]
    .map(|name| format!("_c_{name}"));
    step(Input::LinkUp);
    step(Input::Created(Ok(Node::new(own.clone(), 0, Some(2)))));
    step(listed(&[&own]));
    step(Input::Proven);
    step(Input::Conversion(Conversion::Upgrade));
    step(Input::Created(Ok(Node::new(writer.clone(), 5, Some(7)))));
    let all = [&own, &mutex, &ours, &writes, &last, &writer];
    assert_eq!(
        step(listed(&all)),
        [Action::Whose(ours.clone())],
        "the writer keeps the last one out, whosever it is"
    );
    assert_eq!(
        step(Input::Whose { name: ours.clone(), seen: Seen::Here(4), ours: true }),
        [Action::List]
    );
    assert_eq!(step(listed(&all)), [Action::Peek(mutex.clone())]);
    let behind = vec![mutex.clone(), writes.clone()];
    assert_eq!(
        step(Input::Peeked(mutex.clone(), Seen::Here(3))),
        [Action::Guard { node: guard, behind }]
    );
    assert_eq!(step(Input::Guarded(Err(Code::NO_NODE), Some(writes.clone()))), [Action::List]);
    assert_eq!(
        step(listed(&all)),
        [Action::Whose(last.clone())],
        "it may read since the writer has gone"
    );
}

#[test]
fn a_writer_that_becomes_upgradable_and_writes_again_in_every_history() {
    let down_and_up = &[
        Input::Conversion(Conversion::Revert),
        Input::Conversion(Conversion::Upgrade),
        Input::Leave,
    ];
    explore(World::new(&[(Want::Exclusive, false, down_and_up), (Want::Shared, false, LEAVE)], 0));
    let down = &[Input::Conversion(Conversion::Revert), Input::Leave];
    explore(World::new(&[(Want::Exclusive, false, down), (Want::Exclusive, false, LEAVE)], 1));
    explore(World::new(&[(Want::Exclusive, false, down), (Want::Upgradable, false, LEAVE)], 0));
}

#[test]
fn everybody_at_once_in_many_long_histories_with_lost_links() {
    let up_and_back = &[
        Input::Conversion(Conversion::Upgrade),
        Input::Conversion(Conversion::Revert),
        Input::Conversion(Conversion::Downgrade),
        Input::Leave,
    ];
    let up_and_taken_back =
        &[Input::Conversion(Conversion::Upgrade), Input::TakeBack, Input::Leave];
    let world = World::new(
        &[
            (Want::Upgradable, false, up_and_back),
            (Want::Exclusive, false, LEAVE),
            (Want::Shared, false, LEAVE),
            (Want::Exclusive, false, LEAVE),
        ],
        4,
    );
    wander(&world.with_ends(2), 10_000);
    let world = World::new(
        &[
            (Want::Shared, false, LEAVE),
            (Want::Upgradable, false, up_and_taken_back),
            (Want::Upgradable, false, up_and_back),
            (Want::Exclusive, false, LEAVE),
        ],
        4,
    );
    wander(&world.with_ends(2), 10_000);
}

fn permits(count: u16) -> Want {
    Want::Permits { count, limit: 3 }
}

#[test]
fn permits_are_never_more_than_the_limit_in_every_history_with_a_lost_link() {
    assert!(
        explore(World::new(&[(permits(2), false, LEAVE), (permits(2), false, LEAVE)], 1)) > 1_000
    );
    assert!(
        explore(World::new(&[(permits(2), true, LEAVE), (permits(3), false, LEAVE)], 1)) > 1_000
    );
    assert!(
        explore(
            World::new(&[(permits(1), false, LEAVE), (permits(3), false, LEAVE)], 0).with_ends(1)
        ) > 1_000
    );
}

#[test]
fn great_and_small_claims_for_permits_in_many_long_histories_with_lost_links() {
    let all: [(Want, bool, &[Input]); 4] = [
        (permits(1), false, LEAVE),
        (permits(3), false, LEAVE),
        (permits(2), false, LEAVE),
        (permits(1), true, LEAVE),
    ];
    wander(&World::new(&all, 3), 3_000);
}

#[test]
fn z2_a_create_in_doubt_stays_in_doubt_while_the_server_does_not_say_what_there_is() {
    let mut step = stepping(Want::Exclusive, false);
    assert_eq!(step(Input::LinkUp), [Action::Create, Action::List]);
    step(Input::LinkDown);
    assert_eq!(step(Input::LinkUp), [Action::Find { writer: false }]);
    assert_eq!(
        step(Input::Found(Err(Code::UNIMPLEMENTED))),
        [],
        "no second node behind what may be our own"
    );
    step(Input::LinkDown);
    assert_eq!(step(Input::LinkUp), [Action::Find { writer: false }]);
    assert_eq!(step(Input::Found(Ok(Vec::new()))), [Action::Create, Action::List]);
}
