//! Runs each claim's [`Contender`]: its actions become requests, what it says becomes answers and
//! events.

mod answers;
mod convert;
mod gate;
mod perform;
mod proof;
mod replies;
mod together;

#[cfg(test)]
mod compared;

use std::collections::VecDeque;

use tokio::sync::oneshot;

use self::gate::Gate;
pub(super) use self::perform::{Renumber, together};
use super::errors::{OTHER_SHAPE, PLACES_MAX, TOO_MANY};
use super::layout::{Child, Layout, Tag};
use super::limit::Limit;
use super::options::Options;
use super::proto::{Code, Happened, WatchEvent};
use super::recipe::{Contender, Conversion, Input, Node, Want};
use super::record;
use super::state::State;
use crate::engine::{Attempt, End, Grant, Lease, Number, Place, Standing};
use crate::words::claim::{Claim, Holder, Mode, Through};
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// Curator's word for `let go`.
pub(super) const REVOKE: &[u8] = b"__REVOKE__";

/// What a claim's request was for.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Create,
    /// Creates a permit that has no number.
    CreateLease,
    /// Creates the writer's node of an upgrade.
    CreateWriter,
    /// Creates the reader's node of a downgrade.
    CreateReader(Node),
    List,
    /// Reads a semaphore's limit, and watches it.
    Limit,
    StoreLimit,
    Own(String),
    Watch(String),
    /// Watches a node whose data this user may not read.
    WatchUnread(String),
    Peek(String),
    /// Reads a node whose maker may not wait for ours.
    Beside(String),
    /// Reads a node that the quorum does not have.
    Doubted(String),
    Find {
        prefix: String,
    },
    Delete(String),
    /// Reads a node before it is deleted once more: in a layout whose names carry no ids, somebody
    /// else's may have the name by now.
    DeleteAgain(String),
    /// Reads a reader's node: is it one of ours?
    Whose(String),
    /// Creates a node with a known name beside these.
    Guard {
        behind: Vec<String>,
    },
    /// Reads the directory, in order to change it without changing what it says.
    Before {
        nodes: Vec<String>,
        tries: u32,
    },
    /// Takes a new number.
    Number {
        nodes: Vec<String>,
        tries: u32,
    },
    /// Looks whether one of the directories is there.
    Ancestor(usize),
    /// Looks whether a semaphore of the other shape is there.
    OtherShape,
    /// Looks who stands at the gate.
    Gate,
    /// Makes one of them.
    Made {
        path: String,
        container: bool,
    },
}

/// A claim and all that belongs to it.
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) machine: Contender,
    /// The directory, as the server sees it.
    pub(super) dir: String,
    /// What our node is called up to its number.
    prefix: String,
    data: Vec<u8>,
    /// Counts the sessions in which it stood: a node of an earlier one is somebody else's.
    incarnation: u32,
    /// Who waits for the attempt's answer, and for the end.
    answers: Vec<oneshot::Sender<Attempt>>,
    ends: Vec<oneshot::Sender<End>>,
    /// It was left when its session was over, for all that was known.
    late: bool,
    /// The place is told once it is known who is at this node.
    place: Option<(String, u32)>,
    holder: Option<Box<Holder>>,
    build: Build,
    turn: Option<ConversionEntry>,
    /// Conversions that are asked for behind it.
    later: VecDeque<ConversionEntry>,
    /// A semaphore's limit, as it was read last.
    limit: Limit,
    gate: Gate,
    only_try: bool,
    /// It stands at the gate for this claim.
    gate_of: Option<ClaimId>,
    /// Our node, whose watch is not asked for yet.
    watch_later: Option<String>,
    /// It is counted among those who rely on the session.
    pub(super) relies: bool,
}

impl Entry {
    fn new(
        options: &Options,
        claim: &Claim,
        dir: String,
        machine: Contender,
        answers: Vec<oneshot::Sender<Attempt>>,
    ) -> Self {
        Self {
            claim: claim.clone(),
            machine,
            dir,
            prefix: options.layout.prefix(tag_of(options, claim), claim.id),
            data: record::write(claim),
            incarnation: 0,
            answers,
            ends: Vec::new(),
            late: false,
            place: None,
            holder: None,
            build: Build::default(),
            turn: None,
            later: VecDeque::new(),
            limit: Limit::default(),
            gate: Gate::Open,
            only_try: false,
            gate_of: None,
            watch_later: None,
            relies: false,
        }
    }

