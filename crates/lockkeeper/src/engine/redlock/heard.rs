//! What a member says to a request about a claim, read.

use std::time::Duration;

use super::plain::id_of;
use super::recipe::{Other, Rank, Said};
use super::record::Record;
use super::wire::Member;
use crate::engine::redis::client::pipe::{ALONE, Broken};
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::wire::Started;
use crate::engine::redis::errors;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

/// Somebody stands in line for what was given back.
pub(super) const IN_LINE: u64 = 1;

/// Readers wait for it, who stand in no line.
pub(super) const READERS: u64 = 2;

/// What a member said to a request about a claim.
pub(super) struct Heard {
    pub(super) said: Said,
    /// Who is in the way.
    pub(super) holder: Option<Record>,
    /// The greatest number of the name that it told, if it told one.
    pub(super) number: u64,
    /// Why it said nothing that counts.
    pub(super) error: Option<Error>,
    /// Who waits for what it gave back: [`IN_LINE`], [`READERS`], both or neither. Where the layout
    /// is another's: how many heard.
    pub(super) waited_for: u64,
    /// How many wait before it.
    pub(super) ahead: Option<u64>,
    /// It is another's turn.
    pub(super) turn: bool,
}

impl Heard {
    /// Nothing was sent.
    pub(super) fn nothing() -> Self {
        let (said, holder, error, ahead) = (Said::Not, None, None, None);
        Self { said, holder, number: 0, error, waited_for: 0, ahead, turn: false }
    }
}

impl Member {
    /// Follows a request about a claim to its answer. What cannot be sent now is not sent later.
    pub(super) async fn follow(
        &self,
        started: Started,
        call: &Call,
        wait: Duration,
        again: impl Fn(&dyn Fn() -> Started) -> Option<Started> + Send + Sync,
    ) -> Heard {
        let outcome = self.link.run_by(started, call, Duration::ZERO, again).await;
        let heard = |said, error| Heard { said, error, ..Heard::nothing() };
        let answered = match outcome {
            Ok(answered) => answered,
            Err(broken) => {
                let said = match broken {
                    Broken::NotSent(_) => Said::Not,
                    Broken::Unknown(_) | Broken::Unacknowledged(_) => Said::Unclear,
                };
                return heard(said, Some(self.broken(&broken)));
            }
        };
        self.took(answered.before);
        if let Value::Error(text) = &answered.value {
            // It was not asked again: nobody wants it any more.
            if text == ALONE {
                return Heard::nothing();
            }
            return heard(Said::Not, Some(self.failed(call, text)));
        }
        let items = answered.value.items();
        let number = |at: usize| items.get(at).and_then(Value::unsigned);
        if !matches!(
            call.script,
            Which::QuorumGive
                | Which::QuorumReadGive
                | Which::QuorumPlainGive
                | Which::QuorumHashGive
                | Which::QuorumFairGive
        ) && let Some(now_us) = number(1)
        {
            self.heard(now_us, answered.before, false);
        }
        let key = call.keys.first().unwrap_or_default();
        if let Some(Err(error)) = number(2).map(|number| self.believed(number, key)) {
            // It may have our record all the same.
            return heard(Said::Unclear, Some(error));
        }
        match (items.first().and_then(Value::text), number(2)) {
            (Some("Y"), Some(number)) => {
                let admitted = items.get(3).and_then(Value::text) == Some("1");
                self.set_stranger(!admitted);
                self.wrote();
                // Where nobody is admitted, it was up for long when it was asked.
                let grown = || self.counts_at(wait).is_some_and(|at| at <= answered.before);
                let counts = admitted
                    && run_of(call).is_some_and(|run| self.is_run(run))
                    && (self.options.marker.is_some() || grown());
                Heard { number, ..heard(Said::Yes { counts, number }, None) }
            }
            (Some("N"), number) => {
                Heard { number: number.unwrap_or(0), ..heard(Said::Nothing, None) }
            }
            (Some("D"), _) => {
                Heard { waited_for: number(1).unwrap_or(0), ..heard(Said::Gave, None) }
            }
            (Some("T"), _) => {
                let text = "the request arrived after its time had passed";
                let text = format!("Redis at {}: {text}", self.options.address);
                heard(Said::Not, Some(Error::new(ErrorKind::TimedOut, text)))
            }
            (Some("B"), Some(number)) => {
                let ahead = items.get(6).and_then(Value::unsigned);
                Heard { number, ahead, ..self.other(call, items) }
            }
            (Some("R"), Some(number)) => Heard { number, ..self.turn(items) },
            _ => heard(Said::Unclear, Some(errors::garbage(&self.options))),
        }
    }

    /// It is somebody else's turn.
    fn turn(&self, items: &[Value]) -> Heard {
        let claim = items.get(4).and_then(Value::text).and_then(ClaimId::parse);
        let left = items.get(3).and_then(Value::unsigned).map(Duration::from_millis);
        let first = items.get(5).and_then(Value::unsigned);
        let Some(((claim, rest), first)) = claim.zip(left).zip(first) else {
            return Heard { error: Some(errors::garbage(&self.options)), ..Heard::nothing() };
        };
        let rank = Rank { first, claim };
        // It has no record that could be young: nobody gives way to a turn.
        let (age, ttl) = (Duration::MAX, rest);
        let said = Said::Other(Other { rank, granted: false, age, rest, ttl });
        let ahead = items.get(6).and_then(Value::unsigned);
        Heard { said, ahead, turn: true, ..Heard::nothing() }
    }

    /// Somebody else is in the way.
    fn other(&self, call: &Call, items: &[Value]) -> Heard {
        let key = call.keys.first().unwrap_or_default();
        let read = items.get(3).and_then(Value::integer).zip(items.get(4).and_then(Value::text));
        let read = read.map(|(rest, text)| match call.script {
            Which::QuorumPlainTake
            | Which::QuorumPlainKeep
            | Which::QuorumHashTake
            | Which::QuorumHashKeep
            | Which::QuorumFairTake => {
                let mut words = call.arguments.iter();
                let ours = words.next().unwrap_or_default();
                let length = words.next().and_then(|length| length.parse().ok()).unwrap_or(0);
                Ok(Record::plain(text, rest, id_of(text, ours, length)))
            }
            _ => Record::read(text, rest, key),
        });
        let error = match read {
            Some(Ok(mut record)) => {
                let rank = Rank { first: record.first, claim: record.claim };
                // Of several readers it is the first, and they are there until the last has left.
                let longest = items.get(5).and_then(Value::unsigned).map(Duration::from_millis);
                record.shared = longest.is_some();
                let (age, rest) = (record.age(), longest.unwrap_or(record.rest));
                let granted = record.granted;
                return Heard {
                    said: Said::Other(Other { rank, granted, age, rest, ttl: record.lease() }),
                    holder: Some(record),
                    ..Heard::nothing()
                };
            }
            Some(Err(text)) => errors::of_our_script(&text),
            None => errors::garbage(&self.options),
        };
        Heard { error: Some(error), ..Heard::nothing() }
    }
}

/// The run that a member compared with the one in which it was admitted. A call that is sent once
/// more goes over the next connection, perhaps to another run.
fn run_of(call: &Call) -> Option<&str> {
    let from_end = match call.script {
        Which::QuorumTake | Which::QuorumRead => 3,
        _ => 1,
    };
    let at = call.arguments.len().checked_sub(from_end)?;
    call.arguments.get(at)
}
