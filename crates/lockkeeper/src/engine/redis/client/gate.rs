//! Requests that count only once replicas have what they wrote: one WAIT behind each batch, and
//! never more than one outstanding.
//!
//! WAIT keeps its connection from doing anything else, so requests that come meanwhile gather and
//! are the next batch: they share its round trip to the replicas.

use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};

use super::super::options::Wait;
use super::pipe::{Broken, Outcome, Pipe};
use super::resp::{Command, Value};

/// How many requests one WAIT is for: the first of more would be answered late.
const BATCH_MAX: usize = 512;

/// What gathers in front of a connection.
pub(in crate::engine) struct Gate {
    wait: Wait,
    gathered: Mutex<Vec<(Command, oneshot::Sender<Outcome>)>>,
    came: Notify,
}

impl Gate {
    pub(super) fn new(wait: Wait) -> Self {
        Self { wait, gathered: Mutex::default(), came: Notify::new() }
    }

    fn gathered(&self) -> MutexGuard<'_, Vec<(Command, oneshot::Sender<Outcome>)>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes requests for the next batch.
    pub(super) fn take(&self, commands: &[Command]) -> Vec<oneshot::Receiver<Outcome>> {
        let mut gathered = self.gathered();
        let receivers = commands.iter().map(|command| {
            let (sender, receiver) = oneshot::channel();
            gathered.push((command.clone(), sender));
            receiver
        });
        let receivers = receivers.collect();
        drop(gathered);
        self.came.notify_one();
        receivers
    }

    /// The connection is gone: nothing of what gathered was sent.
    pub(super) fn refuse(&self, why: &str) {
        for (_, reply) in std::mem::take(&mut *self.gathered()) {
            // Whoever asked may have left.
            let _ = reply.send(Err(Broken::NotSent(why.into())));
        }
    }

    /// Sends batch after batch, for as long as it is polled.
    pub(super) async fn serve(&self, pipe: &Pipe) -> Infallible {
        let (replicas, millis) = (u64::from(self.wait.replicas), self.wait.timeout.as_millis());
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        loop {
            let batch: Vec<_> = {
                let mut gathered = self.gathered();
                let most = gathered.len().min(BATCH_MAX);
                gathered.drain(..most).collect()
            };
            if batch.is_empty() {
                self.came.notified().await;
                continue;
            }
            let (mut commands, replies): (Vec<_>, Vec<_>) = batch.into_iter().unzip();
            commands.push(Command::new(["WAIT"]).number(replicas).number(millis));
            let mut outcomes = Vec::with_capacity(commands.len());
            for answer in pipe.send(&commands) {
                let ended = || Err(Broken::Unknown("the connection ended".into()));
                outcomes.push(answer.await.unwrap_or_else(|_| ended()));
            }
            let short = self.too_few(outcomes.pop());
            for (outcome, reply) in outcomes.into_iter().zip(replies) {
                let outcome = match (outcome, &short) {
                    (Ok((_, value)), Some(why)) if grants(&value) => {
                        Err(Broken::Unacknowledged(why.as_str().into()))
                    }
                    (outcome, _) => outcome,
                };
                // Whoever asked may have left.
                let _ = reply.send(outcome);
            }
        }
    }

    /// Why a batch is not acknowledged.
    fn too_few(&self, waited: Option<Outcome>) -> Option<String> {
        let Wait { replicas, timeout } = self.wait;
        let acknowledged = match waited {
            Some(Ok((_, Value::Error(text)))) => return Some(format!("WAIT was refused: {text}")),
            Some(Ok((_, value))) => value.unsigned().unwrap_or(0),
            _ => return Some("the connection ended before replicas acknowledged it".to_owned()),
        };
        (acknowledged < u64::from(replicas)).then(|| {
            format!(
                "{acknowledged} of the {replicas} replicas that wait_replicas asks for \
                 acknowledged it within {timeout:?}"
            )
        })
    }
}

/// Whether an answer gives or extends a hold. Answers begin with their word, those of renewals have
/// one for each lease, and that of the short way is the number alone.
fn grants(value: &Value) -> bool {
    let is = |value: &Value, word: &str| value.text() == Some(word);
    // Its number may stand behind it.
    let kept = |value: &Value| value.text().is_some_and(|text| text.starts_with('D'));
    if let Some(text) = value.bytes() {
        return !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    }
    match value.items() {
        [first, ..] if is(first, "G") => true,
        [first, ..] if ["L", "B", "T", "M", "F", "E", "W"].iter().any(|word| is(first, word)) => {
            false
        }
        items => items.iter().any(|item| kept(item) || item.items().iter().any(kept)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(word: &str) -> Value {
        Value::Text(word.into())
    }

    #[test]
    fn what_gives_or_extends_a_hold_is_told_from_what_does_not() {
        let renewals = |words: &[&str]| Value::Array(words.iter().map(|word| text(word)).collect());
        for (value, is) in [
            (Value::Array(vec![text("G"), text("1"), text("2"), text("3")]), true),
            (Value::Array(vec![text("B"), text("1"), text("2"), text("D")]), false),
            (Value::Array(vec![text("L"), text("1")]), false),
            (text("1765803841359"), true),
            (Value::Array(vec![text("W"), text("1790000000000000")]), false),
            (text("OK"), false),
            // A release on the short way.
            (Value::Integer(1), false),
            (Value::Array(vec![text("1790000000000000"), renewals(&["X", "D7"])]), true),
            (Value::Array(vec![text("1790000000000000"), renewals(&["X"])]), false),
            (renewals(&["X", "D"]), true),
            (renewals(&["X", "X"]), false),
            (Value::Error("NOSCRIPT".into()), false),
        ] {
            assert_eq!(grants(&value), is, "{value:?}");
        }
    }
}
