//! The resource that the locks guard: two registers a lock, one that checks tokens and one that
//! does not, and a log.
//!
//! It listens on a unix socket and answers lines: `NAME CLAIM MODE TOKEN` reads,
//! `NAME CLAIM MODE TOKEN FENCED UNFENCED` writes from the versions read before; with `-` for the
//! second it writes the first register alone. It answers `FENCED UNFENCED` with versions, or `-`
//! where the token was refused.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockkeeper::Kind;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};

use crate::history::{Flags, HoldMode, LockId, Record, What, Writer};

/// The registers of one lock.
#[derive(Default)]
struct Registers {
    fenced: u64,
    unfenced: u64,
    /// The greatest exclusive token seen.
    exclusive: u64,
    /// The greatest token of any kind.
    any: u64,
}

impl Registers {
    /// The rule of the design: an exclusive holder's every access is checked against all, a
    /// reader's against writers.
    fn admits(&mut self, exclusive: bool, token: u64) -> bool {
        let yes = if exclusive { token >= self.any } else { token >= self.exclusive };
        if yes {
            self.any = self.any.max(token);
            if exclusive {
                self.exclusive = token;
            }
        }
        yes
    }
}

struct Resource {
    registers: Mutex<HashMap<String, Registers>>,
    log: Writer,
}

/// How long the resource waits when it could not take somebody in.
const BREATH: Duration = Duration::from_millis(10);

/// Serves until the runtime ends.
pub(super) async fn serve(socket: &Path, log: Writer) -> io::Result<()> {
    let listener = UnixListener::bind(socket)?;
    let resource = Arc::new(Resource { registers: Mutex::default(), log });
    tokio::spawn(async move {
        let listener = &listener;
        loop {
            let (stream, _) = next(|| listener.accept()).await;
            tokio::spawn(answer(stream, resource.clone()));
        }
    });
    Ok(())
}

/// The next connection. One that was given up meanwhile, and descriptors that are all in use, end
/// nothing: others come, and those are closed.
async fn next<T, F: Future<Output = io::Result<T>>>(mut accept: impl FnMut() -> F) -> T {
    loop {
        match accept().await {
            Ok(stream) => return stream,
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

async fn answer(stream: UnixStream, resource: Arc<Resource>) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let reply = resource.act(&line).unwrap_or_else(|| "?\n".to_owned());
        if write.write_all(reply.as_bytes()).await.is_err() {
            return;
        }
    }
}

impl Resource {
    fn act(&self, line: &str) -> Option<String> {
        let mut words = line.split(' ');
        let (name, claim) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let (mode, token) = (words.next()?, words.next()?.parse::<u64>().ok()?);
        let (fenced, unfenced) = (words.next(), words.next());
        let late = unfenced == Some("-");
        let writes = match (fenced, unfenced) {
            (Some(fenced), Some(unfenced)) => Some((
                fenced.parse::<u64>().ok()?,
                if late { 0 } else { unfenced.parse::<u64>().ok()? },
            )),
            _ => None,
        };
        let exclusive = mode == "x";
        let mut all = self.registers.lock().unwrap_or_else(PoisonError::into_inner);
        let registers = all.entry(name.to_owned()).or_default();
        let admitted = registers.admits(exclusive, token);
        let what = if writes.is_some() { What::ResourceWrite } else { What::ResourceRead };
        let mut record = Record {
            mode: if exclusive { HoldMode::Exclusive } else { HoldMode::Shared },
            ..Record::about(what, LockId::NONE, claim)
        }
        .token(token);
        if let Some((_, unfenced)) = writes {
            record = record.number(registers.unfenced).deadline(unfenced);
        }
        if !late {
            self.log.write_for(Kind::Lock, name, record.flag(Flags::YES));
        }
        if let Some((fenced, _)) = writes {
            record = record.number(registers.fenced).deadline(fenced);
        }
        // Without a token the register that checks tokens has nothing to check: what happens to it
        // happened to the other one, and is told once (C21).
        if token != 0 || late {
            let answer = if admitted { Flags::YES.and(Flags::FENCED) } else { Flags::FENCED };
            self.log.write_for(Kind::Lock, name, record.flag(answer));
        }
        if let Some((fenced, unfenced)) = writes {
            if !late {
                registers.unfenced = unfenced + 1;
            }
            if admitted {
                registers.fenced = fenced + 1;
            }
        }
        let fenced = if admitted { registers.fenced.to_string() } else { "-".to_owned() };
        Some(format!("{fenced} {}\n", registers.unfenced))
    }
}

/// Who accesses what.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) name: &'a str,
    pub(super) claim: u64,
    pub(super) exclusive: bool,
    /// 0 for none.
    pub(super) token: u64,
}

impl Ask<'_> {
    fn line(self, write: Option<Versions>) -> String {
        let Self { name, claim, exclusive, token } = self;
        let mode = if exclusive { 'x' } else { 's' };
        match write {
            Some((fenced, unfenced)) => {
                format!("{name} {claim} {mode} {token} {} {unfenced}\n", fenced.unwrap_or(0))
            }
            None => format!("{name} {claim} {mode} {token}\n"),
        }
    }

    /// A write from this version that goes to the register which checks tokens, and to no other.
    fn late_line(self, fenced: u64) -> String {
        let Self { name, claim, exclusive, token } = self;
        let mode = if exclusive { 'x' } else { 's' };
        format!("{name} {claim} {mode} {token} {fenced} -\n")
    }
}

