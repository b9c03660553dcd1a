//! Requests that count only once replicas have what they wrote: one WAIT behind each batch, and
//! never more than one outstanding.
//!
//! WAIT is about what its own connection wrote. So a script that gives a hold which is there
//! already, of an earlier question or by somebody else's release, writes its time to live once more
//! (PEXPIRE): without that the WAIT behind it would count replicas that lack the hold.
//!
//! WAIT keeps its connection from doing anything else, so requests that come meanwhile gather and
//! are the next batch: they share its round trip to the replicas.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Notify, oneshot};
use tokio::task::unconstrained;

use super::super::options::Wait;
use super::pipe::{Broken, Outcome, Pipe};
use super::resp::{Command, Gives, Value};
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
        // Whoever is told may ask again in its turn: nothing is locked meanwhile.
        let gathered = std::mem::take(&mut *self.gathered());
        for (_, reply) in gathered {
            // Whoever asked may have left.
            let _ = reply.send(Err(Broken::NotSent(why.into())));
        }
    }

    /// Drives a connection, and sends batch after batch over it, until it ends; answers why.
    pub(super) async fn serve(&self, pipe: &Pipe, driver: impl Future<Output = String>) -> String {
        let over = AtomicBool::new(false);
        let mut batches = pin!(self.send_batches(pipe, &over));
        let Ok(why) = either(driver, batches.as_mut()).await;
        // The driver has said of each request what became of it: that is handed on. What gathers
        // from here on is refused once, by whoever ends the connection: those who are told may ask
        // again at once, and would be told for ever.
        over.store(true, Ordering::Relaxed);
        _ = either(unconstrained(batches), std::future::ready(())).await;
        self.refuse(&why);
        why
    }

    /// Sends batch after batch, for as long as it is polled and the connection is not `over`.
    async fn send_batches(&self, pipe: &Pipe, over: &AtomicBool) -> Infallible {
        let (replicas, millis) = (u64::from(self.wait.replicas), self.wait.timeout.as_millis());
        let millis = u64::try_from(millis).unwrap_or(u64::MAX);
        loop {
            if over.load(Ordering::Relaxed) {
                return pending().await;
            }
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
            let gives: Vec<Gives> = commands.iter().map(Command::gives).collect();
            commands.push(Command::new(["WAIT"]).number(replicas).number(millis));
            let mut answers = pipe.send(&commands).into_iter().map(outcome);
            let waited = answers.next_back();
            let mut granted = Vec::new();
            for ((answer, reply), gives) in answers.zip(replies).zip(gives) {
                match answer.await {
                    Ok((order, value)) if given(gives, &value) => {
                        granted.push((order, value, reply))
                    }
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

/// Whether an answer gives what its request asked for. That of the short way is the number alone.
fn given(gives: Gives, value: &Value) -> bool {
    // Its number may stand behind it.
    let kept = |value: &Value| value.text().is_some_and(|text| text.starts_with('D'));
    match (gives, value.bytes()) {
        (Gives::Nothing, _) => false,
        (Gives::Hold, Some(text)) => !text.is_empty() && text.iter().all(u8::is_ascii_digit),
        (Gives::Hold, None) => value.items().first().and_then(Value::text) == Some("G"),
        // The words stand for themselves, or behind the server's time.
        (Gives::Time, _) => {
            value.items().iter().any(|item| kept(item) || item.items().iter().any(kept))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::pin::Pin;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::UnixStream;

    use super::super::script::{Call, Which};
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
        let acquire = || Command::new(["ACQUIRE"]).giving(Gives::Hold);
        let mut asked = gate.take(&[Command::new(["RELEASE"]), acquire()]);
        read(&mut server, "$1\r\n1\r\n$6\r\n120000\r\n").await;
        server.write_all(b":1\r\n").await.unwrap();
        let (acquired, released) = (asked.pop().unwrap(), asked.pop().unwrap());
        let released = soon(released).await.unwrap();
        assert_eq!(released.map(|(_, value)| value), Ok(Value::Integer(1)), "no replica has it");
        server.write_all(b"$5\r\n12345\r\n").await.unwrap();
        // Behind that WAIT.
        let mut gathers = gate.take(&[acquire()]);
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
        let words = |words: &[&str]| Value::Array(words.iter().map(|word| text(word)).collect());
        let now = "1790000000000000";
        for (gives, value, is) in [
            (Gives::Hold, words(&["G", now, "2", "3"]), true),
            (Gives::Hold, Value::Array(vec![text("G"), text(now), words(&["G"])]), true),
            (Gives::Hold, words(&["B", now, "2", "D"]), false),
            (Gives::Hold, words(&["L", now]), false),
            (Gives::Hold, words(&["W", now]), false),
            (Gives::Hold, text("1765803841359"), true),
            (Gives::Hold, Value::Error("NOSCRIPT".into()), false),
            (Gives::Time, Value::Array(vec![text(now), words(&["X", "D7"])]), true),
            (Gives::Time, Value::Array(vec![text(now), words(&["X"])]), false),
            (Gives::Time, words(&["X", "D"]), true),
            (Gives::Time, words(&["D"]), true),
            (Gives::Time, words(&["X", "X"]), false),
            (Gives::Time, Value::Error("NOSCRIPT".into()), false),
            // Releases, on the short way and otherwise, withdrawals, and what is only looked at.
            (Gives::Nothing, Value::Integer(1), false),
            (Gives::Nothing, words(&["D", now]), false),
            (Gives::Nothing, words(&["D"]), false),
            (Gives::Nothing, Value::Array(vec![text("D"), Value::Integer(1)]), false),
            (Gives::Nothing, text("1765803841359"), false),
            (Gives::Nothing, text("OK"), false),
        ] {
            assert_eq!(given(gives, &value), is, "{gives:?} {value:?}");
        }
    }

    #[test]
    fn each_script_says_what_its_answer_may_give() {
        let of = |gives| {
            let all = Which::ALL.iter().map(|(which, _)| *which);
            let some = all.filter(|which| {
                let call = Call::new(*which);
                let commands = [call.by_name(), call.in_full()];
                commands.iter().all(|command| command.gives() == gives)
            });
            some.collect::<BTreeSet<_>>()
        };
        let named = |word: &str| {
            let all = Which::ALL.iter().map(|(which, _)| *which);
            all.filter(|which| format!("{which:?}").contains(word)).collect::<BTreeSet<_>>()
        };
        let both = [Which::Convert, Which::Together].into();
        let hold = &(&named("Take") | &named("Acquire")) | &both;
        assert_eq!(of(Gives::Hold), hold);
        assert_eq!(of(Gives::Time), named("Renew"));
        assert!(of(Gives::Nothing).is_superset(&(&named("Release") | &named("Inspect"))));
    }

    /// Asks again as soon as it is told that nothing was sent, as those do who wait for a
    /// connection; not for ever, or a test that fails would not end.
    struct Insists {
        gate: Arc<Gate>,
        asked: AtomicUsize,
        answers: Mutex<Vec<oneshot::Receiver<Outcome>>>,
    }

    impl Insists {
        fn ask(self: &Arc<Self>) {
            if self.asked.fetch_add(1, Ordering::Relaxed) > 10_000 {
                return;
            }
            let mut answers = self.gate.take(&[Command::new(["ACQUIRE"])]);
            let waker = Waker::from(self.clone());
            for answer in &mut answers {
                assert!(Pin::new(answer).poll(&mut Context::from_waker(&waker)).is_pending());
            }
            self.answers.lock().unwrap().append(&mut answers);
        }
    }

    impl Wake for Insists {
        fn wake(self: Arc<Self>) {
            self.ask();
        }
    }

    #[tokio::test]
    async fn whoever_asks_again_at_once_does_not_keep_a_connection_that_ended_from_its_end() {
        let (ours, server) = UnixStream::pair().unwrap();
        let (pipe, driver) = Pipe::new(Stream::Unix(ours), PATIENCE, Arc::new(|_, _| {}));
        let gate = Arc::new(Gate::new(Wait { replicas: 1, timeout: PATIENCE }));
        let asks = Insists { gate: gate.clone(), asked: 0.into(), answers: Mutex::default() };
        let asks = Arc::new(asks);
        drop(server);
        asks.ask();
        gate.serve(&pipe, driver).await;
        let asked = asks.asked.load(Ordering::Relaxed);
        assert!(asked <= 3, "asked {asked} times, and told as often that there is no connection");
    }
}
