//! The helper's own side.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::ops::Deref;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lockkeeper::{Error, ErrorKind, Guard, Locks, Mode, Released, UpgradableGuard, WriteGuard};

use super::words::{error_words, hex, mode, unhex};
use crate::conformance::occupancy::Occupancy;
use crate::conformance::subject::Opening;

/// A turn of any kind.
enum Turn {
    Plain(Guard),
    Write(WriteGuard),
    Upgradable(UpgradableGuard),
}

impl Deref for Turn {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        match self {
            Self::Plain(guard) => guard,
            Self::Write(guard) => guard,
            Self::Upgradable(guard) => guard,
        }
    }
}

impl Turn {
    async fn release(self) -> Released {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
            Self::Upgradable(guard) => guard.release().await,
        }
    }
}

struct Server {
    locks: Locks,
    turns: Mutex<HashMap<u32, Turn>>,
    next: AtomicU32,
}

/// Serves one test from standard input and output; for the `main` of a helper program, whose only
/// argument is the URL.
pub fn serve(open: impl Fn(String) -> Opening) -> ExitCode {
    crate::engines::known();
    let Some(url) = std::env::args().nth(1) else {
        eprintln!("usage: lab-helper URL; then one request a line on standard input");
        return ExitCode::from(64);
    };
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("no runtime: {error}");
                return ExitCode::from(71);
            }
        };
    let locks = match runtime.block_on(open(url)) {
        Ok(locks) => locks,
        Err(error) => {
            say(&format!("0 {}", error_words(&error)));
            return ExitCode::from(error.kind().exit_code());
        }
    };
    say("0 ready");
    let server = Arc::new(Server { locks, turns: Mutex::default(), next: AtomicU32::new(1) });
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let server = server.clone();
        runtime.spawn(async move {
            let (number, request) = line.split_once(' ').unwrap_or((&line, ""));
            let answer = server.answer(request).await.unwrap_or_else(|error| error_words(&error));
            say(&format!("{number} {answer}"));
        });
    }
    // The test is gone: what is held ends as it does for any process that dies.
    std::process::exit(0)
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Nobody reads any more: standard input ends too, and with it the process.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn wrong(request: &str) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("no such request: {request}"))
}