fn answered(line: &str) -> io::Result<Versions> {
    let mut words = line.trim_end().split(' ');
    let wrong =
        || io::Error::new(io::ErrorKind::InvalidData, "the resource answered something else");
    let fenced = words.next().ok_or_else(wrong)?.parse().ok();
    let unfenced = words.next().and_then(|w| w.parse().ok()).ok_or_else(wrong)?;
    Ok((fenced, unfenced))
}

/// A client's line to the resource, for threads.
pub(super) struct BlockingAccess(std::io::BufReader<std::os::unix::net::UnixStream>);

impl BlockingAccess {
    pub(super) fn open(socket: &Path) -> io::Result<Self> {
        Ok(Self(std::io::BufReader::new(std::os::unix::net::UnixStream::connect(socket)?)))
    }

    /// As [`Access::ask`].
    pub(super) fn ask(&mut self, ask: Ask<'_>, write: Option<Versions>) -> io::Result<Versions> {
        use std::io::{BufRead as _, Write as _};
        self.0.get_mut().write_all(ask.line(write).as_bytes())?;
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answered(&line)
    }
}

/// A client's line to the resource.
pub(super) struct Access {
    lines: BufReader<tokio::net::unix::OwnedReadHalf>,
    write: tokio::net::unix::OwnedWriteHalf,
    line: String,
}

/// What the resource answered: the fenced register's version, unless the token was refused, and the
/// unfenced one's.
pub(super) type Versions = (Option<u64>, u64);

impl Access {
    pub(super) async fn open(socket: &Path) -> io::Result<Self> {
        let (read, write) = UnixStream::connect(socket).await?.into_split();
        Ok(Self { lines: BufReader::new(read), write, line: String::new() })
    }

    /// One access: a read, or a write from versions read before.
    pub(super) async fn ask(
        &mut self,
        ask: Ask<'_>,
        write: Option<Versions>,
    ) -> io::Result<Versions> {
        self.send(&ask.line(write)).await
    }

    /// A write from a version read before by one who may have lost its lock since: to the register
    /// that checks tokens alone, for at the other it would be the writer's own fault.
    pub(super) async fn write_late(&mut self, ask: Ask<'_>, fenced: u64) -> io::Result<Versions> {
        self.send(&ask.late_line(fenced)).await
    }

    async fn send(&mut self, asked: &str) -> io::Result<Versions> {
        self.write.write_all(asked.as_bytes()).await?;
        self.line.clear();
        if self.lines.read_line(&mut self.line).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        answered(&self.line)
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use crate::check::{self, Class};
    use crate::history::{Role, WriterOptions};

    /// What the checker finds in the log of a resource that was told these lines; `-` for one that
    /// forgot its tokens in between.
    fn judged(lines: &[&str]) -> (Vec<String>, check::Report) {
        let dir = tempfile::tempdir().unwrap();
        let options = WriterOptions { role: Role::Resource, ..WriterOptions::default() };
        let log = Writer::create(dir.path().join("resource.lkh"), options).unwrap();
        let resource = Resource { registers: Mutex::default(), log };
        let mut answers = Vec::new();
        for line in lines {
            match resource.act(line) {
                Some(answer) => answers.push(answer.trim_end().to_owned()),
                None => {
                    let mut all = resource.registers.lock().unwrap();
                    all.values_mut().for_each(|r| (r.any, r.exclusive) = (0, 0));
                }
            }
        }
        resource.log.finish().unwrap();
        (answers, check::check_files(&[dir.path()], check::Options::default()).unwrap())
    }

    #[test]
    fn a_late_write_goes_to_the_register_that_checks_tokens_alone_and_is_refused_once_a_greater_one_was_seen()
     {
        let (answers, report) =
            judged(&["a 1 x 5", "a 1 x 5 0 -", "a 2 x 7", "a 1 x 5 1 -", "a 2 x 7 1 0"]);
        assert_eq!(answers, ["0 0", "1 0", "1 0", "- 0", "2 1"]);
        assert_eq!(
            (
                report.counts.stale_rejected,
                report.counts.stale_accepted,
                report.counts.stale_accepted_unfenced
            ),
            (1, 0, 0)
        );
        assert!(report.is_clean(), "{:?}", report.violations);
    }

    #[test]
    fn a_late_write_that_is_accepted_after_a_greater_token_was_seen_convicts() {
        let (answers, report) = judged(&["a 1 x 5", "a 2 x 7", "-", "a 1 x 5 0 -"]);
        assert_eq!(answers.last().map(String::as_str), Some("1 0"));
        assert_eq!((report.counts.stale_accepted, report.count(Class::StaleWriteAccepted)), (1, 1));
    }

    #[test]
    fn c21_a_lost_update_of_a_lock_without_tokens_is_one_violation() {
        let (answers, report) = judged(&["a 1 x 0", "a 2 x 0", "a 1 x 0 0 0", "a 2 x 0 0 0"]);
        assert_eq!(answers, ["0 0", "0 0", "1 1", "1 1"]);
        assert_eq!(
            (report.count(Class::LostUpdate), report.violations.len()),
            (1, 1),
            "{:?}",
            report.violations
        );
    }

    #[tokio::test]
    async fn who_cannot_be_taken_in_now_ends_nothing_for_those_who_come_later() {
        let mut answers = [Err(Errno::EMFILE), Err(Errno::ECONNABORTED), Ok(7)].into_iter();
        let began = std::time::Instant::now();
        assert_eq!(
            next(|| std::future::ready(answers.next().unwrap().map_err(io::Error::from))).await,
            7
        );
        assert!(began.elapsed() >= 2 * BREATH, "and it does not spin meanwhile");
    }
}
