//! Tokens: how they rise from hold to hold, and which may be the same.

use lockkeeper_lab::check::Class;
use lockkeeper_lab::history::{Flags, HoldMode, Record, What};

use super::story::{Hold, event, hold, story};

#[test]
fn tokens_rise_from_hold_to_hold() {
    let (a, b) = (hold(1, [1, 2_000, 3_000, 4_000]).token(100), hold(2, [1, 5_000, 6_000, 7_000]));
    story(&[a, b.token(101)]).is_clean();
    story(&[a, b]).is_clean();
    let (sentence, records) = story(&[a, b.token(99)]).convicts(Class::TokenOrder);
    assert_eq!(
        sentence,
        "client 2 got stock/1 with token 99 at +0.000004 s, after client 1 had had the greater \
         token 100 until +0.000002 s"
    );
    assert_eq!(records, [(2, 1), (1, 1)]);
    let (sentence, _) = story(&[a, b.token(100)]).convicts(Class::TokenRepeated);
    assert_eq!(
        sentence,
        "client 2 got stock/1 with token 100 at +0.000004 s, the same that client 1 had in a hold \
         that ended at +0.000002 s"
    );
    // Also long after, and past holds without one.
    story(&[
        a,
        b.token(150),
        hold(3, [1, 8_000, 9_000, 9_001]),
        hold(4, [1, 9_100, 9_200, 9_300]).token(120),
    ])
    .convicts(Class::TokenOrder);
    // Ends and begins in one tick.
    story(&[a, hold(2, [1, 3_000, 6_000, 7_000]).token(99)]).convicts(Class::TokenOrder);
}

#[test]
fn where_every_hold_has_a_token_one_without_is_convicted_once() {
    let judged = |fenced, holds: &[Hold]| story(holds).options(|o| o.fenced = fenced);
    let none = hold(1, [1, 2_000, 3_000, 4_000]);
    let (sentence, records) = judged(true, &[none, hold(2, [1, 5_000, 6_000, 7_000]).token(5)])
        .convicts(Class::TokenMissing);
    assert_eq!(sentence, "client 1 got stock/1 exclusive at +0.000001 s without a fencing token");
    assert_eq!(records, [(1, 1)]);
    judged(false, &[none]).is_clean();
    for without in [
        none.shared(),
        none.upgradable(),
        none.deadline(9_000),
        none.flag(Flags::HANDED),
        hold(1, [1, 5, 5, 6]),
    ] {
        judged(true, &[without]).convicts(Class::TokenMissing);
        judged(true, &[without.token(5)]).is_clean();
    }
    judged(true, &[none.permits(1, 3)]).is_clean();
    // A hold that is entered again has its token, and so has each of its modes.
    let inner = Hold { client: 1, times: [2_100, 2_200, 2_300, 2_400], ..hold(5, [0; 4]).owner(7) };
    judged(true, &[none.owner(7).token(5), inner]).convicts(Class::TokenMissing);
    let to = |what, time, token| {
        event(time, 1, what).with(|r| Record { mode: HoldMode::Shared, ..r.token(token) })
    };
    let converted = |token| {
        judged(true, &[none.token(5)])
            .and(&[to(What::ConvertCalled, 2_200, 0), to(What::Converted, 2_300, token)])
    };
    converted(6).is_clean();
    converted(0).convicts(Class::TokenMissing);
    // Who holds again after its deadline got nothing new.
    let renewed = [
        event(2_300, 1, What::RenewCalled),
        event(2_600, 1, What::Renewed).with(|r| r.deadline(9_000)),
    ];
    judged(true, &[none.deadline(2_500)]).and(&renewed).convicts(Class::TokenMissing);
}

#[test]
fn holds_at_once_have_no_order_of_tokens() {
    story(&[hold(1, [1, 2, 9, 10]).shared().token(100), hold(2, [1, 3, 8, 10]).shared().token(90)])
        .is_clean();
    story(&[hold(1, [1, 2, 9, 10]).token(100), hold(2, [1, 3, 8, 10]).token(90)])
        .convicts(Class::Overlap);
}