    /// Whether it stands at a gate for another claim, and is nobody's hold.
    pub(super) fn is_gate(&self) -> bool {
        self.gate_of.is_some()
    }

    /// Whether there is a grant to tell as soon as the session is proven.
    fn wants_proof(&self) -> bool {
        self.machine.wants_proof() || (self.machine.held().is_some() && !self.answers.is_empty())
    }
}

/// A conversion of a hold, under way or made last.
struct ConversionEntry {
    id: ClaimId,
    way: Conversion,
    /// It has not come to anything yet, or it is being taken back.
    running: bool,
    /// What it came to.
    number: Option<i64>,
    /// What the writer's node of an upgrade is called up to its number.
    prefix: String,
    answers: Vec<oneshot::Sender<Attempt>>,
    ends: Vec<oneshot::Sender<End>>,
}

/// Making a directory and what is missing above it.
#[derive(Default)]
struct Build {
    paths: Vec<String>,
    missing: Vec<usize>,
    waiting: usize,
    failed: Option<Code>,
}

impl State {
    /// A claim is asked for, or asked about again.
    pub(super) fn attempt(
        &mut self,
        claim: &Claim,
        dir: String,
        only_try: bool,
    ) -> oneshot::Receiver<Attempt> {
        let (sender, receiver) = oneshot::channel();
        let id = claim.id;
        if !self.claims.contains_key(&id) {
            self.enter(claim, dir, only_try, sender);
            if self.up {
                self.go_on(id);
            }
            return receiver;
        }
        self.look_again(id);
        let at = self.waits_at(id);
        let waits = self.claims.get(&at).is_some_and(|e| e.machine.waits_for().is_some());
        let Some(entry) = self.claims.get_mut(&id) else { return receiver };
        // A place that was lent to another caller is wanted for as long as that one waits.
        entry.claim.give_up = claim.give_up;
        let held = entry.machine.held();
        if entry.machine.is_leaving() {
            self.outbox.attempts.push((
                sender,
                Attempt::Unknown(Error::new(ErrorKind::Unknown, "the claim is being withdrawn")),
            ));
        } else if held.is_some() {
            // Whoever asks does not renew yet: then the session is proven first.
            entry.answers.push(sender);
            self.next_in_line.insert(id);
            self.note_reliance(id);
            self.prove(id);
        } else if waits && entry.place.is_none() {
            self.outbox.attempts.push((sender, Attempt::InLine(Place::default())));
        } else {
            entry.answers.push(sender);
        }
        receiver
    }

    /// A create in doubt, of which the server would not say what it came to, is looked for once
    /// more.
    pub(super) fn look_again(&mut self, id: ClaimId) {
        let at = self.waits_at(id);
        if self.up
            && self.claims.get(&at).is_some_and(|e| {
                e.machine.is_idle() && !matches!(e.gate, Gate::Look | Gate::Wanted)
            })
        {
            self.step(at, Input::LinkUp);
        }
    }

    fn enter(
        &mut self,
        claim: &Claim,
        dir: String,
        only_try: bool,
        sender: oneshot::Sender<Attempt>,
    ) {
        let machine = Contender::new(want_of(&self.options, claim.mode), only_try)
            .of_one_prefix(one_prefix(&self.options, claim));
        let mut entry = Entry::new(&self.options, claim, dir, machine, vec![sender]);
        entry.gate = Gate::of(&self.options, claim, only_try);
        entry.only_try = only_try;
        self.claims.insert(claim.id, entry);
    }

    /// Leaves the line, or gives the hold back.
    pub(super) fn leave(&mut self, id: ClaimId) -> oneshot::Receiver<End> {
        let (sender, receiver) = oneshot::channel();
        if let Some(hold) = self.turns.get(&id).copied() {
            self.take_back(hold, id, sender);
            return receiver;
        }
        let over = self.left().is_zero();
        match self.claims.get_mut(&id) {
            Some(entry) => {
                if !entry.machine.is_leaving() {
                    entry.late = over;
                }
                entry.ends.push(sender);
                if !self.leaves_at_gate(id) {
                    self.step(id, Input::Leave);
                }
                self.look_again(id);
            }
            None => self.outbox.ends.push((sender, End::NotOurs)),
        }
        receiver
    }

