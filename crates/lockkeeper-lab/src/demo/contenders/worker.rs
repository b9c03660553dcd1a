//! A process of the demo: one contender, or all of them as threads.

use std::future::{Future as _, IntoFuture as _, poll_fn};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::{Error, ErrorKind, Guard, Locks, Mutex, Result, Token};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, watch};

use crate::helper::{hear, orders, say};

/// What a process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Told {
    /// The engine's URL.
    pub(super) url: String,
    /// The lock's name.
    pub(super) name: String,
    /// Where holders make their files.
    pub(super) place: PathBuf,
    pub(super) hold: Duration,
    /// Who is in this process.
    pub(super) numbers: Vec<u32>,
}

/// What a contender says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// It has asked for the lock.
    Asks { contender: u32 },
    /// It has it, and made the file with this number: 1 unless others have theirs. It is the
    /// `turn`-th to hold the lock.
    Holds { contender: u32, token: Option<Token>, slot: u32, turn: u64 },
    /// It is about to give it back.
    Releases { contender: u32 },
    /// The lock was lost while it held it.
    Lost { contender: u32, why: String },
    /// It has had its turn.
    Ended { contender: u32 },
}

impl Said {
    /// Reads what [`Said::line`] wrote.
    pub(super) fn read(line: &str) -> Option<Self> {
        let mut words = line.splitn(3, ' ');
        let (word, contender) = (words.next()?, words.next()?.parse().ok()?);
        let rest = words.next().unwrap_or_default();
        match word {
            "asks" => Some(Self::Asks { contender }),
            "holds" => {
                let (token, rest) = rest.split_once(' ')?;
                let (slot, turn) = rest.split_once(' ')?;
                let token = if token == "-" { None } else { Some(token.parse().ok()?) };
                let (slot, turn) = (slot.parse().ok()?, turn.parse().ok()?);
                Some(Self::Holds { contender, token, slot, turn })
            }
            "releases" => Some(Self::Releases { contender }),
            "lost" => Some(Self::Lost { contender, why: rest.to_owned() }),
            "ended" => Some(Self::Ended { contender }),
            _ => None,
        }
    }

    fn line(&self) -> String {
        match self {
            Self::Asks { contender } => format!("asks {contender}"),
            Self::Holds { contender, token, slot, turn } => {
                let token = token.map_or_else(|| "-".to_owned(), |token| token.to_string());
                format!("holds {contender} {token} {slot} {turn}")
            }
            Self::Releases { contender } => format!("releases {contender}"),
            Self::Lost { contender, why } => format!("lost {contender} {why}"),
            Self::Ended { contender } => format!("ended {contender}"),
        }
    }

    fn say(&self) {
        say(&self.line());
    }
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|e| Error::new(ErrorKind::Refused, format!("cannot start a runtime: {e}")))
}

/// Which contender an order of the parent's is to start.
fn asked_number(order: &str, told: &Told) -> Result<u32> {
    let number = order.strip_prefix("ask ").and_then(|number| number.parse().ok());
    number.filter(|number| told.numbers.contains(number)).ok_or_else(|| {
        Error::new(ErrorKind::InvalidArgument, "the order to the contender is not valid")
    })
}

/// The life of a process.
pub(crate) fn main() -> Result<()> {
    let told: Told = hear()?;
    runtime()?.block_on(async {
        let mut parent = orders();
        let locks = Locks::open(&told.url).await?;
        let (go, _) = watch::channel(false);
        let (ended, mut ends) = mpsc::unbounded_channel();
        say("ready");
        loop {
            tokio::select! {
                order = parent.recv() => match order.as_deref() {
                    Some("end") | None => break,
                    Some("go") => _ = go.send_replace(true),
                    Some(order) => {
                        let contender = Contender {
                            number: asked_number(order, &told)?,
                            mutex: locks.mutex(&told.name),
                            told: told.clone(),
                            go: go.subscribe(),
                        };
                        contender.start(ended.clone())?;
                    }
                },
                Some(end) = ends.recv() => end?,
            }
        }
        // What stayed unknown is cleared away by the parent.
        let _ = locks.close().await;
        Ok(())
    })
}

/// One that wants the lock.
struct Contender {
    number: u32,
    mutex: Mutex,
    told: Told,
    go: watch::Receiver<bool>,
}

