//! What is excused, and what is not.

use lockkeeper::Expiry;

use super::super::Conviction;
use super::super::fault::{ANYWHERE, AWAY, AWAY_AND_FORGOTTEN, FORGOTTEN, Hits, SET_BACK};
use super::*;
use crate::judge::liveness::LIVENESS;

const FLUSH: Fault = Fault { name: "flush", hits: Hits::Server, excuses: FORGOTTEN, what: "" };
const CLOCK: Fault = Fault { name: "clock-back", hits: Hits::Server, excuses: SET_BACK, what: "" };
const FORGETS: Fault =
    Fault { name: "kill-server", hits: Hits::Server, excuses: AWAY_AND_FORGOTTEN, what: "" };
const KILLED: Fault = Fault { name: "kill-server", hits: Hits::Server, excuses: AWAY, what: "" };
const SECOND: u64 = 1_000_000_000;

fn excuses(leases: bool, seconds: u64, faults: &[(Fault, u64, u64)]) -> Excuses {
    let mut excuses = Excuses::new(leases, Duration::from_secs(seconds), Late::never());
    faults.iter().for_each(|fault| suffer(&mut excuses, 0, fault));
    excuses
}

fn suffer(excuses: &mut Excuses, process: u64, &(fault, from, to): &(Fault, u64, u64)) {
    excuses.begin(fault, process, from * SECOND);
    excuses.end(fault, process, to * SECOND);
}

/// Shown at one moment, in the making since another.
fn pair(since: u64, at: u64) -> Moment {
    Moment::at(at * SECOND).since(since * SECOND)
}

fn violation(class: Class, at: u64) -> Violation {
    Violation {
        class,
        name: "a".to_owned(),
        at,
        since: at,
        late: false,
        pair: None,
        sentence: String::new(),
        records: Vec::new(),
    }
}

#[test]
fn what_is_expected_names_the_fault_that_excuses_it_and_when_that_began() {
    let reason = |excuses: &Excuses, class, at| excuses.reason(&violation(class, at * SECOND));
    let flushed = excuses(true, 2, &[(FLUSH, 10, 20)]);
    assert_eq!(reason(&flushed, Class::Overlap, 11), Some(("flush", Some(10 * SECOND))));
    assert_eq!(reason(&flushed, Class::Overlap, 9), None, "before it");
    assert_eq!(reason(&flushed, Class::FifoInversion, 9), Some(("what the engine promises", None)));
    let killed = excuses(true, 2, &[(KILLED, 10, 20)]);
    let slow = reason(&killed, Class::SlowRecovery, 21);
    assert_eq!(slow, Some(("kill-server", Some(10 * SECOND))));
}

#[test]
fn two_holders_are_explained_by_a_fault_only_if_one_was_confirmed_before_its_end_and_the_other_came_after_its_beginning()
 {
    let excuses = excuses(true, 2, &[(FLUSH, 10, 20)]);
    for class in [
        Class::Overlap,
        Class::ReadersWithWriter,
        Class::PermitsExceeded,
        Class::HoldVanished,
        Class::TokenOrder,
    ] {
        let expected = |since, at| excuses.expects_at(class, pair(since, at));
        assert!(!expected(8, 9), "{class}: both before it");
        assert!(
            expected(9, 11) && expected(11, 12) && expected(19, 22),
            "{class}: one of them can have been forgotten"
        );
        assert!(!expected(21, 22), "{class}: both were confirmed after it, however soon");
        assert!(!expected(19, 24), "{class}: no lease lasts so long");
    }
    assert!(!excuses.expects_at(Class::SlowRecovery, pair(10, 12)), "not what this fault does");
}

#[test]
fn what_comes_late_where_no_token_is_checked_is_expected_of_leases_and_two_holders_of_a_fault_alone()
 {
    let leased = excuses(true, 2, &[(FLUSH, 10, 20)]);
    for class in LATE {
        let late = Moment { late: true, ..pair(50, 50) };
        assert!(leased.expects_at(class, late), "{class}: leases let late writes pass");
        assert!(!leased.expects_at(class, pair(50, 50)), "{class}: both held it");
        let forgotten = class != Class::LateEffect;
        assert_eq!(
            leased.expects_at(class, pair(15, 21)),
            forgotten,
            "{class}: one of both was forgotten"
        );
        assert!(!excuses(false, 0, &[]).expects_at(class, late), "{class}: no leases");
    }
}

