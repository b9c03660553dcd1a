//! The local line's rules, one a test.

use std::time::Duration;

use super::*;
use crate::engine::Number;
use crate::words::claim::{Mode, Through};
use crate::words::token::Token;

mod ask_at;
mod conversions;
mod place;
mod tries;

const MS: u64 = 1_000_000;

struct Bench {
    line: Line,
    now: u64,
    /// Whether the leases are fresh enough for holds to pass.
    fresh: bool,
}

impl Bench {
    fn new() -> Self {
        Self { line: Line::new(Rules::default(), true), now: 1_000 * MS, fresh: true }
    }

    fn step(&mut self, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        self.line.step(Ticks(self.now), event, &mut out);
        let mut next = 0;
        while let Some(action) = out.get(next) {
            next += 1;
            if let Action::Parked { seq, .. } = *action {
                self.line.step(
                    Ticks(self.now),
                    Event::TurnOver { seq, fresh: self.fresh },
                    &mut out,
                );
            }
        }
        out
    }

    fn ask(&mut self, mode: Mode, change: impl FnOnce(&mut Ask)) -> (u64, Vec<Action>) {
        let seq = self.line.draw_seq();
        let shape = Shape {
            mode,
            ttl: Duration::from_secs(30),
            renew: true,
            margin: None,
            lock_delay: Duration::ZERO,
            own_value: false,
            through: Through::Mutex,
        };
        let mut ask = Ask {
            seq,
            id: ClaimId(u128::from(seq)),
            shape,
            try_only: false,
            sent_elsewhere: false,
            give_up: None,
            patient: false,
        };
        change(&mut ask);
        let out = self.step(Event::Ask(ask));
        (seq, out)
    }

    fn lock(&mut self) -> (u64, Vec<Action>) {
        self.ask(Mode::Exclusive, |_| ())
    }

    fn granted(&mut self, seq: u64, number: u64) -> Vec<Action> {
        self.step(Event::Answered {
            claim: ClaimId(u128::from(seq)),
            answer: Answered::Granted(Number::Ours(number)),
        })
    }

    fn in_line(&mut self, seq: u64) -> Vec<Action> {
        self.step(Event::Answered {
            claim: ClaimId(u128::from(seq)),
            answer: Answered::InLine { ask_at: None },
        })
    }

    fn over(&mut self, seq: u64) -> Vec<Action> {
        self.step(Event::TurnOver { seq, fresh: true })
    }

    /// A hold whose turn `seq` was taken.
    fn held(&mut self, mode: Mode) -> u64 {
        let (seq, _) = self.ask(mode, |_| ());
        self.granted(seq, 10 * seq);
        self.step(Event::Take(seq));
        seq
    }
}

fn offer(seq: u64, hold: u64, token: Option<Token>) -> Action {
    Action::Offer { seq, hold: ClaimId(u128::from(hold)), token }
}

fn release(hold: u64) -> Action {
    Action::Release { hold: ClaimId(u128::from(hold)), again: None, over: false }
}

/// Of what nobody here has any more.
fn release_over(hold: u64) -> Action {
    Action::Release { hold: ClaimId(u128::from(hold)), again: None, over: true }
}

fn attempts(out: &[Action]) -> Vec<u64> {
    out.iter()
        .filter_map(|a| if let Action::Attempt(ask) = a { Some(ask.seq) } else { None })
        .collect()
}

#[test]
fn an_uncontended_claim_asks_once_and_needs_no_timer_once_it_is_taken() {
    let mut b = Bench::new();
    let (one, out) = b.lock();
    assert_eq!(attempts(&out), [one]);
    assert_eq!(b.granted(one, 7), [offer(one, one, Token::of(7, 0))]);
    assert!(b.line.next_timer().is_some(), "an offer waits for a second");
    b.step(Event::Take(one));
    assert_eq!(b.line.next_timer(), None);
    assert_eq!(b.over(one), [release(one)]);
    assert!(b.line.is_idle());
}

#[test]
fn r9_the_process_has_one_place_and_the_hold_passes_without_the_engine() {
    let mut b = Bench::new();
    let one = b.held(Mode::Exclusive);
    let (two, out) = b.lock();
    let (three, more) = b.lock();
    assert!(attempts(&out).is_empty() && attempts(&more).is_empty());
    assert_eq!(b.over(one), [offer(two, one, Token::of(10, 1))]);
    assert_eq!(b.over(two), [offer(three, one, Token::of(10, 2))]);
    assert_eq!(b.over(three), [release(one)]);
}