impl Contender {
    /// A thread of its own; it tells how it ended.
    fn start(self, ended: mpsc::UnboundedSender<Result<()>>) -> Result<()> {
        let thread = std::thread::Builder::new().name(format!("contender-{}", self.number));
        let contend = move || {
            let end = runtime().and_then(|runtime| runtime.block_on(self.contend()));
            // The process ends: nobody wants to know.
            let _ = ended.send(end);
        };
        thread
            .spawn(contend)
            .map(drop)
            .map_err(|e| Error::new(ErrorKind::Refused, format!("cannot start a thread: {e}")))
    }

    async fn contend(mut self) -> Result<()> {
        let contender = self.number;
        let mut wait = Box::pin(self.mutex.lock().into_future());
        // Its place among the threads is given at the first poll.
        let first = poll_fn(|context| {
            Poll::Ready(match wait.as_mut().poll(context) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            })
        });
        let first = first.await;
        Said::Asks { contender }.say();
        let guard = match first {
            Some(done) => done?,
            None => wait.await?,
        };
        let slot = Slot::take(&self.told.place)?;
        let (token, turn) = (guard.token().ok(), slot.turn);
        Said::Holds { contender, token, slot: slot.number, turn }.say();
        self.work(&guard).await;
        if let Err(why) = guard.check().map_err(|error| error.message().to_owned()) {
            Said::Lost { contender, why }.say();
        }
        // Said before the next one can have the lock and its file, so that it is known to have come
        // first.
        Said::Releases { contender }.say();
        drop(slot);
        // What became of it is seen by whoever is next.
        let _ = guard.release().await;
        Said::Ended { contender }.say();
        Ok(())
    }

    /// Holds the lock for its time; the first one at least until everybody stands in line.
    async fn work(&mut self, guard: &Guard) {
        let held = async {
            tokio::time::sleep(self.told.hold).await;
            if self.number == 0 {
                // The parent that could say it is gone: then so are we.
                let _ = self.go.wait_for(|go| *go).await;
            }
        };
        tokio::select! {
            () = held => {}
            _ = guard.lost() => {}
        }
    }
}

/// The first of some files that nobody else has: who gets the second one is not alone.
struct Slot {
    path: PathBuf,
    number: u32,
    /// How many have had one, with this one.
    turn: u64,
}

impl Slot {
    fn take(place: &Path) -> Result<Self> {
        let failed = |path: &Path, e| {
            Error::new(ErrorKind::Refused, format!("cannot make {}: {e}", path.display()))
        };
        let mut number = 1;
        loop {
            let path = place.join(format!("holder-{number}"));
            match std::fs::OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => {
                    let turns = place.join("turns");
                    let turn = next_turn(&turns).map_err(|e| failed(&turns, e))?;
                    return Ok(Self { path, number, turn });
                }
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => number += 1,
                Err(e) => return Err(failed(&path, e)),
            }
        }
    }
}

/// A byte for each turn.
fn next_turn(turns: &Path) -> std::io::Result<u64> {
    let mut turns = std::fs::OpenOptions::new().append(true).create(true).open(turns)?;
    turns.write_all(b".")?;
    turns.metadata().map(|turns| turns.len())
}

impl Drop for Slot {
    fn drop(&mut self) {
        // One that stays makes the next holder the second one, which is seen.
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_contender_says_is_read_back() {
        let all = [
            Said::Asks { contender: 3 },
            Said::Holds { contender: 0, token: Token::raw(7), slot: 1, turn: 1 },
            Said::Holds { contender: 9, token: None, slot: 2, turn: 12 },
            Said::Releases { contender: 1 },
            Said::Lost { contender: 1, why: "its session ended".to_owned() },
            Said::Ended { contender: 1 },
        ];
        for said in all {
            assert_eq!(Said::read(&said.line()), Some(said.clone()), "{said:?}");
        }
        for noise in ["", "ready", "holds", "holds 1", "holds 1 x 1 1", "holds 1 - 1", "asks x"] {
            assert_eq!(Said::read(noise), None, "{noise:?}");
        }
    }

    #[test]
    fn the_second_one_inside_knows_that_it_is() {
        let place = tempfile::tempdir().unwrap();
        let first = Slot::take(place.path()).unwrap();
        let second = Slot::take(place.path()).unwrap();
        assert_eq!([first.number, second.number], [1, 2]);
        drop(first);
        let third = Slot::take(place.path()).unwrap();
        assert_eq!((third.number, third.turn), (1, 3));
    }
}