#[test]
fn what_a_fault_excuses_follows_from_the_description_and_not_from_the_engine_s_name() {
    let of = |engine, expiry: Expiry| {
        let recovery = if expiry.is_timed() { Duration::from_secs(1) } else { Duration::ZERO };
        let class = lockkeeper::Class::Timed;
        let (fair, fair_permits, fenced) = (true, true, true);
        let about = About { engine, class, expiry, recovery, fair, fair_permits, fenced };
        Excuses::of(&about, true, false, Late::never())
    };
    let per_hold = |claim_lease| Expiry::PerHold { claim_lease };
    let session = Expiry::Session { ttl: Duration::from_secs(1) };
    let late = BTreeSet::from([Class::LateEffect, Class::StaleWriteUnfenced, Class::LostUpdate]);
    for (expiry, always, confirms) in [
        (Expiry::WithProcess, BTreeSet::new(), false),
        (per_hold(None), late.clone(), false),
        (per_hold(Some(Duration::from_millis(300))), late.clone(), true),
        (session, late.into_iter().chain([Class::WrongBusy]).collect(), false),
    ] {
        for engine in ["file", "redis", "zookeeper", "ledger"] {
            let excuses = of(engine, expiry);
            assert_eq!((excuses.always(), excuses.confirms), (always.clone(), confirms));
        }
    }
}

#[test]
fn a_try_that_is_refused_for_nothing_is_expected_only_where_tries_stand_in_line() {
    let expects =
        |stand| excuses(true, 0, &[]).tries_stand(stand).expects(&violation(Class::WrongBusy, 1));
    assert!(expects(true) && !expects(false));
}

#[test]
fn tokens_that_go_back_are_expected_of_two_holders_and_while_a_clock_is_behind_and_not_to_the_end_of_the_run()
 {
    let of = |faults: &[(Fault, u64, u64)]| {
        let excuses = excuses(true, 1, faults);
        move |since: u64, at: u64| excuses.expects_at(Class::TokenOrder, pair(since, at))
    };
    let forgotten = of(&[(FLUSH, 10, 11)]);
    assert!(
        forgotten(9, 13) && !forgotten(12, 13) && !forgotten(9, 14),
        "the older holder's turns have the smaller tokens"
    );
    let stepped = of(&[(CLOCK, 10, 11)]);
    assert!(stepped(9, 13) && !stepped(9, 14), "a record that stays keeps its number");
    let both = of(&[(CLOCK, 10, 11), (FLUSH, 12, 13)]);
    assert!(both(9, 15), "until the clock has caught up, and a lease");
    assert!(!both(9, 16), "and not to the end of the run");
    assert!(!both(14, 15), "both got theirs by the right clock");
    assert!(
        !of(&[(FLUSH, 5, 6), (CLOCK, 10, 11)])(9, 15),
        "what was lost long before is numbered by the right clock"
    );
}

#[test]
fn a_lock_that_nobody_gets_is_expected_for_as_long_as_clients_take_to_come_back_and_no_longer() {
    let excuses = excuses(true, 1, &[(KILLED, 10, 11)]);
    let found = |class, at: u64, until: u64| {
        let (at, until) = (at * SECOND, until * SECOND);
        Conviction { class, name: String::new(), at, until, sentence: String::new() }
    };
    let expected = |class, at, until| excuses.expects_conviction(&found(class, at, until));
    // Its end, the longest pause of a client, and T.
    assert!(
        expected(LIVENESS, 11, 14) && !expected(LIVENESS, 11, 15),
        "however soon after it that begins"
    );
    assert!(!expected(LIVENESS, 7, 9) && !expected("crash", 12, 12) && !expected("cost", 12, 12));
}

#[test]
fn who_is_kept_away_again_before_it_is_back_comes_back_that_much_later() {
    const CUT: Fault = Fault { name: "partition-up", hits: Hits::Link, excuses: &[], what: "" };
    const STOPPED: Fault =
        Fault { name: "stop-server", hits: Hits::Server, excuses: &[], what: "" };
    // A server that was away until 11 s, and then once or twice somebody: who, which fault, from,
    // to.
    let expected = |then: &[(u64, (Fault, u64, u64))], until| {
        let mut excuses = excuses(true, 1, &[(KILLED, 10, 11)]);
        then.iter().for_each(|(process, fault)| suffer(&mut excuses, *process, fault));
        excuses.expects_wait(11 * SECOND, until * SECOND)
    };
    assert!(expected(&[], 14) && !expected(&[], 15));
    let once = [(7, (CUT, 12, 14))];
    assert!(expected(&once, 17) && !expected(&once, 18));
    let twice = [(7, (CUT, 12, 14)), (7, (CUT, 15, 16))];
    assert!(expected(&twice, 19) && !expected(&twice, 20));
    let other = [(7, (CUT, 12, 14)), (8, (CUT, 15, 16))];
    assert!(expected(&other, 17) && !expected(&other, 18), "another client was back long since");
    let server = [(7, (CUT, 12, 14)), (0, (STOPPED, 15, 16))];
    assert!(expected(&server, 19) && !expected(&server, 20), "a server is everybody's");
    let late = [(7, (CUT, 14, 15))];
    assert!(expected(&late, 14) && !expected(&late, 15), "it was back");
}