#[test]
fn r9_at_fifty_milliseconds_the_process_releases_and_stands_again_in_one_message() {
    let mut b = Bench::new();
    let one = b.held(Mode::Exclusive);
    let (two, _) = b.lock();
    b.now += 50 * MS;
    let out = b.over(one);
    assert!(
        matches!(&out[..], [Action::Release { again: Some(ask), .. }] if ask.seq == two),
        "{out:?}"
    );
    assert_eq!(b.granted(two, 99), [offer(two, two, Token::of(99, 0))]);
}

#[test]
fn r9_a_hold_has_sixty_four_turns() {
    let mut b = Bench::new();
    let one = b.held(Mode::Exclusive);
    let mut last = one;
    let mut tokens = vec![Token::of(10, 0)];
    for turn in 1..64 {
        let (next, _) = b.lock();
        assert_eq!(b.over(last), [offer(next, one, Token::of(10, turn))]);
        b.step(Event::Take(next));
        tokens.push(Token::of(10, turn));
        last = next;
    }
    assert!(tokens.windows(2).all(|w| w[0] < w[1]));
    b.lock();
    assert!(matches!(b.over(last)[..], [Action::Release { again: Some(_), .. }]));
}

#[test]
fn r9_only_the_same_mode_ttl_and_renewal_pass_and_fixed_leases_permits_and_raw_tokens_never() {
    let changes: [fn(&mut Ask); 4] = [
        |a| a.shape.ttl = Duration::from_secs(5),
        |a| a.shape.renew = false,
        |a| a.shape.margin = Some(Duration::from_secs(9)),
        |a| a.shape.lock_delay = Duration::from_secs(1),
    ];
    for change in changes {
        let mut b = Bench::new();
        let one = b.held(Mode::Exclusive);
        b.ask(Mode::Exclusive, change);
        assert!(matches!(b.over(one)[..], [Action::Release { .. }]));
    }
    let mut b = Bench::new();
    let (one, _) = b.lock();
    b.step(Event::Answered {
        claim: ClaimId(u128::from(one)),
        answer: Answered::Granted(Number::Raw(5)),
    });
    b.lock();
    assert!(matches!(b.over(one)[..], [Action::Release { .. }]));
}

#[test]
fn r9_a_hold_of_which_something_was_given_out_does_not_pass() {
    for (given_out, passes) in [(2, true), (1, false)] {
        let mut b = Bench::new();
        let one = b.held(Mode::Exclusive);
        b.lock();
        b.step(Event::GivenOut { hold: ClaimId(given_out) });
        let over = b.over(one);
        assert_eq!(matches!(over[..], [Action::Offer { .. }]), passes, "{over:?}");
        assert_eq!(matches!(over[..], [Action::Release { .. }]), !passes, "{over:?}");
    }
}

#[test]
fn r9_a_hold_whose_renewal_is_in_doubt_does_not_pass() {
    let mut b = Bench::new();
    let one = b.held(Mode::Exclusive);
    b.lock();
    assert!(matches!(
        b.step(Event::TurnOver { seq: one, fresh: false })[..],
        [Action::Release { .. }]
    ));
}

#[test]
fn r5_an_offer_that_is_dropped_goes_to_the_next_or_back() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let (two, _) = b.lock();
    b.granted(one, 3);
    b.now += 500 * MS;
    assert_eq!(
        b.step(Event::Cancel { seq: one, fresh: true }),
        [offer(two, one, Token::of(3, 1))],
        "no bound of time before anybody has used it"
    );
    assert_eq!(b.step(Event::Cancel { seq: two, fresh: true }), [release(one)]);
    assert!(b.line.is_idle());
}

#[test]
fn r5_an_offer_that_nobody_polls_moves_on_after_a_second() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let (two, _) = b.lock();
    b.granted(one, 3);
    b.now += 999 * MS;
    assert_eq!(b.step(Event::Timer), []);
    b.now += MS;
    assert_eq!(
        b.step(Event::Timer),
        [
            Action::Parked { seq: one, hold: ClaimId(u128::from(one)) },
            offer(two, one, Token::of(3, 1))
        ]
    );
}