#[test]
fn shared_tokens_lie_between_the_exclusive_ones() {
    let writer = hold(1, [1, 2, 3, 4]).token(100);
    let reader = |token| hold(2, [5, 6, 7, 8]).shared().token(token);
    let last = |token| hold(3, [9, 10, 11, 12]).token(token);
    story(&[writer, reader(101), last(102)]).is_clean();
    story(&[writer, reader(99)]).convicts(Class::TokenOrder);
    story(&[writer, reader(100)]).convicts(Class::TokenRepeated);
    story(&[writer, reader(105), last(104)]).convicts(Class::TokenOrder);
    story(&[writer, reader(105), last(105)]).convicts(Class::TokenRepeated);
    // Among readers nothing is promised, before or after.
    story(&[writer, reader(105), hold(3, [9, 10, 11, 12]).shared().token(102)]).is_clean();
    story(&[writer, reader(105), hold(3, [9, 10, 11, 12]).upgradable().token(102)]).is_clean();
    story(&[
        writer,
        reader(105),
        hold(3, [9, 10, 11, 12]).shared().token(102),
        hold(4, [13, 14, 15, 16]).token(104),
    ])
    .convicts(Class::TokenOrder);
}

#[test]
fn permits_have_no_order() {
    story(&[
        hold(1, [1, 2, 3, 4]).permits(1, 1).token(100),
        hold(2, [5, 6, 7, 8]).permits(1, 1).token(50),
    ])
    .is_clean();
    story(&[hold(1, [1, 2, 3, 4]).permits(1, 1).token(100), hold(2, [5, 6, 7, 8]).token(50)])
        .is_clean();
}

#[test]
fn a_hold_of_no_length_settles_no_order() {
    story(&[hold(1, [1, 6, 6, 7]).token(100), hold(2, [2, 6, 8, 9]).token(99)]).is_clean();
    story(&[hold(1, [1, 5, 6, 7]).token(100), hold(2, [2, 6, 8, 9]).token(99)])
        .convicts(Class::TokenOrder);
}

#[test]
fn r2_a_lost_hold_is_not_entered_again() {
    let outer = hold(1, [1, 2, 30, 31]).owner(7).token(64);
    let lost = event(10_000, 1, What::Lost);
    let outer = Hold { times: [1, 2, 30_000, 31_000], ..outer };
    let inner = |asked| hold(2, [asked, 20_000, 21_000, 22_000]).owner(7).token(64);
    let (sentence, _) =
        story(&[outer, inner(15_000)]).and(&[lost]).convicts(Class::ReentryAfterLoss);
    assert!(
        sentence.contains("client 2 entered stock/1 again")
            && sentence.contains("token 64, was lost at +0.000009 s"),
        "{sentence}"
    );
    story(&[outer, inner(9_000)]).and(&[lost]).is_clean();
    story(&[outer, inner(10_000)]).and(&[lost]).is_clean();
    story(&[outer, Hold { owner: 8, ..inner(9_000) }]).and(&[lost]).convicts(Class::TokenRepeated);
    story(&[outer, Hold { owner: 8, ..inner(15_000) }]).and(&[lost]).convicts(Class::TokenRepeated);
    story(&[outer, Hold { token: 65, ..inner(15_000) }]).and(&[lost]).is_clean();
    // At its deadline it was over already, and the news made it lost.
    story(&[outer.deadline(8_000), inner(15_000)]).and(&[lost]).convicts(Class::ReentryAfterLoss);
    // Released is not lost.
    story(&[Hold { times: [1, 2, 3, 4], ..outer }, inner(15_000)]).convicts(Class::TokenRepeated);
}

#[test]
fn two_that_hold_at_one_moment_have_different_tokens() {
    let (a, b) = (hold(1, [1, 10, 40, 41]).token(100), hold(2, [1, 20, 30, 31]));
    assert_eq!(story(&[a, b.token(101)]).found(), [(Class::Overlap, 1)]);
    let both = story(&[a, b.token(100)]);
    assert_eq!(both.found(), [(Class::Overlap, 1), (Class::TokenRepeated, 1)]);
    let report = both.judge();
    let twin = report
        .violations
        .iter()
        .find(|v| v.class == Class::TokenRepeated)
        .map(|v| v.sentence.as_str());
    let sentence = "client 2 got stock/1 with token 100 at +0.000000 s, the same that another has \
                    while client 1 held it exclusive since +0.000000 s";
    assert_eq!(twin, Some(sentence));
    // A third, and a reader beside a writer.
    let (c, reader) = (hold(3, [1, 22, 28, 29]).token(100), b.shared().token(100));
    assert_eq!(
        story(&[a, b.token(101), c]).found(),
        [(Class::Overlap, 2), (Class::TokenRepeated, 1)]
    );
    assert_eq!(
        story(&[a, reader]).found(),
        [(Class::ReadersWithWriter, 1), (Class::TokenRepeated, 1)]
    );
    // Readers share one, and so do the turns of an owner; none is no token.
    story(&[a.shared(), reader]).is_clean();
    story(&[a.owner(5), b.owner(5).token(100)]).is_clean();
    assert_eq!(story(&[a.token(0), b.token(0)]).found(), [(Class::Overlap, 1)]);
}
