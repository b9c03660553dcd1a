//! The keeper's own thread: timers, answers that come later, engine tasks. Started by the first
//! thing that needs it.
//!
//! It has a current-thread runtime of its own, so that deadlines, renewals and releases go on when
//! the user's runtime is starved, blocked or gone. Its timer is a `timerfd` on CLOCK_BOOTTIME: it
//! also fires after a suspend (R1).

use std::collections::BTreeMap;
use std::future::Future;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::Keeper;
use crate::engine::BoxFuture;
use crate::sync::Mutex;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind, Result};

/// Something to do at a time.
pub(crate) enum Due {
    /// Step an entry's timer.
    Entry(Weak<super::entry::Entry>),
    /// The same for one that must stay alive until the engine has heard that a place is left.
    Leaving(Arc<super::entry::Entry>),
    /// A turn may not last longer than this.
    TooLong(Weak<super::cell::TurnCell>),
    /// Look after the leases.
    Leases,
    /// Re-check all places.
    Net,
    /// Look at the places about which the engine says nothing.
    Outages,
    /// Forget events that came for claims which nobody registers.
    Early,
    /// Wake a sleeping task.
    Wake(Waker),
}

/// Names an armed timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TimerId {
    pub(crate) at: Ticks,
    /// Ties go in the order of arming.
    order: u64,
}

#[derive(Default)]
struct Timers {
    queue: BTreeMap<TimerId, Due>,
    armed: u64,
}

/// The thread, its timers and its tasks.
pub(crate) struct Driver {
    clock: Clock,
    timers: Arc<Mutex<Timers>>,
    /// An earlier timer than the one slept for, or a virtual clock that was moved.
    kick: Arc<Notify>,
    stop: Arc<Notify>,
    running: OnceLock<std::result::Result<Handle, String>>,
    /// Runs everything in place of the thread.
    #[cfg(feature = "test-util")]
    hosted: Option<super::hosted::Hosted>,
}

impl Driver {
    pub(crate) fn new(clock: Clock) -> Self {
        let kick = Arc::new(Notify::new());
        let kicked = kick.clone();
        clock.on_advance(move || kicked.notify_one());
        Self {
            clock,
            timers: Arc::default(),
            kick,
            stop: Arc::new(Notify::new()),
            running: OnceLock::new(),
            #[cfg(feature = "test-util")]
            hosted: None,
        }
    }

    /// The same on somebody else's executor, without a thread.
    #[cfg(feature = "test-util")]
    pub(crate) fn on(clock: Clock, host: Option<Arc<dyn super::hosted::Host>>) -> Self {
        let mut driver = Self::new(clock);
        driver.hosted = host.map(super::hosted::Hosted::new);
        driver
    }

    /// How many tasks are not over, and how many timers are armed.
    #[cfg(feature = "test-util")]
    pub(crate) fn load(&self) -> (usize, usize) {
        let tasks = match &self.hosted {
            Some(hosted) => hosted.alive(),
            None => self
                .running
                .get()
                .and_then(|r| r.as_ref().ok())
                .map_or(0, |handle| handle.metrics().num_alive_tasks()),
        };
        (tasks, self.timers.lock().unwrap_or_else(PoisonError::into_inner).queue.len())
    }

    /// Starts the thread if it does not run yet.
    fn handle(&self, keeper: &Arc<Keeper>) -> Result<&Handle> {
        let start = || self.start(Arc::downgrade(keeper)).map_err(|e| e.to_string());
        self.running.get_or_init(start).as_ref().map_err(|why| {
            let help = "raise the limit on threads or descriptors";
            Error::new(
                ErrorKind::Refused,
                format!("cannot start the keeper's thread: {why}; {help}"),
            )
        })
    }

