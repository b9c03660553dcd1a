//! Everything that one session knows, behind one lock: requests on their way, claims, watches.
//!
//! Callers and the session's driver step it in turn, and write what it sends. Whatever is to be
//! told to the outside is collected in an [`Outbox`] and told after the lock is given back.

mod session;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::barrier::Member;
use super::beside::Beside;
use super::claims::{Entry, Renumber, Step};
use super::liveness::Alive;
use super::options::Options;
use super::proto::{
    Code, Happened, Reply, ReplyHeader, Request, SessionKey, Shape, WatchEvent, xid,
};
use super::reliance::Reliance;
use super::wire::{Frame, NotTaken};
use crate::engine::at_exit::AtRisk;
use crate::engine::password::Login;
use crate::engine::stream::Writer;
use crate::engine::{Attempt, End, Event, WatchId};
use crate::words::clock::{Clock, Ticks};
use crate::words::error::Error;
use crate::words::id::{ClaimId, LeaseId};

/// Why a request got no reply.
#[derive(Clone, Debug)]
pub(super) enum Fault {
    /// The server answered that it does not do it.
    Code(Code),
    /// It was sent, and the connection broke: done or not done.
    Lost,
    /// It was never sent.
    NotSent,
    /// What was read says so.
    Told(Error),
}

impl Fault {
    /// Whether nothing was answered at all.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self, Self::Lost | Self::NotSent)
    }
}

/// Somebody who waits for a reply.
pub(super) type Caller = oneshot::Sender<Result<Reply, Fault>>;

/// Who waits for a reply.
pub(super) enum Ticket {
    Nobody,
    Claim(ClaimId, Step),
    /// The nodes of several claims, created in one transaction.
    Together(Vec<ClaimId>),
    /// The paths of all nodes of this session.
    Search,
    Call(Caller),
    /// The write that proves the session, and asks whether these nodes are there that claims wait
    /// for.
    Beat(Vec<(ClaimId, String)>),
    Auth,
}

struct Pending {
    xid: i32,
    shape: Shape,
    write: bool,
    sent: Ticks,
    ticket: Ticket,
}

/// What is told to the outside once the lock is given back.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) attempts: Vec<(oneshot::Sender<Attempt>, Attempt)>,
    pub(super) ends: Vec<(oneshot::Sender<End>, End)>,
    pub(super) calls: Vec<(Caller, Result<Reply, Fault>)>,
    pub(super) events: Vec<Event>,
}

/// The session as it was negotiated.
#[derive(Clone)]
pub(super) struct Session {
    pub(super) key: SessionKey,
    pub(super) timeout: std::time::Duration,
}

impl Session {
    pub(super) fn lease(&self) -> LeaseId {
        LeaseId(u128::from(self.key.id.cast_unsigned()))
    }
}