#[test]
fn who_is_cut_off_again_pauses_for_as_long_as_it_did_before_and_who_stood_still_does_not() {
    const CUT: Fault = Fault { name: "reset", hits: Hits::Link, excuses: &[], what: "" };
    const STOPPED: Fault =
        Fault { name: "stop-client", hits: Hits::Client, excuses: &[], what: "" };
    let expected = |fault, all: &[(u64, u64, u64)], until| {
        let mut excuses = excuses(true, 1, &[]);
        all.iter()
            .for_each(|(process, from, to)| suffer(&mut excuses, *process, &(fault, *from, *to)));
        let judged = excuses.judges_waits()(until * SECOND);
        let expected = excuses.expects_wait(13 * SECOND, until * SECOND);
        assert_ne!(judged, expected, "what is excused is not judged");
        expected
    };
    let twice = [(7, 8, 9), (7, 12, 13)];
    assert!(expected(CUT, &twice, 16) && !expected(CUT, &twice, 17));
    assert!(!expected(CUT, &[(7, 12, 13)], 16), "once: it comes back at once");
    assert!(
        !expected(CUT, &[(7, 7, 8), (7, 13, 14)], 16)
            && !expected(CUT, &[(8, 8, 9), (7, 12, 13)], 16),
        "long ago, or somebody else"
    );
    assert!(!expected(STOPPED, &twice, 16), "it has its connection still");
    let mut others = excuses(true, 1, &[]).of_others();
    twice.iter().for_each(|(process, from, to)| suffer(&mut others, *process, &(CUT, *from, *to)));
    assert!(
        !others.expects_wait(13 * SECOND, 16 * SECOND),
        "one of others pauses as it likes, and answers for it"
    );
}

#[test]
fn a_crowd_that_left_delays_for_no_longer_than_a_lease() {
    let [.., crowd] = ANYWHERE;
    let excuses = excuses(true, 1, &[(crowd, 10, 12)]);
    let expected = |until| {
        let expected = excuses.expects_wait(11 * SECOND, until * SECOND);
        assert_ne!(
            excuses.judges_waits()(until * SECOND),
            expected,
            "what is excused is not judged"
        );
        expected
    };
    assert!(expected(12) && expected(13) && !expected(14));
}

#[test]
fn r11_who_died_in_line_is_passed_over_after_its_time_to_confirm_where_a_grant_is_to_be_confirmed()
{
    const KILLED: Fault = Fault { name: "kill-client", hits: Hits::Client, excuses: &[], what: "" };
    let with = |confirms, lease, deaths: &[u64]| {
        let mut excuses = excuses(true, lease, &[]).confirming(confirms);
        deaths.iter().for_each(|at| suffer(&mut excuses, *at, &(KILLED, *at, *at)));
        move |until| excuses.expects_wait(20 * SECOND, until * SECOND)
    };
    let two = with(true, 3, &[15, 20]);
    assert!(two(25) && !two(26), "three seconds, and one for each of both");
    let one = with(true, 3, &[13, 20]);
    assert!(one(24) && !one(25), "no turn of before lasts until then");
    let long = with(true, 30, &[20]);
    assert!(long(52) && !long(53), "two seconds at most");
    assert!(!with(true, 3, &[])(24) && !with(false, 3, &[15, 20])(24) && !with(true, 0, &[20])(22));
    let mut failed = excuses(true, 3, &[]).confirming(true);
    failed.begin(KILLED, 7, 20 * SECOND);
    failed.failed(KILLED, 7);
    assert!(!failed.expects_wait(20 * SECOND, 24 * SECOND), "nobody died");
}