    fn start(&self, keeper: Weak<Keeper>) -> std::io::Result<Handle> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (clock, timers) = (self.clock.clone(), self.timers.clone());
        let (kick, stop) = (self.kick.clone(), self.stop.clone());
        let timer = TimerFd::new(
            ClockId::CLOCK_BOOTTIME,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )?;
        let body = move || {
            runtime.block_on(drive(clock, timers, keeper, timer, kick, stop));
            // The runtime goes here, and every task that is left goes with it.
        };
        std::thread::Builder::new()
            .name("lockkeeper".to_owned())
            .stack_size(1024 * 1024)
            .spawn(body)?;
        Ok(handle)
    }

    /// Runs a future to its end on the thread.
    ///
    /// # Errors
    /// When the thread cannot be started; the future is dropped then.
    pub(crate) fn run(&self, keeper: &Arc<Keeper>, future: BoxFuture<()>) -> Result<()> {
        #[cfg(feature = "test-util")]
        if let Some(hosted) = &self.hosted {
            hosted.start(|| self.drive_hosted(keeper, hosted.host()));
            hosted.run(future);
            return Ok(());
        }
        self.handle(keeper)?.spawn(future);
        Ok(())
    }

    /// Does something in the caller as if on the thread's runtime; `None` on somebody else's
    /// executor.
    pub(crate) fn within<T>(&self, keeper: &Arc<Keeper>, act: &mut dyn FnMut() -> T) -> Option<T> {
        #[cfg(feature = "test-util")]
        if self.hosted.is_some() {
            return None;
        }
        let _entered = self.handle(keeper).ok()?.enter();
        Some(act())
    }

    /// Does something at a time; starts the thread.
    pub(crate) fn arm(&self, keeper: &Arc<Keeper>, at: Ticks, due: Due) -> TimerId {
        let (id, kick) = self.note(keeper, at, due);
        if kick {
            self.kick();
        }
        id
    }

    /// The same; answers also whether the thread is to be kicked for it.
    pub(crate) fn note(&self, keeper: &Arc<Keeper>, at: Ticks, due: Due) -> (TimerId, bool) {
        let (id, first) = {
            let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
            timers.armed += 1;
            let id = TimerId { at, order: timers.armed };
            timers.queue.insert(id, due);
            (id, timers.queue.first_key_value().is_some_and(|(first, _)| *first == id))
        };
        #[cfg(feature = "test-util")]
        if let Some(hosted) = &self.hosted {
            hosted.start(|| self.drive_hosted(keeper, hosted.host()));
            return (id, true);
        }
        (id, self.handle(keeper).is_ok() && first)
    }

    /// Forgets a timer, if it was not due yet.
    pub(crate) fn disarm(&self, timer: TimerId) {
        let due = self.timers.lock().unwrap_or_else(PoisonError::into_inner).queue.remove(&timer);
        // Outside of the lock: it may keep the last of something that has timers itself.
        drop(due);
    }

    /// The thread looks again what is to be done, and what the clocks say.
    pub(crate) fn kick(&self) {
        self.kick.notify_one();
    }

    /// What the thread does, with the host's timers.
    #[cfg(feature = "test-util")]
    fn drive_hosted(
        &self,
        keeper: &Arc<Keeper>,
        host: Arc<dyn super::hosted::Host>,
    ) -> BoxFuture<()> {
        let (clock, timers, keeper, kick) =
            (self.clock.clone(), self.timers.clone(), Arc::downgrade(keeper), self.kick.clone());
        Box::pin(async move {
            let mut stepped = 0;
            loop {
                let next = fire_due(&clock, &timers, &keeper, &mut stepped);
                let mut kicked = std::pin::pin!(kick.notified());
                let mut due = next.map(|at| host.sleep_until(at));
                std::future::poll_fn(|context| {
                    let due = due.as_mut().is_some_and(|due| due.as_mut().poll(context).is_ready());
                    if due { Poll::Ready(()) } else { kicked.as_mut().poll(context) }
                })
                .await;
            }
        })
    }

    /// Waits on the keeper's own clock.
    pub(crate) async fn sleep(&self, keeper: &Arc<Keeper>, time: Duration) {
        struct Sleep<'a>(&'a Driver, Option<(TimerId, Waker)>);
        impl Drop for Sleep<'_> {
            fn drop(&mut self) {
                if let Some((timer, _)) = self.1.take() {
                    self.0.disarm(timer);
                }
            }
        }
        let until = self.clock.now().plus(time);
        let mut sleep = Sleep(self, None);
        std::future::poll_fn(|context| {
            if self.clock.now() >= until {
                return Poll::Ready(());
            }
            // One timer a sleep, however often it is polled beside something else.
            if sleep.1.as_ref().is_none_or(|(_, waker)| !waker.will_wake(context.waker())) {
                let timer = self.arm(keeper, until, Due::Wake(context.waker().clone()));
                if let Some((old, _)) = sleep.1.replace((timer, context.waker().clone())) {
                    self.disarm(old);
                }
            }
            Poll::Pending
        })
        .await;
    }

    /// Ends the thread with all its tasks.
    pub(crate) fn stop(&self) {
        #[cfg(feature = "test-util")]
        if let Some(hosted) = &self.hosted {
            hosted.stop();
        }
        self.stop.notify_one();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

async fn drive(
    clock: Clock,
    timers: Arc<Mutex<Timers>>,
    keeper: Weak<Keeper>,
    timer: TimerFd,
    kick: Arc<Notify>,
    stop: Arc<Notify>,
) {
    let Ok(Ok(ready)) = timer.as_fd().try_clone_to_owned().map(readable) else { return };
    let (step, mut stepped) = (StepWatch::new(), 0);
    let mut stopped = std::pin::pin!(stop.notified());
    loop {
        let next = fire_due(&clock, &timers, &keeper, &mut stepped);
        if arm(&timer, &clock, next).is_err() {
            return;
        }
        let mut kicked = std::pin::pin!(kick.notified());
        let ended = std::future::poll_fn(|context| {
            if stopped.as_mut().poll(context).is_ready() {
                return Poll::Ready(true);
            }
            if kicked.as_mut().poll(context).is_ready() {
                return Poll::Ready(false);
            }
            if step.as_ref().is_some_and(|step| step.poll_step(context)) {
                return Poll::Ready(false);
            }
            ready.poll_read_ready(context).map(|ready| match ready {
                Ok(mut ready) => {
                    drain(&timer);
                    ready.clear_ready();
                    false
                }
                Err(_) => true,
            })
        });
        if ended.await {
            return;
        }
    }
}

/// Hears when somebody sets the time of day: a forward step puts leases in doubt at once, and that
/// must not wait for the next timer (R1).
struct StepWatch {
    timer: TimerFd,
    ready: AsyncFd<OwnedFd>,
}

impl StepWatch {
    fn new() -> Option<Self> {
        let timer = TimerFd::new(
            ClockId::CLOCK_REALTIME,
            TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC,
        )
        .ok()?;
        let ready = readable(timer.as_fd().try_clone_to_owned().ok()?).ok()?;
        let watch = Self { timer, ready };
        watch.arm();
        Some(watch)
    }

    /// Far in the future; the only thing that ends it is a step of the clock.
    fn arm(&self) {
        let year_2200 = TimeSpec::new(7_258_118_400, 0);
        let flags =
            TimerSetTimeFlags::TFD_TIMER_ABSTIME | TimerSetTimeFlags::TFD_TIMER_CANCEL_ON_SET;
        // Without it a step is noticed at the next reading of the clocks, which every guard method
        // makes.
        let _ = self.timer.set(Expiration::OneShot(year_2200), flags);
    }

    fn poll_step(&self, context: &mut Context<'_>) -> bool {
        match self.ready.poll_read_ready(context) {
            Poll::Ready(Ok(mut ready)) => {
                drain(&self.timer);
                ready.clear_ready();
                self.arm();
                true
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }
}

fn readable(timer: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: the descriptor is owned by the value that is registered, so it stays open for as long
    // as it is.
    unsafe { AsyncFd::register_with_interest(timer, tokio::io::Interest::READABLE) }
        .map_err(Into::into)
}

/// Runs everything that is due, and answers when the next is. `stepped`: how far the time of day
/// had been set forward when this was asked last.
fn fire_due(
    clock: &Clock,
    timers: &Mutex<Timers>,
    keeper: &Weak<Keeper>,
    stepped: &mut u64,
) -> Option<Ticks> {
    loop {
        let reading = clock.read();
        let now = reading.now;
        if std::mem::replace(stepped, reading.stepped) != reading.stepped
            && let Some(keeper) = keeper.upgrade()
        {
            keeper.clock_stepped();
        }
        let due = {
            let mut timers = timers.lock().unwrap_or_else(PoisonError::into_inner);
            match timers.queue.first_entry() {
                Some(first) if first.key().at <= now => first.remove(),
                first => return first.map(|t| t.key().at),
            }
        };
        match due {
            Due::Entry(entry) => {
                if let Some(entry) = entry.upgrade() {
                    entry.timer(now);
                }
            }
            Due::Leaving(entry) => entry.timer(now),
            Due::TooLong(turn) => {
                if let Some(turn) = turn.upgrade() {
                    turn.entry.held_too_long(&turn);
                }
            }
            Due::Leases => {
                if let Some(keeper) = keeper.upgrade() {
                    keeper.look_after_leases(now);
                }
            }
            Due::Net => {
                if let Some(keeper) = keeper.upgrade() {
                    keeper.recheck_waiters(now);
                }
            }
            Due::Outages => {
                if let Some(keeper) = keeper.upgrade() {
                    keeper.tell_outages(now);
                }
            }
            Due::Early => {
                if let Some(keeper) = keeper.upgrade() {
                    keeper.forget_early(now);
                }
            }
            Due::Wake(waker) => waker.wake(),
        }
    }
}

fn arm(timer: &TimerFd, clock: &Clock, next: Option<Ticks>) -> nix::Result<()> {
    match next {
        // A virtual clock kicks when it is moved.
        Some(at) if !clock.is_virtual() => {
            let wait = at.since(clock.now()).max(Duration::from_nanos(1));
            timer.set(Expiration::OneShot(TimeSpec::from(wait)), TimerSetTimeFlags::empty())
        }
        _ => timer.unset(),
    }
}

fn drain(timer: &TimerFd) {
    let mut count = [0u8; 8];
    // Non-blocking: nothing to read just means that it was set anew meanwhile.
    let _ = nix::unistd::read(timer.as_fd(), &mut count);
}
