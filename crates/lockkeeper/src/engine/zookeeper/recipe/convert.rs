//! Becoming the writer: its node beside our reader's, and nobody who reads beside us.

use std::collections::BTreeSet;

use super::held::Way;
use super::words::{Action, Listing, Node, Say, Seen};
use super::{Contender, Phase, first_of};
use crate::engine::zookeeper::layout::{Child, Tag, write_seq};
use crate::engine::zookeeper::proto::Code;

impl Contender {
    pub(super) fn writer_created(&mut self, result: Result<Node, Code>, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        if held.way != Way::Creating {
            return;
        }
        match result {
            Ok(writer) => self.writer_is_there(writer, out),
            Err(code) => self.no_writer(code, out),
        }
    }

    fn no_writer(&mut self, code: Code, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        held.way = Way::Steady;
        if self.leaving {
            self.held_leave(out);
        } else if std::mem::take(&mut held.taking_back) {
            out.push(Action::Say(Say::TakenBack));
        } else {
            out.push(Action::Say(Say::ConversionRefused(code)));
        }
    }

    pub(super) fn writer_found(&mut self, nodes: Result<Vec<Child>, Code>, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        if held.way != Way::Creating {
            return;
        }
        let nodes = match nodes {
            Ok(nodes) => nodes,
            // If it is there after all, it is one that no claim knows: those are looked for after a
            // lost write.
            Err(code) => return self.no_writer(code, out),
        };
        match first_of(nodes, out) {
            Some(Child { name, seq, .. }) => self.writer_is_there(Node::new(name, seq, None), out),
            None if self.leaving || held.taking_back => {
                held.way = Way::Steady;
                if std::mem::take(&mut held.taking_back) {
                    out.push(Action::Say(Say::TakenBack));
                }
                if self.leaving {
                    self.held_leave(out);
                }
            }
            None => out.push(Action::CreateWriter),
        }
    }

    pub(super) fn writer_is_there(&mut self, writer: Node, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        let name = writer.name.clone();
        held.way = Way::Steady;
        if held.taking_back {
            held.leave_over(name, out);
        } else {
            out.push(Action::WatchOwn(name));
            held.writer = Some(writer);
            held.way = Way::Looking;
        }
        if self.leaving {
            self.held_leave(out);
        } else if matches!(&self.phase, Phase::Held(held) if held.way == Way::Looking) {
            self.list(out);
        }
    }

    /// Who reads beside us? Those that came before any writer: later ones wait.
    pub(super) fn readers_listed(&mut self, result: Result<Listing, Code>, out: &mut Vec<Action>) {
        self.lists = self.lists.saturating_sub(1);
        let Phase::Held(held) = &mut self.phase else { return };
        let (Way::Looking, Some(writer), 0) = (&held.way, &held.writer, self.lists) else { return };
        let listing = match result {
            Ok(listing) => listing,
            // The directory is gone and our own nodes with it, which is told by their watches.
            Err(Code::NO_NODE) => return,
            Err(code) => return self.not_turned(code, out),
        };
        let there = |node: &Node| listing.children.iter().any(|c| c.name == node.name);
        if held.guard.as_ref().is_some_and(there) {
            return self.guarded(Ok(()), None, out);
        }
        let (seq, last) = (held.node.seq, writer.seq);
        // Another upgradable reader behind us waits for us.
        let waits = |c: &Child| c.tag == Tag::Upgradable && !c.is_before(seq);
        let counts = |c: &&Child| c.is_before(last) && !waits(c) && !self.ignored.contains(&c.name);
        let (readers, writers): (Vec<&Child>, Vec<&Child>) =
            listing.children.iter().filter(counts).partition(|c| c.tag.is_shared());
        // Writers that seem to stand before us are no contenders, or came too late to keep anybody
        // out.
        let writers = writers.into_iter().filter(|c| !c.is_before(seq) && c.seq != seq);
        let first = writers.clone().min_by_key(|c| c.seq.wrapping_sub(seq));
        // Curator's readers wait for this one only, whatever mutexes are before them.
        let stops = writers.filter(|c| c.tag == Tag::Write).min_by_key(|c| c.seq.wrapping_sub(seq));
        let bound = first.map_or(last, |c| c.seq);
        let nearest =
            readers.iter().filter(|c| c.is_before(bound)).min_by_key(|c| bound.wrapping_sub(c.seq));
        match (nearest, first) {
            (Some(reader), _) => {
                out.push(Action::Watch(reader.name.clone()));
                held.way = Way::Waiting { reader: reader.name.clone() };
                out.push(Action::Say(Say::ConversionWaits));
            }
            // Only the writer keeps those behind it out.
            (None, Some(first)) if !readers.is_empty() => {
                let stop = stops.map_or(last, |c| c.seq);
                let may_read = |c: &&&Child| {
                    c.is_before(stop)
                        && c.waits_for_writers_only()
                        && !held.kept_out.contains(&c.name)
                };
                let left: BTreeSet<String> =
                    readers.iter().filter(may_read).map(|c| c.name.clone()).collect();
                if !left.is_empty() {
                    out.extend(left.iter().cloned().map(Action::Whose));
                    held.way = Way::Asking { left };
                    return;
                }
                let beside = stops.filter(|c| {
                    c.name != first.name && !readers.iter().all(|r| r.is_before(c.seq))
                });
                out.push(Action::Peek(first.name.clone()));
                held.way = Way::Checking {
                    writer: first.name.clone(),
                    beside: beside.map(|c| c.name.clone()),
                };
            }
            (None, _) => held.number_up(out),
        }
    }