#[test]
fn r9_an_offer_of_a_doubtful_lease_goes_back_and_not_on() {
    for lapses in [true, false] {
        let mut b = Bench::new();
        b.fresh = false;
        let (one, _) = b.lock();
        let (two, _) = b.lock();
        b.granted(one, 3);
        b.now += 1_000 * MS;
        let out = if lapses {
            b.step(Event::Timer)
        } else {
            b.step(Event::Cancel { seq: one, fresh: false })
        };
        assert!(
            matches!(out.last(), Some(Action::Release { again: Some(ask), .. }) if ask.seq == two),
            "{out:?}"
        );
    }
}

#[test]
fn r2_a_loss_that_overtakes_its_grant_is_not_swallowed() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let (two, _) = b.lock();
    let hold = ClaimId(u128::from(one));
    assert_eq!(b.step(Event::Ended { hold, why: Lost::TakenAway, ours: false }), []);
    let out = b.granted(one, 3);
    assert!(
        out.contains(&Action::Lost { seq: one, why: Lost::TakenAway })
            && out.contains(&release_over(one)),
        "{out:?}"
    );
    assert_eq!(attempts(&out), [two], "the next claim is asked for anew");
    assert_eq!(b.granted(two, 4), [offer(two, two, Token::of(4, 0))]);
}

#[test]
fn r2_what_is_asked_again_after_a_loss_can_be_granted() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let claim = ClaimId(u128::from(one));
    b.in_line(one);
    b.step(Event::Ended { hold: claim, why: Lost::TakenAway, ours: false });
    assert_eq!(attempts(&b.step(Event::Wake { claim })), [one]);
    assert_eq!(b.granted(one, 4), [offer(one, one, Token::of(4, 0))]);
}

#[test]
fn readers_join_a_shared_hold_until_a_writer_waits() {
    let mut b = Bench::new();
    let one = b.held(Mode::Shared);
    let (two, out) = b.ask(Mode::Shared, |_| ());
    assert_eq!(out, [offer(two, one, Token::of(10, 0))]);
    let (writer, out) = b.lock();
    assert_eq!(out, []);
    let (late, out) = b.ask(Mode::Shared, |_| ());
    assert_eq!(out, [], "first come, first served");
    b.over(one);
    let out = b.over(two);
    assert!(
        matches!(&out[..], [Action::Release { again: Some(ask), .. }] if ask.seq == writer),
        "{out:?}"
    );
    b.granted(writer, 30);
    b.step(Event::Take(writer));
    let out = b.over(writer);
    assert!(
        matches!(&out[..], [Action::Release { again: Some(ask), .. }] if ask.seq == late),
        "{out:?}"
    );
}

#[test]
fn r2_a_lost_hold_is_lost_for_every_turn_and_released_when_the_loss_was_ours() {
    let mut b = Bench::new();
    let one = b.held(Mode::Shared);
    let (two, _) = b.ask(Mode::Shared, |_| ());
    let id = ClaimId(u128::from(one));
    let out = b.step(Event::Ended { hold: id, why: Lost::Expired, ours: true });
    assert_eq!(
        out,
        [
            Action::Lost { seq: one, why: Lost::Expired },
            Action::Lost { seq: two, why: Lost::Expired },
            release_over(one)
        ]
    );
    assert_eq!(b.over(one), [], "a lost hold is never released twice");
    assert_eq!(b.step(Event::Ended { hold: id, why: Lost::TakenAway, ours: false }), []);
}

#[test]
fn r8_who_waits_five_seconds_for_a_guard_of_this_process_is_named() {
    let mut b = Bench::new();
    b.held(Mode::Exclusive);
    let (two, _) = b.lock();
    b.now += 5_000 * MS;
    assert_eq!(b.step(Event::Timer), [Action::Warn { seq: two }]);
}

#[test]
fn r6_closing_refuses_who_waits_and_takes_every_hold() {
    let mut b = Bench::new();
    let one = b.held(Mode::Exclusive);
    let (two, _) = b.lock();
    let out = b.step(Event::Close);
    assert!(out.contains(&Action::Refuse { seq: two, why: Refusal::Closed }));
    assert!(
        out.contains(&Action::Lost { seq: one, why: Lost::Closed }) && out.contains(&release(one))
    );
    let (three, out) = b.lock();
    assert_eq!(out, [Action::Refuse { seq: three, why: Refusal::Closed }]);
}

/// Random walks: whatever happens in whatever order, turns of one name never exclude each other,
/// tokens only rise, and once everybody has left, nothing is left.
#[test]
fn whatever_happens_nothing_overlaps_and_nothing_is_left() {
    for seed in 0..2_000u64 {
        walk(seed);
    }
}