    /// Its caller's time is over while nothing of it was ever sent.
    pub(super) fn forget_unsent(&mut self, id: ClaimId) -> bool {
        let unsent = !self.up && self.claims.contains_key(&id) && self.left_nothing(id);
        if unsent {
            self.forget(id);
        }
        unsent
    }

    /// The ensemble will not have us any more: whoever does not hold gets nothing.
    pub(super) fn refuse_waiting(&mut self, error: &Error) {
        let waiting: Vec<ClaimId> = self
            .claims
            .iter()
            .filter(|(_, e)| e.machine.held().is_none() && !e.is_gate())
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.finish(id, Attempt::Failed(error.clone()));
        }
    }

    /// How a claim or a conversion stands.
    pub(super) fn stands(&self, id: ClaimId) -> Standing {
        match self.claims.get(&id).map(|e| e.machine.held()).or_else(|| self.turn_stands(id)) {
            Some(Some(number)) => self.grant(id, number).into(),
            Some(None) => Standing::InLine(Place::default()),
            None => Standing::Gone(Error::new(ErrorKind::Lost, "nothing of it is there any more")),
        }
    }

    /// A grant of the session, as the evidence for it stands now.
    pub(super) fn grant(&self, id: ClaimId, number: i64) -> Attempt {
        let zxid = number;
        let permits = self.claims.get(&id).is_some_and(|e| e.claim.kind == Kind::Semaphore);
        let number = u64::try_from(number).ok().filter(|n| *n < 1 << 57);
        let (Some(number), Some(session)) = (number, &self.session) else {
            let text = format!(
                "the ensemble's transaction number {zxid} is beyond what a token can carry"
            );
            return Attempt::Failed(Error::new(ErrorKind::Refused, text));
        };
        let now = self.clock.now();
        // What is proven of the session, and never more: an answer may be made of what was known
        // before a long pause.
        let lease = Lease {
            id: session.lease(),
            ttl: self.left(),
            since: Some(now),
            confirm: !self.is_proven(),
        };
        let number = if permits { Number::None } else { Number::Ours(number) };
        Attempt::Granted(Grant { number, lease: Some(lease) })
    }

    pub(super) fn claim_link_up(&mut self, id: ClaimId) {
        let now = self.clock.now();
        let Some(entry) = self.claims.get(&id) else { return };
        let late = entry.claim.give_up.is_some_and(|at| at <= now);
        if late && self.left_nothing(id) {
            // A request that was held up must not lock for a caller who has left (R3).
            return self.finish(id, gate::late());
        }
        self.go_on(id);
    }

    pub(super) fn claim_link_down(&mut self, id: ClaimId) {
        if let Some(entry) = self.claims.get_mut(&id) {
            entry.place = None;
            entry.build = Build::default();
            entry.watch_later = None;
            self.step(id, Input::LinkDown);
        }
    }

    pub(super) fn claim_session_ended(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        entry.incarnation = entry.incarnation.wrapping_add(1);
        // A node of the session that ended may still be listed for a while: it must not look like
        // ours.
        let fresh = ClaimId(entry.claim.id.0.wrapping_add(u128::from(entry.incarnation)));
        entry.prefix = self.options.layout.prefix(tag_of(&self.options, &entry.claim), fresh);
        if entry.gate == Gate::Gone {
            entry.gate = Gate::Wanted;
        }
        // Who leaves at its gate has not begun to: it is told, and forgotten, when that one is
        // gone.
        if entry.late && entry.machine.is_leaving() {
            // It ended with the session, and not by what was asked for afterwards.
            self.outbox.ends.extend(entry.ends.drain(..).map(|sender| (sender, End::NotOurs)));
        }
        self.step(id, Input::SessionEnded);
    }

    /// A watch that fired.
    pub(super) fn claim_event(&mut self, id: ClaimId, event: &WatchEvent) {
        let Some(entry) = self.claims.get(&id) else { return };
        if event.path == entry.dir {
            return self.step(id, Input::LimitChanged);
        }
        let Some(name) =
            event.path.strip_prefix(&entry.dir).and_then(|rest| rest.strip_prefix('/'))
        else {
            return;
        };
        let name = name.to_owned();
        self.step(id, Input::Happened { name, deleted: event.happened == Happened::Deleted });
    }

    /// Steps a claim, and does and says what comes of it.
    pub(super) fn step(&mut self, id: ClaimId, input: Input) {
        #[cfg(test)]
        if let Some(taken_down) = &mut self.taken_down {
            return taken_down.push(input);
        }
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let before: Vec<String> = entry.machine.watched().into_iter().map(str::to_owned).collect();
        let mut actions = Vec::new();
        entry.machine.step(input, &mut actions);
        let after = entry.machine.watched();
        let dropped: Vec<String> = before
            .into_iter()
            .filter(|n| !after.contains(&n.as_str()))
            .map(|n| format!("{}/{n}", entry.dir))
            .collect();
        let next = entry.wants_proof() || entry.machine.waits_for().is_some_and(|(_, last)| last);
        for path in dropped {
            self.drop_target(&path, id);
        }
        if next {
            self.next_in_line.insert(id);
        } else {
            self.next_in_line.remove(&id);
        }
        self.note_reliance(id);
        for action in actions {
            if self.makes_way(id, &action) {
                break;
            }
            self.perform(id, action);
        }
        if self.claims.get(&id).is_some_and(|e| e.machine.is_over()) {
            // It ended with its session, which is told for all of them at once.
            let error = Error::new(ErrorKind::Lost, "the session that carried it ended");
            return self.finish(id, Attempt::Failed(error));
        }
        // Whoever asks again while it waits gets an answer, also when the place was told before.
        if let Some(entry) = self.claims.get_mut(&id)
            && entry.place.is_none()
            && entry.machine.waits_for().is_some()
        {
            for sender in std::mem::take(&mut entry.answers) {
                self.outbox.attempts.push((sender, Attempt::InLine(Place::default())));
            }
        }
    }
}

