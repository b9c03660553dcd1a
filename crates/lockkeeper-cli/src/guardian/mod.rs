//! The guardian: a second small lockkeeper process that takes a lease, keeps it, and ends the
//! command in time.
//!
//! It runs in a session of its own, so that nothing from the keyboard and no stop of the job
//! reaches it, with a [`mod@line`] to whoever hired it. When that line closes, or the lease is
//! about to end, it stops the command; when nothing of the command runs any more, it gives the lock
//! back. So it does with what whoever hired it leaves lying: after a second if that one is stopped.
//! What it has to do and when is decided in [`duty`].

mod duty;
mod line;
mod noted;
mod sheet;
mod target;
mod watch;
mod wire;

use std::cell::Cell;
use std::ffi::OsString;
use std::future::{Future, IntoFuture as _};
use std::os::fd::AsFd as _;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use lockkeeper::observe::Observer;
use lockkeeper::url::EngineUrl;
use lockkeeper::{
    Acquire, Entry, Error, ErrorKind, Guard, Held, Locks, Mode, Name, Released, Result, TryAcquire,
};
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigHandler, Signal, signal};

pub use self::duty::Times;
use self::duty::{Event, Margins, NEWER};
pub use self::line::{Heard, Line, read};
use self::noted::{Bell, Noted};
pub use self::sheet::Sheet;
use self::target::Target;
use self::watch::Watch;
pub use self::wire::{Care, Order, RELEASE, Release, Tell, WHO_HOLDS, WHY, announce};
use self::wire::{ErrorWord, place, read_started};
use crate::engine::OF_SERVERS;
use crate::failure::exit;
use crate::kill_after::Lasts;
use crate::start::moment;
use crate::supervise::timeout;
use crate::under::{Caution, Why};
use crate::urls;

/// The argument that makes the program a guardian.
pub const WORD: &str = "__guardian";

/// How long giving back and closing may take when the engine does not answer.
const PARTING: Duration = Duration::from_secs(5);

/// How long an answer is waited for unless the URL says otherwise.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Whether this process was started to be a guardian; then its exit code.
pub fn hired(arguments: &[OsString]) -> Option<u8> {
    match arguments {
        [_, word, ..] if word == WORD => Some(main()),
        _ => None,
    }
}

fn main() -> u8 {
    let Some(line) = Line::of_stdin() else {
        eprintln!("lockkeeper: this is how lockkeeper starts its guardian: use lockkeeper run");
        return exit::USAGE;
    };
    settle_in();
    let Ok(bell) = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK) else {
        return exit::INTERNAL;
    };
    let bell = Arc::new(Bell(bell));
    // The first message is there before this process is.
    let order = loop {
        match line.hear() {
            Heard::Message(message) => break read::<Order>(&message),
            Heard::Gone => return 0,
            Heard::Nothing => {
                _ = poll(&mut [PollFd::new(line.as_fd(), PollFlags::POLLIN)], timeout(None))
            }
        }
    };
    let Some((order, name)) =
        order.and_then(|order| Some((order.clone(), Name::new(&order.name).ok()?)))
    else {
        return exit::USAGE;
    };
    let url = EngineUrl::parse(&order.url).ok();
    let option =
        |name: &str| url.clone().and_then(|mut url| url.take_duration(name).ok().flatten());
    let request_timeout = option("request_timeout").unwrap_or(REQUEST_TIMEOUT);
    let session_asked =
        urls::session(&order.url).ok().flatten().map_or(Duration::ZERO, |(session, _)| session);
    let noted = Arc::new(Noted { bell: Arc::clone(&bell), state: Mutex::default() });
    let waker = Waker::from(Arc::clone(&bell));
    Guardian {
        line,
        sheet: Sheet::of_stdout(),
        bell,
        waker,
        noted,
        order,
        name,
        request_timeout,
        session_asked,
        gone: Cell::new(false),
    }
    .serve();
    0
}

/// What was inherited is not ours to keep, and nothing but a KILL ends us: the command must not
/// outlive its guardian.
fn settle_in() {
    // By its number: not every C library has a function for it.
    // SAFETY: nothing was opened yet that has such a number.
    unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
    use Signal::{
        SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1,
        SIGUSR2,
    };
    for number in [
        SIGALRM, SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1,
        SIGUSR2,
    ] {
        // SAFETY: ignoring a signal runs no code of ours.
        _ = unsafe { signal(number, SigHandler::SigIgn) };
    }
}