/// See the module.
pub(super) struct State {
    pub(super) options: Arc<Options>,
    pub(super) clock: Clock,
    /// Requests may be sent.
    pub(super) up: bool,
    /// The connection was up before; a new one is told as `Link { up: true }`.
    pub(super) was_up: bool,
    pub(super) session: Option<Session>,
    /// Greatest transaction that was seen; a server that is behind it must not take us.
    pub(super) last_zxid: i64,
    /// Bytes that are not sent yet.
    pub(super) out: Vec<u8>,
    /// What callers write to, while there is a connection.
    pub(super) direct: Option<Writer>,
    /// TLS keeps some of what was written back; the driver flushes it.
    kept_back: bool,
    /// What is sent under this lock gives something back, and is written before the lock is.
    pub(super) releasing: bool,
    /// The end of the process could lose the last release, before which so many requests were sent.
    at_risk: Option<(u64, AtRisk)>,
    /// How many requests were answered on this connection.
    answered: u64,
    /// The driver has something to do that it would not wake up for by itself.
    pub(super) driver_wanted: bool,
    /// Claims whose own node is to be watched, and until when.
    pub(super) soon: VecDeque<(Ticks, ClaimId)>,
    /// The driver will be awake by then.
    pub(super) soon_set: bool,
    /// Somebody tells events, and will tell those that come meanwhile.
    pub(super) telling: bool,
    next_xid: i32,
    pending: VecDeque<Pending>,
    pub(super) last_sent: Ticks,
    pub(super) alive: Alive,
    pub(super) beating: bool,
    /// When the last such write was sent, answered or not.
    pub(super) beat_sent: Ticks,
    /// What those need who rely on the session.
    pub(super) reliance: Reliance,
    pub(super) claims: HashMap<ClaimId, Entry>,
    /// The holds of conversions, by the conversion's own id.
    pub(super) turns: HashMap<ClaimId, ClaimId>,
    /// Who is to be told when a watched path's node changes or goes.
    pub(super) targets: HashMap<String, BTreeSet<ClaimId>>,
    /// Claims that are next in line, or whose turn it is: they need a session that is proven.
    pub(super) next_in_line: BTreeSet<ClaimId>,
    /// When nodes of ours are looked for that nobody here knows: a create or a delete was lost with
    /// the link, and a slow server may still pass it on.
    pub(super) search_at: Option<Ticks>,
    /// Numbers that are asked for again after a pause.
    pub(super) renumber: Vec<Renumber>,
    /// Claims whose node the server does not let us delete.
    pub(super) stuck: BTreeSet<ClaimId>,
    /// What was said of others' locks beside ours.
    pub(super) beside: Beside,
    /// Whether the server makes containers.
    pub(super) containers: bool,
    /// Calls that wait for the link.
    pub(super) parked: Vec<(Request, Caller)>,
    /// Nobody connects any more: what is asked for from now on is not sent.
    over: bool,
    /// Why the ensemble will not have us, for good.
    pub(super) refused: Option<Error>,
    /// The engine was of use: it is open.
    pub(super) opened: bool,
    /// Why the server that we are connected to does not take our identity; another may.
    pub(super) not_here: Option<Error>,
    /// The server that we are connected to, or were last, by its place in the URL.
    server: usize,
    /// What identities this connection was given, and how many of them were not answered yet.
    login: Option<Login>,
    unaccepted: usize,
    /// The engine is being closed.
    pub(super) closing: bool,
    /// The server that we are connected to shows what the ensemble does not have: it is left.
    pub(super) diverges: Option<String>,
    /// Since when there is no connection.
    pub(super) down_since: Option<Ticks>,
    /// Why the last connection failed or ended.
    pub(super) last_failure: String,
    /// Why each server did not take us when it was tried last, by its place in the URL; of those
    /// since one did.
    pub(super) failures: BTreeMap<usize, NotTaken>,
    /// What the keeper wants to hear about, by the path below which it happens.
    pub(super) observers: HashMap<WatchId, String>,
    /// The members of barriers.
    pub(super) members: HashMap<ClaimId, Member>,
    pub(super) outbox: Outbox,
    /// Claims are not stepped: what they would be told is taken down.
    #[cfg(test)]
    pub(super) taken_down: Option<Vec<super::recipe::Input>>,
}

impl State {
    pub(super) fn new(options: Arc<Options>, clock: Clock) -> Self {
        Self {
            options,
            clock,
            up: false,
            was_up: false,
            session: None,
            last_zxid: 0,
            out: Vec::new(),
            direct: None,
            kept_back: false,
            releasing: false,
            at_risk: None,
            answered: 0,
            driver_wanted: false,
            soon: VecDeque::new(),
            soon_set: false,
            telling: false,
            next_xid: 0,
            pending: VecDeque::new(),
            last_sent: Ticks(0),
            alive: Alive::default(),
            beating: false,
            beat_sent: Ticks(0),
            reliance: Reliance::default(),
            claims: HashMap::new(),
            turns: HashMap::new(),
            targets: HashMap::new(),
            next_in_line: BTreeSet::new(),
            search_at: None,
            renumber: Vec::new(),
            stuck: BTreeSet::new(),
            beside: Beside::default(),
            containers: true,
            parked: Vec::new(),
            over: false,
            refused: None,
            opened: false,
            not_here: None,
            server: 0,
            login: None,
            unaccepted: 0,
            closing: false,
            diverges: None,
            down_since: None,
            last_failure: "no connection was tried yet".to_owned(),
            failures: BTreeMap::new(),
            observers: HashMap::new(),
            members: HashMap::new(),
            outbox: Outbox::default(),
            #[cfg(test)]
            taken_down: None,
        }
    }

