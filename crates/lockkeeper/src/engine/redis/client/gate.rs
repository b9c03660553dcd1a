//! Requests that count only once replicas have what they wrote: one WAIT behind each batch, and
//! never more than one outstanding.
//!
//! WAIT keeps its connection from doing anything else, so requests that come meanwhile gather and
//! are the next batch: they share its round trip to the replicas.

use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::unconstrained;

use super::super::options::Wait;
use super::pipe::{Broken, Outcome, Pipe};
use super::resp::{Command, Value};
use super::why::outcome;
use crate::engine::either::either;

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

    /// Drives a connection, and sends batch after batch over it, until it ends; answers why.
    pub(super) async fn serve(&self, pipe: &Pipe, driver: impl Future<Output = String>) -> String {
        let mut batches = pin!(self.send_batches(pipe));
        match either(driver, batches.as_mut()).await {
            Ok(why) => {
                // The driver has said of each request what became of it: that is handed on.
                _ = either(unconstrained(batches), std::future::ready(())).await;
                why
            }
            Err(never) => match never {},
        }
    }

    /// Sends batch after batch, for as long as it is polled.
    async fn send_batches(&self, pipe: &Pipe) -> Infallible {
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
            let mut answers = pipe.send(&commands).into_iter().map(outcome);
            let waited = answers.next_back();
            let mut granted = Vec::new();
            for (answer, reply) in answers.zip(replies) {
                match answer.await {
                    Ok((order, value)) if grants(&value) => granted.push((order, value, reply)),
                    // What gives nothing needs no replica. Whoever asked may have left.
                    outcome => _ = reply.send(outcome),
                }
            }
            let counts = match waited {
                Some(waited) => self.acknowledged(waited.await),
                None => Ok(()),
            };
            for (order, value, reply) in granted {
                _ = reply.send(counts.clone().map(|()| (order, value)));
            }
        }
    }

    /// Whether a batch is acknowledged, by the answer to its WAIT.
    fn acknowledged(&self, waited: Outcome) -> Result<(), Broken> {
        let Wait { replicas, timeout } = self.wait;
        let acknowledged = match waited {
            Ok((_, Value::Error(text))) => {
                return Err(Broken::Unacknowledged(format!("WAIT was refused: {text}").into()));
            }
            Ok((_, value)) => value.unsigned().unwrap_or(0),
            // Replicas may have it, or not.
            Err(broken) => return Err(Broken::Unknown(broken.why())),
        };
        if acknowledged >= u64::from(replicas) {
            return Ok(());
        }
        let few = format!(
            "{acknowledged} of the {replicas} replicas that wait_replicas asks for acknowledged it \
             within {timeout:?}"
        );
        Err(Broken::Unacknowledged(few.into()))
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
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::*;
    use crate::engine::stream::Stream;

    /// Only what hangs takes longer than this.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Reads what we sent, to the end of the message that ends so.
    async fn read(server: &mut UnixStream, end: &str) {
        let mut got = Vec::new();
        while !got.ends_with(end.as_bytes()) {
            assert!(server.read_buf(&mut got).await.unwrap() > 0, "{got:?}");
        }
    }

    #[tokio::test]
    async fn r4_what_a_server_answered_is_told_whatever_becomes_of_the_wait_for_replicas() {
        let (ours, mut server) = UnixStream::pair().unwrap();
        let (pipe, driver) = Pipe::new(Stream::Unix(ours), PATIENCE, Arc::new(|_, _| {}));
        let gate = Arc::new(Gate::new(Wait { replicas: 1, timeout: PATIENCE }));
        let serves = gate.clone();
        let ended = tokio::spawn(async move { serves.serve(&pipe, driver).await });
        let soon = async |answer| tokio::time::timeout(PATIENCE, answer).await.unwrap();
        let mut asked = gate.take(&[Command::new(["RELEASE"]), Command::new(["ACQUIRE"])]);
        read(&mut server, "$1\r\n1\r\n$6\r\n120000\r\n").await;
        server.write_all(b":1\r\n").await.unwrap();
        let (acquired, released) = (asked.pop().unwrap(), asked.pop().unwrap());
        let released = soon(released).await.unwrap();
        assert_eq!(released.map(|(_, value)| value), Ok(Value::Integer(1)), "no replica has it");
        server.write_all(b"$5\r\n12345\r\n").await.unwrap();
        // Behind that WAIT.
        let mut gathers = gate.take(&[Command::new(["ACQUIRE"])]);
        drop(server);
        let why = "the server closed the connection";
        assert_eq!(soon(acquired).await.unwrap(), Err(Broken::Unknown(why.into())));
        let gathered = soon(gathers.pop().unwrap()).await.unwrap();
        assert_eq!(gathered, Err(Broken::NotSent(why.into())));
        assert_eq!(ended.await.unwrap(), why);
    }

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