struct Guardian {
    line: Line,
    sheet: Sheet,
    bell: Arc<Bell>,
    waker: Waker,
    noted: Arc<Noted>,
    order: Order,
    name: Name,
    /// How long the engine waits for an answer.
    request_timeout: Duration,
    /// How long a session is asked to last.
    session_asked: Duration,
    /// Whether whoever hired us is gone.
    gone: Cell<bool>,
}

type Asking = Pin<Box<dyn Future<Output = Result<Entry>>>>;

impl Guardian {
    fn serve(&self) {
        let builder = Locks::builder()
            .identity(self.order.who())
            .observer(Arc::clone(&self.noted) as Arc<dyn Observer>);
        let Some(opened) = self.drive(pin!(builder.open(&self.order.url)), None, true) else {
            return;
        };
        let locks = match opened {
            Ok(locks) => locks,
            Err(error) => return self.failed(&error),
        };
        self.tell_of_servers(&locks);
        let lasts = self.lasts(&locks);
        let margins = match self.order.care.kill_after.of(lasts) {
            Ok(kill_after) => Margins::of(lasts.time(), kill_after, self.request_timeout),
            Err(why) => return self.failed(&Error::new(ErrorKind::InvalidArgument, why)),
        };
        match self.acquired_whole(&locks, lasts.time(), margins.kill_after) {
            Some(Ok(Some(guard))) => self.keep(guard, margins),
            Some(Ok(None)) => self.busy(&locks),
            Some(Err(error)) if error.kind() == ErrorKind::TimedOut => {
                self.tell(&Tell::Busy { holder: error.holder().map(Into::into) });
            }
            Some(Err(error)) => self.failed(&error),
            None => {}
        }
        // Leaves the line, and repeats what was not answered; what is left then ends with its
        // lease.
        _ = self.drive(pin!(locks.close()), Some(PARTING), false);
    }

    fn tell(&self, tell: &Tell) {
        // Whoever hired us may be gone; what we do does not depend on it.
        _ = self.line.say(tell);
    }

    /// Tells what was heard of the lock.
    fn tell_news(&self) {
        for news in self.noted.with(|note| std::mem::take(&mut note.news)) {
            self.tell(&news);
        }
    }

    /// Tells which servers of several do not count, as connecting has shown.
    fn tell_of_servers(&self, locks: &Locks) {
        let warnings = locks.describe().warnings.into_iter();
        for warning in warnings.filter(|warning| OF_SERVERS.contains(&warning.id)) {
            let id = warning.id.to_owned();
            self.tell(&Tell::Warning(Caution { id, text: warning.text }));
        }
    }

    fn failed(&self, error: &Error) {
        self.tell(&Tell::Failed(ErrorWord::from(error)));
    }