    /// Puts a request on its way; only while the link is up.
    pub(super) fn send(&mut self, request: &Request, ticket: Ticket) {
        let xid = match request {
            Request::Ping => xid::PING,
            Request::Auth { .. } => xid::AUTH,
            _ => {
                self.next_xid = if self.next_xid == i32::MAX { 1 } else { self.next_xid + 1 };
                self.next_xid
            }
        };
        request.write(xid, &mut self.out);
        self.last_sent = self.clock.now();
        self.pending.push_back(Pending {
            xid,
            shape: request.shape(),
            write: request.is_write(),
            sent: self.last_sent,
            ticket,
        });
    }

    /// How many requests are not answered yet.
    pub(super) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Writes what the socket takes at once; the driver writes the rest, and finds what is wrong.
    pub(super) fn write_directly(&mut self) {
        let Some(direct) = self.direct.as_ref().filter(|_| !self.out.is_empty()) else { return };
        let count = direct.try_write(&self.out).unwrap_or(0);
        self.kept_back = direct.keeps_back();
        self.out.drain(..count);
    }

    /// Something was given back behind so many requests that are not answered.
    pub(super) fn released(&mut self, behind: usize) {
        let before = self.answered + behind as u64;
        let counted = self.at_risk.take().map(|(_, counted)| counted);
        if self.is_at_risk(before) {
            self.at_risk = Some((before, counted.unwrap_or_else(AtRisk::begin)));
        }
    }

    /// Whether the end of the process could lose what so many requests were sent before: not all is
    /// with the kernel, or the server has something before it to answer.
    fn is_at_risk(&self, before: u64) -> bool {
        !self.out.is_empty() || self.kept_back || self.answered < before
    }

    /// Something was written, or answered.
    fn look_at_risk(&mut self) {
        if self.at_risk.as_ref().is_some_and(|(before, _)| !self.is_at_risk(*before)) {
            self.at_risk = None;
        }
    }

    /// All that was written is with the kernel.
    pub(super) fn is_flushed(&mut self) {
        self.kept_back = false;
        self.look_at_risk();
    }

    /// Whether the driver has to be woken.
    pub(super) fn needs_driver(&mut self) -> bool {
        let soon = self.reliance.is_sooner();
        let watch = !self.soon_set && !self.soon.is_empty();
        let stuck = !self.stuck.is_empty() && self.must_end_session();
        std::mem::take(&mut self.driver_wanted)
            || !self.out.is_empty()
            || self.kept_back
            || self.closing
            || soon
            || watch
            || stuck
    }

    /// The events to tell, unless somebody tells them already.
    pub(super) fn begin_to_tell(&mut self) -> Option<Vec<Event>> {
        if self.telling || self.outbox.events.is_empty() {
            return None;
        }
        self.telling = true;
        Some(std::mem::take(&mut self.outbox.events))
    }

    /// Those that came meanwhile; without any, nobody tells any more.
    pub(super) fn go_on_telling(&mut self) -> Option<Vec<Event>> {
        self.telling = !self.outbox.events.is_empty();
        self.telling.then(|| std::mem::take(&mut self.outbox.events))
    }

    /// Sends a request for somebody who waits; without a link once there is one.
    pub(super) fn call(&mut self, request: Request) -> oneshot::Receiver<Result<Reply, Fault>> {
        let (sender, receiver) = oneshot::channel();
        if self.over {
            // Nobody waits for it yet, so it can be told at once.
            _ = sender.send(Err(Fault::NotSent));
        } else if self.up {
            self.send(&request, Ticket::Call(sender));
        } else {
            // Callers who have gone make room for others.
            if self.parked.len() == self.parked.capacity() {
                self.parked.retain(|(_, sender)| !sender.is_closed());
            }
            self.parked.push((request, sender));
        }
        receiver
    }

