//! The test's side of a helper.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::{Mode, Token};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::sync::oneshot;

use super::words::{hex, mode_word, unhex};

/// How long a helper may take for one answer.
const PATIENCE: Duration = Duration::from_secs(120);

type Waiting = Arc<Mutex<HashMap<u32, oneshot::Sender<String>>>>;

/// A process that takes locks; killed when this is dropped.
#[derive(Debug)]
pub struct Helper {
    child: Mutex<Child>,
    input: Mutex<ChildStdin>,
    waiting: Waiting,
    next: AtomicU32,
    pid: Pid,
}

/// Why a helper did not do it: the kind's word, and the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HelperError {
    /// The error's kind as [`ErrorKind::as_str`](lockkeeper::ErrorKind::as_str) says it; `gone`
    /// when the process is no more.
    pub kind: String,
    /// The message.
    pub message: String,
}

/// A turn of a helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    id: u32,
    /// Its fencing token, if it has one.
    pub token: Option<Token>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Helper {
    /// Starts one, with the store open.
    ///
    /// # Panics
    /// When it cannot be started or cannot open the store.
    pub async fn start(program: &Path, url: &str) -> Self {
        Self::start_in::<&str, &str>(program, url, []).await
    }

    /// The same with variables in its environment, for a preloaded clock.
    ///
    /// # Panics
    /// When it cannot be started or cannot open the store.
    pub async fn start_in<K: AsRef<OsStr>, V: AsRef<OsStr>>(
        program: &Path,
        url: &str,
        environment: impl IntoIterator<Item = (K, V)>,
    ) -> Self {
        let mut child = Command::new(program)
            .arg(url)
            .envs(environment)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{} cannot be started: {e}", program.display()));
        let input = child.stdin.take().expect("it is piped");
        let output = child.stdout.take().expect("it is piped");
        let pid = Pid::from_raw(i32::try_from(child.id()).expect("a process id"));
        let waiting: Waiting = Arc::default();
        let (opened, ready) = oneshot::channel();
        lock(&waiting).insert(0, opened);
        let readers = waiting.clone();
        std::thread::Builder::new()
            .name("helper".to_owned())
            .spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let (number, answer) = line.split_once(' ').unwrap_or((&line, ""));
                    let sender =
                        number.parse().ok().and_then(|number: u32| lock(&readers).remove(&number));
                    // Who asked may have left.
                    let _ = sender.map(|s| s.send(answer.to_owned()));
                }
                lock(&readers).clear();
            })
            .expect("a thread can be started");
        let helper = Self {
            child: Mutex::new(child),
            input: Mutex::new(input),
            waiting,
            next: AtomicU32::new(1),
            pid,
        };
        let opened = tokio::time::timeout(PATIENCE, ready).await;
        assert_eq!(
            opened.ok().and_then(Result::ok).as_deref(),
            Some("ready"),
            "the helper opens the store"
        );
        helper
    }

    /// Sends one request and waits for its answer.
    async fn ask(&self, request: &str) -> Result<String, HelperError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        lock(&self.waiting).insert(number, sender);
        let sent = writeln!(lock(&self.input), "{number} {request}");
        let gone =
            || HelperError { kind: "gone".to_owned(), message: "the helper is no more".to_owned() };
        sent.map_err(|_| gone())?;
        let answer = tokio::time::timeout(PATIENCE, receiver)
            .await
            .map_err(|_| gone())?
            .map_err(|_| gone())?;
        let Some(error) = answer.strip_prefix("error ") else { return Ok(answer) };
        let (kind, message) = error.split_once(' ').unwrap_or((error, "-"));
        Err(HelperError { kind: kind.to_owned(), message: unhex(message).unwrap_or_default() })
    }

    fn turn(answer: &str) -> Option<Turn> {
        let (id, token) = answer.strip_prefix("held ")?.split_once(' ')?;
        Some(Turn { id: id.parse().ok()?, token: token.parse().ok() })
    }

    /// Waits there for a lock.
    ///
    /// # Errors
    /// What the acquisition gave.
    pub async fn lock(
        &self,
        mode: Mode,
        name: &str,
        timeout: Duration,
    ) -> Result<Turn, HelperError> {
        let answer = self
            .ask(&format!("lock {} {} {}", mode_word(mode), hex(name), timeout.as_millis()))
            .await?;
        Ok(Self::turn(&answer).expect("the helper says what it holds"))
    }

    /// Tries there.
    ///
    /// # Errors
    /// What the attempt gave.
    pub async fn try_lock(&self, mode: Mode, name: &str) -> Result<Option<Turn>, HelperError> {
        Ok(Self::turn(&self.ask(&format!("try {} {}", mode_word(mode), hex(name))).await?))
    }

    /// Gives back there: `clean`, `already-lost WHY`, `not-ours`.
    ///
    /// # Errors
    /// `unknown`, or when there is no such turn.
    pub async fn release(&self, turn: Turn) -> Result<String, HelperError> {
        self.ask(&format!("release {}", turn.id)).await
    }

    /// Asks the engine there whether the turn is still there: `ok`, `lost WHY`.
    ///
    /// # Errors
    /// When the engine cannot be asked, or there is no such turn.
    pub async fn verify(&self, turn: Turn) -> Result<String, HelperError> {
        self.ask(&format!("verify {}", turn.id)).await
    }

    /// Whether the turn is still there: `ok`, `lost WHY`.
    ///
    /// # Errors
    /// When there is no such turn.
    pub async fn check(&self, turn: Turn) -> Result<String, HelperError> {
        self.ask(&format!("check {}", turn.id)).await
    }

    /// Waits there until the turn is lost: `lost WHY`.
    ///
    /// # Errors
    /// When there is no such turn.
    pub async fn lost(&self, turn: Turn) -> Result<String, HelperError> {
        self.ask(&format!("lost {}", turn.id)).await
    }

    /// Lets many tasks there take the lock again and again, and count themselves in a shared file.
    ///
    /// # Errors
    /// The first that an acquisition gave.
    pub async fn occupy(
        &self,
        mode: Mode,
        name: &str,
        tasks: u32,
        rounds: u32,
        file: &Path,
    ) -> Result<(), HelperError> {
        let file = hex(&file.to_string_lossy());
        self.ask(&format!("occupy {} {} {tasks} {rounds} {file}", mode_word(mode), hex(name)))
            .await
            .map(drop)
    }

    /// Lets tasks there take a mutex again and again for so long; answers how many turns they had.
    ///
    /// # Errors
    /// The first that an acquisition gave.
    pub async fn compete(
        &self,
        name: &str,
        tasks: u32,
        time: Duration,
    ) -> Result<u64, HelperError> {
        let turns =
            self.ask(&format!("compete {} {tasks} {}", hex(name), time.as_millis())).await?;
        Ok(turns.parse().expect("the helper says how many"))
    }

    /// Lets it fork while it holds a lock.
    ///
    /// # Errors
    /// What the child or the parent found wrong.
    pub async fn fork(&self, name: &str) -> Result<(), HelperError> {
        self.ask(&format!("fork {}", hex(name))).await.map(drop)
    }

    /// Closes its `Locks`.
    ///
    /// # Errors
    /// When the helper is gone.
    pub async fn close(&self) -> Result<(), HelperError> {
        self.ask("close").await.map(drop)
    }

    /// Lets it leave without closing anything, and waits until it is gone.
    pub async fn leave(&self) {
        // It does not answer this.
        let _ = tokio::time::timeout(Duration::from_secs(5), self.ask("exit")).await;
        self.wait();
    }

    /// Stops the process from running, without ending it.
    pub fn stop(&self) {
        kill(self.pid, Signal::SIGSTOP).expect("it runs");
    }

    /// Lets a stopped process run on.
    pub fn go_on(&self) {
        kill(self.pid, Signal::SIGCONT).expect("it is stopped");
    }

    /// Kills it at once.
    pub fn kill(&self) {
        // It may be gone already.
        let _ = lock(&self.child).kill();
        self.wait();
    }

    fn wait(&self) {
        // It was killed or has left, so this does not wait long; and there is nothing to do about a
        // failure.
        let _ = lock(&self.child).wait();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}