#[test]
fn a_lock_that_nobody_gets_is_expected_while_a_clock_was_wrong_and_what_it_granted_lasts() {
    let of = |fault| {
        let excuses = excuses(true, 1, &[(fault, 10, 11)]);
        move |until| excuses.expects_wait(11 * SECOND, until * SECOND)
    };
    let stepped = of(CLOCK);
    assert!(
        stepped(14) && !stepped(15),
        "a lease, and the step by which one that was granted meanwhile is longer"
    );
    assert!(!of(FLUSH)(12));
    let late =
        Excuses { machine: Late::told_by(|_, _| SECOND), ..excuses(true, 1, &[(CLOCK, 10, 11)]) };
    assert!(
        late.expects_wait(11 * SECOND, 15 * SECOND) && !late.expects_wait(11 * SECOND, 16 * SECOND),
        "where the machine is late"
    );
    assert!(
        !late.judges_waits()(14 * SECOND) && late.judges_waits()(15 * SECOND),
        "the schedule was strong enough all the same"
    );
}

#[test]
fn who_is_kept_from_a_server_whose_clock_was_wrong_may_believe_in_that_until_it_is_back() {
    const HELD: Fault = Fault { name: "hold-replies", hits: Hits::Link, excuses: &[], what: "" };
    let expected = |faults: &[_], since, at| {
        excuses(true, 1, faults).expects_at(Class::Overlap, pair(since, at))
    };
    let [alone, away, later] = [
        &[(CLOCK, 10, 11)][..],
        &[(CLOCK, 10, 11), (HELD, 11, 13)],
        &[(CLOCK, 10, 11), (HELD, 13, 15)],
    ];
    assert!(expected(away, 13, 14) && !expected(away, 15, 15) && !expected(away, 13, 16));
    assert!(!expected(alone, 13, 14) && !expected(later, 13, 14));
    assert!(
        !expected(&[(FLUSH, 10, 11), (HELD, 11, 13)], 13, 14),
        "what was forgotten is no clock's doing"
    );
    let of = |pair| {
        let mut excuses = excuses(true, 1, &[(CLOCK, 10, 11)]);
        suffer(&mut excuses, 7, &(HELD, 11, 13));
        excuses.expects_at(Class::Overlap, Moment { pair: Some(pair), ..self::pair(13, 14) })
    };
    assert!(of([7, 8]) && of([8, 7]) && !of([8, 9]), "neither of these two was kept away");
}

#[test]
fn holds_are_outside_of_all_windows_once_no_lease_from_before_is_left() {
    let faults = [(FLUSH, 10, 11), (CLOCK, 12, 13), (KILLED, 20, 21), (FLUSH, 30, 31)];
    let seconds = |(from, to): (u64, u64)| (from / SECOND, to / SECOND);
    let windows: Vec<_> = excuses(true, 2, &faults).of_holds().into_iter().map(seconds).collect();
    assert_eq!(
        windows,
        [(10, 15), (30, 33)],
        "a server that was away and forgot nothing excuses nothing of theirs"
    );
}

#[test]
fn who_forgets_and_whose_clock_is_wrong_is_told_by_what_it_leads_to() {
    let of = |excuses| Fault { name: "", hits: Hits::Server, excuses, what: "" };
    let told = [FORGOTTEN, AWAY_AND_FORGOTTEN, SET_BACK, AWAY, &[]]
        .map(|excuses| (of(excuses).forgets(), of(excuses).sets_back()));
    assert_eq!(told, [(true, false), (true, false), (false, true), (false, false), (false, false)]);
    for excuses in [AWAY_AND_FORGOTTEN, SET_BACK] {
        assert!(FORGOTTEN.iter().all(|class| excuses.contains(class)));
    }
}