    fn poll<F: Future + ?Sized>(&self, future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(&self.waker))
    }

    /// Sleeps until the bell rings, something was said, the command ended, or the time is over.
    fn pause(&self, time: Option<Duration>, listen: bool, target: Option<&Target>) {
        let mut fds = vec![PollFd::new(self.bell.0.as_fd(), PollFlags::POLLIN)];
        if listen && !self.gone.get() {
            fds.push(PollFd::new(self.line.as_fd(), PollFlags::POLLIN));
        }
        fds.extend(target.and_then(Target::end).map(|end| PollFd::new(end, PollFlags::POLLIN)));
        _ = poll(&mut fds, timeout(time));
        // Before anything is polled: what rings from now on rings for the next pause.
        _ = self.bell.0.read();
    }

    /// What was said.
    fn hear(&self) -> Option<Vec<u8>> {
        if self.gone.get() {
            return None;
        }
        match self.line.hear() {
            Heard::Message(message) => Some(message),
            Heard::Nothing => None,
            Heard::Gone => {
                self.gone.set(true);
                None
            }
        }
    }

    /// Waits for a future; nothing when the time is over, or when nobody wants it any more.
    fn drive<F: Future>(
        &self,
        mut future: Pin<&mut F>,
        at_most: Option<Duration>,
        wanted: bool,
    ) -> Option<F::Output> {
        let until = at_most.map(|time| moment() + time);
        loop {
            if let Poll::Ready(value) = self.poll(future.as_mut()) {
                return Some(value);
            }
            while wanted && let Some(message) = self.hear() {
                if message == WHY {
                    self.tell(&Tell::Why(self.noted.with(|note| note.trying.clone())));
                }
            }
            let left = until.map(|until| until.saturating_sub(moment()));
            if wanted && self.gone.get() || left.is_some_and(|left| left.is_zero()) {
                return None;
            }
            self.pause(left, wanted, None);
        }
    }

    /// Asks for the lock; nothing when nobody wants it any more.
    fn acquired(&self, locks: &Locks, kill_after: Duration) -> Option<Result<Option<Guard>>> {
        for require in self.order.require() {
            if let Err(error) = locks.require(require) {
                return Some(Err(error));
            }
        }
        let mut acquiring = self.acquiring(locks, kill_after);
        let mut asking: Option<Asking> = None;
        loop {
            let polled = self.poll(acquiring.as_mut());
            self.tell_news();
            if let Poll::Ready(got) = polled {
                return Some(got);
            }
            while let Some(message) = self.hear() {
                if message == WHY {
                    let silence = locks.silence(self.order.kind(), &self.name);
                    self.tell(&Tell::Why(silence.map(|(_, why)| ErrorWord::from(&why))));
                }
                if message == WHO_HOLDS && asking.is_none() {
                    let (locks, kind, name) = (locks.clone(), self.order.kind(), self.name.clone());
                    asking = Some(Box::pin(async move { locks.status(kind, &name).await }));
                }
            }
            if self.gone.get() {
                return None;
            }
            if let Some(answer) = asking.as_mut().map(|asking| self.poll(asking.as_mut()))
                && let Poll::Ready(answer) = answer
            {
                asking = None;
                self.tell(&answer.map_or(Tell::Silence, |entry| place(&entry, &self.order.who())));
            }
            self.pause(None, true, None);
        }
    }

    fn acquiring(
        &self,
        locks: &Locks,
        kill_after: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Option<Guard>>>>> {
        let (name, ttl) = (&self.name, Duration::from_millis(self.order.ttl_ms));
        // What a command needs to end. One who only holds has the default.
        let margin = self.order.care.command.then_some(kill_after);
        if let Some(id) = &self.order.value {
            let stand = locks.election(name).stand(id).ttl(ttl);
            let stand = margin.into_iter().fold(stand, Acquire::margin);
            let stand = self.bounded(stand).into_future();
            return Box::pin(async move { stand.await.map(Some) });
        }
        let mode = self.order.mode.mode();
        if self.order.try_only {
            let attempt = match mode {
                Mode::Permits { count, limit } => locks.semaphore(name, limit).try_acquire(count),
                Mode::Shared => locks.rwlock(name).try_read(),
                _ => locks.mutex(name).try_lock(),
            };
            let attempt = margin.into_iter().fold(attempt, TryAcquire::margin);
            let attempt =
                if self.order.renew { attempt.ttl(ttl) } else { attempt.ttl(ttl).no_renew() };
            return Box::pin(attempt.into_future());
        }
        let wait = match mode {
            Mode::Permits { count, limit } => locks.semaphore(name, limit).acquire(count),
            Mode::Shared => locks.rwlock(name).read(),
            _ => locks.mutex(name).lock(),
        };
        let wait = margin.into_iter().fold(wait, Acquire::margin);
        let wait = if self.order.renew { wait.ttl(ttl) } else { wait.ttl(ttl).no_renew() };
        let wait = self.bounded(wait).into_future();
        Box::pin(async move { wait.await.map(Some) })
    }

    /// Ends the wait when the engine is silent for too long, if that was asked for.
    fn bounded(&self, wait: Acquire) -> Acquire {
        match self.order.unreachable_after_ms {
            Some(ms) => wait.unreachable_after(Duration::from_millis(ms)),
            None => wait,
        }
    }

    /// How long what carries the hold lasts, as the server gave it.
    fn lasts(&self, locks: &Locks) -> Lasts {
        match locks.describe().expiry.session() {
            Some(session) => Lasts::Negotiated(session, self.session_asked),
            None => Lasts::Lease(Duration::from_millis(self.order.ttl_ms)),
        }
    }

    /// Somebody has it; who, as far as that can be said quickly.
    fn busy(&self, locks: &Locks) {
        let entry =
            self.drive(pin!(locks.status(self.order.kind(), &self.name)), Some(PARTING), true);
        let holder =
            entry.and_then(Result::ok).and_then(|entry| entry.holders.first().map(Into::into));
        // What was heard of the lock meanwhile.
        self.tell_news();
        self.tell(&Tell::Busy { holder });
    }

    /// Keeps the lock for as long as it is wanted.
    fn keep(&self, guard: Guard, margins: Margins) {
        let (held, kill_after) = (guard.held(), margins.kill_after);
        // The guard does not tell its token while the lock is in doubt.
        let (hold, token) = self.noted.with(|note| (note.hold.clone(), note.token));
        let granted = moment();
        let mut watch = Watch::new(self, &held, granted, margins);
        watch.reckon();
        self.tell(&Tell::Granted { token, hold: hold.clone(), kill_after });
        let mut lost = pin!(held.lost());
        let mut is_lost = false;
        while !watch.is_over {
            if !is_lost && let Poll::Ready(why) = self.poll(lost.as_mut()) {
                is_lost = true;
                watch.step(Event::Lost(Why::Lost(why)));
            }
            self.tell_news();
            while let Some(message) = self.hear() {
                if message == RELEASE {
                    return self.give_back(guard);
                }
                if let Some((own_group, pid)) = read_started(&message) {
                    watch.target = Some(Target::new(own_group, pid, hold.as_deref()));
                    watch.step(Event::Started);
                }
            }
            if self.gone.get() {
                watch.leave();
            }
            if !is_lost {
                watch.reckon();
            }
            watch.step(Event::Time);
            watch.look();
            watch.rest();
        }
        self.give_back(guard);
    }

    /// The same with a lease that a command can start on. One that never became whole is given
    /// back, and who waits goes on waiting: how long is up to whoever hired us.
    fn acquired_whole(
        &self,
        locks: &Locks,
        whole: Duration,
        kill_after: Duration,
    ) -> Option<Result<Option<Guard>>> {
        loop {
            let guard = match self.acquired(locks, kill_after) {
                Some(Ok(Some(guard))) => guard,
                other => return other,
            };
            if !self.order.care.command || self.is_whole(&guard.held(), whole, kill_after) {
                return Some(Ok(Some(guard)));
            }
            let at_most = guard.remaining().map_or(PARTING, |left| left.min(PARTING));
            _ = self.drive(pin!(guard.release()), Some(at_most), false);
            if self.gone.get() {
                return None;
            }
            if self.order.try_only {
                let text = "the lock was granted, and its server did not confirm the lease in \
                            time: no command was started";
                return Some(Err(Error::new(ErrorKind::Unreachable, text)));
            }
        }
    }

    /// Waits until as much of the lease is left as a healthy server leaves at any time, and it is
    /// in no doubt: a pushed grant comes with a short one, which is renewed at once. False when it
    /// is lost before.
    fn is_whole(&self, held: &Held, whole: Duration, kill_after: Duration) -> bool {
        let Some(first) = held.remaining() else { return true };
        let granted = moment();
        let mut asked = false;
        loop {
            // Read first: a pause in between must not look like a renewal.
            let now = moment();
            let left = held.remaining().unwrap_or_default();
            // A slow server may never give more than its margin.
            let is_renewed = now + left > granted + first + NEWER;
            let is_whole = Margins::is_whole(whole, kill_after, left);
            if (is_whole || is_renewed && left > kill_after) && held.check().is_ok() {
                return true;
            }
            while self.hear().is_some() {}
            if left.is_zero() || self.gone.get() {
                return false;
            }
            if !std::mem::replace(&mut asked, true) {
                held.renew_now();
            }
            self.pause(Some(left), true, None);
        }
    }

    fn give_back(&self, guard: Guard) {
        // Once the lease would be over it makes no difference any more.
        let at_most = guard.remaining().map_or(PARTING, |left| left.min(PARTING));
        let how = match self.drive(pin!(guard.release()), Some(at_most), false) {
            Some(Released::Clean) => Release::Clean,
            Some(Released::AlreadyLost(_) | Released::NotOurs) => Release::AlreadyLost,
            _ => Release::Unknown,
        };
        self.tell(&Tell::Released { how });
    }
}
