//! What a forked child may and may not do (R15).

use std::future::IntoFuture;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use lockkeeper::{Error, ErrorKind, Locks, Lost};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork};

/// What the child found, as its exit code.
const ALL_WELL: i32 = 0;
const GUARD_LIVES: i32 = 1;
const NEW_CLAIM_NOT_REFUSED: i32 = 2;

/// Takes the lock, forks, and lets the child look at its guard, drop it, and ask for more. Then the
/// parent's guard must be as it was.
pub(super) async fn check(locks: &Locks, name: &str) -> Result<String, Error> {
    let failed = |text: String| Error::new(ErrorKind::Unknown, text);
    let guard = locks.mutex(name).lock().await?;
    let waiting = locks.mutex(name).lock();
    // SAFETY: the child has this thread alone. It reads and drops values of its own, and leaves by
    // `_exit`, so that nothing that another thread of the parent had locked is waited for.
    let child = match unsafe { fork() } {
        Ok(ForkResult::Parent { child }) => child,
        Ok(ForkResult::Child) => {
            let code = in_child(guard, locks, waiting);
            // SAFETY: ends the child at once, without running what belongs to the parent.
            unsafe { nix::libc::_exit(code) }
        }
        Err(error) => return Err(failed(format!("cannot fork: {error}"))),
    };
    drop(waiting);
    let ended = tokio::task::spawn_blocking(move || waitpid(child, None)).await;
    match ended {
        Ok(Ok(WaitStatus::Exited(_, ALL_WELL))) => {}
        Ok(Ok(WaitStatus::Exited(_, GUARD_LIVES))) => {
            return Err(failed("the child's guard is not lost".to_owned()));
        }
        Ok(Ok(WaitStatus::Exited(_, NEW_CLAIM_NOT_REFUSED))) => {
            return Err(failed("the child's claim was not refused".to_owned()));
        }
        other => return Err(failed(format!("the child ended otherwise: {other:?}"))),
    }
    guard.verify().await?;
    let released = guard.release().await;
    if released.is_clean() {
        Ok("well".to_owned())
    } else {
        Err(failed(format!("the child's drop let go of the lock: {released:?}")))
    }
}

fn in_child(guard: lockkeeper::Guard, locks: &Locks, waiting: lockkeeper::Acquire) -> i32 {
    if guard.held().why_lost() != Some(Lost::Forked) || guard.token().is_ok() {
        return GUARD_LIVES;
    }
    drop(guard);
    let refused = |claim: lockkeeper::Acquire| {
        let mut claim = pin!(claim.into_future());
        match claim.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => error.kind() == ErrorKind::Closed,
            Poll::Ready(Ok(_)) | Poll::Pending => false,
        }
    };
    let both = refused(waiting) && refused(locks.mutex("of the child").lock());
    if both { ALL_WELL } else { NEW_CLAIM_NOT_REFUSED }
}