fn want_of(options: &Options, mode: Mode) -> Want {
    match mode {
        Mode::Permits { limit, .. } if options.counts_leases() => Want::Lease { limit },
        Mode::Shared => Want::Shared,
        Mode::Upgradable => Want::Upgradable,
        Mode::Permits { count, limit } => Want::Permits { count, limit },
        Mode::Exclusive => Want::Exclusive,
    }
}

/// Whether the directory of a claim belongs to one prefix; a semaphore of ours has a directory of
/// its own.
fn one_prefix(options: &Options, claim: &Claim) -> bool {
    matches!(options.layout, Layout::Plain { .. }) && claim.kind == Kind::Lock
}

/// Which node of the layout a claim stands with.
pub(super) fn tag_of(options: &Options, claim: &Claim) -> Tag {
    match (claim.kind, claim.mode) {
        (Kind::Election, _) if options.layout == Layout::Curator => Tag::Latch,
        (_, Mode::Permits { .. }) if options.shared_permits => Tag::Lease,
        (_, Mode::Permits { count, .. }) => Tag::Permits(count),
        (_, Mode::Shared) => Tag::Read,
        (_, Mode::Upgradable) => Tag::Upgradable,
        // Curator's readers respect only this one, and its mutexes only the other.
        (Kind::Lock, _) if claim.through == Through::RwLock => Tag::Write,
        _ => Tag::Lock,
    }
}

/// Any child of a semaphore of kazoo's is a permit.
fn lease(name: &str) -> Child {
    Child { name: name.to_owned(), seq: 0, tag: Tag::Lease }
}

/// The children that stand in the line of this kind, if they are not too many to look at all of
/// them.
pub(super) fn contenders(
    options: &Options,
    kind: Kind,
    names: &[String],
) -> Result<Vec<Child>, Code> {
    let all = all_contenders(options, kind, names)?;
    // As many may hold the permits of the greatest semaphore.
    let most =
        if kind == Kind::Semaphore { PLACES_MAX + usize::from(u16::MAX) } else { PLACES_MAX };
    if all.len() > most { Err(TOO_MANY) } else { Ok(all) }
}

/// The children that stand in the line of this kind.
fn all_contenders(options: &Options, kind: Kind, names: &[String]) -> Result<Vec<Child>, Code> {
    let election = kind == Kind::Election && options.layout == Layout::Curator;
    let counts = |child: &Child| match child.tag {
        Tag::Latch => election,
        Tag::Lease | Tag::Permits(_) => kind == Kind::Semaphore,
        _ => !election && kind != Kind::Semaphore,
    };
    if kind == Kind::Semaphore && options.counts_leases() {
        // That of a semaphore of our own.
        if names.iter().any(|name| name == "permits") {
            return Err(OTHER_SHAPE);
        }
        return Ok(names.iter().map(|name| lease(name)).collect());
    }
    Ok(names.iter().filter_map(|name| options.layout.child(name)).filter(counts).collect())
}