fn walk(seed: u64) {
    let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut draw = |n: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    let mut b = Bench::new();
    let mut number = 1;
    let mut last_token = None;
    // What the engine would know: who stands, who holds.
    let mut standing: Vec<(ClaimId, Mode)> = Vec::new();
    let mut engine_holds: Vec<(ClaimId, Mode)> = Vec::new();
    let mut turns: Vec<(u64, ClaimId)> = Vec::new();
    let mut waiting: Vec<u64> = Vec::new();
    for round in 0..60 {
        let end = round >= 45;
        b.now += draw(40) * MS;
        let mut todo = match draw(6) {
            0 | 1 if !end => {
                let mode = if draw(2) == 0 { Mode::Exclusive } else { Mode::Shared };
                let (seq, out) = b.ask(mode, |_| ());
                waiting.push(seq);
                out
            }
            2 if !waiting.is_empty() => {
                let seq = waiting.swap_remove(draw(waiting.len() as u64) as usize);
                turns.retain(|(s, _)| *s != seq);
                b.step(Event::Cancel { seq, fresh: true })
            }
            3 | 4 if !turns.is_empty() => {
                let (seq, _) = turns.swap_remove(draw(turns.len() as u64) as usize);
                waiting.retain(|w| *w != seq);
                b.over(seq)
            }
            _ => {
                let free = standing
                    .first()
                    .filter(|(_, mode)| engine_holds.iter().all(|(_, m)| m.shares_with(*mode)))
                    .copied();
                match free {
                    Some((id, mode)) => {
                        standing.remove(0);
                        engine_holds.push((id, mode));
                        number += 1;
                        b.step(Event::Answered {
                            claim: id,
                            answer: Answered::Granted(Number::Ours(number)),
                        })
                    }
                    None => b.step(Event::Timer),
                }
            }
        };
        while let Some(action) = (!todo.is_empty()).then(|| todo.remove(0)) {
            match action {
                Action::Attempt(ask) => standing.push((ask.id, ask.shape.mode)),
                Action::Release { hold, again, .. } => {
                    let before = engine_holds.len();
                    engine_holds.retain(|(id, _)| *id != hold);
                    assert_eq!(engine_holds.len() + 1, before, "seed {seed}: released once");
                    standing.extend(again.map(|ask| (ask.id, ask.shape.mode)));
                }
                Action::Withdraw(id) => {
                    standing.retain(|(s, _)| *s != id);
                    engine_holds.retain(|(h, _)| *h != id);
                    todo.extend(b.step(Event::Withdrawn { claim: id, known: true }));
                }
                Action::Offer { seq, hold, token } => {
                    let mode = engine_holds
                        .iter()
                        .find(|(id, _)| *id == hold)
                        .expect("a hold of the engine's")
                        .1;
                    let others = turns.iter().filter(|(_, h)| *h != hold).count();
                    assert!(
                        mode == Mode::Shared || (others == 0 && turns.is_empty()),
                        "seed {seed}: BROKEN LOCK: two holders: {turns:?}"
                    );
                    if mode == Mode::Exclusive {
                        assert!(token > last_token, "seed {seed}: BROKEN LOCK: a token went back");
                        last_token = token;
                    }
                    turns.push((seq, hold));
                }
                Action::Parked { seq, .. } => {
                    turns.retain(|(s, _)| *s != seq);
                    waiting.retain(|w| *w != seq);
                }
                Action::Warn { .. } => {}
                other => panic!("seed {seed}: {other:?}"),
            }
        }
        assert!(standing.len() <= 1, "seed {seed}: one place a process");
    }
    for seq in std::mem::take(&mut waiting)
        .into_iter()
        .chain(turns.iter().map(|(s, _)| *s).collect::<Vec<_>>())
    {
        let mut todo = b.step(Event::Cancel { seq, fresh: true });
        while let Some(action) = (!todo.is_empty()).then(|| todo.remove(0)) {
            match action {
                Action::Withdraw(id) => {
                    todo.extend(b.step(Event::Withdrawn { claim: id, known: true }))
                }
                Action::Attempt(ask) | Action::Release { again: Some(ask), .. } => {
                    todo.extend(b.step(Event::Answered {
                        claim: ask.id,
                        answer: Answered::InLine { ask_at: None },
                    }));
                }
                _ => {}
            }
        }
    }
    assert!(b.line.is_idle(), "seed {seed}: {:?}", b.line);
}
