//! A claim of the layout plain beside a stranger, step by step: what comes in between changes
//! nothing of what is owed.

use super::super::*;
use crate::engine::zookeeper::layout::Layout;

const OURS: &str = "0000000007";
const STRANGER: &str = "Lock0000000006";

/// A claim, and what it wants done.
struct Claim(Contender);

impl Claim {
    fn new(only_try: bool) -> Self {
        Self(Contender::new(Want::Exclusive, only_try).of_one_prefix(true))
    }

    fn step(&mut self, input: Input) -> Vec<Action> {
        let mut out = Vec::new();
        self.0.step(input, &mut out);
        out
    }

    /// Its node stands, and a list shows the stranger.
    fn suspecting() -> Self {
        let mut claim = Self::new(false);
        assert_eq!(claim.step(Input::LinkUp), [Action::List]);
        assert_eq!(claim.step(listed(&[])), [Action::Create, Action::List]);
        assert_eq!(claim.step(created()), [Action::WatchOwn(OURS.to_owned())]);
        assert_eq!(claim.step(listed(&[OURS, STRANGER])), [peek()]);
        claim
    }
}

fn listed(names: &[&str]) -> Input {
    let layout = Layout::Plain { prefix: String::new() };
    let children = names.iter().filter_map(|name| layout.child(name)).collect();
    Input::Listed(Ok(Listing { children, mzxid: 1, limit: None }))
}

fn created() -> Input {
    Input::Created(Ok(Node::new(OURS.to_owned(), 7, Some(9))))
}

fn peek() -> Action {
    Action::Peek(STRANGER.to_owned())
}

fn peeked(seen: Seen) -> Input {
    Input::Peeked(STRANGER.to_owned(), seen)
}

fn delete() -> Action {
    Action::Delete(OURS.to_owned())
}

fn deleted() -> Input {
    Input::Deleted(OURS.to_owned(), Ok(()))
}

fn refused() -> Action {
    Action::Say(Say::OtherPrefix(STRANGER.to_owned()))
}

#[test]
fn a_stranger_that_stands_there_is_told_before_a_node_is_made() {
    for only_try in [false, true] {
        let mut claim = Claim::new(only_try);
        assert_eq!(claim.step(Input::LinkUp), [Action::List]);
        assert_eq!(claim.step(listed(&[STRANGER])), [peek()]);
        assert_eq!(claim.step(peeked(Seen::Here(1))), [refused()]);
        assert!(claim.0.is_over());
    }
}

#[test]
fn a_node_beside_a_stranger_is_gone_before_that_is_told() {
    let mut claim = Claim::suspecting();
    assert_eq!(claim.step(peeked(Seen::Here(1))), [delete()]);
    assert_eq!(claim.step(Input::LinkDown), []);
    assert_eq!(claim.step(Input::LinkUp), [delete()]);
    assert_eq!(claim.step(deleted()), [refused()]);
    assert!(claim.0.is_over());
}

#[test]
fn a_stranger_that_went_or_is_a_directory_is_looked_past() {
    for seen in [Seen::Gone, Seen::NoContender] {
        let mut claim = Claim::suspecting();
        assert_eq!(claim.step(peeked(seen)), [Action::List]);
        let names: &[&str] = if seen == Seen::Gone { &[OURS] } else { &[OURS, STRANGER] };
        assert_eq!(claim.step(listed(names)), [Action::Prove]);
        let mut claim = Claim::new(false);
        claim.step(Input::LinkUp);
        claim.step(listed(&[STRANGER]));
        assert_eq!(claim.step(peeked(seen)), [Action::List]);
        assert_eq!(claim.step(listed(&names[1..])), [Action::Create, Action::List]);
    }
}

#[test]
fn a_link_that_is_lost_while_a_stranger_is_looked_at_makes_it_look_again() {
    let mut claim = Claim::suspecting();
    assert_eq!(claim.step(Input::LinkDown), []);
    assert_eq!(claim.step(Input::LinkUp), [Action::WatchOwn(OURS.to_owned()), Action::List]);
    assert_eq!(claim.step(listed(&[OURS, STRANGER])), [peek()]);
    assert_eq!(claim.step(Input::SessionEnded), []);
    assert_eq!(
        claim.step(Input::LinkUp),
        [Action::List],
        "in a new session it looks before it makes a node"
    );
}

#[test]
fn r5_a_claim_that_leaves_while_a_stranger_is_looked_at_leaves_nothing() {
    let mut claim = Claim::suspecting();
    assert_eq!(claim.step(Input::Leave), [delete()]);
    assert_eq!(claim.step(peeked(Seen::Here(1))), []);
    assert_eq!(claim.step(deleted()), [Action::Say(Say::Left { ours: true })]);
    // On its way out already.
    let mut claim = Claim::suspecting();
    assert_eq!(claim.step(peeked(Seen::Here(1))), [delete()]);
    assert_eq!(claim.step(Input::Leave), []);
    assert_eq!(claim.step(deleted()), [Action::Say(Say::Left { ours: true })]);
    // Nothing of it was ever there.
    let mut claim = Claim::new(false);
    claim.step(Input::LinkUp);
    claim.step(listed(&[STRANGER]));
    assert_eq!(claim.step(Input::Leave), [Action::Say(Say::Left { ours: true })]);
    assert_eq!(claim.step(peeked(Seen::Here(1))), []);
}

#[test]
fn a_node_that_is_taken_away_while_a_stranger_is_looked_at_stands_again_and_looks_again() {
    let mut claim = Claim::suspecting();
    let gone = Input::Happened { name: OURS.to_owned(), deleted: true };
    assert_eq!(claim.step(gone), [Action::Create, Action::List]);
    assert_eq!(claim.step(peeked(Seen::Here(1))), [], "what was asked for the old node");
    claim.step(created());
    assert_eq!(claim.step(listed(&[OURS, STRANGER])), [peek()]);
}

#[test]
fn whoever_holds_keeps_it_when_a_stranger_comes() {
    let mut claim = Claim::suspecting();
    claim.step(peeked(Seen::Gone));
    claim.step(listed(&[OURS]));
    assert_eq!(claim.step(Input::Proven), [Action::Say(Say::Granted { number: 9 })]);
    assert_eq!(claim.step(Input::Strangers), []);
    assert_eq!(claim.0.held(), Some(9));
}