    /// One message from the server. `Err`: the connection is of no use any more.
    pub(super) fn frame(&mut self, frame: &Frame<'_>) -> Result<(), String> {
        let (body, whole) = match *frame {
            Frame::Whole(body) => (body, true),
            Frame::Head(head) => (head, false),
        };
        let header = ReplyHeader::read(body).map_err(|_| "a reply without a header".to_owned())?;
        let rest = body.get(ReplyHeader::LEN..).unwrap_or_default();
        if header.xid == xid::EVENT {
            let event =
                WatchEvent::read(rest).map_err(|_| "an event that cannot be read".to_owned())?;
            self.happened(event);
            return Ok(());
        }
        if header.zxid > self.last_zxid {
            self.last_zxid = header.zxid;
        }
        // Pings and identities are answered beside the line of requests.
        let at =
            self.pending.iter().position(|p| p.xid == header.xid).ok_or("a reply to no request")?;
        let Some(pending) = self.pending.remove(at) else { return Ok(()) };
        self.answered += 1;
        self.look_at_risk();
        match header.code {
            Code::SESSION_EXPIRED => return Err("the session has ended".to_owned()),
            Code::SESSION_MOVED => return Err("the session moved to another connection".to_owned()),
            Code::AUTH_FAILED | Code::NEEDS_SASL => {
                return Err(self.identity_refused(header.code));
            }
            _ => {}
        }
        let result = match header.code {
            Code(0) if !whole => Err(super::errors::TOO_LONG),
            Code(0) => match Reply::read(pending.shape, rest) {
                Ok(reply) => Ok(reply),
                Err(_) => return Err("a reply that cannot be read".to_owned()),
            },
            // A failed multi says what failed in its parts.
            code if pending.shape == Shape::Many => {
                Reply::read(pending.shape, rest).map_err(|_| code)
            }
            code => Err(code),
        };
        if let Ok(Reply::Many(parts)) = &result
            && parts
                .iter()
                .any(|part| matches!(part, Err(Code::SESSION_EXPIRED | Code::SESSION_MOVED)))
        {
            return Err("the session has ended, or moved to another connection".to_owned());
        }
        // A refusal may be the word of the server that we are connected to alone; one of a
        // transaction's part is the quorum's.
        let write = pending.write && result.is_ok();
        let longest = self.longest();
        if self.alive.answered(pending.sent, self.clock.now(), write, longest) {
            // What is due next follows from what is proven, whoever read of it.
            self.driver_wanted |= longest.is_some();
            self.tell_renewed();
        }
        match pending.ticket {
            Ticket::Nobody => {}
            Ticket::Beat(asked) => self.beaten(&asked, &result),
            Ticket::Auth => match result {
                Ok(_) => self.identity_accepted(),
                Err(code) => return Err(self.identity_refused(code)),
            },
            Ticket::Call(sender) => self.outbox.calls.push((sender, result.map_err(Fault::Code))),
            Ticket::Claim(id, step) => self.claim_reply(id, step, result),
            Ticket::Together(ids) => self.created_together(&ids, result),
            Ticket::Search => match result {
                Ok(Reply::Children(paths)) => self.drop_leftovers(&paths),
                _ => self.search_later(),
            },
        }
        if write {
            self.proven();
        }
        self.diverges.take().map_or(Ok(()), Err)
    }

    fn happened(&mut self, event: WatchEvent) {
        if event.happened == Happened::Other {
            return;
        }
        if event.happened != Happened::Children {
            self.observed(&event);
        }
        // The watch is used up, whoever set it.
        for id in self.targets.remove(&event.path).unwrap_or_default() {
            self.claim_event(id, &event);
        }
    }
}