    /// Does a reader behind a mutex wait for it? Ours do, and must not be waited for; Curator's
    /// read.
    pub(super) fn asked_whose(
        &mut self,
        name: &str,
        seen: Seen,
        ours: bool,
        out: &mut Vec<Action>,
    ) {
        let Phase::Held(held) = &mut self.phase else { return };
        let Way::Asking { left } = &mut held.way else { return };
        if !left.remove(name) {
            return;
        }
        match seen {
            Seen::Here(_) if !ours => {
                out.push(Action::Watch(name.to_owned()));
                held.way = Way::Waiting { reader: name.to_owned() };
                return out.push(Action::Say(Say::ConversionWaits));
            }
            Seen::Here(_) => _ = held.kept_out.insert(name.to_owned()),
            Seen::NoContender => _ = self.ignored.insert(name.to_owned()),
            Seen::Gone => {}
        }
        if left.is_empty() {
            held.way = Way::Looking;
            self.list(out);
        }
    }

    /// Is it a writer that keeps readers out? Then the guard is created while it is there.
    pub(super) fn checked(&mut self, name: &str, seen: Seen, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        let (Way::Checking { writer: first, beside }, Some(writer)) = (&held.way, &held.writer)
        else {
            return;
        };
        if first != name {
            return;
        }
        match seen {
            Seen::Here(_) => {
                let stem = writer.name.strip_suffix(&write_seq(writer.seq)).unwrap_or(&writer.name);
                let guard = format!("{stem}{}", write_seq(held.node.seq));
                let behind = [name.to_owned()].into_iter().chain(beside.clone()).collect();
                out.push(Action::Guard { node: guard.clone(), behind });
                held.guard = Some(Node::new(guard, held.node.seq, None));
                held.way = Way::Guarding;
            }
            Seen::Gone => {
                held.way = Way::Looking;
                self.list(out);
            }
            Seen::NoContender => self.look_past(name, out),
        }
    }

    /// The guard is there, or the writer that it was to stand in for is not there any more.
    pub(super) fn guarded(
        &mut self,
        result: Result<(), Code>,
        gone: Option<String>,
        out: &mut Vec<Action>,
    ) {
        let Phase::Held(held) = &mut self.phase else { return };
        let (Way::Guarding | Way::Looking, Some(guard)) = (&held.way, &held.guard) else { return };
        match result {
            // There already: by our own request, whose answer was lost. The name is nobody else's.
            Ok(()) | Err(Code::NODE_EXISTS) => {
                out.push(Action::WatchOwn(guard.name.clone()));
                held.guarded = true;
                held.number_up(out);
            }
            Err(Code::NO_NODE) => {
                // Gone, whatever this server shows: names are used once.
                held.way = Way::Looking;
                self.ignored.extend(gone);
                self.list(out);
            }
            Err(code) => self.not_turned(code, out),
        }
    }

    /// A child that is no contender: look again without it.
    pub(super) fn look_past(&mut self, name: &str, out: &mut Vec<Action>) {
        let Phase::Held(held) = &mut self.phase else { return };
        let looked_at = match &held.way {
            Way::Waiting { reader: other } | Way::Checking { writer: other, .. } => other == name,
            _ => false,
        };
        if looked_at {
            held.way = Way::Looking;
            self.ignored.insert(name.to_owned());
            self.list(out);
        }
    }
}