#[test]
fn without_faults_order_and_time_are_kept_but_by_those_whom_the_machine_kept_from_running() {
    let second = SECOND;
    // Half a second of processors, three times what threads were late, is missing between 10 s and
    // 11 s.
    let short = move |from: u64, to: u64| {
        if from < 11 * second && to > 10 * second { second / 2 } else { 0 }
    };
    let of = |fair, recovery| {
        Excuses::new(false, recovery, Late::told_by(short)).in_order(fair).undisturbed()
    };
    let leases = of(true, Duration::from_secs(1));
    let late = |at| Moment { late: true, ..pair(at, at) };
    let expected = |class, at| leases.expects_at(class, late(at));
    for class in [Class::FifoInversion, Class::LateEffect, Class::LostUpdate] {
        assert!(
            !expected(class, 9)
                && expected(class, 11)
                && expected(class, 14)
                && !expected(class, 16),
            "{class:?}"
        );
    }
    assert!(!expected(Class::Overlap, 11) && !expected(Class::TokenOrder, 11));
    // A commit of half a second keeps a grant from its waiter, and writes from nobody.
    let commits = Excuses::new(false, Duration::from_secs(1), Late::never())
        .in_order(true)
        .undisturbed()
        .committed_in(Late::told_by(short));
    let order = |at| commits.expects_at(Class::FifoInversion, late(at));
    assert!(!order(9) && order(11) && order(14) && !order(16));
    let shorter = Excuses::new(false, Duration::from_secs(3), Late::never())
        .in_order(true)
        .committed_in(Late::told_by(short));
    assert!(!shorter.expects_at(Class::FifoInversion, late(11)), "less than a third of its lease");
    assert!(!commits.expects_at(Class::LateEffect, late(11)));
    assert!(!commits.expects_at(Class::LateLoss, late(11)));
    assert!(!leases.expects_at(Class::LostUpdate, pair(11, 11)), "both held it");
    assert!(
        !of(true, Duration::from_secs(3)).expects_at(Class::FifoInversion, pair(11, 11)),
        "less than a third of its lease"
    );
    assert!(
        !of(false, Duration::ZERO).expects_at(Class::LateEffect, pair(11, 11)),
        "there are no leases that could end"
    );
    assert!(
        of(false, Duration::from_secs(1)).expects_at(Class::FifoInversion, pair(9, 9)),
        "nobody promised an order"
    );
    assert!(
        excuses(false, 1, &[]).expects_at(Class::FifoInversion, pair(9, 9)),
        "there are faults"
    );
}

#[test]
fn a_fault_that_did_not_happen_excuses_nothing_and_a_missing_record_everything_after_it() {
    let mut excuses = excuses(false, 0, &[]);
    excuses.begin(FLUSH, 0, 10);
    excuses.failed(FLUSH, 0);
    assert!(!excuses.expects(&violation(Class::Overlap, 11)));
    excuses.blind_from(20);
    assert!(
        !excuses.expects(&violation(Class::Overlap, 19))
            && excuses.expects(&violation(Class::Overlap, 20))
    );
}

#[test]
fn an_efficiency_engine_has_to_show_of_each_kind_of_fault_what_it_was_said_to_do() {
    let seen = |found: &[(Class, u64)]| {
        let mut all = BTreeMap::<Class, Vec<Moment>>::new();
        found.iter().for_each(|(class, at)| all.entry(*class).or_default().push(pair(at - 1, *at)));
        all
    };
    let not_shown = |excuses: &Excuses, found: &[(Class, u64)]| {
        excuses.not_shown(Promise::Efficiency, &seen(found))
    };
    assert_eq!(not_shown(&excuses(true, 1, &[]), &[]), None, "nothing was done to it");
    let times = |fault, from: u64, times: u64| {
        (0..times).map(move |n| (fault, from + 10 * n, from + 10 * n + 1)).collect::<Vec<_>>()
    };
    let flushed = excuses(true, 1, &times(FLUSH, 10, 4));
    assert!(
        not_shown(&flushed, &[])
            .is_some_and(|why| why.starts_with("flush happened 4 × and no second holder was seen"))
    );
    for (class, at) in [(Class::LateEffect, 11), (Class::HoldVanished, 11), (Class::Overlap, 16)] {
        assert!(
            not_shown(&flushed, &[(class, at)]).is_some(),
            "{class} at {at} is no second holder of these faults'"
        );
    }
    assert_eq!(not_shown(&flushed, &[(Class::PermitsExceeded, 21)]), None);
    assert_eq!(flushed.not_shown(Promise::Timed, &seen(&[])), None);
    assert_eq!(
        not_shown(&excuses(true, 1, &times(FLUSH, 10, 3)), &[]),
        None,
        "too rarely to expect it"
    );
    // Another kind, with and without having shown it.
    let both =
        |kills| excuses(true, 1, &[times(FLUSH, 10, 1), times(FORGETS, 100, kills)].concat());
    assert!(
        not_shown(&both(90), &[(Class::Overlap, 11)])
            .is_some_and(|why| why.contains("kill-server happened 90 ×"))
    );
    assert_eq!(not_shown(&both(90), &[(Class::Overlap, 11), (Class::Overlap, 101)]), None);
    assert_eq!(not_shown(&both(89), &[(Class::Overlap, 11)]), None);
    assert!(
        not_shown(&both(68), &[]).is_some() && not_shown(&both(67), &[]).is_none(),
        "together they had to show something"
    );
}
