//! Waiting until a permit may have become free: whoever gives one back writes to the file, and a
//! dying holder closes it.

use std::ffi::CStr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use super::dir::Directory;

/// The net under a wake-up that does not come. Unit tests have none: what is granted there was
/// woken.
const NET: Duration = Duration::from_secs(if cfg!(test) { 3_600 } else { 1 });
/// The same where the kernel has no watch left for this user.
const BLIND: Duration = Duration::from_millis(50);
/// After a close the kernel frees the locks a moment later than it tells: looked for at growing
/// distances up to this. Where there is no net, also by a kernel that was kept waiting itself.
const AFTER_CLOSE: Duration = Duration::from_millis(if cfg!(test) { 8_192 } else { 64 });

pub(super) struct Doze {
    watch: Option<Inotify>,
    bell: Arc<EventFd>,
    again_after: Option<Duration>,
    begun: bool,
}

impl Doze {
    pub(super) fn new(dir: &Directory, file: &CStr) -> Result<Self, Errno> {
        let bell = Arc::new(EventFd::from_value_and_flags(
            0,
            EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK,
        )?);
        let mask = AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_DONT_FOLLOW;
        let watch = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        let watch = watch.filter(|watch| watch.add_watch(&dir.file(file), mask).is_ok());
        Ok(Self { watch, bell, again_after: None, begun: false })
    }

    /// What ends a doze from another thread.
    pub(super) fn bell(&self) -> Arc<EventFd> {
        self.bell.clone()
    }

    /// Returns when it is worth looking again. At once the first time: what happened before the
    /// watch began was not seen.
    pub(super) fn doze(&mut self) -> Result<(), Errno> {
        if !std::mem::replace(&mut self.begun, true) {
            return Ok(());
        }
        let longest = if self.watch.is_some() { NET } else { BLIND };
        let timeout = self.again_after.unwrap_or(longest);
        let mut fds = vec![PollFd::new(self.bell.as_fd(), PollFlags::POLLIN)];
        fds.extend(self.watch.as_ref().map(|watch| PollFd::new(watch.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX)) {
            Ok(0) => {
                self.again_after =
                    self.again_after.map(|after| after * 2).filter(|after| *after <= AFTER_CLOSE)
            }
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
        if let Some(watch) = &self.watch {
            while let Ok(events) = watch.read_events() {
                if events.iter().any(|event| event.mask.intersects(AddWatchFlags::IN_CLOSE)) {
                    self.again_after = Some(Duration::from_millis(1));
                }
            }
        }
        Ok(())
    }
}