impl Server {
    fn turns(&self) -> std::sync::MutexGuard<'_, HashMap<u32, Turn>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self, id: &str) -> Result<Turn, Error> {
        id.parse().ok().and_then(|id: u32| self.turns().remove(&id)).ok_or_else(|| wrong(id))
    }

    fn keep(&self, turn: Turn) -> String {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let token = turn.token().map_or_else(|_| "-".to_owned(), |token| token.to_string());
        self.turns().insert(id, turn);
        format!("held {id} {token}")
    }

    async fn answer(&self, request: &str) -> Result<String, Error> {
        let words: Vec<&str> = request.split(' ').collect();
        match words.as_slice() {
            ["lock", mode_word, name, timeout_ms] => {
                let (mode, name, timeout) =
                    arguments(mode_word, name, timeout_ms).ok_or_else(|| wrong(request))?;
                Ok(self.keep(self.lock(mode, &name, timeout).await?))
            }
            ["try", mode_word, name] => {
                let (mode, name, _) =
                    arguments(mode_word, name, "0").ok_or_else(|| wrong(request))?;
                Ok(self
                    .try_lock(mode, &name)
                    .await?
                    .map_or_else(|| "busy".to_owned(), |turn| self.keep(turn)))
            }
            ["release", id] => {
                let turn = self.take(id)?;
                Ok(match turn.release().await {
                    Released::Clean => "clean".to_owned(),
                    Released::AlreadyLost(why) => format!("already-lost {}", why.as_str()),
                    Released::NotOurs => "not-ours".to_owned(),
                    Released::Unknown(error) => error_words(&error),
                    other => format!("other {}", hex(&format!("{other:?}"))),
                })
            }
            ["drop", id] => {
                drop(self.take(id)?);
                Ok("done".to_owned())
            }
            ["check", id] => {
                let held = id
                    .parse()
                    .ok()
                    .and_then(|id: u32| self.turns().get(&id).map(|turn| turn.held()))
                    .ok_or_else(|| wrong(request))?;
                Ok(held
                    .why_lost()
                    .map_or_else(|| "ok".to_owned(), |why| format!("lost {}", why.as_str())))
            }
            ["verify", id] => {
                let held = id
                    .parse()
                    .ok()
                    .and_then(|id: u32| self.turns().get(&id).map(|turn| turn.held()))
                    .ok_or_else(|| wrong(request))?;
                match held.verify().await {
                    Ok(()) => Ok("ok".to_owned()),
                    Err(error) => {
                        held.why_lost().map(|why| format!("lost {}", why.as_str())).ok_or(error)
                    }
                }
            }
            ["lost", id] => {
                let held = id
                    .parse()
                    .ok()
                    .and_then(|id: u32| self.turns().get(&id).map(|turn| turn.held()))
                    .ok_or_else(|| wrong(request))?;
                Ok(format!("lost {}", held.lost().await.as_str()))
            }
            ["occupy", mode_word, name, tasks, rounds, file] => {
                let (mode, name, _) =
                    arguments(mode_word, name, "0").ok_or_else(|| wrong(request))?;
                let (tasks, rounds, file) = (tasks.parse().ok(), rounds.parse().ok(), unhex(file))
                    .into_all()
                    .ok_or_else(|| wrong(request))?;
                self.occupy(mode, &name, tasks, rounds, &file).await
            }
            ["compete", name, tasks, time_ms] => {
                let (tasks, name, time) = arguments("exclusive", name, time_ms)
                    .and_then(|(_, name, time)| Some((tasks.parse().ok()?, name, time)))
                    .ok_or_else(|| wrong(request))?;
                self.compete(&name, tasks, time).await.map(|turns| turns.to_string())
            }
            ["fork", name] => {
                let name = unhex(name).ok_or_else(|| wrong(request))?;
                super::fork::check(&self.locks, &name).await
            }
            ["close"] => Ok(format!("closed {}", self.locks.close().await.unknown.len())),
            ["exit"] => std::process::exit(0),
            _ => Err(wrong(request)),
        }
    }

    async fn lock(&self, mode: Mode, name: &str, timeout: Duration) -> Result<Turn, Error> {
        Ok(match mode {
            Mode::Exclusive => Turn::Write(self.locks.rwlock(name).write().timeout(timeout).await?),
            Mode::Shared => Turn::Plain(self.locks.rwlock(name).read().timeout(timeout).await?),
            Mode::Upgradable => {
                Turn::Upgradable(self.locks.rwlock(name).upgradable().timeout(timeout).await?)
            }
            Mode::Permits { count, limit } => Turn::Plain(
                self.locks.semaphore(name, limit).acquire(count).timeout(timeout).await?,
            ),
        })
    }

    async fn try_lock(&self, mode: Mode, name: &str) -> Result<Option<Turn>, Error> {
        Ok(match mode {
            Mode::Exclusive | Mode::Upgradable => {
                self.locks.rwlock(name).try_write().await?.map(Turn::Write)
            }
            Mode::Shared => self.locks.rwlock(name).try_read().await?.map(Turn::Plain),
            Mode::Permits { count, limit } => {
                self.locks.semaphore(name, limit).try_acquire(count).await?.map(Turn::Plain)
            }
        })
    }

    /// Many tasks take the lock again and again, and count themselves in.
    async fn occupy(
        &self,
        mode: Mode,
        name: &str,
        tasks: u32,
        rounds: u32,
        file: &str,
    ) -> Result<String, Error> {
        let refused = |e: std::io::Error| Error::new(ErrorKind::Refused, e.to_string());
        let occupancy = Arc::new(Occupancy::open(Path::new(file)).map_err(refused)?);
        let mut running = Vec::new();
        for _ in 0..tasks {
            let (locks, name, occupancy) = (self.locks.clone(), name.to_owned(), occupancy.clone());
            running.push(tokio::spawn(async move {
                occupy(&locks, mode, &name, rounds, &occupancy).await
            }));
        }
        for task in running {
            task.await.map_err(|e| Error::new(ErrorKind::Unknown, e.to_string()))??;
        }
        Ok("done".to_owned())
    }

    /// Tasks take the lock again and again for so long; how many turns they had.
    async fn compete(&self, name: &str, tasks: u32, time: Duration) -> Result<u64, Error> {
        let until = Instant::now() + time;
        let mut running = Vec::new();
        for _ in 0..tasks {
            let mutex = self.locks.mutex(name);
            running.push(tokio::spawn(async move {
                let mut turns = 0;
                while Instant::now() < until {
                    let guard = mutex.lock().await?;
                    tokio::task::yield_now().await;
                    drop(guard);
                    turns += 1;
                }
                Ok::<u64, Error>(turns)
            }));
        }
        let mut turns = 0;
        for task in running {
            turns += task.await.map_err(|e| Error::new(ErrorKind::Unknown, e.to_string()))??;
        }
        Ok(turns)
    }
}

/// Takes the lock again and again, and counts itself in each time.
pub(in crate::conformance) async fn occupy(
    locks: &Locks,
    mode: Mode,
    name: &str,
    rounds: u32,
    occupancy: &Occupancy,
) -> Result<(), Error> {
    for round in 0..rounds {
        let inside = async {
            if round % 4 == 0 {
                tokio::task::yield_now().await;
            }
        };
        match mode {
            Mode::Shared => {
                let guard = locks.rwlock(name).read().await?;
                occupancy.beside(inside).await;
                drop(guard);
            }
            Mode::Permits { count, limit } => {
                let guard = locks.semaphore(name, limit).acquire(count).await?;
                occupancy.alone(None, inside).await;
                drop(guard);
            }
            Mode::Exclusive | Mode::Upgradable => {
                let guard = locks.mutex(name).lock().await?;
                occupancy.alone(guard.token().ok(), inside).await;
                drop(guard);
            }
        }
    }
    Ok(())
}

fn arguments(mode_word: &str, name: &str, timeout_ms: &str) -> Option<(Mode, String, Duration)> {
    Some((mode(mode_word)?, unhex(name)?, Duration::from_millis(timeout_ms.parse().ok()?)))
}

/// All or none.
trait IntoAll<T> {
    fn into_all(self) -> Option<T>;
}

impl<A, B, C> IntoAll<(A, B, C)> for (Option<A>, Option<B>, Option<C>) {
    fn into_all(self) -> Option<(A, B, C)> {
        Some((self.0?, self.1?, self.2?))
    }
}
